"""The base class of studies that train networks on images: options, two stages, training and attacks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from phiball.backends import Array, Rng
from phiball.backends.random import as_rng
from phiball.experiments.datasets.images import NAMES, Images, load
from phiball.experiments.framework.config import StudyConfig, option, result_settings
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.study import MapTasks, Study, run_serially
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Table, Task, TaskDir
from phiball.experiments.training.image_networks import network
from phiball.experiments.training.loop import Checkpoint, Schedule, train_network
from phiball.experiments.training.training_methods import Method


@dataclass(frozen=True)
class ImageConfig(StudyConfig):
    """The options that all studies of images share."""

    data: tuple[str, ...] = option(("mnist", "fashion-mnist", "kmnist"), "Data sets.", NAMES)
    data_dir: str = option(
        "",
        "The folder of the data sets; by default PHIBALL_DATA, else they are downloaded.",
        affects_results=False,
    )
    train: int = option(60000, "The largest number of training images.")
    held_out: int = option(5000, "Training images held out to choose settings.")
    judged: int = option(1000, "Held-out images that are attacked to choose settings.")
    attacked: int = option(10000, "Test images that are attacked.")
    width: int = option(64, "Filters of the first layer; 16 is a narrow network.")
    epochs: int = option(30, "Passes over the training images.")
    batch: int = option(64, "Images per step.")
    threads: int = option(1, "Threads per network; --n-jobs networks are trained at a time.")
    device: str = option("cpu", "The device: cpu, cuda, or several such as cuda:0,cuda:1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.held_out >= self.train:
            raise ValueError(f"held_out is {self.held_out!r}; expected less than train, {self.train}")


SMOKE: dict[str, Any] = {  # options of the scale "smoke"
    "data": ("digits",), "seeds": 2, "train": 1197, "held_out": 200, "judged": 200, "attacked": 200,
    "width": 16, "epochs": 3,
}  # fmt: skip


def check_increasing(name: str, numbers: tuple[float, ...]) -> None:
    """Raise ValueError unless the numbers are strictly increasing."""
    if list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{name} is {numbers!r}; expected increasing numbers")


ConfigT = TypeVar("ConfigT", bound=ImageConfig)


class ImageStudy(Study[ConfigT]):
    """A study in two stages, in which each task trains a network and attacks it.

    In the stage `choose`, networks with candidate settings are trained on a part of the training images and
    attacked on the rest. In the stage `report`, networks with the best settings are trained on all training
    images and attacked on the test images. The methods of a trial share a seed, which sets the initial
    weights, the order of the data and the attacks.
    """

    @abstractmethod
    def tasks(self, config: ConfigT, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows `judged`, of the second."""

    @abstractmethod
    def method(self, config: ConfigT, task: Task) -> Method:
        """Return the training method of a task."""

    @abstractmethod
    def schedule(self, config: ConfigT, task: Task) -> Schedule:
        """Return the training schedule of a task."""

    @abstractmethod
    def attack(
        self, config: ConfigT, task: Task, model: Any, train_x: Array, x: Array, y: Array, rng: Rng
    ) -> Row:
        """Return the errors of `model` in % on the images (x, y), by the name of the attack.

        `train_x` are the images on which the model was trained.
        """

    @abstractmethod
    def attack_work(self, config: ConfigT, task: Task) -> float:
        """Return the approximate number of passes through the network in the attacks of a task."""

    def compute(self, config: ConfigT, rng: Rng, map_tasks: MapTasks | None = None) -> Table:
        """Return the rows of both stages; the second uses the settings chosen in the first."""
        self.prepare(config)

        def rows(tasks: list[Task]) -> list[Row]:
            # Seed by the trial, so that the seeds do not depend on the number of trials.
            seeded = [{**task, "seed": _integer(rng.keyed(f"trial {task['trial']}"))} for task in tasks]
            return (map_tasks or run_serially)(self, config, seeded, rng) if seeded else []

        judged = rows(self.tasks(config))
        return Table(config, (*judged, *rows(self.tasks(config, judged))))

    def compute_task(self, config: ConfigT, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Train a network and attack it: errors in %, the mean loss per epoch, and the numbers of images.

        All random numbers come from the task's seed, which the methods of a trial share; `rng` is unused.
        """
        torch = import_module("torch")
        threads = torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            return self._train_and_attack(config, task, task_dir)
        finally:
            torch.set_num_threads(threads)

    def _train_and_attack(self, config: ConfigT, task: Task, task_dir: TaskDir) -> Row:
        method = self.method(config, task)
        images = load(task["data"], config.data_dir or None)
        (x, y), (test_x, test_y) = parts(config, task["stage"], images)
        rng = as_rng(task["seed"])
        model = network(tuple(x.shape[2:]), config.width, seed=_integer(rng.keyed("weights")))
        model.to(config.device)
        # Record cuda:1 as cuda, since a task may resume on another device of the same kind.
        settings = {**result_settings(config), "device": config.device.partition(":")[0]}
        file = task_dir.file("network.pt")
        about = {**settings, **task, "data": images.digest}
        curve = train_network(
            model,
            method.objective,
            (x, y),
            self.schedule(config, task),
            rng.keyed("training"),
            state=method.initial_state and method.initial_state(x, rng.keyed("first")),
            checkpoint=None if file is None else Checkpoint(file, about),
        )
        errors = self.attack(config, task, model, x, test_x, test_y, rng.keyed("attacks"))
        return {
            "evaluations": method.evaluations,
            **errors,
            "trained on": len(x),
            "tested on": len(test_x),
            "images": images.digest,
            "curve": curve,
        }

    def prepare(self, config: ConfigT) -> None:
        """Download missing data, and raise ValueError for invalid data or devices."""
        torch = require("torch", user=f"the study {self.name}", extra="experiments")
        require("scipy", user=f"the study {self.name}", extra="experiments")  # for Student's intervals
        try:
            for device in str(config.device).split(","):
                torch.zeros(1, device=device).item()  # fails on devices without storage, such as meta
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

    def work(self, config: ConfigT, task: Task) -> float:
        """Return the approximate cost of a task, in forward and backward passes of one image."""
        images = config.train - (config.held_out if task["stage"] == "choose" else 0)
        training = images * config.epochs * self.method(config, task).evaluations
        return training + self.attack_work(config, task)

    def threads(self, config: ConfigT) -> int:
        return int(config.threads)

    def devices(self, config: ConfigT) -> tuple[str, ...]:
        """Return the devices of config.device, if there are several."""
        several = tuple(config.device.split(","))
        return several if len(several) > 1 else ()

    def on_device(self, config: ConfigT, device: str) -> ConfigT:
        return replace(config, device=device)


def _integer(rng: Rng) -> int:
    return int(rng.integers(1 << 31, (), like=np.empty(0)))


def parts(config: ImageConfig, stage: str, images: Images) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the images and labels (x, y) of a stage to train on, and those to attack, as tensors."""
    n, tensors = min(config.train, len(images.train_x)), partial(images.tensors, device=config.device)
    if stage != "choose":
        return tensors("train", 0, n), tensors("test", 0, config.attacked)
    cut = n - config.held_out
    return tensors("train", 0, cut), tensors("train", cut, min(n, cut + config.judged))
