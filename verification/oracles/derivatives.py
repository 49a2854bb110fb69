"""Derivatives of the solution of an inner problem, as differences of 50-digit solutions.

At a price eta, or within a radius. Nothing here shares code with refimpl.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath as mp

from phiball.verification.oracles.definitions import phi
from phiball.verification.oracles.inner import DIGITS, solve_exactly


class Solution(NamedTuple):
    """The value, the price, the multiplier of the sum and the weights."""

    value: Any
    eta: Any
    mu: Any
    weights: list[Any]


class Direction(NamedTuple):
    """How losses, price or radius, and law move; the law is rescaled to the sum one."""

    f: list[float]
    setting: float
    p: list[float]


def ratio(s: Any, family: str, k: float | None) -> Any:
    """The density ratio x >= 0 with phi'(x) = s, and zero below phi'(0)."""
    if family == "entropic":
        return mp.exp(s)
    if family == "quadratic":
        return max(s, mp.mpf(0))
    assert k is not None
    base = 1 + (k - 1) * s
    return base ** (1 / (mp.mpf(k) - 1)) if base > 0 else mp.mpf(0)


def slope(x: Any, family: str, k: float | None) -> Any:
    """phi'(x), for x > 0."""
    if family == "entropic":
        return mp.log(x)
    return x if family == "quadratic" else (x ** (mp.mpf(k) - 1) - 1) / (mp.mpf(k) - 1)


def at_price(f: list[float], eta: float, p: list[float], family: str, k: float | None) -> Solution:
    """The solution at a price, with the multiplier from the weight of the largest loss."""
    best = solve_exactly(f, eta, family, k, p=p)
    top = max((v, i) for i, v in enumerate(f) if p[i])[1]
    with mp.workdps(DIGITS):
        weights = [_number(w) for w in best.weights]
        mu = mp.mpf(f[top]) - eta * slope(weights[top] * sum(map(mp.mpf, p)) / p[top], family, k)
        return Solution(_number(best.value), mp.mpf(eta), mu, weights)


def divergence(weights: list[Any], p: list[Any], family: str, k: float | None) -> Any:
    """sum q phi(gamma/q) with q = p/sum p."""
    with mp.workdps(DIGITS):
        total = mp.fsum(p)
        law = [q / total for q in map(mp.mpf, p)]
        return mp.fsum(q * phi(w / q, family, k) for w, q in zip(weights, law, strict=True) if q)


def along(
    base: Solution, f: list[float], p: list[float], way: Direction, family: str, k: float | None, within: bool
) -> Solution:
    """The derivative of the solution `base` along a direction, at its price, or within its radius."""
    with mp.workdps(DIGITS):
        h = mp.mpf(10) ** -15
        setting = divergence(base.weights, p, family, k) if within else base.eta
        ends = [
            _near(
                base,
                [v + side * h * d for v, d in zip(f, way.f, strict=True)],
                setting + side * h * way.setting,
                [q + side * h * d for q, d in zip(p, way.p, strict=True)],
                family,
                k,
                within,
            )
            for side in (1, -1)
        ]
        return difference(ends[0], ends[1], 2 * h)


def difference(a: Solution, b: Solution, step: Any) -> Solution:
    """(a - b)/step, part by part."""
    weights = [(v - w) / step for v, w in zip(a.weights, b.weights, strict=True)]
    return Solution((a.value - b.value) / step, (a.eta - b.eta) / step, (a.mu - b.mu) / step, weights)


def _near(
    base: Solution, f: list[Any], setting: Any, p: list[Any], family: str, k: float | None, within: bool
) -> Solution:
    """The solution of a problem close to that of `base`, from which Newton's method starts."""
    total = mp.fsum(p)
    law = [q / total for q in p]

    def ratios(mu: Any, eta: Any) -> list[Any]:
        return [ratio((v - mu) / eta, family, k) if q else mp.mpf(0) for v, q in zip(f, law, strict=True)]

    def left(mu: Any, eta: Any) -> tuple[Any, Any]:
        x = ratios(mu, eta)
        mass = mp.fsum(q * v for q, v in zip(law, x, strict=True)) - 1
        spent = mp.fsum(q * phi(v, family, k) for q, v in zip(law, x, strict=True) if q) - setting
        return mass, spent if within else eta - setting

    mu, eta = mp.findroot(left, (base.mu, base.eta))
    weights = [q * x for q, x in zip(law, ratios(mu, eta), strict=True)]
    value = mp.fsum(w * v for w, v in zip(weights, f, strict=True))
    return Solution(value if within else value - eta * divergence(weights, p, family, k), eta, mu, weights)


def _number(x: Any) -> Any:
    return mp.mpf(x.numerator) / x.denominator if hasattr(x, "numerator") else mp.mpf(x)


def transport(f: list[float], p: list[float], mass: float, unit: float) -> Solution:
    """Of laws within a radius where phi is abs(x - 1) or (x - 1)_+: `mass` moves from the bottom to the top.

    `unit` is the mass that a radius of one moves. The multiplier of the sum is that of the largest loss.
    """
    total = sum(p)
    left, weights = mass, [q / total for q in p]
    top = max(range(len(f)), key=f.__getitem__)
    level = top
    for i in sorted(range(len(f)), key=f.__getitem__):
        level, taken = i, min(left, weights[i])
        weights[i] -= taken
        left -= taken
        if left <= 0:
            break
    weights[top] += mass - left
    eta = unit * (f[top] - f[level])
    value = sum(w * v for w, v in zip(weights, f, strict=True))
    return Solution(value, eta, f[top] - eta, weights)
