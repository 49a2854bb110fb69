"""`phiball run NAME`: the paper's studies, each parameter an option."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from dataclasses import Field, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from phiball.backends import threads
from phiball.backends.distributed import started_by_torchrun
from phiball.experiments.cli.errors import fail
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.requirements import missing_package_message
from phiball.experiments.framework.shards import Shard, ShardDoneError, task_list
from phiball.experiments.framework.study import SCALES, Study
from phiball.experiments.framework.tables import ReportTable

if TYPE_CHECKING:
    from phiball.backends.engines import Engine

STUDIES = {
    "worst-case": "phiball.experiments.studies.worst_case.study",
    "pricing": "phiball.experiments.studies.pricing.study",
    "cartpole": "phiball.experiments.studies.cartpole.study",
    "supervised": "phiball.experiments.studies.supervised.study",
    "settings": "phiball.experiments.studies.settings.study",
}
WIDE = 160  # columns, where the output goes to a file
KINDS = {int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class RunOptions(StudyConfig):
    """The options that all studies share."""

    scale: str = option("small", "The size of the study.", SCALES)
    out: str = option("", "The folder of the results; by default results/NAME/SCALE.")
    seed: int = option(0, "The seed of everything that is drawn.", least=0)
    jobs: int = option(0, "Tasks that are computed at a time; 0 is one per core.", least=0)
    engine: str = option(
        "processes", "Where tasks run: on this machine, or a cluster.", ("processes", "dask", "ray")
    )
    address: str = option("", "Of the cluster: tcp://HOST:8786 (Dask); HOST:6379, or auto (Ray).")
    shard: str = option("", "Compute one part of the tasks, k/n: the k-th of n, in a folder of its own.")
    resume: str = option(
        "same",
        "What to go on with: a run of the same versions and backend, any run of the same settings, or none, "
        "which drops what is there and begins anew.",
        ("same", "any", "none"),
    )


class _Studies(TyperGroup):
    """The commands of STUDIES, each made when it is asked for: a study's libraries are not needed before."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STUDIES:
            return None
        try:
            text = load_study(cmd_name).title
        except ImportError as error:
            text = _explain(error)
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        # The options of a study are data, which argparse takes as they are: it parses what follows the name.
        settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

        @single.command(cmd_name, help=escape(text), context_settings=settings)
        def command(context: typer.Context) -> None:
            run_study(cmd_name, context.args)

        return typer.main.get_command(single)


app = typer.Typer(cls=_Studies, help="The paper's studies, each parameter an option.", no_args_is_help=True)


def load_study(name: str) -> Study[Any]:
    """Import a study of STUDIES."""
    study: Study[Any] = import_module(STUDIES[name]).STUDY
    return study


def run_study(name: str, arguments: list[str]) -> None:
    """Run a study with the arguments of its command, and print its tables and findings."""
    try:
        study = load_study(name)
    except ImportError as error:
        fail(_explain(error))
    texts: dict[str, Any] = vars(_parser(study).parse_args(_join_negative(arguments)))
    try:
        options: RunOptions = _changed(RunOptions(), texts)
        config = _changed(study.scales[options.scale], texts)
        engine, shard = _where(options)
    except (ValueError, TypeError) as error:
        name, *rest = str(error).split(" ")
        fail(" ".join([_flag(name) if name in texts else name, *rest]), 2)
    try:
        out = Path(options.out or Path("results", study.name, options.scale))
        if shard is not None and not options.out:
            out = out / "shards" / f"{shard.k}-of-{shard.n}"
        if texts["list_tasks"]:
            _show([task_list(study, config, out, shard)], [], _console())
            return
        _run(study, config, out, options, engine, shard, list(map(Path, texts["merge"])))
    except ShardDoneError as done:
        Console().print(str(done), highlight=False, soft_wrap=True)
    except (ValueError, ImportError, OSError) as error:
        fail(_explain(error))
    except KeyboardInterrupt:
        fail("stopped; run the same command to resume", 130)


def _explain(error: Exception) -> str:
    """Return the message of an error that a user can mend."""
    if isinstance(error, ModuleNotFoundError):  # not raised by `require`, which has a message of its own
        return missing_package_message("a study", str(error.name), "experiments")
    return str(error)


# --- Options ----------------------------------------------------------------------------------------


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(message, 2)


