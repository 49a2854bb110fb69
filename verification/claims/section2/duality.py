"""Section 2: strong duality, the worst-case density, and related formulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import inf
from typing import Any, TypeAlias

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    adversarial_risk,
    cressie_read,
    fgm,
    indicator,
    worst_case,
    worst_case_density,
)
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.refimpl.risk.density import Density
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.assumptions import in_the_definition, on_an_interval
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.loss_distributions import Midpoints
from phiball.verification.instances.solutions import Solver, rows_exactly, solved
from phiball.verification.instances.solver_mutants import LARGEST_LOSS, without_atom, without_p
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions, uniform_losses
from phiball.verification.oracles.exact_solver import solve_exactly, solve_extended

# --- Theorem 1 (I) --------------------------------------------------------------------------------


@claim(
    "Theorem 1 (I)",
    id="A1",
    verdict=Verdict.CORRECTED,
    any_solver=True,
    formula=r"\sup_{\zeta\ge 0,\ \mathbb{E}[\zeta]=1}"
    r"\left\{\mathbb{E}[f\zeta]-\eta\,\mathbb{E}[\phi(\zeta)]\right\} ="
    r" \inf_{\mu\in\mathbb{R}}\left\{\mu+\mathbb{E}\left[(\eta\phi)^*(f-\mu)\right]\right\}",
    assumptions="eta > 0; expectations are under the reference distribution of one data point z; the risk is "
    "the mean over z",
    quote=r"Then for any $\eta>0$, it holds that [...] "
    r"$\eqref{Eq:primal:WDRO:phi:reg} = \eqref{Eq:dual:WDRO:phi:reg}$",
    correction="assume that phi is finite in a neighbourhood of 1, or that f is bounded above",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "If phi is infinite below 1, only the uniform distribution is feasible and the primal value is E f; "
        "if f is also unbounded, the dual value can be infinite.",
    ),
    corrected=r"1\in\text{int}\,\text{dom}\,\phi\ \text{or}\ \text{ess.sup}\,f<\infty"
    r" \;\Rightarrow\; \text{primal} = \text{dual}",
    examples=100,
    problem=problems(),
    d=divergences(),
)
def strong_duality(problem: InnerProblem, d: Divergence, solve: Solver = worst_case) -> Iterator[Evidence]:
    """The primal and the dual problem have the same optimal value."""
    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    tolerance = value_tolerance(problem)
    primal = solve_exactly(problem.f, *instance).value
    dual = definitions.dual_minimum(problem.f, *instance)
    # The search narrows mu to 2e-19 of its first interval, whose width is at least a few eta.
    apart = abs(definitions.exact_difference(primal, dual))
    yield Evidence(apart, tolerance + 1e-18 * problem.eta, "the exact primal and dual values")

    solution = solved(solve, problem, d)
    mass = sum(Fraction(w) for w in to_floats(solution.weights))
    yield Evidence(abs(float(mass - 1)), ROUNDING, "the mass of the weights", Quantity.MASS)
    reached = definitions.primal_objective(problem.f, to_floats(solution.weights), *instance)
    short = abs(definitions.exact_difference(primal, reached))
    yield Evidence(short, primal_tolerance(problem, d), "the primal at the weights")
    at_mu = definitions.dual_objective(problem.f, float(solution.mu), *instance)
    yield Evidence(abs(definitions.exact_difference(at_mu, primal)), tolerance, "the dual at mu")
    yield Evidence(abs(definitions.exact_difference(float(solution.value), primal)), tolerance, "the value")


@strong_duality.counterexample(
    margin=1.0, meets=lambda: in_the_definition(lambda x: x - 1 if x >= 1 else inf)
)
def _no_interior() -> Evidence:
    # phi*(s) = s for s <= 1 and infinity for s > 1; f has the exponential distribution with mean 1.
    eta = 1.0
    primal = mp.quad(lambda z: -mp.log(z), [0, 1])  # E f, as the only feasible zeta is 1
    tails = [mp.exp(-max(mu + eta, 0)) for mu in range(-50, 1000)]  # P(f > mu + eta)
    dual = inf if min(tails) > 0 else -inf
    return Evidence(
        dual - float(primal),
        0.0,
        "phi = x - 1 on [1, inf) and infinite elsewhere, f = -log abs(z) for z uniform on [-1, 1], eta = 1: "
        "a density that is at least 1 and has mean 1 equals 1, so the primal value is E f = "
        f"{float(primal):.6g}; phi*(s) is infinite for s > 1, and f > mu + 1 with probability "
        f"min(1, exp(-mu - 1)) > 0 for every mu, so the dual value is {dual}",
    )


strong_duality.mutant("drops the atom at the maximum")(without_atom)


@strong_duality.mutant("returns the multiplier of the centred phi")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + eta * d.slope1)


strong_duality.mutant("ignores the reference distribution")(without_p)


@claim(
    "Theorem 1 (I)",
    id="A1-conic",
    part_of="A1",
    verdict=Verdict.HOLDS,
    any_solver=True,
    formula=r"\max_{\gamma\in\Delta_m}\left\{\sum_i\gamma_i f_i-\eta\sum_i p_i\,"
    r"\phi\left(\frac{\gamma_i}{p_i}\right)\right\} ="
    r" \min_\mu\left\{\mu+\eta\sum_i p_i\,\phi^*\left(\frac{f_i-\mu}{\eta}\right)\right\}",
    assumptions="finite support; the phi of Examples 1 to 5",
)
def strong_duality_by_cones(solve: Solver = worst_case) -> Iterator[Evidence]:
    """The dual value equals the primal value found by a conic solver, for the paper's five phi."""
    rng = np.random.default_rng(1)
    for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3)):
        for _ in range(40):
            m = int(rng.integers(1, 12))
            eta = float(rng.choice([0.05, 0.3, 1.0, 4.0]))
            problem = InnerProblem(
                tuple(rng.normal(size=m).tolist()), eta, tuple(rng.dirichlet(np.ones(m)).tolist())
            )
            primal = definitions.conic(problem.f, eta, d.family or "", d.parameter, problem.p)
            dual = float(solved(solve, problem, d).value)
            # 1e-6 is the accuracy of the conic solver at its default settings.
            yield Evidence(abs(primal - dual) / max(1, problem.size), 1e-6, f"{d.name}, {problem}")


