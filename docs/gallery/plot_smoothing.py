"""
Hockey-stick divergence and smoothing radius
============================================

A classifier smoothed with Gaussian noise has a class of probability p at a point. A bound on the divergence
between the noise and its shifted copy certifies a radius around the point. The hockey-stick divergence with
the best beta attains the largest possible radius (dotted), and the KL divergence does not.
"""

import matplotlib.pyplot as plt
import numpy as np

from phiball import Gaussian, hockey_stick
from phiball.certify import certified_radius, divergence_radius

noise, betas = Gaussian(1.0), np.logspace(0, 2, 60)
probabilities = np.linspace(0.501, 0.999, 80)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for p in (0.8, 0.9, 0.99):
    radii = [divergence_radius(p, noise, hockey_stick(float(beta))) for beta in betas]
    (line,) = left.plot(betas, radii, label=f"p = {p}")
    left.axhline(certified_radius(p, noise), color=line.get_color(), linestyle=":")
left.set(xlabel="beta", ylabel="certified radius / std", xscale="log")
left.legend()
right.plot(probabilities, [certified_radius(p, noise) for p in probabilities], ":", label="largest possible")
for divergence, name in (("kl", "KL"), (hockey_stick(2.0), "beta = 2"), (hockey_stick(10.0), "beta = 10")):
    right.plot(probabilities, [divergence_radius(p, noise, divergence) for p in probabilities], label=name)
right.set(xlabel="probability p of the class", ylabel="certified radius / std")
right.legend()
