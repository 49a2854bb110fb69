"""What is true of a batch of inner problems, in extended precision, and whether a solution says so.

Nothing here shares code with refimpl. Rows are judged together: f and p (n, m), eta (n,).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

LONG = np.longdouble
PRECISE = bool(np.finfo(LONG).eps < 2e-19)  # else there is no better precision than the library's own


@dataclass(frozen=True)
class Problem:
    """A batch of inner problems for a divergence known by its name, in extended precision."""

    f: Any
    eta: Any
    p: Any
    family: str
    k: float  # the parameter of the family, or 0
    eps: float  # of the dtype in which it was posed

    @classmethod
    def of(cls, f: Any, eta: Any, p: Any, family: str, k: float | None) -> Problem:
        """From the arrays that a solver was given, as NumPy arrays; p may be None."""
        f = np.asarray(f)
        eps = float(np.finfo(f.dtype).eps)
        posed = np.asarray(eta).astype(f.dtype, copy=False)
        law = np.ones(f.shape[-1], dtype=LONG) if p is None else np.asarray(p).astype(f.dtype).astype(LONG)
        law = np.ascontiguousarray(np.broadcast_to(law, f.shape))
        law = law / law.sum(axis=-1, keepdims=True)
        rows = np.ascontiguousarray(f).astype(LONG)
        return cls(rows, np.broadcast_to(posed, f.shape[:-1]).astype(LONG), law, family, float(k or 0), eps)

    def rows(self, where: Any) -> Problem:
        """Some of the problems."""
        return Problem(self.f[where], self.eta[where], self.p[where], self.family, self.k, self.eps)

    @property
    def smallest(self) -> Any:
        """The smallest positive number of the dtype."""
        return LONG(np.finfo(np.float32 if self.eps > 1e-10 else np.float64).smallest_subnormal)

    @property
    def scale(self) -> Any:
        """The largest abs f where p > 0; for Cressie-Read times 1 + abs(k)."""
        size = np.max(np.where(self.p > 0, np.abs(self.f), 0), axis=-1)
        return size * (1 + abs(self.k)) if self.family == "cressie_read" else size

    @property
    def rounding(self) -> Any:
        """What the documentation of `WorstCase` allows beyond the gap."""
        own = (
            1e4 * self.f.shape[-1] * np.finfo(LONG).eps ** 2 * self.eta
        )  # where all losses are 0, that of the judge is left
        return 8 * self.eps * (8 + log2(self.f.shape[-1])) * self.scale + self.smallest + own


def value(problem: Problem) -> Any:
    """The optimal values, by the plainest method for each family."""
    p, e, k = problem.p, problem.eta[:, None], LONG(problem.k)
    with np.errstate(all="ignore"):
        top = np.max(np.where(p > 0, problem.f, -np.inf), axis=-1)
        g = np.where(p > 0, problem.f - top[:, None], 0)
        if problem.family == "entropic":
            mean = np.sum(p * np.exp(g / e), axis=-1)
            excess = np.sum(p * np.expm1(g / e), axis=-1)
            return top + problem.eta * np.where(excess > -0.5, np.log1p(excess), np.log(mean))
        if problem.family in ("absolute", "hinge"):
            width = e * (2 if problem.family == "absolute" else 1)
            return top + np.sum(p * np.maximum(g, -width), axis=-1)
        if problem.family == "indicator":
            order = np.argsort(-g, axis=-1, kind="stable")
            ranked, mass = np.take_along_axis(g, order, -1), np.take_along_axis(p, order, -1)
            before = np.cumsum(mass, axis=-1) - mass
            return top + np.sum(np.clip(k - before, 0, mass) * ranked, axis=-1) / k
        if problem.family == "quadratic" or k == 2:
            return top + _quadratic(g, e, p)
        return top + _power(g, e, p, k)


def _quadratic(g: Any, e: Any, p: Any) -> Any:
    """Sort: with the j largest losses active, c solves sum p (g - c + eta) = eta."""
    order = np.argsort(-g, axis=-1, kind="stable")
    ranked, mass = np.take_along_axis(g, order, -1), np.take_along_axis(p, order, -1)
    filled, moment = np.cumsum(mass, axis=-1), np.cumsum(mass * ranked, axis=-1)
    c = (moment - e * (1 - filled)) / filled
    last = np.max(np.where((ranked > c - e) & (mass > 0), np.arange(g.shape[-1]), 0), axis=-1, keepdims=True)
    c = np.take_along_axis(c, last, -1)
    s = np.maximum((g - c) / e, -1)
    return (c + e * np.sum(p * s * (1 + s / 2), axis=-1, keepdims=True))[:, 0]


def _power(g: Any, e: Any, p: Any, k: Any) -> Any:
    """Bisection on the log of X, the ratio at the largest loss, in [1, 1/p(top)]; then the dual there."""
    a = k - 1
    low = np.zeros_like(e)
    high = -np.log(np.sum(np.where(g == 0, p, 0), axis=-1, keepdims=True)) + 1e-18

    def argument(x: Any) -> Any:  # a s at each loss, s that of phi*
        return np.expm1(a * x) + a * g / e

    for _ in range(75):
        middle = (low + high) / 2
        y = argument(middle)
        ratio = np.where(y > -1, np.exp(np.log1p(np.maximum(y, -1)) / a), 0)
        far = np.sum(p * ratio, axis=-1, keepdims=True) > 1
        low, high = np.where(far, low, middle), np.where(far, middle, high)
    y = argument(low)
    log_x = np.where(y > -1, np.log1p(np.maximum(y, -1)) / a, -np.inf)
    conj = np.expm1(k * log_x) / k if k else log_x
    drop = e * np.expm1(a * low) / a
    return (-drop + e * np.sum(np.where(p > 0, p * conj, 0), axis=-1, keepdims=True))[:, 0]


def faults(problem: Problem, out: Any) -> dict[str, Any]:
    """What is wrong with a solution (value, mu, weights, gap): the rows that have each kind of fault."""
    got, mu, weights, gap = (np.asarray(x).astype(LONG) for x in out)
    slack = problem.rounding
    with np.errstate(all="ignore"):
        exact = value(problem)
        dual, primal = dual_at(problem, mu), primal_at(problem, weights)
        # Weights and mu are rounded to the dtype; eta charges for the first, to first order at a kink.
        kinked = problem.family in ("absolute", "hinge")
        charge = problem.eta * (4 * problem.eps * kinked + 8 * problem.eps**2 * (1 + abs(problem.k)))
        certain = np.abs(gap) + slack
        # phi(0) is infinite there, and a weight may underflow.
        steep = problem.family == "cressie_read" and problem.k <= 0
        return {
            "not finite": ~(np.isfinite(got) & np.isfinite(mu) & np.isfinite(gap)),
            "weights": no_law(problem, weights),
            "value": np.isfinite(exact) & ~(np.abs(got - exact) <= certain),
            "gap": np.isfinite(exact) & ~(np.abs(gap) <= 8 * slack + charge),
            "primal": np.isfinite(exact) & ~(primal >= exact - certain - charge) & (not steep),
            "dual": np.isfinite(exact) & ~(dual <= exact + certain + 4 * problem.eps * np.abs(mu)),
        }


def no_law(problem: Problem, weights: Any) -> Any:
    """Whether weights are negative, positive where p is 0, or do not sum to one."""
    wrong = np.any(~(weights >= 0) | ((problem.p == 0) & (weights > 0)), axis=-1)
    return wrong | ~(np.abs(weights.sum(axis=-1) - 1) <= 8 * problem.eps * (8 + log2(weights.shape[-1])))


def dual_at(problem: Problem, mu: Any) -> Any:
    """mu + eta E phi*((f - mu)/eta)."""
    p, e, k = problem.p, problem.eta[:, None], LONG(problem.k)
    away = problem.f - mu[:, None]
    s = away / e
    if problem.family == "entropic":
        conj = np.expm1(s)
    elif problem.family in ("absolute", "hinge"):
        low = -1 if problem.family == "absolute" else 0
        conj = np.where(s > 1 + 8 * problem.eps, np.inf, np.maximum(s, low))
    elif problem.family == "indicator":
        return mu + np.sum(p * np.maximum(away, 0), axis=-1) / k
    elif problem.family == "quadratic":
        conj = np.maximum(s, 0) ** 2 / 2 + LONG(0.5)
    else:
        y = (k - 1) * s
        log_x = np.where(y > -1, np.log1p(np.maximum(y, -1)) / (k - 1), -np.inf if k > 1 else np.inf)
        conj = np.expm1(k * log_x) / k if k else log_x
    return mu + problem.eta * np.sum(np.where(p > 0, p * conj, 0), axis=-1)


def primal_at(problem: Problem, weights: Any) -> Any:
    """E_gamma f - eta E phi(gamma/p), for the weights rescaled to the sum one."""
    weights = weights / weights.sum(axis=-1, keepdims=True)
    gain = np.sum(np.where(weights > 0, weights * problem.f, 0), axis=-1)
    eta = np.where(np.isinf(problem.eta), 0, problem.eta)
    return gain - eta * np.sum(spent(problem, weights), axis=-1)


def spent(problem: Problem, weights: Any) -> Any:
    """p phi(gamma/p) at each point."""
    p, k = problem.p, LONG(problem.k)
    x = np.where(p > 0, weights / np.where(p > 0, p, 1), 1)
    log_x = np.log(np.where(x > 0, x, 1))
    if problem.family == "entropic":
        phi = x * log_x - (x - 1)
    elif problem.family == "absolute":
        phi = np.abs(x - 1)
    elif problem.family == "hinge":
        phi = np.maximum(x - 1, 0)
    elif problem.family == "indicator":
        most = (1 + 64 * problem.eps) * p / k + problem.smallest  # a tiny weight has few digits
        phi = np.where(weights <= most, 0, np.inf)
    elif problem.family == "quadratic" or k == 2:
        phi = (x - 1) ** 2 / 2
    else:
        phi = x * np.expm1((k - 1) * log_x) / (k - 1) - (np.expm1(k * log_x) / k if k else log_x)
        phi = np.where(x > 0, phi, 1 / k if k > 0 else np.inf)
    return np.where(p > 0, p * phi, 0)
