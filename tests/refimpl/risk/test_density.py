"""`worst_case_density` and `worst_case_sample` agree with closed forms."""

from dataclasses import dataclass
from math import exp, inf, pi, sqrt
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, cressie_read, indicator
from phiball.backends import Array, array_namespace, device, rng
from phiball.refimpl.risk import worst_case_density, worst_case_sample
from phiball.refimpl.risk.density import Density
from tests.support.arrays import Arrays
from tests.support.risk_distributions import Counted, first

LEVEL = 1e-4  # significance level of each statistical test
N = 1000


@dataclass(frozen=True)
class Midpoints(Ball):
    """An interval whose sample is n midpoints, so that integrals have a fixed error of order 1/n^2."""

    def sample(self, x: Array, n_samples: int, **_: Any) -> Array:
        xp = array_namespace(x)
        t = (xp.arange(n_samples, dtype=x.dtype, device=device(x)) + 0.5) / n_samples
        return x[:, None, :] + self.radius * (2 * t[None, :, None] - 1)


def density(
    arrays: Arrays, d: Divergence, eta: float, at: Any, loss: Any = first, z: Any = (0.5,), **settings: Any
) -> Density:
    """The density at the points `at` of the line, estimated from the N midpoints around each z."""
    z, at = (arrays.asarray(np.asarray(x, dtype=float)[:, None]) for x in (z, at))
    return worst_case_density(loss, z, Midpoints(2, 0.5), eta, d, at=at, n_samples=N, rng=rng(0), **settings)


AT = np.array([-0.2, 0.0, 0.05, 0.31, 0.5, 0.61, 0.77, 0.97, 1.0, 1.2])


def inside(x: Any) -> Any:
    return (x >= 0) & (x <= 1)


def cressie_read_ratio(k: float, eta: float) -> Any:
    """The ratio phi*'((x - mu)/eta), where mu makes its mean on U[0, 1] equal to 1."""

    def ratio(x: Any, mu: Any) -> Any:
        return (1 + (k - 1) * (x - mu) / eta) ** (mpmath.mpf(1) / (k - 1))

    mu = mpmath.findroot(lambda m: mpmath.quad(lambda x: ratio(x, m), [0, 1]) - 1, (0.52, 0.54))
    return lambda x: np.array([float(ratio(v, mu)) if 0 <= v <= 1 else 0.0 for v in x])


# On U[0, 1]: divergence, eta, density, mass of the atom at 1.
UNIFORM: list[tuple[Divergence, float, Any, float]] = [
    (ENTROPIC, 0.2, lambda x: np.exp(x / 0.2) / (0.2 * (exp(5) - 1)), 0.0),
    (QUADRATIC, 0.125, lambda x: np.maximum(x - 0.5, 0) / 0.125, 0.0),  # mu = 1 - sqrt(2 eta)
    (QUADRATIC, 1.0, lambda x: x + 0.5, 0.0),
    (indicator(0.3), 1.0, lambda x: (x > 0.7) / 0.3, 0.0),
    (indicator(1.0), 1.0, lambda x: 1.0 + 0 * x, 0.0),
    (ABSOLUTE, 0.2, lambda x: 1.0 * (x > 0.6), 0.6),
    (ABSOLUTE, 0.7, lambda x: 1.0 + 0 * x, 0.0),
    (HINGE, 0.2, lambda x: 1.0 * (x > 0.8), 0.8),
    (HINGE, 1.5, lambda x: 1.0 + 0 * x, 0.0),
    (cressie_read(0.5), 1.0, cressie_read_ratio(0.5, 1.0), 0.0),
    (cressie_read(1.5), 1.0, cressie_read_ratio(1.5, 1.0), 0.0),
]


def test_density_agrees_with_closed_forms_on_uniform_losses(arrays: Arrays) -> None:
    at = AT[AT != 0.5]  # where the quadratic density has its kink
    for d, eta, exact, mass in UNIFORM:
        out = density(arrays, d, eta, at)
        # mu is accurate to 1/N, and the largest sampled loss is 1 - 1/(2 N).
        assert arrays.numpy(out.density) == pytest.approx(exact(at) * inside(at), rel=1 / N), d.name
        assert arrays.numpy(out.masses) == pytest.approx(np.array([mass]), abs=1 / N + 10 * arrays.eps)
        assert (arrays.numpy(out.masses) > 0).tolist() == [mass > 0]
        assert arrays.numpy(out.atoms) == pytest.approx(np.array([[1 - 0.5 / N]]), abs=4 * arrays.eps)
        assert out.density.dtype == out.atoms.dtype == out.masses.dtype == arrays.dtype


