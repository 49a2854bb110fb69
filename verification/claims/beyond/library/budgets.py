"""Beyond the paper: the worst case within a radius, in place of a price."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, TypeAlias

import mpmath as mp
from hypothesis import strategies as st

from phiball.backends import Array
from phiball.refimpl import Divergence, constrained_worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.divergences import NAMED
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

Solve: TypeAlias = Callable[..., Any]
LOSSES = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=5, unique=True)
COUNTS = st.lists(st.sampled_from([1, 2, 5]), min_size=5, max_size=5)


@claim(
    "constrained_worst_case",
    id="U11",
    verdict=Verdict.HOLDS,
    formula=r"\max\left\{\gamma \cdot f:\ D_\phi(\gamma, p) \le r\right\} = "
    r"\min_{\eta \ge 0} \eta r + R_\eta(f)",
    assumptions="any phi and law; the weights are feasible, and no price gives less than the value",
    examples=60,
    f=LOSSES,
    counts=COUNTS,
    radius=powers_of_ten(-3, 0.5),
    phi=st.sampled_from(NAMED),
)
def budget_is_spent_at_best(
    f: list[float], counts: list[int], radius: float, phi: Divergence, solve: Solve = constrained_worst_case
) -> Iterator[Evidence]:
    """The weights within a radius are feasible and attain the value, which is below every dual bound."""
    p = [c / sum(counts[: len(f)]) for c in counts[: len(f)]]
    got = solve(array(f), radius, phi, p=array(p))
    value, weights = float(got.value), numbers(got.weights)
    size, family = max(map(abs, f)) + 1, phi.family or ""
    ratios = [mp.mpf(w) / q for w, q in zip(weights, p, strict=True)]
    spent = float(
        mp.fsum(q * definitions.phi(x, family, phi.parameter) for x, q in zip(ratios, p, strict=True))
    )
    yield Evidence(spent - radius, 1e-9 * (1 + radius), "the divergence is within the radius")
    yield Evidence(abs(sum(weights) - 1), 1e-12, "the mass")
    yield Evidence(-min(weights), 0.0, "no negative weight")
    reached = sum(w * v for w, v in zip(weights, f, strict=True))
    yield Evidence(abs(reached + float(got.gap) - value), 1e-11 * size, "the value is what the gap says")
    yield Evidence(abs(float(got.gap)), 1e-10 * size, "the gap")
    spread = max(f) - min(f)
    for eta in (*(spread * 10.0**k for k in (-2, -1, 0, 1)), float(got.eta)):
        if 0 < eta < inf:
            bound = eta * radius + float(solve_exactly(f, eta, family, phi.parameter, p=p).value)
            off = abs(value - bound) if eta == float(got.eta) else value - bound
            yield Evidence(off, 1e-10 * (size + eta * radius), f"the dual bound at eta = {eta:.3g}")


@budget_is_spent_at_best.mutant("spends a tenth more")
def _(f: Array, radius: float, phi: Divergence, *, p: Array) -> Any:
    return constrained_worst_case(f, 1.1 * radius, phi, p=p)


@budget_is_spent_at_best.mutant("spends half of it")
def _(f: Array, radius: float, phi: Divergence, *, p: Array) -> Any:
    return constrained_worst_case(f, radius / 2, phi, p=p)
