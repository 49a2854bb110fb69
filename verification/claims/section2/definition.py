"""Section 2: the conditions on phi, its conjugate, the primal problem, and the volume of the ball."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from math import exp, inf, isfinite, sqrt
from typing import Any, TypeAlias

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, indicator, worst_case
from phiball.refimpl.inner import primal_value
from phiball.refimpl.inner.divergences import centred
from phiball.refimpl.risk import Quadrature, robust_risk
from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each, in_the_definition, on_an_interval
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.printed_algorithms import algorithm2, printed_bracket
from phiball.verification.instances.solutions import Solver, exact_value, oracle_arguments, solved, value_is
from phiball.verification.instances.solver_mutants import without_p
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, ROUNDING, TEST_LEVEL, value_tolerance
from phiball.verification.oracles import definitions, uniform_losses

# --- The definition of phi ------------------------------------------------------------------------

GRID = [0.25 * k for k in range(33)]


@claim(
    "Example 3, as a phi of Definition 1",
    id="A3",
    verdict=Verdict.CORRECTED,
    formula=r"\phi(x)=\frac{1}{2}(x^2-1),\ x\ge 0:\quad \phi\ge 0\ \text{convex},\quad \phi(1)=0,"
    r"\quad \phi(x)=\infty\ \text{for}\ x<0",
    quote=r"Consider $\phi(x) = \frac{1}{2}(x^2-1), x\ge0$.",
    correction="write phi(x) = (x - 1)^2/2 in Example 3, or shift the bracket of Algorithm 2 down by "
    "eta phi'(1) (C2)",
    remark="For every phi, the function phi(x) - phi'(1)(x - 1) is nonnegative and gives the same risk and "
    "worst case; its mu* is larger by eta phi'(1).",
    assessment=Assessment(
        Kind.FALSE,
        Consequence.RESULT,
        "Definition 1 requires phi >= 0, but the phi of Example 3 is negative on [0, 1). The formulas of "
        "Example 3 hold (E3), but Algorithm 2 can fail: the bracket of Proposition 2 is correct for every "
        "phi >= 0 (C1), and need not contain mu* for this phi.",
    ),
    corrected=r"\tilde\phi(x) = \phi(x) - g\,(x-1),\ g\in\partial\phi(1):\quad \tilde\phi\ge 0,"
    r"\quad \tilde R = R,\quad \tilde\mu^* = \mu^* + \eta g",
    problem=problems(),
    d=st.one_of(st.just(QUADRATIC), divergences()),
)
def centred_phi_keeps_the_definition(
    problem: InnerProblem, d: Divergence, repair: Callable[[Divergence], Divergence] = centred
) -> Iterator[Evidence]:
    """phi minus its tangent at 1 is convex, nonnegative and 0 at 1, and gives the same risk."""
    c = repair(d)
    values = to_floats(c.phi(array(GRID)))
    yield Evidence(-min(values), ROUNDING, f"phi >= 0: the smallest value is {min(values):.4g}")
    yield Evidence(abs(to_floats(c.phi(array([1.0])))[0]), ROUNDING, "phi(1) = 0")
    yield Evidence(0.0 if to_floats(c.phi(array([-1e-3])))[0] == inf else inf, 0.0, "infinite below 0")
    concavity = [
        2 * b - (a + e)
        for a, b, e in zip(values, values[1:], values[2:], strict=False)
        if isfinite(b) or isfinite(a + e)
    ]
    yield Evidence(max(concavity), ROUNDING * max(v for v in values if isfinite(v)), "convex on a grid")
    exact, solution = exact_value(problem, d), solved(worst_case, problem, c)
    yield value_is(solution, exact, problem)
    mu = float(solution.mu) - problem.eta * d.slope1
    dual = definitions.dual_objective(problem.f, mu, *oracle_arguments(problem, d))
    # Subtracting eta phi'(1) from mu adds a rounding error relative to eta.
    slack = value_tolerance(problem) + ROUNDING * problem.eta
    error = abs(definitions.exact_difference(dual, exact))
    yield Evidence(error, slack, "the dual of phi at mu* - eta phi'(1), with the mu* of the centred phi")


@centred_phi_keeps_the_definition.counterexample(margin=0.5)
def _negative_phi() -> Evidence:
    xp = active().namespace
    least = float(QUADRATIC.phi(xp.zeros(1, dtype=xp.float64))[0])
    return Evidence(-least, 0.0, f"phi(x) = (x^2 - 1)/2 on [0, inf), as in Example 3, has phi(0) = {least}")


@centred_phi_keeps_the_definition.counterexample(margin=0.94)
def _bracket_of_example_3() -> Evidence:
    problem = InnerProblem((0.0, 0.1), 1.0)
    low, high = printed_bracket(problem.losses, 1.0, QUADRATIC)
    mu = float(worst_case(problem.losses, 1.0, QUADRATIC).mu)
    out = algorithm2(problem.losses, 1.0, QUADRATIC, 60, (low, high))
    return Evidence(
        low - mu,
        0.0,
        f"phi of Example 3, f = {problem.f} with probability 1/2 each, eta = 1: E(f - mu*)_+ = eta gives "
        f"mu* = 0.05 - 1 = {mu:.4g}, outside the printed bracket [{low:g}, {high:g}] of Algorithm 2; after "
        f"60 bisection steps the weights sum to {out.h + 1:.4g} instead of 1",
    )


centred_phi_keeps_the_definition.mutant("leaves phi as printed")(lambda d: d)


@centred_phi_keeps_the_definition.mutant("adds a constant to phi until it is nonnegative")
def _(d: Divergence) -> Divergence:
    if d is not QUADRATIC:
        return d
    return replace(d, phi=lambda x: d.phi(x) + 0.5, conj=lambda s: d.conj(s) - 0.5, family=None)


# --- The constraint of the primal -----------------------------------------------------------------


@claim(
    "Eq. (Primal-phi-Reg)",
    id="A6",
    verdict=Verdict.HOLDS,
    formula=r"D_\phi(\gamma,\gamma_0)<\infty \;\Rightarrow\; \gamma\ll\gamma_0"
    r" \;\Rightarrow\; \text{ess.sup}_\gamma\|\zeta_1-\zeta_2\|\le\rho",
    assumptions="D is infinite unless gamma has a density with respect to gamma_0, as in Definition 1",
    examples=50,
    problem=problems(nonuniform=False),
    d=divergences(),
    outside=st.lists(st.sampled_from([10.0, 1e6, -1.0]), min_size=1, max_size=3),
)
def constraint_is_redundant(
    problem: InnerProblem,
    d: Divergence,
    outside: list[float],
    solve: Solver = worst_case,
    primal: Callable[..., Array] = primal_value,
) -> Iterator[Evidence]:
    """Even without the constraint, points outside the ball get no weight and do not affect the value."""
    m, k = len(problem.f), len(outside)
    width = max(problem.spread, problem.eta)
    far = tuple(max(problem.f) + v * width for v in outside)
    wide = InnerProblem(problem.f + far, problem.eta, (1 / m,) * m + (0.0,) * k)
    solution = solved(solve, wide, d)
    yield Evidence(max(to_floats(solution.weights)[m:]), 0.0, "the weight outside the ball")
    yield value_is(solution, exact_value(problem, d), problem)
    gamma = [(1 - 2.0**-20) / m] * m + [2.0**-20 / k] * k
    reached = float(primal(wide.losses, array(gamma), wide.eta, d, p=wide.distribution))
    note = f"with a little mass outside the ball, the primal value is {reached}"
    yield Evidence(0.0 if reached == -inf else inf, 0.0, note)


constraint_is_redundant.mutant("ignores the reference distribution", replaces="solve")(without_p)


@constraint_is_redundant.mutant("ignores points of reference probability 0", replaces="primal")
def _(losses: Array, gamma: Array, eta: float, d: Divergence, *, p: Array) -> Array:
    xp = array_namespace(losses)
    kept = xp.where(p > 0, gamma, xp.zeros_like(gamma))
    return primal_value(losses, kept / xp.sum(kept), eta, d, p=p)


Conjugate: TypeAlias = Callable[[Divergence, float, float], float]

# --- (eta phi)* -----------------------------------------------------------------------------------


def supremum(s: float, eta: float, family: str, parameter: float | None) -> tuple[Any, Any]:
    """The maximum of s x - eta phi(x) over x >= 0 and the maximiser, by doubling and golden section."""
    with mp.workdps(definitions.DIGITS):

        def at(x: Any) -> Any:
            # definitions.phi extends the domain of the indicator by a rounding error; here it is exact.
            outside = family == "indicator" and x * mp.mpf(parameter) > 1
            cost = mp.inf if outside else definitions.phi(x, family, parameter)
            return mp.mpf(s) * x - mp.mpf(eta) * cost

        high = mp.mpf(2)
        while at(high) >= at(high / 2):
            high *= 2
            if high > mp.mpf(2) ** 200:
                return mp.inf, mp.inf
        # `golden_section` moves right where its function is infinite. In y = -x, right is towards x = 0.
        least, minimiser = definitions.golden_section(lambda y: -at(-y), -high, mp.mpf(0), steps=100)
        return -least, -minimiser


def scaled_conjugate(d: Divergence, s: float, eta: float) -> float:
    """eta phi*(s/eta), with the library's phi*."""
    return eta * float(d.conj(array([s / eta]))[0])


