"""Solve and check batches of inner problems in extended precision, without code of refimpl.

A batch has n rows of m losses: `f` and `p` have shape (n, m), `eta` has shape (n,). g is f - max f.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

LONG = np.longdouble
FAMILIES = ("entropic", "quadratic", "absolute", "hinge", "indicator", "cressie_read")
AVAILABLE = bool(np.finfo(LONG).eps < 2e-19)


@dataclass(frozen=True)
class Problem:
    """A batch of inner problems for a built-in divergence, converted to extended precision."""

    f: Any
    eta: Any
    p: Any
    family: str
    k: float  # the family's parameter, or 0
    eps: float  # machine epsilon of the original dtype

    @classmethod
    def of(cls, f: Any, eta: Any, p: Any, divergence: Any) -> Problem:
        """Convert the NumPy arrays that a solver was given; `p` may be None."""
        if divergence.family not in FAMILIES:
            raise ValueError(f"divergence is {divergence.name}; expected one of {', '.join(FAMILIES)}")
        given = np.asarray(eta).astype(f.dtype, copy=False)
        reference = np.ones(f.shape[-1], dtype=LONG) if p is None else p.astype(f.dtype).astype(LONG)
        reference = np.broadcast_to(reference, f.shape)
        reference = reference / reference.sum(axis=-1, keepdims=True)
        etas = np.broadcast_to(given, f.shape[:-1]).astype(LONG)
        k, eps = float(divergence.parameter or 0), float(np.finfo(f.dtype).eps)
        return cls(np.ascontiguousarray(f).astype(LONG), etas, reference, divergence.family, k, eps)

    @property
    def scale(self) -> Any:
        """The largest abs(f) where p > 0, times 1 + abs(k) for Cressie-Read."""
        size = np.max(np.where(self.p > 0, np.abs(self.f), 0), axis=-1)
        return size * (1 + abs(self.k)) if self.family == "cressie_read" else size

    @property
    def rounding(self) -> Any:
        """The allowed error of `value` beyond the gap: the documented bound plus this module's own error."""
        m = self.f.shape[-1]
        smallest = LONG(np.finfo(np.float32 if self.eps > 1e-10 else np.float64).smallest_subnormal)
        # Each of m products p_i f_i may underflow; the indicator divides their sum by alpha.
        underflow = m * smallest / (self.k if self.family == "indicator" else 1)
        own = 1e4 * m * np.finfo(LONG).eps ** 2 * self.eta  # the error of this module
        return 8 * self.eps * (8 + log2(m)) * self.scale + underflow + own


def value(problem: Problem) -> Any:
    """The optimal values, by the simplest method for each family."""
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
        order = np.argsort(-g, axis=-1, kind="stable")
        ranked, mass = np.take_along_axis(g, order, -1), np.take_along_axis(p, order, -1)
        if problem.family == "indicator":
            before = np.cumsum(mass, axis=-1) - mass
            return top + np.sum(np.clip(k - before, 0, mass) * ranked, axis=-1) / k
        if problem.family == "quadratic" or k == 2:
            # If the j largest losses have positive weight, c solves sum_i p_i (g_i - c + eta) = eta, where i
            # runs over these losses.
            filled, moment = np.cumsum(mass, axis=-1), np.cumsum(mass * ranked, axis=-1)
            c = (moment - e * (1 - filled)) / filled
            active = np.where((ranked > c - e) & (mass > 0), np.arange(g.shape[-1]), 0)
            c = np.take_along_axis(c, np.max(active, axis=-1, keepdims=True), -1)
            s = np.maximum((g - c) / e, -1)
            return top + (c + e * np.sum(p * s * (1 + s / 2), axis=-1, keepdims=True))[:, 0]
        return top + _power(g, e, p, k)


def _power(g: Any, e: Any, p: Any, k: Any) -> Any:
    """The value minus max f for Cressie-Read of order k, with e = eta (n, 1).

    Bisection finds the logarithm of the density gamma/p at the largest loss. It determines mu, and the result
    is the dual value at this mu.
    """
    a = k - 1
    low = np.zeros_like(e)
    high = -np.log(np.sum(np.where(g == 0, p, 0), axis=-1, keepdims=True)) + 1e-18
    for _ in range(75):
        middle = (low + high) / 2
        y = np.expm1(a * middle) + a * g / e
        density = np.where(y > -1, np.exp(np.log1p(np.maximum(y, -1)) / a), 0)
        too_large = np.sum(p * density, axis=-1, keepdims=True) > 1
        low, high = np.where(too_large, low, middle), np.where(too_large, middle, high)
    y = np.expm1(a * low) + a * g / e
    log_x = np.where(y > -1, np.log1p(np.maximum(y, -1)) / a, -np.inf)
    conj = np.expm1(k * log_x) / k if k else log_x
    drop = e * np.expm1(a * low) / a
    return (-drop + e * np.sum(np.where(p > 0, p * conj, 0), axis=-1, keepdims=True))[:, 0]


