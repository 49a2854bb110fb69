"""The console entry point `phiball`, which also works where the command line's own needs are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDS = ("typer", "rich")


def main() -> None:
    """Run the command line, or say which extra brings what it needs."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        print(
            f"phiball: the command line needs {' and '.join(missing)}: pip install 'phiball[verify]'",
            file=sys.stderr,
        )
        raise SystemExit(1)
    from phiball.experiments.cli.app import app

    app(prog_name="phiball")
