"""Runs of a study: its cells are computed in parallel and written as they come, so that a killed run goes on.

A study is a module with

- `NAME`, `TITLE`: its name on the command line, and what it is;
- `Config`: a frozen dataclass of numbers, words and tuples of them, made with `option`; `SCALES`: a Config
  for each of smoke, small and paper;
- `cells(config)`: what there is to compute, a list of dicts that name each cell;
- `compute_cell(config, cell, rng)`: what was found there, a dict of numbers, words and lists of them;
  or `compute_cell(config, cell, rng, desk)` if it takes long: see `Desk`;
- `compute(config, rng)`: the table of all cells; in full `compute(config, rng, each=...)`, where `each` does
  the work cell by cell; if there are any, `work(config, cell)`, about how long a cell takes in any unit, and
  `label(cell)`, what it is called, and `prepare(config)`, what is seen to before the work;
- `draw(table)`: figures by name; `sheets(table)`: tables; `findings(table)`: paragraphs, computed.

A folder of results holds run.json (study, configuration, seed, versions, machine, revision), one file a cell
with the same and what was found, each put in place in one step, and, in the end, table.csv, report.md and the
figures.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any, TypeAlias

from phiball.backends import Rng, active, rng, use
from phiball.experiments.framework.atomic_write import whole
from phiball.experiments.framework.config import counting
from phiball.experiments.framework.outputs import write_figures, write_report, write_table
from phiball.experiments.framework.progress import Desk, Watch, Watched
from phiball.experiments.framework.provenance import revision, versions
from phiball.refimpl.validation import valid_count

Cell: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Each: TypeAlias = Callable[[Any, list[Cell], Callable[..., Row], Rng], list[Row]]
NEEDS = ("joblib", "matplotlib", "threadpoolctl")
PACKAGES = ("phiball", "numpy", "numba", "scipy", "torch", "gymnasium", "joblib", "matplotlib")


@dataclass(frozen=True)
class Table:
    """What a study found: the rows of its cells, in their order."""

    config: Any
    rows: tuple[Row, ...]


def in_turn(config: Any, cells: list[Cell], compute: Callable[..., Row], source: Rng) -> list[Row]:
    """The rows of all cells, one after the other, kept nowhere."""
    sources = source.spawn(len(cells))
    return [{**cell, **compute(config, cell, one)} for cell, one in zip(cells, sources, strict=True)]


@dataclass(frozen=True)
class Folder:
    """A folder of results that keeps the row of each cell, and finds those that are there already."""

    path: Path
    study: str
    seed: int = 0
    jobs: int = 1
    on_start: Callable[[Watch], None] = lambda watch: None

    def open(self, config: Any) -> None:
        """Make the folder, or see that it holds the same run; ValueError if it holds another."""
        here = {"study": self.study, "config": _plain(counting(config)), "seed": self.seed}
        note = self.path / "run.json"
        if note.exists():
            different = _differences(here, _read(note, here, "take another folder (--out)"))
            if different:
                raise ValueError(
                    f"{self.path} holds another run: {different}; expected the same configuration, or "
                    "another folder (--out)"
                )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            # A run that was killed at once leaves its note half-written.
            if any(not file.name.startswith(".run.json.") for file in self.path.iterdir()):
                raise ValueError(
                    f"{self.path} is not empty and holds no run; expected another folder (--out)"
                )
            _put(note, json.dumps({**here, **about()}, indent=1) + "\n")
        (self.path / "cells").mkdir(exist_ok=True)

    def each(self, config: Any, cells: list[Cell], compute: Callable[..., Row], source: Rng) -> list[Row]:
        """The rows of all cells: those in the folder are read, the others computed and written."""
        sources = source.spawn(len(cells))
        files = [self.path / "cells" / f"{k:04d}-{_slug(cell)}.json" for k, cell in enumerate(cells)]
        for k in (k for k, file in enumerate(files) if file.exists()):
            if _cell(files[k])["cell"] != _plain(cells[k]):
                raise ValueError(f"{files[k]} is of another cell; expected {cells[k]}")
        left = [k for k, file in enumerate(files) if not file.exists()]
        desks = [Desk(self.path / "desks" / file.stem) for file in files]
        self.on_start(self._watch(config, cells, files, desks))
        note = {"seed": self.seed, **about()}
        work = [(self.study, config, cells[k], sources[k], files[k], desks[k], note) for k in left]
        for _ in self._computed(work, _threads(config)):
            pass  # each is written where it is computed
        return [{**cell, **_cell(file)["row"]} for cell, file in zip(cells, files, strict=True)]

    def _watch(self, config: Any, cells: list[Cell], files: list[Path], desks: list[Desk]) -> Watch:
        study = import_module(self.study)
        work = getattr(study, "work", lambda config, cell: 1.0)
        label = getattr(study, "label", lambda cell: " ".join(map(str, cell.values())))
        watched = [
            Watched(label(cell), file, desk, float(work(config, cell)))
            for cell, file, desk in zip(cells, files, desks, strict=True)
        ]
        return Watch(tuple(watched), str(cells[0].get("stage", "")) if cells else "")

    def _computed(self, work: list[tuple[Any, ...]], threads: int) -> Iterator[None]:
        if self.jobs == 1 or len(work) < 2:
            for one in work:
                _compute_and_keep(*one)
                yield
            return
        joblib = import_module("joblib")
        with joblib.parallel_config(backend="loky", inner_max_num_threads=threads, initializer=_worker):
            pool = joblib.Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            yield from pool(joblib.delayed(_compute_and_keep)(*one) for one in work)


def _worker() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the parent; and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)  # what was computed so far is in files

    Thread(target=watch, daemon=True).start()


def _threads(config: Any) -> int:
    """Another number of threads rounds sums otherwise: it is one, or that which the study was asked for."""
    return int(getattr(config, "threads", 1))


def _compute_and_keep(
    study: str, config: Any, cell: Cell, source: Rng, file: Path, desk: Desk, note: dict[str, Any]
) -> None:
    module = import_module(study)
    began = perf_counter()
    given = {"desk": desk} if "desk" in signature(module.compute_cell).parameters else {}
    with use(note["backend"]), import_module("threadpoolctl").threadpool_limits(_threads(config)):
        row = module.compute_cell(config, cell, source, **given)
    kept = {"cell": _plain(cell), "row": _plain(row), "seconds": perf_counter() - began, **note}
    _put(file, json.dumps(kept, allow_nan=True) + "\n")


def _put(file: Path, text: str) -> None:
    with whole(file) as stream:
        stream.write(text.encode())


def _read(file: Path, names: Iterable[str], remedy: str) -> dict[str, Any]:
    """The object that a file of JSON holds; ValueError unless it is whole and has these names."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None
    if not isinstance(kept, dict) or not kept.keys() >= set(names):
        raise ValueError(f"{file} is damaged (expected {', '.join(names)} in it); {remedy}")
    return kept


