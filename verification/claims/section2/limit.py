"""Section 2 of the paper, Proposition 1: the limit of the risk, and the indicator, which has another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    Ball,
    Divergence,
    indicator,
    integrated_risk,
    worst_case,
)
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import bounded_loss, in_the_definition, on_an_interval
from phiball.verification.instances.divergences import CONSISTENT
from phiball.verification.instances.faulty_solvers import LARGEST_LOSS, without_law
from phiball.verification.instances.solutions import Solver, shortfall_bound, solved
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import uniform

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
    """The indicator is not consistent: its risk does not depend on eta and stays below the maximum."""
    for alpha in (1.0, 0.5, 0.3, 0.01):
        x, p = uniform.graded((1 - alpha,))
        gaps = [
            1 - float(solve(array(x.tolist()), eta, indicator(alpha), p=array(p.tolist())).value)
            for eta in ETAS
        ]
        for eta, gap in zip(ETAS, gaps, strict=True):
            yield Evidence(abs(gap - alpha / 2), ROUNDING, f"alpha = {alpha}, eta = {eta}: {gap:.4g} missing")
        if alpha == 0.3:
            curve = Curve(
                "max f - R, indicator with alpha = 0.3", "eta", "max f - R", "alpha/2", ETAS, tuple(gaps),
                (alpha / 2,) * len(ETAS),
            )  # fmt: skip
            yield curve
            yield curve.exactly(0.0, ROUNDING)


# --- What it tends to -----------------------------------------------------------------------------


@claim(
    "Proposition 1, the limit",
    id="B7",
    verdict=Verdict.CORRECTED,
    formula=r"\lim_{\eta\to 0} R_\eta = \mathbb{E}_{z\sim\hat P}\left[\max_{z'\in B_\rho(z)} f(z')\right]",
    assumptions="phi is finite on (0, infinity), and f is bounded above",
    quote=r"converges to $\bE_{z\sim\hP}\left[ \max_{z'\in \mathbb{B}_{\rho}(z)}~f(z') \right].$",
    correction="true if f is continuous in z; in general the limit is the essential supremum",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "The reference law does not see what f is on a set of measure zero, and the maximum does.",
    ),
    corrected=r"\lim_{\eta\to 0} R_\eta = \mathbb{E}_{z\sim\hat P}\left[\text{ess.sup}_{\nu_z} f\right]",
    problem=problems(),
    d=st.sampled_from(CONSISTENT),
    ratio=powers_of_ten(-12.0, 0.0),
)
def limit_is_the_essential_supremum(
    problem: Problem, d: Divergence, ratio: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk tends to the essential supremum, whatever the loss is on a set of measure zero."""
    unit = problem.spread or 1.0
    peak = Problem((*problem.f, max(problem.f) + unit), ratio * unit, (*problem.probabilities, 0.0))
    got, top = float(solved(solve, peak, d).value), max(problem.charged)
    yield Evidence(got - top, value_tolerance(peak), "at most the essential supremum")
    bound = shortfall_bound(peak, d)
    yield Evidence.at_most(
        top - got, bound, 2 * value_tolerance(peak) + ROUNDING * bound, "and not far below"
    )


def _within_one_point() -> Iterator[Evidence]:
    yield from in_the_definition(ENTROPIC)
    yield from bounded_loss((0.0, 1.0), (1.0, 0.0))


@limit_is_the_essential_supremum.counterexample(margin=1.0, meets=_within_one_point)
def _one_point() -> Evidence:
    values = [float(worst_case(array([0.0, 1.0]), eta, ENTROPIC, p=array([1.0, 0.0])).value) for eta in ETAS]
    return Evidence(
        1 - max(values),
        0.0,
        f"f = 1 at one point of the ball, and 0 elsewhere: f = 0 with probability 1, so that R = "
        f"{max(values):g} for every eta, and max f = 1",
    )


limit_is_the_essential_supremum.mutant("counts points of measure zero")(without_law)


indicator_is_inconsistent.mutant("takes the largest loss")(LARGEST_LOSS)
limit_is_the_essential_supremum.mutant("takes the largest loss")(LARGEST_LOSS)


Risk: TypeAlias = Callable[[Array, float, Divergence], float]
RHO, PANELS = 0.25, 64


def risk_of_data(z: Array, eta: float, d: Divergence) -> float:
    """E_z R of the loss f(x) = x on balls of radius 1/4."""
    return float(integrated_risk(lambda x, i: x[:, 0], z, Ball(2, RHO), eta, d, panels=PANELS).value)


@claim(
    "Proof of Proposition 1, case (I)",
    id="B7-mean",
    verdict=Verdict.CORRECTED,
    formula=r"\lim_{\eta\to 0}\text{Optval} \ge \text{ess.sup}_{\nu_z} f",
    assumptions="f(x) = x, two data points 0 and 1, rho = 1/4, absolute value and hinge",
    quote=r"By taking $\eta\to0$ both sides, we find "
    r"$\mathrm{Optval}\eqref{Eq:primal:WDRO:phi:reg} \ge \esssup_{\nu_z}~f.$",
    correction="with the mean over the data in front, as in the line before",
    assessment=Assessment(
        Kind.MISPRINT, Consequence.NONE, "The optimal value is a mean over the data, and z is one data point."
    ),
    corrected=r"\lim_{\eta\to 0}\text{Optval} ="
    r" \mathbb{E}_{z\sim\hat P}\left[\text{ess.sup}_{\nu_z} f\right]",
)
def limit_is_a_mean_over_data(risk: Risk = risk_of_data) -> Iterator[Evidence]:
    """Over several data points the limit is the mean of the essential suprema."""
    z = array([0.0, 1.0])[:, None]
    for d in (ABSOLUTE, HINGE):
        for eta in (0.1, 0.01, 1e-3, 1e-6):
            missing = 2 * RHO - uniform.value(eta, d.family or "", G=2 * RHO)
            # The kink lies in one panel, 2 rho/panels wide; and no rule misses more than there is.
            tolerance = min(2 * RHO / PANELS**2, missing) + ROUNDING
            error = abs(0.5 + RHO - missing - risk(z, eta, d))
            yield Evidence(error, tolerance, f"{d.name}, eta = {eta}")


def _within_two_points() -> Iterator[Evidence]:
    yield from in_the_definition(ABSOLUTE)
    yield from on_an_interval(lambda x: x, -RHO, 1 + RHO, lipschitz=1.0, between=(-RHO, 1 + RHO))


@limit_is_a_mean_over_data.counterexample(margin=0.49, meets=_within_two_points)
def _two_points() -> Evidence:
    got = risk_of_data(array([0.0, 1.0])[:, None], 1e-6, ABSOLUTE)
    return Evidence(
        1 + RHO - got,
        0.0,
        f"data 0 and 1, f(x) = x, rho = 1/4, eta = 1e-6: the optimal value is (0.25 + 1.25)/2 = {got:.4f}, "
        "and ess-sup f around z = 1 is 1.25",
    )


@limit_is_a_mean_over_data.mutant("adds the data up")
def _(z: Array, eta: float, d: Divergence) -> float:
    return risk_of_data(z, eta, d) * int(z.shape[0])