strong_duality_by_cones.mutant("moves all the mass to the maximum")(LARGEST_LOSS)


Densities: TypeAlias = Callable[..., Density]

SUPERLINEAR = (QUADRATIC, ENTROPIC, cressie_read(1.5), cressie_read(3.0))
NODES = 200


# --- Theorem 1 (II) -------------------------------------------------------------------------------


@claim(
    "Theorem 1 (II)",
    id="A4",
    verdict=Verdict.HOLDS,
    formula=r"\frac{dP_*(\omega)}{d\omega} = V_\rho^{-1}\,\mathbb{E}_{z\sim\hat P}"
    r"\left[1\{\omega\in B_\rho(z)\}\,\zeta_z^*(\omega)\right],\quad"
    r" \zeta_z^*(\omega) = (\eta\phi)^{*\prime}\left(f(\omega)-\mu_z^*\right)",
    assumptions="phi is strictly convex and superlinear, so that the pair (mu*, zeta*) exists; the ball is "
    "an interval, and integrals are midpoint sums",
    examples=40,
    d=st.sampled_from(SUPERLINEAR),
    eta=powers_of_ten(-2.0, 2.0),
    wave=st.integers(0, 9),
    slope=st.floats(-2, 2),
    cells=st.integers(0, 300),
)
def density_of_the_worst_case(
    d: Divergence, eta: float, wave: int, slope: float, cells: int, density: Densities = worst_case_density
) -> Iterator[Evidence]:
    """The printed density has mass 1, and its expected loss minus eta D is the dual value."""
    rho = 0.25
    h = 2 * rho / NODES
    centres = [0.0, cells * h]  # the balls lie on one grid of cells of width h, and may overlap
    x = -rho + h * (np.arange(NODES + cells) + 0.5)

    def loss(x: Array, i: Array) -> Array:
        return array_namespace(x).sin(wave * x[:, 0]) + slope * x[:, 0]

    def at(z: list[float]) -> Any:
        worst = density(
            loss,
            array(z)[:, None],
            Midpoints(2, rho),
            eta,
            d,
            at=array(x.tolist())[:, None],
            n_samples=NODES,
            rng=rng(0),
        )
        return to_numpy(worst.density)

    f = np.sin(wave * x) + slope * x
    mixed = at(centres)
    # Rounding errors of f and mu are divided by eta in zeta.
    scale = ROUNDING * (3 + (3 + eta) / eta)
    yield Evidence(abs(float(np.sum(mixed) * h) - 1), scale, "the mass")
    cost = value = 0.0
    densities = [at([z]) for z in centres]
    error = float(np.abs(mixed - (densities[0] + densities[1]) / 2).max())
    yield Evidence(error, scale / h, "the mixture over z")
    for z, alone in zip((0, cells), densities, strict=True):
        zeta = alone[z : z + NODES] * 2 * rho
        cost += sum(float(definitions.phi(mp.mpf(v), d.family or "", d.parameter)) for v in zeta.tolist())
        value += float(solve_extended(f[z : z + NODES], eta, d.family or "", d.parameter)[0])
    primal = float(np.sum(mixed * f) * h) - eta * cost / (2 * NODES)
    yield Evidence(abs(primal - value / 2), (3 + eta) * scale, "the primal value minus the dual value")


