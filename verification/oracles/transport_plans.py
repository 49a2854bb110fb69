"""The primal of the causal problem of Section 6.3 on finite supports, solved over transport plans.

A plan is pi[k, j, l]: the mass that moves from (x_k, z_j) to (x'_l, z_j). Its marginal, the causal constraint
and the penalty are written as defined, without the paper's duality, and passed to a conic solver.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np


class TransportPlan(NamedTuple):
    """The optimal value, and an optimal plan pi[k, j, l]."""

    value: float
    plan: Any


def causal_plan(
    cost: Any, joint: Any, reference: Any, *, eta: float = 0.0, penalty: str = "none", causal: bool = True
) -> TransportPlan:
    """Maximise E_pi[cost] - eta D_phi(pi, pi_0) over the plans pi of Eq. (EC.6).

    E_pi[cost] is the sum of pi[k, j, l] cost[l, j], and D_phi the divergence of `penalty`.

    - `cost` (L, J): Psi(f(x'_l), z_j).
    - `joint` (K, J): P(x_k, z_j).
    - `reference` (K, L): nu_k(x'_l), zero where x'_l is farther than rho from x_k. It defines
      pi_0[k, j, l] = joint[k, j] reference[k, l].
    - `penalty`: "none" (a linear program), "entropic" (exponential cones) or "quadratic".
    - `causal`: whether x' must be independent of z given x.
    """
    cost, joint, nu = np.asarray(cost, float), np.asarray(joint, float), np.asarray(reference, float)
    K, J = joint.shape
    L = nu.shape[1]
    pi = [cp.Variable((J, L), nonneg=True) for _ in range(K)]
    constraints: list[Any] = []
    objective: Any = 0
    for k in range(K):
        start = np.outer(joint[k], nu[k])  # pi_0 given k
        constraints.append(cp.sum(pi[k], axis=1) == joint[k])
        if np.any(start == 0):  # older versions of cvxpy reject an empty constraint
            constraints.append(pi[k][start == 0] == 0)
        if causal:
            # P(x', z | x) = P(x' | x) P(z | x), multiplied out.
            moved = cp.reshape(cp.sum(pi[k], axis=0), (1, L), order="C")
            constraints.append(pi[k] * joint[k].sum() == joint[k][:, None] @ moved)
        objective += cp.sum(cp.multiply(pi[k], cost.T))
        support = start > 0
        if penalty == "entropic":
            objective -= eta * cp.sum(cp.kl_div(pi[k][support], start[support]))  # x log(x/y) - x + y
        elif penalty == "quadratic":
            ratio = cp.multiply(pi[k][support], 1 / np.sqrt(start[support]))
            objective -= eta * (cp.sum_squares(ratio) - start.sum()) / 2
        elif penalty != "none":
            raise ValueError(f"penalty is {penalty!r}; expected none, entropic or quadratic")
    problem = cp.Problem(cp.Maximize(objective), constraints)
    problem.solve(solver=cp.CLARABEL)
    if problem.status != cp.OPTIMAL:
        raise RuntimeError(f"the conic solver reports {problem.status}")
    return TransportPlan(float(problem.value), np.stack([v.value for v in pi]))
