"""Radii of smoothed classifiers are below the exact ones, up to the stated failure probability."""

from math import inf, nan
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from phiball import Ball, Gaussian
from phiball.certify import ABSTAIN, SmoothedClassifier, certified_radius
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
    x = np.stack([np.full(600, 1.1), np.arange(600)], axis=1)  # equal points would have equal noise
    smoothed = SmoothedClassifier(halfspace, noise, failure_probability=0.1, n_samples=100)
    result = smoothed.radii(x)
    wrong = int(np.sum(result.radius > 0.6))
    # The binomial bound is nearly sharp; 600 points have 60 +- 7.4 failures at failure probability 0.1.
    assert 15 < wrong < 60 + 4 * 7.4
    assert np.all(result.label == 1)
    assert result.norm == (2 if isinstance(noise, Gaussian) else 1)
    monkeypatch.setattr(smoothing, "binomial_lower_bound", lambda k, n, failure: k / n)
    assert np.sum(smoothed.radii(x).radius > 0.6) > 200
    monkeypatch.undo()
    sharp = SmoothedClassifier(halfspace, noise, n_samples=100_000, batch_size=10_000).radii(x[:2])
    assert np.all((sharp.radius > 0.57) & (sharp.radius <= 0.6))


def test_labels_and_abstention_on_every_library(arrays: Arrays) -> None:
    x = arrays.asarray(np.array([[5.0, 0.0], [-5.0, 0.0], [0.5, 0.0]]))
    result = SmoothedClassifier(halfspace, Gaussian(0.5)).radii(x)
    p = 0.001 ** (1 / 1000)  # all samples agree
    assert arrays.numpy(result.label).tolist() == [1, 0, ABSTAIN]
    expected = [0.5 * NormalDist().inv_cdf(p)] * 2 + [0.0]
    np.testing.assert_allclose(arrays.numpy(result.radius), expected, atol=1e-9)
    y = arrays.xp.asarray([1, 1, 0], **arrays.at)
    smoothed = SmoothedClassifier(halfspace, CUBE)
    assert arrays.numpy(smoothed.radii(x, y).label).tolist() == [1, ABSTAIN, ABSTAIN]
    shares = arrays.numpy(smoothed(x))
    np.testing.assert_allclose(shares[:, 1], [1, 0, 0.5], atol=0.06)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)


def test_results_do_not_depend_on_other_points() -> None:
    x = np.linspace(0.0, 1.0, 6).reshape(6, 1, 1, 1) + np.zeros((6, 1, 2, 2))
    noise = Ball("linf", 1.0, feature_scale=np.array([[0.0, 1.0], [1.0, 1.0]]))
    smoothed = SmoothedClassifier(lambda z: z.sum(axis=(1, 2, 3)) - 1.5, noise, n_samples=50, rng=7)
    whole, part, steps = smoothed.radii(x), smoothed.radii(x[4:]), []
    assert np.array_equal(whole.p[4:], part.p)
    assert np.array_equal(smoothed(x)[4:], smoothed(x[4:]))
    other = smoothed.radii(x, rng=8, update=lambda share, text: steps.append((share, text)))
    assert not np.array_equal(other.p, whole.p)
    assert steps[3] == (0.5, "radius of point 4 of 6")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"classifier": lambda x: np.full((len(x), 3), nan)}, ValueError, "NaN"),
        ({"classifier": lambda x: x[:, :, None]}, ValueError, "returns shape"),
        ({"noise": Gaussian(0.0)}, ValueError, "positive std"),
        ({"noise": Ball(2, 1.0)}, ValueError, "norm inf"),
        ({"noise": Ball(inf, 1.0, (0, 1))}, ValueError, "without clip"),
        ({"noise": Ball(inf, 1.0, feature_scale=np.ones((2, 1)))}, ValueError, "differs between data points"),
        ({"y": np.array([0, 2])}, ValueError, "label outside 0 to 1"),
        ({"y": np.zeros(2)}, ValueError, "integer labels"),
        ({"failure_probability": 0.0}, ValueError, "failure_probability is 0"),
        ({"n_samples": 0}, ValueError, "n_samples is 0"),
    ],
)
def test_invalid_arguments_raise(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"classifier": halfspace, "noise": Gaussian(1.0), **change}
    y = arguments.pop("y", None)
    with pytest.raises(error, match=message):
        SmoothedClassifier(**arguments).radii(np.zeros((2, 2)), y)


def test_classifier_in_training_mode_raises() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    with pytest.raises(ValueError, match="training mode"):
        SmoothedClassifier(torch.nn.Linear(2, 2), Gaussian(1.0))(torch.zeros(1, 2))


def test_radius_needs_a_majority() -> None:
    assert certified_radius(0.5, CUBE) == 0
    assert certified_radius(0.3, Gaussian(1.0)) == 0
    assert certified_radius(1.0, CUBE) == 1
    with pytest.raises(ValueError, match="p is nan"):
        certified_radius(nan, CUBE)
