"""Projected stochastic gradient descent (Algorithm 1), mirror descent and projections."""

from phiball.refimpl.optimize.projections import onto_ball, onto_box, onto_simplex
from phiball.refimpl.optimize.sgd import Iterates, gradient_mapping, mirror_descent, projected_sgd

__all__ = [
    "Iterates",
    "gradient_mapping",
    "mirror_descent",
    "onto_ball",
    "onto_box",
    "onto_simplex",
    "projected_sgd",
]
