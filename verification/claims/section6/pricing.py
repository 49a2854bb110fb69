"""Section 6.3 of the paper: strong duality of the causal problem, and the pricing problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence
from phiball.refimpl.causal import CausalValue, Conditional, causal_value, conditional_loss
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.conversion import array
from phiball.verification.oracles.transport_plans import causal_plan

# --- The problem ----------------------------------------------------------------------------------

Sensitivity: TypeAlias = Callable[[Any], Any]
Psi: TypeAlias = Callable[[Array, Array], Array]


def printed_sensitivity(t: Any) -> Any:
    """E[z_1 | x] as a function of t = beta_1'x."""
    return np.tanh(3 * t)


def negative_revenue(w: Array, z: Array) -> Array:
    """Psi(w, z) = -w z'(w, 1), for n prices and n coefficients."""
    return -w * (z[:, 0] * w + z[:, 1])


def erm_curvature(M: int, m: int, seed: int, sensitivity: Sensitivity) -> float:
    """The smallest eigenvalue of half the Hessian of the empirical risk in theta, on a random training set.

    With f_theta(x) = theta'g(x) and the M rows g(x_i) of G, half the Hessian is -G' diag(mean z_1) G/M. The
    mean is over the m coefficients z drawn for each x_i.
    """
    rng = np.random.default_rng(seed)
    beta1 = rng.uniform(-0.1, 0.1, size=10)
    x, omega, b = rng.normal(size=(M, 10)), rng.normal(size=(100, 10)), rng.uniform(0, 2 * np.pi, size=100)
    g = np.cos(x @ omega.T + b)
    z1 = sensitivity(x @ beta1) + rng.normal(size=(m, M)).mean(axis=0)
    return float(np.linalg.eigvalsh(-(g.T * z1) @ g / M)[0])


@claim(
    "Section 6.3, pricing",
    id="P1",
    verdict=Verdict.REFUTED,
    formula=r"\inf_{\theta} \mathbb{E} \Psi(\theta^{\top} g(x), z) > -\infty, \quad "
    r"\Psi(w, z) = -w z^{\top} (w, 1)^{\top}",
    assumptions="x and z have the printed distribution; w = theta'g(x) with 100 random features; w and "
    "theta are unconstrained",
    quote=r"where $\mathcal{R}^*$ denotes the ground truth optimal revenue",
    correction="prices have to be bounded, which the paper does not state: see P3",
    remark="The empirical risk of a training set is also unbounded below if the mean of z_1 is positive at "
    "some x_i, and theta can change the price at this x_i alone. It was unbounded below for every training "
    "set that we drew.",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "E[z_1 | x] is positive for half of the x. There the revenue grows like the square of the price, so "
        "the optimal revenue is infinite.",
    ),
)
def pricing_has_a_solution(sensitivity: Sensitivity = printed_sensitivity) -> Iterator[Evidence]:
    """The empirical risk of the pricing problem is bounded below: its Hessian has no negative eigenvalue."""
    for M in (25, 50, 100, 200):
        for trial in range(3):
            least = erm_curvature(M, 100, trial, sensitivity)
            note = f"M = {M}, m = 100, trial {trial}: smallest eigenvalue {least:.4f}"
            # The norm of the matrix is at most 100: its 100 features are at most 1 in absolute value.
            yield Evidence(-least, 1e-11, note)


def _assumptions_hold() -> Iterator[Evidence]:
    printed = abs(float(printed_sensitivity(1.0)) - float(np.tanh(3.0))) < 1e-15
    yield from each(("E[z | x] as printed", printed))


@pricing_has_a_solution.counterexample(margin=9e5, meets=_assumptions_hold)
def _revenue_grows() -> Evidence:
    # One x with beta_1'x = 1 and beta_2'x = 0. E[z | x] replaces z, because the loss is linear in z.
    xp = active().namespace
    z = [float(printed_sensitivity(1.0)), 1.0]
    data = Conditional.stacked(xp.zeros((1, 1), dtype=xp.float64), array([[z]]), weight=None)
    loss = conditional_loss(lambda x: x[:, 0], negative_revenue, data, linear=True)
    prices = [1.0, 10.0, 1000.0]
    revenue = [-float(loss(array([[w]]), xp.asarray([0], dtype=xp.int64))[0]) for w in prices]
    shown = ", ".join(f"{r:.4g} at w = {w:g}" for r, w in zip(revenue, prices, strict=True))
    formula = "for x with beta_1'x = 1, beta_2'x = 0 and any w in R, the expected revenue is tanh(3) w^2 + w"
    return Evidence(revenue[-1], 0.0, f"{formula}: {shown}")


pricing_has_a_solution.mutant("demand falls with the price everywhere")(lambda t: -np.ones_like(t))


# --- The score ------------------------------------------------------------------------------------

Score: TypeAlias = Callable[[Fraction, Fraction, Fraction], Fraction]


def improvement(risk: Fraction, erm: Fraction, best: Fraction) -> Fraction:
    """J = 1 - (R - R*)/(R_ERM - R*)."""
    return 1 - (risk - best) / (erm - best)


_NUMBERS = st.fractions(-10, 10, max_denominator=20)


