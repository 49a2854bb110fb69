"""The value of a policy when a kernel perturbs the next state, by solving a linear system."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np


def policy_value(P: Any, r: Any, discount: float, near: Any, policy: Any, kernel: Any, price: Any) -> Any:
    """Q of an agent that follows `policy`, when an adversary replaces each next state s' by a state near it.

    kernel[s', a] has the probabilities of the states near[s']; the adversary pays price[s', a] to the agent.
    Solves Q(s, a) = r(s, a) + discount E[price[s', a'] + sum_j kernel[s', a', j] Q(near[s'][j], a')], where
    s' has the distribution P(.|s, a), and a' = policy(s').
    """
    S, A = r.shape
    matrix, cost = np.zeros((S * A, S * A)), np.zeros(S * A)
    for s, a, k in product(range(S), range(A), range(S)):
        chosen = policy[k]
        cost[s * A + a] += P[s, a, k] * price[k, chosen]
        for j, mass in zip(near[k], kernel[k, chosen], strict=True):
            matrix[s * A + a, j * A + chosen] += P[s, a, k] * mass
    total = np.linalg.solve(np.eye(S * A) - discount * matrix, r.ravel() + discount * cost)
    return total.reshape(S, A)


def relative_entropy(kernel: Any, weight: Any) -> Any:
    """KL(kernel[s, a], weight[s]) for each s and a."""
    return np.sum(kernel * np.log(kernel / weight[:, None, :]), axis=-1)