def test_density_with_a_pole_leaves_an_atom_at_the_maximum(doubles: Arrays) -> None:
    """For Cressie-Read with k = -1, the ratio (2 (1 - x)/eta)^(-1/2) has mass sqrt(2 eta)."""
    eta = 0.125
    at = np.array([0.1, 0.5, 0.9])
    out = density(doubles, cressie_read(-1), eta, [*at, 1.0])
    found = doubles.numpy(out.density)
    # The pole is at the sampled maximum, 1 - 1/(2 N).
    assert found[:3] == pytest.approx((2 * (1 - at) / eta) ** -0.5, rel=1e-2)
    # The midpoint sum of u^(-1/2) has an error of abs(zeta(1/2)) = 1.46 times sqrt(eta/(2 N)).
    assert doubles.numpy(out.masses)[0] == pytest.approx(0.5, abs=1.5 * sqrt(eta / (2 * N)))
    # At the pole, the density is at most the largest ratio in the sample.
    assert found[2] < found[3] <= (2 / (N * eta)) ** -0.5 * (1 + 1e-3)


def test_tied_losses_share_the_remaining_mass(doubles: Arrays) -> None:
    """For losses 0 and 1 of equal mass and alpha = 3/4, the ratios are 2/3 and 4/3 (claim E1)."""

    def step(x: Array, i: Array) -> Array:
        return array_namespace(x).astype(x[:, 0] > 0.5, x.dtype)

    out = density(doubles, indicator(0.75), 1.0, [0.2, 0.4, 0.6, 1.0], step)
    assert doubles.numpy(out.density) == pytest.approx(np.array([2, 2, 4, 4]) / 3, rel=20 * doubles.eps)
    # With the absolute divergence, all mass is at loss 1, half of it as an atom.
    out = density(doubles, ABSOLUTE, 0.2, [0.2, 0.6], step)
    assert doubles.numpy(out.density).tolist() == pytest.approx([0, 1], abs=4 * doubles.eps)
    assert doubles.numpy(out.masses)[0] == pytest.approx(0.5, abs=4 * doubles.eps)


def test_density_is_the_mean_over_data_points(doubles: Arrays) -> None:
    """Two balls overlap; the loss is x around the first data point and -x around the second."""

    def loss(x: Array, i: Array) -> Array:
        xp = array_namespace(x)
        assert i.dtype == xp.int64
        return xp.where(i == 0, x[:, 0], -x[:, 0])

    grid = np.linspace(-0.5, 2.5, 3001)
    eta = 0.2

    def exact(x: Any) -> Any:
        a = np.exp(x / eta) / (eta * (exp(1 / eta) - 1)) * inside(x)
        b = np.exp((1.5 - x) / eta) / (eta * (exp(1 / eta) - 1)) * inside(x - 0.5)
        return (a + b) / 2

    for chunk in (100, 10_000):
        out = density(doubles, ENTROPIC, eta, grid, loss, (0.5, 1.0), chunk=chunk)
        found = doubles.numpy(out.density)
        jump = np.isin(np.round(grid, 3), [0.0, 0.5, 1.0, 1.5])  # the boundaries of the balls, up to rounding
        assert found[~jump] == pytest.approx(exact(grid)[~jump], rel=1e-4)
        # The grid locates a jump only up to one cell.
        assert np.trapezoid(found, grid) == pytest.approx(1, abs=0.01)
        assert doubles.numpy(out.masses).tolist() == [0, 0]
    out = density(doubles, HINGE, eta, grid, loss, (0.5, 1.0))
    masses = doubles.numpy(out.masses)
    assert masses == pytest.approx(np.array([0.4, 0.4]), abs=1 / N)
    assert np.trapezoid(doubles.numpy(out.density), grid) + masses.sum() == pytest.approx(1, abs=0.01)
    assert doubles.numpy(out.atoms)[:, 0] == pytest.approx(np.array([1.0, 0.5]), abs=1 / N)


