"""Attacks maximise linear losses, return the best iterate and stay in the ball and the box."""

import re
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import Array, input_gradient, rng
from phiball.refimpl import Ball, Gaussian, apgd, fgm, ifgm, pgm, pointwise_loss, white_noise
from phiball.refimpl.attacks import _checkpoints
from phiball.refimpl.certify import certified_margins
from tests.support.arrays import Arrays
from tests.support.attacks import ATTACKS, linear, size
from tests.support.distributions import ANY_NORM, NORMS


@pytest.mark.parametrize("norm", ANY_NORM)
def test_linear_losses_are_maximised(norm: float, arrays: Arrays) -> None:
    """The maximum of g.b over the ball is radius ||g||_q with 1/p + 1/q = 1; if g = 0, x does not move."""
    q = 1.0 if norm == inf else inf if norm == 1 else norm / (norm - 1)
    for event in ((), (7,), (2, 3, 4)):
        g, z = np.random.default_rng(0).normal(size=(2, 6, *event))
        g[1] = 0
        gradient, points, ball = arrays.asarray(g), arrays.asarray(z), Ball(norm, 0.3)
        for attack in (fgm, ifgm, pgm) if norm in NORMS else (fgm,):
            x = arrays.numpy(attack(None, points, ball, gradient=lambda x, i, g=gradient: g))
            moved = x.astype(np.float64) - arrays.numpy(points)
            gain = np.sum((g * moved).reshape(6, -1), axis=-1)
            # Each coordinate is rounded once in each of 15 steps.
            tol = (8 if attack is fgm else 120) * arrays.eps * np.max(size(g, 1) * 4)
            np.testing.assert_allclose(gain, 0.3 * size(g, q), atol=tol)
            unmoved = np.all((x == arrays.numpy(points)).reshape(6, -1), axis=-1)
            assert unmoved.tolist() == [False, True, False, False, False, False]


def test_loss_and_gradient_get_the_index_of_each_point(arrays: Arrays) -> None:
    seen = []

    def gradient(x: Array, i: Array) -> Array:
        seen.append(i)
        return x

    z = arrays.asarray(np.ones((4, 2)))
    fgm(None, z, Ball(2, 0.1), gradient=gradient)
    pgm(lambda x, i: (seen.append(i), x[:, 0])[1], z, Ball(2, 0.1), steps=1, gradient=gradient)
    assert len(seen) == 4
    for i in seen:
        assert i.dtype == arrays.xp.int64
        assert arrays.numpy(i).tolist() == [0, 1, 2, 3]


def test_ifgm_is_within_one_step_of_the_maximiser_of_a_separable_loss() -> None:
    """The maximiser of -sum a_j (x_j - t_j)^2 is t, clipped to the ball."""
    draw = np.random.default_rng(0)
    z, t, a = draw.normal(size=(8, 5)), draw.normal(size=(8, 5)), draw.uniform(0.1, 3, size=(8, 5))
    for steps in (10, 100):
        x = ifgm(None, z, Ball(inf, 0.7), steps=steps, gradient=lambda x, i: a * (t - x))
        assert np.max(np.abs(x - np.clip(t, z - 0.7, z + 0.7))) <= 2.5 * 0.7 / steps + 1e-14


def wavy_loss(x: Any, xp: Any) -> Any:
    return xp.sin(3 * x[..., 0]) * xp.cos(2 * x[..., 1]) + 0.3 * x[..., 0] * x[..., 1]


def wavy_gradient(x: Any, xp: Any) -> Any:
    u, v = x[..., 0], x[..., 1]
    return xp.stack(
        [3 * xp.cos(3 * u) * xp.cos(2 * v) + 0.3 * v, -2 * xp.sin(3 * u) * xp.sin(2 * v) + 0.3 * u], axis=-1
    )


