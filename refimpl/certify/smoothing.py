"""Randomized smoothing: certified radii of a classifier that votes over noisy copies of its input.

The smoothed classifier returns the class that the given classifier returns most often on x + noise. If it
returns a class with probability p > 1/2, it keeps that class for all perturbations up to a radius:

- Gaussian noise: std quantile(p) in l2, with the normal quantile (Cohen, Rosenfeld and Kolter, "Certified
  adversarial robustness via randomized smoothing");
- uniform noise on the cube [-a, a]^d: 2 a (p - 1/2) in l1 (Yang et al., "Randomized smoothing of all shapes
  and sizes").

Both radii are the largest that hold for every classifier with this p. They also hold for means of scores in
[0, 1] instead of votes; then p is the mean of (1 + own score - largest other score)/2. A phi-divergence
allows other noise, and uses the whole distribution of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from math import inf
from statistics import NormalDist
from typing import Any

from phiball.backends import (
    Array,
    Rng,
    array_namespace,
    as_rng,
    device,
    is_array_api_obj,
    to_numpy,
    without_gradient,
)
from phiball.backends.progress import Update, silent
from phiball.backends.qmc import binomial_lower_bound
from phiball.refimpl.certify.margins import valid_labels
from phiball.refimpl.certify.shifts import check_noise, losses_radius
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.numerics import to_double
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import valid_data
from phiball.refimpl.validation import valid_count, valid_number

ABSTAIN = -1
"""The label of points without a certified class.

