"""
Attacked and certified error
============================

The worst-case error of a network in an l-infinity ball is at least its error under an attack, and at most
the share of examples that are not certified. The band contains it. Training with ``RobustLoss`` lowers both
bounds.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from phiball import Ball, RobustLoss, apgd, pointwise_loss
from phiball.certify import certified_margins

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
train, test = slice(0, 1400), slice(1400, 1700)
radii = np.linspace(0, 0.15, 9)

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for name, radius in (("plain", 0.0), ("robust", 0.1)):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = RobustLoss(radius, "linf", clip=(0, 1), rng=0)
    for _ in range(200):
        optimizer.zero_grad()
        loss(net, X[train], y[train]).backward()
        optimizer.step()
    net.eval()
    attacked, certified = [], []
    for r in radii:
        ball = Ball("linf", float(r), clip=(0, 1))
        moved = apgd(pointwise_loss(net, y[test]), X[test], ball, steps=20, rng=0)
        attacked.append(float((net(moved).argmax(1) != y[test]).float().mean()))
        margins = certified_margins(net, X[test], y[test], ball)
        certified.append(float((margins.amin(1) <= 0).float().mean()))
    (line,) = axis.plot(radii, attacked, label=f"{name}, attacked")
    axis.plot(radii, certified, "--", color=line.get_color(), label=f"{name}, not certified")
    axis.fill_between(radii, attacked, certified, color=line.get_color(), alpha=0.2)
axis.set(xlabel="radius (l-infinity)", ylabel="share of test examples")
axis.legend()
