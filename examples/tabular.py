"""Tabular data with categorical columns: each feature moves on its own scale, and categories do not move.

The data are made up: income, age and four regions decide whether a loan is repaid.

python examples/tabular.py
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from phiball import Ball, RobustLoss, input_gradient, pgm, rng

torch.set_num_threads(1)
torch.manual_seed(0)
n = 1500
income, age = 20 + 60 * torch.rand(n), 18 + 60 * torch.rand(n)  # in thousands a year, and in years
region = torch.randint(4, (n,))
score = (income - 50) / 10 + (age - 48).abs() / 15 + torch.tensor([-2.0, 0.0, 0.5, 1.5])[region]
y = (score + torch.randn(n) > 0).float()
x = torch.cat([income[:, None], age[:, None], one_hot(region, 4).float()], 1)

# An attacker may misstate income by some 8 and age by some 3, and the region not at all.
sizes = [8.0, 3.0, 0.0, 0.0, 0.0, 0.0]
mean, std = x.mean(0), x.std(0)


def train(robust):
    """Return a network, trained plainly if `robust` is None. Standardising is a part of the model."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def model(z):
        return layers((z - mean) / std)[:, 0]

    optimizer = torch.optim.Adam(layers.parameters(), lr=3e-3)
    for _ in range(30):
        for b in torch.randperm(1000).split(50):
            xb, yb = x[b], y[b]
            if robust is None:
                loss = binary_cross_entropy_with_logits(model(xb), yb)
            else:
                loss = robust(
                    lambda z, i: binary_cross_entropy_with_logits(model(z), yb[i], reduction="none"), xb
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


ball = Ball(2, 1.0, feature_scale=sizes)
for name, objective in ("plain", None), ("robust", RobustLoss(1.0, feature_scale=sizes)):
    model = train(objective)

    def losses(z, i):
        return binary_cross_entropy_with_logits(model(z), y[1000:][i], reduction="none")

    attacked = pgm(lambda z, i: input_gradient(losses, z, i), x[1000:], ball, rng=rng(0), loss=losses)
    assert torch.equal(attacked[:, 2:], x[1000:, 2:])  # the regions stay
    wrong = [100 * float(((model(z) > 0) != (y[1000:] > 0)).float().mean()) for z in (x[1000:], attacked)]
    print(f"{name:6} error {wrong[0]:2.0f} %, under attack {wrong[1]:2.0f} %")
