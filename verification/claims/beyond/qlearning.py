"""Beyond the paper: between what the robust value of Section 6.2 lies, and what it does not bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import ENTROPIC, Divergence, Maximum, Neighbourhood, robust_value
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.decision_processes import law
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.strategies import powers_of_ten

Value: TypeAlias = Callable[..., Array]

ROUNDING = 2.0**-44
"""Of a sum of a dozen terms, relative to the largest entry: 256 units."""


@claim(
    "Section 6.2, robust value",
    id="J2-bounds",
    verdict=Verdict.HOLDS,
    formula=r"\max_a \min Q(\cdot, a) \le V \le \max_a \mathbb{E}_{\beta} Q(\cdot, a) \le "
    r"\mathbb{E}_{\beta} \max_a Q(\cdot, a)",
    assumptions="phi >= 0 up to a multiple of x - 1, any neighbourhood",
    examples=60,
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=3),
    counts=st.lists(st.sampled_from([1, 0, 2, 1000]), min_size=4, max_size=4).filter(any),
    eta=powers_of_ten(-2.0, 2.0),
    d=divergences(),
)
def robust_value_is_between(
    rows: list[list[int]], counts: list[int], eta: float, d: Divergence, value: Value = robust_value
) -> Iterator[Evidence]:
    """The robust value lies between the least and the mean over perturbations, of the best action."""
    Q, p = np.array(rows, dtype=float).T, np.array(counts) / sum(counts)
    beta = law([[0, 1, 2, 3]], [p])
    V, seen = (float(value(array(Q), beta, eta, d, maximum=kind)[0]) for kind in Maximum)
    yield Evidence(float(Q[p > 0].min(axis=0).max()) - V, 4 * ROUNDING, "the least")
    yield Evidence(V - float((p @ Q).max()), 4 * ROUNDING, "the mean")
    yield Evidence(V - seen, 4 * ROUNDING, "an agent that sees the perturbation does no worse")


@robust_value_is_between.mutant("a soft maximum over the perturbations")
def _(Q: Array, beta: Neighbourhood, eta: float, d: Divergence, *, maximum: Any) -> Array:
    per_action = [-robust_value(-Q[:, a : a + 1], beta, eta, d) for a in range(Q.shape[1])]
    return array_namespace(Q).max(array_namespace(Q).stack(per_action), axis=0)


@claim(
    "Section 6.2, robust value",
    id="J2-nominal",
    verdict=Verdict.HOLDS,
    formula=r"V(s) \le \max_a Q(s, a) \text{ may fail}",
)
def value_may_exceed_the_nominal(value: Value = robust_value) -> Iterator[Evidence]:
    """The robust value is no lower bound of the nominal one: 0.547 > 0 for Q = (1, 0, 1) and eta = 1."""
    exact = -np.log((2 * np.exp(-1.0) + 1) / 3)
    V = float(value(array([[1.0], [0.0], [1.0]]), law([[0, 1, 2]], [[1 / 3] * 3]), 1.0, ENTROPIC)[0])
    yield Evidence(abs(V - exact), ROUNDING, f"V = {V:.6f}, and Q = 0 at the state itself")
    yield Evidence(0.5 - V, 0.0, f"V = {V:.6f} > 0")


@value_may_exceed_the_nominal.mutant("takes the least value")
def _(Q: Array, beta: Neighbourhood, eta: float, d: Divergence) -> Array:
    return robust_value(Q, beta, 1e-9, d)
