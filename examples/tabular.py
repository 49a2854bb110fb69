"""Tabular data with categorical columns: each feature has its own scale, and categories are not perturbed.

The data are synthetic: whether a loan is repaid depends on income, age and region.

python examples/tabular.py
"""

import torch
from torch.nn.functional import one_hot

from phiball import Ball, RobustLoss, pgm, pointwise_loss

torch.set_num_threads(1)
torch.manual_seed(0)
n = 1500
income, age = 20 + 60 * torch.rand(n), 18 + 60 * torch.rand(n)  # in thousands a year, and in years
region = torch.randint(4, (n,))
score = (income - 50) / 10 + (age - 48).abs() / 15 + torch.tensor([-2.0, 0.0, 0.5, 1.5])[region]
y = (score + torch.randn(n) > 0).long()
x = torch.cat([income[:, None], age[:, None], one_hot(region, 4).float()], 1)

# An attacker may misstate income by about 8 and age by about 3, and the region not at all.
scale = [8.0, 3.0, 0.0, 0.0, 0.0, 0.0]
mean, std = x.mean(0), x.std(0)


def train(robust):
    """Return a network with one logit, trained with the loss `robust`; the model standardises its inputs."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def model(z):
        return layers((z - mean) / std)[:, 0]

    optimizer = torch.optim.Adam(layers.parameters(), lr=3e-3)
    for _ in range(30):
        for b in torch.randperm(1000).split(50):
            loss = robust(model, x[b], y[b])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


ball = Ball(2, 1.0, feature_scale=scale)
for name, radius in ("plain", 0.0), ("robust", 1.0):  # radius 0: no attack
    model = train(RobustLoss(radius, feature_scale=scale, rng=0))
    attacked = pgm(pointwise_loss(model, y[1000:]), x[1000:], ball, rng=0)
    assert torch.equal(attacked[:, 2:], x[1000:, 2:])  # the regions are not perturbed
    wrong = [100 * float(((model(z) > 0) != (y[1000:] > 0)).float().mean()) for z in (x[1000:], attacked)]
    print(f"{name:6} error {wrong[0]:2.0f} %, under attack {wrong[1]:2.0f} %")