@density_of_the_worst_case.mutant("solves with half of eta")
def _(loss: Any, z: Array, ball: Ball, eta: float, d: Divergence, **rest: Any) -> Density:
    return worst_case_density(loss, z, ball, eta / 2, d, **rest)


@claim(
    "Theorem 1 (II), for every phi",
    id="A4-kinked",
    section="beyond",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_{\nu_z}[\zeta_z^*]=1,\quad"
    r" \zeta_z^*(\omega) \in \partial(\eta\phi)^*\left(f(\omega)-\mu_z^*\right)",
    assumptions="the support is finite; phi is any phi of Definition 1",
    remark="Theorem 1 (II) assumes a pair (mu*, zeta*) in which zeta* is a derivative of phi*. If phi* has a "
    "kink, such a pair need not exist: for f = (0, 1) and the indicator with alpha = 3/4 the derivative is 0 "
    "or 4/3, so the mass of the two points is 0, 2/3 or 4/3 for every mu, and never 1.",
    problem=problems(),
    d=divergences(),
)
def optimality_condition(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """For every phi, the worst case has mass 1 and lies pointwise in the subdifferential of phi*."""
    solution = solved(solve, problem, d)
    w = to_floats(solution.weights)
    yield Evidence(abs(sum(w) - 1), ROUNDING, "the mass")
    instance = (problem.eta, d.family or "", d.parameter)
    eta, mu = mp.mpf(problem.eta), mp.mpf(float(solution.mu))
    with mp.workdps(definitions.DIGITS):
        gaps = []
        for v, q, gamma in zip(problem.f, problem.probabilities, w, strict=True):
            if q:
                # Fenchel-Young: phi(x) + phi*(s) - s x >= 0, with equality for x in the subdifferential.
                x, s = mp.mpf(gamma) / mp.mpf(q), (mp.mpf(v) - mu) / eta
                young = definitions.phi(x, *instance[1:]) + definitions.conjugate(s, *instance[1:]) - s * x
                gaps.append(float(mp.mpf(q) * eta * young))
    # The gaps are nonnegative and sum to the duality gap, so each is at most the duality gap.
    yield Evidence(max(map(abs, gaps)), 2 * primal_tolerance(problem, d), "the Fenchel gap of a point")
    exact = solve_exactly(problem.f, *instance, problem.p).value
    reached = definitions.primal_objective(problem.f, w, *instance, problem.p)
    short = abs(definitions.exact_difference(exact, reached))
    yield Evidence(short, primal_tolerance(problem, d), "the primal value")


@optimality_condition.mutant("shifts mu by eta/100")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + 0.01 * eta)


# --- Existence of a worst case --------------------------------------------------------------------


