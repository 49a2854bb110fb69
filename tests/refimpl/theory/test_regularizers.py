"""The regularizers of Section 4 agree with closed forms and scipy's quadrature."""

import re
from collections.abc import Callable
from itertools import pairwise, product
from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, special

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from phiball.backends import rng
from phiball.refimpl.distributions import Ball, Gaussian
from phiball.refimpl.theory import r1, r2, r3, surrogate, surrogate_estimate
from tests.support.arrays import Arrays
from tests.support.divergences import anonymous, name_of, select

CONJUGATES: dict[str, tuple[Divergence, Callable[[Any], Any], float, float]] = {
    # Divergence, phi*, the kink of phi* and the recession constant.
    "entropic by functions": (anonymous(ENTROPIC), np.expm1, -inf, inf),
    "quadratic": (QUADRATIC, lambda s: np.maximum(s, 0) ** 2 / 2 + 0.5, 0.0, inf),
    "absolute": (ABSOLUTE, lambda s: np.maximum(s, -1), -1.0, 1.0),
    "hinge": (HINGE, lambda s: np.maximum(s, 0), 0.0, 1.0),
    "cvar": (indicator(0.3), lambda s: np.maximum(s, 0) / 0.3, 0.0, inf),
    "burg": (cressie_read(0), lambda s: -np.log1p(-s), -inf, 1.0),
    "hellinger": (cressie_read(0.5), lambda s: 2 * s / np.float64(2 - s), -inf, 2.0),
    "cubic": (cressie_read(3), lambda s: (np.maximum(1 + 2 * s, 0) ** 1.5 - 1) / 3, -0.5, inf),
}


def oracle(t: float, d: int, conj: Callable[[Any], Any], kink: float, recession: float) -> float:
    """min over mu of mu + E phi*(t x - mu), where x has a density proportional to (1 - x^2)^((d-1)/2)."""
    a = (d - 1) / 2
    mass = special.beta(a + 1, a + 1) * 2 ** (2 * a + 1)

    def dual(mu: float) -> float:
        cuts = [x for x in ((mu + kink) / t, -0.5, 0.0, 0.5, 0.9) if -1 < x < 1]
        f = lambda x: (1 - x * x) ** a * conj(t * x - mu)  # noqa: E731
        points = sorted([-1.0, *cuts, 1.0])
        parts = (integrate.quad(f, lo, hi, epsabs=1e-13, epsrel=1e-13)[0] for lo, hi in pairwise(points))
        return float(mu + sum(parts) / mass)

    low, high = max(-t - 2, t - recession), t + 2
    found = optimize.minimize_scalar(dual, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return min(float(found.fun), dual(low) if recession < inf else inf)


# scipy warns near the pole of phi*.
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CONJUGATES)
def test_surrogate_on_an_l2_ball_agrees_with_scipy(name: str) -> None:
    divergence, conj, kink, recession = CONJUGATES[name]
    for d, t in ((1, 0.4), (1, 40.0), (2, 3.0), (2, 40.0), (7, 0.4), (7, 3.0)):
        g = np.full((1, d), t / sqrt(d))
        value = float(surrogate(g, Ball(2, 1.0), 1.0, divergence)[0])
        # The tolerance is the accuracy of scipy's quadrature and search.
        assert value == pytest.approx(oracle(t, d, conj, kink, recession), rel=2e-9, abs=2e-9), (d, t)


def log_mgf(t: float, d: int) -> float:
    """log E exp(t x) in 40 digits."""
    import mpmath

    with mpmath.workdps(40):
        h, t = mpmath.mpf(d) / 2, mpmath.mpf(t)
        return float(mpmath.log(mpmath.gamma(h + 1) * (2 / t) ** h * mpmath.besseli(h, t)))


@pytest.mark.parametrize("d", [1, 3, 20, 784])
def test_quadrature_agrees_with_the_entropic_closed_form_in_high_dimension(d: int) -> None:
    """The entropic divergence is given by functions, so that the library uses quadrature."""
    by_functions = CONJUGATES["entropic by functions"][0]
    for t in (1e-4, 0.1, 1.0, 30.0, 300.0):
        value = float(surrogate(np.eye(1, d), Ball(2, t), 1.0, by_functions)[0])
        # phi* has a rounding error of order t, while the risk is t^2/(2 (d + 2)) for small t.
        assert value == pytest.approx(log_mgf(t, d), rel=1e-10, abs=1e-14 * t)


