"""Radii of smoothed classifiers are below the exact ones, up to the stated failure probability."""

from dataclasses import replace
from math import exp, inf, log, log1p, nan
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from phiball import Ball, Gaussian
from phiball.backends import as_rng
from phiball.certify import ABSTAIN, SmoothedClassifier, certified_radius
from phiball.refimpl.certify import smoothing
from tests.support.arrays import Arrays

special = pytest.importorskip("scipy.special", reason="scipy: not installed")
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
    on_boundary = x - np.array([0.6, 0.0])  # the class must be selected by other samples
    assert np.sum(smoothed.radii(on_boundary).radius > 0) < 60 + 4 * 7.4
    assert result.norm == (2 if isinstance(noise, Gaussian) else 1)
    monkeypatch.setattr(smoothing, "binomial_lower_bound", lambda k, n, failure: k / n)
    assert np.sum(smoothed.radii(x).radius > 0.6) > 200
    monkeypatch.undo()
    sharp = SmoothedClassifier(halfspace, noise, n_samples=100_000, batch_size=10_000).radii(x[:2])
    assert np.all((sharp.radius > 0.57) & (sharp.radius <= 0.6))


class Laplace:
    """Noise with density exp(-|b|_1/a)/(2 a)^d; shifts are in l1."""

    def __init__(self, a: float) -> None:
        self.a = a

    def sample(self, x: Any, n_samples: int, *, rng: Any = None, event_ndim: int = 1) -> Any:
        shape = (*x.shape[:-event_ndim], n_samples, *x.shape[-event_ndim:])
        size = as_rng(rng).exponential(shape, like=x)
        return x[:, None, ...] + self.a * np.where(as_rng(rng).uniform(shape, like=x) < 0.5, size, -size)

    def shift_divergence(self, radius: float, divergence: Any) -> float:
        assert divergence.name == "entropic"
        return radius / self.a + exp(-radius / self.a) - 1


def test_radii_of_other_noise() -> None:
    """The smoothed classifier of a half-space has exactly p = 1 - exp(-0.6/a)/2."""
    x, noise = np.array([[1.1, 0.0], [0.5, 0.0]]), Laplace(0.2)
    result = SmoothedClassifier(halfspace, noise, divergence="kl", n_samples=10_000).radii(x)
    p = 1 - exp(-3) / 2
    assert p - 0.01 < result.p[0] <= p
    # The Bernoulli KL divergence between 1/2 and p is log(1/(4 p (1 - p)))/2.
    budget = -log(4 * result.p[0] * (1 - result.p[0])) / 2
    assert result.radius[0] / 0.2 + exp(-result.radius[0] / 0.2) - 1 == pytest.approx(budget, rel=1e-9)
    assert result.radius[0] < 0.6
    assert result.label.tolist() == [1, ABSTAIN]
    assert result.norm is None
    with pytest.raises(ValueError, match=r"noise is .*Laplace"):
        SmoothedClassifier(halfspace, noise)


def test_bounds_on_mean_scores_fail_at_most_as_often_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the normal distribution function as a score, the mean score has a closed form."""

    def scores(x: Any) -> Any:
        own = special.ndtr(4 * halfspace(x))
        return np.stack([0.2 * (1 - own), own, 0.8 * (1 - own)], axis=1)  # the largest other score is 0.8

    x = np.stack([np.full(300, 0.8), np.arange(300)], axis=1)
    smoothed = SmoothedClassifier(scores, Gaussian(0.5), soft=True, failure_probability=0.1, n_samples=2000)
    own = NormalDist().cdf(0.3 / (0.5**2 + 0.25**2) ** 0.5)
    mean = (1 + own - 0.8 * (1 - own)) / 2
    np.testing.assert_allclose(smoothed(x[:4])[:, 1], own, atol=0.1)
    assert np.sum(smoothed.radii(x).p > mean) < 30 + 4 * 5.2
    assert np.mean(smoothed.radii(x).p) > mean - 0.05
    monkeypatch.setattr(smoothing, "binomial_lower_bound", lambda k, n, failure: k / n)
    assert np.sum(smoothed.radii(x).p > mean) > 100


def test_divergences_use_the_distribution_of_scores() -> None:
    """A constant score of 0.7 has loss 0.3, except with a probability q of at most 1 - (failure/n)^(1/n)."""
    x, n = np.zeros((1, 1)), 1000
    smoothed = SmoothedClassifier(lambda z: 0 * z + 0.7, Gaussian(0.5), soft=True, n_samples=n)
    q = 1 - (0.001 / n) ** (1 / n)
    other = 2 / 7  # the probability of loss 1 with which the mean loss is 1/2
    budgets = {
        "kl": other * log(other / q) + (1 - other) * log((1 - other) / (1 - q)),
        "chi2": (other - q) ** 2 / (2 * q * (1 - q)),
    }
    shifts = {"kl": (2 * budgets["kl"]) ** 0.5, "chi2": log1p(2 * budgets["chi2"]) ** 0.5}
    for divergence, shift in shifts.items():
        result = replace(smoothed, divergence=divergence).radii(x)
        assert result.radius[0] == pytest.approx(0.5 * shift, rel=1e-6)
        assert result.radius[0] > 1.7 * smoothed.radii(x).radius[0]  # which depends on the mean alone


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
    assert smoothed(x).dtype == x.dtype
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
        (
            {"classifier": lambda x: np.full(len(x), 2)},
            ValueError,
            "dtype int64; expected scores, not labels",
        ),
        ({"classifier": lambda x: x[:, :, None]}, ValueError, "returns shape"),
        ({"soft": True}, ValueError, r"scores outside \[0, 1\]"),
        ({"divergence": "cosine"}, ValueError, "divergence is 'cosine'"),
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
