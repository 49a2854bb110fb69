"""The settings of tilted proposals, and what they refuse."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    Gaussian,
    RegularizedLoss,
    Tilted,
    indicator,
    robust_risk,
    worst_case,
)
from phiball.verification.oracles import inner as oracles
from tests.support.arrays import Arrays
from tests.support.divergences import name_of
from tests.support.laws import LAWS
from tests.support.tilting_laws import THETA, in_x, linear_value, model

ETA = 0.3


@pytest.mark.parametrize("law", LAWS[:3], ids=str)
def test_kappa_makes_eta_of_the_gradient(arrays: Arrays, law: Ball) -> None:
    """eta_z = rho |g|_* / (kappa d), and the eta of the objective where there is no gradient."""
    kappa, xp = 0.4, arrays.xp
    slopes = np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e-3, 0.0, 2e-3], [-500.0, 1.0, 1.0]])
    a = arrays.asarray(slopes)
    objective = RegularizedLoss(law, ETA, ENTROPIC, SG(2), Tilted(kappa=kappa))
    exact = []
    for g in slopes:
        size = {1: np.abs(g).max(), 2: sqrt(g @ g), inf: np.abs(g).sum()}[law.norm]
        exact.append(linear_value(law, g, 0.5 * size / (kappa * 3)) if size else 0.0)
    for k in range(4):
        row = arrays.asarray(slopes[k : k + 1])
        value = objective(
            lambda x, i, row=row: xp.sum(x * row, axis=-1),
            arrays.asarray(np.zeros((1, 3))),
            rng=rng(8),
            input_gradient=lambda x, i, row=row: row + 0 * x,
        )
        assert abs(float(value) - exact[k]) <= 100 * arrays.eps * max(exact[k], 1e-30)
    whole = objective(
        lambda x, i: xp.sum(x * xp.take(a, i, axis=0), axis=-1),
        arrays.asarray(np.zeros((4, 3))),
        rng=rng(8),
        input_gradient=lambda x, i: xp.take(a, i, axis=0),
    )
    assert abs(float(whole) - np.mean(exact)) <= 100 * arrays.eps * np.mean(exact)
    # Without a slope the points are uniform, and eta is that of the objective: a curved loss shows it.
    z = arrays.asarray(np.zeros((2, 3)))

    def bowl(x: Any, i: Any) -> Any:
        return xp.sum(x * x, axis=-1)

    signed = objective.points(bowl, z, rng=rng(9), input_gradient=lambda x, i: 2 * x)
    f = arrays.numpy(signed.losses).astype(float).reshape(2, 4)
    want = ETA * np.log(np.exp(f / ETA).mean(axis=1)).mean()
    assert abs(float(signed.value) - want) <= 50 * arrays.eps


@pytest.mark.parametrize("d", [QUADRATIC, indicator(0.3), HINGE, ENTROPIC], ids=name_of)
@pytest.mark.parametrize("estimator", [SG(2), RTMLMC(2), RTMLMC(2, "stratified")], ids=str)
def test_self_normalised_weights(estimator: Any, d: Divergence) -> None:
    """The points of a data point, and those of each half, have the law that is proportional to nu/q."""
    n = 30
    x = np.random.default_rng(4).normal(size=(n, 2))
    objective = RegularizedLoss(Ball(2, 0.7), ETA, d, estimator, Tilted(self_normalised=True))
    signed = objective.points(
        lambda x, i: model(THETA, x, i), x, rng=rng(10), input_gradient=lambda x, i: in_x(THETA, x, i)
    )
    total = 0.0
    seen = set()
    for k in range(n):
        mine = signed.index == k
        f, log_w = signed.losses[mine], signed.log_weights[mine]
        m = len(f)
        seen.add(m)

        def solve(part: slice, f: Any = f, log_w: Any = log_w) -> tuple[float, Any]:
            p = np.exp(log_w[part])
            p = p / p.sum()
            same = worst_case(f[part], ETA, d, p=p)
            answer = oracles.solve_exactly(f[part], ETA, d.family or "", d.parameter, p=p)
            assert abs(float(same.value) - float(answer.value)) < 1e-12
            return float(answer.value), np.array([float(w) for w in answer.weights])

        value, weights = solve(slice(m))
        if isinstance(estimator, RTMLMC):
            if m > 1:
                parts = [solve(slice(m // 2)), solve(slice(m // 2, m))]
                value -= (parts[0][0] + parts[1][0]) / 2
                weights = weights - np.concatenate([w for _, w in parts]) / 2
            scale = 1 / estimator.probabilities[m.bit_length() - 1]
            value, weights = scale * value, scale * weights
        assert np.allclose(n * signed.weights[mine], weights, atol=1e-11)
        total += value / n
    assert abs(float(signed.value) - total) < 1e-12
    assert len(seen) == (1 if isinstance(estimator, SG) else 3)
    assert np.ptp(signed.log_weights) > 0.5  # the law is not uniform


class Slope:
    """The gradient of the model in x, which keeps where it was asked for."""

    def __init__(self) -> None:
        self.at: list[Any] = []
        self.of: list[Any] = []

    def __call__(self, x: Any, i: Any) -> Any:
        self.at.append(x.copy())
        self.of.append(i.copy())
        return in_x(THETA, x, i)


def loss(x: Any, i: Any) -> Any:
    return model(THETA, x, i)


@pytest.mark.parametrize("retilt", [0, 1, 2])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_gradient_is_taken_as_often_as_stated(law: Any, retilt: int) -> None:
    """Once at the data points, then at a point drawn from the tilt before; the last one is drawn from."""
    x = np.random.default_rng(5).normal(size=(7, 2))
    slope = Slope()
    objective = RegularizedLoss(law, ETA, ENTROPIC, SG(1), Tilted(retilt=retilt))
    signed = objective.points(loss, x, rng=rng(11), input_gradient=slope)
    assert len(slope.at) == 1 + retilt
    assert np.array_equal(slope.at[0], x)
    assert all(np.array_equal(i, np.arange(7)) for i in slope.of)
    source = rng(11)  # SG draws nothing for its levels
    s = in_x(THETA, x, None) / ETA
    for k in range(retilt):
        points, _ = law.sample_tilted(x, s, 1, source)
        assert np.array_equal(slope.at[k + 1], points[:, 0])
        s = in_x(THETA, points[:, 0], None) / ETA
    points, log_w = law.sample_tilted(x, s, 2, source)
    assert np.array_equal(signed.points, points.reshape(14, 2))
    assert np.array_equal(signed.log_weights, log_w.ravel())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Tilted(kappa=0.0), ValueError, "kappa is 0.0"),
        (lambda: Tilted(kappa=inf), ValueError, "kappa is inf"),
        (lambda: Tilted(kappa="1"), TypeError, "kappa is '1'"),
        (lambda: Tilted(retilt=-1), ValueError, "retilt is -1"),
        (lambda: Tilted(retilt=1.0), ValueError, "retilt is 1.0"),
        (lambda: objective(Tilted), TypeError, r"expected Uniform\(\) or Tilted\(\)"),
        (lambda: objective(None), TypeError, r"expected Uniform\(\) or Tilted\(\)"),
        (lambda: objective(Tilted(), Ball(3, 1.0)), ValueError, "expected norm 1, 2 or inf"),
        (lambda: objective(Tilted(kappa=1.0), Gaussian(1.0)), ValueError, "kappa is 1.0; expected None"),
        (lambda: objective(Tilted(kappa=1.0), Ball(2, 0.0)), ValueError, "kappa is 1.0; expected None"),
        (lambda: objective(Tilted(), Only()), TypeError, "expected a Ball or a Gaussian"),
        *(
            (lambda d=d: objective(Tilted(), divergence=d), ValueError, r"or Tilted\(self_normalised=True\)")
            for d in (QUADRATIC, indicator(0.3), HINGE, ABSOLUTE)
        ),
    ],
    ids=range(15),
)
def test_what_makes_no_proposal(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


class Only:
    """A law that can be drawn from and not tilted."""

    def sample(self, z: Any, n: int, rng: Any, *, event_ndim: int = 1) -> Any:
        return np.repeat(z[:, None], n, axis=1)


def objective(how: Any, law: Any = None, divergence: Divergence = ENTROPIC) -> RegularizedLoss:
    return RegularizedLoss(law or Ball(2, 1.0), ETA, divergence, SG(1), how)


@pytest.mark.parametrize(
    ("slope", "error", "says"),
    [
        (None, TypeError, "input_gradient is None and x a numpy array"),
        (3.0, TypeError, "input_gradient is 3.0; expected a function"),
        (lambda x, i: x[:, 0], ValueError, "expected that of x"),
        (lambda x, i: x.tolist(), TypeError, "expected an array"),
        (lambda x, i: x.astype(int), TypeError, "has dtype int64"),
        (lambda x, i: x + np.nan, ValueError, "contains NaN or infinity"),
        (lambda x, i: x + 1e308, ValueError, "overflows float64; expected a larger eta"),
    ],
    ids=["none", "number", "shape", "list", "integers", "nan", "huge"],
)
def test_what_is_no_gradient(slope: Any, error: type[Exception], says: str) -> None:
    x = np.zeros((3, 2))
    with pytest.raises(error, match=says):
        objective(Tilted())(loss, x, rng=rng(0), input_gradient=slope)
    with pytest.raises(error, match=says):
        robust_risk(
            loss,
            x,
            Ball(2, 1.0),
            ETA,
            ENTROPIC,
            samples=4,
            rng=rng(0),
            proposal=Tilted(),
            input_gradient=slope,
        )
    with pytest.raises(TypeError, match=r"expected Uniform\(\), Tilted\(\) or None"):
        robust_risk(loss, x, Ball(2, 1.0), ETA, ENTROPIC, samples=4, rng=rng(0), proposal=Tilted)


def test_what_the_gradient_method_lacks() -> None:
    with pytest.raises(TypeError, match=r"expected input_gradient=\.\.\."):
        objective(Tilted()).gradient(THETA, model, lambda t, x, i: x, np.zeros((3, 2)), rng=rng(0))


class Bowl:
    """The loss |x|^2, whose gradient vanishes at 0, and where its gradient was asked for."""

    def __init__(self) -> None:
        self.at: list[Any] = []

    def loss(self, x: Any, i: Any) -> Any:
        return (x * x).sum(-1)

    def slope(self, x: Any, i: Any) -> Any:
        self.at.append(x)
        return 2 * x


def drawn(law: Any, how: Tilted, n: int, level: int, eta: float = ETA) -> tuple[Any, Any]:
    """What an objective draws around n times the point 0, and the starts: they come first from the source."""
    bowl, z = Bowl(), np.zeros((n, 2))
    given = RegularizedLoss(law, eta, ENTROPIC, SG(level), how)
    signed = given.points(bowl.loss, z, rng=rng(1), input_gradient=bowl.slope)
    assert sum(map(len, bowl.at)) == n * (1 + how.retilt)
    return signed, bowl.at[0]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_random_start_has_exact_weights(law: Any) -> None:
    """log w = log E e^{s.b} - s.b with s of the start, by an oracle: for every start, not on average."""
    assert not drawn(law, Tilted(), 3, 1)[1].any()  # without it, at the data points
    signed, starts = drawn(law, Tilted(start="uniform"), 5, 1)
    assert np.array_equal(starts, law.sample(np.zeros((5, 2)), 1, rng(1))[:, 0])
    s = np.repeat(2 * starts / ETA, 2, axis=0)  # two points for each start, and the tilt is around 0
    moments = [float(linear_value(law, a, 1.0)) for a in s]
    assert np.allclose(signed.log_weights, moments - (s * signed.points).sum(-1), atol=1e-9)
    with pytest.raises(ValueError, match="start is 'random'"):
        Tilted(start="random")


@pytest.mark.parametrize("how", [Tilted(start="uniform"), Tilted(start="uniform", retilt=1)], ids=str)
def test_what_a_random_start_estimates(how: Tilted) -> None:
    """Weighted e^{f/eta} has the mean of uniform points; its logarithm is low, less so with more points."""
    n, rho = 20_000, 0.7
    law, exact = Ball(2, rho), ETA * np.expm1(rho**2 / ETA) / rho**2  # E e^{|b|^2/eta} on a disc
    signed, _ = drawn(law, how, n, 0)
    mean = np.exp(signed.losses / ETA + signed.log_weights)
    assert abs(mean.mean() - exact) <= 5 * mean.std() / np.sqrt(n)
    risk = ETA * np.log(exact)
    low = []
    for level in (0, 4):
        signed, _ = drawn(law, how, n, level)
        each = ETA * np.log(np.exp(signed.losses / ETA + signed.log_weights).reshape(n, -1).mean(-1))
        assert float(signed.value) == pytest.approx(each.mean())
        low.append((risk - each.mean()) / (each.std() / np.sqrt(n)))
    assert low[0] > 10
    assert low[1] < low[0] / 2


def test_a_random_start_makes_a_random_eta_with_kappa() -> None:
    law, kappa = Ball(inf, 0.5), 2.0
    signed, starts = drawn(law, Tilted(kappa=kappa, start="uniform"), 6, 0)
    eta = 0.5 * np.abs(2 * starts).sum(-1) / (kappa * 2)  # rho |g|_1 / (kappa d) of each start
    assert np.ptp(eta) > 0.05
    each = signed.losses + eta * signed.log_weights  # from one point
    assert float(signed.value) == pytest.approx(each.mean())
    moments = [float(linear_value(law, a, 1.0)) for a in 2 * starts / eta[:, None]]
    aimed = (2 * starts / eta[:, None] * signed.points).sum(-1)
    assert np.allclose(signed.log_weights, moments - aimed, atol=1e-9)
