"""Small pictures as SVG: shares of bounds, and the worst-case densities of the paper's examples."""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, indicator, worst_case
from phiball.verification.report.math import MINUS

_WIDTH = 420
_POINTS = 400
_X = (2 * np.arange(_POINTS) + 1) / _POINTS - 1  # the middles of equal pieces of [-1, 1]
_LOSS = np.sin(4 * _X + 0.5) + 0.8 * _X
_ETAS = (4.0, 0.5, 0.1)
# The claim on each example, with phi and its parameter in each panel.
_EXAMPLES: dict[str, list[tuple[str, Divergence, float]]] = {
    "E1": [(f"alpha = {a:g}", indicator(a), 1.0) for a in (1.0, 0.5, 0.1)],
    **{
        name: [(f"eta = {eta:g}", phi, eta) for eta in _ETAS]
        for name, phi in {"E2": ENTROPIC, "E3": QUADRATIC, "E4": ABSOLUTE, "E5": HINGE}.items()
    },
}


def shares_figure(shares: tuple[int, ...]) -> str:
    """How often which share of its bound was measured, as an HTML figure."""
    left, right, top, bottom = 12, _WIDTH - 12, 8, 62
    step, most = (right - left) / len(shares), max(shares)
    bars = "".join(
        f'<rect class="bar" x="{left + i * step + 1:.1f}" y="{bottom - height:.1f}" width="{step - 2:.1f}" '
        f'height="{height:.1f}"/>'
        for i, height in enumerate((bottom - top) * sqrt(count / most) for count in shares)
        if height
    )
    ticks = "".join(
        f'<text x="{left + share * (right - left):.0f}" y="{bottom + 16}" text-anchor="{anchor}">'
        f"{words}</text>"
        for share, anchor, words in (
            (0, "start", "0"),
            (0.5, "middle", "50 %"),
            (1, "end", "the stated bound"),
        )
    )
    total = sum(shares)
    return (
        f'<figure class="wide"><figcaption>measured over bound, {total} '
        f"{'comparison' if total == 1 else 'comparisons'} (heights: square roots of counts)</figcaption>"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {bottom + 22}" role="img" aria-label="shares of the bound">'
        f'{bars}<path class="axis" d="M{left} {bottom}H{right}"/>'
        f'<path class="bound" d="M{right} {top}V{bottom}"/>{ticks}</svg></figure>'
    )


@cache
def densities_figure(name: str) -> str:
    """The worst-case densities of the example that claim `name` is on, as an HTML figure; else empty."""
    if name not in _EXAMPLES:
        return ""
    width, height = _WIDTH / 3, 130
    panels = "".join(
        _panel(_WIDTH / 3 * place, width, height, *example) for place, example in enumerate(_EXAMPLES[name])
    )
    return (
        '<figure class="wide"><figcaption>worst-case densities (filled) of the loss sin(4x + 1/2) + 0.8x '
        f"(line) on [{MINUS}1,\N{NO-BREAK SPACE}1]; a dot on a stem is a mass at one point</figcaption>"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="worst-case densities">'
        f"{panels}</svg></figure>"
    )


def _panel(left: float, width: float, height: float, words: str, phi: Divergence, eta: float) -> str:
    """One panel: the loss as a line, the density as an area, an atom as a dot on a stem."""
    weights: NDArray[np.float64] = np.asarray(worst_case(_LOSS, eta, phi).weights)
    bottom, tall, inner = height - 20, height - 34, width - 16
    x = left + 8 + inner * (_X + 1) / 2
    f = bottom - tall * (_LOSS - _LOSS.min()) / np.ptp(_LOSS)
    density = weights * _POINTS / 2
    top = int(np.argmax(_LOSS))
    atom = phi.name in ("absolute", "hinge")  # what the largest point has beyond its neighbours
    mass = float(weights[top] - weights[top - 1]) if atom else 0.0
    if mass > 0:
        density[top] = density[top - 1]
    y = bottom - tall * density / max(2.0, float(density.max()))

    def line(ys: NDArray[np.float64]) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[::2], ys[::2], strict=True))

    area = f'<polygon class="area" points="{x[0]:.1f},{bottom} {line(y)} {x[-1]:.1f},{bottom}"/>'
    stem = ""
    if mass > 1 / _POINTS:
        at, up = x[top], bottom - tall * mass
        stem = (
            f'<path class="measured" d="M{at:.1f} {bottom}V{up:.1f}"/>'
            f'<circle class="dot" cx="{at:.1f}" cy="{up:.1f}" r="3.5"><title>mass {mass:.2f}</title></circle>'
        )
    return (
        f'<polyline class="loss" points="{line(f)}"/>{area}{stem}'
        f'<path class="axis" d="M{left + 8:.1f} {bottom}h{inner:.1f}"/>'
        f'<text x="{left + width / 2:.1f}" y="{height - 5}" text-anchor="middle">{words}</text>'
    )
