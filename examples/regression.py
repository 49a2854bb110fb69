"""Regression: with floating-point targets, RobustLoss uses the squared error.

The script also measures the squared error under attack.

python examples/regression.py
"""

from functools import partial

import torch
from sklearn.datasets import load_diabetes

from phiball import Ball, RobustLoss, adversarial_risk, pgm, pointwise_loss

torch.set_num_threads(1)
data = load_diabetes(scaled=False)
x = torch.tensor(data.data, dtype=torch.float32)
y = torch.tensor(data.target, dtype=torch.float32)
x, y = (x - x[:300].mean(0)) / x[:300].std(0), (y - y[:300].mean()) / y[:300].std()


def train(robust):
    """Return a network trained with the loss `robust`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        for b in torch.randperm(300).split(50):
            loss = robust(model, x[b], y[b])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


ball = Ball(2, 0.5)
for name, robust in ("plain", RobustLoss(0)), ("robust", RobustLoss(0.5, rng=0)):  # radius 0: no attack
    model = train(robust)
    loss = pointwise_loss(model, y[300:])
    clean = ((model(x[300:])[:, 0] - y[300:]) ** 2).mean()
    risk = adversarial_risk(loss, x[300:], ball, n_samples=8, rng=0, attack=partial(pgm, rng=0))
    print(f"{name:6} squared error {clean:.2f}, under attack {risk.value:.2f}")