@pytest.mark.parametrize("random", [False, True])
def test_best_iterate_of_each_point_is_returned(random: bool, arrays: Arrays) -> None:
    """The steps are so long that the loss does not increase monotonically."""
    xp, seen, calls = arrays.xp, [], []

    def loss(x: Array, i: Array) -> Array:
        f = wavy_loss(x, xp)
        seen.append(arrays.numpy(f))
        return f

    def gradient(x: Array, i: Array) -> Array:
        calls.append(1)
        return wavy_gradient(x, xp)

    z = arrays.asarray(np.random.default_rng(0).uniform(-2, 2, size=(9, 2)))
    options: dict[str, Any] = {"rng": rng(0), "restarts": 3} if random else {}
    x = pgm(loss, z, Ball(2, 1.0), steps=4, step=0.9, gradient=gradient, **options)
    record = np.stack(seen)
    assert record.shape == ((16, 9) if random else (5, 9))
    assert len(calls) == (12 if random else 4)
    assert np.all(arrays.numpy(loss(x, xp.arange(9, **arrays.at))) == np.max(record, axis=0))
    assert len(set(np.argmax(record, axis=0).tolist())) > 2  # the best iterates differ


def test_result_is_the_best_iterate_with_a_loss_and_the_last_without() -> None:
    z = np.random.default_rng(0).normal(size=(5, 3))
    loss = partial(linear, lambda x, i: np.ones_like(x))
    for source in (None, rng(0)):  # a gradient of the wrong sign finds nothing better
        x = pgm(loss, z, Ball(inf, 0.3), gradient=lambda x, i: -np.ones_like(x), rng=source)
        assert np.all(loss(x, None) >= loss(z, None))
        if source is None:
            assert np.array_equal(x, z)
    # The iterates are 0, 0.8 and 0.
    x = ifgm(None, np.zeros(1), Ball(2, 1.0), steps=2, step=0.8, gradient=lambda x, i: -x + 0.05)
    np.testing.assert_allclose(x, [0.0], atol=1e-15)


def test_steps_have_the_given_length_or_one_proportional_to_the_radius() -> None:
    z = np.zeros((1, 2))
    for attack in (ifgm, pgm):
        for step, reached in ((0.1, 1.5), (None, 3.0), (10.0, 3.0)):
            x = attack(None, z, Ball(2, 3.0), step=step, gradient=lambda x, i: np.ones_like(x))
            np.testing.assert_allclose(size(x, 2), [reached], rtol=1e-13)
    x = fgm(None, z, Ball(inf, 0.45), step=0.1, gradient=lambda x, i: np.ones_like(x))
    np.testing.assert_allclose(x, [[0.1, 0.1]], rtol=1e-15)
    for norm in NORMS:
        for step, length in ((None, 2.5 * 0.4 / 8), (0.03, 0.03)):
            evaluated_at: list[Any] = []
            pgm(
                None,
                np.full((2, 3), 0.1),
                Ball(norm, 0.4),
                steps=8,
                step=step,
                gradient=partial(record, evaluated_at),
            )
            np.testing.assert_allclose(size(evaluated_at[1] - evaluated_at[0], norm), length, rtol=1e-12)


def record(evaluated_at: list[Any], x: Any, i: Any) -> Any:
    """A gradient that equals x and records the points where it is evaluated."""
    evaluated_at.append(x)
    return x


def test_random_starts_are_white_noise_and_differ_between_restarts() -> None:
    z, ball = np.random.default_rng(0).normal(size=(6, 5)), Ball(inf, 0.4)
    for step, length in ((None, 1.25 * 0.4), (0.3, 0.3)):
        evaluated_at: list[Any] = []
        x = fgm(None, z, ball, step=step, rng=5, gradient=partial(record, evaluated_at))
        (start,) = evaluated_at
        assert np.array_equal(start, white_noise(z, ball, rng=5))
        np.testing.assert_allclose(x, np.clip(start + length * np.sign(start), z - 0.4, z + 0.4), atol=1e-15)
    evaluated_at = []
    for seed in (0, 0, 1):
        options: dict[str, Any] = {"rng": seed, "steps": 1, "restarts": 3}
        pgm(
            lambda x, i: x[:, 0],
            np.zeros((3, 4)),
            Ball(2, 1.0),
            gradient=partial(record, evaluated_at),
            **options,
        )
    starts = np.concatenate(evaluated_at)
    assert np.all(starts[:9] == starts[9:18])  # the same seed
    assert len(np.unique(starts[[*range(9), *range(18, 27)]], axis=0)) == 18


