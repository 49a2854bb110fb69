"""Risks on a line, certainty equivalents, and moments of balls, for Section 4.

Divergences are named by strings. Integrals use Gauss-Legendre rules or mpmath, and SciPy finds roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import inf, log10, pi
from typing import Any

import mpmath as mp
import numpy as np
from scipy.optimize import brentq

from phiball.verification.oracles.definitions import golden_section

Function = Callable[[Any], Any]

# --- The risk of a function on a line -------------------------------------------------------------


@cache
def _panels(count: int) -> tuple[Any, Any]:
    """Nodes in [0, 1] and weights of the 16-point Gauss-Legendre rule in `count` panels."""
    x, w = np.polynomial.legendre.leggauss(16)
    left = np.arange(count)[:, None] / count
    return (left + (x + 1) / 2 / count).ravel(), np.tile(w / 2 / count, count)


def _pieces(f: Function, turns: Sequence[float], level: float) -> list[tuple[float, float]]:
    """The intervals where f > level; f is monotone between consecutive `turns`, which include both ends."""
    pieces = []
    for a, b in pairwise(turns):
        above = f(a) > level, f(b) > level
        if all(above):
            pieces.append((a, b))
        elif any(above):
            root = brentq(lambda z: f(z) - level, a, b, xtol=1e-300, rtol=1e-15)
            pieces.append((a, root) if above[0] else (root, b))
    return pieces


def _mean_above(f: Function, turns: Sequence[float], level: float, power: int) -> float:
    """E (f - level)_+^power on the line; a power of 0 gives the probability that f > level."""
    x, w = _panels(2)
    total = 0.0
    for a, b in _pieces(f, turns, level):
        total += (b - a) * float(w @ np.maximum(f(a + (b - a) * x) - level, 0.0) ** power)
    return total / (turns[-1] - turns[0])


def _level(f: Function, turns: Sequence[float], power: int, target: float, low: float, high: float) -> float:
    """The level in [low, high] at which E (f - level)_+^power equals `target`."""
    return float(
        brentq(lambda mu: _mean_above(f, turns, mu, power) - target, low, high, xtol=1e-300, rtol=1e-15)
    )


def line_risk(
    f: Function, turns: Sequence[float], eta: float, family: str, parameter: float | None = None
) -> float:
    """R(f; nu, eta) for nu uniform on [turns[0], turns[-1]] and f monotone between the turns."""
    top, bottom = (float(pick(f(np.array(turns)))) for pick in (np.max, np.min))
    if top == bottom:
        return top
    if family == "entropic":
        if top - bottom > 1e4 * eta:
            raise ValueError(f"eta is {eta!r}; expected at least 1e-4 of the range of f, for 256 panels")
        x, w = _panels(256)
        z = turns[0] + (turns[-1] - turns[0]) * x
        return top + eta * float(np.log1p(w @ np.expm1((f(z) - top) / eta)))
    if family in ("absolute", "hinge"):
        level = top - (2 if family == "absolute" else 1) * eta
        return level + _mean_above(f, turns, level, 1)
    if family == "indicator":
        assert parameter is not None
        mu = _level(f, turns, 0, parameter, bottom, top) if parameter < 1 else bottom
        return mu + _mean_above(f, turns, mu, 1) / parameter
    if family == "quadratic":
        mu = _level(f, turns, 1, eta, bottom - 2 * eta, top)
        return mu + eta / 2 + _mean_above(f, turns, mu, 2) / (2 * eta)
    raise ValueError(f"family is {family!r}; expected one of the paper's five")


def parabola(g: float, S: float, rho: float) -> tuple[Function, list[float]]:
    """g z + S z^2/2 on [-rho, rho], and its turns."""
    vertex = -g / S if S else inf
    turns = [-rho, *([vertex] if -rho < vertex < rho else []), rho]
    return lambda z: z * (g + S * z / 2), turns


def disc_risk(f: Callable[[Any], Any], rho: float, eta: float, family: str) -> float:
    """R(f; nu, eta) for nu uniform on the disc of radius rho, by quadrature in polar coordinates.

    f takes points (n, 2). For the quadratic phi the density 1 + (f - E f)/eta must be positive.
    """
    t, w = np.polynomial.legendre.leggauss(24)
    angle = 2 * np.pi * np.arange(64) / 64
    r = rho * np.sqrt((t + 1) / 2)  # r^2 is uniform
    ray = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    values = f((r[:, None, None] * ray).reshape(-1, 2)).reshape(len(r), len(angle))
    weights = np.repeat((w / 2)[:, None] / len(angle), len(angle), axis=1)
    if family == "entropic":
        return eta * float(np.log1p((weights * np.expm1(values / eta)).sum()))
    first = float((weights * values).sum())
    if family != "quadratic" or np.abs(values - first).max() > eta:
        raise ValueError(
            f"family is {family!r} at eta = {eta!r}; expected entropic, or quadratic with a large eta"
        )
    return first + float((weights * (values - first) ** 2).sum()) / (2 * eta)


# --- Certainty equivalents of a linear function on a ball -------------------------------------------


def _conjugate(s: Any, family: str, parameter: float | None) -> Any:
    """phi*(s) on an array in its domain."""
    if family == "entropic":
        with np.errstate(over="ignore"):  # overflow occurs far from the minimum only
            return np.expm1(s)
    if family == "quadratic":
        return (np.maximum(s, 0) ** 2 + 1) / 2
    if family in ("absolute", "hinge"):
        return np.maximum(s, -1 if family == "absolute" else 0)
    if family == "indicator":
        assert parameter is not None
        return np.maximum(s, 0) / parameter
    if family == "cressie_read" and parameter == 0:
        return -np.log1p(-s)
    if family == "cressie_read":
        assert parameter is not None
        k = parameter
        return (np.maximum(1 + (k - 1) * s, 0.0) ** (k / (k - 1)) - 1) / k
    raise ValueError(f"family is {family!r}; expected a named divergence")


def _domain(family: str, parameter: float | None) -> tuple[float, float]:
    """The kink of phi* (-inf if it has none), and the upper end of its domain."""
    kinks = {"quadratic": 0.0, "absolute": -1.0, "hinge": 0.0, "indicator": 0.0}
    if family in kinks:
        return kinks[family], 1.0 if family in ("absolute", "hinge") else inf
    if family == "cressie_read":
        assert parameter is not None
        k = parameter
        return (-1 / (k - 1), inf) if k > 1 else (-inf, 1 / (1 - k))
    return -inf, inf


def expected_conjugate(scale: float, shift: float, d: int, family: str, parameter: float | None) -> float:
    """E phi*(scale x - shift), for a coordinate x of a uniform point of the Euclidean unit ball of R^d."""
    kink, pole = _domain(family, parameter)
    if scale - shift > pole:
        return inf
    # x = sin(angle) has density proportional to cos(angle)^d; the rule is split at the kink of phi*.
    cut = (kink + shift) / scale if scale else -1.0
    middle = float(np.arcsin(np.clip(cut, -1.0, 1.0)))
    x, w = _panels(16)
    total = mass = 0.0
    for a, b in ((-pi / 2, middle), (middle, pi / 2)):
        angle = a + (b - a) * x
        weight = (b - a) * w * np.cos(angle) ** d
        s = np.minimum(scale * np.sin(angle) - shift, pole)
        total += float(weight @ _conjugate(s, family, parameter))
        mass += float(weight.sum())
    return total / mass


def certainty_outside(size: float, d: int, eta: float, family: str, parameter: float | None = None) -> float:
    """inf over mu of mu + E[eta phi*((X - mu)/eta)].

    X is `size` times a coordinate of a uniform point of the Euclidean unit ball of R^d.
    """
    reach = size + 2 * eta

    def dual(mu: float) -> float:
        return mu + eta * expected_conjugate(size / eta, mu / eta, d, family, parameter)

    return float(golden_section(dual, -reach, reach, steps=70)[0])  # 0.618^70 = 2e-15 of the interval


def certainty_inside(size: float, d: int, eta: float, family: str, parameter: float | None = None) -> float:
    """eta times the infimum over mu of mu + E[phi*(X/eta - mu)], for X as in `certainty_outside`."""
    reach = size / eta + 2

    def dual(mu: float) -> float:
        return mu + expected_conjugate(size / eta, mu, d, family, parameter)

    return eta * float(golden_section(dual, -reach, reach, steps=70)[0])


# --- Moments of uniform distributions on balls ------------------------------------------------------


def ball_log_mgf(s: Sequence[float], norm: float) -> float:
    """log E exp(s.b) for b uniform on the unit ball of norm 1, 2 or inf, by closed forms."""
    d = len(s)
    if not any(s):
        return 0.0
    # The result is about s^2, so small s need more digits. For norm 1 it is a sum whose terms are larger than
    # the result, by a factor of about s^-2 for each dimension.
    small = int(2 * max(0.0, -log10(max(map(abs, s)))))
    with mp.workdps(60 + small):
        v = [mp.mpf(x) for x in s]
        if norm == inf:
            return float(mp.fsum(mp.log(mp.sinh(x) / x) for x in v if x))
        if norm == 2:
            t = mp.sqrt(mp.fsum(x * x for x in v))
            nu = mp.mpf(d) / 2
            return float(mp.log(mp.gamma(nu + 1) * (2 / t) ** nu * mp.besseli(nu, t)))
    # A shift of 1e-40 removes ties and zeros; each difference of squares then cancels 40 or 80 digits.
    with mp.workdps(100 + (120 + small) * d):
        size = max(abs(mp.mpf(x)) for x in s)
        v = [abs(mp.mpf(x)) + size * (j + 1) * mp.mpf(10) ** -40 for j, x in enumerate(s)]
        top = max(v)
        terms = []
        for j, x in enumerate(v):
            others = mp.fprod(x * x - y * y for k, y in enumerate(v) if k != j)
            sign = 1 if d % 2 == 0 else -1
            hyperbolic = (mp.exp(x - top) + sign * mp.exp(-x - top)) / 2
            terms.append(x ** (d - 2) * hyperbolic / others)
        return float(top + mp.log(mp.factorial(d) * mp.fsum(terms)))


def ball_second_moment(norm: float, d: int) -> float:
    """E b_1^2 for b uniform on the unit ball of R^d.

    The density of b_1 at x is proportional to (1 - abs(x)^norm)^((d - 1)/norm).
    """
    if norm == inf:
        return 1 / 3
    with mp.workdps(30):
        p = mp.mpf(norm)

        def density(x: Any) -> Any:
            return (1 - x**p) ** ((d - 1) / p)

        return float(mp.quad(lambda x: x * x * density(x), [0, 1]) / mp.quad(density, [0, 1]))
