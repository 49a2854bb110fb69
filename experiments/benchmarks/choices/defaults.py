"""`phiball bench settings --defaults`: RobustLoss, which takes no decision, beside a grid of settings.

Small networks are trained on images and tables in every way of a grid, and attacked by PGM of the size that
they were trained against. A setting is judged by the mean of its clean and its attacked errors. Of the grid,
the setting with the lowest mean on held-out data is chosen for each data set and norm, with an advantage that
RobustLoss does not have: it sees these data. Tables are small, so each seed splits them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, rng
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.output import open_console, print_lines, write_results
from phiball.experiments.datasets import images
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.methods import (
    UNWEIGHTED_ETA,
    Loss,
    Method,
    attacked,
    by_objective,
    mean_loss,
)
from phiball.experiments.training.pretrained import Classifier, fit
from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, RobustLoss, Tilted, fgm, pgm

NORMS = {"l2": 2.0, "linf": inf}
DEFAULT = "RobustLoss"
Part = tuple[Array, Array]


@dataclass(frozen=True)
class Problem:
    """A data set: parts(seed) to train with, to choose by and to report on; radii of attacks; epochs."""

    name: str
    parts: Callable[[int], tuple[Part, ...]]
    radii: dict[str, float]
    epochs: int


@dataclass(frozen=True)
class Row:
    """The mean of clean and attacked errors, in percent, of one trained network, and the two of them."""

    data: str
    norm: str
    setting: str
    seed: int
    part: str
    score: float
    clean: float
    attack: float


def problems(names: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the data sets; MNIST only where PHIBALL_DATA names a folder that holds it."""
    for name in names:
        if name == "digits":
            yield _images(name, 897, 300, 600, {"l2": 0.5, "linf": 0.1}, 20)
        elif name == "mnist":
            if os.environ.get(images.VARIABLE):
                yield _images(name, 4000, 500, 1000, {"l2": 1.0, "linf": 0.1}, 6)
        else:
            yield _table(name)


def _images(name: str, train: int, held_out: int, test: int, radii: dict[str, float], epochs: int) -> Problem:
    data = images.load(name)
    cuts = (("train", 0, train), ("train", train, train + held_out), ("test", 0, test))
    parts = tuple((x.flatten(1), y) for x, y in (data.tensors(*cut) for cut in cuts))
    return Problem(name, lambda seed: parts, radii, epochs)


def _table(name: str) -> Problem:
    """Return a table of scikit-learn in random order, its features standardised by those to train with."""
    sklearn: Any = require("sklearn.datasets", user="bench settings", extra="bench", package="scikit-learn")
    torch = import_module("torch")
    data = getattr(sklearn, f"load_{name}")()
    n = len(data.target)
    cuts = slice(0, n // 2), slice(n // 2, 3 * n // 4), slice(3 * n // 4, n)

    def parts(seed: int) -> tuple[Part, ...]:
        order = np.random.default_rng(seed).permutation(n)
        x, y = data.data[order], torch.tensor(data.target[order])
        x = torch.tensor((x - x[cuts[0]].mean(0)) / x[cuts[0]].std(0), dtype=torch.float32)
        return tuple((x[cut], y[cut]) for cut in cuts)

    return Problem(name, parts, {"l2": 1.0, "linf": 0.3}, 60)


def grid(norm: str, radius: float, d: int) -> Iterator[Method]:
    """Yield the default, and the grid that it is compared with."""
    p = NORMS[norm]
    yield Method(DEFAULT, "", 2, partial(_default, radius, norm))
    yield Method("plain", "", 1, mean_loss)
    ball = Ball(p, radius)
    yield Method("FGM", "", 2, partial(attacked, lambda g, x, source: fgm(g, x, ball)))
    yield Method(
        "FGM, random start", "", 2, partial(attacked, lambda g, x, source: fgm(g, x, ball, rng=source))
    )
    for times, kappa, start in (
        (1, 10.0, None),
        (2, 0.3, None),
        (2, 1.0, None),
        (2, 3.0, None),
        (2, 1.0, "uniform"),
        (4, 0.3, None),
        (4, 1.0, None),
    ):
        proposal = Tilted(kappa=kappa, start=start)
        objective = RegularizedLoss(
            Ball(p, times * radius), UNWEIGHTED_ETA, ENTROPIC, SG(0), proposal, check_index=False
        )
        name = f"tilted, {times} {'radius' if times == 1 else 'radii'}, kappa {kappa:g}" + (
            ", random start" if start else ""
        )
        yield Method(name, "", 2, partial(by_objective, objective))
    wide = Ball(p, radius * (sqrt(d + 2) if p == 2 else 8))
    uniform = RegularizedLoss(wide, 0.2 * wide.radius, ENTROPIC, SG(2), check_index=False)
    yield Method("uniform, SG(2)", "", 4, partial(by_objective, uniform))


def _default(radius: float, norm: str, loss: Loss, x: Array, source: Rng) -> Array:
    return RobustLoss(radius, norm, seed=source)(loss, x)


def measure(problem: Problem, norm: str, method: Method, seed: int, epochs: int) -> list[Row]:
    """Train one network, and count its errors on the held-out and on the test data."""
    (x, y), held_out, test = problem.parts(seed)
    classes = int(y.max()) + 1

    def layers(nn: Any) -> list[Any]:
        return [nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, classes)]

    model = fit(layers, x, y, epochs=epochs, seed=seed, objective=method.objective)
    rows, ball = [], Ball(NORMS[norm], problem.radii[norm])
    for part, (z, labels) in (("held out", held_out), ("test", test)):
        judge = Classifier(problem.name, model, z, labels)
        worst = pgm(judge.gradient, z, ball, steps=15, rng=rng(0), loss=judge.loss)
        clean, attack = (100 * judge.errors(a) / len(z) for a in (z, worst))
        score = (clean + attack) / 2
        rows.append(Row(problem.name, norm, method.family, seed, part, score, clean, attack))
    return rows


