"""Atomic writing and safe reading of files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, BinaryIO
from uuid import uuid4
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np

_MIN_SIZE_LIMIT = 1 << 30  # bytes; an .npz file of any size may unpack to this much


@contextmanager
def atomic_write(file: Path) -> Iterator[BinaryIO]:
    """Open a stream whose content atomically replaces `file` at the end of the block.

    If the process is killed or the block raises an error, the file is unchanged. If `file` is a symbolic
    link, its target is replaced. A pipe or device is written to directly.
    """
    if file.exists() and not file.is_file():
        with file.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(file))
    part = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text_atomic(file: Path, text: str) -> Path:
    """Replace a file with `text`, atomically, and return its path."""
    with atomic_write(file) as stream:
        stream.write(text.encode())
    return file


def lock(stream: IO[Any]) -> bool:
    """Lock an open file until it is closed or its process ends.

    Raises BlockingIOError if another process holds the lock. Returns False on Windows, without locking.
    """
    try:
        fcntl = import_module("fcntl")
    except ImportError:
        return False
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@contextmanager
def open_regular(file: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read bytes; raise ValueError for a pipe, a device or a folder."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{file} is not a regular file, but a pipe, device or folder")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def read_json(file: Path) -> Any:
    """Return the content of a JSON file; raise ValueError if it is damaged."""
    with open_regular(file) as stream:
        content = stream.read()
    try:
        return json.loads(content.decode())
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{file} is damaged ({error})") from None
    except RecursionError:
        raise ValueError(f"{file} is damaged (nested too deeply)") from None


def read_arrays(file: Path) -> dict[str, Any]:
    """Return the arrays of an .npz file by name; raise ValueError if it is damaged.

    Pickled objects are not loaded. A file is rejected if it would unpack to more than 200 times its size and
    to more than 1 GiB.
    """
    with open_regular(file) as stream:
        try:
            with ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > max(_MIN_SIZE_LIMIT, 200 * os.fstat(stream.fileno()).st_size):
                raise ValueError(f"it unpacks to {size:,} bytes")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        # A member may be truncated, encrypted, or declare a wrong size.
        except (ValueError, OSError, EOFError, BadZipFile, ZlibError, RuntimeError, MemoryError) as error:
            raise ValueError(
                f"{file} is not an .npz file, or is damaged ({str(error) or 'too large'})"
            ) from None
