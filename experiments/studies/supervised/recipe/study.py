"""Fast adversarial training on images under a good recipe (beyond the paper).

The study `supervised` trains as the paper does, by Adam at a constant rate. Here the rate rises evenly over
the first tenth of the steps and falls to 0 along a cosine, and its peak is chosen for each method on held-out
images, from the same rates for all. Methods are set by the radius of the attack (see `methods`).

There are two stages. `choose`: every method is trained with every rate on a part of the training images, and
attacked by PGM on the rest. `report`: it is trained on all of them with its best rate, once for each trial,
and meets the test images: clean, and attacked by PGM and APGD in two norms, of which its training knows one.
The methods of a trial share initial weights, order of the data and attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, rng
from phiball.experiments.datasets.images import NAMES, load
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.tasks import Row, Task, TaskDir
from phiball.experiments.studies.supervised.apgd import LOSSES, after_apgd
from phiball.experiments.studies.supervised.attacks import CHUNK, NORMS, after_pgm, percent
from phiball.experiments.studies.supervised.recipe import figures, report
from phiball.experiments.studies.supervised.recipe.methods import (
    CONSTANT,
    CONSTANT_RATE,
    FAMILIES,
    RADII,
    methods,
)
from phiball.experiments.studies.supervised.recipe.report import held_out_error
from phiball.experiments.studies.supervised.study import parts, prepare
from phiball.experiments.studies.supervised.two_stages import TwoStageStudy
from phiball.experiments.training.loop import Plan, train
from phiball.experiments.training.networks import network
from phiball.refimpl import Ball

CHEAP = tuple(name for name in FAMILIES if name not in (CONSTANT, "RT-MLMC", "IFGM"))


@dataclass(frozen=True)
class Config(StudyConfig):
    """The parameters of the study."""

    data: tuple[str, ...] = option(("mnist", "fashion-mnist", "kmnist"), "Data sets.", NAMES)
    data_dir: str = option(
        "",
        "The folder that holds them; by default that of PHIBALL_DATA, or they are fetched.",
        affects_results=False,
    )
    methods: tuple[str, ...] = option(FAMILIES, "Methods.", FAMILIES)
    norm: str = option("linf", "The norm of the ball in training.", tuple(NORMS))
    # More of them are added to a run of fewer, whose rows stay.
    seeds: int = option(
        5, "Networks trained by each method, at least 2; more can be added.", least=2, affects_results=False
    )
    rates: tuple[float, ...] = option((1e-3, 2e-3, 4e-3, 8e-3), "Peaks of the rate to choose from.")
    warmup: float = option(0.1, "The share of the steps over which the rate rises.", least=0, most=0.9)
    train: int = option(60000, "Training images at most.")
    held_out: int = option(5000, "Of these, how many rates are chosen by.")
    judged: int = option(1000, "Of the held-out images, how many are attacked.")
    attacked: int = option(10000, "Test images that are attacked.")
    width: int = option(64, "Filters of the first layer; 16 is a narrow network.")
    epochs: int = option(30, "Passes over the training images.")
    batch: int = option(64, "Images per step.")
    steps: int = option(40, "Steps of the attack PGM.")
    apgd_steps: int = option(100, "Steps of the attack APGD, for each of its two losses.")
    threads: int = option(1, "Threads of one network's training; --jobs of them are trained at a time.")
    device: str = option(
        "cpu", "Where networks are trained: cpu, cuda or, spread over several, cuda:0,cuda:1."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"rates is {self.rates!r}; expected increasing numbers")
        if self.held_out >= self.train:
            raise ValueError(f"held_out is {self.held_out!r}; expected less than train, {self.train}")


SCALES = {
    "smoke": Config(
        data=("digits",),
        seeds=2,
        rates=(2e-3, 6e-3),
        train=1197,
        held_out=200,
        judged=200,
        attacked=200,
        width=16,
        epochs=3,
        steps=5,
        apgd_steps=10,
    ),
    "small": Config(
        methods=CHEAP,
        seeds=3,
        rates=(1.5e-3, 4e-3, 1e-2),
        train=4000,
        held_out=800,
        judged=400,
        attacked=500,
        width=16,
        epochs=4,
        steps=10,
        apgd_steps=8,
    ),
    "paper": Config(),
}


def errors(
    model: Any,
    x: Array,
    y: Array,
    radii: dict[str, float],
    kinds: dict[str, int],
    source: Rng,
    on_attack: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The error in % on clean images ("clean") and for each attack ("PGM l2"); `kinds` has their steps."""
    torch = import_module("torch")
    pieces = list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))

    def right(x: Array, y: Array) -> Array:
        with torch.no_grad():
            return model(x).argmax(-1) == y

    plain = [right(*piece) for piece in pieces]
    percentages = {"clean": percent(plain)}
    attacks = [(kind, norm) for kind in kinds for norm in radii]
    for done, (kind, norm) in enumerate(attacks, start=1):
        attack, ball = {"PGM": after_pgm, "APGD": after_apgd}[kind], Ball(NORMS[norm], radii[norm])
        own = source.keyed(f"{kind} {norm}")
        still = [
            attack(model, x, y, ok, ball, kinds[kind], own, right)
            for (x, y), ok in zip(pieces, plain, strict=True)
        ]
        percentages[f"{kind} {norm}"] = percent(still)
        on_attack(done, len(attacks))
    return percentages