def study(
    names: tuple[str, ...], seeds: int, update: Update = silent, *, quick: bool = False
) -> Iterator[Row]:
    """Yield the rows of all data sets, norms, settings and seeds."""
    sets = list(problems(names))
    for k, problem in enumerate(sets):
        for j, (norm, radius) in enumerate(problem.radii.items()):
            for method in grid(norm, radius, problem.parts(0)[0][0].shape[1]):
                for seed in range(seeds):
                    update((k + j / 2) / len(sets), f"{problem.name}, {norm}, {method.family}, seed {seed}")
                    yield from measure(problem, norm, method, seed, 1 if quick else problem.epochs)


@dataclass(frozen=True)
class Comparison:
    """The default beside the setting of the grid that was chosen on held-out data, by errors on test data."""

    data: str
    norm: str
    default: tuple[float, float]
    chosen: str
    best: tuple[float, float]
    difference: tuple[float, float]

    @property
    def within(self) -> bool:
        """Whether the default is at most two standard errors worse; the seeds are paired."""
        return self.difference[0] <= 2 * self.difference[1]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        shown = [f"{a:.1f} ± {b:.1f}" for a, b in (self.default, self.best, self.difference)]
        return (self.data, self.norm, shown[0], self.chosen, *shown[1:], "yes" if self.within else "no")


def comparisons(rows: list[Row]) -> list[Comparison]:
    """Return one comparison for each data set and norm."""
    found = []
    for data, norm in dict.fromkeys((row.data, row.norm) for row in rows):
        scores: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            if (row.data, row.norm) == (data, norm):
                scores.setdefault((row.part, row.setting), []).append(row.score)
        held_out = {setting: fmean(s) for (part, setting), s in scores.items() if part == "held out"}
        chosen = min((s for s in held_out if s != DEFAULT), key=lambda s: held_out[s])
        ours, best = scores["test", DEFAULT], scores["test", chosen]
        apart = [a - b for a, b in zip(ours, best, strict=True)]
        found.append(Comparison(data, norm, _mean(ours), chosen, _mean(best), _mean(apart)))
    return found


def _mean(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return fmean(values), stdev(values) / len(values) ** 0.5


HEADINGS = ("data", "attack", DEFAULT, "best of the grid", "its score", "difference", "within two errors")


def main(
    names: tuple[str, ...] = ("digits", "mnist", "breast_cancer", "wine"),
    threads: int = 1,
    quick: bool = False,
    out: Path | None = None,
) -> None:
    """Print the comparisons, and write all figures as JSON and Markdown to `out`, if one is named."""
    require("torch", user="bench settings", extra="bench").set_num_threads(threads)
    console = open_console(out)
    seeds = 2 if quick else 5
    with Progress("bench settings --defaults", console) as progress:
        rows = list(study(names, seeds, progress.update, quick=quick))
    title = f"Means of clean and attacked errors, in %, of test data; {seeds} seeds"
    table = ReportTable(title, HEADINGS, [c.cells for c in comparisons(rows)], left=2)
    console.print(table.table())
    if "mnist" in names and not os.environ.get(images.VARIABLE):
        print_lines(console, [f"MNIST was left out: {images.VARIABLE} names no folder that holds it."])
    record = [asdict(row) for row in rows]
    write_results(console, out, "defaults", record, title="The default settings", tables=[table])
