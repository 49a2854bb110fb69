"""Attacks stay inside the ball and the box, leave what they are given as it was, and tell bad arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import Array, input_gradient, rng
from phiball.refimpl import Ball, Gaussian, fgm, ifgm, pgm, white_noise
from tests.support.arrays import Arrays
from tests.support.attacks import ATTACKS, size
from tests.support.laws import ANY_NORM, NORMS


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("norm", NORMS)
def test_in_the_ball_and_in_the_box(name: str, norm: float, arrays: Arrays) -> None:
    """Images in [0, 1], many of whose pixels lie on the border."""
    draw = np.random.default_rng(0)
    z = arrays.asarray(np.clip(draw.uniform(-0.5, 1.5, size=(6, 2, 5, 4)), 0, 1))
    g = arrays.asarray(draw.normal(size=(6, 2, 5, 4)))
    before = arrays.numpy(z).copy()
    for clip in (None, (0.0, 1.0)):
        ball = Ball(norm, {1.0: 5.0, 2.0: 1.5, inf: 0.3}[norm], clip)
        x = ATTACKS[name](lambda x, i: g, z, ball)
        assert x.shape == z.shape
        assert x.dtype == z.dtype
        assert bool(arrays.xp.all(ball.contains(x, z, event_ndim=3)))
        moved = arrays.numpy(x)
        assert np.all(arrays.numpy(z) == before)
        # independently of `contains`: each of 40 coordinates is rounded a few times, at a size of about 1
        assert np.all(size(moved.astype(np.float64) - before, norm) <= ball.radius + 4 * 40 * arrays.eps)
        outside = np.any((moved < 0) | (moved > 1))
        assert bool(outside) is (clip is None)


@pytest.mark.parametrize("norm", NORMS)
def test_a_large_offset_in_single_precision(norm: float, arrays: Arrays) -> None:
    """z of a thousand: x = z + b is rounded to steps of 6e-5, which the test of membership must grant."""
    g, z = np.random.default_rng(0).normal(size=(2, 20, 50))
    gradient, points = arrays.asarray(g), arrays.asarray(1000 + z)
    for attack in ATTACKS.values():
        x = attack(lambda x, i: gradient, points, Ball(norm, 0.1))
        assert bool(arrays.xp.all(Ball(norm, 0.1).contains(x, points)))


@pytest.mark.parametrize("name", ATTACKS)
def test_radius_zero_returns_z(name: str, arrays: Arrays) -> None:
    z = np.random.default_rng(0).normal(size=(3, 4))
    for norm in NORMS:
        x = ATTACKS[name](lambda x, i: arrays.xp.ones_like(x), arrays.asarray(z), Ball(norm, 0.0))
        assert np.all(arrays.numpy(x) == arrays.numpy(arrays.asarray(z)))


@pytest.mark.parametrize("name", ATTACKS)
def test_the_result_is_an_array_of_its_own(name: str) -> None:
    z = np.ones((3, 4))
    x = ATTACKS[name](lambda x, i: np.zeros_like(x), z, Ball(2, 0.0))
    x += 1
    assert np.all(z == 1)


def test_no_points(arrays: Arrays) -> None:
    z = arrays.asarray(np.zeros((0, 3)))
    for attack in ATTACKS.values():
        with pytest.raises(ValueError, match=r"z has shape \(0, 3\); expected"):
            attack(lambda x, i: x, z, Ball(2, 0.1))


# --- white noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ANY_NORM)
def test_white_noise_is_a_draw_from_the_ball(norm: float, arrays: Arrays) -> None:
    z = arrays.asarray(np.random.default_rng(0).normal(size=(4, 2, 3)))
    ball = Ball(norm, 0.4)
    x = arrays.numpy(white_noise(z, ball, rng(2)))
    drawn = arrays.numpy(ball.sample(z, 1, rng(2), event_ndim=2))
    assert np.all(x == drawn[:, 0])
    assert len(np.unique(np.round(x - arrays.numpy(z), 4)[:, 0, 0])) == 4


def test_white_noise_of_another_law(doubles: Arrays) -> None:
    z = doubles.asarray(np.zeros((2000, 3)))
    x = doubles.numpy(white_noise(z, Gaussian(0.5), rng(0)))
    # the standard deviation of 6000 draws, to z = 4.75 (one in a million)
    assert abs(np.std(x) / 0.5 - 1) < 4.75 / (2 * 6000) ** 0.5


# --- with torch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["fgm", "ifgm", "pgm", "fgm, random start", "pgm, random start"])
def test_a_model_is_left_as_it_was(name: str, training: bool) -> None:
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
    x = ATTACKS[name](partial(input_gradient, loss), z, ball)
    with torch.no_grad():
        again = ATTACKS[name](partial(input_gradient, loss), z, ball)
    assert torch.equal(x, again)
    assert not x.requires_grad
    assert z.grad is None
    assert z.requires_grad
    assert all(part.training is training for part in model.modules())
    assert torch.all(first.grad == 1)
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])
    assert torch.all(loss(x, torch.arange(4)) > loss(z, torch.arange(4)))


# --- errors ----------------------------------------------------------------------------------------

Z = np.zeros((3, 2))


def same(x: Any, i: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "gradient is 3; expected a function", lambda: fgm(3, Z, Ball(2, 1.0))),
        (TypeError, "z is [1.0], of type list", lambda: fgm(same, [1.0], Ball(2, 1.0))),
        (TypeError, "z has dtype int64", lambda: pgm(same, np.zeros((3, 2), dtype=int), Ball(2, 1.0))),
        (ValueError, "z has shape (); expected (N,) + event", lambda: fgm(same, Z[0, 0], Ball(2, 1.0))),
        (ValueError, "z contains NaN or infinity", lambda: ifgm(same, Z + np.nan, Ball(2, 1.0))),
        (TypeError, "ball is 0.5; expected a Ball", lambda: fgm(same, Z, 0.5)),
        (TypeError, "ball is Gaussian(scale=1.0); expected a Ball", lambda: pgm(same, Z, Gaussian(1.0))),
        (TypeError, "ball is 0.5; expected a Ball, or a law", lambda: white_noise(Z, 0.5, rng(0))),
        (TypeError, "rng is 0; expected what", lambda: white_noise(Z, Ball(2, 1.0), 0)),
        (TypeError, "rng is 0; expected what", lambda: fgm(same, Z, Ball(2, 1.0), rng=0)),
        (ValueError, "z leaves the box clip = (0.0, 1.0)", lambda: fgm(same, Z + 2, Ball(2, 1.0, (0, 1)))),
        (ValueError, "z leaves the box", lambda: pgm(same, Z - 1, Ball(2, 1.0, (0, 1)))),
        (TypeError, "step is 'a'; expected a number", lambda: fgm(same, Z, Ball(2, 1.0), step="a")),
        (TypeError, "step is True", lambda: fgm(same, Z, Ball(2, 1.0), step=True)),
        (ValueError, "step is 0; expected a positive", lambda: fgm(same, Z, Ball(2, 1.0), step=0)),
        (ValueError, "step is inf; expected", lambda: pgm(same, Z, Ball(2, 1.0), step=inf)),
        (ValueError, "step is nan; expected", lambda: ifgm(same, Z, Ball(2, 1.0), step=float("nan"))),
        (ValueError, "steps is 0; expected a whole number", lambda: ifgm(same, Z, Ball(2, 1.0), steps=0)),
        (ValueError, "steps is 1.5; expected a whole number", lambda: pgm(same, Z, Ball(2, 1.0), steps=1.5)),
        (ValueError, "steps is True", lambda: pgm(same, Z, Ball(2, 1.0), steps=True)),
        (ValueError, "restarts is -1; expected", lambda: pgm(same, Z, Ball(2, 1.0), restarts=-1)),
        (
            ValueError,
            "restarts is 2, and rng is None; expected",
            lambda: pgm(same, Z, Ball(2, 1.0), restarts=2, loss=lambda x, i: x[:, 0]),
        ),
        (
            ValueError,
            "restarts is 2, and loss is None; expected",
            lambda: pgm(same, Z, Ball(2, 1.0), restarts=2, rng=rng(0)),
        ),
        (
            ValueError,
            "gradient(x, i) has shape (3,); expected that of x, (3, 2)",
            lambda: fgm(lambda x, i: x[:, 0], Z, Ball(2, 1.0)),
        ),
        (
            ValueError,
            "gradient(x, i) contains NaN or infinity",
            lambda: pgm(lambda x, i: x + np.inf, Z, Ball(2, 1.0)),
        ),
        (TypeError, "gradient(x, i) is None", lambda: fgm(lambda x, i: None, Z, Ball(2, 1.0))),
        (
            ValueError,
            "loss(x, i) has shape (3, 2); expected (3,), one loss for each x",
            lambda: pgm(same, Z, Ball(2, 1.0), loss=same),
        ),
        (
            ValueError,
            "loss(x, i) contains NaN",
            lambda: pgm(same, Z, Ball(2, 1.0), loss=lambda x, i: x[:, 0] * np.nan),
        ),
        (TypeError, "loss is 1; expected a function", lambda: pgm(same, Z, Ball(2, 1.0), loss=1)),
        (ValueError, "norm is 3.0; expected 1, 2 or inf", lambda: ifgm(same, Z + 1, Ball(3, 1.0))),
    ],
)
def test_bad_arguments_are_told(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_a_gradient_of_another_library_is_told() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    with pytest.raises(TypeError, match=r"gradient\(x, i\) is a torch array .* of one library"):
        fgm(lambda x, i: torch.zeros((3, 2)), Z, Ball(2, 1.0))
