"""Plans for SGD satisfy the bounds of the paper's two theorems."""

from itertools import product
from math import ceil, exp, inf, sinh, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiball.refimpl import ENTROPIC, HINGE, QUADRATIC, RTMLMC, SG, cressie_read, indicator
from phiball.refimpl.theory import (
    chi_square_bound,
    convex_plan,
    gradient_bias,
    gradient_second_moment,
    nonconvex_plan,
)
from phiball.refimpl.theory.plans import Plan

CONVEX = {"lipschitz": 1.0, "diameter": 1.0, "idf": 2.0, "chi_square": 0.25}
SMOOTH = {"lipschitz": 1.0, "smoothness": 1.0, "bound": 1.0, "eta": 1.0}
ESTIMATORS = (SG, RTMLMC)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_convex_plan_follows_the_theorem(estimator: Any) -> None:
    """The level L is the lowest with 2^L >= 4 G/delta, and the steps are the fewest with bound <= delta."""
    for level, delta, lipschitz, diameter, idf, chi_square in (
        (7, 0.1, 1.0, 1.0, 2.0, 0.25),
        (7, 0.3, 2.0, 0.5, 7.0, inf),
        (0, 2.0, 0.7, 30.0, 0.0, 0.0),
        (5, 0.03, 5.0, 0.1, 0.2, 3.0),
    ):
        constants = {"lipschitz": lipschitz, "diameter": diameter, "idf": idf, "chi_square": chi_square}
        plan = convex_plan(delta, **constants, estimator=estimator)
        moment = lipschitz**2
        if estimator is RTMLMC:
            capped = [2**k * min(1, chi_square / (2**k - 1)) for k in range(1, level + 1)]
            moment *= (2 - 2.0**-level) * (1 + sum(capped))
        bias, reach = idf / (2**level + 1), diameter * sqrt(moment)
        steps = ceil((reach / (delta - bias)) ** 2)
        step_size, bound = diameter / sqrt(moment * steps), bias + reach / sqrt(steps)
        assert plan == Plan(
            estimator(level), 1, steps, pytest.approx(step_size, rel=1e-12), pytest.approx(bound, rel=1e-12)
        )
        assert isinstance(plan.steps, int)
        assert plan.bound <= delta


def test_convex_plans_agree_with_values_computed_by_hand() -> None:
    """For delta = 0.1, L = ceil(log2 80) = 7 and T = ceil((M/(0.1 - 2/129))^2) = 141."""
    plan = convex(0.1, estimator=SG)
    assert plan == Plan(SG(7), 1, 141, pytest.approx(1 / sqrt(141)), pytest.approx(2 / 129 + 1 / sqrt(141)))
    assert plan.evaluations == 128 * 140
    plan = convex(100.0)
    assert plan == Plan(RTMLMC(0), 1, 1, 1.0, pytest.approx(1.0 + 1.0))  # G/2 + D M
    assert plan.evaluations == 0
    for k in range(1, 20):  # the level of a power of two is not rounded up
        assert convex(4.0 / 2**k, idf=1.0, estimator=SG).estimator.level == k
    # D M/delta is the integer n up to rounding, which must not make T = n^2 too small.
    for n, delta in product(range(2, 60), (0.102, 0.247, 0.456, 0.482, 0.936)):
        plan = convex(delta, diameter=delta * n, idf=0.0, estimator=SG)
        assert plan.bound <= delta
        assert plan.steps <= n * n + 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("constrained", [False, True])
