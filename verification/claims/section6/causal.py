"""Section 6.3 of the paper and its appendix: strong duality of the causal problem, plain and regularised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import ENTROPIC, QUADRATIC, Conditional, Divergence, causal_value, conditional_loss
from phiball.refimpl.causal import CausalValue
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.oracles.causal import causal_plan

Solve: TypeAlias = Callable[..., CausalValue]

CONIC = 1e-6
"""What the conic solver promises, at its default settings."""


@dataclass(frozen=True)
class Instance:
    """3 covariates, 4 parameters z and 5 places, nothing uniform, some places out of reach."""

    joint: Any  # (3, 4): P(x_k, z_j)
    nu: Any  # (3, 5): the reference law on the places
    places: Any  # (5,)
    z: Any  # (4,)

    @property
    def cost(self) -> Any:
        """Psi(f(x'_l), z_j) for each place and parameter, with f(x') = 1 + x'."""
        w = 1 + self.places[:, None]
        return w * self.z + np.sin(3 * w * self.z)

    def solved(self, solve: Solve, eta: float, d: Divergence) -> CausalValue:
        """The same in the library's words, on arrays of the active backend."""
        xp = active().namespace
        share = self.joint / self.joint.sum(axis=1, keepdims=True)
        data = Conditional(
            array(np.arange(3)), array(np.tile(self.z, (3, 1))), array(share), array(self.joint.sum(axis=1))
        )
        loss = conditional_loss(lambda x: 1 + x, lambda w, z: w * z + xp.sin(3 * w * z), data)
        return solve(loss, data, array(np.tile(self.places, (3, 1))), eta, d, p=array(self.nu))


def instance(seed: int) -> Instance:
    """A random instance."""
    rng = np.random.default_rng(seed)
    reach = rng.random((3, 5)) < 0.8
    reach[:, 0] = True
    nu = np.where(reach, rng.exponential(size=(3, 5)), 0.0)
    return Instance(
        rng.dirichlet(np.ones(12)).reshape(3, 4),
        nu / nu.sum(axis=1, keepdims=True),
        rng.normal(size=5),
        rng.normal(size=4),
    )


@claim(
    "Eq. (25)",
    id="L1",
    verdict=Verdict.HOLDS,
    formula=r"\sup_{\gamma} \mathbb{E}_{\gamma} \Psi(f(x), z) = \mathbb{E}_{\hat{x}} \sup_{x' \in B_{\rho}"
    r"(\hat{x})} \mathbb{E}_{\hat{z} | \hat{x}} \Psi(f(x'), \hat{z})",
    assumptions="finitely many covariates, parameters and places",
)
def causal_duality(solve: Solve = causal_value) -> Iterator[Evidence]:
    """The causal problem is the mean over covariates of the largest conditional mean, by linear programs."""
    for seed in range(8):
        case = instance(seed)
        primal = causal_plan(case.cost, case.joint, case.nu).value
        dual = float(case.solved(solve, 1.0, ENTROPIC).supremum)
        yield Evidence(abs(primal - dual), CONIC * (1 + abs(case.cost).max()), f"seed = {seed}")


@claim(
    "Eq. (26)",
    id="L2",
    verdict=Verdict.HOLDS,
    formula=r"\sup_{\gamma} \mathbb{E}_{\gamma} \Psi(f(x), z) - \eta D_{\phi}(\gamma, \gamma_0) = "
    r"\mathbb{E}_{\hat{x}} \inf_{\mu} \left\{ \mu + \mathbb{E}_{\nu} (\eta \phi)^* "
    r"(\mathbb{E}_{\hat{z} | \hat{x}} \Psi(f(x'), \hat{z}) - \mu) \right\}",
    assumptions="finitely many covariates, parameters and places",
)
def regularized_causal_duality(solve: Solve = causal_value) -> Iterator[Evidence]:
    """The regularised causal problem over transport plans has the value of its dual, by conic programs."""
    for seed in range(4):
        case = instance(seed)
        for d, eta in ((ENTROPIC, 0.1), (QUADRATIC, 0.1), (ENTROPIC, 2.0), (QUADRATIC, 2.0)):
            primal = causal_plan(case.cost, case.joint, case.nu, eta=eta, penalty=d.name).value
            dual = float(case.solved(solve, eta, d).value)
            apart = abs(primal - dual)
            yield Evidence(apart, CONIC * (1 + abs(case.cost).max()), f"{d.name}, eta = {eta}, seed = {seed}")


@causal_duality.mutant("goes beyond the reach")
@regularized_causal_duality.mutant("takes the uniform law for the reference")
def _(loss: Any, data: Conditional, places: Array, eta: float, d: Divergence, *, p: Array) -> CausalValue:
    return causal_value(loss, data, places, eta, d)


@causal_duality.mutant("forgets the weights of the covariates")
@regularized_causal_duality.mutant("forgets the weights of the covariates")
def _(loss: Any, data: Conditional, places: Array, eta: float, d: Divergence, *, p: Array) -> CausalValue:
    xp = array_namespace(places)
    alike = Conditional(data.x, data.z, data.share, xp.full_like(data.weight, 1 / data.weight.shape[0]))
    return causal_value(loss, alike, places, eta, d, p=p)


# --- Why the plan must be causal ------------------------------------------------------------------


@claim(
    "Eq. (EC.6), causality",
    id="L1-causal",
    section="beyond",
    verdict=Verdict.HOLDS,
    formula=r"\sup_{\gamma:\ X \perp \hat{Z} \mid \hat{X}} \mathbb{E}_{\gamma} \Psi(f(x), z) \le"
    r" \sup_{\gamma} \mathbb{E}_{\gamma} \Psi(f(x), z)",
)
def causality_binds(plan: Callable[..., Any] = causal_plan, seed: int = 0) -> Iterator[Evidence]:
    """Without the causal constraint the worst case is never better, and may be strictly worse."""
    for case in [instance(4 * seed + k) for k in range(4)]:
        bound = plan(case.cost, case.joint, case.nu).value
        free = plan(case.cost, case.joint, case.nu, causal=False).value
        slack = CONIC * (1 + abs(case.cost).max())
        yield Evidence(bound - free, slack, f"causal {bound:.5f}, free {free:.5f}")
    # One covariate, z = -1 or 1, places -1 and 1, cost x z: who sees z earns 1, who does not 0.
    cost, joint, nu = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.full((1, 2), 0.5), np.full((1, 2), 0.5)
    for causal, exact in ((True, 0.0), (False, 1.0)):
        value = plan(cost, joint, nu, causal=causal).value
        yield Evidence(abs(value - exact), CONIC, f"causal is {causal}: {value:.5f}, and {exact:g} by hand")


@causality_binds.mutant("leaves the constraint out")
def _(*args: Any, causal: bool = True) -> Any:
    return causal_plan(*args, causal=False)