@claim(
    "Lemma EC.3, existence",
    id="A7",
    verdict=Verdict.CORRECTED,
    formula=r"\exists\,\zeta^*:\quad \mathbb{E}_\nu[f\zeta^*] - \eta\,\mathbb{E}_\nu[\phi(\zeta^*)] = R",
    assumptions="f bounded",
    quote=r"There exists an optimal solution to this primal problem",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "If phi grows at most linearly, mass can be moved to ever smaller sets around the maximum at bounded "
        "cost, so the supremum need not be attained by a density.",
    ),
    correction="true if phi is superlinear or the support is finite; otherwise, as for the absolute value "
    "and the hinge under a distribution without atoms, the supremum need not be attained",
    corrected=r"\exists\,\zeta^*\quad\text{if}\quad \lim_{t\to\infty}\frac{\phi(t)}{t}=\infty"
    r"\quad\text{or}\quad |\text{supp}\,\nu|<\infty",
)
def supremum_is_reached(solve: Solver = worst_case) -> Iterator[Evidence]:
    """R is attained by a density for superlinear phi and uniform f, and by weights on finite supports."""
    for d in (ENTROPIC, QUADRATIC):
        for eta in (10.0, 1.0, 0.3, 0.05, 1e-3):
            breaks = (uniform_losses.optimal_multiplier(eta, "quadratic"),) if d is QUADRATIC else ()
            x, p = uniform_losses.graded(breaks)
            w = to_numpy(solve(array(x.tolist()), eta, d, p=array(p.tolist())).weights)
            zeta = array((w / p).tolist())
            reached = float(w @ x - eta * (p @ to_numpy(d.phi(zeta))))
            exact = uniform_losses.optimal_value(eta, d.family or "")
            note = f"{d.name}, eta = {eta}: {reached:.9f}"
            yield Evidence(abs(reached - exact), ROUNDING * (1 + eta), note)
    for d in (ABSOLUTE, HINGE):
        for m in (1, 2, 10, 100):
            problem = InnerProblem(tuple((k + 1) / m for k in range(m)), 0.2)
            w = to_floats(solved(solve, problem, d).weights)
            got = definitions.primal_objective(problem.f, w, 0.2, d.family or "")
            best = solve_exactly(problem.f, 0.2, d.family or "").value
            short = abs(definitions.exact_difference(got, best))
            yield Evidence(short, value_tolerance(problem) + ROUNDING * 0.2, f"{d.name}, {m} points")


@supremum_is_reached.counterexample(
    margin=0.29,
    meets=lambda: chain(
        in_the_definition(ABSOLUTE), on_an_interval(lambda z: z, 0.0, 1.0, lipschitz=1.0, between=(0.0, 1.0))
    ),
)
def _not_reached() -> Evidence:
    # The best densities move the mass of f <= 1 - 2 eta to [1 - e, 1], with e -> 0.
    eta, dual = 0.2, uniform_losses.optimal_value(0.2, "absolute")
    short, shown = [], []
    for e in (0.1, 0.01, 0.001):
        moved = 1 - 2 * eta
        reached = (1 - moved**2) / 2 + moved * (1 - e / 2) - 2 * eta * moved
        short.append((dual - reached) / e)
        shown.append(f"{reached:.6g}")
    return Evidence(
        min(short),
        0.0,
        f"f uniform on [0, 1], phi = abs(x - 1) on [0, inf), eta = {eta}: moving the mass 3/5 at losses "
        f"f <= 0.6 to losses in [1 - e, 1] gives the primal values {', '.join(shown)} for e = 0.1, 0.01, "
        f"0.001, which are 0.3 e below the supremum {dual:.4g}; as e -> 0 the supremum is approached, but "
        "not attained",
    )


supremum_is_reached.mutant("drops the atom at the maximum")(without_atom)


Risk: TypeAlias = Callable[..., Any]

# --- Adversarial training and the infinity-Wasserstein ball ---------------------------------------

RHO = 0.5


