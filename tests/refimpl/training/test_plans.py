"""The plans against the bounds of the two theorems, recomputed; errors."""

from __future__ import annotations

from itertools import product
from math import ceil, exp, inf, log, log2, sinh, sqrt
from typing import Any

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    chi_square_bound,
    convex_plan,
    gradient_bias,
    nonconvex_plan,
    second_moment,
)
from phiball.refimpl.training.plans import Plan

CONVEX = {"lipschitz": 1.0, "diameter": 1.0, "idf": 2.0, "chi_square": 0.25}
SMOOTH = {"lipschitz": 1.0, "smoothness": 1.0, "bound": 1.0, "eta": 1.0}
ESTIMATORS = (SG, RTMLMC)


# --- the convex plan ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(
    delta=st.floats(1e-3, 1e3),
    lipschitz=st.floats(1e-3, 1e3),
    diameter=st.floats(1e-3, 1e3),
    idf=st.floats(0, 1e4),
    chi_square=st.one_of(st.floats(0, 1e3), st.just(inf)),
)
def test_the_convex_plan_adds_up(
    estimator: Any, delta: float, lipschitz: float, diameter: float, idf: float, chi_square: float
) -> None:
    """Theorem 1 in 50 digits: the bound is the theorem's and at most delta, and no step is wasted."""
    if idf < 1e-30:
        idf = 0.0
    how = {"lipschitz": lipschitz, "diameter": diameter, "idf": idf, "chi_square": chi_square}
    plan = convex_plan(delta, **how, estimator=estimator)
    level = plan.estimator.level
    assert plan.batch == 1
    assert isinstance(plan.steps, int)
    assert 2**level >= 4 * idf / delta
    assert level == 0 or 2 ** (level - 1) < 4 * idf / delta
    with mpmath.workdps(50):
        moment = mpmath.mpf(lipschitz) ** 2
        if estimator is RTMLMC:
            capped = [2**k * min(1, chi_square / mpmath.mpf(2**k - 1)) for k in range(1, level + 1)]
            moment *= (2 - mpmath.mpf(2) ** -level) * (1 + sum(capped))
        m, d = mpmath.sqrt(moment), mpmath.mpf(diameter)

        def bound(steps: int) -> Any:
            # D^2/(2 step T) + step M^2/2 at the step of the plan
            step = plan.step_size * mpmath.sqrt(mpmath.mpf(plan.steps) / steps)
            return mpmath.mpf(idf) / (2**level + 1) + d**2 / (2 * step * steps) + step * moment / 2

        assert bound(plan.steps) <= delta * (1 + mpmath.mpf(10) ** -15)
        assert abs(bound(plan.steps) - plan.bound) <= 1e-14 * plan.bound
        assert abs(plan.step_size - d / (m * mpmath.sqrt(plan.steps))) <= 1e-14 * plan.step_size
        waste = plan.steps - plan.steps * mpmath.mpf(2) ** -45 - 1
        assert plan.steps == 1 or bound(waste) > delta
    assert plan.bound <= delta


def test_a_known_plan() -> None:
    """f = |theta - b|, delta = 0.1: L = ceil(log2 80), T = ceil(M^2/(0.1 - 2/129)^2), in round numbers."""
    plan = convex_plan(0.1, lipschitz=1.0, diameter=1.0, idf=2.0, estimator=SG)
    assert plan == Plan(SG(7), 1, 141, pytest.approx(1 / sqrt(141)), pytest.approx(2 / 129 + 1 / sqrt(141)))
    assert plan.evaluations == 128 * 140


def test_a_large_delta_asks_for_nothing() -> None:
    plan = convex_plan(100.0, **CONVEX)
    assert plan.estimator == RTMLMC(0)
    assert plan.steps == 1
    assert plan.evaluations == 0
    assert plan.bound == pytest.approx(1.0 + 1.0)  # G/2 + D M


def test_a_level_of_a_power_of_two_is_not_rounded_up() -> None:
    for k in range(1, 20):
        plan = convex_plan(4.0 / 2**k, lipschitz=1.0, diameter=1.0, idf=1.0, estimator=SG)
        assert plan.estimator.level == k


