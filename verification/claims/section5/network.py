"""Section 5 of the paper: the example of neural networks, and the closing remark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, sqrt
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.refimpl import network_capacity
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim, unchecked
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.function_classes import Capacity, linear_classes
from phiball.verification.instances.strategies import powers_of_ten

# --- The network class ----------------------------------------------------------------------------


def network_covering(A: float, eps: float) -> float:
    """log N of the network class up to constants and logarithms, A being its capacity."""
    return A**2 / eps**2


Covering: TypeAlias = Callable[[float, float], float]


@claim(
    "Example 7",
    id="I6",
    verdict=Verdict.CORRECTED,
    formula=(
        r"\log \mathcal{N} = \widetilde{O}\left( \frac{L^2 d (\Psi + \sqrt{d} \rho)^2}{\varrho^2 \epsilon} "
        r"\prod_l s_l^2 \sum_l \frac{a_l^2}{s_l^2} \right)"
    ),
    assumptions="L layers, 1-Lipschitz activations, ramp loss of margin varrho",
    quote=r"$\frac{L^2{d}(\Psi + \sqrt{d}\rho)^2}{\varrho^2\epsilon}$",
    correction="epsilon is squared, as in Example 6, and as the bound that follows needs it",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "With one layer it is to be the linear class of Example 6, and the loss enters by varrho epsilon "
        "alone; as printed neither is so.",
    ),
    corrected=(
        r"\log \mathcal{N} = \widetilde{O}\left( \frac{L^2 d (\Psi + \sqrt{d} \rho)^2}{\varrho^2 \epsilon^2} "
        r"\prod_l s_l^2 \sum_l \frac{a_l^2}{s_l^2} \right)"
    ),
    examples=60,
    family=linear_classes(),
    eps=st.one_of(st.sampled_from([1.0, 0.5, 0.01]), powers_of_ten(-3, 0)),
    factor=st.sampled_from([1.0, 0.5, 0.125]),
    layers=st.lists(st.tuples(powers_of_ten(-1, 1), powers_of_ten(-1, 1)), min_size=1, max_size=4),
)
def network_class_covering(
    family: dict[str, float],
    eps: float,
    factor: float,
    layers: list[tuple[float, float]],
    capacity: Capacity = network_capacity,
    covering: Covering = network_covering,
) -> Iterator[Evidence]:
    """The covering number of the network class is that of the linear one for one layer, A^2/eps^2."""
    yield from _consistent(family, eps, factor, layers, capacity, covering)


def _consistent(
    family: dict[str, float],
    eps: float,
    factor: float,
    layers: list[tuple[float, float]],
    capacity: Capacity,
    covering: Covering,
) -> Iterator[Evidence]:
    d, Psi, rho, varrho = (family[k] for k in ("d", "Psi", "rho", "varrho"))
    weights = family["Lambda"]
    one_layer = covering(capacity(d=d, s=[2.0], a=[weights], Psi=Psi, rho=rho, varrho=varrho), eps)
    linear = weights**2 * d * (Psi + sqrt(d) * rho) ** 2 / (varrho * eps) ** 2
    yield Evidence(
        abs(log(one_layer / linear)),
        2.0**-44,
        f"one layer: log N = {one_layer:.4g}, of the linear class {linear:.4g}",
    )
    s, a = ([pair[k] for pair in layers] for k in (0, 1))
    wide = covering(capacity(d=d, s=s, a=a, Psi=Psi, rho=rho, varrho=varrho), eps * factor)
    steep = covering(capacity(d=d, s=s, a=a, Psi=Psi, rho=rho, varrho=varrho * factor), eps)
    yield Evidence(abs(log(wide / steep)), 2.0**-44, f"varrho eps alone: {wide:.4g} and {steep:.4g}")
    product, total = float(np.prod(np.square(s))), sum((v / u) ** 2 for u, v in layers)
    exact = len(s) ** 2 * d * (Psi + sqrt(d) * rho) ** 2 / varrho**2 * product * total
    yield Evidence(abs(log(wide * (eps * factor) ** 2 / exact)), 2.0**-44, "the corrected formula")


def printed_covering(A: float, eps: float) -> float:
    """The printed formula, with eps for eps^2."""
    return A**2 / eps


ONES = {"d": 1, "Lambda": 1.0, "Psi": 1.0, "rho": 0.0, "varrho": 1.0}


def _within_printed_power() -> Iterator[Evidence]:
    positive = all(v > 0 for name, v in ONES.items() if name != "rho") and ONES["rho"] >= 0
    yield from each(("the parameters of the class are positive, rho >= 0", positive))


@network_class_covering.counterexample(margin=4.6, meets=_within_printed_power)
def _printed_power() -> Iterator[Evidence]:
    pieces = _consistent(ONES, 0.01, 0.01, [(1.0, 1.0)], network_capacity, printed_covering)
    for evidence in (next(pieces), next(pieces)):
        yield Evidence(
            evidence.violation, 0.0, f"all parameters 1, rho = 0, eps = 0.01, as printed: {evidence.note}"
        )


network_class_covering.mutant("the printed power of eps", replaces="covering")(printed_covering)


@network_class_covering.mutant("counts the layers once", replaces="capacity")
def _(*, d: int, s: list[float], a: list[float], Psi: float, rho: float, varrho: float) -> float:
    return network_capacity(d=d, s=s, a=a, Psi=Psi, rho=rho, varrho=varrho) / sqrt(len(s))


# --- The closing remark ---------------------------------------------------------------------------


@unchecked(
    "Remark 5",
    id="I7",
    reason="what is new compared with other papers is no matter of computation",
    quote=r"upper bounding the covering number of $\mathcal{G}_{\text{adv}\mid S}$ in "
    r"Proposition~\ref{Proposition:cover} by that of $\mathcal{G}_{\mid S}$",
    correction="Proposition 5 is meant, which is checked as I1",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "Proposition 4 is quoted from earlier work, and does not speak of G.",
    ),
)
def novelty() -> None:
    """The novelty lies in bounding the covering number of G_adv by that of G."""
