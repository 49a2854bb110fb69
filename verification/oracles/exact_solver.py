"""Solutions of the inner problem in exact or 50-digit arithmetic.

Divergences are named by strings, numbers are fractions or mpmath's floats, and every method is the simplest
correct one.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from phiball.verification.oracles import definitions


class Answer(NamedTuple):
    """The optimal value and an optimal gamma; if `unique` is False, there may be other optimal gamma."""

    value: Any
    weights: list[Any]
    unique: bool


def solve_exactly(f: Any, eta: float, family: str, parameter: float | None = None, p: Any = None) -> Answer:
    """Solve the inner problem, with floats taken as exact numbers."""
    fs = [Fraction(float(v)) for v in f]
    ps = [Fraction(1, len(fs))] * len(fs) if p is None else [Fraction(float(v)) for v in p]
    total = sum(ps)
    ps = [v / total for v in ps]
    e = Fraction(float(eta))
    if family == "quadratic" or (family == "cressie_read" and parameter == 2):
        return _quadratic(fs, e, ps)
    if family == "indicator":
        assert parameter is not None
        return _indicator(fs, Fraction(parameter), ps)
    if family == "hockey_stick":
        assert parameter is not None
        return _indicator(fs, 1 / Fraction(parameter), ps, e)
    if family in ("absolute", "hinge"):
        return _kinked(fs, e * (2 if family == "absolute" else 1), e, ps)
    if family == "entropic":
        return _entropic(fs, e, ps)
    if family == "cressie_read":
        assert parameter is not None
        return _power(fs, e, ps, Fraction(parameter))
    return _by_definition(fs, e, ps, family, parameter)


def _by_definition(f: list[Fraction], eta: Fraction, p: list[Fraction], family: str, k: Any) -> Answer:
    """Bisect for mu with the formulas of `definitions`, for a smooth phi with the parameter k."""
    conj: Any = partial(definitions.conjugate, family=family, parameter=k)
    with mp.workdps(definitions.DIGITS):
        fs, e, ps = [_mpf(v) for v in f], _mpf(eta), [_mpf(v) for v in p]
        slope1 = mp.diff(lambda x: definitions.phi(x, family, k), 1)
        charged = [v - e * slope1 for v, q in zip(fs, ps, strict=True) if q]
        low, high = min(charged), max(charged)
        for _ in range(4 * definitions.DIGITS):
            mu = (low + high) / 2
            x = [mp.diff(conj, (v - mu) / e) for v in fs]
            mass = mp.fsum(q * v for q, v in zip(ps, x, strict=True))
            low, high = (mu, high) if mass > 1 else (low, mu)
        dual = mu + e * mp.fsum(q * conj((v - mu) / e) for v, q in zip(fs, ps, strict=True))
        return Answer(dual, [q * v / mass for q, v in zip(ps, x, strict=True)], True)


def _quadratic(f: list[Fraction], eta: Fraction, p: list[Fraction]) -> Answer:
    """Add losses in descending order until mu is at least the next loss.

    mu solves sum_i p_i (f_i - mu) = eta, where i runs over the losses added so far.
    """
    order = sorted((i for i in range(len(f)) if p[i]), key=lambda i: -f[i])
    mass = moment = Fraction(0)
    mu = Fraction(0)
    for position, i in enumerate(order):
        mass, moment = mass + p[i], moment + p[i] * f[i]
        mu = (moment - eta) / mass
        if position + 1 == len(order) or f[order[position + 1]] <= mu:
            break
    x = [max(v - mu, Fraction(0)) / eta for v in f]
    weights = [q * v for q, v in zip(p, x, strict=True)]
    cost = sum(q * (v * v - 1) / 2 for q, v in zip(p, x, strict=True))
    return Answer(sum(w * v for w, v in zip(weights, f, strict=True)) - eta * cost, weights, True)


def _indicator(
    f: list[Fraction], alpha: Fraction, p: list[Fraction], price: Fraction | None = None
) -> Answer:
    """Give each loss, from the largest down, at most p/alpha until the mass is used up.

    With a price, the largest loss may get more, and does before losses that are smaller by the price.
    """
    weights = [Fraction(0)] * len(f)
    left = Fraction(1)
    levels = sorted({v for v, q in zip(f, p, strict=True) if q}, reverse=True)
    for level in levels:
        if price is not None and level <= levels[0] - price:
            break
        tied = [i for i in range(len(f)) if f[i] == level and p[i]]
        mass = sum(p[i] for i in tied)
        share = min(left, mass / alpha)
        for i in tied:
            weights[i] = share * p[i] / mass
        left -= share
        if not left:
            break
    value = sum(w * v for w, v in zip(weights, f, strict=True)) + left * (levels[0] - (price or 0))
    at_top = sum(q for v, q in zip(f, p, strict=True) if v == levels[0])
    weights = [
        w + (left * q / at_top if v == levels[0] else 0) for w, v, q in zip(weights, f, p, strict=True)
    ]
    distinct = len(levels) == sum(1 for q in p if q) and levels[0] - (price or 0) not in levels[1:]
    return Answer(value, weights, distinct)


def _kinked(f: list[Fraction], width: Fraction, eta: Fraction, p: list[Fraction]) -> Answer:
    """Moving mass to the maximum costs `width` per unit, so all mass at losses up to top - width moves."""
    top = max(v for v, q in zip(f, p, strict=True) if q)
    at_top = sum(q for v, q in zip(f, p, strict=True) if q and v == top)
    moved = sum(q for v, q in zip(f, p, strict=True) if top - v >= width)
    weights = [
        Fraction(0) if top - v >= width else q * (1 + (moved / at_top if v == top else 0))
        for v, q in zip(f, p, strict=True)
    ]
    value = sum(q * max(v, top - width) for v, q in zip(f, p, strict=True))
    unique = at_top == max(q for v, q in zip(f, p, strict=True) if v == top)
    return Answer(value, weights, unique and all(top - v != width for v in f))


def _mpf(v: Fraction) -> Any:
    return mp.mpf(v.numerator) / v.denominator


def _entropic(f: list[Fraction], eta: Fraction, p: list[Fraction]) -> Answer:
    """Evaluate the closed form eta log E exp(f/eta) in 50 digits, with exp((f - max f)/eta)."""
    with mp.workdps(definitions.DIGITS):
        top = max(v for v, q in zip(f, p, strict=True) if q)
        terms = [
            _mpf(q) * mp.exp(_mpf((v - top) / eta)) if q else mp.mpf(0) for v, q in zip(f, p, strict=True)
        ]
        total = mp.fsum(terms)
        return Answer(_mpf(top) + _mpf(eta) * mp.log(total), [t / total for t in terms], True)


def _power(f: list[Fraction], eta: Fraction, p: list[Fraction], k: Fraction) -> Answer:
    """Find y by the Illinois method on log y; the ratio gamma/p is y^(1/(k-1)) at the largest loss."""
    top = max(v for v, q in zip(f, p, strict=True) if q)
    charged = [i for i in range(len(f)) if p[i]]
    # The ratios are (y + (k - 1) u)^(1/(k-1)), with u = (f - top)/eta. The digits must resolve
    # ratios from 1e-20 to 1/smallest; y, a ratio to the power k - 1, needs abs(k - 1) times as many.
    smallest = float(min(p[i] for i in charged))
    extra = int(abs(float(k) - 1) * (20 + abs(mp.log10(smallest)))) + 20
    with mp.workdps(definitions.DIGITS + extra):
        q = 1 / (_mpf(k) - 1)
        u = {i: _mpf((f[i] - top) / eta) for i in charged}
        ps = {i: _mpf(p[i]) for i in charged}

        def ratios(log_y: Any) -> dict[int, Any]:
            y = mp.exp(log_y)
            base = {i: y + (_mpf(k) - 1) * u[i] for i in charged}
            return {i: b**q if b > 0 else mp.mpf(0) for i, b in base.items()}

        def excess(log_y: Any) -> Any:
            x = ratios(log_y)
            return mp.fsum(ps[i] * x[i] for i in charged) - 1

        # The ratio at the largest loss lies in [1, 1/p(top)].
        at_top = mp.fsum(ps[i] for i in charged if f[i] == top)
        low, high = mp.mpf(0), -(_mpf(k) - 1) * mp.log(at_top)
        low_e, high_e = excess(low), excess(high)
        moved = 0  # the end that moved last: -1 is low, 1 is high
        for _ in range(2000):
            if high_e == low_e or abs(high - low) <= mp.eps * 100 * (1 + abs(high)):
                break
            mid = (low * high_e - high * low_e) / (high_e - low_e)
            mid_e = excess(mid)
            if mid_e == 0:
                low = high = mid
                break
            if (mid_e < 0) == (low_e < 0):
                low, low_e = mid, mid_e
                if moved == -1:
                    high_e /= 2
                moved = -1
            else:
                high, high_e = mid, mid_e
                if moved == 1:
                    low_e /= 2
                moved = 1
        x = ratios(high if abs(high_e) < abs(low_e) else low)
        total = mp.fsum(ps[i] * x[i] for i in charged)
        weights = [ps[i] * x[i] / total if i in x else mp.mpf(0) for i in range(len(f))]
        costs = (ps[i] * definitions.phi(weights[i] / ps[i], "cressie_read", float(k)) for i in charged)
        value = mp.fsum(weights[i] * _mpf(f[i]) for i in charged) - _mpf(eta) * mp.fsum(costs)
        return Answer(value, weights, True)


def solve_extended(f: Any, eta: float, family: str, parameter: float | None = None) -> tuple[Any, Any]:
    """Value and weights of a long row of equally likely losses, in NumPy's extended precision."""
    long = np.longdouble
    g = np.asarray(f, dtype=long)
    top = g.max()
    g = g - top
    m = g.size
    e = long(eta)
    if family == "entropic":
        w = np.exp(g / e)
        # log1p of the mean of expm1 avoids cancellation when eta is large
        value = e * np.log1p(np.expm1(g / e).mean())
        return top + value, w / w.sum()
    if family == "quadratic":
        ranked = -np.sort(-g)
        mu = (np.cumsum(ranked) - m * e) / np.arange(1, m + 1)
        mu = mu[np.nonzero(ranked > mu)[0][-1]]
        x = np.maximum(g - mu, 0) / e
    elif family == "cressie_read":
        assert parameter is not None
        k = long(parameter)
        lo, hi = long(1), long(m)
        for _ in range(200):
            mid = np.sqrt(lo * hi)
            x = _ratio_extended(g / e, mid, k)
            lo, hi = (mid, hi) if x.mean() <= 1 else (lo, mid)
        x = _ratio_extended(g / e, lo, k)
    else:
        raise ValueError(f"family is {family!r}; expected entropic, quadratic or cressie_read")
    w = x / x.sum()
    x = w * m
    if family == "quadratic":
        cost = ((x - 1) ** 2).mean() / 2
    else:
        log_x = np.log(np.where(x > 0, x, 1))
        small = np.where(x > 0, x * np.expm1((k - 1) * log_x) / (k - 1) - np.expm1(k * log_x) / k, 1 / k)
        cost = small.mean()
    return top + (w * g).sum() - e * cost, w


def _ratio_extended(u: Any, top: Any, k: Any) -> Any:
    """The ratios gamma/p of a power divergence at u = (f - max f)/eta, if the ratio at max f is `top`."""
    base = np.maximum(top ** (k - 1) + (k - 1) * u, 0)
    with np.errstate(divide="ignore"):
        return base ** (1 / (k - 1))
