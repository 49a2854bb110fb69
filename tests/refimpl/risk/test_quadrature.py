"""Quadrature rules on balls and the risks computed by them agree with closed forms."""

from math import exp, gamma, inf, log

import numpy as np
import pytest

from phiball.backends import Array, array_namespace
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, indicator
from phiball.refimpl.risk import Quadrature, quadrature_rule, robust_risk
from tests.support.arrays import Arrays
from tests.support.distributions import ANY_NORM, NORMS
from tests.support.risk_distributions import first
from tests.support.tilting_distributions import linear_value


def test_nodes_lie_in_the_ball_and_weights_are_probabilities(arrays: Arrays) -> None:
    """The coarse rule uses half of the nodes on a line and a quarter in the plane."""
    for z, norm in (
        (0.25, 1),
        ([3.0], 3),
        ([3.0, -1.0], 1.5),
        ([[3.0], [-1.0]], inf),
        ([[3.0, -1.0], [5.0, 2.0]], 2),
    ):
        center = arrays.asarray(z)
        event_ndim = min(center.ndim, 1)
        ball = Ball(norm, 0.5)
        for panels in (1, 2):
            rule = quadrature_rule(ball, center, panels=panels, event_ndim=event_ndim)
            line = center.ndim == 0 or center.shape[-1] == 1
            K = 16 * panels + 1 if line else 2048 * panels**2
            batch = center.shape[: center.ndim - event_ndim]
            assert rule.points.shape == (*batch, K, *center.shape[len(batch) :])
            fine, coarse = arrays.numpy(rule.weights), arrays.numpy(rule.coarse)
            assert fine.shape == coarse.shape == (K,)
            assert np.all(fine > 0)
            assert np.all(coarse >= 0)
            assert np.sum(coarse > 0) == (8 * panels + 1 if line else 512 * panels**2)
            # Each weight has one rounding error.
            assert np.sum(fine, dtype=np.float64) == pytest.approx(1, abs=8 * arrays.eps)
            assert np.sum(coarse, dtype=np.float64) == pytest.approx(1, abs=8 * arrays.eps)
            around = arrays.xp.expand_dims(center, axis=len(batch))
            assert arrays.xp.all(ball.contains(rule.points, around, event_ndim=event_ndim))
            assert rule.points.dtype == rule.weights.dtype == rule.coarse.dtype == arrays.dtype


def test_rule_is_exact_for_polynomials_on_a_line(doubles: Arrays) -> None:
    """The fine rule is exact up to degree 17, the coarse rule up to degree 9."""
    for panels in (1, 3):
        rule = quadrature_rule(Ball(2, 1.0), doubles.asarray([0.0]), panels=panels)
        x = doubles.numpy(rule.points)[:, 0]
        for k in range(18):
            exact = 0 if k % 2 else 1 / (k + 1)
            assert np.sum(doubles.numpy(rule.weights) * x**k) == pytest.approx(exact, abs=4 * doubles.eps)
            if k < 10:
                assert np.sum(doubles.numpy(rule.coarse) * x**k) == pytest.approx(exact, abs=4 * doubles.eps)


def moment(p: float) -> float:
    """E b_1^2 on the unit ball of norm p in the plane."""
    if p == inf:
        return 1 / 3
    return gamma(3 / p) * gamma(2 / p + 1) / (gamma(1 / p) * gamma(4 / p + 1))


def test_rule_in_the_plane_has_the_exact_second_moments(doubles: Arrays) -> None:
    for norm in ANY_NORM:
        rule = quadrature_rule(Ball(norm, 2.0), doubles.asarray([1.0, -3.0]), panels=2)
        b = doubles.numpy(rule.points) - np.array([1.0, -3.0])
        w = doubles.numpy(rule.weights)
        # The boundary for norm 1.5 has infinite curvature on the axes, which limits the order.
        tol = 1e-8 if norm == 1.5 else 2e-14
        assert w @ b[:, 0] == pytest.approx(0, abs=tol)
        assert w @ (b[:, 0] * b[:, 1]) == pytest.approx(0, abs=4 * tol)
        for j in range(2):
            assert w @ b[:, j] ** 2 == pytest.approx(4 * moment(norm), abs=4 * tol)


