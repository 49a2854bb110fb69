"""The interface that runs and the command line expect of a study."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from phiball.backends import Rng
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Table, Task, TaskDir, task_rng

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "small", "paper")
ConfigT = TypeVar("ConfigT")


class Study(Protocol[ConfigT]):
    """A study: parameters, tasks, figures and findings.

    The module of a study defines a subclass, an instance `STUDY`, and the type ConfigT of its parameters: a
    frozen dataclass of numbers, strings and tuples, whose fields are made with `option`.
    """

    name: str  # on the command line
    title: str
    scales: Mapping[str, ConfigT]  # the parameters for each name of SCALES

    @abstractmethod
    def tasks(self, config: ConfigT) -> list[Task]:
        """The tasks; each is a dict of numbers and strings that identifies it."""

    @abstractmethod
    def compute_task(self, config: ConfigT, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Compute the results of a task; a long task keeps checkpoints in `task_dir`."""

    @abstractmethod
    def draw(self, table: Table) -> dict[str, Figure]:
        """The figures by name."""

    @abstractmethod
    def tables(self, table: Table) -> list[ReportTable]:
        """The tables of the report."""

    @abstractmethod
    def findings(self, table: Table) -> list[str]:
        """The paragraphs of the report, computed from the table."""

    def compute(self, config: ConfigT, rng: Rng, map_tasks: MapTasks | None = None) -> Table:
        """Compute the table of all tasks with `map_tasks`, by default one after the other."""
        return Table(config, tuple((map_tasks or run_serially)(self, config, self.tasks(config), rng)))

    def prepare(self, config: ConfigT) -> None:
        """Download data and check the configuration, before the computation."""
        return

    def threads(self, config: ConfigT) -> int:
        """The number of threads per task, on which the rounding of sums may depend."""
        return 1

    def work(self, config: ConfigT, task: Task) -> float:
        """The approximate duration of a task, in any unit."""
        return 1.0

    def devices(self, config: ConfigT) -> tuple[str, ...]:
        """The devices that tasks are spread over; () if there is only one."""
        return ()

    def on_device(self, config: ConfigT, device: str) -> ConfigT:
        """The parameters for a task on one of the `devices`."""
        return config

    def label(self, task: Task) -> str:
        """The name of a task for the progress bar."""
        return " ".join(map(str, task.values()))


MapTasks: TypeAlias = Callable[[Study[Any], Any, list[Task], Rng], list[Row]]


def run_serially(study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
    """Compute the rows of all tasks one after the other, without writing them."""
    return [{**task, **study.compute_task(config, task, task_rng(rng, task))} for task in tasks]
