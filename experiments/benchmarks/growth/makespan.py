"""`phiball bench scaling --simulate`: how long a run takes on 1 to 1,000 workers, from measured task times.

A free worker takes the next task. Stragglers take a multiple of their time; a worker that fails loses what it
was at, which goes back to the queue, and comes back later. The ideal shares all work evenly, but for the
longest task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from phiball.backends.files import read_json
from phiball.experiments.benchmarks.growth.plan import Assumptions, measured_passes, tables
from phiball.experiments.benchmarks.output import open_console, run_details, write_results
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tables import ReportTable

WORKERS = (1, 3, 10, 30, 100, 300, 1000)
TASKS = 10_000  # drawn from the measured times: a study of that many tasks of the same kind


@dataclass(frozen=True)
class Trouble:
    """What can go wrong.

    - `latency`: seconds until a worker has its task.
    - `slow`, `factor`: the share of stragglers, and how many times longer they take.
    - `failures`: of a worker, per hour; `repair`: seconds until it is back.
    """

    latency: float = 0.0
    slow: float = 0.0
    factor: float = 1.0
    failures: float = 0.0
    repair: float = 0.0


LATENCY = 0.05
SETTINGS = {
    "no trouble": Trouble(LATENCY),
    "stragglers": Trouble(LATENCY, slow=0.05, factor=3.0),
    "and failures": Trouble(LATENCY, slow=0.05, factor=3.0, failures=0.1, repair=60.0),
}


def makespan(times: Sequence[float], workers: int, trouble: Trouble, source: np.random.Generator) -> float:
    """Return the seconds from the first task's start to the last one's end."""
    slow = source.random(len(times)) < trouble.slow
    queue = deque(t * trouble.factor if late else t for t, late in zip(times, slow, strict=True))
    rate = trouble.failures / 3600
    lives = [source.exponential(1 / rate) if rate else inf for _ in range(workers)]  # until the next failure
    free = [(0.0, worker) for worker in range(workers)]
    heapify(free)
    back: list[tuple[float, float]] = []  # tasks that were lost, from when it is known
    last = 0.0
    while queue or back:
        now, worker = heappop(free)
        while back and back[0][0] <= now:
            queue.append(heappop(back)[1])
        if not queue:  # it waits for a task that will be lost
            heappush(free, (back[0][0], worker))
            continue
        task = queue.popleft()
        end = now + trouble.latency + task
        if lives[worker] <= end:
            fails = max(lives[worker], now)
            heappush(back, (fails, task))
            returns = fails + trouble.repair
            lives[worker] = returns + source.exponential(1 / rate)
            heappush(free, (returns, worker))
            continue
        last = max(last, end)
        heappush(free, (end, worker))
    return last


def ideal(times: Sequence[float], workers: int) -> float:
    """Return the time of an even share of the work; no task can take less than its own."""
    return max(sum(times) / workers, max(times))


def measured_times(folder: Path) -> list[float]:
    """Return the seconds of the tasks of a run, from its rows; ValueError if there are none."""
    found = [float(read_json(file)["seconds"]) for file in sorted((folder / "rows").glob("*.json"))]
    if not found:
        raise ValueError(f"times is {str(folder)!r}, which has no rows; expected the folder of a run")
    return found


def _measure(study: Study[Any]) -> list[float]:
    """Return the seconds of the tasks of a study at its smallest scale, run here."""
    from phiball.experiments.framework.runner import run

    with TemporaryDirectory() as folder:
        run(study, study.scales["smoke"], Path(folder))
        return measured_times(Path(folder))


def main(study: Study[Any], times: Path | None = None, seed: int = 0, out: Path | None = None) -> None:
    """Print the table of makespans, and the plan on paper; write both to the folder `out`, if any."""
    console = open_console(out)
    known = _measure(study) if times is None else measured_times(times)
    source = np.random.default_rng(seed)
    drawn = source.choice(known, TASKS).tolist()
    rows, record = [], []
    for workers in WORKERS:
        best = ideal(drawn, workers)
        took = {name: makespan(drawn, workers, trouble, source) for name, trouble in SETTINGS.items()}
        rows.append((str(workers), _time(best), *(f"{_time(t)} ({best / t:.0%})" for t in took.values())))
        record.append({"workers": workers, "ideal": best, **took})
    note = (
        f"{TASKS} tasks drawn from {len(known)} measured ones of {min(known):.2f} to {max(known):.2f} s; in "
        "brackets the share of the ideal. A task starts after 0.05 s. Of the tasks 5 % take three times as "
        "long. A worker fails every ten hours, loses its task, and is back after a minute."
    )
    page = ReportTable("Makespan", ("workers", "ideal", *SETTINGS), rows, note)
    pages = [page, *tables(Assumptions(), measured_passes())]
    for one in pages:
        console.print(one.table())
    details = run_details(seed=seed, times=str(times or f"a smoke run of {study.name}"))
    settings = {name: asdict(trouble) for name, trouble in SETTINGS.items()}
    facts = [f"{key}: {value}" for key, value in details.items()]
    content = {**details, "measured": known, "settings": settings, "makespans": record}
    write_results(console, out, "makespan", content, title="Makespan", facts=facts, tables=pages)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