>>> ABSTAIN
-1
"""
_N_SELECT = 100  # samples that select a class


@dataclass(frozen=True)
class SmoothedRadii:
    """Certified radii of a smoothed classifier.

    - `label` (N,): the certified class of each point, or `ABSTAIN`.
    - `radius` (N,): the certified radius, 0 where the classifier abstains.
    - `p` (N,): the lower confidence bound on the probability of the class; for scores, on the mean of
      (1 + own score - largest other score)/2.
    - `norm`: the exponent of the norm of the radius: 2 for Gaussian noise, 1 for uniform noise, and None for
      other noise. With `feature_scale`, the radius is that of a `Ball` with the same `feature_scale`.
    - `failure_probability`: the largest probability that the radius of a point is wrong.
    """

    label: Array
    radius: Array
    p: Array
    norm: float | None
    failure_probability: float
    __repr__ = one_line


@dataclass(frozen=True)
class SmoothedClassifier:
    """A classifier that votes over noisy copies of its input, with certified radii; needs scipy.

    Calling it on points (k,) + event returns scores (k, classes): the shares of the votes, without gradient.
    The noise around a point depends on `rng` and on the point itself, but on no other point, so that points
    may be split into batches.

    Arguments:
    - `classifier`: a function from points (k,) + event to scores (k, classes), or (k,) or (k, 1) scores that
      are positive for class 1.
    - `noise`: a `Gaussian` for radii in l2, or a Ball("linf", a) without `clip` for radii in l1. With a
      `divergence`, also noise of your own, as in `shift_divergence`.
    - `soft`: True averages scores in [0, 1], such as probabilities, instead of votes. A single score is then
      the probability of class 1.
    - `divergence`: certify by this divergence, as in `divergence_radius`, instead of `certified_radius`.
    - `n_samples`: the number of votes per point.
    - `failure_probability`: the largest probability, for each point, of a wrong radius.
    - `batch_size`: the number of points that are classified at a time.
    - `rng`: an integer, a generator, an `Rng`, or None for fresh entropy in each call.

    >>> import numpy as np
    >>> from phiball import Gaussian
    >>> from phiball.certify import SmoothedClassifier
    >>> smoothed = SmoothedClassifier(lambda x: x[:, 0], Gaussian(0.5))
    >>> radii = smoothed.radii(np.array([[0.6, 0.0], [0.0, 1.0]]))
    >>> print(radii.label, radii.radius.round(2))  # the exact distance of the first point is 0.6
    [ 1 -1] [0.52 0.  ]
    """

    classifier: Callable[[Array], Array]
    noise: Any
    _: KW_ONLY
    soft: bool = False
    divergence: str | Divergence | None = None
    n_samples: int = 1000
    failure_probability: float = 0.001
    batch_size: int = 1000
    rng: Any = 0

    def __post_init__(self) -> None:
        valid_count("n_samples", self.n_samples)
        valid_count("batch_size", self.batch_size)
        if not 0 < valid_number("failure_probability", self.failure_probability) < 1:
            raise ValueError(
                f"failure_probability is {self.failure_probability!r}; expected a number in (0, 1)"
            )
        check_noise(self.noise, any_noise=self.divergence is not None)
        if self.divergence is not None:
            as_divergence(self.divergence)

    def __call__(self, x: Array) -> Array:
        """The shares of the votes, or the mean scores, (k, classes) at points x (k,) + event."""
        x, rng, xp = self._valid(x), as_rng(self.rng), array_namespace(x)
        means = [self._mean(x[n : n + 1, ...], self.n_samples, rng, "scores") for n in range(x.shape[0])]
        return xp.astype(xp.concat(means), x.dtype)

    def radii(
        self, x: Array, y: Array | None = None, *, rng: Any = None, update: Update = silent
    ) -> SmoothedRadii:
        """Certified radii around each data point.

        Arguments:
        - `x` (N,) + event: the data points.
        - `y` (N,): labels to certify. By default, the class is selected by 100 further samples.
        - `rng`: replaces the `rng` of this classifier.
        - `update`: a function of the share of the work done and the next step's name, for a progress display.

        The classifier abstains where the bound on p is at most 1/2. With n samples, p is bounded by
        failure_probability^(1/n) at best, which limits the radius: with Gaussian noise and the default
        failure probability, to 2.46 std for n = 1000 and 3.20 std for n = 10,000. For scores, the bounds on
        their n quantiles share the failure probability, so that it is failure_probability/n here.
        """
        x, rng, xp = self._valid(x), as_rng(self.rng if rng is None else rng), array_namespace(x)
        labels = None if y is None else valid_labels(y, x, self._scores(x[:1, ...]).shape[1])
        n, failure, out = self.n_samples, self.failure_probability, []
        made = {"dtype": xp.float64, "device": device(x)}
        # Bounds on the probabilities that the loss is at most the 1st, 2nd, ..., nth smallest of n losses.
        levels = [binomial_lower_bound(k, n, failure / n) for k in range(1, n + 1)] if self.soft else []
        for i in range(x.shape[0]):
            update(i / x.shape[0], f"radius of point {i + 1} of {x.shape[0]}")
            point = x[i : i + 1, ...]
            if labels is None:
                label = int(xp.argmax(self._mean(point, _N_SELECT, rng, "class")))
            else:
                label = int(labels[i])
            losses = xp.concat([_losses(s, label) for s in self._batches(point, n, rng, "radius")])
            if self.soft:
                losses = xp.concat([xp.sort(losses), xp.ones((1,), **made)])
                mass = xp.asarray([b - a for a, b in pairwise([0.0, *levels, 1.0])], **made)
            else:
                p = binomial_lower_bound(n - int(xp.sum(losses)), n, failure)
                losses, mass = (xp.asarray(pair, **made) for pair in ([0.0, 1.0], [p, 1 - p]))
            p = 1 - float(xp.sum(losses * mass))
            if p <= 0.5:
                label, radius = ABSTAIN, 0.0
            elif self.divergence is None:
                radius = certified_radius(p, self.noise)
            else:
                radius = losses_radius(losses, mass, self.noise, self.divergence)
            out.append((label, radius, p))
        chosen, certified, bounds = zip(*out, strict=True)
        known = 2.0 if isinstance(self.noise, Gaussian) else 1.0 if isinstance(self.noise, Ball) else None
        return SmoothedRadii(
            xp.asarray(chosen, dtype=xp.int64, device=device(x)),
            xp.asarray(certified, **made),
            xp.asarray(bounds, **made),
            known,
            failure,
        )

    def _valid(self, x: Array) -> Array:
        if getattr(self.classifier, "training", False):
            raise ValueError("the classifier is in training mode; call eval() first")
        scale = getattr(self.noise, "feature_scale", None)
        if scale is not None and scale.per_point(x.ndim - 1):
            raise ValueError("feature_scale differs between data points; expected one scale for all of them")
        return valid_data(x)

    def _mean(self, x: Array, n_samples: int, rng: Rng, purpose: str) -> Array:
        """The mean scores (1, classes) around a point x (1,) + event."""
        xp = array_namespace(x)
        total = sum(xp.sum(s, axis=0, keepdims=True) for s in self._batches(x, n_samples, rng, purpose))
        return total / n_samples

    def _batches(self, x: Array, n_samples: int, rng: Rng, purpose: str) -> Iterator[Array]:
        """Votes or scores (size, classes) of samples around a point x (1,) + event, a batch at a time."""
        rng = rng.keyed(f"{purpose} {to_numpy(x).tobytes().hex()}")
        for start in range(0, n_samples, self.batch_size):
            size = min(self.batch_size, n_samples - start)
            yield self._scores(self.noise.sample(x, size, rng=rng, event_ndim=x.ndim - 1)[0, ...])

    def _scores(self, points: Array) -> Array:
        """Votes or scores (k, classes) at points; raise for NaN, a wrong shape or invalid probabilities."""
        xp = array_namespace(points)
        with without_gradient():
            scores = self.classifier(points)
        if not is_array_api_obj(scores) or scores.shape[:1] != points.shape[:1] or scores.ndim > 2:
            shape = tuple(getattr(scores, "shape", ()))
            raise ValueError(f"the classifier returns shape {shape}; expected ({points.shape[0]}, classes)")
        if not xp.isdtype(scores.dtype, "real floating"):
            raise ValueError(f"the classifier returns dtype {scores.dtype}; expected scores, not labels")
        if xp.any(xp.isnan(scores)):
            raise ValueError("the classifier returns NaN; expected scores")
        if self.soft and xp.any((scores < 0) | (scores > 1)):
            raise ValueError("the classifier returns scores outside [0, 1]; expected probabilities")
        scores = to_double(xp.reshape(scores, (scores.shape[0], -1)))
        if scores.shape[1] == 1:
            scores = xp.concat([1 - scores if self.soft else 0 * scores, scores], axis=1)
        classes = xp.arange(scores.shape[1], device=device(scores))
        return scores if self.soft else xp.astype(xp.argmax(scores, axis=1)[:, None] == classes, xp.float64)


def _losses(scores: Array, label: int) -> Array:
    """(1 - own score + largest other score)/2, from 0 to 1; for votes, whether they are wrong."""
    xp = array_namespace(scores)
    others = xp.concat([scores[:, :label], scores[:, label + 1 :]], axis=1)
    return (1 - scores[:, label] + xp.max(others, axis=1)) / 2


def certified_radius(p: float, noise: Gaussian | Ball) -> float:
    """The radius within which a class keeps a probability of at least 1/2, if it has probability p at x.

    Arguments:
    - `p`: a probability; the radius is 0 unless it exceeds 1/2.
    - `noise`: a `Gaussian`, for a radius in l2, or a Ball("linf", a), for a radius in l1.

    >>> from phiball import Ball, Gaussian
    >>> print([round(certified_radius(0.99, noise), 3) for noise in (Gaussian(1.0), Ball("linf", 1.0))])
    [2.326, 0.98]
    """
    check_noise(noise)
    if not 0 <= valid_number("p", p) <= 1:
        raise ValueError(f"p is {p!r}; expected a probability")
    if p <= 0.5:
        return 0.0
    if isinstance(noise, Gaussian):
        return inf if p == 1 else noise.std * NormalDist().inv_cdf(p)
    return 2 * noise.radius * (p - 0.5)
