"""Benchmark harness: time contestants in turn, check their answers, and report tables.

A benchmark is a function bench_NAME(*, clock, update, ...) that returns a `BenchmarkReport`.
Times are relative to a unit of work timed in the same round, so that a busy machine slows both.
A *bar* is the largest ratio of times that we accept.
"""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from ctypes import CDLL
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeAlias

from rich.console import Console

from phiball.backends.files import write_text_atomic
from phiball.backends.progress import Progress, Update, silent
from phiball.backends.provenance import versions
from phiball.experiments.framework.tables import ReportTable

Clock: TypeAlias = Callable[[], float]
Work: TypeAlias = Callable[[], Any]
Row: TypeAlias = dict[str, Any]
ROUNDS = 5
SHORT_CALL = 2e-4  # seconds; shorter calls are timed in blocks, because reading the clock takes time
MAX_BLOCKS = 400
PEERS = (
    "entmax",
    "torchattacks",
    "pyautoattack",
    "foolbox",
    "adversarial-robustness-toolbox",
    "skwdro",
    "dro",
)
PACKAGES = ("phiball", "numpy", "numba", "scipy", "torch", *PEERS)
CLEAR_REFS = Path("/proc/self/clear_refs")
MEMORY = CLEAR_REFS.exists()  # memory can be measured on Linux only
NOT_INSTALLED = "{0} is not installed; to compare with it: pip install --no-deps {0}, and its dependencies"


@dataclass(frozen=True)
class Contestant:
    """A function `run` to be timed.

    - `error`: a function from the answer of `run` to its error, or to None if no reference value is known.
    - `tol`: an answer with a larger error is marked as inaccurate.
    - `varies`: whether the cost of `run` is random. If False, its time is the lower quartile over the calls
      of a round, and the median over rounds, which are robust to interruptions. If True, total times are
      compared.
    """

    name: str
    run: Work
    error: Callable[[Any], float | None] = lambda answer: None
    tol: float = 1e-8
    varies: bool = False


@dataclass(frozen=True)
class Timing:
    """Time relative to the unit, overall (`ratio`) and in each round, and the error of the answer."""

    ratio: float
    rounds: tuple[float, ...]
    error: float | None = None
    tol: float = 1e-8

    @property
    def accurate(self) -> str:
        """Whether the error is at most `tol`: "yes" or "NO", or "" if the error is unknown."""
        return "" if self.error is None else "yes" if self.error <= self.tol else "NO"

    def relative_to(self, other: Timing) -> Timing:
        """The time relative to another contestant: the median of the ratios in each round."""
        quotients = tuple(a / b for a, b in zip(self.rounds, other.rounds, strict=True))
        return Timing(median(quotients), quotients)

    def columns(self, unit: str) -> Row:
        """The columns of a table: the ratio, and its range over the rounds."""
        return {f"x {unit}": self.ratio, "rounds": f"{min(self.rounds):.2f}-{max(self.rounds):.2f}"}


