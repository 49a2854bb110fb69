"""What the studies of images share: two stages, a seed for each trial, threads and devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

from phiball.backends import Rng
from phiball.experiments.framework.study import MapTasks, Study, run_serially
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Table, Task, TaskDir

ConfigT = TypeVar("ConfigT", bound=Any)  # with `threads` and `device`


class TwoStageStudy(Study[ConfigT]):
    """What is chosen by the rows of the first stage is trained and attacked in the second."""

    @abstractmethod
    def tasks(self, config: ConfigT, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows, those of the second."""

    @abstractmethod
    def seeds(self, config: ConfigT, rng: Rng) -> Callable[[Task], int]:
        """Return the seed of each task, as a function."""

    @abstractmethod
    def train_and_attack(self, config: ConfigT, task: Task, task_dir: TaskDir) -> Row:
        """Return the row of a task that has its seed."""

    def compute(self, config: ConfigT, rng: Rng, map_tasks: MapTasks | None = None) -> Table:
        """Return the rows of both stages; the second has what was chosen in the first."""
        self.prepare(config)
        seed = self.seeds(config, rng)

        def rows(tasks: list[Task]) -> list[Row]:
            seeded = [{**task, "seed": seed(task)} for task in tasks]
            return (map_tasks or run_serially)(self, config, seeded, rng) if seeded else []

        judged = rows(self.tasks(config))
        return Table(config, (*judged, *rows(self.tasks(config, judged))))

    def compute_task(self, config: ConfigT, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Train a network and attack it: errors in %, the mean loss per epoch, and what it was trained on.

        Everything drawn comes from the seed of the task, which all methods of a trial share; `rng` is unused.
        """
        torch = import_module("torch")
        threads = torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            return self.train_and_attack(config, task, task_dir)
        finally:
            torch.set_num_threads(threads)

    def threads(self, config: ConfigT) -> int:
        return int(config.threads)

    def devices(self, config: ConfigT) -> tuple[str, ...]:
        """Return the devices of config.device, where there are several."""
        several = tuple(config.device.split(","))
        return several if len(several) > 1 else ()

    def on_device(self, config: ConfigT, device: str) -> ConfigT:
        return replace(config, device=device)