@pytest.mark.parametrize("norm", NORMS)
def test_points_stay_in_the_ball_and_in_the_box(norm: float, arrays: Arrays) -> None:
    """The data are images with many pixels 0 and 1, or points far from zero; the radius may be zero."""
    draw = np.random.default_rng(0)
    z = arrays.asarray(np.clip(draw.uniform(-0.5, 1.5, size=(6, 2, 5, 4)), 0, 1))
    g = arrays.asarray(draw.normal(size=(6, 2, 5, 4)))
    gain = partial(linear, lambda x, i: g)
    before, radius = arrays.numpy(z).copy(), {1.0: 5.0, 2.0: 1.5, inf: 0.3}[norm]
    for name, attack in ATTACKS.items():
        for clip in (None, (0.0, 1.0)):
            ball = Ball(norm, radius, clip)
            x = attack(gain, z, ball, gradient=lambda x, i: g)
            assert (x.shape, x.dtype) == (z.shape, z.dtype)
            assert bool(arrays.xp.all(ball.contains(x, z, event_ndim=3))), name
            moved = arrays.numpy(x)
            assert np.all(arrays.numpy(z) == before)
            # Without `contains`: each of 40 coordinates has a few rounding errors.
            assert np.all(size(moved.astype(np.float64) - before, norm) <= radius + 4 * 40 * arrays.eps), name
            assert bool(np.any((moved < 0) | (moved > 1))) is (clip is None), name
        far = 1000 + z  # the spacing of float32 numbers is 6e-5 here
        x = attack(gain, far, Ball(norm, 0.1), gradient=lambda x, i: g)
        assert bool(arrays.xp.all(Ball(norm, 0.1).contains(x, far, event_ndim=3))), name
        x = attack(gain, z, Ball(norm, 0.0), gradient=lambda x, i: g)
        assert np.array_equal(arrays.numpy(x), before), name
        if isinstance(x, np.ndarray):  # the result is not a view of x
            x += 1
            assert np.array_equal(z, before), name


def test_white_noise_is_a_draw_from_the_distribution(arrays: Arrays) -> None:
    z = arrays.asarray(np.random.default_rng(0).normal(size=(4, 2, 3)))
    for distribution in (*(Ball(norm, 0.4) for norm in ANY_NORM), Gaussian(0.4)):
        x = arrays.numpy(white_noise(z, distribution, rng=2))
        drawn = arrays.numpy(distribution.sample(z, 1, rng=rng(2), event_ndim=2))
        assert np.all(x == drawn[:, 0])
        assert len(np.unique(np.round(x - arrays.numpy(z), 4)[:, 0, 0])) == 4


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "name", ["fgm", "ifgm", "pgm", "fgm, random start", "pgm, random start", "pgm, best", "apgd"]
)
def test_attacks_do_not_change_the_model(name: str, training: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ELU(), torch.nn.Flatten(), torch.nn.Linear(48, 5)
    ).train(training)
    y, z = torch.arange(4), torch.rand(4, 1, 6, 6, requires_grad=True)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)

    def loss(x: Array, i: Array) -> Array:
        return torch.nn.functional.cross_entropy(model(x), y[i], reduction="none")

    ball = Ball(2, 0.5, clip=(0.0, 1.0))
    x = ATTACKS[name](loss, z, ball)
    with torch.no_grad():
        again = ATTACKS[name](loss, z, ball)
    assert torch.equal(x, again)
    assert not x.requires_grad
    assert z.grad is None
    assert z.requires_grad
    assert all(part.training is training for part in model.modules())
    assert torch.all(first.grad == 1)
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])
    assert torch.all(loss(x, torch.arange(4)) > loss(z, torch.arange(4)))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "noise"])