@claim(
    "Section 6.3, improvement",
    id="P2",
    verdict=Verdict.HOLDS,
    formula=r"J(\theta) = 1 - \frac{R(\theta) - R^*}{R(\theta_{ERM}) - R^*}",
    assumptions="R(theta_ERM) differs from R*",
    remark="This checks the arithmetic of the printed formula only, not any model.",
    examples=50,
    risk=_NUMBERS,
    erm=_NUMBERS,
    best=_NUMBERS,
    scale=st.fractions(-5, 5, max_denominator=10).filter(bool),
    offset=_NUMBERS,
)
def score_is_a_share(
    risk: Fraction,
    erm: Fraction,
    best: Fraction,
    scale: Fraction,
    offset: Fraction,
    score: Score = improvement,
) -> Iterator[Evidence]:
    """J is the fraction of ERM's optimality gap that is closed, for losses and for revenues."""
    if erm == best:
        return
    yield Evidence(abs(float(score(best, erm, best) - 1)), 0.0, "1 at the optimum")
    yield Evidence(abs(float(score(erm, erm, best))), 0.0, "0 for ERM")
    half = (erm + best) / 2
    yield Evidence(abs(float(score(half, erm, best) - Fraction(1, 2))), 0.0, "1/2 at the midpoint")
    plain = score(risk, erm, best)
    mapped = score(*(scale * v + offset for v in (risk, erm, best)))
    yield Evidence(abs(float(plain - mapped)), 0.0, "invariance under affine maps, including sign changes")


@score_is_a_share.mutant("divides by the optimum instead of the gap")
def _(risk: Fraction, erm: Fraction, best: Fraction) -> Fraction:
    return (erm - risk) / best if best else Fraction(0)


Solve: TypeAlias = Callable[..., CausalValue]

CONIC = 1e-6
"""The accuracy of the conic solver at its default settings."""


@dataclass(frozen=True)
class CausalProblem:
    """Three covariates x_k, four parameters z_j, and five places x'_l to which the x_k may move."""

    joint: Any  # (3, 4): P(x_k, z_j)
    nu: Any  # (3, 5): the reference distribution on the places, for each x_k
    places: Any  # (5,)
    z: Any  # (4,)

    @property
    def cost(self) -> Any:
        """Psi(f(x'_l), z_j) for each place and parameter, with f(x') = 1 + x'."""
        w = 1 + self.places[:, None]
        return w * self.z + np.sin(3 * w * self.z)

    def solved(self, solve: Solve, eta: float, d: Divergence) -> CausalValue:
        """Call `solve` with arrays of the active backend."""
        xp = active().namespace
        share = self.joint / self.joint.sum(axis=1, keepdims=True)
        data = Conditional(
            array(np.arange(3)), array(np.tile(self.z, (3, 1))), array(share), array(self.joint.sum(axis=1))
        )
        loss = conditional_loss(lambda x: 1 + x, lambda w, z: w * z + xp.sin(3 * w * z), data)
        return solve(loss, data, array(np.tile(self.places, (3, 1))), eta, d, p=array(self.nu))


def random_problem(seed: int) -> CausalProblem:
    """A random problem, in which some places are outside the perturbation sets of some covariates."""
    rng = np.random.default_rng(seed)
    reachable = rng.random((3, 5)) < 0.8
    reachable[:, 0] = True
    nu = np.where(reachable, rng.exponential(size=(3, 5)), 0.0)
    return CausalProblem(
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
    """The value of the causal problem is the mean over covariates of the largest conditional mean loss."""
    for seed in range(8):
        problem = random_problem(seed)
        primal = causal_plan(problem.cost, problem.joint, problem.nu).value
        dual = float(problem.solved(solve, 1.0, ENTROPIC).supremum)
        yield Evidence(abs(primal - dual), CONIC * (1 + abs(problem.cost).max()), f"seed = {seed}")


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
    """The regularized causal problem over transport plans has the same value as its dual."""
    for seed in range(4):
        problem = random_problem(seed)
        for d, eta in ((ENTROPIC, 0.1), (QUADRATIC, 0.1), (ENTROPIC, 2.0), (QUADRATIC, 2.0)):
            primal = causal_plan(problem.cost, problem.joint, problem.nu, eta=eta, penalty=d.name).value
            dual = float(problem.solved(solve, eta, d).value)
            slack = CONIC * (1 + abs(problem.cost).max())
            yield Evidence(abs(primal - dual), slack, f"{d.name}, eta = {eta}, seed = {seed}")


@causal_duality.mutant("moves covariates outside their perturbation sets")
@regularized_causal_duality.mutant("uses the uniform reference distribution")
def _(loss: Any, data: Conditional, places: Array, eta: float, d: Divergence, *, p: Array) -> CausalValue:
    return causal_value(loss, data, places, eta, d)


@causal_duality.mutant("ignores the weights of the covariates")
@regularized_causal_duality.mutant("ignores the weights of the covariates")
def _(loss: Any, data: Conditional, places: Array, eta: float, d: Divergence, *, p: Array) -> CausalValue:
    xp = array_namespace(places)
    weight = xp.full_like(data.weight, 1 / data.weight.shape[0])
    return causal_value(loss, Conditional(data.x, data.z, data.share, weight), places, eta, d, p=p)


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
    """Without the causal constraint the worst-case value is never smaller, and can be larger."""
    for problem in [random_problem(4 * seed + k) for k in range(4)]:
        causal = plan(problem.cost, problem.joint, problem.nu).value
        free = plan(problem.cost, problem.joint, problem.nu, causal=False).value
        slack = CONIC * (1 + abs(problem.cost).max())
        yield Evidence(causal - free, slack, f"causal {causal:.5f}, unconstrained {free:.5f}")
    # One covariate, z = -1 or 1, places x = -1 and 1, cost x z: the value is 1 if x may depend on z, else 0.
    cost, joint, nu = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.full((1, 2), 0.5), np.full((1, 2), 0.5)
    for constrained, exact in ((True, 0.0), (False, 1.0)):
        value = plan(cost, joint, nu, causal=constrained).value
        yield Evidence(abs(value - exact), CONIC, f"causal={constrained}: {value:.5f}, exact value {exact:g}")


@causality_binds.mutant("omits the causal constraint")
def _(*args: Any, causal: bool = True) -> Any:
    return causal_plan(*args, causal=False)
