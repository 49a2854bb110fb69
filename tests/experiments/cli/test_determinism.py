"""The same seed gives the same bits, whatever the number of processes and of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for library in ("joblib", "matplotlib", "threadpoolctl", "torch", "typer"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends.processes import THREAD_VARIABLES  # noqa: E402

WAYS = [(1, 1), (2, 3)]  # jobs, threads
TIMES = {"seconds", "date", "summary", "agreement", "machine", "record"}


def call(command: str, out: Path, jobs: int, threads: int) -> None:
    main = "from phiball.experiments.cli.main import main; main()"
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
    done = subprocess.run(
        [sys.executable, "-c", main, *command.split(), "--jobs", str(jobs), "--out", str(out)],
        env={**os.environ, **limits, "PHIBALL_BACKEND": "numba"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_a_study(tmp_path: Path) -> None:
    """Its table, byte for byte."""
    tables = set()
    for jobs, threads in WAYS:
        out = tmp_path / f"{jobs} {threads}"
        call("run worst-case --scale smoke --seed 5", out, jobs, threads)
        tables.add((out / "table.csv").read_bytes())
    assert len(tables) == 1


@pytest.mark.slow
def test_claims(tmp_path: Path) -> None:
    """What `phiball verify` writes, but for the time that it took."""
    found = []
    for jobs, threads in WAYS:
        out = tmp_path / f"{jobs} {threads}"
        call("verify --section 4 --seed 5", out, jobs, threads)
        found.append(timeless(json.loads((out / "claims.json").read_text(encoding="utf-8"))))
    assert found[0] == found[1]
    assert "violation" in json.dumps(found[0])
