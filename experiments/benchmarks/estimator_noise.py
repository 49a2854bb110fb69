"""`phiball bench estimators`: bias, noise and cost of uniform and tilted points on a trained network.

The entropic risk of a few test images and its gradient in the network's parameters are estimated repeatedly.
The true values are unknown. They are replaced by a reference: a long run with tilted points, checked against
a long run with uniform points. Every proposal underestimates the risk on average, so an estimate
significantly above the reference shows that the reference is too low.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import hypot, sqrt

import numpy as np

from phiball.backends import Array, Rng, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import BenchmarkReport, BenchmarkTable, Clock, Row, part_of
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.small_classifiers import Classifier, small_classifier
from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, Tilted, Uniform

PROPOSALS: dict[str, Uniform | Tilted] = {
    "uniform": Uniform(),
    "antithetic": Uniform(antithetic=True),
    "tilted": Tilted(),
    "retilted": Tilted(retilt=1),
}
RADII = {"l2": (0.5, 2.0), "linf": (0.1, 0.3)}
RATIOS = (0.02, 0.2, 2.0)  # eta/radius
# Two estimates agree if they differ by at most this many standard errors. If the standard errors come from
# eight runs, about one pair of correct estimates in 200 fails this test by chance.
AGREE = 4
SIGNIFICANT = 3  # a bias of more than this many standard errors is significant
MAX_REFERENCE_ERROR = 0.1  # standard error of a reference gradient, relative to its length
CHUNK = 8192  # points per evaluation
NOTE = (
    "bias, sd (standard deviation): of the risk. gradient bias, sd, error (root mean squared distance): in % "
    "of the length of the reference gradient. < b: not significant, b is three standard errors. ?: unknown, "
    "because the tilted and uniform references differ, are too noisy, or are below an estimate. retilted: "
    "Tilted(retilt=1)"
)


@dataclass(frozen=True)
class Scale:
    """The size of the benchmark; an estimate of level k uses 2^k points per image."""

    radii: int = 2  # per norm
    ratios: tuple[float, ...] = RATIOS
    levels: tuple[int, ...] = (0, 2, 4, 6)
    replications: int = 48
    long: dict[str, int] = field(default_factory=lambda: {"tilted": 12, "uniform": 14})  # reference levels
    runs: int = 8  # replications of each reference


QUICK = Scale(radii=1, ratios=(0.02, 2.0), levels=(0, 2), replications=16, long={"tilted": 8, "uniform": 8})


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation of `count` estimates of the risk (`value`) and of its gradient.

    The gradient is a vector with an entry per parameter of the network; `gradient_sd` is a Euclidean length.
    `evaluations` is the number of evaluated points per image and estimate.
    """

    count: int
    value: float
    value_sd: float
    gradient: Array
    gradient_sd: float
    evaluations: float

    @property
    def value_error(self) -> float:
        """The standard error of `value`."""
        return self.value_sd / sqrt(self.count)

    @property
    def gradient_error(self) -> float:
        """The standard error of `gradient`, as a Euclidean length."""
        return self.gradient_sd / sqrt(self.count)


