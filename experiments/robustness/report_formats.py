"""The result of `robustness_report`, as a figure, a self-contained HTML page, JSON or CSV."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends.files import write_text_atomic
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.models import CLASSIFIER

SUFFIXES = (".html", ".json", ".csv")
INK = "#0a0b0c"  # placeholder for the page's text colour, light or dark
COLOURS = ("#3b7dd8", "#d9661f", "#2f9e5a", "#a156c9", "#c43d5b", "#8a8f98")


@dataclass(frozen=True)
class RobustnessReport:
    """The errors and losses of models under perturbations; `save` writes a page, `plot` draws a figure.

    `summary` holds the numbers of the page as dicts and lists, as in the JSON file.
    """

    summary: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        kind = "error" if self.summary["kind"] == CLASSIFIER else "loss"
        scale, unit = (100, " %") if kind == "error" else (1, "")
        models = []
        for name, model in self.summary["models"].items():
            worst = [levels[-1]["measures"]["worst"][kind] for levels in model["norms"].values()]
            after = " / ".join(f"{value * scale:.3g}" for value in worst)
            models.append(f"{name}: {kind} {model['clean'][kind] * scale:.3g} -> {after}{unit}")
        ball = f"{' / '.join(self.summary['norms'])} {self.summary['radii'][-1]:g}"
        n = len(self.summary["warnings"])
        counts = f"{self.summary['points']} points; {n} warning{'s' * (n != 1)}"
        return f"RobustnessReport({'; '.join(models)} at {ball}, {counts})"

    def plot(self) -> Any:
        """Return a matplotlib figure: a panel per norm, a curve per model, noise dashed."""
        return report_figure(self.summary)

    def save(self, file: str | Path) -> Path:
        """Write the report to a .html, .json or .csv file, and return its path."""
        file = Path(file)
        if file.suffix not in SUFFIXES:
            raise ValueError(f"file is {str(file)!r}; expected the suffix {', '.join(SUFFIXES)}")
        formats = {".html": report_html, ".json": report_json, ".csv": report_csv}
        text = formats[file.suffix](self.summary)
        file.parent.mkdir(parents=True, exist_ok=True)
        return write_text_atomic(file, text)


def report_json(summary: dict[str, Any]) -> str:
    """The summary as JSON."""
    return json.dumps(summary, indent=1) + "\n"


def report_csv(summary: dict[str, Any]) -> str:
    """A table with a row per model, norm, radius and measure; the measure "risk" also has an eta."""
    names = ("loss", "loss_stderr", "error", "error_stderr")
    stream = StringIO(newline="")
    writer = csv.DictWriter(stream, ["model", "norm", "radius", "measure", "eta", *names], restval="")
    writer.writeheader()
    for name, model in summary["models"].items():
        for norm, levels in model["norms"].items():
            for level in levels:
                where = {"model": name, "norm": norm, "radius": level["radius"]}
                for measure, numbers in level["measures"].items():
                    writer.writerow({**where, "measure": measure, **numbers})
                for risk in level["risks"]:
                    numbers = {"loss": risk["value"], "loss_stderr": risk["stderr"]}
                    writer.writerow({**where, "measure": "risk", "eta": risk["eta"], **numbers})
    return stream.getvalue()


def report_html(summary: dict[str, Any]) -> str:
    """The page, with names and labels escaped."""
    jinja2 = require("jinja2", user="the page of a report", extra="verify")
    markup = require("markupsafe", user="the page of a report", extra="verify").Markup
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": lambda share: f"{100 * share:.1f}", "short": lambda v: f"{v:.3g}"}
    template = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    charts = [markup(_svg(summary, norm)) for norm in summary["norms"]]
    labels = {"radii": _labels(summary["radii"]), "etas": _labels(summary["settings"]["etas"])}
    return str(environment.from_string(template).render(report=summary, charts=charts, **labels))


def _labels(values: list[float]) -> dict[float, str]:
    """Numbers as text, with three digits, or as many as needed to distinguish them."""
    texts = ([f"{value:.{digits}g}" for value in values] for digits in range(3, 18))
    return dict(zip(values, next(text for text in texts if len(set(text)) == len(values)), strict=True))


def report_figure(summary: dict[str, Any], norms: list[str] | None = None, ink: str = "black") -> Any:
    """A figure with a panel per norm: the worst error of each model with its 95 % interval; noise dashed."""
    require("matplotlib", user="a plot", extra="experiments")
    figures = import_module("matplotlib.figure")
    quantity, scale = ("error", 100.0) if summary["kind"] == CLASSIFIER else ("loss", 1.0)
    norms = norms or summary["norms"]
    with import_module("matplotlib").rc_context(_style(ink)):
        figure = figures.Figure(figsize=(4.4 * len(norms), 3.8), layout="constrained")
        figure.patch.set_alpha(0.0)
        for axes, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
            axes.patch.set_alpha(0.0)
            for (name, model), colour in zip(
                summary["models"].items(), COLOURS * len(summary["models"]), strict=False
            ):
                rows = model["norms"][norm]
                radii = [row["radius"] for row in rows]
                worst = [scale * row["measures"]["worst"][quantity] for row in rows]
                spread = [1.96 * scale * row["measures"]["worst"][f"{quantity}_stderr"] for row in rows]
                low, high = np.subtract(worst, spread), np.add(worst, spread)
                low, high = low.clip(0), high.clip(0, 100.0 if quantity == "error" else None)
                noise = [scale * row["measures"]["noise"][quantity] for row in rows]
                axes.fill_between(radii, low, high, color=colour, alpha=0.2, linewidth=0)
                axes.plot(radii, worst, "o-", color=colour, label=f"{name}, worst")
                axes.plot(radii, noise, "--", color=colour, label=f"{name}, noise")
            axes.set_xlabel(f"{norm} radius")
            axes.set_ylabel("error in %" if quantity == "error" else "squared error")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.12)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _style(ink: str) -> dict[str, Any]:
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {**dict.fromkeys(names, ink), "svg.fonttype": "none", "font.family": "sans-serif"}


def _svg(summary: dict[str, Any], norm: str) -> str:
    """The panel of a norm as SVG in the text colour of the page."""
    stream = StringIO()
    matplotlib = require("matplotlib", user="the page of a report", extra="experiments")
    with matplotlib.rc_context({**_style(INK), "svg.hashsalt": norm}):
        report_figure(summary, [norm], INK).savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
