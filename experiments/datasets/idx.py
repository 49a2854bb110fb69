"""Read images and labels in the IDX format, gzipped or plain; incomplete or damaged files are rejected."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from phiball.backends.files import open_regular

Bytes: TypeAlias = NDArray[np.uint8]
UNSIGNED_BYTES = b"\0\0\x08"  # magic number of the format; the number of axes follows
GZIP = b"\x1f\x8b"
SIZE = 28  # rows and columns of an image
LABELS = 10
MAX_BYTES = 1 << 28  # five times the largest file of these data sets
KINDS = {3: "images", 1: "labels"}  # by their number of axes


def read_idx(path: Path, axes: int) -> Bytes:
    """Return the images (3 axes) or labels (1 axis) of a file, read-only; raise ValueError for other files.

    Compression is detected from the content, since some browsers unpack a file and keep its name.
    """
    with open_regular(path) as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        stream: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        try:
            return _read(stream, path, axes)
        except (EOFError, OSError, zlib.error) as error:
            raise _invalid(path, axes, f"damaged gzip: {error}") from None


def _read(stream: BinaryIO, path: Path, axes: int) -> Bytes:
    """Read little more than the header announces, because an unpacked file can be larger than memory."""
    header_size = 4 + 4 * axes
    header = stream.read(header_size)
    if not header.startswith(UNSIGNED_BYTES) or len(header) < 4:
        raise _invalid(path, axes, f"it begins with {(header + stream.read(8))[:16]!r}")
    if header[3] != axes:
        raise _invalid(path, axes, f"its number of axes is {header[3]}")
    shape = tuple(int.from_bytes(header[k : k + 4], "big") for k in range(4, header_size, 4))
    sizes, size = " x ".join(map(str, shape)), prod(shape)
    if size > MAX_BYTES:
        raise _invalid(path, axes, f"its header announces {sizes} bytes, more than {MAX_BYTES}")
    data = stream.read(size + 1)
    if len(header) < header_size or len(data) != size:
        raise _invalid(path, axes, "its size does not match its header")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _invalid(path: Path, axes: int, why: str) -> ValueError:
    """The error for a file that does not hold images (3 axes) or labels (1 axis) in the IDX format."""
    expected = f"a complete file of {KINDS[axes]}"
    return ValueError(f"{path} is not a file of bytes in the IDX format ({why}); expected {expected}")


def read_pair(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
    """Return images (n, 28, 28) and labels (n,) from 0 to 9; raise ValueError for other content."""
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if not len(x):
        raise ValueError(f"{images} has no images; expected at least one")
    if x.shape[1:] != (SIZE, SIZE):
        raise ValueError(f"{images} has images of {x.shape[1]} x {x.shape[2]}; expected {SIZE} x {SIZE}")
    if len(x) != len(y):
        raise ValueError(
            f"{images} has {len(x)} images, {labels} has {len(y)} labels; expected equal numbers"
        )
    if y.max() >= LABELS:
        raise ValueError(f"{labels} has the label {y.max()}; expected 0 to {LABELS - 1}")
    return x, y
