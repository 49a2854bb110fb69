"""The result of `robustness_report`, as a figure, a self-contained HTML page, JSON or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from phiball.backends.files import write_text_atomic
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.models import CLASSIFIER

SUFFIXES = (".html", ".json", ".csv")
INK = "#0a0b0c"  # placeholder for the page's text colour, light or dark
COLOURS = ("#3b7dd8", "#d9661f", "#2f9e5a", "#a156c9", "#c43d5b", "#8a8f98")


@dataclass(frozen=True)
class RobustnessReport:
    """The errors and losses of models under perturbations; `save` writes a page, `plot` draws a figure.

    `summary` holds the numbers of the page as dicts and lists, as in the JSON file. `print` shows a table of
    them.
    """

    summary: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        kind, scale, unit = _quantity(self.summary)
        models = []
        for name, model in self.summary["models"].items():
            ends = [levels[-1] for levels in model["norms"].values()]
            after = _joined(level["measures"]["worst"][kind] * scale for level in ends)
            notes = [model["attacked"]] if model["attacked"] else []
            if any(level["certified"] is not None for level in ends):
                shares = (None if e["certified"] is None else 100 * e["certified"] for e in ends)
                notes.append(f"{_joined(shares)} % uncertified")
            more = f" ({'; '.join(notes)})" if notes else ""
            models.append(f"{name}: {kind} {model['clean'][kind] * scale:.3g} -> {after}{unit}{more}")
        ball = " / ".join(f"{norm} {radii[-1]:g}" for norm, radii in self.summary["radii"].items())
        n = len(self.summary["warnings"])
        counts = f"{self.summary['points']} points; {n} warning{'s' * (n != 1)}"
        return f"RobustnessReport({'; '.join(models)} at {ball}, {counts})"

    def __str__(self) -> str:
        return report_text(self.summary)

    def plot(self) -> Any:
        """Return a matplotlib figure: a panel per norm, a band from attacked to certified error per model."""
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
    """A table with a row per model, norm, radius and measure.

    The measure "risk" also has an eta. "certified" and "undecided" are errors too.
    """
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
                for measure in ("certified", "undecided"):
                    if level[measure] is not None:
                        writer.writerow({**where, "measure": measure, "error": level[measure]})
                for risk in level["risks"]:
                    numbers = {"loss": risk["value"], "loss_stderr": risk["stderr"]}
                    writer.writerow({**where, "measure": "risk", "eta": risk["eta"], **numbers})
    return stream.getvalue()


def headlines(summary: dict[str, Any]) -> dict[str, list[str]]:
    """A sentence per norm for each model: its errors at the largest radius."""
    kind, scale, unit = _quantity(summary)
    subject = "the error" if kind == "error" else "the squared error"
    out = {}
    for name, model in summary["models"].items():
        clean, sentences = f"{model['clean'][kind] * scale:.3g}", []
        note = f" ({model['attacked']})" if model["attacked"] else ""
        for norm, levels in model["norms"].items():
            worst, certified = f"{levels[-1]['measures']['worst'][kind] * scale:.3g}", levels[-1]["certified"]
            change = f"rises from {clean} to {worst}" if worst != clean else f"stays at {clean}"
            more = "" if certified is None else f"; {100 * certified:.3g} % cannot be certified"
            sentences.append(f"At {norm} {levels[-1]['radius']:g} {subject} {change}{unit}{note}{more}.")
        out[name] = sentences
    return out


def certificate_lines(summary: dict[str, Any]) -> dict[str, str]:
    """For each model, the method of its certificate in each norm, or the reason why there is none."""
    out = {}
    for name, model in summary["models"].items():
        norms: dict[str, list[str]] = {}
        for norm, text in model["certificates"].items():
            found = model["norms"][norm][-1]["certified"] is not None
            norms.setdefault(f"certificate: {text}" if found else f"no certificate: {text}", []).append(norm)
        where = ["" if len(norms) == 1 else f" ({', '.join(names)})" for names in norms.values()]
        out[name] = "; ".join(text + end for text, end in zip(norms, where, strict=True))
    return out


def comparison_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The clean, attacked, certified and undecided errors of all models at each norm and radius.

    For regressors, the losses take the place of the errors.
    """
    kind, _, _ = _quantity(summary)
    rows = []
    for norm, radii in summary["radii"].items():
        labels = _labels(radii)
        for k, radius in enumerate(radii):
            for name, model in summary["models"].items():
                level = model["norms"][norm][k]
                row = {"norm": norm, "radius": labels[radius], "model": name, "clean": model["clean"][kind]}
                row["attacked"] = level["measures"]["worst"][kind]
                rows.append({**row, "certified": level["certified"], "undecided": level["undecided"]})
    return rows


