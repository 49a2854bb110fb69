"""
Budget and price
================

The adversary's divergence can be limited by a budget or charged at a price. Each budget has a price, its
Lagrange multiplier, which `worst_case` returns as ``eta``: the slope of the value in the budget.
"""

import matplotlib.pyplot as plt
import numpy as np

import phiball

losses = np.random.default_rng(0).normal(size=200)
budgets = np.linspace(0.0, 3.0, 200)
rows = np.broadcast_to(losses, (200, 200)).copy()

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name in ("kl", "chi2", "tv", "hinge"):
    solution = phiball.worst_case(rows, budget=budgets, divergence=name)
    left.plot(budgets, solution.value, label=name)
    right.plot(budgets, solution.eta, label=name)
left.axhline(losses.max(), color="grey", linestyle=":", label="largest loss")
left.set(xlabel="budget", ylabel="worst expected loss")
right.set(xlabel="budget", ylabel="price eta", yscale="log", ylim=(1e-2, 10))
left.legend()
