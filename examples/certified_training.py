"""Certified training: minimise an upper bound on the loss over a ball, by interval bound propagation (IBP).

An attack bounds the error over the ball from below, and `certified_margins` from above. Certified training
brings the two bounds together. Its ball and the weight of its bound increase during training.

python examples/certified_training.py
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from phiball import Ball, RobustLoss, apgd, pointwise_loss
from phiball.certify import certified_loss, certified_margins

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
EPOCHS, RADIUS = 40, 0.1
ball = Ball("linf", RADIUS, clip=(0, 1))


def plain(model, xb, yb, epoch):
    """Return the cross-entropy."""
    return cross_entropy(model(xb), yb)


robust_loss = RobustLoss(RADIUS, norm="linf", clip=(0, 1), rng=0)


def robust(model, xb, yb, epoch):
    """Return the loss near the worst perturbations."""
    return robust_loss(model, xb, yb)


def certified(model, xb, yb, epoch):
    """Return a mean of the cross-entropy and of its bound over a ball, which grows for half of the epochs."""
    ramp = min(2 * epoch / EPOCHS, 1)
    bound = certified_loss(model, xb, yb, Ball("linf", ramp * RADIUS, clip=(0, 1))).mean()
    return (1 - ramp) * cross_entropy(model(xb), yb) + ramp * bound


def train(loss):
    """Return a network trained on 1,197 digits; `certified_loss` needs it in evaluation mode."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        for b in torch.randperm(1197).split(64):
            optimizer.zero_grad()
            loss(model, x[b], y[b], epoch).backward()
            optimizer.step()
    return model


test_x, test_y = x[1197:], y[1197:]
for loss in plain, robust, certified:
    model = train(loss)
    attacked = apgd(pointwise_loss(model, test_y), test_x, ball, rng=0)
    wrong = [100 * float((model(z).argmax(-1) != test_y).float().mean()) for z in (test_x, attacked)]
    margins = certified_margins(model, test_x, test_y, ball).amin(dim=1)
    upper = 100 * float((margins <= 0).float().mean())
    print(
        f"{loss.__name__:9} error {wrong[0]:2.0f} %, under attack {wrong[1]:2.0f} %, at most {upper:2.0f} %"
    )
