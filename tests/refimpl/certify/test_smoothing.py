"""Radii of smoothed classifiers are below the exact ones, up to the stated failure probability."""

from math import inf, nan
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from phiball import Ball, Gaussian
from phiball.certify import ABSTAIN, certified_radius, smoothed_radii
from phiball.refimpl.certify import smoothing
from tests.support.arrays import Arrays

pytest.importorskip("scipy", reason="scipy: not installed")
CUBE = Ball("linf", 1.0)


def halfspace(x: Any) -> Any:
    """The score of class 1: the first coordinate minus 1/2."""
    return x[:, 0] - 0.5


@pytest.mark.parametrize("noise", [Gaussian(0.5), CUBE], ids=str)
def test_radii_exceed_the_distance_at_most_as_often_as_stated(
    noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-space attains the bound: the exact radius of its smoothed classifier is the distance."""
    x = np.tile([[1.1, 0.0]], (600, 1))
    result = smoothed_radii(halfspace, x, noise, failure_probability=0.1, n_samples=100, rng=0)
    wrong = int(np.sum(result.radius > 0.6))
    # The binomial bound is nearly sharp; 600 points have 60 +- 7.4 failures at failure probability 0.1.
    assert 15 < wrong < 60 + 4 * 7.4
    assert np.all(result.label == 1)
    assert result.norm == (2 if isinstance(noise, Gaussian) else 1)
    monkeypatch.setattr(smoothing, "binomial_lower_bound", lambda k, n, failure: k / n)
    optimistic = smoothed_radii(halfspace, x, noise, failure_probability=0.1, n_samples=100, rng=0)
    assert np.sum(optimistic.radius > 0.6) > 200
    monkeypatch.undo()
    sharp = smoothed_radii(halfspace, x[:2], noise, n_samples=100_000, batch_size=10_000, rng=0)
    assert np.all((sharp.radius > 0.57) & (sharp.radius <= 0.6))


def test_labels_and_abstention_on_every_library(arrays: Arrays) -> None:
    x = arrays.asarray(np.array([[5.0, 0.0], [-5.0, 0.0], [0.5, 0.0]]))
    result = smoothed_radii(halfspace, x, Gaussian(0.5), rng=0)
    p = 0.001 ** (1 / 1000)  # all samples agree
    assert arrays.numpy(result.label).tolist() == [1, 0, ABSTAIN]
    expected = [0.5 * NormalDist().inv_cdf(p)] * 2 + [0.0]
    np.testing.assert_allclose(arrays.numpy(result.radius), expected, atol=1e-9)
    y = arrays.xp.asarray([1, 1, 0], **arrays.at)
    assert arrays.numpy(smoothed_radii(halfspace, x, CUBE, y, rng=0).label).tolist() == [1, ABSTAIN, ABSTAIN]


def test_images_and_scales_of_each_point() -> None:
    x = np.zeros((2, 1, 2, 2))
    noise = Ball("linf", 1.0, feature_scale=np.array([0.0, 1.0]).reshape(2, 1, 1, 1))
    result = smoothed_radii(lambda z: z[:, 0, 0, 0] + 1e-9, x, noise, np.array([1, 1]), rng=0)
    assert result.label.tolist() == [1, ABSTAIN]  # the first point has no noise


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"classifier": lambda x: np.full((len(x), 3), nan)}, ValueError, "NaN"),
        ({"classifier": lambda x: x[:, :, None]}, ValueError, "returns shape"),
        ({"noise": Gaussian(0.0)}, ValueError, "positive std"),
        ({"noise": Ball(2, 1.0)}, ValueError, "norm inf"),
        ({"noise": Ball(inf, 1.0, (0, 1))}, ValueError, "without clip"),
        ({"y": np.array([2])}, ValueError, "label outside 0 to 1"),
        ({"y": np.array([0.0])}, ValueError, "integer labels"),
        ({"failure_probability": 0.0}, ValueError, "failure_probability is 0"),
        ({"n_samples": 0}, ValueError, "n_samples is 0"),
    ],
)
def test_invalid_arguments_raise(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"classifier": halfspace, "x": np.zeros((1, 2)), "noise": Gaussian(1.0), **change}
    with pytest.raises(error, match=message):
        smoothed_radii(**arguments)


def test_classifier_in_training_mode_raises() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    with pytest.raises(ValueError, match="training mode"):
        smoothed_radii(torch.nn.Linear(2, 2), torch.zeros(1, 2), Gaussian(1.0))


def test_radius_needs_a_majority() -> None:
    assert certified_radius(0.5, CUBE) == 0
    assert certified_radius(0.3, Gaussian(1.0)) == 0
    assert certified_radius(1.0, CUBE) == 1
    with pytest.raises(ValueError, match="p is nan"):
        certified_radius(nan, CUBE)
