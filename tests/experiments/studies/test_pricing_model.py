"""The laws, exact risks and exact minimisers of the pricing study."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    Conditional,
    conditional_loss,
)

pytest.importorskip("rich", reason="the tables of a study need rich")

from phiball.experiments.studies.pricing.model import (
    Cost,
    Market,
    Quadratic,
    best_price,
    draw_data,
    draw_market,
    empirical_risk,
    least_in_ball,
    true_risk,
)
from phiball.experiments.studies.pricing.training import (
    Problem,
)

BOUNDED = Cost(0.0, 2.0)


def markets(trials: int = 3, features: int = 12) -> Market:
    return draw_market(trials, 10, features, 0.1, rng(1))


def psi(w: Any, z: Any) -> Any:
    """-w z'(w, 1), from the paper."""
    return -w * (z[..., 0] * w + z[..., 1])


@pytest.mark.slow
def test_true_risk_is_the_mean_over_the_law_of_x() -> None:
    market = markets()
    risk = true_risk(market)
    draw = np.random.default_rng(4)
    theta = draw.normal(size=(3, 12))
    n = 150_000
    for t in range(3):
        x = draw.normal(size=(n, 10))
        w = np.cos(x @ market.omega[t].T + market.b[t]) @ theta[t]
        z = np.stack([np.tanh(3 * x @ market.beta1[t]), np.exp(-2 * x @ market.beta2[t])], axis=-1)
        costs = psi(w, z)
        # One in a million.
        assert abs(risk(theta)[t] - costs.mean()) < 4.9 * costs.std() / sqrt(n)


def test_true_risk_to_all_digits() -> None:
    """Three features of two dimensions: an integral over a plane."""
    draw = np.random.default_rng(5)
    market = Market(*(draw.normal(size=shape) / 2 for shape in ((1, 2), (1, 2), (1, 3, 2), (1, 3))))
    risk = true_risk(market)
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    x = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    g = np.cos(x @ market.omega[0].T + market.b[0])
    a, b = np.tanh(3 * x @ market.beta1[0]), np.exp(-2 * x @ market.beta2[0])
    # Gauss-Hermite is good to this where the tanh is as steep as here.
    np.testing.assert_allclose(risk.H[0], -(g.T * (weights * a)) @ g, atol=1e-6)
    np.testing.assert_allclose(risk.q[0], -(weights * b) @ g, atol=1e-12)
    assert np.abs(risk.H[0]).min() > 1e-3


def test_empirical_risk_is_the_mean_cost_of_all_draws() -> None:
    """Against the library's loss on the m draws themselves: only their mean counts."""
    market = markets()
    draw = np.random.default_rng(5)
    x, z = draw.normal(size=(3, 7, 10)), draw.normal(size=(3, 7, 4, 2))
    theta = draw.normal(size=(3, 12))
    found = empirical_risk(market, x, z.mean(axis=2))(theta)
    values = Problem(market, Cost(), x, z.mean(axis=2)).values(theta, x)
    for t in range(3):
        loss = conditional_loss(
            lambda x, t=t: np.cos(x @ market.omega[t].T + market.b[t]) @ theta[t],
            psi,
            Conditional.stacked(x[t], z[t]),
        )
        costs = loss(x[t], np.arange(7))
        np.testing.assert_allclose(values[t], costs, atol=1e-12)
        np.testing.assert_allclose(found[t], costs.mean(), atol=1e-12)


def test_the_mean_of_m_draws_has_their_law() -> None:
    market = markets(2000)
    x, z = draw_data(market, 2, 25, rng(6))
    noise = z - market.sensitivity(x)
    assert noise.shape == (2000, 2, 2)
    assert abs(noise.mean()) < 4.9 / 5 / sqrt(noise.size)
    assert abs(noise.var() * 25 - 1) < 4.9 * sqrt(2 / noise.size)


