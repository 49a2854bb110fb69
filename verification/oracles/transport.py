"""Distributionally robust problems over the infinity-Wasserstein ball, as linear programs over plans.

Nothing here shares code with refimpl, and nothing uses the paper's duality.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog


def wasserstein_value(values: Any, mass: Any, distance: Any, rho: float) -> float:
    """The largest sum_l P(l) values[l] over laws P on the places l with W_inf(P, mass) <= rho.

    - `values` (L,): the loss at each place; `mass` (K,): the law of the data.
    - `distance` (K, L): between data points and places. W_inf is at most rho if and only if some plan with
      these marginals moves no mass farther than rho.
    """
    f, p, far = np.asarray(values, float), np.asarray(mass, float), np.asarray(distance, float)
    K, L = far.shape
    moved = np.kron(np.eye(K), np.ones((1, L)))  # the mass that leaves each data point
    bounds = [(0, None if d <= rho else 0) for d in far.ravel()]
    found = linprog(-np.tile(f, K), A_eq=moved, b_eq=p, bounds=bounds, method="highs")
    if not found.success:
        raise RuntimeError(f"the linear program reports {found.message}")
    return float(-found.fun)
