"""Decision processes in NumPy arrays, for the claims on Section 6.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball.backends import active
from phiball.refimpl import ENTROPIC, Divergence
from phiball.refimpl.qlearning import MDP, Neighbourhood, StatePerturbation
from phiball.verification.instances.conversion import array


@dataclass(frozen=True)
class Tables:
    """A decision process in NumPy arrays, whose states are perturbed to their neighbours.

    - `P` (S, A, S), `r` (S, A), `discount`: transition probabilities, rewards and discount.
    - `near` (S, K), `weight` (S, K): the neighbours of each state, and their probabilities.
    """

    P: Any
    r: Any
    near: Any
    weight: Any
    discount: float

    def __str__(self) -> str:
        return f"(P = {self.P.tolist()}, r = {self.r.tolist()}, beta = {self.weight.tolist()})"

    @property
    def process(self) -> MDP:
        """P, r and the discount, as arrays of the active backend."""
        return MDP(array(self.P), array(self.r), self.discount)

    @property
    def plain(self) -> tuple[Any, Any, float, Any]:
        """P, r, the discount and the neighbours, for an oracle."""
        return self.P, self.r, self.discount, self.near

    @property
    def beta(self) -> Neighbourhood:
        """The distribution of the perturbed state, as arrays of the active backend."""
        return to_neighbourhood(self.near, self.weight)

    def perturbation(self, eta: float, divergence: Divergence = ENTROPIC) -> StatePerturbation:
        """The adversary that perturbs states, with the reference distribution beta and the price eta."""
        return StatePerturbation(self.beta, eta, divergence)


def to_neighbourhood(near: Any, weight: Any) -> Neighbourhood:
    """The distribution beta of the perturbed state, from the neighbours and their probabilities."""
    xp = active().namespace
    return Neighbourhood(xp.asarray(np.asarray(near).tolist(), dtype=xp.int64), array(weight))


def random_tables(seed: int, states: int, actions: int, discount: float) -> Tables:
    """A random process with normal rewards, whose states are perturbed to adjacent ones on a circle."""
    rng = np.random.default_rng(seed)
    near = (np.arange(states)[:, None] + np.arange(-1, 2)) % states
    return Tables(
        rng.dirichlet(np.ones(states), size=(states, actions)),
        rng.normal(size=(states, actions)),
        near,
        rng.dirichlet(np.ones(3), size=states),
        discount,
    )
