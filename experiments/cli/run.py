"""`phiball run NAME`: the paper's studies, each parameter an option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import Field, fields, replace
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from phiball.backends import threads

STUDIES = {
    "worst-case": "phiball.experiments.studies.worst_case.study",
    "pricing": "phiball.experiments.studies.pricing.study",
    "cartpole": "phiball.experiments.studies.cartpole.study",
    "supervised": "phiball.experiments.studies.supervised.study",
}
WIDE = 160  # columns, where the output goes to a file
SCALES = ("smoke", "small", "paper")
KINDS = {int: "a whole number", float: "a number", str: "a word"}


class _Studies(TyperGroup):
    """The commands of STUDIES, each made when it is asked for: a study's libraries are not needed before."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STUDIES:
            return None
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = f"Example: phiball run {cmd_name} --scale smoke"
        try:
            one.command(cmd_name, epilog=epilog)(command(cmd_name))
        except ImportError as error:
            # Its options are not known: whatever is given, it says what is missing.
            anything = {"ignore_unknown_options": True, "allow_extra_args": True}
            one.command(cmd_name, epilog=epilog, context_settings=anything)(_told(_why(error)))
        return typer.main.get_command(one)


app = typer.Typer(cls=_Studies, help="The paper's studies, each parameter an option.", no_args_is_help=True)


def _why(error: Exception) -> str:
    """What to tell of an error that a user can mend."""
    if isinstance(error, ImportError) and error.name:
        return f"the studies need {error.name}, which is not installed: pip install 'phiball[experiments]'"
    return str(error)


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"phiball: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code) from None


def _told(message: str) -> Callable[..., None]:
    """The command of a study that cannot be loaded."""

    def tell() -> None:
        _fail(message)

    tell.__doc__ = escape(message[0].upper() + message[1:])
    return tell


def _parsed(item: Field[Any], text: str) -> Any:
    """An option's text as a value of its field; ValueError if it is none."""
    default: Any = item.default
    several = isinstance(default, tuple)
    kind = type(default[0]) if several else type(default)
    parts = [part.strip() for part in text.split(",")] if several else [text]
    choices = item.metadata.get("choices", ())
    strange = [part for part in parts if choices and part not in choices]
    if strange:
        expected = f"one of {', '.join(choices)}" + ("; several have commas between them" if several else "")
        raise ValueError(f"{_flag(item)} has {strange[0]!r}; expected {expected}")
    try:
        values = tuple(kind(part) for part in parts)
    except ValueError:
        expected = KINDS[kind] + (", or more with commas" if several else "")
        raise ValueError(f"{_flag(item)} is {text!r}; expected {expected}") from None
    return values if several else values[0]


def _flag(item: Field[Any]) -> str:
    return "--" + item.name.replace("_", "-")


def _as_option(study: Any, message: str) -> str:
    """A message about a field of the Config, with the name that the field has on the command line."""
    name, rest, more = message.partition(" ")
    known = {item.name: _flag(item) for item in fields(study.Config)}
    return f"{known.get(name, name)}{rest}{more}"


def _scales(study: Any, item: Field[Any]) -> str:
    """The values of an option, at the scale `paper` and where others differ."""
    shown = {scale: _shown(getattr(study.SCALES[scale], item.name)) for scale in reversed(SCALES)}
    told = [f"{scale}: {text}" for scale, text in shown.items() if scale == "paper" or text != shown["paper"]]
    return f"[{'; '.join(told)}]" if any(shown.values()) else ""


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def command(name: str) -> Callable[..., None]:
    """The command of a study, with an option for each field of its Config."""
    study = import_module(STUDIES[name])

    def run_study(**given: Any) -> None:
        scale, out, seed, jobs = (given.pop(word) for word in ("scale", "out", "seed", "jobs"))
        try:
            if scale not in SCALES:
                raise ValueError(f"--scale is {scale!r}; expected one of {', '.join(SCALES)}")
            changes = {
                item.name: _parsed(item, given[item.name])
                for item in fields(study.Config)
                if given[item.name] is not None
            }
            config = replace(study.SCALES[scale], **changes)
        except (ValueError, TypeError) as error:
            _fail(_as_option(study, str(error)), 2)
        try:
            _go(study, config, out or Path("results") / name / scale, seed, jobs)
        except (ValueError, ImportError, OSError) as error:
            _fail(_why(error))
        except KeyboardInterrupt:
            _fail("stopped; the same command goes on from here", 130)

    plain: list[tuple[str, Any, Any, dict[str, Any], str]] = [
        ("scale", str, "small", {}, "smoke, small or paper."),
        ("out", Path | None, None, {}, f"The folder of the results [results/{name}/SCALE]."),
        ("seed", int, 0, {"min": 0}, "The seed of everything that is drawn."),
        ("jobs", int, 0, {"min": 0}, "Cells that are computed at a time; 0 is one a core."),
    ]
    parameters = [
        Parameter(
            word,
            Parameter.KEYWORD_ONLY,
            default=value,
            annotation=Annotated[kind, typer.Option(help=escape(text), **bounds)],
        )
        for word, kind, value, bounds, text in plain
    ]
    for item in fields(study.Config):
        choices = item.metadata.get("choices", ())
        text = item.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
        text = f"{text} {_scales(study, item)}".strip()
        several = isinstance(item.default, tuple)
        flag = typer.Option(_flag(item), help=escape(text), metavar="VALUE,..." if several else "VALUE")
        parameters.append(
            Parameter(
                item.name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, flag],
            )
        )
    run_study.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run_study.__annotations__ = {p.name: p.annotation for p in parameters}
    run_study.__doc__ = study.TITLE
    return run_study


def _go(study: Any, config: Any, out: Path, seed: int, jobs: int) -> None:
    from phiball.experiments.framework.progress import Board
    from phiball.experiments.framework.runner import run

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDE)
    if hasattr(study, "prepare"):  # before the board, because a download shows a bar of its own
        study.prepare(config)
    board = Board(study.NAME, console)
    with board.shown():
        table, written = run(study, config, out, seed=seed, jobs=jobs or threads(), on_start=board.start)
    for sheet in study.sheets(table):
        page = sheet.table()
        if (
            console.measure(page, options=console.options.update(max_width=10 * WIDE)).maximum
            <= console.width
        ):
            console.print(page)
        else:
            console.print(f"{sheet.title}: a table too wide for this terminal, in report.md", highlight=False)
    for paragraph in study.findings(table):
        console.print(paragraph, highlight=False, markup=False)
    console.print(f"wrote {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
