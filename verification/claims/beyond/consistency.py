"""Beyond the paper: the limit of the risk for every phi, its rates, and worst cases with atoms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import inf, isfinite, log
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, rng, to_numpy
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    cressie_read,
    worst_case,
    worst_case_density,
)
from phiball.refimpl.risk.density import Density
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import restricted
from phiball.verification.instances.loss_distributions import Midpoints
from phiball.verification.instances.solutions import Solver, exact_distribution, solved
from phiball.verification.instances.solver_mutants import (
    LARGEST_LOSS,
    quadratic_without_half,
    with_divergence,
)
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import uniform_losses

# --- The limit for every phi ----------------------------------------------------------------------

Limit: TypeAlias = Callable[[InnerProblem, float, float], Fraction]


def limit_of_risk(problem: InnerProblem, a: float, b: float) -> Fraction:
    """The limit a E f + (1 - a) AV@R of level (1 - a)/(b - a), where AV@R of level 0 is the maximum."""
    pairs = [(Fraction(v), q) for v, q in zip(problem.f, exact_distribution(problem), strict=True) if q]
    mean = sum((q * v for v, q in pairs), Fraction(0))
    top = max(v for v, _ in pairs)
    low = Fraction(a)
    if isfinite(b):
        alpha = (1 - low) / (Fraction(b) - low)
        # The infimum over mu is attained at one of the losses.
        top = min(mu + sum(q * max(v - mu, Fraction(0)) for v, q in pairs) / alpha for mu, _ in pairs)
    return low * mean + (1 - low) * top


@claim(
    "The limit of the risk for every domain of phi",
    id="B2",
    verdict=Verdict.HOLDS,
    formula=r"\overline{\text{dom}}\,\phi=[a,b]:\quad \lim_{\eta\to 0}R_\eta = a\,\mathbb{E}[f] + "
    r"(1-a)\,\text{AV@R}_{(1-a)/(b-a)}(f),\qquad 0\le\lim R-R_\eta\le\eta\,\mathbb{E}[\phi(\zeta^*)]",
    assumptions="f is bounded; AV@R of level 0 is the essential supremum. Hence R is consistent for every "
    "bounded f if and only if (0, infinity) is in the domain of phi",
    examples=150,
    problem=problems(),
    phi=st.sampled_from([ABSOLUTE, cressie_read(2.0)]),
    a=st.sampled_from([0.5, 0.0, 0.9, 0.25]),
    b=st.sampled_from([2.0, inf, 1.5, 5.0]),
    ratio=powers_of_ten(-12.0, 0.0),
)
def limit_for_every_domain(
    problem: InnerProblem,
    phi: Divergence,
    a: float,
    b: float,
    ratio: float,
    limit: Limit = limit_of_risk,
    solve: Solver = worst_case,
) -> Iterator[Evidence]:
    """As eta -> 0 the risk tends to a mixture of the mean and an AV@R, given by the domain of phi."""
    problem = replace(problem, eta=ratio * (problem.spread or 1.0))
    risk, end = float(solved(solve, problem, restricted(phi, a, b)).value), float(limit(problem, a, b))
    tolerance = 2 * value_tolerance(problem)
    yield Evidence(risk - end, tolerance, f"R = {risk:.6g} is at most the limit {end:.6g}")
    # The density of the limit lies in [a, min(b, 1/p_min)]; the convex phi is largest at one of the two ends.
    highest = min(b, 1 / min(q for q in problem.probabilities if q))
    cost = max(abs(x - 1) if phi is ABSOLUTE else (x - 1) ** 2 / 2 for x in (a, highest))
    slack = tolerance + ROUNDING * problem.eta * cost
    yield Evidence(end - risk - problem.eta * cost, slack, f"the limit {end:.6g} is at most R + eta max phi")


@limit_for_every_domain.mutant("expects the maximum, as in the paper", replaces="limit")
def _(problem: InnerProblem, a: float, b: float) -> Fraction:
    return Fraction(max(problem.charged))


limit_for_every_domain.mutant("ignores the lower end of the domain", replaces="solve")(
    with_divergence(lambda d: ABSOLUTE)
)


# --- Rates ----------------------------------------------------------------------------------------

X = (1e2, 1e3, 1e4, 1e5, 1e6)  # values of 1/eta
_LEADING: dict[str, tuple[str, Callable[[float], float], float, float]] = {
    # The second term is at most 3 % of the first at eta = 0.01; the logarithm adds 1/log x to the exponent.
    "entropic": ("eta log(1/eta)", lambda x: log(x) / x, -1.0, 1 / log(X[0])),
    "quadratic": ("(4/3) sqrt(eta/2)", lambda x: 4 / 3 * (2 * x) ** -0.5, -0.5, 0.02),
    "absolute": ("2 eta", lambda x: 2 / x, -1.0, 0.02),
    "hinge": ("eta", lambda x: 1 / x, -1.0, 0.02),
}
"""The first term of max f - R in x = 1/eta: its label, its formula, its exponent, and a slack for the fit."""


@claim(
    "Rates of consistency, uniform losses",
    id="B5",
    verdict=Verdict.HOLDS,
    formula=r"f\sim U[0,1]:\quad \max f-R_\eta = \eta\log\frac{1}{\eta}-\eta\log(1-e^{-1/\eta}),\quad"
    r" \frac{4}{3}\sqrt{\frac{\eta}{2}}-\frac{\eta}{2},\quad 2\eta-2\eta^2,\quad \eta-\frac{\eta^2}{2}",
    assumptions="phi is entropic; quadratic (eta <= 1/2); absolute value (eta <= 1/2); hinge (eta <= 1)",
)
def rates_for_uniform_losses(solve: Solver = worst_case) -> Iterator[Evidence | Curve]:
    """For uniform f, max f - R is of order eta log(1/eta), sqrt(eta), eta and eta in Examples 2 to 5."""
    for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE):
        gaps = []
        for x in (2.0, 5.0, *X):
            eta = 1 / x
            # The quadrature is split at the kink of the worst-case density.
            kinks = {
                QUADRATIC: uniform_losses.optimal_multiplier(eta, "quadratic"),
                ABSOLUTE: 1 - 2 * eta,
                HINGE: 1 - eta,
            }
            nodes, p = uniform_losses.graded((kinks.get(d, 0.0),))
            got = float(solve(array(nodes.tolist()), eta, d, p=array(p.tolist())).value)
            exact = uniform_losses.optimal_value(eta, d.name)
            yield Evidence(abs(got - exact), ROUNDING, f"{d.name}, eta = {eta}: gap {1 - got:.6g}")
            gaps.append(1 - got)
        label, bound, exponent, slack = _LEADING[d.name]
        curve = Curve(
            f"max f - R, {d.name} phi", "1/eta", "max f - R", label, X, tuple(gaps[2:]), tuple(map(bound, X))
        )
        yield curve
        # The values are exact up to rounding, and the gap is at least 1e-6.
        yield curve.below_bound(1e6 * ROUNDING)
        yield curve.exactly(exponent, slack)


@claim(
    "Rates of consistency, an atom at the maximum",
    id="B5-atom",
    verdict=Verdict.HOLDS,
    formula=r"P(f=1)=q,\ P(f=0)=1-q:\quad \max f-R_\eta = -\eta\log\left(q+(1-q)e^{-1/\eta}\right),\quad"
    r" \frac{\eta}{2}\left(\frac{1}{q}-1\right),\quad 2\eta(1-q),\quad \eta(1-q)",
    assumptions="phi is entropic; quadratic (eta <= q); absolute value (eta <= 1/2); hinge (eta <= 1)",
    q=st.one_of(st.sampled_from([0.5, 0.25, 1.0]), powers_of_ten(-4.0, 0.0)),
    share=powers_of_ten(-9.0, 0.0),
    d=st.sampled_from([QUADRATIC, ENTROPIC, ABSOLUTE, HINGE]),
)
def rates_with_an_atom(q: float, share: float, d: Divergence, solve: Solver = worst_case) -> Evidence:
    """With an atom at max f, max f - R is of order eta for the phi of Examples 2 to 5."""
    eta = share * min(q, 0.5)
    got = float(solved(solve, InnerProblem((0.0, 1.0), eta, (1 - q, q)), d).value)
    missing = uniform_losses.missing_with_atom(eta, q, d.name)
    return Evidence(abs(1 - got - missing), ROUNDING, f"eta = {eta:.4g}: gap {1 - got:.6g}")


rates_for_uniform_losses.mutant("omits the factor 1/2 of the quadratic phi")(quadratic_without_half)
rates_with_an_atom.mutant("omits the factor 1/2 of the quadratic phi")(quadratic_without_half)
rates_for_uniform_losses.mutant("returns the largest loss")(LARGEST_LOSS)
rates_with_an_atom.mutant("returns the largest loss")(LARGEST_LOSS)


CELLS = 1000


@claim(
    "Worst case of the absolute value and the hinge, without atoms in the reference distribution",
    id="E4c",
    verdict=Verdict.HOLDS,
    formula=r"P_* = 1\{f>\max f-c\}\,\nu + \nu(f\le\max f-c)\,\delta_{\arg\max f},\quad"
    r" \mathbb{E}_{P_*}[f]-\eta\left(\mathbb{E}_\nu[\phi(\zeta)]+\phi'(\infty)\,P_*^{\perp}(Z)\right) = R",
    assumptions="in D, mass that is singular to the reference distribution costs phi'(infinity) per unit; "
    "c = 2 eta for the absolute value, eta for the hinge; f(x) = x on [0, 1], discretized",
)
def density_and_atom(density: Callable[..., Density] = worst_case_density) -> Iterator[Evidence]:
    """A density plus an atom at max f has mass 1 and attains R, if D charges phi'(infinity) for the atom."""
    h = 1 / CELLS
    x = h * (np.arange(CELLS) + 0.5)
    for d, width in ((ABSOLUTE, 2.0), (HINGE, 1.0)):
        for eta in (0.05, 0.2, 0.33):
            worst = density(
                lambda x, i: x[:, 0],
                array([0.5])[:, None],
                Midpoints(2, 0.5),
                eta,
                d,
                at=array(x.tolist())[:, None],
                n_samples=CELLS,
                rng=rng(0),
            )
            zeta, atom = to_numpy(worst.density), float(worst.masses[0])
            where, note = float(worst.atoms[0, 0]), f"{d.name}, eta = {eta}"
            yield Evidence(abs(zeta.mean() + atom - 1), ROUNDING, f"{note}: the mass")
            # The error is about one cell, since the largest loss is at the midpoint of the last cell.
            yield Evidence(abs(atom - (1 - width * eta)), 1.5 * h, f"{note}: the atom has mass {atom:.4g}")
            cost = float(to_numpy(d.phi(array(zeta.tolist()))).mean()) + d.recession * atom
            reached = float((zeta * x).mean()) + atom * where - eta * cost
            exact = uniform_losses.optimal_value(eta, d.name)
            # The largest loss on the grid is half a cell below max f; midpoint sums of f are exact.
            yield Evidence(abs(reached - exact), h, f"{note}: {reached:.6f} is attained, R = {exact:.6f}")