def test_gradient_by_autograd_gives_the_same_points_as_a_given_gradient(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    x = torch.tensor(np.random.default_rng(0).uniform(-2, 2, size=(9, 2)))

    def loss(x: Array, i: Array) -> Array:
        return wavy_loss(x, torch) * (1 + i)

    ball = Ball(2, 1.0)
    found = ATTACKS[name](loss, x, ball)
    given = ATTACKS[name](loss, x, ball, gradient=partial(input_gradient, loss))
    assert torch.equal(found, given)
    assert bool(torch.all(loss(found, torch.arange(9)) != loss(x, torch.arange(9))))


@pytest.mark.parametrize(
    ("options", "passes"),
    [({}, 5), ({"keep_best": False}, 4), ({"rng": 0}, 6), ({"rng": 0, "restarts": 3}, 16)],
)
def test_pgm_runs_the_documented_number_of_forward_passes(options: dict[str, Any], passes: int) -> None:
    """Each step needs one pass; returning the best iterate adds one per restart and one at x."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    calls = []

    def loss(x: Array, i: Array) -> Array:
        calls.append(x.requires_grad)
        return wavy_loss(x, torch)

    pgm(loss, torch.ones(3, 2), Ball(2, 1.0), steps=4, **options)
    assert len(calls) == passes
    assert sum(calls) == 4 * options.get("restarts", 1)


def test_apgd_checkpoints_agree_with_its_article() -> None:
    assert _checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert _checkpoints(10) == [3, 5, 6, 7, 8, 9, 10]
    assert _checkpoints(1) == [1]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_apgd_finds_exactly_the_errors_of_a_linear_classifier(norm: float, outputs: int) -> None:
    """A point is misclassified somewhere in the ball if and only if its exact margin is negative."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, outputs)
    x = torch.rand(120, 8)
    scores = model(x).detach()
    y = scores.argmax(1) if outputs > 1 else (scores[:, 0] > 0).long()
    scale = torch.tensor([[1.0], [0.5]]).repeat(60, 8) * torch.arange(8).clip(max=1)  # the first is fixed
    radius = {1: 0.6, 2: 0.3, inf: 0.12}[norm]
    for ball in (Ball(norm, radius), Ball(norm, radius, (0, 1), scale)):
        weight, bias = model.weight.detach(), model.bias.detach()
        exact = certified_margins((weight, bias), x, y, ball).amin(1)
        # With several classes the loss has local maxima.
        options: dict[str, Any] = {"rng": 0, "restarts": 3} if outputs > 2 else {}
        found = apgd(pointwise_loss(model, y), x, ball, steps=60, **options)
        assert ball.contains(found, x).all()
        scores = model(found)
        wrong = (scores.argmax(1) if outputs > 1 else (scores[:, 0] > 0).long()) != y
        clear = exact.abs() > 0.03 * exact.abs().max()  # the last steps are short, but not zero
        assert torch.equal(wrong[clear], exact[clear] < 0)
        assert 0.05 < wrong.float().mean() < 0.95


def test_apgd_restarts_target_the_other_classes() -> None:
    """The gradients of the cross-entropy and the margin lead to class 1, which never wins; class 2 does."""
    torch = pytest.importorskip("torch", reason="torch: not installed")

    def model(x: Any) -> Any:
        return torch.stack([-6 - 7 * x[:, 0], 0 * x[:, 0], -1 + 0.9 * x[:, 0]], 1)

    x, y = torch.zeros(20, 60), torch.ones(20, dtype=torch.int64)
    wrong = [
        model(apgd(pointwise_loss(model, y), x, Ball(2, 1.0), steps=20, rng=0, restarts=n)).argmax(1) != y
        for n in (1, 2, 3)
    ]
    assert [float(mask.double().mean()) for mask in wrong] == [0, 0, 1]


@pytest.mark.usefixtures("one_thread")
def test_apgd_attacks_regressions_and_finds_larger_losses_than_pgm() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).double()
    x, y = torch.randn(40, 6).double(), torch.randn(40, 1).double()
    loss, ball, i = pointwise_loss(model, y), Ball(2, 1.0), torch.arange(40)
    found, pgm_found = (loss(attack(loss, x, ball, steps=40), i).detach() for attack in (apgd, pgm))
    assert (found >= pgm_found - 1e-3 * pgm_found).double().mean() > 0.9
    assert found.mean() > 0.999 * pgm_found.mean()


