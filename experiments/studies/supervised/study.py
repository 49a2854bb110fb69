"""Adversarial training on MNIST, Fashion-MNIST and Kuzushiji-MNIST (Section 6.1).

Each task trains one network by one method and attacks it. The first stage chooses the settings of some
methods; in the second stage, all methods are trained and attacked on test images.

The paper does not give the numbers and strides of the filters (taken here from the work that it follows), the
batch size, the norm of the ball, the meaning of the step (see `paper_methods`), or the radii of the attacks,
which are given here as ratios to the mean norm of the images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phiball.backends import Array, Rng
from phiball.experiments.framework.config import option
from phiball.experiments.framework.tasks import Row, Task
from phiball.experiments.studies.supervised import report
from phiball.experiments.studies.supervised.paper_methods import (
    CHOSEN,
    FAMILIES,
    FEWER_SEEDS,
    candidate_methods,
    paper_methods,
)
from phiball.experiments.studies.supervised.report import ATTACKS, score
from phiball.experiments.training.image_attacks import (
    ATTACK_NORMS,
    after_pgm,
    chunks,
    error_percentage,
    is_correct,
)
from phiball.experiments.training.image_networks import network
from phiball.experiments.training.image_study import SMOKE, ImageConfig, ImageStudy, check_increasing
from phiball.experiments.training.loop import Schedule, read_checkpoint
from phiball.experiments.training.training_methods import Method
from phiball.refimpl import Ball, white_noise
from phiball.refimpl.distributions.norms import as_norm

ALLOCATIONS = ("stratified", "random")


@dataclass(frozen=True)
class Config(ImageConfig):
    """The options of the study."""

    methods: tuple[str, ...] = option(
        FAMILIES, "Methods with the paper's settings; FGM and IFGM with the radii rho and step.", FAMILIES
    )
    chosen: tuple[str, ...] = option(
        CHOSEN, "Methods with settings chosen on held-out images.", (*CHOSEN, "none")
    )
    norms: tuple[str, ...] = option(("l2", "linf"), "Norms of the ball.", ATTACK_NORMS)
    seeds: int = option(5, "Networks trained by each method, at least 2.", minimum=2)
    others: int = option(3, "Networks trained by each of " + ", ".join(FEWER_SEEDS) + ".", minimum=2)
    rate: float = option(1e-3, "Step size of Adam.")
    rho: float = option(0.45, "Radius of the ball.")
    step: float = option(0.1, "Step of FGM and IFGM.")
    steps: int = option(15, "Steps of IFGM, and of the attack PGM.")
    eta: float = option(2.0, "Price of the divergence, in units of rho.")
    level: int = option(7, "Largest level of RT-MLMC.", minimum=0, maximum=12)
    allocation: str = option(
        "stratified", "Levels of RT-MLMC: stratified over a batch, or random as in the paper.", ALLOCATIONS
    )
    alpha: float = option(0.5, "Fraction of the ball that CVaR averages.", maximum=1)
    noise_ratios: tuple[float, ...] = option(
        (0.25, 0.5, 0.75, 1.0, 1.25, 1.5), "Radii of white noise, as ratios to the images' mean norm."
    )
    pgm_ratios: tuple[float, ...] = option(
        (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3), "Radii of PGM, as ratios to the images' mean norm."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing("noise_ratios", self.noise_ratios)
        check_increasing("pgm_ratios", self.pgm_ratios)

    @property
    def ratios(self) -> dict[str, tuple[float, ...]]:
        """The ratios of each attack."""
        return {a: self.noise_ratios if a.startswith("noise") else self.pgm_ratios for a in ATTACKS}


SCALES = {
    "smoke": Config(**SMOKE, others=2, noise_ratios=(0.5, 1.0, 1.5), pgm_ratios=(0.05, 0.1, 0.2)),
    "small": Config(
        seeds=3,
        others=2,
        train=10000,
        held_out=1000,
        judged=300,
        attacked=1000,
        width=16,
        epochs=4,
        noise_ratios=(0.3, 0.6, 0.9, 1.2, 1.5),
        pgm_ratios=(0.025, 0.05, 0.1, 0.15, 0.2),
    ),
    "paper": Config(),
}


def mean_norms(x: Array) -> dict[str, float]:
    """Return the mean l2 and linf norm of the images x (n, ...)."""
    flat = x.reshape(len(x), -1)
    return {"l2": float(flat.square().sum(-1).sqrt().mean()), "linf": float(flat.abs().amax(-1).mean())}


def errors_by_ratio(
    model: Any,
    x: Array,
    y: Array,
    scale: dict[str, float],
    ratios: dict[str, tuple[float, ...]],
    steps: int,
    rng: Rng,
) -> dict[str, float]:
    """Return the error in % on clean images ("clean") and for each attack and ratio ("PGM l2 0.1").

    A perturbation of ratio r has radius r * scale[norm]. White noise is one uniform point of the ball around
    each image. PGM takes `steps` steps of a size proportional to the radius, from a random point. An image
    that PGM fools at one ratio counts as fooled at all larger ratios.
    """
    pieces = chunks(x, y)
    clean = [is_correct(model, *piece) for piece in pieces]
    percentages = {"clean": error_percentage(clean)}
    for attack, attack_rng in zip(ATTACKS, rng.spawn(len(ATTACKS)), strict=True):
        kind, norm = attack.split()
        correct = clean
        for ratio in ratios[attack]:
            ball = Ball(as_norm(norm), ratio * scale[norm])
            if kind == "noise":
                correct = [is_correct(model, white_noise(x, ball, rng=attack_rng), y) for x, y in pieces]
            else:
                correct = [
                    after_pgm(model, x, y, ok, ball, steps, attack_rng)
                    for (x, y), ok in zip(pieces, correct, strict=True)
                ]
            percentages[f"{attack} {ratio:g}"] = error_percentage(correct)
    return percentages


def trained_network(file: str | Path) -> Any:
    """Return the trained network of a task, from its file tasks/*/network.pt, on the CPU.

    The network takes images (N, 1, height, width), float32 in [0, 1]. Raise ValueError if training is
    unfinished.
    """
    saved = read_checkpoint(Path(file))
    if "optimizer" in saved:
        raise ValueError(f"{file} belongs to an unfinished training; run the study again to finish it")
    about = saved["about"]
    model = network(tuple(about["images"][2:]), about["width"], seed=0)
    model.load_state_dict(saved["model"])
    return model.eval()


class SupervisedStudy(ImageStudy[Config]):
    """Choose settings on held-out images, and compare all methods on test images."""

    name = "supervised"
    title = "Adversarial training on images (Section 6.1)."
    scales = SCALES
    draw = staticmethod(report.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(report.findings)

    def tasks(self, config: Config, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows, of the second."""
        if judged is None:
            return [
                {"stage": "choose", "data": data, "method": method.family, "setting": name, "trial": 0}
                for data in config.data
                for name, method in candidate_methods(config).items()
            ]
        few = {name for name, method in paper_methods(config).items() if method.family in FEWER_SEEDS}
        return [
            {"stage": "report", "data": data, "method": method, "setting": setting, "trial": trial}
            for trial in range(config.seeds)
            for data in config.data
            for method, setting in _reported(config, data, judged).items()
            if trial < config.others or setting not in few
        ]

    def method(self, config: Config, task: Task) -> Method:
        paper = {} if task["stage"] == "choose" else paper_methods(config)
        return {**paper, **candidate_methods(config)}[task["setting"]]

    def schedule(self, config: Config, task: Task) -> Schedule:
        return Schedule(config.epochs, config.batch, config.rate)

    def attack(
        self, config: Config, task: Task, model: Any, train_x: Array, x: Array, y: Array, rng: Rng
    ) -> Row:
        """Return the errors on clean images, and under noise and PGM at each ratio."""
        scale = mean_norms(train_x)
        percentages = errors_by_ratio(model, x, y, scale, config.ratios, config.steps, rng)
        return {**percentages, **{f"mean {norm}": value for norm, value in scale.items()}}

    def attack_work(self, config: Config, task: Task) -> float:
        images = config.judged if task["stage"] == "choose" else config.attacked
        # PGM runs in two norms. About half of the images are fooled before the largest ratio.
        return images * config.steps * 2 * len(config.pgm_ratios) / 2


def _reported(config: Config, data: str, judged: Iterable[Row]) -> dict[str, str]:
    """Return the methods of the second stage on a data set, with their settings."""
    settings = {name: name for name in paper_methods(config)}
    for family in CHOSEN:
        rows = [row for row in judged if (row["data"], row["method"]) == (data, family)]
        if rows:
            settings[f"{family}, chosen"] = min(rows, key=score)["setting"]
    return settings


STUDY = SupervisedStudy()
