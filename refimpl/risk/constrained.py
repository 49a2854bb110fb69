"""The constrained risk: a budget for the divergence in place of a price."""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, Rng, array_namespace
from phiball.refimpl.distributions.norms import length
from phiball.refimpl.inner.budget import solve_budget, spend
from phiball.refimpl.inner.divergences import Divergence, centred, valid_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.risk.robust_risk import standard_error
from phiball.refimpl.sampling.streaming import CHUNK, evaluated, indices, tiles, valid_data, valid_sampling
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import valid_count, valid_finite, valid_number


@dataclass(frozen=True)
class ConstrainedRisk:
    """The risk with a budget for the divergence, on a sample.

    - `value` (): eta radius + R_eta at `eta`, an upper bound on the optimal value of the sample.
    - `eta` (N,): the multiplier of each data point's constraint; that of a common constraint is repeated.
    - `gap` (): `value` minus the expected loss of a distribution that satisfies the constraint. The optimal value
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
    x: Array,
    reference: Distribution,
    divergence: Divergence,
    *,
    budget: float,
    n_samples: int,
    rng: Rng,
    per_point: bool = False,
    chunk: int = CHUNK,
) -> ConstrainedRisk:
    r"""Estimate the largest risk within a budget for the divergence.

    $$\max_\gamma \mathbb{E}_z \mathbb{E}_{\gamma_z}[f] \quad \text{subject to} \quad
    \mathbb{E}_z \mathbb{E}_{\nu_z}\Big[\phi\Big(\frac{d\gamma_z}{d\nu_z}\Big)\Big] \le r$$

    Arguments:
    - `budget`: r, a number that is not negative. 0 gives the mean.
    - `n_samples`: the number of points drawn around each z, at least 2.
    - `per_point`: True gives each data point a constraint, and a multiplier, of its own.
    - The others are those of `robust_risk`. All N * samples losses are held in memory.

    Returns `value`, `eta` (N,), `gap` and `stderr`, without a graph. The value is low on average, as that of
    `robust_risk`. By duality it is the minimum over eta > 0 of eta r + R_eta, where R_eta is the robust risk.

    Reference: the remark on Bayesian DRO in Section 2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import QUADRATIC, Ball
    >>> from phiball.risk import constrained_risk
    >>> z, how = np.zeros((1, 1)), {"samples": 4000, "rng": rng(0)}
    >>> risk = constrained_risk(lambda x, i: x[:, 0], z, Ball(2, 1.0), QUADRATIC, budget=0.02, **how)
    >>> print(round(float(risk.value), 2), bool(risk.gap < 1e-12))  # sqrt(2 r Var f)
    0.12 True
    """
    x = valid_data(x)
    valid_sampling(reference, rng)
    valid_divergence(divergence)
    n = valid_count("n_samples", n_samples, 2)
    valid_count("chunk", chunk, 1)
    budget = valid_number("radius", budget, least=0.0)
    xp = array_namespace(x)
    N = x.shape[0]
    pieces = evaluated(loss, tiles(x, indices(x), reference, n, rng), chunk)
    fixed = xp.reshape(xp.concat([f for _, _, f in pieces]), (N, n))
    valid_finite("loss(x, i)", fixed)
    c = centred(divergence)
    if per_point:
        r = xp.full_like(fixed[:, 0], budget)
        upper, _, _, gap, eta = solve_budget(fixed, r, None, c)
        spread = xp.max(fixed, axis=-1) - xp.min(fixed, axis=-1)
        spread = xp.where(spread > 0, spread, xp.ones_like(spread))
        eps = float(xp.finfo(fixed.dtype).eps)
        eta = xp.clip(eta, spread * (eps / (1 + budget)), spread / eps)
    else:
        f = fixed[None, ...]  # one problem, whose rows are the data points
        eta, upper, lower, _, _ = spend(f, xp.full_like(f[:, 0, 0], budget), None, c)
        gap = upper - lower
    value = xp.mean(upper)
    eta = xp.broadcast_to(eta, (N,))
    mu = worst_case(fixed, eta, c).mu
    errors = standard_error(fixed, mu, eta, c)
    return ConstrainedRisk(value, eta, xp.mean(gap), length(errors, 2) / N)