@given(
    st.floats(0.01, 100), st.floats(0.01, 10), st.floats(0.01, 100), st.floats(0.01, 4), st.floats(0.5, 100)
)
def test_nonconvex_plan_meets_the_theorem(
    constrained: bool,
    estimator: Any,
    epsilon: float,
    lipschitz: float,
    smoothness: float,
    bound: float,
    eta: float,
) -> None:
    constants = {"lipschitz": lipschitz, "smoothness": smoothness, "bound": bound, "eta": eta}
    plan = nonconvex_plan(epsilon, **constants, constrained=constrained, estimator=estimator)
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
    # The bias has at most a quarter of the bound, and one level less would exceed it.
    share = (2 if constrained else 1) * bias
    assert share <= target / 4 * (1 + 1e-12)
    assert top == 0 or 4 * share > target / 4
    # A tenth fewer steps would not suffice, where rounding is smaller than that.
    if constrained and min(plan.steps, plan.batch) >= 20:
        assert share + 2 * (8 * S * bound / (0.9 * plan.steps) + 6 * moment / plan.batch) > target
        assert share + 2 * (8 * S * bound / plan.steps + 6 * moment / (0.9 * plan.batch)) > target
    elif not constrained and plan.steps >= 20:
        assert share + 2 * sqrt(2 * bound * S * moment / (0.9 * plan.steps)) > target


def convex(delta: float = 0.1, **change: Any) -> Plan:
    return convex_plan(delta, **{**CONVEX, **change})


def nonconvex(epsilon: float = 0.1, constrained: Any = False, **change: Any) -> Plan:
    return nonconvex_plan(epsilon, **{**SMOOTH, **change}, constrained=constrained)


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        *((convex, name) for name in ("delta", "lipschitz", "diameter")),
        *((nonconvex, name) for name in ("epsilon", "lipschitz", "smoothness", "bound", "eta")),
    ],
)
def test_invalid_constants_raise(plan: Any, name: str) -> None:
    for value in (0.0, -1.0, float("nan"), inf):
        with pytest.raises(ValueError, match=f"{name} is {value}; expected a positive number"):
            plan(**{name: value})
    for value in (1e-60, 1e60):
        with pytest.raises(ValueError, match=f"{name} is .*; expected a number from 1e-30 to 1e30"):
            plan(**{name: value})
    with pytest.raises(TypeError, match=f"{name} is 'x'; expected a number"):
        plan(**{name: "x"})


SMALL = "eta is too small: bound/eta = 1000"


