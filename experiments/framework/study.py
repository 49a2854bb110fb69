"""The contract of a study: what the runner and the command line expect of it."""

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
    """A study of the paper: its parameters, its tasks, and what is drawn and said of their results.

    A study is a subclass, and `STUDY` in its module an instance. Its parameters are a frozen dataclass
    ConfigT of numbers, words and tuples of them, whose fields are made with `option`.
    """

    name: str  # on the command line
    title: str
    scales: Mapping[str, ConfigT]  # the parameters for each name of SCALES

    @abstractmethod
    def tasks(self, config: ConfigT) -> list[Task]:
        """Return what there is to compute: a dict per task, which names it."""

    @abstractmethod
    def compute_task(self, config: ConfigT, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Return the results of a task; a long task keeps checkpoints in `task_dir`."""

    @abstractmethod
    def draw(self, table: Table) -> dict[str, Figure]:
        """Return the figures by name."""

    @abstractmethod
    def tables(self, table: Table) -> list[ReportTable]:
        """Return the tables of the report."""

    @abstractmethod
    def findings(self, table: Table) -> list[str]:
        """Return the paragraphs of the report, computed from the table."""

    def compute(self, config: ConfigT, rng: Rng, map_tasks: MapTasks | None = None) -> Table:
        """Return the table of all tasks; `map_tasks` computes them, by default one after the other."""
        return Table(config, tuple((map_tasks or run_serially)(self, config, self.tasks(config), rng)))

    def prepare(self, config: ConfigT) -> None:
        """Fetch what is needed, and raise for what cannot work, before anything is computed."""
        return

    def threads(self, config: ConfigT) -> int:
        """Return the number of threads per task; another number may round sums differently."""
        return 1

    def work(self, config: ConfigT, task: Task) -> float:
        """Return about how long a task takes, in any unit."""
        return 1.0

    def devices(self, config: ConfigT) -> tuple[str, ...]:
        """Return the devices that tasks are spread over; none where there is no choice."""
        return ()

    def on_device(self, config: ConfigT, device: str) -> ConfigT:
        """Return the parameters of a task on one of these devices."""
        return config

    def label(self, task: Task) -> str:
        """Return the name of a task for the progress display."""
        return " ".join(map(str, task.values()))


MapTasks: TypeAlias = Callable[[Study[Any], Any, list[Task], Rng], list[Row]]


def run_serially(study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
    """Return the rows of all tasks, computed one after the other and written nowhere."""
    return [{**task, **study.compute_task(config, task, task_source(rng, task))} for task in tasks]
