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

import csv
import json
import os
import platform
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from phiball.backends import Rng, active, rng, use
from phiball.backends.provenance import revision, versions
from phiball.experiments.progress import Desk, Watch, Watched
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


def option(default: Any, text: str, choices: Sequence[str] = (), *, counts: bool = True) -> Any:
    """A field of a Config: its value at the scale `paper`, what it is, and the words that it may be.

    What does not count (where files lie) may differ when a run goes on, and is not recorded with it.
    """
    return field(default=default, metadata={"help": text, "choices": tuple(choices), "counts": counts})


def counting(config: Any) -> dict[str, Any]:
    """The fields of a Config that results depend on."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.metadata.get("counts", True)}


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
    on_cell: Callable[[int, int], None] = lambda done, total: None
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
        self.on_cell(len(cells) - len(left), len(cells))
        note = {"seed": self.seed, **about()}
        work = [(self.study, config, cells[k], sources[k], files[k], desks[k], note) for k in left]
        for n, _ in enumerate(self._computed(work, _threads(config)), start=1):
            self.on_cell(len(cells) - len(left) + n, len(cells))
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
        with joblib.parallel_config(backend="loky", inner_max_num_threads=threads, initializer=_deaf):
            pool = joblib.Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            yield from pool(joblib.delayed(_compute_and_keep)(*one) for one in work)


def _deaf() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    """Write a file in one step: whoever looks, or kills this, finds all of it or nothing."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)


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


def run(
    study: Any,
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
    on_start: Callable[[Watch], None] = lambda watch: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures."""
    valid_count("jobs", jobs)
    for name in NEEDS:
        import_module(name)  # what is missing is told before the work
    folder = Folder(out, study.__name__, seed, jobs, on_cell, on_start)
    folder.open(config)
    table = study.compute(config, rng(seed), each=folder.each)
    figures = _write_figures(study, table, out)
    return table, [_write_table(table, out), *figures, _write_report(study, table, figures, out)]


def _write_table(table: Table, out: Path) -> Path:
    """The numbers and words of all rows, blank where a row has none; lists stay in the files of the cells."""
    names = dict.fromkeys(k for row in table.rows for k, v in row.items() if not isinstance(v, (list, dict)))
    with (out / "table.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows([row.get(name, "") for name in names] for row in table.rows)
    return out / "table.csv"


def _write_figures(study: Any, table: Table, out: Path) -> list[Path]:
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    written = []
    for name, figure in study.draw(table).items():
        for kind, how in (("png", {"dpi": 110}), ("svg", {"metadata": {"Date": None}})):
            written.append(out / f"{name}.{kind}")
            with matplotlib.rc_context({"svg.hashsalt": name}):
                figure.savefig(written[-1], **how)
            if kind == "png":
                _fewer_colours(written[-1])
        import_module("matplotlib.pyplot").close(figure)
    return written


def _fewer_colours(file: Path) -> None:
    """A picture of lines and words looks the same in 256 colours, and takes a third of the space."""
    image = import_module("PIL.Image")
    with image.open(file) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(file, optimize=True)


def _write_report(study: Any, table: Table, figures: list[Path], out: Path) -> Path:
    note = json.loads((out / "run.json").read_text(encoding="utf-8"))
    settings = ", ".join(f"{name} {value}" for name, value in counting(table.config).items())
    lines = [f"# {study.TITLE}", "", *(f"![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png")]
    lines += [sheet.markdown() for sheet in study.sheets(table)]
    lines += [f"{paragraph}\n" for paragraph in study.findings(table)]
    versions = ", ".join(f"{name} {v}" for name, v in note["versions"].items())
    lines += [
        f"Settings: {settings}. Seed {note['seed']}; {versions}; backend {note['backend']}; "
        f"{note['machine']}; {note['revision']}."
    ]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / "report.md"