@density_and_atom.mutant("omits the atom at the maximum")
def _(loss: Any, z: Array, ball: Ball, eta: float, d: Divergence, **rest: Any) -> Density:
    worst = worst_case_density(loss, z, ball, eta, d, **rest)
    return replace(worst, masses=0 * worst.masses)


@claim(
    "Worst case of Burg's and Hellinger's phi at a sharp peak",
    id="E4c-pole",
    verdict=Verdict.HOLDS,
    formula=r"P_*(\{\arg\max f\}) = 1-\mathbb{E}_\nu\left[\phi^{*\prime}\left(\phi'(\infty)"
    r"+\frac{f-\max f}{\eta}\right)\right]\quad\text{if this is positive}",
    assumptions="phi is differentiable with finite lim phi(t)/t; f = -u^(1/2) for Burg's phi and -u^(1/4) "
    "for Hellinger's, u uniform on [0, 1]; the expectation is then 2 eta and 8 eta^2, respectively",
)
def atom_of_a_smooth_phi(solve: Solver = worst_case) -> Iterator[Evidence]:
    """If lim phi(t)/t is finite, the worst case can have an atom at a sharp peak, even for smooth phi."""
    u, p = uniform_losses.dyadic()
    for k, root in ((0.0, 0.5), (0.5, 0.25)):
        d = cressie_read(k)
        for eta in (0.05, 0.1, 0.2, 0.3):
            s = solve(array((-(u**root)).tolist()), eta, d, p=array(p.tolist()))
            atom = 1 - (2 * eta if k == 0 else 8 * eta**2)
            near = float(to_numpy(s.weights)[u < 1e-30].sum())
            note = f"{d.name}, eta = {eta}"
            # The density has mass at most 1e-15 on u < 1e-30; the smallest node has f = max f - 1e-12.
            yield Evidence(abs(near - atom), 1e-10, f"{note}: {near:.6f} at the maximum, {atom:.6f} expected")
            value = _burg(eta) if k == 0 else _hellinger(eta)
            yield Evidence(abs(float(s.value) - value), 1e-11, f"{note}: the value {value:.6f}")


def _burg(eta: float) -> float:
    """The value -eta + eta E[-log(1 - s)] with s = 1 - u^(1/2)/eta."""
    return -eta + eta * (log(eta) + 0.5)


def _hellinger(eta: float) -> float:
    """The value -2 eta + eta E[s/(1 - s/2)] with s = 2 - u^(1/4)/eta, where E u^(-1/4) = 4/3."""
    return -4 * eta + 4 * eta**2 * 4 / 3


atom_of_a_smooth_phi.mutant("uses the entropic phi, for which lim phi(t)/t is infinite")(
    with_divergence(lambda d: cressie_read(1.0))
)
