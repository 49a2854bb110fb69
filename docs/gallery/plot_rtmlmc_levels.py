"""
Levels of RT-MLMC
=================

RT-MLMC draws a random level for each data point. The probability halves from level to level and the number of
points doubles, so that every level has the same share of the expected cost. The second moment of the
telescoping differences decreases faster than the number of points grows.
"""

import matplotlib.pyplot as plt
import numpy as np

import phiball
from phiball.sampling import signed_weights

estimator, eta = phiball.RTMLMC(8), 0.5
levels = np.arange(9)
draw = np.random.default_rng(0)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.bar(levels - 0.2, estimator.probabilities, width=0.4, label="probability")
left.bar(levels + 0.2, estimator.probabilities * 2.0**levels, width=0.4, label="probability x points")
for divergence in (phiball.ENTROPIC, phiball.QUADRATIC):
    moments = []
    for level in levels:
        losses = np.sin(4 * draw.uniform(-1, 1, size=(4000, 2**level)))
        value, _ = signed_weights(losses, eta, divergence, telescoping=True)
        moments.append(np.mean(value**2))
    right.plot(levels, moments, marker="o", label=divergence.name)
right.plot(levels, 0.5 * 2.0**-levels, ":", color="grey", label="slope of 1/points")
left.set(xlabel="level", ylabel="probability, expected points", xticks=levels, ylim=(0, 0.7))
right.set(xlabel="level", ylabel="second moment of the difference", yscale="log", xticks=levels)
left.legend()
right.legend()
