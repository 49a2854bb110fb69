"""Primal and dual values of the inner problem, and bisection (Algorithm 2)."""

from __future__ import annotations

from math import isfinite

from phiball.backends import (
    Array,
    array_namespace,
    detach,
    device,
    ignore_float_warnings,
    tracks_derivatives,
)
from phiball.refimpl.inner.divergences import Divergence, as_divergence, centred
from phiball.refimpl.inner.solvers import dual_shifted, primal_shifted, shifted
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.refimpl.numerics import add_up, to_double, tolerance, total
from phiball.refimpl.validation import (
    broadcasts,
    check_array,
    check_finite,
    check_losses,
    check_same_array_type,
    valid_eta,
    valid_number,
    valid_p,
)


def bisection(
    losses: Array,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    tol: float,
    p: Array | None = None,
) -> WorstCase:
    """Solve the inner problem by bisection (Algorithm 2) until the certified gap is at most `tol`.

    Arguments:
    - `losses`, `eta`, `divergence`, `p`: as in `worst_case`.
    - `tol`: a positive bound on the gap, dual value minus primal value.

    Returns a `WorstCase` without gradients, whose `value` is the dual value at `mu`. phi and its conjugate
    must be differentiable. The bracket and the stopping rule differ from the paper (docs/guides/inner.md).

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> print(round(float(bisection(np.array([0.0, 1.0]), 0.5, QUADRATIC, tol=1e-9).value), 8))
    0.75
    """
    _check_no_derivatives("bisection", losses, eta, p)
    divergence = as_divergence(divergence)
    f, eta, p = _problem(losses, eta, p)
    p = array_namespace(f).astype(p, f.dtype, copy=False)
    if not (isinstance(tol, (int, float)) and tol > 0 and isfinite(tol)):
        raise ValueError(f"tol is {tol!r}; expected a positive number")
    if not 0 < divergence.curvature1 < float("inf"):
        raise ValueError(
            f"divergence is {divergence.name}, which has a kink; bisection needs a smooth phi with a smooth "
            "conjugate: use worst_case"
        )
    xp = array_namespace(f)
    c = centred(divergence)
    with ignore_float_warnings():
        top, g = shifted(f, p)
        u = g / eta[..., None]
        # With s = (max f - mu)/eta - slope1, the bracket is [0, (max f - min f)/eta].
        low, high = xp.zeros_like(top), -xp.min(u, axis=-1)
        if c.recession < xp.inf:
            high = xp.where(high > c.recession, xp.full_like(high, c.recession), high)
        while True:
            s = low + (high - low) / 2
            x = p * xp.where(p > 0, c.dconj(s[..., None] + u), xp.zeros_like(u))
            mass = total(x)
            mu = add_up(add_up(top, -eta * s), -eta * divergence.slope1)
            weights = x / mass[..., None]
            dual = dual_shifted(f, top, mu, eta, p, divergence)
            gap = dual - primal_shifted(g, weights, eta, p, c)
            met = gap <= tol
            if xp.all(met):
                return WorstCase(top + dual, mu, weights, gap, eta)
            stuck = ~met & ((s <= low) | (s >= high))
            if xp.any(stuck):
                reached = float(xp.max(xp.where(stuck, gap, xp.zeros_like(gap))))
                raise ValueError(
                    f"tol is {tol!r}, but the smallest gap that {f.dtype} certifies here is {reached:.1e}: "
                    "increase tol, or use worst_case"
                )
            # The mass increases with s.
            low = xp.where(met | (mass <= 1), s, low)
            high = xp.where(met | ~(mass <= 1), s, high)  # on NaN too, so that the loop ends


