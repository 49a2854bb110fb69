"""
The certificate of bisection
============================

``bisection`` halves a bracket of the multiplier mu until the gap, the dual minus the primal value, is at most
``tol``. These steps are written out here. The gap bounds the error of the dual value, which is computed with
``worst_case``, in every iteration.
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
    for _ in range(22):
        mu = (low + high) / 2
        density = divergence.dconj((losses - mu) / eta)
        low, high = (mu, high) if density.mean() > 1 else (low, mu)
        dual = dual_value(losses, mu, eta, divergence)
        gaps.append(dual - primal_value(losses, density / density.sum(), eta, divergence))
        errors.append(dual - exact)
    axis.plot(gaps, label="gap, dual minus primal value")
    axis.plot(errors, "--", label="error of the dual value")
    axis.set(title=divergence.name, xlabel="iteration", yscale="log")
axes[0].set_ylabel("gap, error")
axes[0].legend()
