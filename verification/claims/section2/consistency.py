"""Section 2, Proposition 1: the limit of the risk as eta tends to 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from math import log, sqrt
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    cressie_read,
    indicator,
    worst_case,
)
from phiball.refimpl.risk import Quadrature, robust_risk
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import bounded_loss, in_the_definition, on_an_interval
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import CONSISTENT, HALF_ABSOLUTE
from phiball.verification.instances.solutions import Solver, shortfall_bound, solved
from phiball.verification.instances.solver_mutants import (
    LARGEST_LOSS,
    MULTIPLIER_FOR_VALUE,
    with_answer,
    with_divergence,
    without_p,
)
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import uniform_losses

BURG = cressie_read(0.0)


@claim(
    "Proposition 1",
    id="B1",
    verdict=Verdict.CORRECTED,
    formula=r"\lim_{t\to\infty}\frac{\phi(t)}{t}<\infty\ \text{or}\ \text{dom}\,\phi=\mathbb{R}_+"
    r" \;\Rightarrow\; \lim_{\eta\to 0} R_\eta ="
    r" \mathbb{E}_{z\sim\hat P}\left[\max_{z'\in B_\rho(z)} f(z')\right]",
    assumptions="finite distributions; max f - R is at most e E[max f - f] + eta E phi(zeta), where the "
    "density zeta is e if f < max f, and the remaining mass is at max f; e is 0 if phi(0) is finite, and "
    "eta/range(f), but at most 1/2, otherwise",
    quote=r"Assume either one of the following conditions hold: [...] "
    r"$\lim_{t\to\infty}\frac{\phi(t)}{t}<\infty$; [...] "
    r"$\lim_{t\to\infty}\frac{\phi(t)}{t}=\infty$, $\text{dom}(\phi) = \mathbb{R}_+$.",
    correction="condition (I) must also require phi to be finite on (0, infinity), as it is in Examples 2 "
    "to 5",
    corrected=r"(0,\infty)\subseteq\text{dom}\,\phi \;\Rightarrow\; \lim_{\eta\to 0} R_\eta ="
    r" \mathbb{E}_{z\sim\hat P}\left[\text{ess.sup}_{\nu_z} f\right]",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "If phi is infinite near 0, some mass stays on small losses for every eta. The proof drops the term "
        "eta E phi*, which does not vanish in this case.",
    ),
    examples=150,
    problem=problems(),
    d=st.sampled_from(CONSISTENT),
    ratio=powers_of_ten(-12.0, 0.0),
)
def risk_tends_to_the_maximum(
    problem: InnerProblem, d: Divergence, ratio: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """As eta tends to 0 the risk tends to the largest loss, if phi is finite on (0, infinity)."""
    small = replace(problem, eta=ratio * (problem.spread or 1.0))
    got, top = float(solved(solve, small, d).value), max(small.charged)
    yield Evidence(got - top, value_tolerance(small), "R is at most the maximum")
    bound = shortfall_bound(small, d)
    note = f"eta = {small.eta:.4g}: max f - R = {top - got:.4g}, at most {bound:.4g}"
    yield Evidence.at_most(top - got, bound, 2 * value_tolerance(small) + ROUNDING * bound, note)


def _within_proposition_1() -> Iterator[Evidence]:
    d = HALF_ABSOLUTE
    yield from in_the_definition(d)
    yield Evidence(abs(d.recession - 1), 0.0, "lim phi(t)/t = 1")
    mus = [float(solved(worst_case, InnerProblem((0.0, 1.0), eta), d).mu) for eta in (0.1, 0.01, 1e-4)]
    yield Evidence(max(map(abs, mus)), 1.0, "the dual has a finite minimiser")


@risk_tends_to_the_maximum.counterexample(margin=0.25, meets=_within_proposition_1)
def _no_density_below_a_half() -> Evidence:
    d = HALF_ABSOLUTE
    values = [float(solved(worst_case, InnerProblem((0.0, 1.0), eta), d).value) for eta in (0.1, 0.01, 1e-4)]
    shown = ", ".join(f"{v:.5g}" for v in values)
    return Evidence(
        1 - max(values),
        0.0,
        "phi = abs(x - 1) on [1/2, inf) and infinite elsewhere, f = (0, 1) with probability 1/2 each: the "
        "weight of f = 0 is at least 1/4, so R <= 3/4 for every eta, while max f = 1. At eta = 0.1, 0.01, "
        f"1e-4, R = {shown}",
    )


risk_tends_to_the_maximum.mutant("forbids densities below 1/2")(
    with_divergence(lambda d: HALF_ABSOLUTE if d is ABSOLUTE else d)
)
risk_tends_to_the_maximum.mutant("returns the multiplier as the value")(MULTIPLIER_FOR_VALUE)


# --- An infinite phi(0) ---------------------------------------------------------------------------

INVERSE_ETAS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)


@claim(
    "Proposition 1, phi with phi(0) infinite",
    id="B3",
    part_of="B1",
    verdict=Verdict.HOLDS,
    formula=r"\phi(x)=x-1-\log x,\quad f\in\{0,1\}\ \text{equally likely}:\quad"
    r" \max f-R_\eta = \frac{e}{2}-\frac{\eta}{2}\log\left(e(2-e)\right),\quad e=1+\eta-\sqrt{1+\eta^2}",
    assumptions="phi is finite on (0, infinity) and infinite at 0",
)
def burg_is_consistent(solve: Solver = worst_case) -> Iterator[Evidence | Curve]:
    """Burg's phi, infinite at 0, is consistent: for two losses max f - R is about eta log(1/eta)/2."""
    gaps, problem = [], InnerProblem((0.0, 1.0), 1.0)
    for x in INVERSE_ETAS:
        eta = 1 / x
        gap = 1 - float(solved(solve, replace(problem, eta=eta), BURG).value)
        e = 2 * eta / (1 + eta + sqrt(1 + eta**2))
        exact = e / 2 - eta / 2 * log(e * (2 - e))
        gaps.append(gap)
        yield Evidence(abs(gap - exact), ROUNDING, f"eta = {eta:.0e}: max f - R = {gap:.6g}")
    curve = Curve(
        "max f - R, Burg's phi", "1/eta", "max f - R", "(eta/2)(1 + log(1/eta))", INVERSE_ETAS,
        tuple(gaps), tuple((1 + log(x)) / (2 * x) for x in INVERSE_ETAS),
    )  # fmt: skip
    yield curve
    yield curve.below_bound()
    # log(x)/x has the local exponent -1 + 1/log x.
    yield curve.at_most(-1.0, 1 / log(INVERSE_ETAS[0]))


