"""Small classifiers that train in seconds, with their test images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from phiball.backends import Array, rng
from phiball.experiments.datasets import images
from phiball.experiments.training.image_networks import torch_seed
from phiball.experiments.training.loop import Schedule, cross_entropy_loss, train_network
from phiball.experiments.training.training_methods import Objective, StatefulObjective, mean_loss

TEST_IMAGES, MAX_TRAIN_IMAGES = 32, 6000  # of `small_classifier`


@dataclass(frozen=True)
class Classifier:
    """A trained network, and test images x (N, ...) with labels y."""

    name: str
    model: Any
    x: Array
    y: Array

    def loss(self, x: Array, i: Array) -> Array:
        """Return the cross-entropy of each x, a perturbed copy of test image i."""
        return cross_entropy_loss(self.model, self.y)(x, i)

    def errors(self, x: Array) -> int:
        """Return the number of misclassified images x, perturbed copies of the test images."""
        torch = import_module("torch")
        with torch.no_grad():
            return int(torch.sum(torch.argmax(self.model(x), -1) != self.y))


def train_layers(
    make_layers: Callable[[Any], list[Any]],
    x: Array,
    y: Array,
    *,
    epochs: int,
    seed: int,
    objective: Objective | StatefulObjective = mean_loss,
) -> Any:
    """Return a network of the layers `make_layers(torch.nn)`, trained by Adam at 3e-3 on batches of 64.

    `seed` sets the initial weights, the order of the data and the draws of the objective.
    """
    with torch_seed(seed) as torch:
        model = torch.nn.Sequential(*make_layers(torch.nn))
        train_network(model, objective, (x, y), Schedule(epochs, batch=64, rate=3e-3), rng(seed))
    return model


def small_classifier(seed: int = 0, *, epochs: int = 10) -> Classifier:
    """Return a network with one hidden layer, trained plainly on scikit-learn's digits or on MNIST.

    MNIST is used if PHIBALL_DATA is set; it must name a folder that contains `mnist/`.
    Images are flat: (N, d).
    """
    data = images.load("mnist" if os.environ.get(images.VARIABLE) else "digits")
    x, y = data.tensors("train", 0, MAX_TRAIN_IMAGES)
    test_x, test_y = data.tensors("test", 0, TEST_IMAGES)
    x, test_x = x.flatten(1), test_x.flatten(1)

    def layers(nn: Any) -> list[Any]:
        return [nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 10)]

    return Classifier(data.name, train_layers(layers, x, y, epochs=epochs, seed=seed), test_x, test_y)
