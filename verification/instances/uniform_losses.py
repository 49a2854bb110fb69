"""The bias of a level for losses that are uniform on [0, 1], exactly or by sampling."""

from __future__ import annotations

import numpy as np

from phiball.backends import active, rng, to_numpy
from phiball.refimpl import Divergence, dual_value, indicator
from phiball.verification.instances.arrays import array
from phiball.verification.instances.solutions import Solver
from phiball.verification.oracles import uniform


def bias_of_two(eta: float, phi: Divergence, solve: Solver) -> float:
    """F - F^1 for f uniform on [0, 1]: the distance t of two points has density 2 (1 - t)."""
    kinks = (eta, 2 * eta)
    nodes, weights = uniform.graded(kinks)
    rows = array(np.stack([np.zeros_like(nodes), nodes], axis=-1))
    above = to_numpy(solve(rows, eta, phi).value) - nodes / 2  # over the mean
    F = uniform.value(eta, phi.family or "", phi.parameter)
    return F - 0.5 - float((weights * 2 * (1 - nodes) * above).sum())


def bias_of_order_statistics(n: int, alpha: float, solve: Solver) -> float:
    """F - F^n of AV@R for f uniform on [0, 1]: it is linear in the order statistics, of means i/(n + 1)."""
    rows = array(np.arange(1, n + 1) / (n + 1))
    return 1 - alpha / 2 - float(solve(rows, 1.0, indicator(alpha)).value)


def bias_by_sampling(
    n: int, eta: float, phi: Divergence, solve: Solver, rows: int, seed: int
) -> tuple[float, float]:
    """F - F^n for f uniform on [0, 1], and its standard error.

    On every sample the dual at the mu* of the law has mean F and is above the value, by little.
    """
    xp = active().namespace
    f = rng(seed + n).uniform((rows, n), like=xp.zeros(1, dtype=xp.float64))
    mu = uniform.multiplier(eta, phi.family or "")
    over = to_numpy(dual_value(f, mu, eta, phi) - solve(f, eta, phi).value)
    return float(over.mean()), float(over.std(ddof=1)) / rows**0.5