def dual_value(
    losses: Array,
    mu: float | Array,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    p: Array | None = None,
) -> Array:
    r"""The dual value $\mu + \eta \sum_i p_i \phi^*((f_i - \mu)/\eta)$, at least the optimum.

    Arguments:
    - `mu`: a number, or an array that broadcasts to losses.shape[:-1].
    - `losses`, `eta`, `divergence`, `p`: as in `worst_case`.

    Returns an array of shape losses.shape[:-1]. It is infinite where an (f_i - mu)/eta exceeds the recession
    slope of phi, or where the value overflows. Arguments that require a gradient are rejected.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> float(dual_value(np.array([0.0, 1.0]), 0.0, 0.5, QUADRATIC))
    0.75
    """
    _check_no_derivatives("dual_value", losses, mu, eta, p)
    divergence = as_divergence(divergence)
    f, eta, p = _problem(losses, eta, p)
    xp, dtype = array_namespace(f), f.dtype
    if isinstance(mu, (int, float)):
        valid_number("mu", mu)
        mu = xp.full_like(eta, mu)
    check_array("mu", mu)
    check_same_array_type("mu", mu, f)
    if not broadcasts(mu.shape, eta.shape):
        raise ValueError(
            f"mu has shape {tuple(mu.shape)}; expected one that broadcasts to {tuple(eta.shape)}"
        )
    check_finite("mu", mu)
    f, eta, mu = to_double(f), to_double(eta), xp.broadcast_to(to_double(detach(mu)), eta.shape)
    with ignore_float_warnings():
        top, _ = shifted(f, p)
        value = top + dual_shifted(f, top, mu, eta, p, divergence)
        value = xp.where(xp.abs(value) < xp.inf, value, xp.full_like(value, xp.inf))
        return xp.astype(value, dtype, copy=False)


def primal_value(
    losses: Array,
    weights: Array,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    p: Array | None = None,
) -> Array:
    r"""The primal value $\sum_i \gamma_i f_i - \eta \sum_i p_i \phi(\gamma_i/p_i)$, at most the optimum.

    Arguments:
    - `weights` (..., m): gamma, nonnegative, with sum one along the last axis.
    - `losses`, `eta`, `divergence`, `p`: as in `worst_case`.

    Returns an array of shape losses.shape[:-1], -inf where gamma_i > 0 but p_i = 0. Arguments that
    require a gradient are rejected.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> float(primal_value(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5, QUADRATIC))
    0.75
    """
    _check_no_derivatives("primal_value", losses, weights, eta, p)
    divergence = as_divergence(divergence)
    f, eta, p = _problem(losses, eta, p)
    xp, dtype = array_namespace(f), f.dtype
    check_array("weights", weights)
    check_same_array_type("weights", weights, f)
    if weights.ndim == 0 or not broadcasts(weights.shape, f.shape) or weights.shape[-1] != f.shape[-1]:
        raise ValueError(
            f"weights has shape {tuple(weights.shape)}; expected one that broadcasts to losses.shape = "
            f"{tuple(f.shape)} and has the same last axis"
        )
    slack = 2 * tolerance(weights)
    weights = xp.broadcast_to(to_double(detach(weights)), f.shape)
    if not xp.all(weights >= 0):
        raise ValueError("weights contains a negative number or NaN; expected probabilities")
    with ignore_float_warnings():
        sums = total(weights)
    error = xp.abs(sums - 1)
    if not xp.all(error <= tolerance(f) ** 0.5):
        worst = float(xp.reshape(sums, (-1,))[int(xp.argmax(error))])
        raise ValueError(f"weights sums to {worst!r} along the last axis; expected 1")
    f, eta = to_double(f), to_double(eta)
    if divergence.family == "indicator":  # rounding may put weights above their limit
        limit = p / divergence.parameter
        weights = xp.where((weights > limit) & (weights <= limit * (1 + slack)), limit, weights)
    with ignore_float_warnings():
        top, g = shifted(f, p)
        value = top + primal_shifted(g, weights, eta, p, centred(divergence))
        outside = xp.any((p == 0) & (weights > 0), axis=-1)
        value = xp.where(outside | ~(value > -xp.inf), xp.full_like(value, -xp.inf), value)
        return xp.astype(value, dtype, copy=False)


def _problem(losses: Array, eta: float | Array, p: Array | None) -> tuple[Array, Array, Array]:
    """Validate the arguments; return f (..., m), eta (...) and p (..., m), p in double precision."""
    check_losses(losses)
    f = detach(losses)
    eta, p = valid_eta(detach(eta), f), valid_p(None if p is None else detach(p), f)
    check_finite("losses", f)
    xp = array_namespace(f)
    uniform = xp.full(f.shape, 1 / f.shape[-1], dtype=xp.float64, device=device(f)) if p is None else p
    return f, eta, uniform


def _check_no_derivatives(name: str, *arrays: float | Array | None) -> None:
    if tracks_derivatives(*arrays):
        raise ValueError(
            f"an argument of {name} requires a gradient or is traced, but {name} is not "
            "differentiable: detach() the arguments, or use worst_case"
        )
