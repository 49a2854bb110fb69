"""Robust Q-learning on a grid of states."""

from phiball.refimpl.qlearning.bellman import MDP, FixedPoint, bellman, value_iteration
from phiball.refimpl.qlearning.grid import Grid, Neighbourhood
from phiball.refimpl.qlearning.q_learning import QLearningResult, Transition, q_learning, q_update
from phiball.refimpl.qlearning.robust_value import Maximum, StatePerturbation, robust_value

__all__ = [
    "MDP",
    "FixedPoint",
    "Grid",
    "Maximum",
    "Neighbourhood",
    "QLearningResult",
    "StatePerturbation",
    "Transition",
    "bellman",
    "q_learning",
    "q_update",
    "robust_value",
    "value_iteration",
]
