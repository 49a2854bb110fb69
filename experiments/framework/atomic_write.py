"""Files that are put in place in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(file: Path) -> Iterator[BinaryIO]:
    """A stream to write a file with: whoever looks, or kills this, finds all of it or nothing."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with part.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
