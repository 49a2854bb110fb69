"""The risk of each example on quadrature nodes, with its first two derivatives.

At node j, of probability p_j, the prediction of an example is z_j and its loss f_j = loss(z_j). The risk R is
the worst case: sum gamma_j f_j minus the cost of gamma. By Danskin's theorem dR = sum gamma_j f_j' dz_j, and

    d2R = sum (gamma_j f_j'' + q_j f_j'^2/eta) dz_j^2 - (sum q_j f_j' dz_j)^2/(eta sum q_j),

where q_j = p_j phi*''((f_j - mu)/eta) is the derivative of gamma_j with respect to (f_j - mu)/eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.printing import one_line

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
    xp = array_namespace(z)
    with ignore_float_warnings():  # if a step of `minimize` overflows, its line search halves it
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
    solution = worst_case(f, eta, divergence, p=p, check=False)
    if divergence.family == "entropic":
        return solution.value, solution.weights, solution.weights
    power = divergence.parameter
    if divergence.family != "cressie_read" or power is None or power > 1:
        return solution.value, solution.weights, p * divergence.d2conj((f - solution.mu[:, None]) / eta)
    xp = array_namespace(f)
    q = p * (solution.weights / xp.where(p > 0, p, xp.ones_like(p))) ** (2 - power)
    # q is huge at an atom. Without the cap, its rounding errors would exceed all other q_j.
    others = xp.where(f == xp.max(f, axis=1, keepdims=True), xp.zeros_like(q), q)
    return solution.value, solution.weights, xp.minimum(q, _ATOM * xp.sum(others, axis=1, keepdims=True))