Z = np.zeros((3, 2))


def identity(x: Any, i: Any) -> Any:
    return x


def test_invalid_arguments_of_attacks_raise() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    ball, box, own = Ball(2, 1.0), Ball(2, 1.0, (0, 1)), {"gradient": identity}

    def first(x: Any, i: Any) -> Any:
        return x[:, 0]

    calls: dict[str, Any] = {
        "gradient is 3; expected a function": lambda: fgm(None, Z, ball, gradient=3),
        "gradient is None and x is a numpy array, without automatic": lambda: pgm(first, Z, ball),
        "x is [1.0], of type list": lambda: fgm(first, [1.0], ball, **own),
        "x has dtype int64": lambda: pgm(None, np.zeros((3, 2), dtype=int), ball, **own),
        "x has shape (); expected (N,) + event": lambda: fgm(None, Z[0, 0], ball, **own),
        "x contains NaN or infinity": lambda: ifgm(None, Z + np.nan, ball, **own),
        "ball is 0.5; expected a Ball": lambda: fgm(None, Z, 0.5, **own),
        "ball is Gaussian(std=1.0); expected a Ball": lambda: pgm(None, Z, Gaussian(1.0), **own),
        "ball is 0.5; expected": lambda: white_noise(Z, 0.5),
        "rng is 'a'; expected": lambda: white_noise(Z, ball, rng="a"),
        "x is outside the box clip = (0.0, 1.0)": lambda: fgm(None, Z + 2, box, **own),
        "step is 'a'; expected a number": lambda: fgm(None, Z, ball, step="a", **own),
        "step is 0; expected a positive": lambda: fgm(None, Z, ball, step=0, **own),
        "step is inf; expected": lambda: pgm(None, Z, ball, step=inf, **own),
        "steps is 0; expected a whole number": lambda: ifgm(None, Z, ball, steps=0, **own),
        "restarts is -1; expected": lambda: pgm(None, Z, ball, restarts=-1, **own),
        "restarts is 2; expected an rng": lambda: pgm(first, Z, ball, restarts=2, **own),
        "restarts is 2; expected": lambda: pgm(None, Z, ball, restarts=2, rng=0, **own),
        "restarts is 3; expected": lambda: pgm(first, Z, ball, restarts=3, rng=0, keep_best=False, **own),
        "restarts is 4; expected an rng": lambda: apgd(first, Z, ball, restarts=4, **own),
        "loss is None; expected": lambda: apgd(None, Z, ball, **own),
        "norm is 4.0; expected": lambda: apgd(first, Z + 1, Ball(4, 1.0), **own),
        "gradient(x, i) has shape (3,)": lambda: fgm(None, Z, ball, gradient=first),
        "gradient(x, i) contains NaN": lambda: pgm(None, Z, ball, gradient=lambda x, i: x + np.inf),
        "gradient(x, i) is None": lambda: fgm(None, Z, ball, gradient=lambda x, i: None),
        "gradient(x, i) is a torch array": lambda: fgm(None, Z, ball, gradient=lambda x, i: torch.ones(3, 2)),
        "loss(x, i) has shape (3, 2); expected (3,), one loss": lambda: pgm(identity, Z, ball, **own),
        "loss(x, i) contains NaN": lambda: pgm(
            lambda x, i: np.where(i == 1, np.nan, x[:, 0]), Z, ball, **own
        ),
        "loss is 1; expected a function": lambda: pgm(1, Z, ball, **own),
        "loss is None; expected a function": lambda: fgm(None, torch.zeros((3, 2)), ball),
        "norm is 3.0; expected": lambda: ifgm(None, Z + 1, Ball(3, 1.0), **own),
    }
    for message, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            call()