def failures(problem: Problem, out: dict[str, Any]) -> list[str]:
    """The names of the failing checks; `out` has the arrays `value`, `mu`, `weights` and `gap`."""
    got, mu, weights, gap = (np.asarray(out[name]).astype(LONG) for name in ("value", "mu", "weights", "gap"))
    slack, steep = problem.rounding, problem.family == "cressie_read" and problem.k <= 0
    with np.errstate(all="ignore"):
        exact = value(problem)
        known, allowed = np.isfinite(exact), np.abs(gap) + slack
        # Rounding errors of weights have a first-order effect at a kink, and a second-order effect elsewhere.
        kinked = problem.family in ("absolute", "hinge")
        phi_rounding = problem.eta * (4 * problem.eps * kinked + 8 * problem.eps**2 * (1 + abs(problem.k)))
        failed = {
            "not finite": ~(np.isfinite(got) & np.isfinite(mu) & np.isfinite(gap)),
            "weights": invalid_weights(problem, weights),
            "value": known & ~(np.abs(got - exact) <= allowed),
            "gap": known & ~(np.abs(gap) <= 8 * slack + phi_rounding),
            # Not checked where phi(0) is infinite, because a weight may underflow to 0.
            "primal": known & ~(primal_at(problem, weights) >= exact - allowed - phi_rounding) & (not steep),
            "dual": known & ~(dual_at(problem, mu) <= exact + allowed + 4 * problem.eps * np.abs(mu)),
        }
    return [name for name, rows in failed.items() if np.any(rows)]


def budget_failures(problem: Problem, budget: Any, out: dict[str, Any]) -> list[str]:
    """The names of the failing checks of a problem with a budget.

    `out` has the fields of the solution. `problem.eta` is the eta in `out`, with every 0 replaced by 1.
    """
    got = {name: np.asarray(x).astype(LONG) for name, x in out.items()}
    price, weights, r = got["eta"], got["weights"], np.asarray(budget).astype(LONG)
    with np.errstate(all="ignore"):
        slack = np.where(
            np.isfinite(problem.rounding), problem.rounding, 8 * problem.eps * 64 * problem.scale
        )
        top = np.max(np.where(problem.p > 0, problem.f, -np.inf), axis=-1)
        mean = np.sum(problem.p * problem.f, axis=-1)
        charged = np.where(np.isfinite(price), price * r, 0) * (problem.family != "indicator")
        free = value(problem) if problem.family == "indicator" else top
        bound = np.where(price > 0, np.where(np.isinf(price), mean, value(problem) + charged), free)
        steep = problem.family == "cressie_read" and problem.k <= 0
        bound = np.minimum(bound, top) if steep else bound
        info = np.finfo(np.float32 if problem.eps > 1e-10 else np.float64)
        allowed = np.abs(got["gap"]) + slack + LONG(info.smallest_subnormal)
        gain = np.sum(np.where(weights > 0, weights * problem.f, 0), axis=-1)
        over = 64 * (1 + r) * (1 + abs(problem.k)) * problem.eps
        known = np.isfinite(bound) & (problem.scale > LONG(info.smallest_normal) * 10**28)
        failed = {
            "not finite": ~(np.isfinite(got["value"]) & np.isfinite(got["gap"])) | ~(price >= 0),
            "weights": invalid_weights(problem, weights),
            "gain": ~(gain >= got["value"] - allowed),
            "budget": ~(np.sum(divergence_at(problem, weights), axis=-1) <= r + over) & (not steep),
            "bound": known & ~(np.abs(got["value"] - bound) <= slack + 8 * problem.eps * charged),
            "gap": known & ~(np.abs(got["gap"]) <= 64 * slack),
        }
    return [name for name, rows in failed.items() if np.any(rows)]


def invalid_weights(problem: Problem, weights: Any) -> Any:
    """Whether weights are negative, positive where p is 0, or do not sum to one."""
    wrong = np.any(~(weights >= 0) | ((problem.p == 0) & (weights > 0)), axis=-1)
    return wrong | ~(np.abs(weights.sum(axis=-1) - 1) <= 8 * problem.eps * (8 + log2(weights.shape[-1])))


def dual_at(problem: Problem, mu: Any) -> Any:
    """The dual objective mu + eta E phi*((f - mu)/eta)."""
    p, k = problem.p, LONG(problem.k)
    away = problem.f - mu[:, None]
    s = away / problem.eta[:, None]
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
    """The primal objective E_gamma f - eta E phi(gamma/p), with the weights rescaled to sum to one."""
    weights = weights / weights.sum(axis=-1, keepdims=True)
    gain = np.sum(np.where(weights > 0, weights * problem.f, 0), axis=-1)
    return gain - problem.eta * np.sum(divergence_at(problem, weights), axis=-1)


def divergence_at(problem: Problem, weights: Any) -> Any:
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
        smallest = LONG(np.finfo(np.float32 if problem.eps > 1e-10 else np.float64).smallest_subnormal)
        phi = np.where(weights <= (1 + 64 * problem.eps) * p / k + smallest, 0, np.inf)
    elif problem.family == "quadratic" or k == 2:
        phi = (x - 1) ** 2 / 2
    else:
        phi = x * np.expm1((k - 1) * log_x) / (k - 1) - (np.expm1(k * log_x) / k if k else log_x)
        phi = np.where(x > 0, phi, 1 / k if k > 0 else np.inf)
    return np.where(p > 0, p * phi, 0)


def _strided(x: Any) -> Any:
    wide = np.ones((*x.shape[:-1], 3 * x.shape[-1]), dtype=x.dtype)
    wide[..., 1::3] = x
    return wide[..., 1::3]


def _read_only(x: Any) -> Any:
    copy = np.array(x)
    copy.flags.writeable = False
    return copy


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "read-only": _read_only,
    "zero strides": lambda x: np.broadcast_to(x.reshape(-1, x.shape[-1])[0], x.shape),
}
