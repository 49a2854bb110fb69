"""Robust Q-learning on a grid of states."""

from phiball.refimpl.qlearning.bellman import (
    DecisionProcess,
    FixedPoint,
    Maximum,
    bellman,
    robust_value,
    value_iteration,
)
from phiball.refimpl.qlearning.grid import Grid, Neighbourhood
from phiball.refimpl.qlearning.neighbours import (
    ExactNeighbours,
    SampledNeighbours,
    TelescopedNeighbours,
)
from phiball.refimpl.qlearning.run import QLearning, q_learning, q_update

__all__ = [
    "DecisionProcess",
    "ExactNeighbours",
    "FixedPoint",
    "Grid",
    "Maximum",
    "Neighbourhood",
    "QLearning",
    "SampledNeighbours",
    "TelescopedNeighbours",
    "bellman",
    "q_learning",
    "q_update",
    "robust_value",
    "value_iteration",
]
