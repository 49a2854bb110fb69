"""`phiball bench settings`: which ball, eta, divergence and estimator to train with, by measurement.

A network with 128 hidden units is trained on scikit-learn's digits (8 x 8 pixels in [0, 1]) in many ways,
and attacked by PGM. Within each family (a method and a norm) the setting with the lowest mean of clean and
attacked errors on a held-out part of the training set is chosen, and its errors on the test set are
reported: mean over the seeds and standard error. Nothing is clipped to the box of the pixels, in training or
attack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from phiball.backends import Array, rng
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.output import open_console, write_results
from phiball.experiments.benchmarks.settings_grid import (
    balls_and_etas,
    baselines,
    divergences,
    estimators,
    tilted,
)
from phiball.experiments.datasets import images
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.methods import Method
from phiball.experiments.training.pretrained import Classifier, fit
from phiball.refimpl import Ball, pgm, white_noise

NOISE, TESTS = Ball(2, 2.0), {"pgm_l2": Ball(2, 0.5), "pgm_linf": Ball(inf, 0.1)}
ERRORS = ("clean", "noise", *TESTS)
CHOSEN_BY = ("clean", *TESTS)
HEADINGS = ("clean", "white noise l2 2", "PGM l2 0.5", "PGM linf 0.1")
HELD_OUT = 300  # of the training images, the last


@dataclass(frozen=True)
class Row:
    """The errors, in percent, of one trained network on the held-out images or on the test images."""

    family: str
    setting: str
    evaluations: float
    seed: int
    part: str
    clean: float
    noise: float
    pgm_l2: float
    pgm_linf: float


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    seeds: int = 3
    epochs: int = 20
    steps: int = 15  # of PGM
    radii: tuple[int, ...] = (0, 1, 2, 3)
    levels: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Scale(seeds=2, epochs=1, steps=3, radii=(1,), levels=(0, 2))


@dataclass(frozen=True)
class Data:
    """Images (n, 64) and labels: to train with, to choose settings by, and to report on."""

    train: tuple[Array, Array]
    held_out: tuple[Array, Array]
    test: tuple[Array, Array]


def load() -> Data:
    """Return the digits in their own order; the last 600, for the test, are harder than the rest."""
    digits = images.load("digits")
    parts = digits.tensors("train", 0, -HELD_OUT), digits.tensors("train", -HELD_OUT), digits.tensors("test")
    return Data(*((x.flatten(1), y) for x, y in parts))


def measure(method: Method, data: Data, seed: int, scale: Scale) -> list[Row]:
    """Train one network, and count its errors on the held-out and on the test images."""

    def layers(nn: Any) -> list[Any]:
        return [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)]

    model = fit(layers, *data.train, epochs=scale.epochs, seed=seed, objective=method.objective)
    return [
        Row(
            method.family, method.setting, method.evaluations, seed, part, **_errors(model, x, y, scale.steps)
        )
        for part, (x, y) in (("held out", data.held_out), ("test", data.test))
    ]


def _errors(model: Any, x: Array, y: Array, steps: int) -> dict[str, float]:
    classifier = Classifier("digits", model, x, y)
    points = {"clean": x, "noise": white_noise(x, NOISE, rng(0))}
    for name, ball in TESTS.items():
        points[name] = pgm(classifier.gradient, x, ball, steps=steps, rng=rng(0), loss=classifier.loss)
    return {name: 100 * (classifier.errors(z) / len(x)) for name, z in points.items()}


def study(data: Data, scale: Scale, update: Update = silent) -> Iterator[Row]:
    """Yield all rows: baselines, tilted points, ball and eta; at the best ball, estimator and divergence."""
    measured: list[Row] = []
    level = max(scale.levels)
    grid = balls_and_etas(scale.radii, level)
    first = [*baselines(scale.radii, level), *tilted(scale.radii), *grid]

    def second(ball: Ball) -> list[Method]:
        return [*estimators(ball, scale.levels), *divergences(ball, level)]

    total = sum(map(_work, first + second(NOISE)))  # which ball does not matter for the cost
    done = 0.0

    def run(methods: Iterable[Method]) -> Iterator[Row]:
        nonlocal done
        for method in methods:
            for seed in range(scale.seeds):
                update(done / total, f"{method.family}, {method.setting}, seed {seed}")
                rows = measure(method, data, seed, scale)
                done += _work(method) / scale.seeds
                measured.extend(rows)
                yield from rows

    yield from run(first)
    scores = {(s.family, s.setting): s.score for s in summaries(measured, "held out")}
    ball = grid[min(grid, key=lambda method: scores[method.family, method.setting])]
    yield from run(second(ball))


def _work(method: Method) -> float:
    """Return about how long a method takes: its evaluations, and what every step and attack costs."""
    return method.evaluations + 10


@dataclass(frozen=True)
class Summary:
    """One setting: mean and standard error over the seeds of each of the errors, in percent."""

    family: str
    setting: str
    evaluations: float
    part: str
    mean: dict[str, float]
    stderr: dict[str, float]

    @property
    def score(self) -> float:
        """The mean of the clean and the attacked errors, by which settings are chosen."""
        return fmean(self.mean[name] for name in CHOSEN_BY)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        errors = [f"{self.mean[name]:.1f} ± {self.stderr[name]:.1f}" for name in ERRORS]
        return (self.family, self.setting, f"{self.evaluations:.3g}", *errors)


def summaries(measured: Iterable[Row], part: str) -> list[Summary]:
    """Return the summary of each setting, in the order of the rows."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in measured:
        if row.part == part:
            groups.setdefault((row.family, row.setting, row.evaluations), []).append(row)
    return [
        Summary(
            *key,
            part,
            {name: fmean(getattr(row, name) for row in rows) for name in ERRORS},
            {
                name: stdev(getattr(row, name) for row in rows) / len(rows) ** 0.5 if len(rows) > 1 else inf
                for name in ERRORS
            },
        )
        for key, rows in groups.items()
    ]


