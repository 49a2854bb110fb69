"""The risk of single examples, and its first two derivatives, on given nodes.

An example with the prediction m is moved to m + o_j with probability p_j. Its risk is R = sum gamma_j f_j
minus the cost of gamma, f_j = loss(m + o_j). By Danskin's theorem dR = sum gamma_j f_j' d(m + o_j), and

    d2R = sum (gamma_j f_j'' + q_j f_j'^2/eta) d(m + o_j)^2 - (sum q_j f_j' d(m + o_j))^2/(eta sum q_j),

q_j = p_j phi*''((f_j - mu)/eta): how the worst case moves with the losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.printing import one_line


@dataclass(frozen=True)
class Examples:
    """The risks of k examples on K nodes.

    - `value` (k,): R.
    - `pull` (k, K): gamma_j f_j', the derivative in m + o_j.
    - `bend` (k, K), `turn` (k, K): the second derivative is diag(bend) - turn turn^T.
    """

    value: Array
    pull: Array
    bend: Array
    turn: Array | None
    __repr__ = one_line


def examples(
    loss: LinearLoss,
    z: Array,
    y: Array,
    p: Array,
    eta: float,
    divergence: Divergence,
    *,
    rounding: float = 0.0,
) -> Examples:
    """The risks of examples at moved predictions z (k, K), with labels y (k,) and probabilities p.

    eta = 0 is the maximum, rounded from below by the entropic divergence at the price `rounding`.
    """
    with ignore_float_warnings():  # a step that is too long overflows, and is halved
        return _examples(loss, z, y, p, eta, divergence, rounding)


def _examples(
    loss: LinearLoss, z: Array, y: Array, p: Array, eta: float, divergence: Divergence, rounding: float
) -> Examples:
    xp = array_namespace(z)
    f, slope, curvature = loss.jet(z, y[:, None])
    if eta == 0 and rounding > 0:
        eta, divergence = rounding, ENTROPIC
    if eta == 0:
        value = xp.max(f, axis=1)
        ties = xp.where(f == value[:, None], xp.ones_like(f), xp.zeros_like(f))
        gamma = ties / xp.sum(ties, axis=1, keepdims=True)
    elif eta == inf or f.shape[1] == 1:
        gamma = xp.broadcast_to(p, f.shape)
        value = xp.sum(gamma * f, axis=1)
    else:
        solution = worst_case(f, eta, divergence, p=p, check=False)
        value, gamma = solution.value, solution.weights
        if divergence.family == "entropic":
            q = gamma
        else:
            q = p * divergence.d2conj((f - solution.mu[:, None]) / eta)
        total = xp.sum(q, axis=1, keepdims=True)
        some = (total > 0) & xp.isfinite(total)
        q = xp.where(some, q, xp.zeros_like(q)) / eta
        total = xp.where(some, total, xp.ones_like(total)) / eta
        turn = q * slope
        return Examples(value, gamma * slope, gamma * curvature + turn * slope, turn / xp.sqrt(total))
    return Examples(value, gamma * slope, gamma * curvature, None)
