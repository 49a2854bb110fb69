"""
Tilted against uniform points
=============================

The entropic risk of a curved loss is estimated 200 times from a few points in a disc. Tilted points are drawn
from the worst case of the linearized loss, with exact importance weights. The bands contain 80 % of the
estimates; the grey line is the risk by quadrature.
"""

import matplotlib.pyplot as plt
import numpy as np

import phiball

ball, eta = phiball.Ball("l2", 1.0), 0.2


def loss(x, i):
    """A curved loss."""
    return 1.5 * x[:, 0] + x[:, 1] + 0.3 * np.sin(3 * x[:, 0])


def gradient(x, i):
    """The gradient of the loss."""
    return np.stack([1.5 + 0.9 * np.cos(3 * x[:, 0]), np.ones(len(x))], axis=-1)


proposals = {"uniform": phiball.Uniform(), "tilted": phiball.Tilted(gradient=gradient)}
numbers = [2, 4, 8, 16, 32, 64, 128]
copies = np.zeros((200, 2))  # the same center 200 times
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for name, proposal in proposals.items():
    risks = [
        phiball.robust_risk(loss, copies, ball, eta, n_samples=n, method=proposal, rng=0) for n in numbers
    ]
    low, middle, high = np.quantile([risk.values for risk in risks], [0.1, 0.5, 0.9], axis=1)
    axis.plot(numbers, middle, marker="o", label=name)
    axis.fill_between(numbers, low, high, alpha=0.2)
exact = phiball.robust_risk(loss, copies[:1], ball, eta, method="quadrature").value
axis.axhline(exact, color="grey", linestyle=":")
axis.set(xlabel="points per ball", ylabel="estimated risk", xscale="log", xticks=numbers, xticklabels=numbers)
axis.legend()