burg_is_consistent.mutant("uses the entropic phi")(with_divergence(lambda d: ENTROPIC))


# --- The proof's multiplier -----------------------------------------------------------------------


@claim(
    "Proof of Proposition 1, case (II)",
    id="B4",
    verdict=Verdict.REFUTED,
    formula=r"\mu^*_{z,\eta} \ge \text{ess.sup}_{\nu_z} f\quad\text{for small}\ \eta",
    assumptions="phi superlinear and finite on [0, infinity)",
    quote=r"Therefore, $\mu_{z,\eta}^*\ge \esssup_{\nu_z}~f$",
    correction="mu* <= ess-sup f for every eta, if phi >= 0 is differentiable at 1; for the entropic phi, "
    "mu* < ess-sup f unless f is constant",
    corrected=r"\phi\ge 0,\ \phi'(1)=0:\quad \min f\le\mu^*\le\max f\ \text{for every}\ \eta,\qquad"
    r" \mu^*_{\text{entr}} = R_\eta < \max f",
    assessment=Assessment(
        Kind.FALSE,
        Consequence.REPAIR,
        "For the entropic phi, mu* is the risk itself, which is below the largest loss. Proposition 1 can be "
        "proved without this step; B1 checks it.",
    ),
    problem=problems(),
    d=st.sampled_from([ENTROPIC, QUADRATIC, cressie_read(2.0), cressie_read(1.5), cressie_read(3.0)]),
    ratio=powers_of_ten(-3.0, -1.0),
)
def multiplier_is_above_the_maximum(
    problem: InnerProblem, d: Divergence, ratio: float, solve: Solver = worst_case
) -> Evidence:
    """For small eta the optimal multiplier is at least the largest loss."""
    small = replace(problem, eta=ratio * (problem.spread or 1.0))
    below = max(small.charged) - float(solved(solve, small, d).mu)
    return Evidence(below, value_tolerance(small) + ROUNDING * small.eta, f"max f - mu* = {below:.4g}")