@claim(
    "Eq. (3) and Lemma EC.3",
    id="A2",
    verdict=Verdict.HOLDS,
    formula=r"(\eta\phi)^*(s) = \eta\,\phi^*\left(\frac{s}{\eta}\right)",
    assumptions="eta > 0; both sides are infinite where s/eta exceeds lim phi(t)/t",
    d=divergences(),
    ratio=st.floats(-5, 5),
    eta=powers_of_ten(-6.0, 6.0),
)
def conjugate_of_eta_phi(
    d: Divergence, ratio: float, eta: float, conjugate: Conjugate = scaled_conjugate
) -> Iterator[Evidence]:
    """The conjugate of eta phi at s is eta phi*(s/eta)."""
    if abs(ratio - d.recession) < 1e-6:
        return  # near this ratio, rounding of s/eta decides whether the maximiser is finite
    s = ratio * eta
    exact, maximiser = supremum(s, eta, d.family or "", d.parameter)
    got = conjugate(d, s, eta)
    if exact == mp.inf or got == inf:
        yield Evidence(0.0 if exact == got else inf, 0.0, f"the exact value is {exact}, phi* gives {got}")
        return
    # (eta phi)* has the slope x* (the maximiser), so a rounding error of s is multiplied by x*.
    scale = abs(s) * float(maximiser) + eta + abs(float(exact))
    yield Evidence(abs(definitions.exact_difference(got, exact)), ROUNDING * scale)


