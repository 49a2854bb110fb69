"""The regularisers of Section 4 against closed forms, quadrature of scipy and the paper's limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, special

from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    cressie_read,
    indicator,
    r1,
    r2,
    r3,
    surrogate,
)
from tests.support.arrays import Arrays
from tests.support.divergences import anonymous, name_of, on_each
from tests.support.laws import ANY_NORM

# --- The oracle: min over mu by a search, E by adaptive quadrature, conjugates written out --------

CONJUGATES: dict[str, tuple[Divergence, Callable[[Any], Any], float, float]] = {
    # name: (divergence, phi*, where phi* has its kink, recession)
    "entropic twin": (
        anonymous(ENTROPIC),
        lambda s: np.expm1(s),
        -inf,
        inf,
    ),
    "quadratic": (QUADRATIC, lambda s: np.maximum(s, 0) ** 2 / 2 + 0.5, 0.0, inf),
    "absolute": (ABSOLUTE, lambda s: np.maximum(s, -1), -1.0, 1.0),
    "hinge": (HINGE, lambda s: np.maximum(s, 0), 0.0, 1.0),
    "cvar": (indicator(0.3), lambda s: np.maximum(s, 0) / 0.3, 0.0, inf),
    "burg": (cressie_read(0), lambda s: -np.log1p(-s), -inf, 1.0),
    "hellinger": (cressie_read(0.5), lambda s: 2 * s / np.float64(2 - s), -inf, 2.0),
    "cubic": (cressie_read(3), lambda s: (np.maximum(1 + 2 * s, 0) ** 1.5 - 1) / 3, -0.5, inf),
}


def oracle(t: float, d: int, conj: Callable[[Any], Any], kink: float, recession: float) -> float:
    """min over mu of mu + E phi*(t x - mu), x of density (1 - x^2)^((d-1)/2): the risk for eta = 1."""
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


# scipy warns at the pole of phi*, to which the search for mu comes close.
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CONJUGATES)
@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("t", [0.4, 3.0, 40.0])
def test_every_divergence_on_an_l2_ball(name: str, d: int, t: float) -> None:
    divergence, conj, kink, recession = CONJUGATES[name]
    g = np.full((1, d), t / sqrt(d))
    value = float(surrogate(g, Ball(2, 1.0), 1.0, divergence)[0])
    # The oracle's own quadrature and search leave about this much.
    assert value == pytest.approx(oracle(t, d, conj, kink, recession), rel=2e-9, abs=2e-9)


def log_mgf(t: float, d: int) -> float:
    """log E exp(t x) in 40 digits."""
    import mpmath

    with mpmath.workdps(40):
        h, t = mpmath.mpf(d) / 2, mpmath.mpf(t)
        return float(mpmath.log(mpmath.gamma(h + 1) * (2 / t) ** h * mpmath.besseli(h, t)))


@pytest.mark.parametrize("d", [1, 3, 20, 784])
def test_the_quadrature_in_high_dimension_and_for_extreme_eta(d: int) -> None:
    """The entropic risk, which is known, of a twin that the closed form does not recognise."""
    twin = CONJUGATES["entropic twin"][0]
    for t in (1e-4, 0.1, 1.0, 30.0, 300.0):
        value = float(surrogate(np.eye(1, d), Ball(2, t), 1.0, twin)[0])
        # phi* of size t is rounded, and the risk is t^2/(2 (d + 2)) where t is small.
        assert value == pytest.approx(log_mgf(t, d), rel=1e-10, abs=1e-14 * t)


def test_a_peak_that_the_quadrature_would_miss_raises() -> None:
    twin = CONJUGATES["entropic twin"][0]
    for d, t in ((784, 1e4), (10_000, 5e3)):
        with pytest.raises(
            ValueError, match=rf"divergence is my entropic and .* in {d} dimensions, a worst case too"
        ):
            surrogate(np.eye(1, d), Ball(2, t), 1.0, twin)
        assert float(surrogate(np.eye(1, d), Ball(2, t), 1.0, ENTROPIC)[0]) < t


@pytest.mark.parametrize("d", [2, 784])
def test_the_atom_at_the_top_in_high_dimension(d: int) -> None:
    """E max(t x, t - c): the mass above t - c is exponentially small, and the supremum is still seen."""
    for divergence, c in ((ABSOLUTE, 2.0), (HINGE, 1.0)):
        for t in (5.0, 300.0):
            e = 1 - c / t
            a = (d + 1) / 2
            above = special.betaincc(a, a, (1 + e) / 2)  # P(x > e)
            first = (1 - e * e) ** a / (d + 1) / (special.beta(a, a) * 2 ** (2 * a - 1))  # E[x; x > e]
            expected = t - c + t * (first - e * above)
            value = float(surrogate(np.eye(1, d), Ball(2, t), 1.0, divergence)[0])
            assert value == pytest.approx(expected, rel=1e-12)


# --- The table of closed forms --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "g", "expected"),
    [
        (inf, [1.0], log(np.sinh(1.0))),
        (2, [0.6, 0.8], log(2 * special.iv(1, 1.0))),
        (2, [0.6, 0.0, 0.8], log(3) - 1),
        (1, [2.0, 1.0], 0.391643385002),
        (1, [3.0, 2.0, 1.0], 0.642041073635),
        (inf, [1.0, 2.0], log(np.sinh(1.0)) + log(np.sinh(2.0) / 2)),
    ],
)
def test_entropic(norm: float, g: list[float], expected: float, arrays: Arrays) -> None:
    value = surrogate(arrays.asarray([g, g]), Ball(norm, 1.0), 1.0, ENTROPIC)
    assert value.shape == (2,)
    assert value.dtype == arrays.dtype
    # Twelve digits are tabulated; s and the result are rounded to the dtype.
    np.testing.assert_allclose(arrays.numpy(value), expected, rtol=max(2e-12, 8 * arrays.eps))


@pytest.mark.parametrize("norm", [2, 3])
def test_quadratic_in_one_dimension(norm: float, arrays: Arrays) -> None:
    """U[-a, a]: C a^2/6 for C a <= 1, else a - (4/3) sqrt(a/C) + 1/(2 C)."""
    a, C = np.array([0.0, 0.3, 0.5, 0.7, 2.0, 50.0]), 2.0
    with np.errstate(all="ignore"):
        expected = np.where(C * a <= 1, C * a * a / 6, a - 4 / 3 * np.sqrt(a / C) + 1 / (2 * C))
    for g in (a[:, None], a):  # vectors of length one, and numbers
        value = surrogate(arrays.asarray(-g), Ball(norm, 1.0), 1 / C, QUADRATIC)
        np.testing.assert_allclose(arrays.numpy(value), expected, rtol=16 * arrays.eps, atol=arrays.eps)


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [(ABSOLUTE, 1.5 - 2 + 2 / 3), (HINGE, 1.5 - 1 + 1 / 6), (indicator(0.25), 1.5 * 0.75)],
    ids=name_of,
)
def test_kinked_in_one_dimension(divergence: Divergence, expected: float, arrays: Arrays) -> None:
    """f uniform on [-1.5, 1.5]: E max(f, 1.5 - c), and AV@R."""
    value = surrogate(arrays.asarray([[-3.0]]), Ball(1, 0.5), 1.0, divergence)
    np.testing.assert_allclose(arrays.numpy(value), expected, rtol=8 * arrays.eps)


@pytest.mark.parametrize("norm", ANY_NORM)
def test_h7_quadratic_is_r3_while_the_ball_is_small(norm: float, arrays: Arrays) -> None:
    g = arrays.asarray([[0.3, -0.2, 0.1], [0.0, 0.0, 0.0]])
    for divergence in (QUADRATIC, cressie_read(2)):
        value = arrays.numpy(surrogate(g, Ball(norm, 0.5), 0.31, divergence))  # ||g||_1 rho = 0.3 at most
        second = {1: 1 / 10, 2: 1 / 5, inf: 1 / 3}.get(norm)
        if second is not None:
            np.testing.assert_allclose(value, [0.14 * 0.25 * second / 0.62, 0.0], rtol=16 * arrays.eps)
        np.testing.assert_allclose(
            value, arrays.numpy(r3(g, Ball(norm, 0.5), 0.31, divergence)), rtol=16 * arrays.eps
        )


def test_h10_between_zero_and_r2(doubles: Arrays) -> None:
    g = doubles.asarray(np.random.default_rng(0).normal(size=(4, 5)))
    ball, divergences = Ball(2, 0.4), [d for d, *_ in CONJUGATES.values()]
    for divergence in [ENTROPIC, *divergences[1:]]:
        for eta in (1e-3, 0.1, 10.0, 1e4):
            value, top = doubles.numpy(surrogate(g, ball, eta, divergence)), doubles.numpy(r2(g, ball))
            assert np.all(value >= -1e-14 * top)
            assert np.all(value <= top * (1 + 1e-14))


# --- Shapes, eta, arguments -----------------------------------------------------------------------


@on_each("divergence", core=True)
def test_batches_of_images_and_eta_for_each(divergence: Divergence, arrays: Arrays) -> None:
    values = np.random.default_rng(2).normal(size=(3, 2, 4))
    g, eta, ball = arrays.asarray(values), arrays.asarray([0.1, 1.0, 10.0]), Ball(2, 0.5)
    whole = arrays.numpy(surrogate(g, ball, eta, divergence))
    for k in range(3):
        one = surrogate(arrays.asarray(values[k].reshape(1, 8)), ball, [0.1, 1.0, 10.0][k], divergence)
        np.testing.assert_allclose(whole[k], arrays.numpy(one)[0], rtol=16 * arrays.eps)
    if 0 < divergence.curvature1 < inf:
        expected = 0.25 * np.sum(values**2, axis=(1, 2)) / 10 / (2 * np.array([0.1, 1.0, 10.0]))
        np.testing.assert_allclose(arrays.numpy(r3(g, ball, eta, divergence)), expected, rtol=16 * arrays.eps)
    np.testing.assert_array_equal(arrays.numpy(g), values.astype(arrays.numpy(g).dtype))


def test_r2_is_the_dual_norm(arrays: Arrays) -> None:
    g = arrays.asarray([[[3.0], [-4.0]]])
    for norm, expected in ((1, 2.0), (2, 2.5), (inf, 3.5)):
        np.testing.assert_allclose(arrays.numpy(r2(g, Ball(norm, 0.5))), [expected], rtol=4 * arrays.eps)


@on_each("divergence", core=True)
def test_no_perturbation_costs_nothing(divergence: Divergence, arrays: Arrays) -> None:
    for g, radius in (([[1.0, 2.0]], 0.0), ([[0.0, 0.0]], 1.0)):
        for value in (
            surrogate(arrays.asarray(g), Ball(2, radius), 0.3, divergence),
            r1(arrays.asarray(g), Ball(2, radius), 3.0, divergence),
            r2(arrays.asarray(g), Ball(2, radius)),
        ):
            np.testing.assert_array_equal(arrays.numpy(value), [0.0])
