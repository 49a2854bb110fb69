"""The versions, backend, machine and revision that reproduce a result."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phiball.backends.selection import active

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
    """Return the git revision of the checkout that this package runs from; None for an installed package.

    It ends in -dirty if files other than run records have changed.
    """
    commit = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*/record.json")
    return f"{commit}-dirty" if commit and changed else commit


def code_links(folder: Path) -> str | None:
    """Return a URL template with {path} and {line} for links to the code from a page in `folder`.

    It points to the published revision if the checkout's origin has a web page, and otherwise to the local
    file; None for an installed package.
    """
    root, origin, commit = (
        Path(__file__).resolve().parents[1],
        _git("remote", "get-url", "origin"),
        _git("rev-parse", "HEAD"),
    )
    if commit is None:
        return None
    if origin and origin.startswith("https://"):
        return f"{origin.removesuffix('.git')}/blob/{commit}/{{path}}#L{{line}}"
    return f"{Path(os.path.relpath(root, folder.resolve())).as_posix()}/{{path}}"


def origin(record: dict[str, Any]) -> dict[str, Any]:
    """Return the versions, backend and revision that a result depends on, besides its settings."""
    return {**record["versions"], "backend": record["backend"], "revision": record.get("revision")}


def differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Describe the entries in which `before` differs from `after`."""
    return "; ".join(
        f"{name} is {before.get(name)!r}, not {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def check_origin(record: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise ValueError if a worker's versions, backend or revision differ from the run's."""
    there, ours = origin(here), origin(record)
    if there["revision"] is None or ours["revision"] is None:  # unknown for an installed package
        there["revision"] = ours["revision"] = None
    if there != ours:
        raise ValueError(f"a cluster worker differs from the run: {differences(there, ours)}")


def _git(*arguments: str) -> str | None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():  # git itself would find an enclosing repository
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