def test_rounding_does_not_break_the_promise() -> None:
    """D M/delta is a whole number up to rounding, and T = (D M/delta)^2 may fall short by one."""
    for n in range(2, 60):
        for delta in (0.102, 0.247, 0.456, 0.482, 0.936):
            plan = convex_plan(delta, lipschitz=1.0, diameter=delta * n, idf=0.0, estimator=SG)
            assert plan.bound <= delta
            assert plan.steps <= n * n + 1


def test_the_base_of_the_logarithm_matters() -> None:
    """The proof of Theorem 1 wants 2 (delta/8 + G 2^-L) <= delta/2 at L = log(8G/delta): base 2 (F3)."""
    delta, idf = 0.01, 1.0
    left = {base: 2 * (delta / 8 + idf * 2 ** -(log(8 * idf / delta) / log(base))) for base in (2, exp(1))}
    assert left[2] == pytest.approx(delta / 2)
    assert left[exp(1)] == pytest.approx(0.0219, abs=1e-4)
    plan = convex_plan(delta, lipschitz=1.0, diameter=1.0, idf=idf, chi_square=1.0)
    assert plan.estimator.level == 9 > log(8 * idf / delta)


def test_multilevel_pays_when_delta_is_small() -> None:
    for delta, cheaper in ((0.5, SG), (0.001, RTMLMC)):
        how = {**CONVEX, "chi_square": 1.0}
        cost = {e: convex_plan(delta, **how, estimator=e).evaluations for e in ESTIMATORS}
        assert min(cost, key=lambda e: cost[e]) is cheaper


def test_the_cost_has_the_order_of_the_theorem() -> None:
    """Evaluations: delta^-3 for SG, delta^-2 log^2 for RT-MLMC; delta halves, level by level."""
    for estimator, order in ((SG, 8.0), (RTMLMC, 4.0)):
        plans = [convex_plan(2.0**-k, **CONVEX, estimator=estimator) for k in (20, 21)]
        growth = plans[1].evaluations / plans[0].evaluations
        logs = (
            1 if estimator is SG else ((plans[1].estimator.level + 1) / (plans[0].estimator.level + 1)) ** 2
        )
        # M^2 is not linear in L, but 1 + C (L + 1.6), and L + 1.6 + 1/C grows slower than L
        assert order * 0.99 <= growth <= order * logs * 1.001


# --- the nonconvex plan -------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("constrained", [False, True])
@given(
    epsilon=st.floats(1e-2, 1e2),
    lipschitz=st.floats(1e-2, 1e1),
    smoothness=st.floats(1e-2, 1e2),
    bound=st.floats(1e-2, 4),
    eta=st.floats(0.5, 1e2),
)
def test_the_nonconvex_plan_adds_up(
    constrained: bool,
    estimator: Any,
    epsilon: float,
    lipschitz: float,
    smoothness: float,
    bound: float,
    eta: float,
) -> None:
    how = {"lipschitz": lipschitz, "smoothness": smoothness, "bound": bound, "eta": eta}
    plan = nonconvex_plan(epsilon, **how, constrained=constrained, estimator=estimator)
    top, target = plan.estimator.level, epsilon**2
    S = smoothness + lipschitz**2 / eta
    r = exp(bound / eta)
    bias = lipschitz**2 * r * (sqrt(r) - 1) ** 2 / 4**top  # beta^2
    C = sinh(bound / (2 * eta)) ** 2
    moment = lipschitz**2
    if estimator is RTMLMC:
        moment *= (2 - 2.0**-top) * (1 + sum(min(2**k, C * 2**k / (2**k - 1)) for k in range(1, top + 1)))
    if constrained:
        true = 2 * bias + 2 * (8 * S * bound / plan.steps + 6 * moment / plan.batch)
        assert plan.step_size == pytest.approx(1 / (2 * S))
    else:
        true = bias + 2 * bound / (plan.step_size * plan.steps) + S * plan.step_size * moment
        assert plan.batch == 1
    assert plan.bound == pytest.approx(true, rel=1e-10)
    assert plan.bound <= target * (1 + 1e-15)
    # the shares: at most a quarter for the bias, and a level less would take more
    share = (2 if constrained else 1) * bias
    assert share <= target / 4 * (1 + 1e-12)
    assert top == 0 or 4 * share > target / 4
    # and nothing is wasted: a tenth less would not do, where rounding is less than that
    if constrained and min(plan.steps, plan.batch) >= 20:
        assert share + 2 * (8 * S * bound / (0.9 * plan.steps) + 6 * moment / plan.batch) > target
        assert share + 2 * (8 * S * bound / plan.steps + 6 * moment / (0.9 * plan.batch)) > target
    elif not constrained and plan.steps >= 20:
        assert share + 2 * sqrt(2 * bound * S * moment / (0.9 * plan.steps)) > target