def test_entropic_risk_of_a_linear_loss_in_the_plane_is_exact(arrays: Arrays) -> None:
    g = (2.0, 1.0)
    vector, z = arrays.asarray(g), arrays.asarray([[0.0, 0.0], [1.0, 1.0]])

    def loss(x: Array, i: Array) -> Array:
        return array_namespace(x).sum(x * vector, axis=-1)

    for norm in NORMS:
        out = robust_risk(loss, z, Ball(norm, 1.0), 1.0, ENTROPIC, method=Quadrature(panels=1))
        exact = float(linear_value(Ball(norm, 1.0), np.asarray(g), 1.0))
        # Panels of 45 degrees give twelve digits.
        tol = 1e-12 + 8 * arrays.eps
        assert arrays.numpy(out.values) == pytest.approx(np.array([exact, exact + 3]), abs=tol)
        assert float(out.value) == pytest.approx(exact + 1.5, abs=tol)
        # stderr is the error of the coarse rule, which is larger.
        assert abs(float(out.value) - exact - 1.5) <= float(out.stderr) + 8 * arrays.eps


UNIFORM: list[tuple[Divergence, float, float, float]] = [
    # Divergence, eta, exact value on U[0, 1], and the error of 16 panels if the integrand has a kink.
    (ENTROPIC, 1.0, log(exp(1) - 1), 0),
    (ENTROPIC, 0.2, 0.2 * log(0.2 * (exp(5) - 1)), 0),
    (QUADRATIC, 1.0, 13 / 24, 0),
    (QUADRATIC, 0.5, 7 / 12, 0),
    (QUADRATIC, 0.125, 35 / 48, 1e-5),
    (ABSOLUTE, 0.2, 0.68, 1e-4),
    (ABSOLUTE, 0.6, 0.5, 0),
    (HINGE, 0.2, 0.82, 1e-4),
    (indicator(0.3), 1.0, 0.85, 1e-4),
    (indicator(1.0), 1.0, 0.5, 0),
]


def test_risk_of_uniform_losses_agrees_with_closed_forms(arrays: Arrays) -> None:
    for d, eta, exact, kink in UNIFORM:
        for z in (arrays.asarray([[0.5]]), arrays.asarray([0.5])):
            out = robust_risk(
                lambda x, i: array_namespace(x).reshape(x, (-1,)),
                z,
                Ball(2, 0.5),
                eta,
                d,
                method=Quadrature(16),
            )
            tol = 1e-12 + 10 * arrays.eps
            assert float(out.value) == pytest.approx(exact, abs=tol + kink), d.name
            # At a kink, both rules may have similar errors, and stderr gives the order of magnitude.
            assert abs(float(out.value) - exact) <= (4 if kink else 1) * float(out.stderr) + tol
            assert float(out.stderr) <= tol + 20 * kink
            assert out.value.dtype == out.stderr.dtype == out.values.dtype == arrays.dtype


def test_eta_and_index_match_each_data_point_for_every_chunk(doubles: Arrays) -> None:
    z = doubles.asarray([[0.5], [1.5], [2.5]])
    shift = doubles.asarray([0.0, 10.0, 20.0])
    sizes: list[int] = []

    def loss(x: Array, i: Array) -> Array:
        sizes.append(x.shape[0])
        return x[:, 0] + array_namespace(x).take(shift, i)

    eta = doubles.asarray([1.0, 0.2, 1.0])
    a, b = log(exp(1) - 1), 0.2 * log(0.2 * (exp(5) - 1))  # for eta 1 and 0.2
    for chunk in (1, 7, 150, 10_000):
        sizes.clear()
        out = robust_risk(loss, z, Ball(2, 0.5), eta, ENTROPIC, method="quadrature", chunk=chunk)
        assert max(sizes) <= chunk
        assert doubles.numpy(out.values) == pytest.approx(
            np.array([a, 11 + b, 22 + a]), abs=1e-11 + 100 * doubles.eps
        )


def test_clip_moves_nodes_to_the_boundary_of_the_box() -> None:
    """E min(x, 1) = 3/4 for x uniform on [0, 2]."""
    box = Ball(2, 1.0, clip=(0.0, 1.0))
    out = robust_risk(first, np.array([[1.0]]), box, 1.0, indicator(1.0), method=Quadrature(panels=2))
    assert float(out.value) == pytest.approx(0.75, abs=1e-15)


def test_centres_that_leave_the_box_or_overflow_raise() -> None:
    for z, words in ((2.0, "x is outside the box"), (np.nan, "x contains nan"), (np.inf, "x contains inf")):
        with pytest.raises(ValueError, match=words):
            quadrature_rule(Ball(1, 0.5, clip=(0, 1)), np.array([z]))
    with pytest.raises(ValueError, match=r"expected points within .*float32"):
        quadrature_rule(Ball(1, 1e200), np.float32([0.0]))
