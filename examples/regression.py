"""Regression: the same line with a squared error. The measure is the error that an attack can cause.

python examples/regression.py
"""

import torch
from sklearn.datasets import load_diabetes

from phiball import Ball, RobustLoss, adversarial_risk, input_gradient, pgm, rng

torch.set_num_threads(1)
data = load_diabetes(scaled=False)
x = torch.tensor(data.data, dtype=torch.float32)
y = torch.tensor(data.target, dtype=torch.float32)
x, y = (x - x[:300].mean(0)) / x[:300].std(0), (y - y[:300].mean()) / y[:300].std()


def train(robust):
    """Return a network, trained plainly if `robust` is None."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        for b in torch.randperm(300).split(50):
            xb, yb = x[b], y[b]
            if robust is None:
                loss = ((model(xb)[:, 0] - yb) ** 2).mean()
            else:
                loss = robust(lambda z, i: (model(z)[:, 0] - yb[i]) ** 2, xb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


ball = Ball(2, 0.5)
for name, objective in ("plain", None), ("robust", RobustLoss(0.5)):
    model = train(objective)

    def losses(z, i):
        return (model(z)[:, 0] - y[300:][i]) ** 2

    def attack(loss, z, ball):
        return pgm(lambda z, i: input_gradient(loss, z, i), z, ball, rng=rng(0), loss=loss)

    clean = losses(x[300:], torch.arange(142)).mean()
    risk = adversarial_risk(losses, x[300:], ball, n_samples=8, rng=rng(0), attack=attack)
    print(f"{name:6} squared error {clean:.2f}, under attack {risk.value:.2f}")