def test_the_paper_asks_for_far_more() -> None:
    """Its T = 128 D S M_2/epsilon^4 with its own constants, at B = eta = L_f = S_f = 1, epsilon = 0.3."""
    plan = nonconvex_plan(0.3, **SMOOTH, constrained=False)
    level = ceil(log2(4 * exp(4) / 0.09))
    S = 2 * exp(1) + exp(2)
    T = 128 * S * 2 * (level + 1) * exp(4) / 0.3**4
    assert level == plan.estimator.level + 9
    assert 2e4 < T / plan.steps < 3e4


def test_the_cost_of_multilevel_is_epsilon_to_the_fourth() -> None:
    """Epsilon halves: 16 times the cost up to logarithms with RT-MLMC, 32 times with SG (G8)."""
    for estimator, order in ((SG, 32.0), (RTMLMC, 16.0)):
        for constrained in (False, True):
            how = {**SMOOTH, "constrained": constrained, "estimator": estimator}
            plans = [nonconvex_plan(2.0**-k, **how) for k in (14, 15)]
            growth = plans[1].evaluations / plans[0].evaluations
            assert order * 0.99 <= growth <= order * (1 if estimator is SG else 1.15) * 1.01


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delta", "lipschitz", "diameter"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "is 0.0; expected a positive number"),
        (-1.0, ValueError, "is -1.0; expected a positive number"),
        (float("nan"), ValueError, "is nan; expected a positive number"),
        (inf, ValueError, "is inf; expected a positive number"),
        (1e-60, ValueError, "is 1e-60; expected a number from 1e-30 to 1e30"),
        (1e60, ValueError, r"is 1e\+60; expected a number from 1e-30 to 1e30"),
        ("x", TypeError, "is 'x'; expected a number"),
    ],
)
def test_convex_constants_are_checked(name: str, value: Any, error: Any, message: str) -> None:
    how = {"delta": 0.1, **CONVEX, name: value}
    with pytest.raises(error, match=f"{name} {message}"):
        convex_plan(how.pop("delta"), **how)


