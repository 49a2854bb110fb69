"""A small network trained in seconds, and a few test images: where estimators are compared."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from phiball.backends import Array
from phiball.experiments.datasets import images

VARIABLE = images.VARIABLE
IMAGES = 32  # that are perturbed; the risk is their mean
TRAIN = 6000  # at most


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
    if os.environ.get(VARIABLE):
        name, data = "MNIST", images.load("mnist")
    else:
        needed("sklearn.datasets", "scikit-learn")
        name, data = "digits", images.load("digits")
    train, test = (
        (
            torch.tensor(x[:n].reshape(len(x[:n]), -1) / data.top, dtype=torch.float32),
            torch.tensor(y[:n].astype(np.int64)),
        )
        for x, y, n in ((data.train_x, data.train_y, TRAIN), (data.test_x, data.test_y, IMAGES))
    )
    return name, train, test


def needed(name: str, package: str) -> Any:
    """Import a module, or say what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the bench of estimators needs {package}, which is not installed: pip install 'phiball[bench]'"
        ) from error