CENTRED = cressie_read(2.0)  # (x - 1)^2/2: Example 3 made nonnegative, as Definition 1 requires


@multiplier_is_above_the_maximum.counterexample(
    margin=0.069,
    meets=lambda: chain(in_the_definition(ENTROPIC), in_the_definition(CENTRED), bounded_loss((0.0, 1.0))),
)
def _multiplier_below(solve: Solver = worst_case) -> Iterator[Evidence]:
    problem = InnerProblem((0.0, 1.0), 0.1)
    notes = {
        ENTROPIC: "entropic phi, mu* = 0.1 log((1 + e^10)/2)",
        CENTRED: "phi = (x - 1)^2/2 on [0, inf), E(f - mu* + eta)_+ = eta, so mu* = 1 - eta",
    }
    for d, note in notes.items():
        mu = float(solved(solve, problem, d).mu)
        yield Evidence(1 - mu, 0.0, f"f = (0, 1) with probability 1/2 each, eta = 0.1, {note} = {mu:.4f} < 1")


multiplier_is_above_the_maximum.mutant("returns the largest loss as mu")(
    with_answer(mu=lambda s, f: array_namespace(f).max(f))
)


# --- The indicator --------------------------------------------------------------------------------

ETAS = (10.0, 1.0, 0.1, 1e-3, 1e-6, 1e-12)


@claim(
    "Discussion of Proposition 1, the indicator",
    id="B6",
    verdict=Verdict.HOLDS,
    formula=r"f\sim U[0,1],\ \phi=\iota_{[0,1/\alpha]}:\quad R_\eta = 1-\frac{\alpha}{2}"
    r"\ \text{for every}\ \eta>0,\ \text{not}\ \to 1",
)
def indicator_is_inconsistent(solve: Solver = worst_case) -> Iterator[Evidence | Curve]:
    """The indicator is not consistent: its risk does not depend on eta and is below the maximum."""
    for alpha in (1.0, 0.5, 0.3, 0.01):
        x, p = uniform_losses.graded((1 - alpha,))
        gaps = [
            1 - float(solve(array(x.tolist()), eta, indicator(alpha), p=array(p.tolist())).value)
            for eta in ETAS
        ]
        for eta, gap in zip(ETAS, gaps, strict=True):
            yield Evidence(
                abs(gap - alpha / 2), ROUNDING, f"alpha = {alpha}, eta = {eta}: max f - R = {gap:.4g}"
            )
        if alpha == 0.3:
            curve = Curve(
                "max f - R, indicator with alpha = 0.3", "eta", "max f - R", "alpha/2", ETAS, tuple(gaps),
                (alpha / 2,) * len(ETAS),
            )  # fmt: skip
            yield curve
            yield curve.exactly(0.0, ROUNDING)


# --- The limit ------------------------------------------------------------------------------------


