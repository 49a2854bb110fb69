"""
The certificate of bisection
============================

Bisection for mu stops as soon as the gap between dual and primal value is at most ``tol``. The gap bounds
the error of the value, which is compared here with the exact ``worst_case``. Every step halves the bracket
of mu, so that the bound on the steps grows with the logarithm of 1/tol.
"""

import matplotlib.pyplot as plt
import numpy as np

import phiball
from phiball.inner import dual_value, primal_value

losses, eta = np.random.default_rng(0).normal(size=500), 0.5

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axis, divergence in zip(axes, (phiball.QUADRATIC, phiball.cressie_read(1.5)), strict=True):
    exact = phiball.worst_case(losses, eta, divergence).value
    low, high, gaps, errors = losses.min(), losses.max(), [], []
    for _ in range(30):
        mu = (low + high) / 2
        density = divergence.dconj((losses - mu) / eta)
        low, high = (mu, high) if density.mean() > 1 else (low, mu)
        dual = dual_value(losses, mu, eta, divergence)
        gaps.append(dual - primal_value(losses, density / density.sum(), eta, divergence))
        errors.append(dual - exact)
    axis.plot(gaps, label="gap, dual minus primal value")
    axis.plot(errors, "--", label="error of the dual value")
    tols = np.logspace(-1, -10, 10)
    axis.set(title=divergence.name, xlabel="iteration", yscale="log")
axes[0].set_ylabel("gap, error")
axes[0].legend()
