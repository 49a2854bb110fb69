"""A report as a file: one HTML page that needs no other, JSON, or a table in CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from phiball.backends.files import write_whole
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.charts import svg

FORMS = (".html", ".json", ".csv")


def write(summary: dict[str, Any], file: Path) -> Path:
    """Write a report in the form that the ending of the file names, in one step."""
    if file.suffix not in FORMS:
        raise ValueError(f"file is {str(file)!r}; expected the ending {', '.join(FORMS)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(file, {".html": to_html, ".json": to_json, ".csv": to_csv}[file.suffix](summary))


def to_json(summary: dict[str, Any]) -> str:
    """The numbers, without the pictures."""
    return json.dumps(_without_pictures(summary), indent=1) + "\n"


def _without_pictures(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_pictures(part) for name, part in value.items() if name != "pictures"}
    return [_without_pictures(part) for part in value] if isinstance(value, list) else value


def rows(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per model, norm, radius and measure."""
    for name, model in summary["models"].items():
        for norm, levels in model["norms"].items():
            for level in levels:
                place = {"model": name, "norm": norm, "radius": level["radius"]}
                for measure, numbers in level["measures"].items():
                    yield {**place, "measure": measure, **numbers}
                for risk in level["risks"]:
                    numbers = {"loss": risk["value"], "loss_stderr": risk["stderr"]}
                    yield {**place, "measure": f"risk, eta {risk['eta']:g}", **numbers}


def to_csv(summary: dict[str, Any]) -> str:
    """The table of `rows`."""
    names = ("loss", "loss_stderr", "error", "error_stderr", "evaluations", "gradients")
    stream = StringIO(newline="")
    writer = csv.DictWriter(stream, ["model", "norm", "radius", "measure", *names], restval="")
    writer.writeheader()
    writer.writerows(rows(summary))
    return stream.getvalue()


def to_html(summary: dict[str, Any]) -> str:
    """The page; names and labels are escaped."""
    jinja2 = require("jinja2", user="the page of a report", extra="verify")
    markup = require("markupsafe", user="the page of a report", extra="verify").Markup
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": lambda share: f"{100 * share:.1f}", "short": lambda v: f"{v:.3g}"}
    template = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    charts = [markup(svg(summary, norm)) for norm in summary["norms"]]
    return str(environment.from_string(template).render(report=summary, charts=charts))
