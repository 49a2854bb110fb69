"""Folders for the moment, of which a process that is killed leaves none for good."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from phiball.backends.files import lock

# No folder of a user has these names: what they mark is removed.
_PREFIX, _MARK = "phiball-scratch-", ".phiball-scratch-lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed in the end; those that killed processes have left are removed now.

    A folder is in use while its process holds the lock on a file in it. The system releases that lock however
    the process ends.
    """
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / ".new").open("w", encoding="utf-8") as stream:
            if lock(stream):
                (folder / ".new").rename(folder / _MARK)  # under this name it is locked from the first
                _remove_abandoned(folder)
            yield folder


def _remove_abandoned(own: Path) -> None:
    """Remove the folders beside `own` whose locks are free."""
    for file in own.parent.glob(f"{_PREFIX}*/{_MARK}"):
        if file.parent != own:
            with (
                suppress(OSError),
                file.open("r+", encoding="utf-8") as stream,
            ):  # another user's, or just gone
                lock(stream)
                shutil.rmtree(file.parent, ignore_errors=True)
