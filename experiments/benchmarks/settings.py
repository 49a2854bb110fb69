"""`phiball bench settings`: which ball, eta, divergence and estimator to train with, by measurement.

A network with 128 hidden units is trained on scikit-learn's digits (8 x 8 pixels in [0, 1]) in many ways,
and attacked by PGM. Within each family (a method and a norm) the setting with the least mean of clean and
attacked errors on a held-out part of the training set is chosen, and its errors on the test set are
reported: mean over the seeds and standard error. Nothing is clipped to the box of the pixels, in training or
attack.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from phiball.backends import Array, input_gradient, rng
from phiball.experiments.training.methods import (
    Loss,
    Method,
    balls_and_etas,
    baselines,
    divergences,
    estimators,
    tilted,
)
from phiball.refimpl import Ball, pgm, white_noise

NOISE, TESTS = Ball(2, 2.0), {"pgm_l2": Ball(2, 0.5), "pgm_linf": Ball(inf, 0.1)}
ERRORS = ("clean", "noise", *TESTS)
CHOSEN_BY = ("clean", *TESTS)
HEADINGS = ("clean", "white noise l2 2", "PGM l2 0.5", "PGM linf 0.1")


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
    """Images and labels: to train with, to choose settings by, and to report on."""

    train: tuple[Array, Array]
    held_out: tuple[Array, Array]
    test: tuple[Array, Array]


def load() -> Data:
    """The digits in their own order; the last 600, for the test, are harder than the rest."""
    torch = _needed("torch", "torch")
    digits = _needed("sklearn.datasets", "scikit-learn").load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target, dtype=torch.int64)
    cuts = [slice(0, 897), slice(897, 1197), slice(1197, None)]
    return Data(*((x[cut], y[cut]) for cut in cuts))


def _needed(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the bench of settings needs {package}, which is not installed: pip install 'phiball[bench]'"
        ) from error


def measure(method: Method, data: Data, seed: int, scale: Scale) -> list[Row]:
    """Train one network, and count its errors on the held-out and on the test images."""
    torch = import_module("torch")
    nn = torch.nn
    x, y = data.train
    source = rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(scale.epochs):
            for batch in torch.split(torch.randperm(len(x)), 64):
                optimizer.zero_grad()
                method.objective(_loss(model, y[batch]), x[batch], source).backward()
                optimizer.step()
    return [
        Row(
            method.family,
            method.setting,
            method.evaluations,
            seed,
            part,
            **_errors(model, *images, scale.steps),
        )
        for part, images in (("held out", data.held_out), ("test", data.test))
    ]


def _loss(model: Any, y: Array) -> Loss:
    entropy = import_module("torch").nn.functional.cross_entropy
    return lambda x, i: entropy(model(x), y[i], reduction="none")


def _errors(model: Any, x: Array, y: Array, steps: int) -> dict[str, float]:
    torch = import_module("torch")
    loss = _loss(model, y)
    gradient = partial(input_gradient, loss)
    points = {"clean": x, "noise": white_noise(x, NOISE, rng(0))}
    points |= {
        name: pgm(gradient, x, ball, steps=steps, rng=rng(0), loss=loss) for name, ball in TESTS.items()
    }
    with torch.no_grad():
        return {
            name: 100 * float(torch.mean((torch.argmax(model(z), -1) != y).to(torch.float64)))
            for name, z in points.items()
        }


def study(data: Data, scale: Scale) -> Iterator[Row]:
    """All rows: baselines, tilted points, ball and eta, then, at the best ball, estimator and divergence."""
    found: list[Row] = []

    def run(methods: Iterable[Method]) -> Iterator[Row]:
        for method in methods:
            for seed in range(scale.seeds):
                rows = measure(method, data, seed, scale)
                found.extend(rows)
                yield from rows

    level = max(scale.levels)
    yield from run(baselines(scale.radii, level))
    yield from run(tilted(scale.radii))
    grid = balls_and_etas(scale.radii, level)
    yield from run(grid)
    scores = {(s.family, s.setting): s.score for s in summaries(found, "held out")}
    ball = grid[min(grid, key=lambda method: scores[method.family, method.setting])]
    yield from run(estimators(ball, scale.levels))
    yield from run(divergences(ball, level))


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
        """The mean of the clean and the attacked errors: what settings are chosen by."""
        return fmean(self.mean[name] for name in CHOSEN_BY)

    @property
    def cells(self) -> list[str]:
        """As a line of a table."""
        errors = [f"{self.mean[name]:.1f} ± {self.stderr[name]:.1f}" for name in ERRORS]
        return [self.family, self.setting, f"{self.evaluations:.3g}", *errors]


def summaries(found: Iterable[Row], part: str) -> list[Summary]:
    """One for each setting, in the order of the rows."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in found:
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


def chosen(found: list[Row]) -> list[Summary]:
    """The test errors of the setting of each family with the least score on the held-out images."""
    best: dict[str, Summary] = {}
    for summary in summaries(found, "held out"):
        if summary.family not in best or summary.score < best[summary.family].score:
            best[summary.family] = summary
    test = {(s.family, s.setting): s for s in summaries(found, "test")}
    return [test[s.family, s.setting] for s in best.values()]


def markdown(rows: Iterable[Summary]) -> str:
    """A Markdown table."""
    lines = [("method", "setting", "evaluations", *HEADINGS), ("---", "---", *["---:"] * 5)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*lines, *(row.cells for row in rows)])


def main(threads: int = 1, quick: bool = False, out: Path | None = None) -> None:
    """Print what was measured and chosen, and write it as JSON and Markdown to the folder `out`, if any."""
    torch = _needed("torch", "torch")
    data = load()
    torch.set_num_threads(threads)
    scale = QUICK if quick else Scale()
    console = Console(width=max(132, Console().width))
    found: list[Row] = []
    with console.status("training") as status:
        for row in study(data, scale):
            status.update(f"{row.family}, {row.setting}, seed {row.seed}")
            found.append(row)
    every, best = summaries(found, "held out"), chosen(found)
    for title, rows in [
        (f"Errors of all settings: % of 300 held-out images, {scale.seeds} seeds", every),
        (
            f"Chosen by the mean of clean and PGM errors above: % of 600 test images, {scale.seeds} seeds",
            best,
        ),
    ]:
        table = Table("method", "setting", title=title)
        for heading in ("evaluations", *HEADINGS):
            table.add_column(heading, justify="right")
        for summary in rows:
            table.add_row(*summary.cells)
        console.print(table)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "settings.json").write_text(json.dumps([asdict(row) for row in found], indent=1))
        (out / "settings.md").write_text(f"{markdown(best)}\n{markdown(every)}", encoding="utf-8")
        console.print(f"wrote {out / 'settings.json'} and {out / 'settings.md'}", soft_wrap=True)
