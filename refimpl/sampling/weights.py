"""The value of an estimator and the signed weights of its perturbed points, from their losses."""

from __future__ import annotations

from math import isfinite
from typing import Any

from phiball.backends import Array, array_namespace, detach, device, is_abstract, tracks_derivatives
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.solvers import check_finite_field, solve, solve_ragged
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.sampling.draws import PerturbedPoints, on_device, repeat_host
from phiball.refimpl.types import LevelGroup
from phiball.refimpl.validation import check_eta


def signed_weights(
    losses: Array,
    eta: float | Array,
    divergence: Divergence,
    *,
    telescoping: bool,
    log_p: Array | None = None,
) -> tuple[Array, Array]:
    """Compute the value and the signed weights for the 2^l points of each data point at level l.

    Arguments:
    - `losses` (..., 2^l): the losses of the perturbed points of each data point.
    - `eta`, `divergence`: as in `worst_case`.
    - `telescoping`: False gives g^l of the paper. True gives G^l: for l > 0, the mean of the solutions on the
      first and on the second half of the points is subtracted.
    - `log_p` (..., 2^l): the logs of the reference weights, up to a constant; None for equal weights. They
      are normalized separately for all points and for each half.

    Returns the value (...) and the weights (..., 2^l). The expected values of G^0, ..., G^L add up to the
    expected value of g^L, and the same holds for the gradients.

    Reference: Eq. (g:ell), (G:ell) and (expression:G) of Section 3, corrected at level 0.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> value, weights = signed_weights(np.array([0.0, 1.0]), 0.5, QUADRATIC, telescoping=True)
    >>> float(value), weights.tolist()
    (0.25, [-0.5, 0.5])
    """
    xp = array_namespace(losses)
    whole = worst_case(losses, eta=eta, divergence=divergence, p=None if log_p is None else softmax(log_p))
    n = losses.shape[-1]
    if not telescoping or n == 1:
        return whole.value, whole.weights
    shape = (*losses.shape[:-1], 2, n // 2)
    part = worst_case(
        xp.reshape(losses, shape),
        eta=eta if isinstance(eta, (int, float)) else eta[..., None],
        divergence=divergence,
        p=None if log_p is None else softmax(xp.reshape(log_p, shape)),
    )
    value = whole.value - xp.mean(part.value, axis=-1)
    return value, whole.weights - xp.reshape(part.weights, losses.shape) / 2


def softmax(log_p: Array) -> Array:
    """The probabilities proportional to exp(log_p) along the last axis."""
    xp = array_namespace(log_p)
    p = xp.exp(log_p - xp.max(log_p, axis=-1, keepdims=True))
    return p / xp.sum(p, axis=-1, keepdims=True)


def solve_draws(
    losses: Array, draws: PerturbedPoints, divergence: Divergence, share: float, *, self_normalised: bool
) -> tuple[Array, Array]:
    """Solve the inner problem of each data point, from the losses (M,) of all perturbed points.

    Unless `self_normalised`, eta times the log weights of `draws` is added to the losses. Otherwise the
    weights, normalized for each data point, are the reference distribution. Returns the sum of the values and
    the signed weights (M,), both times `share` and the weights of the groups.
    """
    xp = array_namespace(losses)
    eta, log_w = draws.eta, draws.log_weights
    if isinstance(eta, (int, float)):
        check_eta(eta, losses)
    else:
        eta = xp.astype(eta, losses.dtype, copy=False)
    if len(draws.groups) == 1 and draws.groups[0].level == 0:
        # A single point has weight one for every divergence.
        share *= draws.groups[0].weight
        value = share * _finite_sum(losses, losses, divergence)
        if log_w is not None and not self_normalised:
            value = value + share * xp.astype(xp.sum(draws.eta * log_w), losses.dtype, copy=False)
        return value, xp.full_like(losses, share)
    if log_w is not None:
        log_w = xp.astype(log_w, losses.dtype, copy=False)
        if not self_normalised:
            sizes = [1 << group.level for group in draws.groups]
            times = repeat_host(sizes, [len(group.members) for group in draws.groups])
            point_eta = eta if isinstance(eta, (int, float)) else xp.repeat(eta, on_device(times, losses))
            losses, log_w = losses + point_eta * log_w, None
    if len(draws.groups) > 1:
        return _solve_ragged(losses, draws.groups, eta, divergence, share, log_w)
    (group,) = draws.groups
    shape = (len(group.members), 1 << group.level)
    rows = xp.reshape(losses, shape)
    if group.telescoping or log_w is not None or tracks_derivatives(losses):
        values, weights = signed_weights(
            rows,
            eta,
            divergence,
            telescoping=group.telescoping,
            log_p=None if log_w is None else xp.reshape(log_w, shape),
        )
        value = xp.sum(values)
    else:
        values, _, weights, _ = solve(rows, _eta_array(eta, shape[0], losses), None, divergence)
        value = _finite_sum(values, rows, divergence)
    share *= group.weight
    return share * value, share * xp.reshape(weights, (-1,))


def _solve_ragged(
    losses: Array,
    groups: list[LevelGroup],
    eta: float | Array,
    divergence: Divergence,
    share: float,
    log_p: Array | None,
) -> tuple[Array, Array]:
    """`solve_draws` for several levels, in one solve of the rows of all data points and their halves."""
    xp = array_namespace(losses)
    # Each block is (number of rows, points per row, factor of the solutions).
    blocks = [(len(group.members), 1 << group.level, share * group.weight) for group in groups]
    if any(group.telescoping for group in groups):
        # Append the halves of all rows. Rows that are not halved are repeated with factor 0.
        halved = [group.telescoping and group.level > 0 for group in groups]
        cuts = [1 + half for half in halved]
        blocks += [
            (count * cut, size // cut, -scale / 2 if cut == 2 else 0.0)
            for (count, size, scale), cut in zip(blocks, cuts, strict=True)
        ]
        losses = xp.concat([losses, losses])
        log_p = None if log_p is None else xp.concat([log_p, log_p])
        if not isinstance(eta, (int, float)):
            times = repeat_host(cuts, [len(group.members) for group in groups])
            eta = xp.concat([eta, xp.repeat(eta, on_device(times, losses))])
    rows, sizes, factors = (list(column) for column in zip(*blocks, strict=True))
    lengths, factor = repeat_host(sizes, rows), repeat_host(factors, rows)
    offsets = on_device(_offsets(lengths), losses)
    if log_p is not None or tracks_derivatives(losses):
        p = None if log_p is None else _row_weights(log_p, rows, sizes, xp=xp)
        solution = worst_case(losses, eta=eta, divergence=divergence, p=p, offsets=offsets)
        values, weights = solution.value, solution.weights
    else:
        eta = _eta_array(eta, lengths.shape[0], losses)
        values, _, weights, _ = solve_ragged(losses, offsets, eta, None, divergence)
    value = _finite_sum(on_device(factor, losses, losses.dtype) * values, losses, divergence)
    weights = on_device(repeat_host(factor, lengths), losses, losses.dtype) * weights
    count = sum(len(group.members) << group.level for group in groups)
    return value, weights if len(blocks) == len(groups) else weights[:count] + weights[count:]


def _eta_array(eta: float | Array, n: int, like: Array) -> Array:
    """`eta` as an array (n,), like `like`."""
    if not isinstance(eta, (int, float)):
        return eta
    return array_namespace(like).full((n,), eta, dtype=like.dtype, device=device(like))


def _finite_sum(values: Array, losses: Array, divergence: Divergence) -> Array:
    """The sum of the values; raise if one of them is not finite."""
    total = array_namespace(values).sum(values)
    if not is_abstract(total) and not isfinite(float(detach(total))):
        check_finite_field(values, losses, divergence)
    return total


def _row_weights(log_p: Array, rows: list[int], sizes: list[int], *, xp: Any) -> Array:
    """The reference weights: block k has rows[k] rows of sizes[k] points, and each row sums to one."""
    weights, start = [], 0
    for count, size in zip(rows, sizes, strict=True):
        part = xp.reshape(log_p[start : start + count * size], (count, size))
        weights.append(xp.reshape(softmax(part), (-1,)))
        start += count * size
    return xp.concat(weights)


def _offsets(lengths: Array) -> Array:
    return array_namespace(lengths).cumulative_sum(lengths, include_initial=True)
