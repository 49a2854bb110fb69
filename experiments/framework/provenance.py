"""What a reader needs to repeat a result: versions of libraries, backend, machine and revision."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phiball.backends import active

PACKAGES = ("phiball", "numpy", "numba", "scipy", "torch", "gymnasium", "joblib", "matplotlib")


def provenance() -> dict[str, Any]:
    """Return the versions of PACKAGES, the backend, the machine and the revision of the source."""
    return {
        "versions": versions(PACKAGES),
        "backend": active().name,
        "machine": platform.platform(),
        "revision": revision(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def revision() -> str | None:
    """Return the git revision of the checkout that this package runs from; None for an installed one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # git itself would find a repository further up, which is not ours
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None
