"""
Hockey-stick divergence and smoothing radius
============================================

A classifier smoothed with Gaussian noise has a class of probability p at a point. A bound on the divergence
between the noise and its shifted copy certifies a radius around the point. With the best beta, the
hockey-stick divergence attains the largest possible radius (dotted); the KL divergence (dashed) does not.
"""

import matplotlib.pyplot as plt
import numpy as np

from phiball import Gaussian, hockey_stick
from phiball.certify import certified_radius, divergence_radius

noise, betas = Gaussian(1.0), np.logspace(0, 1.6, 14)

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for p in (0.8, 0.9, 0.99):
    radii = [divergence_radius(p, noise, hockey_stick(float(beta))) for beta in betas]
    (line,) = axis.plot(betas, radii, marker=".", label=f"p = {p}")
    axis.axhline(certified_radius(p, noise), color=line.get_color(), linestyle=":")
    axis.axhline(divergence_radius(p, noise, "kl"), color=line.get_color(), linestyle="--", linewidth=1)
axis.set(xlabel="beta", ylabel="certified radius / standard deviation", xscale="log", ylim=(-0.1, 3))
axis.legend(loc="upper left", ncols=3)
