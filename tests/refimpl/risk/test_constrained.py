"""The hard-constrained risk, against a convex solver, closed forms and its own certificate."""

from __future__ import annotations

from functools import cache
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phiball.backends import Array, array_namespace, rng, use
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    constrained_risk,
    cressie_read,
    worst_case,
)
from tests.support.arrays import Arrays
from tests.support.divergences import name_of, on_each, select
from tests.support.risk_laws import Z, first, fixed

RADII = (0.05, 1.0)
LOSSES = np.array(
    [[0.0, 1.0, 2.0, 3.5, 1.0, 0.5], [5.0, 5.5, 5.25, 5.0, 5.125, 5.75], [-1.0, 1.0, 4.0, 0.0, 0.0, 2.0]]
)


@cache
def solved(family: str, radius: float, per_point: bool) -> float:
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
        constraints += [cost(x[k]) <= radius for k in range(N)]
    else:
        constraints.append(sum(cost(x[k]) for k in range(N)) / N <= radius)
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(cvxpy.multiply(x, LOSSES)) / (n * N)), constraints)
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize("per_point", [False, True])
@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("d", [d for d in select(core=True) if d.family != "cressie_read"], ids=name_of)
def test_against_a_convex_solver(d: Divergence, radius: float, per_point: bool, arrays: Arrays) -> None:
    z, law = fixed(LOSSES, arrays)
    out = constrained_risk(first, z, law, d, radius=radius, samples=6, rng=rng(0), per_point=per_point)
    rounding = 100 * arrays.eps * 10
    assert float(out.value) == pytest.approx(solved(str(d.family), radius, per_point), abs=1e-5 + rounding)
    assert -rounding <= float(out.gap) <= rounding
    assert out.value.dtype == out.eta.dtype == out.gap.dtype == out.stderr.dtype == arrays.dtype
    assert out.eta.shape == (3,)


@on_each(usual=True)
def test_the_value_is_that_of_the_dual_at_eta(d: Divergence, doubles: Arrays) -> None:
    z, law = fixed(LOSSES, doubles)
    for radius, per_point in ((0.0, True), (0.05, False), (50.0, False)):
        out = constrained_risk(first, z, law, d, radius=radius, samples=6, rng=rng(0), per_point=per_point)
        eta = doubles.numpy(out.eta)
        assert np.all(eta > 0)
        if not per_point:
            assert len(set(eta.tolist())) == 1
        dual = eta * radius + doubles.numpy(worst_case(doubles.asarray(LOSSES), out.eta, d).value)
        assert float(out.value) == pytest.approx(dual.mean(), abs=1e-13)
        assert -1e-13 <= float(out.gap) <= 2e-13


@on_each(usual=True, smooth=True)
def test_no_other_eta_is_better(d: Divergence, doubles: Arrays) -> None:
    z, law = fixed(LOSSES, doubles)
    f = doubles.asarray(LOSSES)
    radius = 0.1
    out = constrained_risk(first, z, law, d, radius=radius, samples=6, rng=rng(0))
    best = float(out.eta[0])
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        other = factor * best * radius + float(doubles.xp.mean(worst_case(f, factor * best, d).value))
        assert other > float(out.value)


def test_a_small_radius_is_a_penalty_on_the_standard_deviation(arrays: Arrays) -> None:
    """Quadratic, with no ratio at zero: mean + sqrt(2 radius Var f), eta = sqrt(Var f/(2 radius))."""
    f = np.random.default_rng(0).uniform(size=(1, 64))
    z, law = fixed(f, arrays)
    radius = 0.01
    out = constrained_risk(first, z, law, QUADRATIC, radius=radius, samples=64, rng=rng(0))
    assert float(out.value) == pytest.approx(f.mean() + sqrt(2 * radius * f.var()), rel=20 * arrays.eps)
    # The value is flat in eta: what is rounding in one is its square root in the other.
    eta = sqrt(f.var() / (2 * radius))
    assert float(out.eta[0]) == pytest.approx(eta, rel=20 * sqrt(arrays.eps))
    influence = (f - f.mean()) + (f - f.mean()) ** 2 / (2 * eta)
    assert float(out.stderr) == pytest.approx(influence.std(ddof=1) / 8, rel=20 * sqrt(arrays.eps))


