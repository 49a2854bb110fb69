"""`phiball bench estimators`: bias, noise and cost of uniform and tilted points at a trained network.

The entropic risk of a few test images and its gradient in the network's parameters are estimated repeatedly.
The true values are unknown. The reference is a long run with tilted points, checked against a long run with
uniform points. Every proposal underestimates the risk on average, so an estimate significantly above the
reference shows that the reference is too low.
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
# Standard errors by which two estimates may differ: one pair in 200 differs by more if the errors come from
# eight runs.
AGREE = 4
SIGNIFICANT = 3  # standard errors from which a bias is significant
SHARP = 0.1  # largest error of a reference, relative to the length of the gradient
CHUNK = 8192  # points per evaluation
NOTE = (
    "bias and sd of the value in units of the loss, of the gradient in % of the reference's length; gradient "
    "error: root mean squared distance from the reference, in %. <: not significant (three standard errors); "
    "?: unknown, because the tilted and uniform references differ, are too noisy, or are below an estimate. "
    "retilted: Tilted(retilt=1)"
)


@dataclass(frozen=True)
class Scale:
    """The size of the benchmark."""

    radii: int = 2
    ratios: tuple[float, ...] = RATIOS
    levels: tuple[int, ...] = (0, 2, 4, 6)
    replications: int = 48
    long: dict[str, int] = field(
        default_factory=lambda: {"tilted": 12, "uniform": 14}
    )  # levels of the references
    runs: int = 8  # runs of each reference


QUICK = Scale(radii=1, ratios=(0.02, 2.0), levels=(0, 2), replications=16, long={"tilted": 8, "uniform": 8})


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation of independent estimates of the value and the gradient (p,)."""

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
        """The standard error of `gradient`, as a length."""
        return self.gradient_sd / sqrt(self.count)


def estimate(
    classifier: Classifier, ball: Ball, eta: float, label: str, level: int, count: int, source: Rng
) -> Mean:
    """Estimate the risk of the test images and its gradient `count` times, from 2^level points per image."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(level), PROPOSALS[label])
    parameters = list(classifier.model.parameters())
    seen, values, gradients = 0, [], []

    def loss(x: Array, i: Array) -> Array:
        nonlocal seen
        seen += len(x)
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
        seen / (count * len(classifier.x)),
    )


def long_run(
    problem: tuple[Classifier, Ball, float], label: str, level: int, count: int, source: Rng
) -> Mean:
    """The mean of a few estimates from very many points, with the remaining bias added to its error.

    A bias that decays as 1/n is a third of the change when n was last increased fourfold.
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
    """The tilted run with the errors of both runs, and whether it can be trusted.

    It cannot if the runs differ, if the errors are large, or if another estimate is higher.
    """
    error = hypot(tilted.value_error, uniform.value_error)
    slope_error = hypot(tilted.gradient_error, uniform.gradient_error)
    agree = (
        abs(tilted.value - uniform.value) <= AGREE * error
        and float(np.linalg.norm(tilted.gradient - uniform.gradient)) <= AGREE * slope_error
    )
    above = any(m.value - tilted.value > AGREE * hypot(m.value_error, error) for m in others)
    sharp = slope_error <= SHARP * float(np.linalg.norm(tilted.gradient))
    root = sqrt(tilted.count)
    truth = replace(tilted, value_sd=root * error, gradient_sd=root * slope_error)
    return truth, agree and sharp and not above


def _number(x: float) -> str:
    return f"{float(f'{x:.2g}'):g}"  # 10, not 1e+01


def estimator_row(where: Row, name: str, n: int, mean: Mean, truth: Mean, known: bool) -> Row:
    """The row of one estimator."""
    error = SIGNIFICANT * hypot(mean.value_error, truth.value_error)
    slope_error = hypot(mean.gradient_error, truth.gradient_error)
    length = float(np.linalg.norm(truth.gradient))
    apart = float(np.linalg.norm(mean.gradient - truth.gradient))
    bias = slope_bias = "?"
    if known:
        low = mean.value - truth.value
        bias = f"{low:+.2g}" if abs(low) > error else f"< {_number(error)}"
        # The squared length of the difference includes the squared noise.
        rest = 100 * sqrt(max(0.0, apart**2 - slope_error**2)) / length
        significant = apart > SIGNIFICANT * slope_error
        slope_bias = (
            _number(rest) if significant else f"< {_number(100 * SIGNIFICANT * slope_error / length)}"
        )
    row = {**where, "points": name, "bias": bias, "gradient bias": slope_bias}
    numbers = {"n": n, "evaluations": mean.evaluations, "sd": mean.value_sd}
    distance = 100 * hypot(apart, mean.gradient_sd) / length if known else None
    return {**row, **numbers, "gradient sd": 100 * mean.gradient_sd / length, "gradient error": distance}


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
            if level > 0 or label != "antithetic"  # a pair has two points
        }
        update((number + 0.3) / len(places), f"{text}: the reference")
        tilted, uniform = (
            long_run(problem, label, scale.long[label], scale.runs, source) for label in ("tilted", "uniform")
        )
        truth, known = reference_of(tilted, uniform, list(means.values()))
        risk = f"{truth.value:.4f} ± {truth.value_error:.1g}" if known else "?"
        for (label, level), mean in means.items():
            where = {"where": text, "risk": risk}
            rows.append(estimator_row(where, label, 1 << level, mean, truth, known))
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
    return BenchmarkReport(
        [
            BenchmarkTable(
                f"Estimators at a trained network: {classifier.name}, {len(classifier.x)} images", rows, NOTE
            )
        ]
    )