@claim(
    "Proposition 1, the limit",
    id="B7",
    verdict=Verdict.CORRECTED,
    formula=r"\lim_{\eta\to 0} R_\eta = \mathbb{E}_{z\sim\hat P}\left[\max_{z'\in B_\rho(z)} f(z')\right]",
    assumptions="phi is finite on (0, infinity) and f is bounded above",
    quote=r"converges to $\bE_{z\sim\hP}\left[ \max_{z'\in \mathbb{B}_{\rho}(z)}~f(z') \right].$",
    correction="true if f is continuous in z; in general the limit is the essential supremum",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "Values of f on a set of measure zero can change the maximum, but do not change the risk.",
    ),
    corrected=r"\lim_{\eta\to 0} R_\eta = \mathbb{E}_{z\sim\hat P}\left[\text{ess.sup}_{\nu_z} f\right]",
    problem=problems(),
    d=st.sampled_from(CONSISTENT),
    ratio=powers_of_ten(-12.0, 0.0),
)
def limit_is_the_essential_supremum(
    problem: InnerProblem, d: Divergence, ratio: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk tends to the essential supremum of f; values on sets of measure zero do not matter."""
    unit = problem.spread or 1.0
    peak = InnerProblem((*problem.f, max(problem.f) + unit), ratio * unit, (*problem.probabilities, 0.0))
    got, top = float(solved(solve, peak, d).value), max(problem.charged)
    yield Evidence(got - top, value_tolerance(peak), "at most the essential supremum")
    bound = shortfall_bound(peak, d)
    yield Evidence.at_most(
        top - got, bound, 2 * value_tolerance(peak) + ROUNDING * bound, "max f - R is at most the bound of B1"
    )


@limit_is_the_essential_supremum.counterexample(
    margin=1.0, meets=lambda: chain(in_the_definition(ENTROPIC), bounded_loss((0.0, 1.0), (1.0, 0.0)))
)
def _one_point() -> Evidence:
    values = [float(worst_case(array([0.0, 1.0]), eta, ENTROPIC, p=array([1.0, 0.0])).value) for eta in ETAS]
    return Evidence(
        1 - max(values),
        0.0,
        "f = 1 at one point of the ball and 0 elsewhere, entropic phi: f = 0 with probability 1, so "
        f"R = {max(values):g} for every eta, while max f = 1",
    )


limit_is_the_essential_supremum.mutant("counts points of measure zero")(without_p)
indicator_is_inconsistent.mutant("takes the largest loss")(LARGEST_LOSS)
limit_is_the_essential_supremum.mutant("takes the largest loss")(LARGEST_LOSS)


Risk: TypeAlias = Callable[[Array, float, Divergence], float]
RHO, PANELS = 0.25, 64


def risk_of_data(z: Array, eta: float, d: Divergence) -> float:
    """E_z R of the loss f(x) = x on balls of radius 1/4."""
    rule = Quadrature(PANELS)
    return float(robust_risk(lambda x, i: x[:, 0], z, Ball(2, RHO), eta, d, method=rule).value)


@claim(
    "Proof of Proposition 1, case (I)",
    id="B7-mean",
    verdict=Verdict.CORRECTED,
    formula=r"\lim_{\eta\to 0}\text{Optval} \ge \text{ess.sup}_{\nu_z} f",
    assumptions="f(x) = x, the data points 0 and 1, rho = 1/4, phi the absolute value or the hinge",
    quote=r"By taking $\eta\to0$ both sides, we find "
    r"$\mathrm{Optval}\eqref{Eq:primal:WDRO:phi:reg} \ge \esssup_{\nu_z}~f.$",
    correction="take the mean of the right-hand side over the data",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The left-hand side is a mean over the data, but the right-hand side concerns one data point z.",
    ),
    corrected=r"\lim_{\eta\to 0}\text{Optval} ="
    r" \mathbb{E}_{z\sim\hat P}\left[\text{ess.sup}_{\nu_z} f\right]",
)
def limit_is_a_mean_over_data(risk: Risk = risk_of_data) -> Iterator[Evidence]:
    """With several data points, the limit is the mean over them of the essential suprema."""
    z = array([0.0, 1.0])[:, None]
    for d in (ABSOLUTE, HINGE):
        for eta in (0.1, 0.01, 1e-3, 1e-6):
            missing = 2 * RHO - uniform_losses.optimal_value(eta, d.family or "", G=2 * RHO)
            # The quadrature errs only in the panel of the kink (width 2 RHO/PANELS), by at most `missing`.
            tolerance = min(2 * RHO / PANELS**2, missing) + ROUNDING
            error = abs(0.5 + RHO - missing - risk(z, eta, d))
            yield Evidence(error, tolerance, f"{d.name}, eta = {eta}")


@limit_is_a_mean_over_data.counterexample(
    margin=0.49,
    meets=lambda: chain(
        in_the_definition(ABSOLUTE),
        on_an_interval(lambda x: x, -RHO, 1 + RHO, lipschitz=1.0, between=(-RHO, 1 + RHO)),
    ),
)
def _two_points() -> Evidence:
    got = risk_of_data(array([0.0, 1.0])[:, None], 1e-6, ABSOLUTE)
    return Evidence(
        1 + RHO - got,
        0.0,
        "data 0 and 1, f(x) = x, rho = 1/4, phi = abs(x - 1) on [0, inf), eta = 1e-6: the optimal value is "
        f"(0.25 + 1.25)/2 = {got:.4f}, while ess-sup f around z = 1 is 1.25",
    )


@limit_is_a_mean_over_data.mutant("sums over the data instead of averaging")
def _(z: Array, eta: float, d: Divergence) -> float:
    return risk_of_data(z, eta, d) * int(z.shape[0])
