"""Image data sets: MNIST, Fashion-MNIST, KMNIST, and scikit-learn's digits.

They are read from a local folder, or downloaded once into the user's cache.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import Array
from phiball.experiments.datasets.idx import Bytes, read_pair
from phiball.experiments.framework.requirements import require

NAMES = ("mnist", "fashion-mnist", "kmnist", "digits")
VARIABLE = "PHIBALL_DATA"
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
# The URL of each data set, and the SHA-256 checksums of FILES.
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
CHUNK = 1 << 16  # bytes read at a time
TIMEOUT = 10.0, 30.0  # seconds to connect, and between two bytes

# Digests of the first thousand images, to detect a file of another data set, or of test instead of train.
KNOWN_IMAGES = {
    "2304e0137aea1f23": ("mnist", "train"),
    "f8f3c5a608a9f7d4": ("mnist", "test"),
    "7350186bf86b76af": ("fashion-mnist", "train"),
    "8d46efb2efae7259": ("fashion-mnist", "test"),
    "9f1dec4a3857f15e": ("kmnist", "train"),
    "3bf5c00d550dd8ec": ("kmnist", "test"),
}


@dataclass(frozen=True, eq=False)
class Images:
    """Images (n, h, w) and labels (n,) for training and testing, read-only; pixels are 0 to `top`."""

    name: str
    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes
    top: int

    @cached_property
    def digest(self) -> str:
        """A hash of the data, independent of the files' compression."""
        digest = sha256()
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            digest.update(f"{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def tensors(
        self, part: str, start: int | None = None, stop: int | None = None, *, device: str = "cpu"
    ) -> tuple[Array, Array]:
        """Return images start to stop of "train" or "test" as torch tensors.

        Images are (n, 1, h, w), float32 in [0, 1]; labels are (n,), int64.
        """
        torch = import_module("torch")
        x, y = (getattr(self, f"{part}_{name}")[start:stop] for name in "xy")
        return (
            torch.tensor(x[:, None] / np.float32(self.top), dtype=torch.float32, device=device),
            torch.tensor(y.astype(np.int64), device=device),
        )


def load(name: str, folder: str | Path | None = None) -> Images:
    """Load a data set, one of NAMES.

    `folder`, or else the environment variable PHIBALL_DATA, names a folder that contains `mnist/`,
    `fashion-mnist/` and `kmnist/`, each with the four usual files, with or without .gz (.gz if both exist).
    The content is checked, but not the checksums, which differ for recompressed copies.

    Without a folder, the files are downloaded, checked against their checksums and cached, with a progress
    bar if tqdm is installed. `digits` is part of scikit-learn.
    """
    if name not in NAMES:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(NAMES)}")
    if name == "digits":
        return _digits()
    folder = folder or os.environ.get(VARIABLE)
    paths = _local_files(Path(folder).expanduser(), name) if folder else _fetched_files(name)
    images = Images(name, *read_pair(*paths[:2]), *read_pair(*paths[2:]), top=255)
    for part, x, path in (("train", images.train_x, paths[0]), ("test", images.test_x, paths[2])):
        known = KNOWN_IMAGES.get(sha256(x[:1000].tobytes()).hexdigest()[:16], (name, part))
        if known != (name, part):
            raise ValueError(
                f"{path} holds the {known[1]} images of {known[0]}; expected the {part} images of {name}"
            )
    return images


def _digits() -> Images:
    """Return the 8 x 8 digits: the first 1,197 for training, the last 600 for testing."""
    datasets = require(
        "sklearn.datasets", user="the data set digits", extra="experiments", package="scikit-learn"
    )
    digits = datasets.load_digits()
    x, y = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    for array in (x, y):
        array.flags.writeable = False
    return Images("digits", x[:1197], y[:1197], x[1197:], y[1197:], top=16)


def _local_files(folder: Path, name: str) -> list[Path]:
    """Return the paths of the four files of a data set in a local folder."""
    subfolder = folder / name
    if not subfolder.is_dir():
        raise FileNotFoundError(
            f"{subfolder} is not a folder; expected --data-dir or {VARIABLE} to name a folder that contains "
            f"{name}/ with {', '.join(FILES)}"
        )
    paths = []
    for file in FILES:
        packed, plain = subfolder / file, subfolder / file.removesuffix(".gz")
        if not packed.exists() and not plain.exists():
            raise FileNotFoundError(f"{packed} is missing; expected this file, or {plain.name}")
        paths.append(packed if packed.exists() else plain)
    return paths


def _fetched_files(name: str) -> list[Path]:
    """Return the paths of the four files of a data set in the cache, downloaded if missing."""
    pooch = require("pooch", user=f"the data set {name}", extra="experiments")
    address, checksums = SOURCES[name]
    cache = pooch.create(
        path=pooch.os_cache("phiball") / name,
        base_url=address,
        registry=dict(zip(FILES, checksums, strict=True)),
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(
        progressbar=find_spec("tqdm") is not None and sys.stderr.isatty(),
        chunk_size=CHUNK,
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},  # a file unpacked by the transfer would fail its checksum
    )
    return [_fetch(cache, name, file, downloader) for file in FILES]


def _fetch(cache: Any, name: str, file: str, downloader: Any) -> Path:
    """Return the path of a file in the cache, downloaded if missing; errors say how to get it by hand."""
    try:
        return Path(cache.fetch(file, downloader=downloader))
    except (OSError, ValueError) as error:  # OSError: disk and network
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(
            f"{file} could not be downloaded from {cache.get_url(file)} ({_root(error)}): download it by "
            f"hand into a folder {name}/, and name the folder that contains {name}/ with --data-dir or "
            f"{VARIABLE}"
        ) from error


def _root(error: BaseException) -> BaseException:
    """Return the first error of a chain, which is the most specific, such as an unknown host."""
    return _root(error.__context__) if error.__context__ else error