def _parser(study: Study[Any]) -> ArgumentParser:
    """Return a parser with an option for each field of RunOptions and of the study's Config."""
    command = f"phiball run {study.name}"
    parser = _Parser(
        usage=f"{command} [OPTIONS]",
        description=study.title,
        epilog=f"Example: {command} --scale smoke",
        allow_abbrev=False,
    )
    for item in fields(RunOptions):
        _add(parser, item, _shown(item.default))
    parser.add_argument(
        "--merge", nargs="+", default=[], metavar="FOLDER", help="Join the folders of all shards, and report."
    )
    parser.add_argument(
        "--list-tasks", action="store_true", help="Show the tasks and about what they cost; compute nothing."
    )
    for item in fields(study.scales["paper"]):
        shown = {scale: _shown(getattr(study.scales[scale], item.name)) for scale in reversed(SCALES)}
        differing = {s: text for s, text in shown.items() if s == "paper" or text != shown["paper"]}
        values = "; ".join(f"{scale}: {text}" for scale, text in differing.items())
        _add(parser, item, values if any(shown.values()) else "")
    return parser


def _add(parser: ArgumentParser, item: Field[Any], values: str) -> None:
    choices = item.metadata["choices"]
    parts = [item.metadata["help"], f"One of {', '.join(choices)}." if choices else ""]
    text = " ".join(filter(None, [*parts, f"[{values}]" if values else ""]))
    metavar = "VALUE,..." if isinstance(item.default, tuple) else "VALUE"
    parser.add_argument(_flag(item.name), help=text.replace("%", "%%"), metavar=metavar)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _join_negative(arguments: list[str]) -> list[str]:
    """Join a value such as -1,2 to its option by "=": argparse would take it for an option itself."""
    joined: list[str] = []
    for word in arguments:
        if joined and re.match(r"-[\d.]", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _changed(config: Any, texts: dict[str, str | None]) -> Any:
    """Return a configuration with the values of the options that were used."""
    used = [(item, text) for item in fields(config) if (text := texts[item.name]) is not None]
    return replace(config, **{item.name: _parse(item, text) for item, text in used})


def _parse(item: Field[Any], text: str) -> Any:
    """Return an option's text as a value of its field; raise ValueError unless it is one."""
    default: Any = item.default
    several = isinstance(default, tuple)
    kind = type(default[0]) if several else type(default)
    parts = [part.strip() for part in text.split(",")] if several else [text]
    choices = item.metadata["choices"]
    unknown = [part for part in parts if choices and part not in choices]
    if unknown:
        expected = f"one of {', '.join(choices)}" + ("; several have commas between them" if several else "")
        raise ValueError(f"{item.name} {'has' if several else 'is'} {unknown[0]!r}; expected {expected}")
    try:
        values = tuple(kind(part) for part in parts)
    except ValueError:
        expected = KINDS[kind] + (", or more with commas" if several else "")
        raise ValueError(f"{item.name} is {text!r}; expected {expected}") from None
    return values if several else values[0]


# --- The run ----------------------------------------------------------------------------------------


def _where(options: RunOptions) -> tuple[Engine, Shard | None]:
    """Return where tasks run, and which of them."""
    from phiball.backends.engines import Engine

    jobs = options.jobs or (threads() if options.engine == "processes" else 0)
    engine = Engine(options.engine, options.address, jobs)
    return engine, Shard.parse(options.shard) if options.shard else None


def _console() -> Console:
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def _run(
    study: Study[Any],
    config: Any,
    out: Path,
    options: RunOptions,
    engine: Engine,
    shard: Shard | None,
    merge: list[Path],
) -> None:
    from phiball.experiments.framework.progress import ProgressDisplay
    from phiball.experiments.framework.runner import run

    console = _console()
    if started_by_torchrun() and os.environ["RANK"] != "0":
        run(study, config, out, seed=options.seed, shard=shard)  # the first process shows what there is
        return
    elsewhere = not engine.shares_files or (merge and shard is None)  # nothing is computed on this machine
    # Before the display, because a download shows a bar of its own.
    study.prepare(study.on_device(config, "cpu") if elsewhere else config)
    display = ProgressDisplay(study.name, console)
    with display.shown():
        table, written = run(
            study,
            config,
            out,
            seed=options.seed,
            engine=engine,
            shard=shard,
            merge=merge,
            resume=options.resume,
            on_start=display.start,
        )
    _show(study.tables(table), study.findings(table), console)
    console.print(f"wrote {', '.join(map(str, written))}", highlight=False, soft_wrap=True)


def _show(tables: list[ReportTable], paragraphs: list[str], console: Console) -> None:
    for report_table in tables:
        page: Any = report_table.table()
        if console.measure(page, options=console.options.update(max_width=10 * WIDE)).maximum > console.width:
            page = f"{report_table.title}: a table too wide for this terminal, in report.md"
        console.print(page, highlight=False, markup=False)
    for paragraph in paragraphs:
        console.print(paragraph, highlight=False, markup=False)
