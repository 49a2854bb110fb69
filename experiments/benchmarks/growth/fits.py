"""Fitted exponents beside theory, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends.files import atomic_write
from phiball.experiments.benchmarks.growth.curves import Axis
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable

FITTED = 5  # sizes, the largest: below, what every call costs would hide the growth
OURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # distinct to all
GREYS = ("0.25", "0.45", "0.65")
UNITS = {"time": "time, passes of np.max over 2^16 numbers", "memory": "peak memory, MB"}


@dataclass(frozen=True)
class Fit:
    """The exponent of a power law by least squares of the logarithms, and a 95 % interval around it.

    The interval is None for two sizes, which every power law fits.
    """

    exponent: float
    half_width: float | None
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        """As the table shows it."""
        error = "" if self.half_width is None else f" ± {self.half_width:.2f}"
        return f"{self.exponent:.2f}{error}"


@dataclass(frozen=True)
class Measured:
    """One curve, as measured: `values` at `sizes`, the fit, and the exponent that theory gives there."""

    quantity: str
    axis: str
    name: str
    ours: bool
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    fit: Fit
    theory: float


def fit_power(sizes: Sequence[int], values: Sequence[float]) -> Fit:
    """Fit values = c sizes^exponent on the FITTED largest sizes."""
    sizes, values = tuple(sizes[-FITTED:]), tuple(values[-FITTED:])
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(values))
    centred = x - x.mean()
    spread = float(centred @ centred)
    exponent = float(centred @ y) / spread
    if len(sizes) < 3:
        return Fit(exponent, None, sizes)
    left = y - y.mean() - exponent * centred
    freedom = len(sizes) - 2
    quantile = float(require("scipy.stats", user="bench scaling", extra="bench").t.ppf(0.975, freedom))
    return Fit(exponent, quantile * sqrt(float(left @ left) / freedom / spread), sizes)


def theoretical_exponent(sizes: Sequence[int], cost: Callable[[float], float]) -> float:
    """Return the exponent that a fit gives to the theoretical cost at the same sizes."""
    return fit_power(sizes, [cost(float(size)) for size in sizes]).exponent


def table(measured: list[Measured], axes: dict[str, Axis]) -> ReportTable:
    """Return every fitted exponent beside that of theory."""
    cells = []
    for one in measured:
        sizes = f"{one.fit.sizes[0]} to {one.fit.sizes[-1]}"
        last = f"{one.values[-1]:.3g}"
        cells.append(
            (one.quantity, axes[one.axis].name, one.name, str(one.fit), f"{one.theory:.2f}", sizes, last)
        )
    fixed = "; ".join(f"{axis.name}: {axis.fixed}" for axis in axes.values())
    return ReportTable(
        "Growth: fitted exponents",
        ("quantity", "grows with", "what", "exponent", "theory", "fitted on", "at the largest"),
        cells,
        f"least squares of logarithms, ± half of a 95 % interval, on the {FITTED} largest sizes; theory: the "
        "same fit of the number of operations, or of numbers that are held (sorting takes m log m); "
        f"{UNITS['time']}; {UNITS['memory']}. What is fixed: {fixed}",
        left=3,
    )


def draw(measured: list[Measured], axes: dict[str, Axis]) -> Any:
    """Return the figure: a panel for each quantity and axis; ours solid, other systems dashed and grey."""
    figure_of = require("matplotlib.figure", user="the plot of bench scaling", extra="bench").Figure
    quantities = [q for q in UNITS if any(one.quantity == q for one in measured)]
    shown = [name for name in axes if any(one.axis == name for one in measured)]
    figure = figure_of(figsize=(4.0 * len(shown), 6.2 * len(quantities)), layout="constrained")
    panels = figure.subplots(len(quantities), len(shown), squeeze=False)
    for row, quantity in zip(panels, quantities, strict=True):
        for panel, name in zip(row, shown, strict=True):
            mine = [one for one in measured if (one.quantity, one.axis) == (quantity, name)]
            _draw_panel(panel, mine, axes[name], quantity)
        row[0].set_ylabel(UNITS[quantity])
    return figure


def _draw_panel(panel: Any, curves: list[Measured], axis: Axis, quantity: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set(yscale="log", xlabel=axis.name)
    panel.set_title(f"{quantity}: {axis.fixed}", fontsize=8)
    others = 0
    for number, one in enumerate(curves):
        label = f"{one.name}: {one.fit} ({one.theory:.2f})"
        if one.ours:
            style = {"color": OURS[number % len(OURS)], "linestyle": "-", "linewidth": 1.6}
            marker = "o"
        else:
            marker = "s^vDPX*<>"[others % 9]
            style = {"color": GREYS[others % len(GREYS)], "linestyle": "--", "linewidth": 1.0}
            others += 1
        panel.plot(one.sizes, one.values, marker=marker, markersize=3.5, label=label, **style)
    low, high = panel.get_ylim()
    if high < 10 * low:  # at least a decade, so that noise does not look like growth
        middle = sqrt(low * high)
        panel.set_ylim(middle / sqrt(10), middle * sqrt(10))
    low, high = panel.get_ylim()
    if high < 100 * low:  # powers of ten alone would leave one label, or none
        ticker = require("matplotlib.ticker", user="the plot of bench scaling", extra="bench")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
    if len(axis.time) < 9 and axis.time[0] == 1:  # few, such as threads
        panel.set_xticks(axis.time, [str(size) for size in axis.time])
    panel.minorticks_off()
    panel.grid(True, which="major", color="0.9", linewidth=0.6)
    panel.legend(
        fontsize=7, frameon=False, title="exponent (theory)", title_fontsize=7, alignment="left",
        loc="upper center", bbox_to_anchor=(0.5, -0.14),
    )  # fmt: skip


def write_figure(figure: Any, out: Path) -> list[Path]:
    """Write the figure as PNG and SVG."""
    files = []
    for kind in ("png", "svg"):
        picture = BytesIO()
        figure.savefig(picture, format=kind, dpi=110)
        files.append(out / f"scaling.{kind}")
        with atomic_write(files[-1]) as stream:
            stream.write(picture.getvalue())
    return files