def report_text(summary: dict[str, Any]) -> str:
    """The table of all models, their headlines and the warnings, for the terminal."""
    kind, _, _ = _quantity(summary)
    columns = ["clean", "attacked", *(["certified", "undecided"] if kind == "error" else [])]
    table = [["error in %" if kind == "error" else "squared error", "radius", "model", *columns]]
    for row in comparison_rows(summary):
        numbers = ["-" if row[c] is None else _cell(row[c], kind) for c in columns]
        table.append([row["norm"], row["radius"], row["model"], *numbers])
    for above, cells in reversed(list(pairwise(table))):
        cells[:2] = ["", ""] if above[:2] == cells[:2] else cells[:2]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = ["<", ">", "<", *">" * len(columns)]
    lines = [
        "  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(cells, sides, widths, strict=True))
        for cells in table
    ]
    certificates = certificate_lines(summary)
    for name, sentences in headlines(summary).items():
        lines += [f"{name} ({certificates[name]})", *(f"    {sentence}" for sentence in sentences)]
    return "\n".join([*lines, *(f"warning: {text}" for text in summary["warnings"])])


def _quantity(summary: dict[str, Any]) -> tuple[str, float, str]:
    """("error", 100, " %") for classifiers, ("loss", 1, "") for regressors."""
    return ("error", 100.0, " %") if summary["kind"] == CLASSIFIER else ("loss", 1.0, "")


def _cell(value: float, kind: str) -> str:
    return f"{100 * value:.1f}" if kind == "error" else f"{value:.3g}"


def _joined(values: Iterable[float | None]) -> str:
    return " / ".join("-" if value is None else f"{value:.3g}" for value in values)


def report_html(summary: dict[str, Any]) -> str:
    """The page, with names and labels escaped."""
    jinja2 = require("jinja2", user="the page of a report", extra="verify")
    markup = require("markupsafe", user="the page of a report", extra="verify").Markup
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": lambda share: _cell(share, "error"), "short": lambda v: f"{v:.3g}"}
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    template = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    charts = [markup(_svg(summary, norm)) for norm in summary["norms"]]
    labels = {norm: _labels(radii) for norm, radii in summary["radii"].items()}
    used = {attack for model in summary["models"].values() for attack in model["attacks"]}
    return str(
        environment.from_string(template).render(
            report=summary,
            charts=charts,
            radii=labels,
            etas=_labels(summary["settings"]["etas"]),
            headlines=headlines(summary),
            certificates=certificate_lines(summary),
            rows=comparison_rows(summary),
            used=used,
        )
    )


def _labels(values: list[float]) -> dict[float, str]:
    """Numbers as text, with three digits, or as many as needed to distinguish them."""
    texts = ([f"{value:.{digits}g}" for value in values] for digits in range(3, 18))
    return dict(zip(values, next(text for text in texts if len(set(text)) == len(values)), strict=True))


def report_figure(summary: dict[str, Any], norms: list[str] | None = None, ink: str = "black") -> Any:
    """A figure with a panel per norm: the band from attacked to certified error of each model.

    The attacked error has 95 % intervals; the error under noise is dotted.
    """
    require("matplotlib", user="a plot", extra="experiments")
    figures = import_module("matplotlib.figure")
    quantity, scale, _ = _quantity(summary)
    norms, colours = norms or summary["norms"], COLOURS * len(summary["models"])
    certified = any(text.startswith("certificate") for text in certificate_lines(summary).values())
    styles = {"attacked": "o-", **({"certified": "--"} if certified else {}), "noise": ":"}
    columns = max(1, min(3, 36 // max(map(len, summary["models"]))))  # names of up to 36 letters fit
    rows = -(-(len(summary["models"]) + len(styles)) // columns)
    with import_module("matplotlib").rc_context(_style(ink)):
        figure = figures.Figure(figsize=(4.4 * len(norms), 3.4 + 0.2 * rows), layout="constrained")
        figure.patch.set_alpha(0.0)
        for axes, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
            axes.patch.set_alpha(0.0)
            for model, colour in zip(summary["models"].values(), colours, strict=False):
                levels = model["norms"][norm]
                radii = [level["radius"] for level in levels]
                worst = [scale * level["measures"]["worst"][quantity] for level in levels]
                spread = [1.96 * scale * level["measures"]["worst"][f"{quantity}_stderr"] for level in levels]
                noise = [scale * level["measures"]["noise"][quantity] for level in levels]
                axes.errorbar(radii, worst, spread, fmt="o-", color=colour, ms=3, lw=1.5, elinewidth=0.8)
                if levels[-1]["certified"] is not None:
                    bound = [100 * level["certified"] for level in levels]
                    axes.fill_between(radii, worst, bound, color=colour, alpha=0.18, linewidth=0)
                    axes.plot(radii, bound, "--", color=colour, lw=1.5)
                axes.plot(radii, noise, ":", color=colour, lw=1.5)
            axes.set_xlabel(f"{norm} radius")
            axes.set_ylabel("error in %" if quantity == "error" else "squared error")
            axes.set_ylim(0, 102 if quantity == "error" else None)
            axes.grid(alpha=0.12)
        axes, entries = figure.axes[0], zip(summary["models"], colours, strict=False)
        lines = [axes.plot([], [], color=colour, lw=5, label=_shorten(name))[0] for name, colour in entries]
        lines += [axes.plot([], [], style, color=ink, ms=3, label=text)[0] for text, style in styles.items()]
        figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _shorten(name: str) -> str:
    return name if len(name) <= 36 else f"{name[:35]}…"


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
