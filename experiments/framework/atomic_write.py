"""Files that are replaced in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(file: Path) -> Iterator[BinaryIO]:
    """Open a stream whose content becomes `file` at the end: a reader sees all of it or nothing.

    A process that is killed leaves the file as it was.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with part.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
