"""Reference distributions: uniform balls in lp norms, and Gaussians."""

from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian

__all__ = [
    "Ball",
    "Gaussian",
]