def certified(H: Any, q: Any, theta: Any, radius: float) -> None:
    """The conditions that make theta the minimiser over the whole ball, by themselves."""
    push = -(q / 2 + H @ theta)  # lambda theta
    length = np.linalg.norm(theta)
    scale = np.abs(H).max() * radius + np.abs(q).max()
    assert length <= radius * (1 + 1e-9)
    multiplier = push @ theta / max(length**2, 1e-300) if length > 1e-9 else 0.0
    np.testing.assert_allclose(push, multiplier * theta, atol=1e-8 * scale)
    assert multiplier >= -1e-8 * scale
    assert np.linalg.eigvalsh(H)[0] + multiplier >= -1e-8 * scale
    if length < radius * (1 - 1e-9):
        assert abs(multiplier) <= 1e-8 * scale


def test_least_in_ball_is_certified() -> None:
    draw = np.random.default_rng(7)
    H = draw.normal(size=(20, 6, 6))
    H = H + H.swapaxes(1, 2)
    q = draw.normal(size=(20, 6))
    H[5:10] = H[5:10] @ H[5:10]  # positive: minima inside for a large radius
    H[10:15, 3:, :] = H[10:15, :, 3:] = 0  # a kernel, pushed along it or not
    q[12:15, 3:] = 0
    for radius in (0.05, 1.0, 50.0):
        theta = least_in_ball(Quadratic(H, q), radius)
        for t in range(20):
            certified(H[t], q[t], theta[t], radius)


@pytest.mark.parametrize(
    ("H", "q"),
    [
        (np.diag([-1.0, 2.0]), np.array([0.0, 1.0])),  # nothing pushes along the negative eigenvalue
        (np.diag([-1.0, -1.0]), np.zeros(2)),
        (np.zeros((2, 2)), np.zeros(2)),
        (np.zeros((2, 2)), np.array([1.0, -1.0])),
        (np.eye(2), np.zeros(2)),
    ],
)
def test_least_in_ball_in_hard_cases(H: Any, q: Any) -> None:
    risk = Quadratic(H[None], q[None])
    theta = least_in_ball(risk, 3.0)
    certified(H, q, theta[0], 3.0)
    angle = np.linspace(0, 2 * np.pi, 721)
    for r in (0.0, 0.5, 1.5, 3.0):
        for point in r * np.stack([np.cos(angle), np.sin(angle)], axis=-1):
            assert risk(theta)[0] <= risk(point[None])[0] + 1e-9


def test_cost_beyond_the_bounds() -> None:
    draw = np.random.default_rng(8)
    v, z = 4 * draw.normal(size=500), draw.normal(size=(500, 2))
    inside = (v >= 0) & (v <= 2)
    true = psi(np.clip(v, 0, 2), z)
    found = BOUNDED.value(v, z)
    assert inside.sum() > 50
    assert (~inside).sum() > 50
    np.testing.assert_allclose(found[inside], true[inside], atol=1e-14)
    assert np.all(found >= true - 1e-12)
    h = 1e-6
    numeric = (BOUNDED.value(v + h, z) - BOUNDED.value(v - h, z)) / (2 * h)
    np.testing.assert_allclose(BOUNDED.slope(v, z), numeric, atol=1e-5)
    # Where a price inside is better, the cost beyond leads back to it.
    better = (v < 0) & (z[:, 1] > 0)
    assert np.all(BOUNDED.slope(v, z)[better] < 0)
    np.testing.assert_array_equal(Cost().value(v, z), psi(v, z))


def test_best_price_is_the_best_of_a_grid() -> None:
    draw = np.random.default_rng(9)
    z = np.stack([draw.uniform(-1, 1, size=200), draw.uniform(0.1, 3, size=200)], axis=-1)
    grid = np.linspace(0, 2, 2001)
    price = best_price(z, 2.0)
    assert np.all((price >= 0) & (price <= 2))
    least = psi(grid, z[:, None, :]).min(axis=1)
    assert np.all(psi(price, z) <= least + 1e-12)
    assert 0 < (price < 2).sum() < 200