@conjugate_of_eta_phi.mutant("omits eta in the argument")
def _(d: Divergence, s: float, eta: float) -> float:
    return eta * float(d.conj(array([s]))[0])


Risk: TypeAlias = Callable[[float, float, Divergence], float]
PANELS = 64


def risk_of_line(G: float, eta: float, d: Divergence) -> float:
    """R of the loss G x at z = 1/2 with rho = 1/2: the losses in the ball are uniform on [0, G]."""
    z, ball = array([0.5])[:, None], Ball(2, 0.5)
    return float(robust_risk(lambda x, i: G * x[:, 0], z, ball, eta, d, method=Quadrature(PANELS)).value)


@claim(
    "Eq. (7b)",
    id="A2-inner",
    verdict=Verdict.CORRECTED,
    formula=r"R(\theta;z) = \sup_{\gamma} \left\{ \mathbb{E}_{z'\sim\gamma}[f_\theta(z)]"
    r" - \eta\,\mathbb{E}_{z'\sim\nu_z}\left[\phi\left(\frac{d\gamma(z')}{d\nu_z(z')}\right)\right] \right\}",
    assumptions="f(z') = G z' on the ball [0, 1] around z = 1/2, so that the losses are uniform on [0, G]",
    quote=r"$R(\theta;z)=\sup_{\gamma\in\cP(\cZ)}$ [...] $\bE_{z'\sim\gamma}[f_{\theta}(z)]$",
    correction="f_theta(z') in place of f_theta(z), as in the proof of Theorem 1",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "f_theta(z) does not depend on gamma, so the supremum would be f_theta(z).",
    ),
    corrected=r"R(\theta;z) = \sup_{\gamma} \left\{ \mathbb{E}_{z'\sim\gamma}[f_\theta(z')]"
    r" - \eta\,\mathbb{E}_{z'\sim\nu_z}\left[\phi\left(\frac{d\gamma(z')}{d\nu_z(z')}\right)\right] \right\}",
)
def risk_on_a_line(risk: Risk = risk_of_line) -> Iterator[Evidence]:
    """With f(z') in place of f(z), the risk has the known closed forms for the five phi of the paper."""
    for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.25), indicator(1.0)):
        for G, eta in ((1.0, 1.0), (1.0, 0.5), (1.0, 0.125), (2.0, 0.2), (0.5, 3.0)):
            exact = uniform_losses.optimal_value(eta, d.family or "", d.parameter, G)
            # A kink lies in one panel, of width 1/PANELS; the integrand is off by at most G/PANELS there.
            tolerance = ROUNDING if d is ENTROPIC else G / PANELS**2
            yield Evidence(abs(risk(G, eta, d) - exact), tolerance, f"{d.name}, G = {G}, eta = {eta}")