def test_peak_missed_by_the_quadrature_raises() -> None:
    by_functions = CONJUGATES["entropic by functions"][0]
    for d, t in ((784, 1e4), (10_000, 5e3)):
        with pytest.raises(ValueError, match=rf"my entropic divergence .* in {d} dimensions"):
            surrogate(np.array([1.0, 1e-9])[:, None] * np.eye(1, d), Ball(2, t), 1.0, by_functions)
        assert float(surrogate(np.eye(1, d), Ball(2, t), 1.0, ENTROPIC)[0]) < t


@pytest.mark.parametrize("d", [2, 784])
def test_surrogate_with_an_atom_at_the_maximum_agrees_with_closed_form(d: int) -> None:
    """The value is E max(t x, t - c), and in high dimension the mass above t - c is tiny."""
    for divergence, c in ((ABSOLUTE, 2.0), (HINGE, 1.0)):
        for t in (5.0, 300.0):
            e = 1 - c / t
            a = (d + 1) / 2
            above = special.betaincc(a, a, (1 + e) / 2)  # P(x > e)
            first = (1 - e * e) ** a / (d + 1) / (special.beta(a, a) * 2 ** (2 * a - 1))  # E[x; x > e]
            expected = t - c + t * (first - e * above)
            value = float(surrogate(np.eye(1, d), Ball(2, t), 1.0, divergence)[0])
            assert value == pytest.approx(expected, rel=1e-12)


def test_entropic_surrogate_agrees_with_closed_forms(arrays: Arrays) -> None:
    for norm, g, expected in [
        (inf, [1.0], log(np.sinh(1.0))),
        (2, [0.6, 0.8], log(2 * special.iv(1, 1.0))),
        (2, [0.6, 0.0, 0.8], log(3) - 1),
        (1, [2.0, 1.0], 0.391643385002),
        (1, [3.0, 2.0, 1.0], 0.642041073635),
        (inf, [1.0, 2.0], log(np.sinh(1.0)) + log(np.sinh(2.0) / 2)),
    ]:
        value = surrogate(arrays.asarray([g, g]), Ball(norm, 1.0), 1.0, ENTROPIC)
        assert value.shape == (2,)
        assert value.dtype == arrays.dtype
        # The numbers above have twelve digits.
        np.testing.assert_allclose(arrays.numpy(value), expected, rtol=max(2e-12, 8 * arrays.eps))


def test_surrogate_in_one_dimension_agrees_with_closed_forms(arrays: Arrays) -> None:
    a, C = np.array([0.0, 0.3, 0.5, 0.7, 2.0, 50.0]), 2.0
    with np.errstate(all="ignore"):
        expected = np.where(C * a <= 1, C * a * a / 6, a - 4 / 3 * np.sqrt(a / C) + 1 / (2 * C))
    for g, norm in ((a[:, None], 2), (a, 3)):  # data points of shape (1,) and ()
        value = surrogate(arrays.asarray(-g), Ball(norm, 1.0), 1 / C, QUADRATIC)
        np.testing.assert_allclose(arrays.numpy(value), expected, rtol=16 * arrays.eps, atol=arrays.eps)
    # On U[-1.5, 1.5], kinked divergences give E max(f, 1.5 - c) and the indicator CVaR.
    for d, exact in ((ABSOLUTE, 1.5 - 2 + 2 / 3), (HINGE, 1.5 - 1 + 1 / 6), (indicator(0.25), 1.5 * 0.75)):
        value = surrogate(arrays.asarray([[-3.0]]), Ball(1, 0.5), 1.0, d)
        np.testing.assert_allclose(arrays.numpy(value), exact, rtol=8 * arrays.eps)


