"""The entry point of the command `phiball`; importing this module does not need typer or rich."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from warnings import filterwarnings

from phiball.experiments.framework.requirements import missing_package_message

PACKAGES = ("typer", "rich")


def main() -> None:
    """Run the command line, or name the extra that installs a missing package."""
    missing = next((name for name in PACKAGES if find_spec(name) is None), None)
    if missing:
        print(f"phiball: {missing_package_message('the command line', missing, 'verify')}", file=sys.stderr)
        raise SystemExit(1)
    try:
        from phiball.experiments.cli.app import app

        # joblib warns when it stops a task or restarts a worker, which users need not know.
        filterwarnings("ignore", category=UserWarning, module="joblib")
        app(prog_name="phiball")
    except KeyboardInterrupt:  # during the imports
        print("phiball: stopped", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
