"""The versions, backend, machine and git revision that are recorded with a result."""

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
    """Return the versions of Python and of those `packages` that are installed."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def revision() -> str | None:
    """Return the git revision of the checkout that contains this file; None for an installed package.

    It ends in -dirty if tracked files have changed, other than the files record.json that studies write.
    """
    commit = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*/record.json")
    return f"{commit}-dirty" if commit and changed else commit


def code_links(folder: Path) -> str | None:
    """Return a URL template with {path} and {line} for links to the code from a page in `folder`.

    The links lead to the commit on the web if the git remote has an https address, and otherwise to the local
    file. Returns None for an installed package.
    """
    remote, commit = _git("remote", "get-url", "origin"), _git("rev-parse", "HEAD")
    if commit is None:
        return None
    if remote and remote.startswith("https://"):
        return f"{remote.removesuffix('.git')}/blob/{commit}/{{path}}#L{{line}}"
    root = Path(__file__).resolve().parents[1]
    return f"{Path(os.path.relpath(root, folder.resolve())).as_posix()}/{{path}}"


def origin(record: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a `provenance` record on which results depend: all except the machine."""
    return {**record["versions"], "backend": record["backend"], "revision": record.get("revision")}


def differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Describe the entries in which `before` differs from `after`."""
    return "; ".join(
        f"{name} is {before.get(name)!r}, not {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def check_origin(record: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise ValueError if `here`, the provenance of a cluster worker, differs from the run's `record`."""
    worker, run = origin(here), origin(record)
    if worker["revision"] is None or run["revision"] is None:  # an installed package has no revision
        worker["revision"] = run["revision"] = None
    if worker != run:
        raise ValueError(f"a cluster worker differs from the run: {differences(worker, run)}")


def _git(*arguments: str) -> str | None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():  # otherwise git would use a repository that encloses this folder
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
