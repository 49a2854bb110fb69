"""Beyond the paper: causal risks, risks of linear losses and draws of the worst case, as finite sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Conditional,
    causal_risk,
    conditional_loss,
    surrogate_estimate,
    worst_case_sample,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.laws import Midpoints
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL
from phiball.verification.oracles import levels

Risk: TypeAlias = Callable[..., Any]
ROUNDING = 2.0**-40


@claim(
    "causal_risk, surrogate_estimate, worst_case_sample",
    id="U10",
    verdict=Verdict.HOLDS,
    formula=r"\sum_k P(x_k) R_\eta(x_k), \quad R_\eta(g \cdot b), \quad P(z') = \gamma_{z'}",
    assumptions="midpoints of an interval in the place of a sample, so that all is a finite sum",
    error_level=2 * TEST_LEVEL,
)
def sampled_risks_by_midpoints(
    causal: Risk = causal_risk,
    linear: Risk = surrogate_estimate,
    draw: Risk = worst_case_sample,
    seed: int = 0,
) -> Iterator[Evidence]:
    """On midpoints the causal risk, the risk of a linear loss and draws of the worst case are finite sums."""
    n, rho, eta = 16, 0.5, 0.3
    law, t = Midpoints(2, rho), ((2 * np.arange(n) + 1) / n - 1) * rho
    x = np.array([[1.0], [0.0], [1.0], [1.0]])
    z, weight = np.array([2.0, -1.0, 4.0, 0.0]), np.array([0.1, 0.4, 0.3, 0.2])
    data = Conditional.grouped(array(x), array(z), weight=array(weight))
    loss = conditional_loss(lambda x: x[:, 0], lambda w, z: w * z + z * z, data)
    places = {0.0: [(1.0, -1.0)], 1.0: [(1 / 6, 2.0), (1 / 2, 4.0), (1 / 3, 0.0)]}
    for phi in (ENTROPIC, QUADRATIC):
        got = causal(loss, data, law, eta, phi, samples=n, rng=rng(seed))
        rows = [[sum(q * ((at + b) * v + v * v) for q, v in places[at]) for b in t] for at in (0.0, 1.0)]
        exact = levels.solve(np.array(rows), eta, phi.family or "")[0]
        off = np.abs(to_numpy(got.values) - exact).max()
        yield Evidence(float(off), 1e-11, f"{phi.name}: the causal values")
        total = float(np.array([0.4, 0.6]) @ exact)
        yield Evidence(abs(float(got.value) - total), 1e-11, f"{phi.name}: the causal risk")
        g = np.array([[1.5], [-0.2]])
        values = linear(array(g), law, eta, phi, samples=n, rng=rng(seed))
        exact = levels.solve(g * t, eta, phi.family or "")[0]
        yield Evidence(float(np.abs(to_numpy(values) - exact).max()), 1e-12, f"{phi.name}: a linear loss")
        draws = draw(
            lambda x, i: x[:, 0], array([[0.0], [3.0]]), law, eta, phi, n=2000, samples=n, rng=rng(seed)
        )
        b = to_numpy(draws.points)[:, 0] - 3 * to_numpy(draws.index)
        gamma = levels.solve(t[None], eta, phi.family or "")[1][0]
        yield Evidence(float(np.abs(b).max()), rho, f"{phi.name}: draws stay in the balls of their points")
        allowed = NORMAL_QUANTILE * float(b.std()) / 2000**0.5
        yield Evidence(
            abs(float(b.mean()) - float(gamma @ t)), allowed, f"{phi.name}: draws of the worst case"
        )

    yield from _vectors(causal, law, t, seed)


def _vectors(causal: Risk, law: Any, t: Any, seed: int) -> Iterator[Evidence]:
    """The same for parameters that are vectors, of equal weights; a cost linear in them takes their mean."""
    x, n, eta = np.array([[1.0], [0.0]]), len(t), 0.3
    z = np.array([[[2.0, 1.0], [-1.0, 0.5], [0.0, 3.0]], [[1.0, 1.0], [2.0, -2.0], [4.0, 0.0]]])
    pairs = Conditional.grouped(array(np.repeat(x, 3, axis=0)), array(z.reshape(6, 2)))
    for name, data in (("stacked", Conditional.stacked(array(x), array(z))), ("grouped", pairs)):
        for linear, chunk in ((False, None), (True, None), (False, 2)):
            loss = conditional_loss(
                lambda x: x[:, 0],
                lambda w, z: w * z[:, 0] - 0.5 * z[:, 1],
                data,
                linear=linear,
                chunk=chunk,
            )
            got = causal(loss, data, law, eta, ENTROPIC, samples=n, rng=rng(seed))
            rows = [
                [((at + b) * own[:, 0] - 0.5 * own[:, 1]).mean() for b in t]
                for at, own in zip(x[:, 0], z, strict=True)
            ]
            exact = levels.solve(np.array(rows), eta, "entropic")[0]
            total = abs(float(got.value) - exact.mean())
            yield Evidence(total, 1e-11, f"{name}, linear = {linear}, chunk = {chunk}: the causal risk")


@sampled_risks_by_midpoints.mutant("forgets the weights of the covariates", replaces="causal")
def _(loss: Any, data: Conditional, *rest: Any, **how: Any) -> Any:
    got = causal_risk(loss, data, *rest, **how)
    return replace(got, value=array_namespace(got.values).mean(got.values))


@sampled_risks_by_midpoints.mutant("draws of the reference law", replaces="draw")
def _(loss: Any, z: Array, law: Any, eta: float, phi: Any, **rest: Any) -> Any:
    return worst_case_sample(loss, z, law, 1e6, phi, **rest)