def _cell(file: Path) -> dict[str, Any]:
    return _read(file, ("cell", "row"), "delete it, and it is computed again")


def _plain(value: Any) -> Any:
    """`value` as JSON gives it back: tuples are lists, NumPy's numbers are Python's."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value


def _slug(cell: Cell) -> str:
    words = "-".join(f"{name}-{value}" for name, value in cell.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


def _differences(here: dict[str, Any], there: dict[str, Any]) -> str:
    found = [
        f"{name} is {there.get(name)!r}, not {here[name]!r}"
        for name in ("study", "seed")
        if there.get(name) != here[name]
    ]
    old, new = there.get("config", {}), here["config"]
    found += [
        f"{name} is {old.get(name)!r}, not {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return "; ".join(found)


def about() -> dict[str, Any]:
    """What a reader needs to repeat a result: versions, backend, machine and revision."""
    return {
        "versions": versions(PACKAGES),
        "backend": active().name,
        "machine": platform.platform(),
        "revision": revision(),
    }


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other runs out of a folder: two would write the same files."""
    try:
        fcntl = import_module("fcntl")
    except ImportError:  # Windows
        yield
        return
    with (out / ".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except BlockingIOError:
            raise ValueError(
                f"another run is at work in {out}; expected to be alone, or another folder (--out)"
            ) from None
        yield


def run(
    study: Any,
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_start: Callable[[Watch], None] = lambda watch: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures."""
    valid_count("jobs", jobs)
    for name in NEEDS:
        import_module(name)  # what is missing is told before the work
    folder = Folder(out, study.__name__, seed, jobs, on_start)
    folder.open(config)
    with _alone(out):
        table = study.compute(config, rng(seed), each=folder.each)
    figures = write_figures(study, table, out)
    return table, [write_table(table, out), *figures, write_report(study, table, figures, out)]
