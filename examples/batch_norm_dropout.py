"""Batch normalisation and dropout: which passes should update the running statistics?

A robust training step evaluates the model twice: at the data points, for gradients with respect to x, and at
the perturbed points, for the loss. By default both passes update the running statistics. This script compares
three choices: both passes, only the perturbed points, only the data points.

python examples/batch_norm_dropout.py
"""

import torch
from sklearn.datasets import load_digits

from phiball import Ball, RobustLoss, pgm, pointwise_loss
from phiball.backends import input_gradient

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def update_statistics(model, update):
    """Set whether later passes update the running statistics."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.1 if update else 0.0


def train(at_data, at_perturbed, seed):
    """Return a network whose running statistics were updated at data points, perturbed points or both."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.BatchNorm1d(128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    robust = RobustLoss(0.5, rng=seed, clip=(0, 1))
    for _ in range(15):
        for b in torch.randperm(1197).split(64):
            losses = pointwise_loss(model, y[b])

            def gradient(z, i, losses=losses):  # the pass at the data points
                update_statistics(model, at_data)
                g = input_gradient(losses, z, i)
                update_statistics(model, at_perturbed)
                return g

            loss = robust(losses, x[b], gradient=gradient)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def errors(model):
    """Return the errors on the 600 test digits, clean and under attack, in %."""
    attacked = pgm(pointwise_loss(model, y[1197:]), x[1197:], Ball(2, 0.5, clip=(0, 1)), rng=0)
    return [100 * float((model(z).argmax(-1) != y[1197:]).float().mean()) for z in (x[1197:], attacked)]


for name, passes in ("both", (True, True)), ("perturbed", (False, True)), ("data", (True, False)):
    found = torch.tensor([errors(train(*passes, seed)) for seed in range(3)])
    (clean, attacked), spread = found.mean(0), found.std(0) / 3**0.5
    print(f"{name:9} error {clean:.1f} ± {spread[0]:.1f} %, under attack {attacked:.1f} ± {spread[1]:.1f} %")