def _plan(config: Config, task: Task) -> Plan:
    warmup = None if task["method"] == CONSTANT else config.warmup
    return Plan(config.epochs, config.batch, task["rate"], warmup)


def _kinds(config: Config, stage: str) -> dict[str, int]:
    return {"PGM": config.steps} if stage == "choose" else {"PGM": config.steps, "APGD": config.apgd_steps}


def _trained_and_attacked(config: Config, task: Task, task_dir: TaskDir) -> Row:
    method = methods(config, task["data"])[task["method"]]
    images = load(task["data"], config.data_dir or None)
    (x, y), (test_x, test_y) = parts(config, task["stage"], images)
    source = rng(task["seed"])
    weights = int(source.keyed("weights").integers(1 << 31, (), like=np.empty(0)))
    model = network(tuple(x.shape[2:]), config.width, seed=weights).to(config.device)
    training, attacking = _training_work(config, task), _attack_work(config, task)
    share = training / (training + attacking)  # of the time, that training takes
    about = {"norm": config.norm, "threads": config.threads, "device": config.device.partition(":")[0]}
    curve = train(
        model,
        method.objective,
        x,
        y,
        _plan(config, task),
        source.keyed("training"),
        kept_points=method.first and method.first(x, source.keyed("first")),
        about={**task, "data": images.digest, "width": config.width, "objective": about},
        checkpoint=task_dir.file("network.pt"),
        on_step=lambda done, total, loss: task_dir.report_progress(share * done / total, f"loss {loss:.3f}"),
    )
    percentages = errors(
        model,
        test_x,
        test_y,
        RADII[task["data"]],
        _kinds(config, task["stage"]),
        source.keyed("attacks"),
        on_attack=lambda done, total: task_dir.report_progress(share + (1 - share) * done / total, "attacks"),
    )
    return {
        "evaluations": method.evaluations,
        **percentages,
        "trained on": len(x),
        "tested on": len(test_x),
        "images": images.digest,
        "curve": curve,
    }


def _training_work(config: Config, task: Task) -> float:
    images = config.train - (config.held_out if task["stage"] == "choose" else 0)
    return images * config.epochs * methods(config, task["data"])[task["method"]].evaluations


def _attack_work(config: Config, task: Task) -> float:
    kinds = _kinds(config, task["stage"])
    steps = kinds["PGM"] + len(LOSSES) * kinds.get("APGD", 0)
    images = config.judged if task["stage"] == "choose" else config.attacked
    return images * steps * len(NORMS) * 0.7  # the images that are right as they are


class RecipeStudy(TwoStageStudy[Config]):
    """Two stages: rates are chosen on held-out images, and all methods are judged on test images."""

    name = "recipe"
    title = "Fast adversarial training on images under a good recipe (beyond the paper)."
    scales = SCALES
    draw = staticmethod(figures.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(report.findings)

    def tasks(self, config: Config, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows, those of the second."""
        if judged is None:
            return [
                {"stage": "choose", "data": data, "method": name, "rate": rate, "trial": 0}
                for data in config.data
                for name in methods(config, data)
                if name != CONSTANT
                for rate in config.rates
            ]
        return [
            {"stage": "report", "data": data, "method": name, "rate": _rate(judged, data, name), "trial": k}
            for k in range(config.seeds)
            for data in config.data
            for name in methods(config, data)
        ]

    def seeds(self, config: Config, rng: Rng) -> Callable[[Task], int]:
        """Return the seed of a task, which is that of its trial."""
        return partial(_seed, rng)

    def train_and_attack(self, config: Config, task: Task, task_dir: TaskDir) -> Row:
        return _trained_and_attacked(config, task, task_dir)

    def prepare(self, config: Config) -> None:
        """Fetch missing data, and raise for data and devices that cannot be had."""
        prepare(config, self.name)

    def work(self, config: Config, task: Task) -> float:
        """Return about how long a task takes, in passes of one image through the network and back."""
        return _training_work(config, task) + _attack_work(config, task)

    def label(self, task: Task) -> str:
        return f"{task['data']}: {task['method']}, rate {task['rate']:g}, trial {task['trial']}"


def _seed(source: Rng, task: Task) -> int:
    """The seed of a trial, however many there are."""
    return int(source.keyed(f"trial {task['trial']}").integers(1 << 31, (), like=np.empty(0)))


def _rate(judged: list[Row], data: str, method: str) -> float:
    """The rate with the lowest error on held-out images; the lower one in a tie."""
    if method == CONSTANT:
        return CONSTANT_RATE
    rows = [row for row in judged if (row["data"], row["method"]) == (data, method)]
    return float(min(rows, key=lambda row: (held_out_error(row), row["rate"]))["rate"])


STUDY = RecipeStudy()
