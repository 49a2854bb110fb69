"""Rates as SVG plots: measured values and stated bounds, on logarithmic axes."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from math import ceil, floor, log10

from phiball.verification.framework.evidence import Curve
from phiball.verification.report.math import MINUS, prose

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 28


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", MINUS)


def _ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round numbers in an interval: powers of ten if there are at least three."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [s * 10.0**k for k in decades for s in steps if low <= s * 10.0**k <= high * (1 + 1e-9)]
        if len(ticks) >= 3:
            return ticks[:: ceil(len(ticks) / max_ticks)]
    return [low, high]


class _Axis:
    """A logarithmic scale from numbers to pixels."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        low, high = log10(min(values)), log10(max(values))
        pad = max(0.05 * (high - low), 0.05 - (high - low) / 2)  # puts a constant curve in the middle
        self.low, self.high = low - pad, high + pad
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        return _ticks(10.0**self.low, 10.0**self.high)


def _svg(curve: Curve) -> str:
    x = _Axis(list(curve.x), _LEFT, _WIDTH - _RIGHT)
    y = _Axis([*curve.y, *curve.bound], _HEIGHT - _BOTTOM, _TOP)
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    order = sorted(range(len(curve.x)), key=lambda i: curve.x[i])
    measured = " ".join(f"{x(curve.x[i])},{y(curve.y[i])}" for i in order)
    bound = " ".join(f"{x(curve.x[i])},{y(curve.bound[i])}" for i in order)
    about = f"{curve.title}: {curve.y_label} against {curve.x_label}, both logarithmic; exponent {curve.fit}"
    parts = [f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(about)}">']
    for tick in x.ticks:
        at = x(tick)
        parts.append(f'<path class="grid" d="M{at} {top}V{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 17}" text-anchor="middle">{_number(tick)}</text>')
    for tick in y.ticks:
        at = y(tick)
        parts.append(f'<path class="grid" d="M{left} {at}H{right}"/>')
        parts.append(f'<text x="{left - 7}" y="{at + 4}" text-anchor="end">{_number(tick)}</text>')
    parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
    parts.append(
        f'<polyline class="bound" points="{bound}"/><polyline class="measured" points="{measured}"/>'
    )
    parts += [
        f'<circle class="dot" cx="{x(a)}" cy="{y(b)}" r="3.5"/>'
        for a, b in zip(curve.x, curve.y, strict=True)
    ]
    return "".join([*parts, "</svg>"])


def _key(inside: str) -> str:
    return f'<svg class="key" viewBox="0 0 24 10" aria-hidden="true">{inside}</svg>'


_LINE = _key('<path class="measured" d="M0 5H24"/><circle class="dot" cx="12" cy="5" r="3.5"/>')
_DASH = _key('<path class="bound" d="M0 5H24"/>')


def figure(curve: Curve) -> str:
    """A curve as an HTML figure: title, fitted exponent, legend, plot, and a table that unfolds."""
    rows = "".join(
        f"<tr><td>{_number(a)}</td><td>{_number(b)}</td><td>{_number(c)}</td></tr>"
        for a, b, c in zip(curve.x, curve.y, curve.bound, strict=True)
    )
    fit, stated = curve.fit, replace(curve, y=curve.bound).fit.slope
    exponents = f"exponent {fit}; bound: exponent {stated:.3f}".replace("-", MINUS)
    return (
        f"<figure><figcaption><strong>{prose(curve.title)}</strong>"
        f'<span class="fit">{exponents}</span></figcaption>'
        f'<p class="keys"><span>{_LINE} {prose(curve.y_label)}</span>'
        f"<span>{_DASH} {prose(curve.bound_label)}</span></p>"
        f'{_svg(curve)}<p class="x-label">{prose(curve.x_label)}</p>'
        "<details><summary>numbers</summary><table><thead><tr>"
        f"<th>{prose(curve.x_label)}</th><th>{prose(curve.y_label)}</th><th>{prose(curve.bound_label)}</th>"
        f"</tr></thead><tbody>{rows}</tbody></table></details></figure>"
    )
