"""`robust_risk` with a budget agrees with a convex solver and closed forms."""

from functools import cache
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, cressie_read, worst_case
from phiball.refimpl.risk import Estimate, robust_risk
from tests.support.arrays import NUMPY, Arrays
from tests.support.divergences import select
from tests.support.risk_distributions import Counted, first, fixed

LOSSES = np.array(
    [[0.0, 1.0, 2.0, 3.5, 1.0, 0.5], [5.0, 5.5, 5.25, 5.0, 5.125, 5.75], [-1.0, 1.0, 4.0, 0.0, 0.0, 2.0]]
)


def risk(arrays: Arrays, d: Any, budget: float, losses: Any = LOSSES, *, per_point: bool = False) -> Estimate:
    """The risk if losses[k] are the losses around data point k; `per_point` gives each its own budget."""
    x, distribution = fixed(losses, arrays)
    n = np.shape(losses)[1]
    given = arrays.asarray(np.full(len(losses), budget)) if per_point else budget
    return robust_risk(first, x, distribution, None, d, budget=given, n_samples=n, rng=0)


@cache
def conic_value(family: str, budget: float, per_point: bool) -> float:
    """The optimal value for LOSSES by a conic solver."""
    cvxpy = pytest.importorskip("cvxpy", reason="cvxpy: not installed")
    N, n = LOSSES.shape
    x = cvxpy.Variable((N, n), nonneg=True)  # density ratios
    cost: Any = {
        "entropic": lambda v: cvxpy.sum(cvxpy.kl_div(v, 1)) / n,
        "quadratic": lambda v: (cvxpy.sum_squares(v) - n) / (2 * n),
        "absolute": lambda v: cvxpy.norm1(v - 1) / n,
        "hinge": lambda v: cvxpy.sum(cvxpy.pos(v - 1)) / n,
        "indicator": lambda v: cvxpy.max(v) * 0,
    }[family]
    constraints = [cvxpy.sum(x[k]) == n for k in range(N)]
    if family == "indicator":
        constraints.append(x <= 1 / 0.3)
    elif per_point:
        constraints += [cost(x[k]) <= budget for k in range(N)]
    else:
        constraints.append(sum(cost(x[k]) for k in range(N)) / N <= budget)
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(cvxpy.multiply(x, LOSSES)) / (n * N)), constraints)
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize("per_point", [False, True])
def test_value_agrees_with_a_convex_solver(per_point: bool, arrays: Arrays) -> None:
    rounding = 1000 * arrays.eps
    for d in [d for d in select(core=True) if d.family != "cressie_read"]:
        for budget in (0.05, 1.0):
            out = risk(arrays, d, budget, per_point=per_point)
            exact = conic_value(str(d.family), budget, per_point)
            assert float(out.value) == pytest.approx(exact, abs=1e-5 + rounding), d.name
            assert -rounding <= arrays.numpy(out.gap).mean() <= rounding, d.name
    assert out.value.dtype == out.eta.dtype == out.gap.dtype == out.stderr.dtype == arrays.dtype
    assert out.eta.shape == (3,)


def test_value_is_the_dual_objective_at_eta(doubles: Arrays) -> None:
    for d in select(usual=True):
        for budget, per_point in ((0.0, True), (0.05, False), (50.0, False)):
            out = risk(doubles, d, budget, per_point=per_point)
            eta = doubles.numpy(out.eta)
            assert np.all(eta > 0)
            assert per_point or len(set(eta.tolist())) == 1
            dual = eta * budget + doubles.numpy(worst_case(doubles.asarray(LOSSES), out.eta, d).value)
            assert float(out.value) == pytest.approx(dual.mean(), abs=1e-13), d.name
            assert -1e-13 <= doubles.numpy(out.gap).mean() <= 2e-13, d.name


def test_small_budget_adds_a_multiple_of_the_standard_deviation(arrays: Arrays) -> None:
    """With positive weights, the value is mean + sqrt(2 budget Var f), and eta is sqrt(Var f/(2 budget))."""
    f = np.random.default_rng(0).uniform(size=(1, 64))
    budget = 0.01
    for per_point in (False, True):
        out = risk(arrays, QUADRATIC, budget, f, per_point=per_point)
        assert float(out.value) == pytest.approx(f.mean() + sqrt(2 * budget * f.var()), rel=20 * arrays.eps)
        # The value is flat at the optimal eta, so that eta is accurate only to the square root of eps.
        eta = sqrt(f.var() / (2 * budget))
        assert float(out.eta[0]) == pytest.approx(eta, rel=20 * sqrt(arrays.eps))
        influence = (f - f.mean()) + (f - f.mean()) ** 2 / (2 * eta)
        assert float(out.stderr) == pytest.approx(influence.std(ddof=1) / 8, rel=20 * sqrt(arrays.eps))


