"""A small network trained in seconds, and a few test images: where estimators are compared."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import Array

VARIABLE = "PHIBALL_DATA"
IMAGES = 32  # that are perturbed; the risk is their mean
_MNIST = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", 6000),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", IMAGES),
}


@dataclass(frozen=True)
class Task:
    """A trained network, and test images x (N, d) with labels y."""

    name: str
    model: Any
    x: Array
    y: Array

    def loss(self, x: Array, i: Array) -> Array:
        """The cross-entropy of each x."""
        return import_module("torch").nn.functional.cross_entropy(self.model(x), self.y[i], reduction="none")


def train(seed: int = 0, *, epochs: int = 10) -> Task:
    """One hidden layer, trained plainly on scikit-learn's digits, or on MNIST if PHIBALL_DATA says where.

    That is the folder that holds `mnist/`, with the four files in their usual names.
    """
    torch = needed("torch", "torch")
    name, (x, y), test = _images(torch)
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(x)), 64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return Task(name, model, *test)


def _images(torch: Any) -> tuple[str, tuple[Array, Array], tuple[Array, Array]]:
    """A name, images (n, d) in [0, 1] with their labels to train with, and the few of the test."""
    folder = os.environ.get(VARIABLE)
    if folder:
        found = [
            (_idx(Path(folder) / "mnist" / images)[:n], _idx(Path(folder) / "mnist" / labels)[:n])
            for images, labels, n in _MNIST.values()
        ]
        name, top = "MNIST", 255
    else:
        digits = needed("sklearn.datasets", "scikit-learn").load_digits()
        cuts = slice(0, 1197), slice(1197, 1197 + IMAGES)
        found = [(digits.images[cut], digits.target[cut]) for cut in cuts]
        name, top = "digits", 16
    train, test = (
        (
            torch.tensor(x.reshape(len(x), -1) / top, dtype=torch.float32),
            torch.tensor(y.astype(np.int64)),
        )
        for x, y in found
    )
    return name, train, test


def _idx(path: Path) -> Any:
    """The array in a file of unsigned bytes in the IDX format, gzipped."""
    with gzip.open(path) as file:
        data = file.read()
    axes = data[3] if len(data) > 3 else 0
    shape = np.frombuffer(data[4 : 4 + 4 * axes], dtype=">i4")
    body = np.frombuffer(data[4 + 4 * axes :], dtype=np.uint8)
    if data[:3] != b"\0\0\x08" or len(body) != np.prod(shape):
        raise ValueError(f"{path} is not a file of bytes in the IDX format; expected one of MNIST's")
    return body.reshape(shape)


def needed(name: str, package: str) -> Any:
    """Import a module, or say what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the bench of estimators needs {package}, which is not installed: pip install 'phiball[bench]'"
        ) from error