@risk_on_a_line.counterexample(
    margin=0.041,
    meets=lambda: chain(
        in_the_definition(ENTROPIC), on_an_interval(lambda z: z, 0.0, 1.0, lipschitz=1.0, between=(0.0, 1.0))
    ),
)
def _loss_at_the_centre() -> Evidence:
    printed, exact = 0.5, uniform_losses.optimal_value(1.0, "entropic")
    return Evidence(
        exact - printed,
        0.0,
        "f(z') = z' on the ball [0, 1] around z = 1/2, entropic phi, eta = 1: the printed formula gives "
        f"R = f(1/2) = {printed}; the corrected one gives R = log E exp(z') = log(e - 1) = {exact:.6f}",
    )


risk_on_a_line.mutant("evaluates the loss at z")(lambda G, eta, d: G / 2)


POINTS = 20_000


def volume_in_space(ball: Ball, d: int) -> float:
    """The library's volume of the ball in R^d."""
    return exp(ball.log_volume(d))


@claim(
    "Eq. (4)",
    id="A5",
    verdict=Verdict.CORRECTED,
    formula=r"\text{vol}(B_\rho(z)) = V_\rho\ \text{for every}\ z\in Z,\quad"
    r" B_\rho(z)=\{z'\in Z:\ \|z'-z\|\le\rho\}",
    quote=r"since the volume of $\mathbb{B}_{\rho}(z)$ is independent of the choice of $z$",
    correction="true if Z = R^d; otherwise V_rho depends on z",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "The ball is defined as a subset of Z, so it has less volume near the boundary of Z.",
        reading="the ball is a subset of Z, as defined in the introduction",
        others=(
            Reading("every ball around a data point lies in the interior of Z", "then the statement is true"),
        ),
    ),
    corrected=r"Z=\mathbb{R}^d:\quad \text{vol}(B_\rho(z)) = \rho^d\,\text{vol}(B_1(0))",
    error_level=18 * TEST_LEVEL,
)
def volume_does_not_depend_on_the_centre(
    volume: Callable[[Ball, int], float] = volume_in_space, seed: int = 0
) -> Iterator[Evidence]:
    """In R^d the volume of the ball does not depend on its centre, and has the textbook value."""
    rng = np.random.default_rng(seed)
    xp = active().namespace
    for norm in (1.0, 2.0, inf):
        for d in (1, 2, 4):
            ball = Ball(norm, 0.45)
            got, exact = volume(ball, d), float(uniform_losses.volume(norm, 0.45, d))
            yield Evidence(abs(got - exact), ROUNDING * exact, f"norm {norm}, d = {d}: {got:.6g}")
            share = got / 0.9**d
            for centre in (0.0, 10.0):
                cube = centre + rng.uniform(-0.45, 0.45, size=(POINTS, d))
                inside = ball.contains(xp.asarray(cube), xp.full((d,), centre, dtype=xp.float64))
                hits = int(xp.sum(xp.astype(inside, xp.int64)))
                spread = sqrt(max(share * (1 - share), 0.0) / POINTS)
                off = abs(hits / POINTS - share)
                yield Evidence(
                    off,
                    NORMAL_QUANTILE * spread + ROUNDING,
                    f"norm {norm}, d = {d}: the share of the cube around {centre}",
                )


CENTRES, RADIUS = (0.0, 0.5), 0.2


def _within_interval() -> Iterator[Evidence]:
    inside = all(0 <= z <= 1 for z in CENTRES)
    yield from each(("both centres lie in Z = [0, 1]", inside), ("rho > 0", RADIUS > 0))


@volume_does_not_depend_on_the_centre.counterexample(margin=0.19, meets=_within_interval)
def _interval() -> Evidence:
    rho = RADIUS
    inside = [min(z + rho, 1.0) - max(z - rho, 0.0) for z in CENTRES]
    return Evidence(
        inside[1] - inside[0],
        0.0,
        f"Z = [0, 1], rho = {rho}: the ball around 0 is [0, 0.2], of length {inside[0]:.4g}; the ball around "
        f"1/2 is [0.3, 0.7], of length {inside[1]:.4g}",
    )


@volume_does_not_depend_on_the_centre.mutant("uses the Euclidean ball for every norm")
def _(ball: Ball, d: int) -> float:
    return exp(Ball(2, ball.radius).log_volume(d))