def test_the_certificate_at_radius_zero(doubles: Arrays) -> None:
    """phi = (x - 1)^4/4 is so flat that a huge eta does not reach the mean, and the gap says so."""

    def cube_root(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.sign(s) * xp.abs(s) ** (1 / 3)

    def conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where(s > -1, s + 0.75 * xp.abs(s) ** (4 / 3), xp.full_like(s, -0.25))

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where(s > -1, 1 + cube_root(s), xp.zeros_like(s))

    def d2conj(s: Array) -> Array:
        xp = array_namespace(s)
        slope = xp.where(s == 0, xp.ones_like(s), xp.abs(s)) ** (-2 / 3) / 3
        return xp.where(s > -1, slope, xp.zeros_like(s))

    def phi(x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(x < 0, xp.full_like(x, inf), (x - 1) ** 4 / 4)

    quartic = Divergence("quartic", phi, conj, dconj, d2conj, -1.0, 0.0, inf, 0.0)
    z, law = fixed(LOSSES, doubles)
    out = constrained_risk(first, z, law, quartic, radius=0.0, samples=6, rng=rng(0))
    assert float(out.value) - float(out.gap) <= LOSSES.mean() + 1e-14
    assert 1e-9 < float(out.gap) < 1e-3


@pytest.mark.parametrize(
    ("d", "per_point"),
    [(ENTROPIC, False), (QUADRATIC, True), (ABSOLUTE, True), (HINGE, False), (cressie_read(0), False)],
    ids=name_of,
)
def test_the_limits(d: Divergence, per_point: bool, arrays: Arrays) -> None:
    z, law = fixed(LOSSES, arrays)

    def risk(radius: float) -> float:
        out = constrained_risk(first, z, law, d, radius=radius, samples=6, rng=rng(0), per_point=per_point)
        return float(out.value)

    values = [risk(radius) for radius in (0.0, 0.1, 1.0, 1e4)]
    assert values[0] == pytest.approx(LOSSES.mean(), rel=50 * arrays.eps)
    assert np.all(np.diff(values) > 0)
    assert values[-1] == pytest.approx(LOSSES.max(axis=1).mean(), rel=50 * arrays.eps)


def test_constant_losses(arrays: Arrays) -> None:
    z, law = fixed(np.full((2, 5), 3.0), arrays)
    for d in select(core=True):
        for radius in (0.0, 10.0):
            out = constrained_risk(first, z, law, d, radius=radius, samples=5, rng=rng(0))
            assert float(out.value) == pytest.approx(3.0, rel=10 * arrays.eps)
            assert abs(float(out.gap)) <= 40 * arrays.eps
            assert float(out.stderr) <= 40 * arrays.eps


def test_the_two_constraints(doubles: Arrays) -> None:
    """One budget for all is worth at least as much as the same for each, and as much for one data point."""
    z, law = fixed(LOSSES, doubles)
    for d in (ENTROPIC, ABSOLUTE):
        joint = constrained_risk(first, z, law, d, radius=0.1, samples=6, rng=rng(0))
        each = constrained_risk(first, z, law, d, radius=0.1, samples=6, rng=rng(0), per_point=True)
        assert float(joint.value) > float(each.value) + 1e-3
        one = [
            constrained_risk(
                first, z[:1, ...], law, d, radius=0.1, samples=6, rng=rng(0), per_point=per_point
            )
            for per_point in (False, True)
        ]
        assert float(one[0].value) == pytest.approx(float(one[1].value), abs=1e-14)


@pytest.mark.slow
def test_the_standard_error_covers() -> None:
    """Uniform losses on [-1, 1], quadratic: sqrt(2 radius/3). Standardised errors at level 1e-5.

    The bias, of order 1/(samples), is below a tenth of the standard error here.
    """
    source, errors = rng(3), []
    with use("numba"):
        for _ in range(60):
            out = constrained_risk(
                first, np.zeros((1, 1)), Ball(2, 1.0), QUADRATIC, radius=0.05, samples=1000, rng=source
            )
            errors.append((float(out.value) - sqrt(0.1 / 3)) / float(out.stderr))
    assert 1e-5 < stats.chi2(60).cdf(np.sum(np.square(errors))) < 1 - 1e-5
    assert abs(np.mean(errors)) < Z / sqrt(60) + 0.1


def test_the_chunk_changes_nothing(arrays: Arrays) -> None:
    z = arrays.asarray(np.linspace(-1, 1, 6).reshape(3, 2))
    sizes: list[int] = []

    def loss(x: Array, i: Array) -> Array:
        sizes.append(x.shape[0])
        return x[:, 0] * x[:, 1]

    values = []
    for chunk in (50, 5000):
        sizes.clear()
        out = constrained_risk(
            loss, z, Ball(2, 0.7), ENTROPIC, radius=0.1, samples=400, rng=rng(1), chunk=chunk
        )
        assert max(sizes) <= chunk
        values.append(float(out.value))
    assert values[0] == pytest.approx(values[1], abs=20 * arrays.eps)


def test_bad_arguments(doubles: Arrays) -> None:
    z = doubles.asarray([[0.0, 1.0], [2.0, 3.0]])
    good: dict[str, Any] = {
        "loss": first,
        "z": z,
        "ball": Ball(2, 1.0),
        "divergence": ENTROPIC,
        "radius": 0.1,
        "samples": 4,
        "rng": rng(0),
    }
    constrained_risk(**good)
    for change, error, message in [
        ({"loss": 3}, TypeError, "loss is 3"),
        ({"loss": lambda x, i: x[:, 0] * inf}, ValueError, r"loss\(x, i\) contains"),
        ({"z": z[:0, ...]}, ValueError, "z has shape"),
        ({"ball": None}, TypeError, "ball is None"),
        ({"divergence": 2}, TypeError, "divergence is 2"),
        ({"radius": -0.1}, ValueError, "radius is -0.1; expected a finite number that is not negative"),
        ({"radius": inf}, ValueError, "radius is inf"),
        ({"radius": "1"}, TypeError, "radius is '1'; expected a number"),
        ({"radius": True}, TypeError, "radius is True"),
        ({"samples": 1}, ValueError, "samples is 1"),
        ({"rng": 1}, TypeError, "rng is 1"),
        ({"chunk": 0}, ValueError, "chunk is 0"),
    ]:
        with pytest.raises(error, match=message):
            constrained_risk(**{**good, **change})
