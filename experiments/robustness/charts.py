"""The curves of a report, drawn by matplotlib: for a notebook, and as SVG for the page."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import Any

from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.models import CLASSIFIER

INK = "#0a0b0c"  # stands for the colour of the text of the page, light or dark
COLOURS = ("#3b7dd8", "#d9661f", "#2f9e5a", "#a156c9", "#c43d5b", "#8a8f98")


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
                most = 100.0 if what == "error" else float("inf")
                low = [max(a - b, 0.0) for a, b in zip(worst, spread, strict=True)]
                high = [min(a + b, most) for a, b in zip(worst, spread, strict=True)]
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