def test_invalid_estimators_and_divergences_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: convex(idf=-1.0), ValueError, "idf is -1.0; expected"),
        (lambda: convex(chi_square=-inf), ValueError, "chi_square is -inf; expected"),
        (lambda: gradient_second_moment(RTMLMC(2), 1.0, "x"), TypeError, "chi_square is 'x'; expected"),
        (lambda: convex(estimator=SG(3)), TypeError, "estimator is .*; expected the class SG or RTMLMC"),
        (lambda: gradient_second_moment(SG, 1.0, 0.0), TypeError, r"estimator is .*; expected SG\(level\)"),
        (lambda: nonconvex(constrained=1), TypeError, "constrained is 1; expected True or False"),
        (lambda: gradient_bias(-1, lipschitz=1.0, bound=1.0, eta=1.0), ValueError, "level is -1; expected"),
        (lambda: chi_square_bound("x", 1.0, 1.0), ValueError, "divergence is 'x'; expected one of"),
        (lambda: chi_square_bound(ENTROPIC, -1.0, 1.0), ValueError, "bound is -1.0; expected a finite"),
        (lambda: chi_square_bound(ENTROPIC, 1.0, 0.0), ValueError, "eta is 0.0; expected a positive number"),
        (lambda: chi_square_bound(HINGE, 1.0, 1.0), ValueError, "is hinge; expected"),
        (lambda: chi_square_bound(ENTROPIC, 1.0, 1e-3), ValueError, SMALL),
        (lambda: nonconvex(eta=1e-3), ValueError, SMALL),
        (lambda: chi_square_bound(QUADRATIC, 1.0, 1e-200), ValueError, "expected bound/eta of at most 1e150"),
        (lambda: nonconvex(eta=0.05), ValueError, "epsilon is 0.1, which needs 9.7e.09 samples per"),
        (lambda: convex(1e-12), ValueError, "delta is 1e-12, which needs .*; expected at least 7.5e-09"),
        (lambda: convex(1e-30, diameter=1e30, idf=0.0), ValueError, "needs .* steps or data points"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


EXTREMES = (1e-30, 1.0, 1e30)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_extreme_constants_give_a_valid_plan_or_an_error(estimator: Any) -> None:
    plans, errors = 0, []

    def attempt(target: float, make: Any, *args: Any, **constants: Any) -> None:
        nonlocal plans
        try:
            plan = make(*args, **constants, estimator=estimator)
        except ValueError as error:
            errors.append(str(error))
        else:
            plans += 1
            assert 0 < plan.step_size < inf
            assert 0 < plan.bound <= target * (1 + 1e-15)

    for delta, lipschitz, diameter, idf, C in product(
        EXTREMES, EXTREMES, EXTREMES, (0.0, *EXTREMES), (0.0, 1.0, inf)
    ):
        constants = {"lipschitz": lipschitz, "diameter": diameter, "idf": idf, "chi_square": C}
        attempt(delta, convex_plan, delta, **constants)
    for epsilon, lipschitz, smoothness, bound, eta in product(EXTREMES, repeat=5):
        for constrained in (False, True):
            constants = {"lipschitz": lipschitz, "smoothness": smoothness, "bound": bound, "eta": eta}
            attempt(epsilon**2, nonconvex_plan, epsilon, **constants, constrained=constrained)
    assert plans > 100
    assert len(errors) > 100
    assert all("which needs" in text or "eta is too small" in text for text in errors)


def test_second_moment_agrees_with_closed_forms() -> None:
    for top in range(4):  # the gradient does not depend on the perturbation, so only level 0 contributes
        assert gradient_second_moment(RTMLMC(top), 1.0, 0.0) == pytest.approx(2 - 2.0**-top, rel=1e-14)
    assert gradient_second_moment(SG(5), 3.0, inf) == 9.0
    assert gradient_second_moment(RTMLMC(4), 3.0, 0.5) == pytest.approx(
        9 * gradient_second_moment(RTMLMC(4), 1.0, 0.5)
    )
    # For infinite C, every level l contributes 2^l, which gives (2 - 2^-L)(2^(L+1) - 1).
    assert gradient_second_moment(RTMLMC(4), 1.0, inf) == pytest.approx((2 - 1 / 16) * 31)
    assert gradient_second_moment(RTMLMC(4), 1.0, 15.0) == gradient_second_moment(RTMLMC(4), 1.0, inf)
    assert gradient_second_moment(RTMLMC(4), 1.0, 14.0) < gradient_second_moment(RTMLMC(4), 1.0, inf)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 1.9, 2.0, 2.1, 8.0])
def test_chi_square_bound_is_attained_by_two_point_distributions(ratio: float) -> None:
    """The bound is the maximum over q of (b - 1)(1 - a), with density ratios b of loss B and a of loss 0."""
    q = np.linspace(1e-4, 1 - 1e-4, 200_001)
    soft = np.exp(ratio) / (q * np.exp(ratio) + 1 - q)  # b; a is b exp(-ratio)
    worst = np.max((soft - 1) * (1 - soft * np.exp(-ratio)))
    assert chi_square_bound(ENTROPIC, 0.3 * ratio, 0.3) == pytest.approx(worst, rel=1e-6)
    top = np.minimum(1 / q, 1 + (1 - q) * ratio)
    low = np.maximum(0, 1 - q * ratio)
    worst = np.max((top - 1) * (1 - low))
    assert chi_square_bound(QUADRATIC, 0.3 * ratio, 0.3) == pytest.approx(worst, rel=1e-4)
    assert chi_square_bound(cressie_read(2), ratio, 1.0) == chi_square_bound(QUADRATIC, ratio, 1.0)
    assert chi_square_bound(cressie_read(1), ratio, 1.0) == chi_square_bound(ENTROPIC, ratio, 1.0)
    for alpha in (0.25, 1.0):
        assert chi_square_bound(indicator(alpha), ratio, 1.0) == 1 / alpha - 1
