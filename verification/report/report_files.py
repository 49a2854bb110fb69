"""The files of a report, and the description of its run."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phiball.backends import active
from phiball.backends.files import write_text_atomic
from phiball.verification.framework.comparison import Comparison
from phiball.verification.framework.paper import Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.html import to_html
from phiball.verification.report.json import to_json
from phiball.verification.report.markdown import to_markdown
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.wording import agreement, summary


def circumstances(
    results: list[Result],
    *,
    seed: int,
    deep: bool,
    seconds: float,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a run, its date, machine and summary: the `about` of a report.

    `provenance` adds entries, such as the revision, the versions of libraries and the record of runs.
    """
    return {
        "summary": summary(results, seconds),
        "agreement": agreement(results, seconds),
        "backend": active().name,
        "seed": seed,
        "deep": deep,
        "seconds": seconds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} cores",
        **(provenance or {}),
    }


def write_report(
    results: list[Result],
    out: Path,
    about: Mapping[str, Any],
    paper: Paper = THIS,
    comparisons: Sequence[Comparison] = (),
) -> list[Path]:
    """Write claims.json, claims.md and claims.html into the folder `out`, and return their paths.

    `comparisons`: the paper's own numbers beside ours, for JSON and HTML.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "claims.json": to_json(results, about, paper, comparisons),
        "claims.md": to_markdown(results, about, paper),
        "claims.html": to_html(results, about, paper, comparisons),
    }
    return [write_text_atomic(out / name, text) for name, text in texts.items()]
