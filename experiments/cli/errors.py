"""Command-line errors: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from phiball.experiments.framework.requirements import missing_package_message

_USAGE_ERROR: Any = typer.BadParameter.__base__  # click's UsageError; typer may use its own copy of click


class OneLineErrors(TyperGroup):
    """A command group that reports user errors and Ctrl-C as one line on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, and exit."""
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except _USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help page
                error.show()
            else:
                _print(error.format_message())
            code = error.exit_code
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("stopped", 130)
        except (ValueError, ImportError, OSError) as error:
            fail(_message_of(error))


def _print(message: str) -> None:
    print(f"phiball: {' '.join(message.split())}", file=sys.stderr)


def _message_of(error: Exception) -> str:
    """The message of an error; for a missing package, it names the extra that installs it."""
    if isinstance(error, ModuleNotFoundError):  # `require` raises a plain ImportError, with the extra
        return missing_package_message("the command", str(error.name), "verify,experiments")
    return str(error)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print a message as one line on stderr and exit."""
    _print(message)
    raise typer.Exit(code) from None


@contextmanager
def usage_errors(explain: Callable[[Exception], str] = str) -> Iterator[None]:
    """Report a ValueError or TypeError of the block as the line `explain(error)`, with exit status 2."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fail(explain(error), 2)