def test_quadratic_equals_r3_on_a_small_ball(doubles: Arrays) -> None:
    g = doubles.asarray([[0.3, -0.2, 0.1], [0.0, 0.0, 0.0]])
    for norm, second in ((1, 1 / 10), (2, 1 / 5), (inf, 1 / 3), (1.5, None), (3, None)):
        for divergence in (QUADRATIC, cressie_read(2)):
            value = doubles.numpy(surrogate(g, Ball(norm, 0.5), 0.31, divergence))  # ||g||_1 rho <= 0.3
            if second is not None:
                np.testing.assert_allclose(value, [0.14 * 0.25 * second / 0.62, 0.0], rtol=1e-14)
            same = doubles.numpy(r3(g, Ball(norm, 0.5), 0.31, divergence))
            np.testing.assert_allclose(value, same, rtol=1e-14)


def test_data_points_may_be_matrices_with_one_eta_each(doubles: Arrays) -> None:
    values, etas, ball = np.random.default_rng(2).normal(size=(3, 2, 4)), [0.1, 1.0, 10.0], Ball(2, 0.5)
    g, eta = doubles.asarray(values), doubles.asarray(etas)
    for divergence in select(core=True):
        whole = doubles.numpy(surrogate(g, ball, eta, divergence))
        for k in range(3):
            one = surrogate(doubles.asarray(values[k].reshape(1, 8)), ball, etas[k], divergence)
            np.testing.assert_allclose(whole[k], doubles.numpy(one)[0], rtol=1e-14)
        if 0 < divergence.curvature1 < inf:
            expected = 0.25 * np.sum(values**2, axis=(1, 2)) / 10 / (2 * np.array(etas))
            np.testing.assert_allclose(doubles.numpy(r3(g, ball, eta, divergence)), expected, rtol=1e-14)


def test_zero_radius_or_gradient_gives_zero(doubles: Arrays) -> None:
    for divergence in select(core=True):
        for g, radius in (([[1.0, 2.0]], 0.0), ([[0.0, 0.0]], 1.0)):
            for value in (
                surrogate(doubles.asarray(g), Ball(2, radius), 0.3, divergence),
                r1(doubles.asarray(g), Ball(2, radius), 3.0, divergence),
                r2(doubles.asarray(g), Ball(2, radius)),
            ):
                np.testing.assert_array_equal(doubles.numpy(value), [0.0])


def test_r1_in_one_dimension_agrees_with_closed_forms() -> None:
    g, C, rho = np.array([[1.0]]), 1e4, 0.5
    for divergence, deficit in ((ENTROPIC, log(2 * C) / C), (QUADRATIC, 4 / 3 * sqrt(1 / C) - 1 / (2 * C))):
        assert 1 - r1(g, Ball(inf, rho), C, divergence).item() / rho == pytest.approx(deficit, rel=1e-9)


def test_r3_is_the_surrogate_on_a_small_ball_for_any_curvature() -> None:
    """The curvature phi''(1) is 3, and 1 for Burg's entropy."""
    triple = Divergence(
        "triple",
        phi=lambda x: np.where(x < 0, inf, 1.5 * (x - 1) ** 2),
        conj=lambda s: np.where(s > -3, s + s * s / 6, -1.5),
        dconj=lambda s: np.maximum(1 + s / 3, 0),
        d2conj=lambda s: np.where(s > -3, 1 / 3, 0.0),
    )
    g, ball = np.array([[1.0]]), Ball(2, 0.03)
    for divergence, digits in ((triple, 1e-9), (cressie_read(0), 4e-4)):
        ratio = surrogate(g, ball, 1.0, divergence) / r3(g, ball, 1.0, divergence)
        np.testing.assert_allclose(ratio, 1, atol=digits)


@pytest.mark.parametrize("d", [QUADRATIC, ABSOLUTE, HINGE, cressie_read(1.5), cressie_read(3)], ids=name_of)
def test_tiny_eta_gives_at_most_the_largest_loss_or_an_error(d: Divergence) -> None:
    for radius in (1e3, 1e30, 1e60, 1e140, 1e160, 1e200, 1e300):
        try:
            value = float(surrogate(np.ones((1, 1)), Ball(1, radius), 1.0, d)[0])
        except ValueError:
            value = inf
        if radius < 1e80 or value < inf:
            assert 0.5 * radius < value <= radius * (1 + 1e-9), radius
    with pytest.raises(ValueError, match="too narrow for quadrature: increase eta"):
        surrogate(np.ones((1, 1)), Ball(1, 1e140), 1.0, cressie_read(1.5))
    for norm in (1, 2):
        with pytest.raises(ValueError, match="eta overflows: increase eta"):
            surrogate(np.full((1, 1), 1e308), Ball(norm, 2.0), 1.0, d)