def chosen(measured: list[Row]) -> list[Summary]:
    """Return the test errors of the setting of each family with the lowest score on the held-out images."""
    best: dict[str, Summary] = {}
    for summary in summaries(measured, "held out"):
        if summary.family not in best or summary.score < best[summary.family].score:
            best[summary.family] = summary
    test = {(s.family, s.setting): s for s in summaries(measured, "test")}
    return [test[s.family, s.setting] for s in best.values()]


def table(title: str, rows: Iterable[Summary]) -> ReportTable:
    """Return a table of settings and their errors."""
    headings = ("method", "setting", "evaluations", *HEADINGS)
    return ReportTable(title, headings, [row.cells for row in rows], left=2)


def main(threads: int = 1, quick: bool = False, out: Path | None = None) -> None:
    """Print all settings and those chosen, and write them as JSON and Markdown to `out`, if one is named."""
    require("torch", user="bench settings", extra="bench").set_num_threads(threads)
    data, scale = load(), QUICK if quick else Scale()
    console = open_console(out)
    measured: list[Row] = []
    with Progress("bench settings", console) as progress:
        measured.extend(study(data, scale, progress.update))
    held_out, test = (
        f"{len(y)} {kind} images" for (_, y), kind in ((data.held_out, "held-out"), (data.test, "test"))
    )
    tables = [
        table(
            f"All settings: errors in % of {held_out}, {scale.seeds} seeds", summaries(measured, "held out")
        ),
        table(
            f"Chosen by the mean of clean and PGM errors above: errors in % of {test}, {scale.seeds} seeds",
            chosen(measured),
        ),
    ]
    for page in tables:
        console.print(page.table())
    rows = [asdict(row) for row in measured]
    write_results(console, out, "settings", rows, title="Which settings", tables=tables[::-1])
