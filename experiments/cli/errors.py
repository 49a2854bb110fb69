"""Errors on the command line: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

_USAGE_ERROR: Any = typer.BadParameter.__base__  # of click, which typer contains or imports


class OneLineErrors(TyperGroup):
    """A group whose commands report a wrong option as one line on stderr."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run the command line, and exit."""
        try:
            code = super().main(*args, **{**more, "standalone_mode": False})
        except _USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
                error.show()
            else:
                print(f"phiball: {' '.join(error.format_message().split())}", file=sys.stderr)
            code = error.exit_code
        sys.exit(code or 0)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print a message as one line on stderr, and exit."""
    print(f"phiball: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code) from None


@contextmanager
def one_line_errors(*kinds: type[Exception], code: int = 1) -> Iterator[None]:
    """Turn errors of these kinds, which a user can mend, into one line and an exit status."""
    try:
        yield
    except kinds as error:
        fail(str(error), code)


def make_folder(folder: Path) -> None:
    """Make the folder of --out, if it is not there; a line and an exit if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fail(f"--out is {str(folder)!r}; expected a folder that can be written to ({error.strerror})")
