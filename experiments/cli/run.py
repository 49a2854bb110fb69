"""`phiball run NAME`: the paper's studies, with an option per parameter."""

from __future__ import annotations

import inspect
import os
from dataclasses import Field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from phiball.backends.process_group import started_by_torchrun
from phiball.experiments.cli.errors import usage_errors
from phiball.experiments.cli.options import Address, Engine, NJobs, Seed
from phiball.experiments.framework.config import kind_of
from phiball.experiments.framework.study import SCALES, Study

STUDIES = {
    "worst-case": "phiball.experiments.studies.worst_case.study",
    "pricing": "phiball.experiments.studies.pricing.study",
    "cartpole": "phiball.experiments.studies.cartpole.study",
    "supervised": "phiball.experiments.studies.supervised.study",
    "settings": "phiball.experiments.studies.settings.study",
}
MIN_WIDTH = 160  # characters, so that tables are not truncated
KINDS = {int: "a whole number", float: "a number", str: "text"}


class _Studies(TyperGroup):
    """The commands of STUDIES, imported on demand, because studies need optional libraries."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STUDIES:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        study = load_study(cmd_name)
        epilog = f"Example: phiball run {cmd_name} --scale smoke"
        single.command(cmd_name, help=study.title, epilog=epilog)(_command(study))
        return typer.main.get_command(single)


app = typer.Typer(
    cls=_Studies,
    help="Run the paper's studies; every parameter is an option.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def load_study(name: str) -> Study[Any]:
    """Import a study of STUDIES."""
    study: Study[Any] = import_module(STUDIES[name]).STUDY
    return study


def _command(study: Study[Any]) -> Any:
    """The command of a study: the options of `command` below, and one per field of the study's Config."""

    def command(
        folders: Annotated[
            list[Path] | None, typer.Argument(help="Folders of shards, for --merge.", show_default=False)
        ] = None,
        scale: Annotated[str, typer.Option(help=f"Size of the study: {', '.join(SCALES)}.")] = "small",
        out: Annotated[
            Path | None, typer.Option(help="Folder for the results; by default results/NAME/SCALE.")
        ] = None,
        seed: Seed = 0,
        n_jobs: NJobs = -1,
        engine: Engine = "processes",
        address: Address = "",
        shard: Annotated[
            str, typer.Option(help="Compute the k-th of n parts of the tasks, given as k/n.")
        ] = "",
        resume: Annotated[
            str, typer.Option(help="same: resume a run of the same settings and versions; none: start again.")
        ] = "same",
        merge: Annotated[
            bool, typer.Option("--merge", help="Merge the folders of all shards, and write the report.")
        ] = False,
        list_tasks: Annotated[
            bool, typer.Option("--list-tasks", help="List the tasks and estimate their cost.")
        ] = False,
        **texts: Any,
    ) -> None:
        from phiball.backends.workers import check_cluster, cluster
        from phiball.experiments.framework.outputs import task_list
        from phiball.experiments.framework.shards import Shard
        from phiball.experiments.framework.study_runs import ShardDoneError

        with usage_errors(_name_flag):
            _check_choice("scale", scale, SCALES)
            _check_choice("resume", resume, ("same", "none"))
            config = _with_options(study.scales[scale], texts)
            check_cluster(engine, address)
            part = Shard.parse(shard) if shard else None
            if merge != bool(folders):
                raise ValueError("--merge and the shard folders must be given together")
        if out is None:
            out = Path("results", study.name, scale)
            out = out if part is None else out / "shards" / f"{part.k}-of-{part.n}"
        if list_tasks:
            _console().print(task_list(study, config, out, part).table())
            return
        options = {"shard": part, "merge": folders or (), "seed": seed, "resume": resume == "same"}
        try:
            with cluster(engine, address):
                _run(study, config, out, n_jobs, engine == "processes", options)
        except ShardDoneError as done:
            Console().print(str(done), highlight=False, soft_wrap=True)

    signature = inspect.signature(command, eval_str=True)
    shared = list(signature.parameters.values())[:-1]
    own = [_parameter(study, item) for item in fields(study.scales["paper"])]
    command.__signature__ = signature.replace(parameters=[*shared, *own])  # type: ignore[attr-defined]
    return command


def _run(
    study: Study[Any], config: Any, out: Path, n_jobs: int, local: bool, options: dict[str, Any]
) -> None:
    """Run a study and print its tables and findings.

    `local` means without a cluster; `options` are further arguments of `run_study`.
    """
    from phiball.backends.progress import Progress
    from phiball.experiments.framework.study_runs import run_study

    if started_by_torchrun() and os.environ["RANK"] != "0":
        run_study(study, config, out, **options)  # only the first process prints
        return
    no_local_tasks = not local or (options["merge"] and not options["shard"])
    # Prepare before the progress bar starts, because a download shows its own. If no task runs here, the
    # device of the tasks need not exist on this machine.
    study.prepare(study.on_device(config, "cpu") if no_local_tasks else config)
    with Progress(study.name, Console()) as display:

        def update(share: float, text: str) -> None:
            if share < display.share:  # a new stage
                display.restart(share)
            display.update(share, text)

        table, written = run_study(study, config, out, n_jobs=n_jobs, update=update, **options)
    console = _console()
    for report_table in study.tables(table):
        console.print(report_table.table(), highlight=False)
    for line in [*study.findings(table), f"wrote {', '.join(map(str, written))}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _console() -> Console:
    return Console(width=max(MIN_WIDTH, Console().width))


# --- Options of a Config ----------------------------------------------------------------------------


def _parameter(study: Study[Any], item: Field[Any]) -> inspect.Parameter:
    """The typer option of a field; its help shows the paper's value, and those of scales that differ."""
    defaults = {scale: _to_text(getattr(study.scales[scale], item.name)) for scale in reversed(SCALES)}
    shown = {scale: text for scale, text in defaults.items() if scale == "paper" or text != defaults["paper"]}
    values = "; ".join(f"{scale}: {text}" for scale, text in shown.items())
    choices = item.metadata["choices"]
    parts = [item.metadata["help"], f"One of {', '.join(choices)}." if choices else ""]
    text = " ".join(filter(None, [*parts, f"[{values}]" if any(defaults.values()) else ""]))
    metavar = "VALUE,..." if isinstance(item.default, tuple) else "VALUE"
    info = typer.Option(_flag(item.name), help=text, metavar=metavar, show_default=False)
    annotation = Annotated[str | None, info]
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _name_flag(error: Exception) -> str:
    """The message of an error, with the field name at its start replaced by the option."""
    name, space, rest = str(error).partition(" ")
    return (name if name.startswith("-") else _flag(name)) + space + rest


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of the option `name` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def _to_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _with_options(config: Any, texts: dict[str, str | None]) -> Any:
    """The configuration with the values of the given options."""
    given = [(item, text) for item in fields(config) if (text := texts[item.name]) is not None]
    return replace(config, **{item.name: _parse(item, text) for item, text in given})


def _parse(item: Field[Any], text: str) -> Any:
    """Convert an option's text to the type of its field, or raise ValueError."""
    kind, several = kind_of(item), isinstance(item.default, tuple)
    try:
        if several:
            return tuple(kind(part.strip()) for part in text.split(","))
        return kind(text)
    except ValueError:
        expected = KINDS[kind] + (", or several separated by commas" if several else "")
        raise ValueError(f"{item.name} is {text!r}; expected {expected}") from None
