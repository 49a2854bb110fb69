"""A report as a file: one HTML page that needs no other, JSON, or a table in CSV; and its curves."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends.files import write_whole
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.models import CLASSIFIER

FORMS = (".html", ".json", ".csv")
INK = "#0a0b0c"  # stands for the colour of the text of the page, light or dark
COLOURS = ("#3b7dd8", "#d9661f", "#2f9e5a", "#a156c9", "#c43d5b", "#8a8f98")


def write(summary: dict[str, Any], file: Path) -> Path:
    """Write a report in the form that the ending of the file names, in one step."""
    if file.suffix not in FORMS:
        raise ValueError(f"file is {str(file)!r}; expected the ending {', '.join(FORMS)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(file, {".html": to_html, ".json": to_json, ".csv": to_csv}[file.suffix](summary))


def to_json(summary: dict[str, Any]) -> str:
    """The numbers of the page."""
    return json.dumps(summary, indent=1) + "\n"


def to_csv(summary: dict[str, Any]) -> str:
    """One row per model, norm, radius and measure."""
    names = ("loss", "loss_stderr", "error", "error_stderr")
    stream = StringIO(newline="")
    writer = csv.DictWriter(stream, ["model", "norm", "radius", "measure", *names], restval="")
    writer.writeheader()
    for name, model in summary["models"].items():
        for norm, levels in model["norms"].items():
            for level in levels:
                measures = {**level["measures"]}
                for risk in level["risks"]:
                    numbers = {"loss": risk["value"], "loss_stderr": risk["stderr"]}
                    measures[f"risk, eta {risk['eta']:g}"] = numbers
                place = {"model": name, "norm": norm, "radius": level["radius"]}
                writer.writerows({**place, "measure": key, **row} for key, row in measures.items())
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


def draw(summary: dict[str, Any], norms: list[str] | None = None, ink: str = "black") -> Any:
    """A panel per norm: the worst that was found for each model, with its interval; noise is dashed."""
    require("matplotlib", user="a plot", extra="experiments")
    figures = import_module("matplotlib.figure")
    what, scale = ("error", 100.0) if summary["kind"] == CLASSIFIER else ("loss", 1.0)
    norms = norms or summary["norms"]
    with import_module("matplotlib").rc_context(_style(ink)):
        figure = figures.Figure(figsize=(4.4 * len(norms), 3.4), layout="constrained")
        figure.patch.set_alpha(0.0)
        for axes, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
            axes.patch.set_alpha(0.0)
            for (name, model), colour in zip(
                summary["models"].items(), COLOURS * len(summary["models"]), strict=False
            ):
                rows = model["norms"][norm]
                radii = [row["radius"] for row in rows]
                worst = [scale * row["measures"]["worst"][what] for row in rows]
                spread = [1.96 * scale * row["measures"]["worst"][f"{what}_stderr"] for row in rows]
                low, high = np.subtract(worst, spread), np.add(worst, spread)
                low, high = low.clip(0), high.clip(0, 100.0 if what == "error" else None)
                noise = [scale * row["measures"]["noise"][what] for row in rows]
                axes.fill_between(radii, low, high, color=colour, alpha=0.2, linewidth=0)
                axes.plot(radii, worst, "o-", color=colour, label=f"{name}, worst found")
                axes.plot(radii, noise, "--", color=colour, label=f"{name}, noise")
            axes.set_xlabel(f"{norm} radius of the perturbation")
            axes.set_ylabel("error in %" if what == "error" else "squared error")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, fontsize="small")
    return figure


def _style(ink: str) -> dict[str, Any]:
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {**dict.fromkeys(names, ink), "svg.fonttype": "none", "font.family": "sans-serif"}


def svg(summary: dict[str, Any], norm: str) -> str:
    """The panel of a norm as SVG that takes the colours of the page around it."""
    stream = StringIO()
    with import_module("matplotlib").rc_context({**_style(INK), "svg.hashsalt": norm}):
        draw(summary, [norm], INK).savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
