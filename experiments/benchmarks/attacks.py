"""`phiball bench attacks`: how many errors our attacks find, beside torchattacks at the same settings.

A small convolutional network is trained on scikit-learn's digits (8 x 8 pixels in [0, 1]), once for each
seed; every attack perturbs the same test images inside the same ball and the box [0, 1]. Differences are
taken within a seed, as the networks differ by more than the attacks. Time is a multiple of one forward and
backward pass over the same images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from phiball.backends import Array, input_gradient, rng, use
from phiball.experiments.benchmarks.inner_solver import ratio
from phiball.refimpl import Ball, fgm, ifgm, pgm, white_noise

RADII = {2.0: (0.25, 0.5, 0.75, 1.0), inf: (0.05, 0.1, 0.15, 0.2)}
NORMS = {2.0: "l2", inf: "linf"}
BOX = (0.0, 1.0)
STEPS = 15
OURS, THEIRS = "PGM, last iterate", "torchattacks"
HINT = (
    "torchattacks is not installed: pip install --no-deps torchattacks adds it to the table (its other "
    "requirements, torchvision among them, are not needed here)"
)
Attack = Callable[[Ball, int], Array]  # the ball and a seed, to perturbed images


@dataclass(frozen=True)
class Task:
    """A trained network and its test images."""

    model: Any
    x: Array
    y: Array

    def loss(self, x: Array, i: Array) -> Array:
        """The cross-entropy of each x."""
        return import_module("torch").nn.functional.cross_entropy(self.model(x), self.y[i], reduction="none")

    def gradient(self, x: Array, i: Array) -> Array:
        """The gradient of each loss in its x."""
        return input_gradient(self.loss, x, i)

    def errors(self, x: Array) -> int:
        """How many of the images x are classified wrongly."""
        torch = import_module("torch")
        with torch.no_grad():
            return int(torch.sum(torch.argmax(self.model(x), -1) != self.y))


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
    """The error that PGM finds less that of torchattacks: mean over seeds, and its standard error."""

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


def _needed(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the bench of attacks needs {package}, which is not installed: pip install 'phiball[bench]'"
        ) from error


def _peer() -> Any | None:
    try:
        return import_module("torchattacks")
    except ImportError:
        return None


def train(seed: int, *, epochs: int = 20, images: int = 300) -> Task:
    """A small network, trained on the digits that are not among the last `images`, which are for the test."""
    torch = _needed("torch", "torch")
    digits = _needed("sklearn.datasets", "scikit-learn").load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target, dtype=torch.int64)
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 32, 3, stride=2), nn.ELU(), nn.Flatten(),
            nn.Linear(32 * 9, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(x) - images), 64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return Task(model.eval(), x[-images:], y[-images:])


def attacks(task: Task) -> dict[str, Attack]:
    """Every attack, on the images of `task`; PGM as torchattacks does it, then with what it has besides."""
    found: dict[str, Attack] = {
        "white noise": lambda ball, seed: white_noise(task.x, ball, rng(seed)),
        "FGM": lambda ball, seed: fgm(task.gradient, task.x, ball),
        "FGM, random start": lambda ball, seed: fgm(task.gradient, task.x, ball, rng=rng(seed)),
        "IFGM": lambda ball, seed: ifgm(task.gradient, task.x, ball, steps=STEPS),
        OURS: lambda ball, seed: pgm(task.gradient, task.x, ball, steps=STEPS, rng=rng(seed)),
        "PGM, best iterate": lambda ball, seed: pgm(
            task.gradient, task.x, ball, steps=STEPS, rng=rng(seed), loss=task.loss
        ),
        "PGM, best of 4 runs": lambda ball, seed: pgm(
            task.gradient, task.x, ball, steps=STEPS, rng=rng(seed), loss=task.loss, restarts=4
        ),
    }
    peer = _peer()
    if peer is not None:
        found[THEIRS] = partial(_theirs, peer, task)
    return found


def _theirs(peer: Any, task: Task, ball: Ball, seed: int) -> Array:
    """PGD or PGDL2 at the settings of `pgm`: radius, step, steps and a random start."""
    torch = import_module("torch")
    attack = peer.PGDL2 if ball.norm == 2 else peer.PGD
    with torch.random.fork_rng(devices=[]):  # it draws from torch's global generator
        torch.manual_seed(seed)
        step = 2.5 * ball.radius / STEPS
        return attack(task.model, eps=ball.radius, alpha=step, steps=STEPS, random_start=True)(task.x, task.y)


def rows(seeds: int, *, epochs: int = 20, images: int = 300, radii: int = 4) -> Iterator[Row]:
    """The error that every attack finds, at the first `radii` radii of each norm, for each seed."""
    for seed in range(seeds):
        task = train(seed, epochs=epochs, images=images)
        yield Row("none", 0.0, "none", seed, task.errors(task.x) / images)
        for norm, values in RADII.items():
            for radius in values[:radii]:
                for name, attack in attacks(task).items():
                    x = attack(Ball(norm, radius, BOX), seed)
                    yield Row(NORMS[norm], radius, name, seed, task.errors(x) / images)


def compare(measured: list[Row]) -> list[Comparison]:
    """PGM less torchattacks at each radius, and over all of them; nothing where that is not installed."""
    found = {(row.norm, row.radius, row.attack, row.seed): row.error for row in measured}
    places = list(dict.fromkeys((row.norm, row.radius) for row in measured if row.attack == THEIRS))
    seeds = sorted({row.seed for row in measured})
    if not places or len(seeds) < 2:
        return []
    differences = {
        f"{norm} {radius}": [
            found[norm, radius, OURS, seed] - found[norm, radius, THEIRS, seed] for seed in seeds
        ]
        for norm, radius in places
    }
    differences["all radii"] = [fmean(values) for values in zip(*differences.values(), strict=True)]
    return [
        Comparison(where, fmean(values), stdev(values) / len(values) ** 0.5)
        for where, values in differences.items()
    ]


def verdict(compared: list[Comparison]) -> str:
    """Whether PGM finds at least as many errors as torchattacks: over all radii, and where it does not."""
    *single, overall = compared
    words = "fewer errors than" if overall.behind else "at least as many errors as"
    than = "by more than" if overall.behind else "within"
    behind = ", ".join(str(c) for c in single if c.behind) or "none"
    return (
        f"PGM finds {words} torchattacks, {than} two standard errors ({overall}); single radii of "
        f"{len(single)} at which it is behind by more than that: {behind}"
    )


def times(seconds: float) -> dict[tuple[str, str], float]:
    """(norm, attack) to its time as a multiple of one forward and backward pass."""
    task = train(0, epochs=1)
    unit = partial(task.gradient, task.x, import_module("torch").arange(len(task.x)))
    return {
        (NORMS[norm], name): ratio(partial(attack, Ball(norm, values[1], BOX), 0), unit, seconds)
        for norm, values in RADII.items()
        for name, attack in attacks(task).items()
    }


def main(threads: int = 1, quick: bool = False, out: Path | None = None) -> None:
    """Print the table and the verdict, and write them as JSON to the folder `out`, if one is named."""
    _needed("torch", "torch").set_num_threads(threads)
    console = Console(width=max(132, Console().width))
    seeds, radii = (2, 2) if quick else (6, 4)
    measured: list[Row] = []
    with use("torch"), console.status("training and attacking") as status:
        for row in rows(seeds, radii=radii):
            status.update(f"seed {row.seed}: {row.attack} {row.norm} {row.radius}")
            measured.append(row)
        status.update("measuring time")
        spent = times(0.1 if quick else 0.4)
    clean = fmean(row.error for row in measured if row.attack == "none")
    for norm in RADII:
        values = RADII[norm][:radii]
        table = Table(
            title=f"Error in %, {NORMS[norm]} ball and box [0, 1], {STEPS} steps, mean of {seeds} networks "
            f"(clean {100 * clean:.1f})"
        )
        table.add_column("attack")
        for heading in (*(f"radius {radius}" for radius in values), "time / (forward + backward)"):
            table.add_column(heading, justify="right")
        for name in dict.fromkeys(row.attack for row in measured if row.norm == NORMS[norm]):
            cells = [
                f"{100 * fmean(r.error for r in measured if (r.norm, r.radius, r.attack) == at):.2f}"
                for at in ((NORMS[norm], radius, name) for radius in values)
            ]
            table.add_row(name, *cells, f"{spent[NORMS[norm], name]:.1f}")
        console.print(table)
    compared = compare(measured)
    for c in compared:
        console.print(f"{OURS}, less torchattacks, {c}", highlight=False)
    console.print(verdict(compared) if compared else HINT, highlight=False, soft_wrap=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        written = out / "attacks.json"
        record = {
            "rows": [asdict(row) for row in measured],
            "compared": [asdict(c) for c in compared],
            "times": [{"norm": norm, "attack": name, "ratio": t} for (norm, name), t in spent.items()],
        }
        written.write_text(json.dumps(record, indent=1))
        console.print(f"wrote {written}", soft_wrap=True)
