"""`phiball run NAME`: the paper's studies, each parameter an option."""

from __future__ import annotations

import inspect
import os
from dataclasses import Field, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from phiball.backends import threads
from phiball.backends.distributed import started_by_torchrun
from phiball.experiments.cli.errors import fail
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.requirements import missing_package_message
from phiball.experiments.framework.study import SCALES, Study
from phiball.experiments.framework.tables import ReportTable

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
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        try:
            study = load_study(cmd_name)
        except ImportError as error:
            message, settings = _explain(error), {"ignore_unknown_options": True, "allow_extra_args": True}
            single.command(cmd_name, help=message, context_settings=settings)(lambda: fail(message))
            return typer.main.get_command(single)

        def command(**texts: Any) -> None:
            run_study(study, texts)

        command.__signature__ = inspect.Signature(_parameters(study))  # type: ignore[attr-defined]
        epilog = f"Example: phiball run {cmd_name} --scale smoke"
        single.command(cmd_name, help=study.title, epilog=epilog)(command)
        return typer.main.get_command(single)


app = typer.Typer(
    cls=_Studies,
    help="The paper's studies, each parameter an option.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def load_study(name: str) -> Study[Any]:
    """Import a study of STUDIES."""
    study: Study[Any] = import_module(STUDIES[name]).STUDY
    return study


def run_study(study: Study[Any], texts: dict[str, Any]) -> None:
    """Run a study with the options of its command, and print its tables and findings."""
    try:
        from phiball.backends.parallel import check_cluster, cluster
        from phiball.experiments.framework.outputs import task_list
        from phiball.experiments.framework.runner import ShardDoneError
        from phiball.experiments.framework.shards import Shard
    except ImportError as error:
        fail(_explain(error))
    try:
        options: RunOptions = _changed(RunOptions(), texts)
        config = _changed(study.scales[options.scale], texts)
        check_cluster(options.engine, options.address)
        shard = Shard.parse(options.shard) if options.shard else None
        if bool(texts["merge"]) != bool(texts["folders"]):
            raise ValueError("--merge and the folders of shards go together; expected both or neither")
    except (ValueError, TypeError) as error:
        name, *rest = str(error).split(" ")
        fail(" ".join([_flag(name) if name in texts else name, *rest]), 2)
    out = Path(options.out or Path("results", study.name, options.scale))
    if shard is not None and not options.out:
        out = out / "shards" / f"{shard.k}-of-{shard.n}"
    try:
        if texts["list_tasks"]:
            _show([task_list(study, config, out, shard)], [], _console())
            return
        with cluster(options.engine, options.address):
            _run(study, config, out, options, shard=shard, merge=list(map(Path, texts["folders"] or [])))
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


def _parameters(study: Study[Any]) -> list[inspect.Parameter]:
    """Return a parameter for each field of RunOptions and of the study's Config, for typer."""
    found = [_parameter(item, _shown(item.default)) for item in fields(RunOptions)]
    for item in fields(study.scales["paper"]):
        shown = {scale: _shown(getattr(study.scales[scale], item.name)) for scale in reversed(SCALES)}
        differing = {s: text for s, text in shown.items() if s == "paper" or text != shown["paper"]}
        values = "; ".join(f"{scale}: {text}" for scale, text in differing.items())
        found.append(_parameter(item, values if any(shown.values()) else ""))
    merge = typer.Option("--merge", help="Join the folders of all shards, which follow, and report.")
    tasks = typer.Option("--list-tasks", help="Show the tasks and about what they cost; compute nothing.")
    folders = typer.Argument(help="The folders to --merge.", show_default=False)
    more = {"merge": (bool, merge, False), "list_tasks": (bool, tasks, False)}
    more["folders"] = (list[str] | None, folders, None)  # type: ignore[assignment]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return found + [
        inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])
        for name, (kind, info, default) in more.items()
    ]


def _parameter(item: Field[Any], values: str) -> inspect.Parameter:
    choices = item.metadata["choices"]
    parts = [item.metadata["help"], f"One of {', '.join(choices)}." if choices else ""]
    text = " ".join(filter(None, [*parts, f"[{values}]" if values else ""]))
    metavar = "VALUE,..." if isinstance(item.default, tuple) else "VALUE"
    info = typer.Option(_flag(item.name), help=text, metavar=metavar, show_default=False)
    annotation = Annotated[str | None, info]
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


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


def _console() -> Console:
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def _run(study: Study[Any], config: Any, out: Path, options: RunOptions, **which: Any) -> None:
    from phiball.experiments.framework.progress import RunProgress
    from phiball.experiments.framework.runner import run

    if started_by_torchrun() and os.environ["RANK"] != "0":
        run(study, config, out, seed=options.seed, **which)  # the first process shows what there is
        return
    here = options.engine == "processes"
    elsewhere = not here or (which["merge"] and not which["shard"])  # nothing is computed on this machine
    # Before the display, because a download shows a bar of its own.
    study.prepare(study.on_device(config, "cpu") if elsewhere else config)
    jobs = options.jobs or (threads() if here else -1)
    console = _console()
    with RunProgress(study.name, console) as display:
        which |= {"seed": options.seed, "jobs": jobs, "resume": options.resume, "on_start": display.start}
        table, written = run(study, config, out, **which)
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