def test_estimate_is_the_worst_case_over_the_draws(arrays: Arrays) -> None:
    g = np.reshape([1.0, -2.0, 0.5, 0.3, 0.2, 0.4, 0.0, 1.0], (2, 2, 2))
    given = arrays.asarray(g)
    for divergence, distribution in product(select(core=True), (Ball(2, 0.5), Gaussian(0.5))):
        value = surrogate_estimate(given, distribution, 0.6, divergence, n_samples=50, rng=rng(3))
        draws = arrays.numpy(distribution.sample(0 * given, 50, rng=rng(3), event_ndim=2))
        exact = worst_case((draws.astype(float) * g[:, None]).sum(axis=(2, 3)), 0.6, divergence).value
        assert value.dtype == arrays.dtype
        np.testing.assert_allclose(arrays.numpy(value), exact, atol=64 * arrays.eps)


G, BALL, BOX = np.array([[1.0, 2.0]]), Ball(2, 1.0), Ball(2, 1.0, (0, 1))


def value_of(g: Any = G, ball: Any = BALL, eta: Any = 1.0, divergence: Any = HINGE) -> Any:
    return surrogate(g, ball, eta, divergence)


def estimate(**change: Any) -> Any:
    good: dict[str, Any] = {"g": G, "reference": BALL, "eta": 1.0, "divergence": HINGE, "n_samples": 8}
    return surrogate_estimate(**good | {"rng": rng(0)} | change)


def test_invalid_arguments_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: value_of(ball=Ball(inf, 1.0)), ValueError, "no exact value is known; expected norm 2"),
        (lambda: value_of(G, Ball(3, 1.0), 1.0, ENTROPIC), ValueError, "entropic, ball.norm is 3"),
        (lambda: value_of(G, Ball(1, 1.0), 1.0, QUADRATIC), ValueError, "rho ||g||_*/eta reaches 2 > 1"),
        (lambda: value_of(ball=Gaussian(1.0)), TypeError, "ball is Gaussian(std=1.0); expected a Ball"),
        (lambda: value_of(ball=BOX), ValueError, "expected no clip"),
        (lambda: value_of(eta=0.0), ValueError, "eta is 0.0; expected a positive"),
        (lambda: value_of(eta=np.ones(3)), ValueError, "eta has shape (3,); expected a number"),
        (lambda: value_of(divergence="kl2"), ValueError, "divergence is 'kl2'; expected one of"),
        (lambda: value_of([[1.0]]), TypeError, "g is [[1.0]], of type list"),
        (lambda: value_of(np.array(1.0)), ValueError, "g has shape (); expected (N,)"),
        (lambda: value_of(np.ones((0, 2))), ValueError, "g has shape (0, 2)"),
        (lambda: value_of(np.array([[nan]])), ValueError, "g contains NaN"),
        (lambda: value_of(np.array([[1]])), TypeError, "g has dtype int64"),
        (lambda: r1(G, BALL, 0.0, HINGE), ValueError, "C is 0.0; expected a positive number"),
        (lambda: r2(G, 1.0), TypeError, "ball is 1.0; expected a Ball"),
        (lambda: r3(G, BALL, 1.0, HINGE), ValueError, "divergence is hinge, with phi''(1) = inf"),
        (lambda: r3(G, BALL, 1.0, indicator(0.5)), ValueError, "with phi''(1) = 0"),
        (lambda: estimate(n_samples=0), ValueError, "n_samples is 0; expected"),
        (lambda: estimate(rng=1.5), TypeError, "rng is 1.5; expected a whole number"),
        (lambda: estimate(reference=BOX), ValueError, "expected no clip"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            call()
