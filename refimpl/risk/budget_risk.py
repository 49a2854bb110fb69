"""The robust risk within a budget for the divergence, from sampled losses."""

from __future__ import annotations

from dataclasses import replace

from phiball.backends import Array, array_namespace, is_array_api_obj
from phiball.refimpl.inner.budget import solve_budget, solve_shared_budget
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.risk.estimate import Estimate, standard_error, summarize
from phiball.refimpl.validation import check_finite, valid_budget, valid_number


def budget_estimate(f: Array, budget: float | Array, c: Divergence) -> Estimate:
    """The robust risk of the losses f (N, n) of n points per data point, for a centred divergence c.

    A number `budget` bounds the mean divergence of all data points; an array (N,) bounds each divergence.
    """
    xp = array_namespace(f)
    check_finite("loss(x, i)", f)
    if is_array_api_obj(budget) and getattr(budget, "ndim", 0) > 0:
        budget = valid_budget(budget, f, rows="(N,)")
    else:
        budget = valid_number("budget", budget, least=0.0)
    upper, eta, gap = _solve(f, budget, c)
    n = f.shape[-1]
    h = n // 2
    halves = h / n * _solve(f[:, :h], budget, c)[0] + (n - h) / n * _solve(f[:, h:], budget, c)[0]
    missing = xp.where(upper > halves, upper - halves, xp.zeros_like(upper))  # negative only by rounding
    eta, gap, missing = (xp.broadcast_to(a, f.shape[:1]) for a in (eta, gap, missing))
    out = worst_case(f, eta, c)
    common = isinstance(budget, float)
    values = out.value + eta * budget if common else upper
    errors, heaviest = standard_error(f, out.mu, eta, c), xp.max(out.weights, axis=-1)
    estimate = summarize((values, missing, errors, heaviest), self_normalised=False, eta=eta, gap=gap)
    return replace(estimate, value=upper[0], per_point=None) if common else estimate


def _solve(f: Array, budget: float | Array, c: Divergence) -> tuple[Array, Array, Array]:
    """(value, eta, gap): arrays (1,) for a common budget (a float), (N,) for an array of budgets (N,)."""
    xp = array_namespace(f)
    if isinstance(budget, float):
        problem = f[None, ...]  # one problem, whose rows are the data points
        eta, upper, lower, _, _ = solve_shared_budget(problem, xp.full_like(f[:1, 0], budget), None, c)
        return upper, eta, upper - lower
    upper, _, _, gap, eta = solve_budget(f, budget, None, c)
    spread = xp.max(f, axis=-1) - xp.min(f, axis=-1)
    spread = xp.where(spread > 0, spread, xp.ones_like(spread))
    eps = float(xp.finfo(f.dtype).eps)
    return upper, xp.clip(eta, spread * (eps / (1 + budget)), spread / eps), gap
