"""The constrained risk: a budget for the divergence in place of a price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phiball.backends import Array, Rng, array_namespace, detach
from phiball.refimpl.inner.divergences import Divergence, centred, valid_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.numerics import tolerance
from phiball.refimpl.printing import one_line
from phiball.refimpl.risk.robust_risk import influence_variance
from phiball.refimpl.sampling.streaming import CHUNK, evaluated, indices, tiles, valid_data, valid_sampling
from phiball.refimpl.types import Law, Loss
from phiball.refimpl.validation import valid_count, valid_finite, valid_number

_STEPS = 300  # far above the 30 or so that are needed; bounds the loop on NaN


@dataclass(frozen=True)
class ConstrainedRisk:
    """The risk with a budget for the divergence, on a sample.

    - `value` (): eta radius + R_eta at `eta`, an upper bound on the optimal value of the sample.
    - `eta` (N,): the multiplier of each data point's constraint; that of a common constraint is repeated.
    - `gap` (): `value` minus the expected loss of a law that satisfies the constraint. The optimal value
      of the sample lies between the two.
    - `stderr` (): the standard error of `value` over the draws, for these data points, as in `Estimate`.
    """

    value: Array
    eta: Array
    gap: Array
    stderr: Array
    __repr__ = one_line


def constrained_risk(
    loss: Loss,
    z: Array,
    ball: Law,
    divergence: Divergence,
    *,
    radius: float,
    samples: int,
    rng: Rng,
    per_point: bool = False,
    chunk: int = CHUNK,
) -> ConstrainedRisk:
    r"""Estimate the largest risk within a budget for the divergence.

    $$\max_\gamma \mathbb{E}_z \mathbb{E}_{\gamma_z}[f] \quad \text{subject to} \quad
    \mathbb{E}_z \mathbb{E}_{\nu_z}\Big[\phi\Big(\frac{d\gamma_z}{d\nu_z}\Big)\Big] \le r$$

    Arguments:
    - `radius`: r, a number that is not negative. 0 gives the mean, and a large one the maximum if the
      divergence allows it.
    - `samples`: the number of points drawn around each z, at least 2.
    - `per_point`: True gives each data point the constraint, and a multiplier, of its own. This is the form
      of the paper's remark on Bayesian DRO. For one data point the two are the same.
    - The others are those of `robust_risk`. All N * samples losses are held in memory.

    Returns `value`, `eta` (N,), `gap` and `stderr`. The value is low on average, as that of `robust_risk`,
    and carries a torch gradient of the losses by Danskin's theorem.

    By duality the value is the minimum over eta > 0 of eta r + R_eta, where R_eta is the robust risk. This is
    convex in eta, with derivative r minus the divergence of the worst case. eta is searched from eps to 1/eps
    times the range of the losses.

    Reference: the remark on Bayesian DRO in Section 2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import QUADRATIC, Ball, constrained_risk
    >>> def risk(radius):
    ...     z, ball = np.zeros((1, 1)), Ball(2, 1.0)
    ...     return constrained_risk(
    ...         lambda x, i: x[:, 0], z, ball, QUADRATIC, radius=radius, samples=4000, rng=rng(0)
    ...     )
    >>> print(round(float(risk(0.02).value), 2), bool(risk(0.02).gap < 1e-12))  # sqrt(2 r Var f)
    0.12 True
    """
    z = valid_data(z)
    valid_sampling(ball, rng)
    valid_divergence(divergence)
    n = valid_count("samples", samples, 2)
    valid_count("chunk", chunk, 1)
    radius = valid_number("radius", radius, least=0.0)
    xp = array_namespace(z)
    N = z.shape[0]
    pieces = evaluated(loss, tiles(z, indices(z), ball, n, rng), chunk)
    losses = xp.reshape(xp.concat([f for _, _, f in pieces]), (N, n))
    fixed = detach(losses)
    valid_finite("loss(x, i)", fixed)
    c = centred(divergence)
    # (problems, data points of each, samples)
    f = xp.reshape(fixed, (N, 1, n) if per_point else (1, N, n))
    eta, upper, lower, weights = _minimise(f, float(radius), c)
    value = xp.mean(upper)
    if fixed is not losses:
        value = value + xp.mean(xp.sum(xp.reshape(weights, (N, n)) * (losses - fixed), axis=-1))
    eta = xp.broadcast_to(eta, (N,))
    mu = worst_case(fixed, eta, c).mu
    variance = influence_variance(fixed, mu, eta, c)
    return ConstrainedRisk(value, eta, xp.mean(upper - lower), xp.sqrt(xp.sum(variance)) / N)


class _Side(NamedTuple):
    """A worst case: its multiplier, expected loss, divergence and weights, for each problem."""

    eta: Array
    gain: Array
    cost: Array
    weights: Array


def _minimise(f: Array, radius: float, c: Divergence) -> tuple[Array, Array, Array, Array]:
    """(eta, upper bound, lower bound, weights) of each problem, f of shape (problems, rows, n).

    The optimum lies between a multiplier whose worst case is too far and one whose worst case is near
    enough. Their mixture that just meets the constraint bounds the value from below; that bound is where the
    tangents of the convex function at the two meet, which is also the next multiplier to try. That is exact
    where the function is piecewise linear, and halving between the two on a logarithmic scale does the rest.
    """
    xp = array_namespace(f)
    top, bottom = xp.max(f, axis=(1, 2)), xp.min(f, axis=(1, 2))
    spread = xp.where(top > bottom, top - bottom, xp.ones_like(top))
    eps = float(xp.finfo(f.dtype).eps)
    target = tolerance(f) * (spread + xp.where(top > -bottom, xp.abs(top), xp.abs(bottom)))
    far = _at(f, spread * (eps / (1 + radius)), c)
    near = _at(f, spread / eps, c)
    eta, upper = far.eta, far.gain + far.eta * (radius - far.cost)
    eta, upper = _smaller(eta, upper, near, radius)
    # A budget too small for both: only the reference law is sure to meet it.
    uniform = _Side(near.eta, xp.mean(f, axis=(1, 2)), xp.zeros_like(eta), xp.full_like(f, 1 / f.shape[-1]))
    far, near = _choose(near.cost > radius, near, far), _choose(near.cost > radius, uniform, near)
    for step in range(_STEPS):
        share = _share(far, near, radius)
        lower = near.gain + share * (far.gain - near.gain)
        met = (upper - lower <= target) | (near.eta <= far.eta * (1 + 4 * eps))
        if xp.all(met):
            break
        jump = far.cost - near.cost
        new = (far.gain - near.gain) / xp.where(jump > 0, jump, xp.ones_like(jump))
        halfway = xp.sqrt(far.eta) * xp.sqrt(near.eta)
        inside = (new > far.eta) & (new < near.eta)
        new = xp.where(inside, new, halfway) if step % 2 else halfway
        tried = _at(f, xp.where(met, eta, new), c)
        eta, upper = _smaller(eta, upper, tried, radius)
        far = _choose(~met & (tried.cost > radius), tried, far)
        near = _choose(~met & (tried.cost <= radius), tried, near)
    return eta, upper, lower, near.weights + share[:, None, None] * (far.weights - near.weights)


def _at(f: Array, eta: Array, c: Divergence) -> _Side:
    xp = array_namespace(f)
    weights = worst_case(f, eta[:, None], c).weights
    cost = xp.mean(xp.mean(c.phi(weights * f.shape[-1]), axis=-1), axis=-1)
    return _Side(eta, xp.mean(xp.sum(weights * f, axis=-1), axis=-1), cost, weights)


def _smaller(eta: Array, upper: Array, side: _Side, radius: float) -> tuple[Array, Array]:
    xp = array_namespace(eta)
    new = side.gain + side.eta * (radius - side.cost)
    return xp.where(new < upper, side.eta, eta), xp.where(new < upper, new, upper)


def _choose(where: Array, a: _Side, b: _Side) -> _Side:
    xp = array_namespace(a.eta)
    return _Side(
        *(xp.where(xp.reshape(where, (-1,) + (1,) * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True))
    )


def _share(far: _Side, near: _Side, radius: float) -> Array:
    """How much of `far` the mixture with `near` holds: all if it is near enough itself."""
    xp = array_namespace(far.eta)
    jump = far.cost - near.cost
    share = (radius - near.cost) / xp.where(jump > 0, jump, xp.ones_like(jump))
    return xp.where(jump > 0, xp.clip(share, 0.0, 1.0), xp.ones_like(share))
