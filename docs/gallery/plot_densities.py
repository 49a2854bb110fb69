"""
Worst-case densities
====================

The adversary moves a point inside [-1, 1] and pays eta times a divergence from the uniform density, which is
1/2. A small eta concentrates the distribution near the largest loss. For the absolute and the hinge
divergence, part of the mass may be an atom at the maximizer, which the density omits. The worst case
of the CVaR does not depend on eta.
"""

import matplotlib.pyplot as plt
import numpy as np

import phiball

divergences = {name: name for name in ("entropic", "quadratic", "absolute", "hinge")}
divergences["CVaR, alpha = 0.3"] = phiball.indicator(0.3)
center, at = np.zeros((1, 1)), np.linspace(-0.999, 0.999, 500)[:, None]


def loss(x, i):
    """A loss with two local maxima."""
    return np.sin(5 * x[:, 0]) + 0.5 * x[:, 0]


figure, axes = plt.subplots(2, 3, figsize=(9, 5), layout="constrained", sharex=True)
axes = axes.ravel()
axes[0].plot(at, loss(at, None), color="black")
axes[0].set(title="loss", ylabel="loss")
for axis, (name, divergence) in zip(axes[1:], divergences.items(), strict=True):
    for eta, style in ((0.1, "-"), (0.5, "--"), (2.0, ":")):
        found = phiball.worst_case_density(
            loss, center, phiball.Ball("l2", 1.0), eta, divergence, at=at, n_samples=4000, rng=0
        )
        axis.plot(at, found.density, style, label=f"eta = {eta}, mass of atom {found.masses[0]:.2f}")
    axis.set(title=name, ylabel="density", ylim=(0, 1.7 * max(axis.get_ylim())))
    axis.legend(fontsize=7, loc="upper left")
for axis in axes[3:]:
    axis.set_xlabel("x")
