"""Batch normalisation and dropout: what the pass for the gradients in x does to the batch statistics.

A robust step passes through the model twice: at the data points, for the gradients in x, and at the perturbed
points, which train it. Both passes update the running statistics, unless told otherwise. Three choices are
compared here: both passes count (what happens by default), the perturbed points alone, the data points alone.

python examples/batch_norm_dropout.py
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from phiball import Ball, RobustLoss, input_gradient, pgm, rng

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def counting(model, counts):
    """Let passes count in the running statistics, or not."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.1 if counts else 0.0


def train(data_count, perturbed_count, seed):
    """Return a network whose running statistics are those of the passes that count."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.BatchNorm1d(128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    robust = RobustLoss(0.5, rng=seed)
    for _ in range(15):
        for b in torch.randperm(1197).split(64):
            yb = y[b]

            def losses(z, i):
                return cross_entropy(model(z), yb[i], reduction="none")

            def slopes(z, i):  # the pass at the data points
                counting(model, data_count)
                g = input_gradient(losses, z, i)
                counting(model, perturbed_count)
                return g

            loss = robust(losses, x[b], input_gradient=slopes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def errors(model):
    """Return the errors on 600 digits, as they are and under attacks, in %."""

    def losses(z, i):
        return cross_entropy(model(z), y[1197:][i], reduction="none")

    attacked = pgm(lambda z, i: input_gradient(losses, z, i), x[1197:], Ball(2, 0.5), loss=losses, rng=rng(0))
    return [100 * float((model(z).argmax(-1) != y[1197:]).float().mean()) for z in (x[1197:], attacked)]


for name, counts in ("both", (True, True)), ("perturbed", (False, True)), ("data", (True, False)):
    found = torch.tensor([errors(train(*counts, seed)) for seed in range(3)])
    (clean, attacked), spread = found.mean(0), found.std(0) / 3**0.5
    print(f"{name:9} error {clean:.1f} ± {spread[0]:.1f} %, under attack {attacked:.1f} ± {spread[1]:.1f} %")