def test_gap_is_positive_if_no_eta_attains_the_value() -> None:
    """phi = (x - 1)^4/4 is so flat at 1 that even the largest eta does not give the mean at budget 0."""

    def dconj(s: Any) -> Any:
        return np.where(s > -1, 1 + np.cbrt(s), 0.0)

    def d2conj(s: Any) -> Any:
        return np.where(s > -1, np.where(s == 0, 1.0, np.abs(s)) ** (-2 / 3) / 3, 0.0)

    quartic = Divergence(
        "quartic",
        lambda x: np.where(x < 0, inf, (x - 1) ** 4 / 4),
        lambda s: np.where(s > -1, s + 0.75 * np.abs(s) ** (4 / 3), -0.25),
        dconj,
        d2conj,
        *(-1.0, 0.0, inf, 0.0),
    )
    out = risk(NUMPY, quartic, 0.0)
    assert float(out.value) - out.gap.mean() <= LOSSES.mean() + 1e-14
    assert 1e-9 < out.gap.mean() < 1e-3


@pytest.mark.parametrize("per_point", [False, True])
def test_value_grows_with_the_budget_from_mean_to_maximum(per_point: bool, doubles: Arrays) -> None:
    for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, cressie_read(0)):
        values = [float(risk(doubles, d, r, per_point=per_point).value) for r in (0.0, 0.1, 1.0, 1e4)]
        assert values[0] == pytest.approx(LOSSES.mean(), rel=50 * doubles.eps)
        assert values[0] < values[1] < values[2] <= values[3] + 50 * doubles.eps
        assert values[-1] == pytest.approx(LOSSES.max(axis=1).mean(), rel=50 * doubles.eps)


def test_constant_losses_have_no_gap_and_no_standard_error(doubles: Arrays) -> None:
    for d in select(core=True):
        for budget, per_point in ((0.0, True), (10.0, True), (10.0, False)):
            out = risk(doubles, d, budget, np.full((2, 5), 3.0), per_point=per_point)
            assert float(out.value) == pytest.approx(3.0, rel=10 * doubles.eps)
            assert np.abs(doubles.numpy(out.gap)).max() <= 40 * doubles.eps
            assert float(out.stderr) <= 40 * doubles.eps


def test_value_does_not_depend_on_the_chunk() -> None:
    z = np.linspace(-1, 1, 6).reshape(3, 2)
    values = []
    for chunk in (50, 5000):
        loss = Counted()
        out = robust_risk(loss, z, Ball(2, 0.7), budget=0.1, n_samples=400, rng=rng(1), chunk=chunk)
        assert max(loss.sizes) <= chunk
        values.append(float(out.value))
    assert values[0] == pytest.approx(values[1], abs=1e-14)


def test_bias_is_the_value_minus_the_mean_value_of_two_halves(doubles: Arrays) -> None:
    for per_point in (False, True):
        out, first_half, second_half = (
            risk(doubles, QUADRATIC, 0.1, losses, per_point=per_point)
            for losses in (LOSSES, LOSSES[:, :3], LOSSES[:, 3:])
        )
        low = (float(first_half.value) + float(second_half.value)) / 2
        assert float(out.bias) == pytest.approx(float(out.value) - low, rel=1e-10)
        values = doubles.numpy(out.values)
        assert values.mean() == pytest.approx(float(out.value), rel=1e-13)
        assert float(out.population_stderr) == pytest.approx(values.std(ddof=1) / sqrt(3), rel=1e-12)
        assert out.lower_bound


def test_estimates_with_one_budget_per_data_point_can_be_merged() -> None:
    whole, *parts = (
        risk(NUMPY, ENTROPIC, 0.1, losses, per_point=True) for losses in (LOSSES, LOSSES[:1], LOSSES[1:])
    )
    merged = Estimate.merge(parts)
    for name in ("values", "eta", "gap"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12, atol=1e-14)
    assert float(merged.stderr) == pytest.approx(float(whole.stderr), rel=1e-9)
    with pytest.raises(ValueError, match="expected sampled results of robust_risk"):
        Estimate.merge([risk(NUMPY, ENTROPIC, 0.1)])
