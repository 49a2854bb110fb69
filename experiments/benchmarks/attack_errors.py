"""`phiball bench attacks`: errors found by attacks, compared with torchattacks at equal settings.

A small convolutional network is trained on scikit-learn's digits (8 x 8 pixels in [0, 1]), once per seed.
Every attack perturbs the same test images within the same ball and the box [0, 1]. `phiball bench training`
measures the cost of attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import inf
from statistics import fmean
from typing import Any, TypeAlias

from phiball.backends import Array, backend
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    NOT_INSTALLED,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Row,
    optional_module,
)
from phiball.experiments.datasets.images import load
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.image_networks import torch_seed
from phiball.experiments.training.small_classifiers import Classifier, train_layers
from phiball.refimpl import Ball, fgm, ifgm, pgm, white_noise
from phiball.refimpl.distributions.norms import norm_name

RADII = {2.0: (0.25, 0.5, 0.75, 1.0), inf: (0.05, 0.1, 0.15, 0.2)}
BOX = (0.0, 1.0)
STEPS, TEST_IMAGES = 15, 300
Attack: TypeAlias = Callable[[Ball, int], Array]  # from a ball and a seed to perturbed images


def train_victim(seed: int, *, epochs: int = 20, test_images: int = TEST_IMAGES) -> Classifier:
    """Train a small network on all digits except the last `test_images`."""
    torch = import_module("torch")
    digits = load("digits")
    x, y = (torch.cat(parts) for parts in zip(digits.tensors("train"), digits.tensors("test"), strict=True))

    def layers(nn: Any) -> list[Any]:
        return [
            nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 32, 3, stride=2), nn.ELU(), nn.Flatten(),
            nn.Linear(32 * 9, 10),
        ]  # fmt: skip

    model = train_layers(layers, x[:-test_images], y[:-test_images], epochs=epochs, seed=seed)
    return Classifier("digits", model.eval(), x[-test_images:], y[-test_images:])


def attacks_on(victim: Classifier) -> dict[str, Attack]:
    """All attacks on the images of `victim`, by name; "torchattacks" is comparable to "PGM, last iterate"."""
    loss, x = victim.loss, victim.x
    attacks: dict[str, Attack] = {
        "white noise": lambda ball, seed: white_noise(x, ball, rng=seed),
        "FGM": lambda ball, seed: fgm(loss, x, ball),
        "FGM, random start": lambda ball, seed: fgm(loss, x, ball, rng=seed),
        "IFGM": lambda ball, seed: ifgm(loss, x, ball, steps=STEPS),
        "PGM, last iterate": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed, keep_best=False),
        "PGM, best iterate": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed),
        "PGM, best of 4 runs": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed, restarts=4),
    }
    torchattacks = optional_module("torchattacks")
    if torchattacks is not None:
        attacks["torchattacks"] = partial(_torchattacks_pgd, torchattacks, victim)
    return attacks


def _torchattacks_pgd(torchattacks: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    """Run PGD or PGDL2 with the settings of `pgm`: radius, step size, number of steps, random start."""
    attack = torchattacks.PGDL2 if ball.norm == 2 else torchattacks.PGD
    step = 2.5 * ball.radius / STEPS
    with torch_seed(seed):  # torchattacks draws from torch's global generator
        run = attack(victim.model, eps=ball.radius, alpha=step, steps=STEPS, random_start=True)
        return run(victim.x, victim.y)


def _outside_ball_or_box(ball: Ball, x: Array, perturbed: Array) -> float:
    """The largest excess of an image over its ball (in radii) or over the box; at most 0 if inside."""
    offsets = (perturbed - x).flatten(1).double()
    excess = float(offsets.norm(p=ball.norm, dim=1).max()) / ball.radius - 1
    return max(excess, float(-perturbed.min()), float(perturbed.max()) - 1)


def error_rows(
    seeds: int, *, epochs: int = 20, test_images: int = TEST_IMAGES, radii: int = 4, update: Update = silent
) -> list[Row]:
    """The error in percent under every attack, for each seed and the first `radii` radii of each norm."""
    balls = [Ball(norm, radius, BOX) for norm, values in RADII.items() for radius in values[:radii]]
    rows = []
    for seed in range(seeds):
        update(seed / seeds, f"training network {seed + 1} of {seeds}")
        victim = train_victim(seed, epochs=epochs, test_images=test_images)
        clean = 100 * victim.errors(victim.x) / test_images
        for number, ball in enumerate(balls, start=1):
            where = {"norm": norm_name(ball.norm), "radius": ball.radius}
            update((seed + number / (1 + len(balls))) / seeds, f"attacking network {seed + 1}, {where}")
            for name, attack in attacks_on(victim).items():
                perturbed = attack(ball, seed)
                error = 100 * victim.errors(perturbed) / test_images
                row = {**where, "attack": name, "seed": seed, "clean": clean, "error": error}
                rows.append({**row, "outside": _outside_ball_or_box(ball, victim.x, perturbed)})
    return rows


def attack_rows(rows: list[Row]) -> list[Row]:
    """The mean error under every attack at every radius, from the rows of single seeds."""
    means = []
    for norm, name in dict.fromkeys((row["norm"], row["attack"]) for row in rows):
        group = [row for row in rows if (row["norm"], row["attack"]) == (norm, name)]
        radii = list(dict.fromkeys(row["radius"] for row in group))
        errors = {
            f"radius {k}": fmean(row["error"] for row in group if row["radius"] == radius)
            for k, radius in enumerate(radii, start=1)
        }
        inside = "yes" if max(row["outside"] for row in group) <= 1e-5 else "NO"
        where = {"ball": f"{norm} {', '.join(f'{r:g}' for r in radii)}", "attack": name, "inside": inside}
        means.append({**where, "clean": fmean(row["clean"] for row in group), **errors})
    return means


def bench_attacks(*, clock: Clock, quick: bool = False, update: Update = silent) -> BenchmarkReport:
    """Measure the errors under all attacks; `clock` is not used."""
    require("torch", user="bench attacks", extra="bench")
    seeds, radii = (2, 2) if quick else (6, 4)
    with backend("torch"):
        rows = error_rows(seeds, radii=radii, update=update)
    title = f"Error in percent under attacks with {STEPS} steps, mean of {seeds} networks"
    note = "inside: all images lie in their balls and in the box [0, 1]"
    findings = [] if optional_module("torchattacks") else [NOT_INSTALLED.format("torchattacks")]
    return BenchmarkReport([BenchmarkTable(title, attack_rows(rows), note)], findings)