def optional_module(name: str) -> Any | None:
    """Import a module, or return None if that fails."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError):  # torchvision built for another torch raises RuntimeError
        return None


def bar_verdict(ratio: float, bar: float) -> str:
    """Return "within" if the ratio, rounded to two decimals, is at most its bar, else "ABOVE"."""
    return "within" if round(ratio, 2) <= bar else "ABOVE"


def part_of(update: Update, start: float, stop: float) -> Update:
    """A progress callback for a part of the work, which moves the bar from `start` to `stop`."""
    return lambda share, text: update(start + (stop - start) * share, text)


def clock_for(threads: int) -> Clock:
    """Process time for one thread, because it excludes other processes; else wall time."""
    return time.process_time if threads == 1 else time.perf_counter


def compare(
    unit: Work,
    contestants: Sequence[Contestant],
    *,
    seconds: float,
    rounds: int = ROUNDS,
    clock: Clock = time.process_time,
    update: Update = silent,
) -> dict[str, Timing]:
    """Time each contestant relative to `unit`, for `seconds` per round.

    The errors are computed during a warm-up. Then every round times all contestants in random order, each
    between two measurements of the unit.
    """
    errors, shuffler = {}, random.Random(0)
    for place, contestant in enumerate(contestants):
        update(place / len(contestants) / (1 + rounds), f"warm-up: {contestant.name}")
        errors[contestant.name] = contestant.error(contestant.run())
    unit()
    times: dict[str, list[tuple[float, float]]] = {c.name: [] for c in contestants}
    for number in range(1, rounds + 1):
        for place, c in enumerate(shuffler.sample(contestants, len(contestants))):
            share = (number + place / len(contestants)) / (1 + rounds)
            update(share, f"round {number} of {rounds}: {c.name}")
            before = time_per_call(unit, seconds / 4, clock, c.varies)
            spent = time_per_call(c.run, seconds, clock, c.varies)
            after = time_per_call(unit, seconds / 4, clock, c.varies)
            times[c.name].append((spent, max((before + after) / 2, 1e-12)))
    timings = {}
    for c in contestants:
        ratios = tuple(spent / unit_time for spent, unit_time in times[c.name])
        total, unit_total = (sum(column) for column in zip(*times[c.name], strict=True))
        ratio = total / unit_total if c.varies else median(ratios)
        timings[c.name] = Timing(ratio, ratios, errors[c.name], c.tol)
    return timings


def time_per_call(work: Work, seconds: float, clock: Clock, mean: bool) -> float:
    """The mean time per call if `mean`, else the lower quartile; `work` is repeated for `seconds`."""
    start = clock()
    work()  # warm the caches
    first = clock() - start
    if first > seconds and not mean:  # caches matter little for a long call
        return first
    calls = 1 if first >= SHORT_CALL else max(1, min(100, round(SHORT_CALL / max(first, 1e-9))))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MAX_BLOCKS and (len(times) < (1 if mean else 3) or time.perf_counter() < end):
        start = clock()
        for _ in range(calls):
            work()
        times.append((clock() - start) / calls)
    return fmean(times) if mean else sorted(times)[len(times) // 4]


@contextmanager
def thread_limit(n: int | None) -> Iterator[None]:
    """Limit phiball, torch and BLAS to n threads inside the block; None keeps their defaults.

    BLAS is limited because the busy waiting of its idle threads would count as process time.
    """
    before = os.environ.pop("PHIBALL_THREADS", None)
    if n is not None:
        os.environ["PHIBALL_THREADS"] = str(n)
    torch, pools = map(optional_module, ("torch", "threadpoolctl"))
    torch_before = torch.get_num_threads() if torch else 1
    if torch and n is not None:
        torch.set_num_threads(n)
    try:
        with pools.threadpool_limits(n) if pools and n else nullcontext():
            yield
    finally:
        if torch:
            torch.set_num_threads(torch_before)
        os.environ.pop("PHIBALL_THREADS", None)
        if before is not None:
            os.environ["PHIBALL_THREADS"] = before


# --- Memory -----------------------------------------------------------------------------------------------


def peak_memory(work: Work) -> float:
    """The peak memory in MB that `work` adds; call this in a new process, on Linux.

    The result includes freed memory that the allocator retains, so it can be twice the true peak.
    """
    with suppress(AttributeError, OSError):  # glibc: return freed blocks of at least 64 kB to the system
        CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    CLEAR_REFS.write_text("5")  # reset the high-water mark
    before = _high_water_mark()
    result = work()  # still allocated when the peak is read
    after = _high_water_mark()
    del result
    return max(0.0, after - before)


def _high_water_mark() -> float:
    """The peak resident memory of this process since the last reset, in MB."""
    [line] = [line for line in CLEAR_REFS.with_name("status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) / 1024


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an importable function in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# --- Results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkTable:
    """Rows with the same keys; leading text columns are left-aligned."""

    title: str
    rows: Sequence[Row]
    note: str = ""

    def formatted(self) -> ReportTable:
        """The table as text, for a terminal or Markdown."""
        keys = tuple(self.rows[0])
        left = next((k for k, key in enumerate(keys) if not isinstance(self.rows[0][key], str)), len(keys))
        cells = [tuple(_cell(row[key]) for key in keys) for row in self.rows]
        return ReportTable(self.title, keys, cells, self.note, left=left)


@dataclass(frozen=True)
class BenchmarkReport:
    """The result of a benchmark: tables, one-line findings, and figures.

    `figures` maps file names to functions that write the figure to a path.
    """

    tables: Sequence[BenchmarkTable]
    findings: Sequence[str] = ()
    figures: Mapping[str, Callable[[Path], None]] | None = None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if size >= 1:
        return f"{value:,.0f}" if size >= 1000 else f"{value:.2f}"
    return f"{value:.3g}" if size >= 0.01 or size == 0 else f"{value:.1e}"


def write_benchmark(report: BenchmarkReport, name: str, out: Path, details: Row) -> list[Path]:
    """Write out/name.json, out/name.md and the figures; return their paths."""
    files = [out / f"{name}.json", out / f"{name}.md"]
    tables = {table.title: table.rows for table in report.tables}
    record = {**details, "findings": list(report.findings), "tables": tables}
    write_text_atomic(files[0], json.dumps(record, indent=1, allow_nan=False) + "\n")
    facts = [*(f"{key}: {value}" for key, value in details.items()), *report.findings]
    page = [f"# phiball bench {name}", "", *(f"- {fact}" for fact in facts), ""]
    page += [table.formatted().markdown() for table in report.tables]
    write_text_atomic(files[1], "\n".join(page))
    for file, draw in (report.figures or {}).items():
        draw(out / file)
        files.append(out / file)
    return files


def run_benchmark(
    measure: Callable[..., BenchmarkReport],
    name: str,
    *,
    threads: int = 1,
    out: Path | None = None,
    **options: Any,
) -> BenchmarkReport:
    """Run a benchmark with a progress bar, print its report, and write it to the folder `out`."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # fail before the work if it cannot be created
    console = Console(width=max(132, Console().width))
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else []
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    machine = {"versions": versions(PACKAGES), "machine": platform.platform(), "load": load}
    details = {"threads": threads, **plain, **machine}
    with thread_limit(threads), Progress(f"bench {name}", console) as progress:
        report = measure(**options, clock=clock_for(threads), update=progress.update)
    for table in report.tables:
        console.print(table.formatted().table())
    lines = list(report.findings)
    if out is not None:
        lines.append(f"wrote {' and '.join(map(str, write_benchmark(report, name, out, details)))}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return report
