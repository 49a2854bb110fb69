"""The risk of each example on quadrature nodes, with its first two derivatives.

At node j, of probability p_j, the prediction of an example is z_j and its loss f_j = loss(z_j). The risk R is
the worst case: sum gamma_j f_j minus the cost of gamma. By Danskin's theorem dR = sum gamma_j f_j' dz_j, and

    d2R = sum (gamma_j f_j'' + q_j f_j'^2/eta) dz_j^2 - (sum q_j f_j' dz_j)^2/(eta sum q_j),

where q_j = p_j phi*''((f_j - mu)/eta) is the derivative of gamma_j with respect to (f_j - mu)/eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.printing import one_line

_STEPS = 60  # of Newton's method
_MET = 1e-13  # Newton's method stops at a step of this size, relative to Y and to the largest u
_ATOM = 1e6  # cap on q_j at the largest loss, relative to the sum of the other q_j


@dataclass(frozen=True)
class ExampleRisks:
    """The risks of k examples on K nodes.

    - `value` (k,): R.
    - `pull` (k, K): gamma_j f_j', the derivative of R with respect to z_j.
    - `bend` (k, K), `turn` (k, K) or None for zero: d2R/dz^2 = diag(bend) - turn turn^T.
    """

    value: Array
    pull: Array
    bend: Array
    turn: Array | None
    __repr__ = one_line


def example_risks(
    loss: LinearLoss,
    z: Array,
    y: Array,
    p: Array,
    eta: float,
    divergence: Divergence,
    *,
    rounding: float = 0.0,
    log_ratio: Array | None = None,
) -> ExampleRisks:
    """The risks of examples with predictions z (k, K), labels y (k,) and probabilities p (K,) or (k, K).

    For eta = 0, R is the maximum of the losses; a positive `rounding` replaces it by the entropic risk with
    eta = `rounding`, a smooth lower bound. With the entropic divergence, `log_ratio` (k, K) may be given, and
    the probabilities are then p exp(log_ratio).
    """
    with ignore_float_warnings():  # if a step of `minimize` overflows, its line search halves it
        return _example_risks(loss, z, y, p, eta, divergence, rounding, log_ratio)


def _example_risks(
    loss: LinearLoss,
    z: Array,
    y: Array,
    p: Array,
    eta: float,
    divergence: Divergence,
    rounding: float,
    log_ratio: Array | None,
) -> ExampleRisks:
    xp = array_namespace(z)
    f, slope, curvature = loss.jet(z, y[:, None])
    if eta == 0 and rounding > 0 and f.shape[1] > 1:
        eta, divergence = rounding, ENTROPIC
    if eta == 0:
        value = xp.max(f, axis=1)
        ties = xp.where(f == value[:, None], xp.ones_like(f), xp.zeros_like(f))
        gamma = ties / xp.sum(ties, axis=1, keepdims=True)
    elif eta == inf or f.shape[1] == 1:
        gamma = xp.broadcast_to(p, f.shape)
        value = xp.sum(gamma * f, axis=1)
    else:
        value, gamma, q = _solve(f if log_ratio is None else f + eta * log_ratio, eta, divergence, p)
        total = xp.sum(q, axis=1, keepdims=True)
        some = (total > 0) & xp.isfinite(total)
        q = xp.where(some, q, xp.zeros_like(q)) / eta
        total = xp.where(some, total, xp.ones_like(total)) / eta
        turn = q * slope
        return ExampleRisks(value, gamma * slope, gamma * curvature + turn * slope, turn / xp.sqrt(total))
    return ExampleRisks(value, gamma * slope, gamma * curvature, None)


def _solve(f: Array, eta: float, divergence: Divergence, p: Array) -> tuple[Array, Array, Array]:
    """The inner problems with losses f (k, K): values (k,), gamma (k, K) and q (k, K)."""
    k = divergence.parameter
    if divergence.family == "cressie_read" and k is not None and k < 1:
        return _power_below_one(f, eta, k, p)
    solution = worst_case(f, eta, divergence, p=p, check=False)
    if divergence.family == "entropic":
        return solution.value, solution.weights, solution.weights
    q = p * divergence.d2conj((f - solution.mu[:, None]) / eta)
    return solution.value, solution.weights, q


def _power_below_one(f: Array, eta: float, k: float, p: Array) -> tuple[Array, Array, Array]:
    """The same for Cressie-Read of order k < 1.

    The weights are gamma = p x, where x = y^(1/a), y = Y + a (f - max f)/eta and a = k - 1.
    Y solves E x = 1. Newton's method is applied to (E x)^a = 1, whose left side is concave and almost linear
    in Y, so that its iterates increase to the root. It starts from the larger of two lower bounds: Y with
    x = 1 at the mean loss, and Y with p x = 1 at the largest loss. The second is close to the root if an end
    node has an atom: the node's probability is 1e-20, so that x is about 1e20 there.
    """
    xp, a = array_namespace(f), k - 1
    top = xp.max(f, axis=1, keepdims=True)
    u = a / eta * (f - top)
    mean, at_top = (xp.sum(v, axis=1, keepdims=True) for v in (p * u, xp.where(u == 0, p, xp.zeros_like(f))))
    # T = Y - 1 is stored too: it is more accurate than Y if Y is near 1, as for a large eta.
    Y, T = xp.maximum(1 - mean, at_top**-a), xp.maximum(-mean, xp.expm1(-a * xp.log(at_top)))
    tiny, rows = _MET * xp.max(u, axis=1), Ellipsis  # rows that have not converged: first all of them
    for _ in range(_STEPS):
        _, x, bend, surplus = _ratios(Y[rows], T[rows], u[rows], p if p.ndim == 1 else p[rows], a)
        step = (1 + surplus) * xp.expm1(-a * xp.log1p(surplus)) / xp.sum(bend, axis=1, keepdims=True)
        Y[rows], T[rows] = Y[rows] + step, T[rows] + step
        left = xp.zeros(tiny.shape, dtype=xp.bool, device=device(f))
        left[rows] = step[:, 0] > xp.minimum(_MET * Y[rows][:, 0], tiny[rows])
        rows = left
        if not bool(xp.any(rows)):
            break
    log_x, x, bend, surplus = _ratios(Y, T, u, p, a)
    # `bend` is q, which is huge at an atom. Without the cap, its rounding errors would exceed all other q_j.
    others = xp.where(u == 0, xp.zeros_like(bend), bend)
    bend = xp.minimum(bend, _ATOM * xp.sum(others, axis=1, keepdims=True))
    conj = log_x if k == 0 else xp.expm1(k * log_x) / k
    return top[:, 0] + eta * (xp.sum(p * conj, axis=1) - T[:, 0] / a), x / (1 + surplus), bend


def _ratios(Y: Array, T: Array, u: Array, p: Array, a: float) -> tuple[Array, Array, Array, Array]:
    """(log x, p x, p x/y, E x - 1) for the ratios x = y^(1/a), y = Y + u = 1 + T + u."""
    xp = array_namespace(u)
    y, near = Y + u, T + u
    log_x = xp.where(xp.abs(near) < 0.5, xp.log1p(xp.clip(near, -0.5, 0.5)), xp.log(y)) / a
    more = p * xp.expm1(log_x)
    x = p + more
    return log_x, x, x / y, xp.sum(more, axis=1, keepdims=True)