@claim(
    "Eq. (infty-WDRO)",
    id="A9",
    verdict=Verdict.HOLDS,
    formula=r"\sup_P \left\{ \mathbb{E}_P f:\ \mathcal{W}_\infty(P, \hat P) \le \rho \right\} = "
    r"\mathbb{E}_{z \sim \hat P} \left[ \sup_{z' \in B_\rho(z)} f(z') \right]",
    assumptions="finitely many data points and locations; f = abs(g.z + c), whose maximum over a ball of the "
    "norm 1, 2 or inf is found by the fast gradient method",
    quote=r"can be viewed as the dual reformulation of the following DRO problem",
)
def wasserstein_is_adversarial(risk: Risk = adversarial_risk, seed: int = 0) -> Iterator[Evidence]:
    """The adversarial risk equals the worst case over the infinity-Wasserstein ball, a linear program."""
    generator = np.random.default_rng(seed)
    for trial in range(4):
        z, g, c = generator.normal(size=(5, 2)), generator.normal(size=2), float(generator.normal())
        for norm in (1.0, 2.0, inf):

            def loss(x: Array, i: Array, g: Any = g, c: float = c) -> Array:
                xp = array_namespace(x)
                return xp.abs(xp.sum(x * array(g), axis=-1) + c)

            def slope(x: Array, i: Array, g: Any = g, c: float = c) -> Array:
                xp = array_namespace(x)
                return xp.sign(xp.sum(x * array(g), axis=-1) + c)[:, None] * array(g)

            ball = Ball(norm, RHO)
            best = fgm(None, array(z), ball, gradient=slope)
            got = risk(loss, array(z), ball, n_samples=20, rng=rng(seed), attack=lambda *_, best=best: best)
            # The maximiser on each ball, the data, and random points, which may lie in several balls.
            places = np.concatenate([to_numpy(best), z, z + RHO * (2 * generator.random((5, 2)) - 1)])
            distance = np.linalg.norm(z[:, None] - places[None], ord=norm, axis=-1)
            values = np.abs(places @ g + c)
            primal = definitions.wasserstein_value(values, np.full(5, 0.2), distance, RHO * (1 + 2.0**-40))
            note = f"trial {trial}, norm {norm:g}"
            yield Evidence(abs(primal - float(got.value)), 1e-8, note)  # the accuracy of the linear program


@wasserstein_is_adversarial.mutant("omits the attack")
def _(*args: Any, attack: Any, **rest: Any) -> Any:
    return adversarial_risk(*args, attack=None, **rest)


# --- Penalty and constraint on the divergence ------------------------------------------------------


@claim(
    "Remark 1, Bayesian DRO",
    id="A10",
    verdict=Verdict.HOLDS,
    formula=r"\eta' = \mathbb{E}_\nu \phi\left(\frac{d\gamma^*_\eta}{d\nu}\right) \;\Rightarrow\; "
    r"\max\left\{ \mathbb{E}_\gamma f:\ \mathbb{E}_\nu \phi\left(\frac{d\gamma}{d\nu}\right) \le \eta' "
    r"\right\} = R_\eta + \eta \eta', \text{ at } \gamma^*_\eta",
    assumptions="phi is entropic or quadratic; f is not constant; the support is finite; gamma* is positive",
    quote=r"the authors therein treat it as a Lagrangian multiplier associated with the hard constraint",
    examples=60,
    f=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=6, unique=True),
    ratio=powers_of_ten(-0.5, 1.5),
    phi=st.sampled_from([ENTROPIC, QUADRATIC]),
)
def budget_has_the_price(
    f: list[float], ratio: float, phi: Divergence, solve: Callable[..., Any] = worst_case
) -> Iterator[Evidence]:
    """The worst case with the penalty eta also solves the constrained problem, whose multiplier is eta."""
    spread = max(f) - min(f)
    eta = ratio * spread
    best = rows_exactly(f, eta, phi)
    x = len(f) * best.weights
    if spread < 1e-3 or np.any(x < 1e-6):
        return
    budget = float(np.mean(x * np.log(x)) if phi == ENTROPIC else np.mean((x - 1) ** 2) / 2)
    got = solve(array(f), None, phi, budget=budget)
    # The budget is quadratic in x - 1, so a rounding error of x is divided by sqrt(budget).
    slack = 2.0**-40 * (max(map(abs, f)) + eta) / budget**0.5
    yield Evidence(abs(float(got.value) - float(best.value) - eta * budget), slack, "the value")
    off = float(np.max(np.abs(to_numpy(got.weights) - best.weights)))
    yield Evidence(off, 1e-6, f"the worst case, at eta' = {budget:.3g}")
    yield Evidence(abs(float(got.eta) / eta - 1), 1e-5, "the multiplier")


@budget_has_the_price.mutant("solves with a budget larger by a tenth")
def _(f: Array, eta: None, phi: Divergence, *, budget: float) -> Any:
    return worst_case(f, eta, phi, budget=1.1 * budget)
