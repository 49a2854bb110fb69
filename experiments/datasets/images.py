"""The images that networks are trained on: MNIST, Fashion-MNIST, KMNIST, and scikit-learn's small digits.

They are read from a folder of the user's, or fetched once from their public sources into the user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from phiball.experiments.datasets.idx import Bytes, read_pair

NAMES = ("mnist", "fashion-mnist", "kmnist", "digits")
VARIABLE = "PHIBALL_DATA"
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
# An address, and the SHA-256 checksum of each of FILES there.
SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "kmnist": (
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        (
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
    ),
}
RETRIES = 2
CHUNK = 1 << 16  # bytes that are taken at a time
TIMEOUT = 10.0, 30.0  # seconds to connect, and without a byte

# The first thousand images of each: files of one data set, or part of it, are not taken for another.
BEGINNINGS = {
    "2304e0137aea1f23": ("mnist", "train"),
    "f8f3c5a608a9f7d4": ("mnist", "test"),
    "7350186bf86b76af": ("fashion-mnist", "train"),
    "8d46efb2efae7259": ("fashion-mnist", "test"),
    "9f1dec4a3857f15e": ("kmnist", "train"),
    "3bf5c00d550dd8ec": ("kmnist", "test"),
}

# Told a file that is being fetched, its bytes that are here, and all of them (0 if not known).
Say: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Images:
    """Images (n, h, w) and labels (n,) to train and to test with, read-only; x / top lies in [0, 1]."""

    name: str
    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes
    top: int

    @cached_property
    def digest(self) -> str:
        """What identifies the data, however the files are compressed."""
        found = sha256()
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            found.update(f"{array.shape}".encode())
            found.update(array.tobytes())
        return found.hexdigest()[:16]


def load(name: str, folder: str | Path | None = None, *, say: Say | None = None) -> Images:
    """The images of that name, one of NAMES.

    `folder`, or else the variable PHIBALL_DATA, names a folder that holds `mnist/`, `fashion-mnist/` and
    `kmnist/`, each with the four files in their usual names, with .gz or without (with, if both are there).
    The folder of one data set will not do: its files do not say which one they are. What is in them is
    checked, but not their checksums, as a copy that was compressed again has others.

    With neither, or an empty one, the files are fetched, held to their checksums and kept; `say` is told how
    far that is, and if it is None a terminal shows it. `digits` is part of scikit-learn.
    """
    if name not in NAMES:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(NAMES)}")
    if name == "digits":
        return _digits()
    if not isinstance(folder, str | os.PathLike | None):
        raise TypeError(f"folder is {folder!r}; expected a path")
    folder = folder or os.environ.get(VARIABLE)
    paths = _found(Path(folder).expanduser(), name) if folder else _fetched(name, say)
    found = Images(name, *read_pair(*paths[:2]), *read_pair(*paths[2:]), top=255)
    for part, images, path in (("train", found.train_x, paths[0]), ("test", found.test_x, paths[2])):
        known = BEGINNINGS.get(_beginning(images), (name, part))
        if known != (name, part):
            raise ValueError(
                f"{path} holds the images of {known[0]} to {known[1]} with; expected those of {name} "
                f"to {part} with"
            )
    return found


def _beginning(images: Bytes) -> str:
    """What identifies a data set, of which there may be a part alone."""
    return sha256(images[:1000].tobytes()).hexdigest()[:16]


def _digits() -> Images:
    """The 8 x 8 digits: the first 1,197 to train with, the last 600 to test."""
    digits = _needed("sklearn.datasets", "scikit-learn", "digits").load_digits()
    x, y = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    for array in (x, y):
        array.flags.writeable = False
    return Images("digits", x[:1197], y[:1197], x[1197:], y[1197:], top=16)


def _needed(module: str, package: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the data set {name} needs {package}, which is not installed: pip install 'phiball[experiments]'"
        ) from error


def _found(folder: Path, name: str) -> list[Path]:
    """The four files of a data set in its folder."""
    place = folder / name
    if not place.is_dir():
        raise FileNotFoundError(
            f"{place} is no folder; expected --data-dir or {VARIABLE} to name a folder that holds {name}/ "
            f"with {', '.join(FILES)}"
        )
    paths = []
    for file in FILES:
        packed, plain = place / file, place / file.removesuffix(".gz")
        if not packed.exists() and not plain.exists():
            raise FileNotFoundError(f"{packed} is missing; expected it there, or {plain.name}")
        paths.append(packed if packed.exists() else plain)
    return paths


def _fetched(name: str, say: Say | None) -> list[Path]:
    """The four files of a data set in the user's cache, fetched if they are not there."""
    pooch = _needed("pooch", "pooch", name)
    address, checksums = SOURCES[name]
    cache = pooch.create(
        path=pooch.os_cache("phiball") / name,
        base_url=address,
        registry=dict(zip(FILES, checksums, strict=True)),
        retry_if_failed=RETRIES,
    )
    return [_fetch(pooch, cache, name, file, say) for file in FILES]


def _fetch(pooch: Any, cache: Any, name: str, file: str, say: Say | None) -> Path:
    with _shown() if say is None else nullcontext(say) as tell:
        downloader = pooch.HTTPDownloader(
            progressbar=_Bar(file, tell),
            chunk_size=CHUNK,
            timeout=TIMEOUT,
            headers={"Accept-Encoding": "identity"},  # a file unpacked on its way fails its checksum
        )
        try:
            return Path(cache.fetch(file, downloader=downloader))
        except (OSError, ValueError) as error:  # OSError: the disk's, and all of the network's
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(
                f"{file} could not be fetched from {cache.get_url(file)} ({_root(error)}); expected the file "
                f"with its checksum: download it by hand into a folder {name}/, and name the folder that "
                f"holds {name}/ with --data-dir or {VARIABLE}"
            ) from error


def _root(error: BaseException) -> BaseException:
    """The first of a chain of errors, which says most: no route, no such host, a connection that broke."""
    return _root(error.__context__) if error.__context__ else error


class _Bar:
    """What pooch takes for a bar of progress; it tells `say`."""

    def __init__(self, file: str, say: Say) -> None:
        self.file, self.say = file, say
        self.done = self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:  # at the beginning of each attempt
        self._total = size
        self.reset()

    def reset(self) -> None:
        self.done = 0

    def update(self, size: int) -> None:
        self.done += size
        # pooch counts whole chunks.
        self.say(self.file, min(self.done, self.total) if self.total else self.done, self.total)

    def close(self) -> None:
        pass


@contextmanager
def _shown() -> Iterator[Say]:
    """A bar on the terminal, from the first byte on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar = progress.add_task("", total=None)

    def tell(file: str, done: int, total: int) -> None:
        progress.start()
        progress.update(bar, description=file, completed=done, total=total or None)

    try:
        yield tell
    finally:
        if progress.live.is_started:
            progress.stop()
