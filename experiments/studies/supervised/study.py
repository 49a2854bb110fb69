"""Adversarial training on MNIST, Fashion-MNIST and Kuzushiji-MNIST (Section 6.1).

Every task trains one network by one method and attacks it. The trials of a method differ in their seed, which
gives the initial weights, the order of the data, the perturbations and the attacks. The methods of a trial
share it, so that they are compared under equal conditions.

The run has two stages. `choose`: for some methods beyond the paper, candidate settings are trained on a part
of the training images and judged on the rest, held out. `report`: all methods are trained on all training
images, with the settings that were chosen where there was a choice, and judged on the test images, which
nothing has seen before.

The paper leaves open the numbers of filters and their strides (here those of the work that it follows), the
size of a batch, the norm of the ball and the meaning of the step (see `methods`), and the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import Rng, rng
from phiball.experiments.datasets.images import NAMES, Images, load
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tasks import Row, Task, TaskDir
from phiball.experiments.studies.supervised import figures, findings, report
from phiball.experiments.studies.supervised.attacks import ATTACKS, NORMS, errors, mean_norms
from phiball.experiments.studies.supervised.methods import CHOSEN, FAMILIES, FEWER_SEEDS, candidates, fixed
from phiball.experiments.studies.supervised.two_stages import TwoStageStudy
from phiball.experiments.studies.supervised.verdicts import score
from phiball.experiments.training.loop import Plan, read, train
from phiball.experiments.training.methods import Method
from phiball.experiments.training.networks import network

ALLOCATIONS = ("stratified", "random")


@dataclass(frozen=True)
class Config(StudyConfig):
    """The parameters of the study."""

    data: tuple[str, ...] = option(("mnist", "fashion-mnist", "kmnist"), "Data sets.", NAMES)
    data_dir: str = option(
        "",
        "The folder that holds them; by default that of PHIBALL_DATA, or they are fetched.",
        affects_results=False,
    )
    methods: tuple[str, ...] = option(
        FAMILIES, "Methods with the paper's settings; FGM and IFGM with the radii rho and step.", FAMILIES
    )
    chosen: tuple[str, ...] = option(
        CHOSEN, "Methods with settings chosen on held-out images.", (*CHOSEN, "none")
    )
    norms: tuple[str, ...] = option(("l2", "linf"), "Norms of the ball.", tuple(NORMS))
    seeds: int = option(5, "Networks trained by each method, at least 2.", least=2)
    others: int = option(3, "Networks trained by each of " + ", ".join(FEWER_SEEDS) + ".", least=2)
    train: int = option(60000, "Training images at most.")
    held_out: int = option(5000, "Of these, how many settings are chosen by.")
    judged: int = option(1000, "Of the held-out images, how many are attacked.")
    attacked: int = option(10000, "Test images that are attacked.")
    width: int = option(64, "Filters of the first layer; 16 is a narrow network.")
    epochs: int = option(30, "Passes over the training images.")
    batch: int = option(64, "Images per step.")
    rate: float = option(1e-3, "Step size of Adam.")
    rho: float = option(0.45, "Radius of the ball.")
    step: float = option(0.1, "Step of FGM and IFGM.")
    steps: int = option(15, "Steps of IFGM, and of the attack PGM.")
    eta: float = option(2.0, "Price of the divergence, in units of rho.")
    level: int = option(7, "Largest level of RT-MLMC.", least=0, most=12)
    allocation: str = option(
        "stratified",
        "Levels of RT-MLMC: spread over a batch, or random as the paper draws them.",
        ALLOCATIONS,
    )
    alpha: float = option(0.5, "Share of the ball that CVaR averages.", most=1)
    noise_ratios: tuple[float, ...] = option(
        (0.25, 0.5, 0.75, 1.0, 1.25, 1.5), "Sizes of white noise, in mean norms of the images."
    )
    pgm_ratios: tuple[float, ...] = option(
        (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3), "Sizes of PGM, in mean norms of the images."
    )
    threads: int = option(1, "Threads of one network's training; --jobs of them are trained at a time.")
    device: str = option(
        "cpu", "Where networks are trained: cpu, cuda or, spread over several, cuda:0,cuda:1."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise_ratios", "pgm_ratios"):
            ratios = getattr(self, name)
            if list(ratios) != sorted(set(ratios)):
                raise ValueError(f"{name} is {ratios!r}; expected increasing numbers")
        if self.held_out >= self.train:
            raise ValueError(f"held_out is {self.held_out!r}; expected less than train, {self.train}")

    @property
    def ratios(self) -> dict[str, tuple[float, ...]]:
        """The ratios of each attack."""
        return {a: self.noise_ratios if a.startswith("noise") else self.pgm_ratios for a in ATTACKS}


SCALES = {
    "smoke": Config(
        data=("digits",),
        seeds=2,
        others=2,
        train=1197,
        held_out=200,
        judged=200,
        attacked=200,
        width=16,
        epochs=3,
        noise_ratios=(0.5, 1.0, 1.5),
        pgm_ratios=(0.05, 0.1, 0.2),
    ),
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


def _methods(config: Config, stage: str) -> dict[str, Method]:
    return candidates(config) if stage == "choose" else {**fixed(config), **candidates(config)}


def _reported(config: Config, data: str, judged: Iterable[Row]) -> dict[str, str]:
    """The methods of the second stage on a data set, and the setting of each."""
    settings = {name: name for name in fixed(config)}
    for family in CHOSEN:
        rows = [row for row in judged if (row["data"], row["method"]) == (data, family)]
        if rows:
            settings[f"{family}, chosen"] = min(rows, key=score)["setting"]
    return settings


def _trained_and_attacked(config: Config, task: Task, task_dir: TaskDir) -> Row:
    method = _methods(config, task["stage"])[task["setting"]]
    images = load(task["data"], config.data_dir or None)
    (x, y), (test_x, test_y) = parts(config, task["stage"], images)
    weights, source, attacks = _sources(task["seed"])
    model = network(tuple(x.shape[2:]), config.width, seed=weights).to(config.device)
    training, attacking = _training_work(config, task), _attack_work(config, task)
    share = training / (training + attacking)  # of the time, that training takes
    curve = train(
        model,
        method.objective,
        x,
        y,
        Plan(config.epochs, config.batch, config.rate),
        source,
        about={**task, "data": images.digest, "width": config.width, "objective": _about(config)},
        checkpoint=task_dir.file("network.pt"),
        on_step=lambda done, total, loss: task_dir.report_progress(share * done / total, f"loss {loss:.3f}"),
    )
    percentages = errors(
        model,
        test_x,
        test_y,
        mean_norms(x),
        config.ratios,
        config.steps,
        attacks,
        on_attack=lambda done, total: task_dir.report_progress(share + (1 - share) * done / total, "attacks"),
    )
    norms = {f"mean {norm}": value for norm, value in mean_norms(x).items()}
    return {
        "evaluations": method.evaluations,
        **percentages,
        **norms,
        "trained on": len(x),
        "tested on": len(test_x),
        "images": images.digest,
        "curve": curve,
    }


def trained_network(file: str | Path) -> Any:
    """Return the trained network of a task, from its file tasks/*/network.pt, on the CPU.

    It takes images (N, 1, height, width), float32 in [0, 1]. ValueError if the training has not ended.
    """
    kept = read(Path(file))
    if "optimizer" in kept:
        raise ValueError(f"{file} is of a training that has not ended; run the study again to finish it")
    about = kept["about"]
    model = network(tuple(about["images"][2:]), about["width"], seed=0)
    model.load_state_dict(kept["model"])
    return model.eval()


def _about(config: Config) -> dict[str, Any]:
    """Return the settings that methods depend on, beyond their names."""
    names = ("rho", "step", "steps", "eta", "level", "allocation", "alpha", "threads")
    # A task may go on on another device of the same kind.
    return {**{name: getattr(config, name) for name in names}, "device": config.device.partition(":")[0]}


def _sources(seed: int) -> tuple[int, Rng, Rng]:
    """Return the seed of the initial weights, and the generators of training and of attacks."""
    training, attacks, weights = rng(seed).spawn(3)
    return int(weights.integers(1 << 31, (), like=np.empty(0))), training, attacks


def parts(config: Any, stage: str, images: Images) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the images to train on and to judge by, as tensors: (x, y), (x, y)."""
    n, tensors = min(config.train, len(images.train_x)), partial(images.tensors, device=config.device)
    if stage != "choose":
        return tensors("train", 0, n), tensors("test", 0, config.attacked)
    cut = n - config.held_out
    return tensors("train", 0, cut), tensors("train", cut, min(n, cut + config.judged))


def _training_work(config: Config, task: Task) -> float:
    images = config.train - (config.held_out if task["stage"] == "choose" else 0)
    return images * config.epochs * _methods(config, task["stage"])[task["setting"]].evaluations


def _attack_work(config: Config, task: Task) -> float:
    images = config.judged if task["stage"] == "choose" else config.attacked
    # About half of the images are fooled before the largest ratio.
    return images * config.steps * 2 * len(config.pgm_ratios) / 2


def prepare(config: Any, study: str) -> None:
    """Fetch missing data, and raise for data and devices that cannot be had."""
    torch = require("torch", user=f"the study {study}", extra="experiments")
    require("scipy", user=f"the study {study}", extra="experiments")  # for the verdicts, in the end
    try:
        for device in str(config.device).split(","):
            torch.zeros(1, device=device).item()  # torch knows some devices that hold no numbers
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0][:80]
        raise ValueError(
            f"device is {config.device!r}; expected cpu, or cuda on a machine with a GPU and its torch "
            f"({reason})"
        ) from None
    for name in config.data:
        images = load(name, config.data_dir or None)
        if config.held_out >= min(config.train, len(images.train_x)):
            raise ValueError(
                f"held_out is {config.held_out!r}; expected less than the {len(images.train_x)} "
                f"training images of {name}"
            )


class SupervisedStudy(TwoStageStudy[Config]):
    """Two stages: settings are chosen on held-out images, and all methods are judged on test images."""

    name = "supervised"
    title = "Adversarial training on images (Section 6.1)."
    scales = SCALES
    draw = staticmethod(figures.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(findings.findings)

    def tasks(self, config: Config, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows, those of the second."""
        if judged is None:
            return [
                {"stage": "choose", "data": data, "method": method.family, "setting": name, "trial": 0}
                for data in config.data
                for name, method in candidates(config).items()
            ]
        few = {name for name, method in fixed(config).items() if method.family in FEWER_SEEDS}
        return [
            {"stage": "report", "data": data, "method": method, "setting": setting, "trial": trial}
            for trial in range(config.seeds)
            for data in config.data
            for method, setting in _reported(config, data, judged).items()
            if trial < config.others or setting not in few
        ]

    def seeds(self, config: Config, rng: Rng) -> Callable[[Task], int]:
        """Return the seed of a task, which is that of its trial."""
        drawn = [int(n) for n in rng.integers(1 << 31, (config.seeds,), like=np.empty(0))]
        return lambda task: drawn[task["trial"]]

    def train_and_attack(self, config: Config, task: Task, task_dir: TaskDir) -> Row:
        return _trained_and_attacked(config, task, task_dir)

    def prepare(self, config: Config) -> None:
        """Fetch missing data, and raise for data and devices that cannot be had."""
        prepare(config, self.name)

    def work(self, config: Config, task: Task) -> float:
        """Return about how long a task takes, in passes of one image through the network and back."""
        return _training_work(config, task) + _attack_work(config, task)

    def label(self, task: Task) -> str:
        return f"{task['data']}: {task['setting']}, trial {task['trial']}"


STUDY = SupervisedStudy()
