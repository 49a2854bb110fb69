"""Beyond Section 5: the covering argument for every phi, and an explicit covering number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import exp, log, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import active, to_numpy
from phiball.refimpl import Divergence, worst_case
from phiball.refimpl.theory import covering_bound, linear_covering, ramp_loss
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import NAMED
from phiball.verification.instances.function_classes import classes, printed_bound, robust_class_is_no_richer
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import with_losses
from phiball.verification.instances.strategies import powers_of_ten

# --- Every phi ------------------------------------------------------------------------------------


@claim(
    "Proposition 5, every phi",
    id="I1-every",
    verdict=Verdict.HOLDS,
    formula=r"|T(g) - T(g')| \le \|g - g'\|_\infty, \qquad \mathcal{N}(\mathcal{G}_{adv|S}, \epsilon, "
    r"|\cdot|) \le \mathcal{N}(\mathcal{G}_{|S}, \epsilon, \|\cdot\|_\infty)",
    assumptions="any convex phi, also with kinks: T is monotone, and T(g + c) = T(g) + c for constants c",
    examples=60,
    family=classes(),
    eta=powers_of_ten(-3, 2),
    phi=st.sampled_from([d for d in NAMED if d.curvature1 in (0.0, float("inf"))]),
)
def covering_for_every_phi(
    family: list[list[list[float]]], eta: float, phi: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The bound on covering numbers holds for every convex phi; strict convexity is not needed."""
    yield from robust_class_is_no_richer(family, eta, phi, solve)


covering_for_every_phi.mutant("multiplies the losses by 3/2")(with_losses(lambda losses: 1.5 * losses))


# --- The linear class, without a hidden constant --------------------------------------------------

LogNumber: TypeAlias = Callable[..., float]

K, D, LAMBDA, PSI, RHO, VARRHO = 3, 1, 1.0, 1.0, 0.1, 1.0


def _members(count: int) -> Any:
    """Losses (count, 21 K) of random classifiers W x, norm(W) <= Lambda, at 21 perturbed x and K labels."""
    rng = np.random.default_rng(7)
    W = rng.normal(size=(count, K * D))
    W *= LAMBDA * rng.uniform(size=(count, 1)) ** (1 / (K * D)) / np.linalg.norm(W, axis=-1, keepdims=True)
    x = np.linspace(-PSI - RHO, PSI + RHO, 21)
    xp = active().namespace
    t = array(W[:, None, :] * x[:, None])
    shape = (count, len(x))
    values = [ramp_loss(t, xp.full(shape, y, dtype=xp.int64), varrho=VARRHO) for y in range(K)]
    return np.concatenate([to_numpy(v) for v in values], axis=-1)


def _centres(losses: Any, eps: float) -> int:
    """The number of centres of a greedy eps-cover of the rows of `losses`, in the maximum norm."""
    left, count = losses, 0
    while len(left):
        left = left[np.abs(left - left[0]).max(axis=-1) > eps]
        count += 1
    return count


@claim(
    "Example 6, explicit",
    id="I5-explicit",
    verdict=Verdict.HOLDS,
    formula=r"\log \mathcal{N}(\mathcal{G}_{|S}, \epsilon, \|\cdot\|_\infty) \le K d \log\left(1 + \frac{4 "
    r"\Lambda (\Psi + \sqrt{d} \rho)}{\varrho \epsilon}\right)",
    assumptions="ramp loss of margin varrho, K classes, norm of W at most Lambda, norm of x at most Psi",
)
def explicit_covering(log_number: LogNumber = linear_covering) -> Iterator[Evidence | Curve]:
    """An explicit bound on the covering number gives an error bound of order 1/sqrt n, without log n."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        k, d = int(rng.integers(2, 9)), int(rng.integers(1, 30))
        Lambda, Psi, rho, varrho, eps = rng.uniform(0.1, 2.0, size=5).tolist()
        got = log_number(eps, K=k, d=d, Lambda=Lambda, Psi=Psi, rho=rho, varrho=varrho)
        exact = k * d * log(1 + 4 * Lambda * (Psi + sqrt(d) * rho) / (varrho * eps))
        yield Evidence(abs(got / exact - 1), 2.0**-46, f"K = {k}, d = {d}")
    log_covering = partial(log_number, K=K, d=D, Lambda=LAMBDA, Psi=PSI, rho=RHO, varrho=VARRHO)
    losses, epsilons = _members(3000), (0.8, 0.4, 0.2, 0.1)
    curve = Curve(
        f"centres that cover 3000 linear classifiers, K = {K}, d = {D}",
        "1/eps",
        "number of centres",
        "(1 + 4 Lambda (Psi + sqrt(d) rho)/(varrho eps))^(K d)",
        tuple(1 / eps for eps in epsilons),
        tuple(float(_centres(losses, eps)) for eps in epsilons),
        tuple(exp(log_covering(eps)) for eps in epsilons),
    )
    yield curve
    yield curve.at_most(K * D, 0.0)
    yield curve.below_bound()
    plane = partial(log_number, K=2, d=2, Lambda=1.0, Psi=1.0, rho=0.1, varrho=1.0)
    sizes = (10**4, 10**5, 10**6, 10**7)
    totals = [covering_bound(n, 0.1, plane).total for n in sizes]
    for n, total in zip(sizes, totals, strict=True):
        # The bound is its limit for alpha -> 0; at alpha = 1e-12 it differs by at most 8e-12.
        yield Evidence(abs(total / printed_bound(n, 0.1, plane, 1e-12) - 1), 1e-9, f"n = {n}: {total:.3f}")
    curve = Curve(
        "the generalization bound, K = d = 2, Lambda = Psi = varrho = 1, rho = 0.1, delta = 0.1",
        "n",
        "bound on R_adv minus its empirical value",
        "82/sqrt(n)",
        sizes,
        tuple(totals),
        tuple(82 / sqrt(n) for n in sizes),
    )
    yield curve
    yield curve.exactly(-0.5, 1e-6)
    yield curve.below_bound()


explicit_covering.mutant("counts only one class")(
    lambda eps, **family: linear_covering(eps, **family) / family["K"]
)
