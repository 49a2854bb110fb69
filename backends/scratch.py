"""Folders for the moment, of which a process that is killed leaves none for good."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

_PREFIX, _LOCK = "phiball-", ".lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed in the end; those that killed processes have left are removed now.

    A folder is in use while its process holds the lock on a file in it. The system releases that lock however
    the process ends.
    """
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        fcntl = _fcntl()
        if fcntl is None:
            yield folder
            return
        with (folder / ".new").open("w", encoding="utf-8") as lock:
            _lock(fcntl, lock)
            (folder / ".new").rename(folder / _LOCK)  # under this name it is locked from the first
            _remove_abandoned(fcntl, folder)
            yield folder


def _remove_abandoned(fcntl: Any, own: Path) -> None:
    """Remove the folders beside `own` whose locks are free."""
    for file in own.parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if file.parent != own:
            with suppress(OSError), file.open("r+", encoding="utf-8") as lock:  # another user's, or just gone
                _lock(fcntl, lock)
                shutil.rmtree(file.parent, ignore_errors=True)


def _lock(fcntl: Any, file: TextIO) -> None:
    """Lock a file; BlockingIOError if another process has."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _fcntl() -> Any:
    """The module, or None on Windows, which has none."""
    try:
        return import_module("fcntl")
    except ImportError:
        return None
