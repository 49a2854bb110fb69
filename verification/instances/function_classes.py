"""Function classes for Section 5: losses, covering numbers and capacities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import log, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from scipy import integrate

from phiball.backends import to_numpy
from phiball.refimpl import Divergence
from phiball.verification.framework.evidence import Evidence
from phiball.verification.instances.conversion import array
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.strategies import powers_of_ten

LogCovering: TypeAlias = Callable[[float], float]
Capacity: TypeAlias = Callable[..., float]

LOSSES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32, allow_subnormal=False))


@st.composite
def classes(draw: st.DrawFn) -> list[list[list[float]]]:
    """Up to five functions of a class G: for each function and data point, a list of losses in [0, 1]."""
    members, points, perturbations = (draw(st.integers(1, largest)) for largest in (5, 2, 4))
    row = st.lists(LOSSES, min_size=perturbations, max_size=perturbations)
    member = st.lists(row, min_size=points, max_size=points)
    return draw(st.lists(member, min_size=members, max_size=members))


def covering_number(distances: Any, eps: float) -> int:
    """The smallest number of functions such that every function is within eps of one of them.

    `distances` (n, n) has the distances of the n functions. All subsets are tried.
    """
    count = len(distances)
    near = distances <= eps
    for size in range(1, count):
        for centres in combinations(range(count), size):
            if near[list(centres)].any(axis=0).all():
                return size
    return count


def robust_class_is_no_richer(
    family: list[list[list[float]]], eta: float, phi: Divergence, solve: Solver
) -> Iterator[Evidence]:
    """The map from losses to robust losses is nonexpansive, so covering numbers do not increase."""
    losses = np.array(family)
    robust = to_numpy(solve(array(losses), eta, phi).value)
    yield Evidence(float(max(robust.max() - 1, -robust.min())), 2.0**-44, "robust losses are in [0, 1]")
    # Neighbours of the first row of losses, in all directions, detect a slight expansion.
    step = 2.0**-6
    nudges = step * np.array(list(product((-1, 1), repeat=losses.shape[-1])))
    near = to_numpy(solve(array(losses[0, 0] + nudges), eta, phi).value)
    yield Evidence(float(np.abs(near - robust[0, 0]).max()) - step, 2.0**-44, "neighbours of one function")
    apart = np.abs(losses[:, None] - losses[None]).max(axis=(-2, -1))
    robustly = np.abs(robust[:, None] - robust[None]).max(axis=-1)
    yield Evidence(float((robustly - apart).max()), 2.0**-44, "abs(T(g) - T(g')) <= max abs(g - g')")
    # Radii at and between the distances that occur; 2^-40 allows for the rounding of robust losses.
    for eps in sorted({0.0, 0.25, 0.5, *np.unique(apart).tolist()[:6]}):
        few, many = covering_number(robustly, eps + 2.0**-40), covering_number(apart, eps)
        yield Evidence.at_most(few, many, 0.0, f"N(G_adv) = {few}, N(G) = {many} at eps = {eps:g}")


def printed_bound(n: int, delta: float, log_covering: LogCovering, alpha: float) -> float:
    """8 alpha + (24/sqrt n) int_alpha^1 sqrt(log N(eps)) d eps + 3 sqrt(log(2/delta)/n), by SciPy.

    `log_covering(eps)` is log N(eps), where N is the covering number.
    """
    # Substitute eps = e^u, since a power of 1/eps is steep near 0.
    integral = integrate.quad(
        lambda u: sqrt(log_covering(np.exp(u))) * np.exp(u), log(alpha), 0.0, epsrel=1e-12, limit=200
    )[0]
    return float(8 * alpha + 24 / sqrt(n) * integral + 3 * sqrt(log(2 / delta) / n))


@st.composite
def linear_classes(draw: st.DrawFn) -> dict[str, float]:
    """The constants d, Lambda, Psi, rho and varrho of a class of linear functions."""
    names = ("Lambda", "Psi", "varrho")
    drawn = {name: draw(powers_of_ten(-1, 1)) for name in names}
    return {"d": draw(st.integers(1, 50)), "rho": draw(st.sampled_from([0.0, 0.1, 1.0])), **drawn}