def estimate(
    classifier: Classifier, ball: Ball, eta: float, label: str, level: int, count: int, source: Rng
) -> Mean:
    """Estimate the risk of the test images and its gradient `count` times, from 2^level points per image."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(level), PROPOSALS[label])
    parameters = list(classifier.model.parameters())
    evaluations, values, gradients = 0, [], []

    def loss(x: Array, i: Array) -> Array:
        nonlocal evaluations
        evaluations += len(x)
        return classifier.loss(x, i)

    for _ in range(count):
        classifier.model.zero_grad()
        values.append(float(objective.backward(loss, classifier.x, rng=source, chunk=CHUNK)))
        gradients.append(np.concatenate([p.grad.numpy().ravel() for p in parameters]).astype(np.float64))
    classifier.model.zero_grad()
    return Mean(
        count,
        float(np.mean(values)),
        float(np.std(values, ddof=1)),
        np.mean(gradients, axis=0),
        sqrt(np.sum(np.var(gradients, axis=0, ddof=1))),
        evaluations / (count * len(classifier.x)),
    )


def long_run(
    problem: tuple[Classifier, Ball, float], label: str, level: int, count: int, source: Rng
) -> Mean:
    """The mean of a few estimates from n = 2^level points; the standard deviations include the bias.

    `problem` is the classifier, the ball and eta. The bias is assumed to decay as 1/n. Then the bias at n
    points is a third of the change of the mean from n/4 to n points.
    """
    short, long = (estimate(*problem, label, k, count, source) for k in (level - 2, level))
    root = sqrt(long.count)
    bias = abs(long.value - short.value) / 3, float(np.linalg.norm(long.gradient - short.gradient)) / 3
    return replace(
        long,
        value_sd=hypot(long.value_sd, root * bias[0]),
        gradient_sd=hypot(long.gradient_sd, root * bias[1]),
    )


def reference_of(tilted: Mean, uniform: Mean, others: list[Mean]) -> tuple[Mean, bool]:
    """Return the tilted run with the combined errors of both runs, and whether it is a valid reference.

    The reference is invalid if the two runs differ significantly, if the error of the gradient is large, or
    if the risk of one of the `others` is significantly higher.
    """
    error = hypot(tilted.value_error, uniform.value_error)
    gradient_error = hypot(tilted.gradient_error, uniform.gradient_error)
    agree = (
        abs(tilted.value - uniform.value) <= AGREE * error
        and float(np.linalg.norm(tilted.gradient - uniform.gradient)) <= AGREE * gradient_error
    )
    exceeded = any(m.value - tilted.value > AGREE * hypot(m.value_error, error) for m in others)
    precise = gradient_error <= MAX_REFERENCE_ERROR * float(np.linalg.norm(tilted.gradient))
    root = sqrt(tilted.count)
    reference = replace(tilted, value_sd=root * error, gradient_sd=root * gradient_error)
    return reference, agree and precise and not exceeded


def _number(x: float) -> str:
    return f"{float(f'{x:.2g}'):g}"  # 10, not 1e+01


def estimator_row(where: Row, name: str, n: int, mean: Mean, reference: Mean, known: bool) -> Row:
    """The row of one estimator.

    - `where`: the first columns of the row.
    - `n`: points per image.
    - `known`: whether the reference is valid; otherwise the biases are unknown.
    """
    limit = SIGNIFICANT * hypot(mean.value_error, reference.value_error)
    gradient_error = hypot(mean.gradient_error, reference.gradient_error)
    length = float(np.linalg.norm(reference.gradient))
    distance = float(np.linalg.norm(mean.gradient - reference.gradient))
    bias = gradient_bias = "?"
    if known:
        difference = mean.value - reference.value
        bias = f"{difference:+.2g}" if abs(difference) > limit else f"< {_number(limit)}"
        gradient_bias = f"< {_number(100 * SIGNIFICANT * gradient_error / length)}"
        if distance > SIGNIFICANT * gradient_error:
            # On average the squared distance is the squared bias plus the squared standard error.
            gradient_bias = _number(100 * sqrt(distance**2 - gradient_error**2) / length)
    row = {**where, "points": name, "bias": bias, "gradient bias": gradient_bias}
    numbers = {"n": n, "evaluations": mean.evaluations, "sd": mean.value_sd}
    total = 100 * hypot(distance, mean.gradient_sd) / length if known else None
    return {**row, **numbers, "gradient sd": 100 * mean.gradient_sd / length, "gradient error": total}


def estimator_rows(classifier: Classifier, scale: Scale, seed: int = 0, update: Update = silent) -> list[Row]:
    """A row per ball, eta, proposal and number of points."""
    source, rows = rng(seed), []
    places = [(p, r, ratio) for p in RADII for r in RADII[p][: scale.radii] for ratio in scale.ratios]
    for number, (norm, radius, ratio) in enumerate(places):
        text = f"{norm} {radius:g}, eta {ratio:g} radius"
        update(number / len(places), f"{text}: short runs")
        problem = classifier, Ball(norm, radius), ratio * radius
        means = {
            (label, level): estimate(*problem, label, level, scale.replications, source)
            for label in PROPOSALS
            for level in scale.levels
            if level > 0 or label != "antithetic"  # an antithetic pair needs two points
        }
        update((number + 0.3) / len(places), f"{text}: the reference")
        tilted, uniform = (
            long_run(problem, label, scale.long[label], scale.runs, source) for label in ("tilted", "uniform")
        )
        reference, known = reference_of(tilted, uniform, list(means.values()))
        risk = f"{reference.value:.4f} ± {reference.value_error:.1g}" if known else "?"
        for (label, level), mean in means.items():
            where = {"where": text, "risk": risk}
            rows.append(estimator_row(where, label, 1 << level, mean, reference, known))
    return rows


def bench_estimators(
    *, clock: Clock, quick: bool = False, seed: int = 0, update: Update = silent
) -> BenchmarkReport:
    """Train a network and compare the proposals; `clock` is not used."""
    require("torch", user="bench estimators", extra="bench")
    update(0.0, "training")
    classifier = small_classifier(seed)
    scale = QUICK if quick else Scale()
    rows = estimator_rows(classifier, scale, seed, part_of(update, 0.02, 1.0))
    title = f"Estimators on a trained network: {classifier.name}, {len(classifier.x)} images"
    return BenchmarkReport([BenchmarkTable(title, rows, NOTE)])
