"""The interface of a study, as runs and the command line use it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from phiball.backends import Rng
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Table, Task, TaskDir, task_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "small", "paper")
ConfigT = TypeVar("ConfigT")


class Study(Protocol[ConfigT]):
    """A study of the paper: parameters, tasks, figures and findings.

    The module of a study defines a subclass and its instance `STUDY`. Its parameters are a frozen dataclass
    ConfigT of numbers, strings and tuples of them, whose fields are made with `option`.
    """

    name: str  # on the command line
    title: str
    scales: Mapping[str, ConfigT]  # the parameters for each name of SCALES

    @abstractmethod
    def tasks(self, config: ConfigT) -> list[Task]:
        """The tasks, each a dict that identifies it."""

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
        """Download data, and raise errors of the configuration, before the computation."""
        return

    def threads(self, config: ConfigT) -> int:
        """The number of threads per task; it may change the rounding of sums."""
        return 1

    def work(self, config: ConfigT, task: Task) -> float:
        """The approximate duration of a task, in any unit."""
        return 1.0

    def devices(self, config: ConfigT) -> tuple[str, ...]:
        """The devices that tasks are spread over; () if there is only one."""
        return ()

    def on_device(self, config: ConfigT, device: str) -> ConfigT:
        """The parameters for a task on one of these devices."""
        return config

    def label(self, task: Task) -> str:
        """The name of a task for the progress bar."""
        return " ".join(map(str, task.values()))


MapTasks: TypeAlias = Callable[[Study[Any], Any, list[Task], Rng], list[Row]]


def run_serially(study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
    """Compute the rows of all tasks one after the other, without writing them."""
    return [{**task, **study.compute_task(config, task, task_source(rng, task))} for task in tasks]