def test_sampled_density_in_the_plane_agrees_with_the_closed_form(doubles: Arrays) -> None:
    """For a linear loss on the disc, the density is exp(x/eta) / (2 pi eta I_1(1/eta))."""
    eta, z = 0.5, doubles.asarray([[0.0, 0.0]])
    at = np.array([[0.0, 0.0], [0.5, 0.5], [-0.3, 0.9], [0.9, 0.9]])
    points = doubles.asarray(at)
    out = worst_case_density(first, z, Ball(2, 1.0), eta, ENTROPIC, at=points, n_samples=20_000, rng=rng(1))
    exact = np.exp(at[:, 0] / eta) / (2 * pi * eta * float(mpmath.besseli(1, 1 / eta)))
    exact[3] = 0  # outside
    # The mean of exp(x/eta) has a relative standard error below 1/sqrt(n); allow 4.75 of them.
    assert doubles.numpy(out.density) == pytest.approx(exact, rel=4.75 / sqrt(20_000))


def test_density_that_overflows_is_infinite() -> None:
    z = np.zeros((1, 400))
    out = worst_case_density(first, z, Ball(inf, 1e-3), 1.0, ENTROPIC, at=z, n_samples=5, rng=rng(0))
    assert out.density.tolist() == [inf]


def test_draws_follow_the_density_on_a_line(arrays: Arrays) -> None:
    cases: list[tuple[Divergence, float, Any]] = [
        (ENTROPIC, 0.2, lambda x: np.expm1(np.clip(x, 0, 1) / 0.2) / np.expm1(5)),
        (QUADRATIC, 0.125, lambda x: np.clip((x - 0.5) * 2, 0, 1) ** 2),
        (indicator(0.3), 1.0, lambda x: np.clip((x - 0.7) / 0.3, 0, 1)),
    ]
    z = arrays.asarray([[0.5]])
    for d, eta, cdf in cases:
        out = worst_case_sample(first, z, Ball(2, 0.5), eta, d, size=400, n_samples=200, rng=rng(2))
        x = arrays.numpy(out.points)[:, 0].astype(np.float64)
        assert stats.kstest(x, cdf).pvalue > LEVEL
        # Consecutive draws are independent.
        ranks = cdf(x) - 0.5
        assert abs(np.sum(ranks[1:] * ranks[:-1])) * 12 / sqrt(399) < stats.norm.isf(LEVEL / 2)
        assert stats.kstest(x, lambda t, cdf=cdf: cdf(t + 0.1)).pvalue < LEVEL  # the test detects a shift
        assert out.points.dtype == arrays.dtype


def test_draws_do_not_depend_on_the_chunk(doubles: Arrays) -> None:
    z = doubles.asarray(np.linspace(-1, 1, 6).reshape(3, 2))
    draws = []
    eta, ball = doubles.asarray([0.1, 0.2, 0.3]), Ball(2, 0.7)
    for chunk in (33, 5000):
        loss = Counted()
        out = worst_case_sample(loss, z, ball, eta, ENTROPIC, size=20, n_samples=150, rng=rng(1), chunk=chunk)
        assert max(loss.sizes) <= chunk
        assert sum(loss.sizes) == 20 * 150
        draws.append(doubles.numpy(out.points).tolist())
        assert out.points.shape == (20, 2)
        assert out.index.shape == (20,)
        center = doubles.xp.take(z, out.index, axis=0)
        assert doubles.xp.all(ball.contains(out.points, center))
    assert draws[0] == draws[1]


def test_each_data_point_has_its_own_eta() -> None:
    """Around the second data point, whose eta is tiny, draws are near the maximum."""
    z, eta = np.array([[0.5], [10.5]]), np.array([1e6, 1e-6])
    out = worst_case_sample(first, z, Ball(2, 0.5), eta, ENTROPIC, size=200, n_samples=200, rng=rng(5))
    x, index = out.points[:, 0], out.index
    assert stats.binomtest(int(index.sum()), 200).pvalue > LEVEL
    assert np.min(x[index == 1]) > 10.9
    assert stats.kstest(x[index == 0], stats.uniform().cdf).pvalue > LEVEL
