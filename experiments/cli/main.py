"""The console entry point `phiball`, which also works where the command line's own packages are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from warnings import filterwarnings

from phiball.experiments.framework.requirements import missing_package_message

PACKAGES = ("typer", "rich")


def main() -> None:
    """Run the command line, or say which extra installs what it needs."""
    missing = next((name for name in PACKAGES if find_spec(name) is None), None)
    if missing:
        print(f"phiball: {missing_package_message('the command line', missing, 'verify')}", file=sys.stderr)
        raise SystemExit(1)
    try:
        from phiball.experiments.cli.app import app

        # joblib reports tasks that it stops, and processes that it replaces as they have grown.
        filterwarnings("ignore", category=UserWarning, module="joblib")
        app(prog_name="phiball")
    except KeyboardInterrupt:  # while the packages were being imported
        print("phiball: stopped", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
