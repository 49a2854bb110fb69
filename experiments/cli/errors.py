"""Errors on the command line: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from phiball.experiments.framework.requirements import missing_package_message

_USAGE_ERROR: Any = typer.BadParameter.__base__  # of click, which typer contains or imports


class OneLineErrors(TyperGroup):
    """A group whose commands report an error that a user can mend, or Ctrl-C, as one line on stderr."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run the command line, and exit."""
        try:
            code = super().main(*args, **{**more, "standalone_mode": False})
        except _USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
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
    """Return the message of an error, which names the extra of a package that is missing."""
    if isinstance(error, ModuleNotFoundError):  # not raised by `require`, which has a message of its own
        return missing_package_message("the command", str(error.name), "verify,experiments")
    return str(error)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print a message as one line on stderr, and exit."""
    _print(message)
    raise typer.Exit(code) from None


@contextmanager
def usage_errors(explain: Callable[[Exception], str] = str) -> Iterator[None]:
    """Report bad arguments, whatever their type, as one line and exit status 2."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fail(explain(error), 2)