@pytest.mark.parametrize("name", ["epsilon", "lipschitz", "smoothness", "bound", "eta"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), inf, 1e-60, 1e60])
def test_nonconvex_constants_are_checked(name: str, value: float) -> None:
    how = {"epsilon": 0.1, **SMOOTH, "constrained": True, name: value}
    with pytest.raises(ValueError, match=f"{name} is .*; expected a (positive )?number"):
        nonconvex_plan(how.pop("epsilon"), **how)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"idf is -1.0; expected a finite number that is not negative"):
        convex_plan(0.1, **{**CONVEX, "idf": -1.0})
    for bad in (-1.0, float("nan"), -inf):
        with pytest.raises(
            ValueError, match=r"chi_square is .*; expected a finite number that is not negative"
        ):
            convex_plan(0.1, **{**CONVEX, "chi_square": bad})
    with pytest.raises(TypeError, match="chi_square is 'x'; expected a number"):
        second_moment(RTMLMC(2), 1.0, "x")  # type: ignore[arg-type]
    for wrong in (SG(3), "SG", None, int):
        with pytest.raises(TypeError, match=r"estimator is .*; expected the class SG or RTMLMC"):
            convex_plan(0.1, **CONVEX, estimator=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"estimator is .*; expected the class SG or RTMLMC"):
            nonconvex_plan(0.1, **SMOOTH, constrained=True, estimator=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"estimator is .*; expected SG\(level\) or RTMLMC\(level\)"):
        second_moment(SG, 1.0, 0.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="constrained is 1; expected True or False"):
        nonconvex_plan(0.1, **SMOOTH, constrained=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="level is -1; expected a whole number of at least 0"):
        gradient_bias(-1, lipschitz=1.0, bound=1.0, eta=1.0)
    with pytest.raises(TypeError, match="divergence is 'x'; expected a Divergence"):
        chi_square_bound("x", 1.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bound is -1.0; expected a finite number that is not negative"):
        chi_square_bound(ENTROPIC, -1.0, 1.0)
    with pytest.raises(ValueError, match=r"eta is 0.0; expected a positive number"):
        chi_square_bound(ENTROPIC, 1.0, 0.0)


def test_extreme_constants_are_refused_in_words() -> None:
    small = "eta is too small: bound/eta = 1000; expected at most 700"
    with pytest.raises(ValueError, match=small):
        chi_square_bound(ENTROPIC, 1.0, 1e-3)
    with pytest.raises(ValueError, match=small):
        nonconvex_plan(0.1, **{**SMOOTH, "eta": 1e-3}, constrained=False)
    with pytest.raises(
        ValueError, match=r"eta is 1e-200 with bound = 1.0; expected bound/eta of at most 1e150"
    ):
        chi_square_bound(QUADRATIC, 1.0, 1e-200)
    with pytest.raises(ValueError, match=r"epsilon is 0.1, which needs 2.L = 9.7e.09 points per data point"):
        nonconvex_plan(0.1, **{**SMOOTH, "eta": 0.05}, constrained=False)
    with pytest.raises(ValueError, match=r"delta is 1e-12, which needs .*; expected at least 7.5e-09"):
        convex_plan(1e-12, **CONVEX)
    with pytest.raises(ValueError, match=r"delta is 1e-30, which needs .* steps or data points"):
        convex_plan(1e-30, lipschitz=1e30, diameter=1e30, idf=0.0, chi_square=0.0)
    with pytest.raises(ValueError, match=r"epsilon is 1e-30, which needs .* steps or data points"):
        nonconvex_plan(
            1e-30, lipschitz=1e-30, smoothness=1e30, bound=1e30, eta=1e30, constrained=False, estimator=SG
        )


ENDS = (1e-30, 1.0, 1e30)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_corners_of_the_range_are_plans(estimator: Any) -> None:
    """Whatever the constants within the range, there is a plan or an error in words."""
    plans = refused = 0

    def attempt(target: float, make: Any, *args: Any, **how: Any) -> None:
        nonlocal plans, refused
        try:
            plan = make(*args, **how, estimator=estimator)
        except ValueError:
            with pytest.raises(ValueError, match=r"which needs|eta is too small"):
                make(*args, **how, estimator=estimator)
            refused += 1
        else:
            plans += 1
            assert 0 < plan.step_size < inf
            assert 0 < plan.bound <= target * (1 + 1e-15)

    for delta, lipschitz, diameter, idf, C in product(ENDS, ENDS, ENDS, (0.0, *ENDS), (0.0, 1.0, inf)):
        how = {"lipschitz": lipschitz, "diameter": diameter, "idf": idf, "chi_square": C}
        attempt(delta, convex_plan, delta, **how)
    for epsilon, lipschitz, smoothness, bound, eta in product(ENDS, repeat=5):
        for constrained in (False, True):
            how = {"lipschitz": lipschitz, "smoothness": smoothness, "bound": bound, "eta": eta}
            attempt(epsilon**2, nonconvex_plan, epsilon, **how, constrained=constrained)
    assert plans > 100
    assert refused > 100
