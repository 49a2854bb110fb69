"""`phiball bench attacks`: how many errors our attacks find, beside torchattacks at the same settings.

A small convolutional network is trained on scikit-learn's digits (8 x 8 pixels in [0, 1]), once per seed;
every attack perturbs the same test images inside the same ball and the box [0, 1]. Differences are taken
within a seed, as the networks differ by more than the attacks. Time is a multiple of one forward and
backward pass over the same images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from phiball.backends import Array, rng, use
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.output import open_console, print_lines, write_results
from phiball.experiments.benchmarks.third_party import HINT, optional_module
from phiball.experiments.benchmarks.timing import ratio
from phiball.experiments.datasets.images import load
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.networks import torch_seed
from phiball.experiments.training.pretrained import Classifier, fit
from phiball.refimpl import Ball, fgm, ifgm, pgm, white_noise

RADII = {2.0: (0.25, 0.5, 0.75, 1.0), inf: (0.05, 0.1, 0.15, 0.2)}
NORMS = {2.0: "l2", inf: "linf"}
BOX = (0.0, 1.0)
STEPS = 15
OURS, THEIRS = "PGM, last iterate", "torchattacks"
Attack = Callable[[Ball, int], Array]  # the ball and a seed, to perturbed images


@dataclass(frozen=True)
class Row:
    """One attack on the network of one seed: the share of test images that it makes errors."""

    norm: str
    radius: float
    attack: str
    seed: int
    error: float


@dataclass(frozen=True)
class Comparison:
    """The error that PGM finds minus that of torchattacks: mean over seeds, and its standard error."""

    where: str
    difference: float
    stderr: float

    @property
    def behind(self) -> bool:
        """Whether PGM finds fewer, by more than two standard errors."""
        return self.difference < -2 * self.stderr

    def __str__(self) -> str:
        """In percent."""
        return f"{self.where}: {100 * self.difference:+.2f} +- {100 * self.stderr:.2f} %"


def train(seed: int, *, epochs: int = 20, test_images: int = 300) -> Classifier:
    """Return a small network, trained on all digits except the last `test_images`."""
    torch = import_module("torch")
    digits = load("digits")
    x, y = (torch.cat(parts) for parts in zip(digits.tensors("train"), digits.tensors("test"), strict=True))

    def layers(nn: Any) -> list[Any]:
        return [
            nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 32, 3, stride=2), nn.ELU(), nn.Flatten(),
            nn.Linear(32 * 9, 10),
        ]  # fmt: skip

    model = fit(layers, x[:-test_images], y[:-test_images], epochs=epochs, seed=seed)
    return Classifier("digits", model.eval(), x[-test_images:], y[-test_images:])


def attacks(victim: Classifier) -> dict[str, Attack]:
    """Return all attacks on the images of `victim`: PGM as torchattacks does it, then with its options."""
    gradient, loss, x = victim.gradient, victim.loss, victim.x
    named: dict[str, Attack] = {
        "white noise": lambda ball, seed: white_noise(x, ball, rng(seed)),
        "FGM": lambda ball, seed: fgm(gradient, x, ball),
        "FGM, random start": lambda ball, seed: fgm(gradient, x, ball, rng=rng(seed)),
        "IFGM": lambda ball, seed: ifgm(gradient, x, ball, steps=STEPS),
        OURS: lambda ball, seed: pgm(gradient, x, ball, steps=STEPS, rng=rng(seed)),
        "PGM, best iterate": lambda ball, seed: pgm(gradient, x, ball, steps=STEPS, rng=rng(seed), loss=loss),
        "PGM, best of 4 runs": lambda ball, seed: pgm(
            gradient, x, ball, steps=STEPS, rng=rng(seed), loss=loss, restarts=4
        ),
    }
    torchattacks = optional_module("torchattacks")
    if torchattacks is not None:
        named[THEIRS] = partial(_theirs, torchattacks, victim)
    return named


def _theirs(torchattacks: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    """Run PGD or PGDL2 at the settings of `pgm`: radius, step, steps and a random start."""
    attack = torchattacks.PGDL2 if ball.norm == 2 else torchattacks.PGD
    step = 2.5 * ball.radius / STEPS
    with torch_seed(seed):  # it draws from torch's global generator
        run = attack(victim.model, eps=ball.radius, alpha=step, steps=STEPS, random_start=True)
        return run(victim.x, victim.y)


def rows(
    seeds: int, *, epochs: int = 20, test_images: int = 300, radii: int = 4, update: Update = silent
) -> Iterator[Row]:
    """Yield the error that every attack finds, at the first `radii` radii of each norm, for each seed."""
    balls = [Ball(norm, radius, BOX) for norm, values in RADII.items() for radius in values[:radii]]
    for seed in range(seeds):
        update(seed / seeds, f"training network {seed + 1} of {seeds}")
        victim = train(seed, epochs=epochs, test_images=test_images)
        yield Row("none", 0.0, "none", seed, victim.errors(victim.x) / test_images)
        for number, ball in enumerate(balls, start=1):
            where = f"{NORMS[ball.norm]} {ball.radius}"
            update((seed + number / (1 + len(balls))) / seeds, f"attacking network {seed + 1}, {where}")
            for name, attack in attacks(victim).items():
                error = victim.errors(attack(ball, seed)) / test_images
                yield Row(NORMS[ball.norm], ball.radius, name, seed, error)


def compare(measured: list[Row]) -> list[Comparison]:
    """Return PGM minus torchattacks at each radius, and over all; nothing if that is not installed."""
    errors = {(row.norm, row.radius, row.attack, row.seed): row.error for row in measured}
    places = list(dict.fromkeys((row.norm, row.radius) for row in measured if row.attack == THEIRS))
    seeds = sorted({row.seed for row in measured})
    if not places or len(seeds) < 2:
        return []
    differences = {
        f"{norm} {radius}": [
            errors[norm, radius, OURS, seed] - errors[norm, radius, THEIRS, seed] for seed in seeds
        ]
        for norm, radius in places
    }
    differences["all radii"] = [fmean(values) for values in zip(*differences.values(), strict=True)]
    return [
        Comparison(where, fmean(values), stdev(values) / len(values) ** 0.5)
        for where, values in differences.items()
    ]


def verdict(compared: list[Comparison]) -> str:
    """Say whether PGM finds at least as many errors as torchattacks over all radii, and where it does not."""
    *single, overall = compared
    words = "fewer errors than" if overall.behind else "at least as many errors as"
    than = "by more than" if overall.behind else "within"
    behind = ", ".join(str(c) for c in single if c.behind) or "none"
    return (
        f"PGM finds {words} torchattacks, {than} two standard errors ({overall}); single radii of "
        f"{len(single)} at which it is behind by more than that: {behind}"
    )


def times(seconds: float, update: Update = silent) -> dict[tuple[str, str], float]:
    """Return (norm, attack) to its time as a multiple of one forward and backward pass."""
    victim = train(0, epochs=1)
    unit = partial(victim.gradient, victim.x, import_module("torch").arange(len(victim.x)))
    spent = {}
    for number, (norm, values) in enumerate(RADII.items()):
        for name, attack in attacks(victim).items():
            update(number / len(RADII), f"measuring the time of {name}, {NORMS[norm]}")
            work = partial(attack, Ball(norm, values[1], BOX), 0)
            spent[NORMS[norm], name] = ratio(work, unit, seconds)
    return spent


def table(measured: list[Row], norm: str, spent: dict[tuple[str, str], float]) -> ReportTable:
    """Return the mean error of every attack at every radius of a norm, and its time."""
    mine = [row for row in measured if row.norm == norm]
    radii = list(dict.fromkeys(row.radius for row in mine))
    seeds = len({row.seed for row in mine})
    clean = fmean(row.error for row in measured if row.attack == "none")
    cells = [
        (
            name,
            *(
                f"{100 * fmean(r.error for r in mine if (r.radius, r.attack) == (radius, name)):.2f}"
                for radius in radii
            ),
            f"{spent[norm, name]:.1f}",
        )
        for name in dict.fromkeys(row.attack for row in mine)
    ]
    return ReportTable(
        f"Error in %, {norm} ball and box [0, 1], {STEPS} steps, mean of {seeds} networks "
        f"(clean {100 * clean:.1f})",
        ("attack", *(f"radius {radius}" for radius in radii), "time / (forward + backward)"),
        cells,
    )


def main(threads: int = 1, quick: bool = False, out: Path | None = None) -> None:
    """Print the tables and the verdict, and write them as JSON to the folder `out`, if one is named."""
    require("torch", user="bench attacks", extra="bench").set_num_threads(threads)
    console = open_console(out)
    seeds, radii = (2, 2) if quick else (6, 4)
    measured: list[Row] = []
    with use("torch"), Progress("bench attacks", console) as progress:
        measured.extend(rows(seeds, radii=radii, update=progress.part(0.0, 0.9).update))
        spent = times(0.1 if quick else 0.4, progress.part(0.9, 1.0).update)
    pages = [table(measured, norm, spent) for norm in NORMS.values()]
    for page in pages:
        console.print(page.table())
    compared = compare(measured)
    lines = [f"{OURS}, minus torchattacks, {c}" for c in compared]
    lines.append(verdict(compared) if compared else HINT.format(THEIRS))
    print_lines(console, lines)
    record = {
        "rows": [asdict(row) for row in measured],
        "compared": [asdict(c) for c in compared],
        "times": [{"norm": norm, "attack": name, "ratio": t} for (norm, name), t in spent.items()],
    }
    write_results(
        console, out, "attacks", record, title="Errors that attacks find", facts=lines, tables=pages
    )
