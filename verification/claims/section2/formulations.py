"""Sections 1 and 2 of the paper: how its formulation is related to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    Divergence,
    adversarial_risk,
    constrained_worst_case,
    fgm,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.solutions import rows_exactly
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles.transport import wasserstein_value

Risk: TypeAlias = Callable[..., Any]

# --- Adversarial training and the infinity-Wasserstein ball ---------------------------------------

RHO = 0.5


@claim(
    "Eq. (infty-WDRO)",
    id="A9",
    verdict=Verdict.HOLDS,
    formula=r"\sup_P \left\{ \mathbb{E}_P f:\ \mathcal{W}_\infty(P, \hat P) \le \rho \right\} = "
    r"\mathbb{E}_{z \sim \hat P} \left[ \sup_{z' \in B_\rho(z)} f(z') \right]",
    assumptions="data and places finite in number; f = abs(g.z + c), of which the fast gradient method finds "
    "the maximum over a ball of norm 1, 2 or inf",
    quote=r"can be viewed as the dual reformulation of the following DRO problem",
)
def wasserstein_is_adversarial(risk: Risk = adversarial_risk, seed: int = 0) -> Iterator[Evidence]:
    """The worst law in the infinity-Wasserstein ball has the adversarial risk, by linear programs."""
    source = np.random.default_rng(seed)
    for trial in range(4):
        z, g, c = source.normal(size=(5, 2)), source.normal(size=2), float(source.normal())
        for norm in (1.0, 2.0, inf):

            def loss(x: Array, i: Array, g: Any = g, c: float = c) -> Array:
                xp = array_namespace(x)
                return xp.abs(xp.sum(x * array(g), axis=-1) + c)

            def slope(x: Array, i: Array, g: Any = g, c: float = c) -> Array:
                xp = array_namespace(x)
                return xp.sign(xp.sum(x * array(g), axis=-1) + c)[:, None] * array(g)

            ball = Ball(norm, RHO)
            best = fgm(slope, array(z), ball)
            got = risk(loss, array(z), ball, samples=20, rng=rng(seed), attack=lambda _, best=best: best)
            # The places are the maximum of each ball and others, which some balls share.
            places = np.concatenate([to_numpy(best), z, z + source.uniform(-RHO, RHO, size=(5, 2))])
            far = np.linalg.norm(z[:, None] - places[None], ord=norm, axis=-1)
            primal = wasserstein_value(np.abs(places @ g + c), np.full(5, 0.2), far, RHO * (1 + 2.0**-40))
            note = f"trial {trial}, norm {norm:g}"
            yield Evidence(abs(primal - float(got.value)), 1e-8, note)  # the program's own accuracy


@wasserstein_is_adversarial.mutant("leaves the attack out")
def _(*args: Any, attack: Any, **rest: Any) -> Any:
    return adversarial_risk(*args, attack=None, **rest)


# --- A price for the divergence, and a budget ------------------------------------------------------


@claim(
    "Remark 1, Bayesian DRO",
    id="A10",
    verdict=Verdict.HOLDS,
    formula=r"\eta' = \mathbb{E}_\nu \phi\left(\frac{d\gamma^*_\eta}{d\nu}\right) \;\Rightarrow\; "
    r"\max\left\{ \mathbb{E}_\gamma f:\ \mathbb{E}_\nu \phi\left(\frac{d\gamma}{d\nu}\right) \le \eta' "
    r"\right\} = R_\eta + \eta \eta', \text{ at } \gamma^*_\eta",
    assumptions="phi entropic or quadratic; f not constant; a finite law; gamma* not yet at the maximum "
    "alone",
    quote=r"the authors therein treat it as a Lagrangian multiplier associated with the hard constraint",
    examples=60,
    f=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=6, unique=True),
    ratio=powers_of_ten(-0.5, 1.5),
    phi=st.sampled_from([ENTROPIC, QUADRATIC]),
)
def budget_has_the_price(
    f: list[float], ratio: float, phi: Divergence, solve: Callable[..., Any] = constrained_worst_case
) -> Iterator[Evidence]:
    """The worst case at the price eta is that within a budget, whose Lagrangian multiplier is eta."""
    spread = max(f) - min(f)
    eta = ratio * spread
    best = rows_exactly(f, eta, phi)
    x = len(f) * best.weights
    if spread < 1e-3 or np.any(x < 1e-6):
        return
    budget = float(np.mean(x * np.log(x)) if phi == ENTROPIC else np.mean((x - 1) ** 2) / 2)
    got = solve(array(f), budget, phi)
    # A budget is second order in the weights: its rounding is that of x, over the root of its size.
    slack = 2.0**-40 * (max(map(abs, f)) + eta) / budget**0.5
    yield Evidence(abs(float(got.value) - float(best.value) - eta * budget), slack, "the value")
    off = float(np.max(np.abs(to_numpy(got.weights) - best.weights)))
    yield Evidence(off, 1e-6, f"the worst case, at eta' = {budget:.3g}")
    yield Evidence(abs(float(got.eta) / eta - 1), 1e-5, "the multiplier")


@budget_has_the_price.mutant("a tenth more of the budget")
def _(f: Array, radius: float, phi: Divergence) -> Any:
    return constrained_worst_case(f, 1.1 * radius, phi)
