"""Section 2: properties of the risk as a certainty equivalent, and the findings of Section 2.2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from math import exp, log, sqrt

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, to_numpy
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, indicator, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import bounded_loss, in_the_definition
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.solutions import Solver, solved
from phiball.verification.instances.solver_mutants import (
    best_case,
    even_on_the_support,
    quadratic_without_half,
    with_answer,
    with_divergence,
    with_eta,
    with_losses,
)
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import uniform_losses
from phiball.verification.oracles.exact_solver import solve_exactly

OCE = "Eq. (3b), optimized certainty equivalent"


property_claim = partial(
    claim, part_of="A8-bounds", verdict=Verdict.HOLDS, problem=problems(), d=divergences()
)


def value(solve: Solver, problem: InnerProblem, d: Divergence) -> float:
    """R as computed by the solver."""
    return float(solved(solve, problem, d).value)


@claim(
    f"{OCE}: bounds",
    id="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_{\nu}[f] \le R_\eta(f) \le \text{ess.sup}_{\nu}\,f",
    assumptions="any phi of Definition 1; f(z) is not a lower bound: if f(z') = -z'^2 and z = 0, R < f(z)",
    examples=150,
    problem=problems(),
    d=divergences(),
)
def risk_is_between_mean_and_maximum(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk lies between the mean and the essential supremum of the loss."""
    got, tolerance = value(solve, problem, d), value_tolerance(problem)
    mean = sum(q * v for q, v in zip(problem.probabilities, problem.f, strict=True))
    yield Evidence(mean - got, tolerance + ROUNDING * problem.size, "the mean is at most R")
    yield Evidence(got - max(problem.charged), tolerance, "R is at most the maximum")


@property_claim(
    f"{OCE}: translation",
    id="A8-translation",
    formula=r"R_\eta(f+c) = R_\eta(f)+c,\quad \mu^*(f+c)=\mu^*(f)+c,\quad \zeta^*(f+c)=\zeta^*(f)",
    c=st.sampled_from([1.0, -1.0, 1e3, -1e6, 0.1]),
)
def risk_follows_added_constants(
    problem: InnerProblem, d: Divergence, c: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Adding a constant to the loss adds it to the risk and does not change the worst case."""
    moved = replace(problem, f=tuple(v + c for v in problem.f))
    tolerance = value_tolerance(problem) + value_tolerance(moved)
    before, after = solved(solve, problem, d), solved(solve, moved, d)
    yield Evidence(abs(float(after.value) - float(before.value) - c), tolerance + ROUNDING * abs(c), "R")
    # The rounding error of f + c, divided by eta, changes the worst case of a smooth phi.
    slack = ROUNDING * (1 + (problem.size + moved.size) / problem.eta)
    if d.curvature1 == 1:
        errors = [
            abs(a - b) for a, b in zip(to_floats(before.weights), to_floats(after.weights), strict=True)
        ]
        yield Evidence(max(errors), slack, "the worst case")


@property_claim(
    f"{OCE}: scaling",
    id="A8-scaling",
    formula=r"R_{c\eta}(cf) = c\,R_\eta(f),\quad c>0",
    c=powers_of_ten(-6.0, 6.0),
)
def risk_is_homogeneous(
    problem: InnerProblem, d: Divergence, c: float, solve: Solver = worst_case
) -> Evidence:
    """Multiplying the loss and eta by c multiplies the risk by c."""
    scaled = InnerProblem(tuple(c * v for v in problem.f), c * problem.eta, problem.p)
    error = abs(value(solve, scaled, d) - c * value(solve, problem, d))
    return Evidence(error, 2 * value_tolerance(scaled))


@property_claim(
    f"{OCE}: eta",
    id="A8-eta",
    formula=r"\eta\le\eta' \;\Rightarrow\; R_{\eta'}(f)\le R_\eta(f),\qquad"
    r" \eta\mapsto R_\eta(f)\ \text{convex}",
    assumptions="R is a supremum of affine nonincreasing functions of eta, since D >= 0",
    factor=powers_of_ten(-3.0, 3.0),
)
def risk_falls_with_eta(
    problem: InnerProblem, d: Divergence, factor: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk is nonincreasing and convex in eta."""
    other = replace(problem, eta=factor * problem.eta)
    risk, other_risk = value(solve, problem, d), value(solve, other, d)
    larger, smaller = (other, problem) if factor > 1 else (problem, other)
    tolerance = 2 * value_tolerance(larger)
    rise = other_risk - risk if factor > 1 else risk - other_risk
    yield Evidence(rise, tolerance, f"R falls from eta = {smaller.eta:.6g} to {larger.eta:.6g}")
    middle = replace(problem, eta=(problem.eta + other.eta) / 2)
    yield Evidence(value(solve, middle, d) - (risk + other_risk) / 2, tolerance, "R is convex in eta")


@property_claim(
    f"{OCE}: monotone",
    id="A8-monotone",
    formula=r"f\le g\ \text{almost surely} \;\Rightarrow\; R_\eta(f)\le R_\eta(g)",
    rise=st.lists(st.sampled_from([0.0, 0.5, 1.0, 0.1]), min_size=10, max_size=10),
)
def risk_is_monotone(
    problem: InnerProblem, d: Divergence, rise: list[float], solve: Solver = worst_case
) -> Evidence:
    """If f <= g almost surely, then R(f) <= R(g)."""
    unit = problem.spread or problem.eta
    above = replace(problem, f=tuple(v + unit * r for v, r in zip(problem.f, rise, strict=False)))
    return Evidence(value(solve, problem, d) - value(solve, above, d), 2 * value_tolerance(above))


@claim(
    f"{OCE}: convex in theta",
    id="A8-convex",
    part_of="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"f_\theta(z)\ \text{convex in}\ \theta \;\Rightarrow\;"
    r" R_\eta(f_\theta)\ \text{convex in}\ \theta",
    assumptions="checked for f_theta(z_i) = abs(a_i theta - b_i) and its square",
    a=st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    b=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    thetas=st.tuples(st.floats(-4, 4, width=32), st.floats(-4, 4, width=32)),
    power=st.sampled_from([1, 2]),
    eta=powers_of_ten(-3.0, 3.0),
    d=divergences(),
)
def risk_is_convex_in_theta(
    a: list[int],
    b: list[int],
    thetas: tuple[float, float],
    power: int,
    eta: float,
    d: Divergence,
    solve: Solver = worst_case,
) -> Evidence:
    """The risk of a loss that is convex in theta is convex in theta."""

    def at(theta: float) -> InnerProblem:
        return InnerProblem(tuple(abs(u * theta - v) ** power for u, v in zip(a, b, strict=False)), eta)

    low, high = at(thetas[0]), at(thetas[1])
    excess = value(solve, at(sum(thetas) / 2), d) - (value(solve, low, d) + value(solve, high, d)) / 2
    return Evidence(excess, 2 * max(value_tolerance(low), value_tolerance(high)))


# --- Mutants --------------------------------------------------------------------------------------


risk_is_between_mean_and_maximum.mutant("takes the best case")(best_case)
risk_is_convex_in_theta.mutant("takes the best case")(best_case)
risk_follows_added_constants.mutant("clips losses at zero")(
    with_losses(lambda losses: array_namespace(losses).clip(losses, 0.0, None))
)
risk_is_homogeneous.mutant("sets eta to one")(with_eta(lambda eta: 1.0))
risk_falls_with_eta.mutant("inverts eta")(with_eta(lambda eta: 1 / eta))
risk_is_monotone.mutant("subtracts a multiple of the largest loss")(
    with_answer(value=lambda s, f: s.value - 1.5 * array_namespace(f).max(f))
)


# --- Finding 1: the indicator ---------------------------------------------------------------------


@claim(
    "Section 2.2, finding 1",
    id="E6-indicator",
    verdict=Verdict.HOLDS,
    formula=r"\zeta^*_{\alpha,\eta} = \zeta^*_{\alpha,\eta'},\qquad \zeta^*_{1,\eta}=1,\qquad"
    r" \alpha\le\alpha' \;\Rightarrow\; \mathbb{E}[f\zeta^*_\alpha]\ge\mathbb{E}[f\zeta^*_{\alpha'}]",
    examples=100,
    problem=problems(),
    factor=powers_of_ten(-3.0, 3.0),
    alphas=st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
)
def indicator_ignores_eta(
    problem: InnerProblem, factor: float, alphas: tuple[float, float], solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Indicator: the worst case ignores eta, is nu for alpha = 1, and has a larger loss for smaller alpha."""
    distribution = problem.probabilities
    at_one = to_floats(solved(solve, problem, indicator(1.0)).weights)
    off = max(abs(w - q) for w, q in zip(at_one, distribution, strict=True))
    yield Evidence(off, ROUNDING, "the worst case at alpha = 1 is the reference distribution")
    low, high = sorted(alphas)
    weights = to_floats(solved(solve, problem, indicator(low)).weights)
    rescaled = to_floats(solved(solve, replace(problem, eta=factor * problem.eta), indicator(low)).weights)
    off = max(abs(a - b) for a, b in zip(weights, rescaled, strict=True))
    yield Evidence(off, ROUNDING, f"the weights at eta = {problem.eta:.4g} and {factor * problem.eta:.4g}")
    larger = to_floats(solved(solve, problem, indicator(high)).weights)
    drop = sum((a - b) * v for a, b, v in zip(larger, weights, problem.f, strict=True))
    note = f"the loss does not fall from alpha = {high:.4g} to {low:.4g}"
    yield Evidence(drop, value_tolerance(problem), note)


@indicator_ignores_eta.mutant("swaps alpha and 1 - alpha")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    assert d.parameter is not None
    return worst_case(losses, eta, indicator(max(0.01, 1 - d.parameter)), p=p)


# --- Finding 2: the entropy -----------------------------------------------------------------------


@claim(
    "Section 2.2, finding 2",
    id="E6-entropic",
    verdict=Verdict.HOLDS,
    formula=r"e^{-r/\eta} \le \zeta^* \le e^{r/\eta},\qquad"
    r" P_*(f\le\max f-t) \le \frac{e^{-t/\eta}}{\nu(f=\max f)},\qquad"
    r" \frac{\zeta^*(\omega)}{\zeta^*(\omega')} = e^{(f(\omega)-f(\omega'))/\eta}",
    assumptions="r is the range of f; the limits for large and for small eta follow from these bounds",
    examples=100,
    problem=problems(),
    share=st.floats(0, 1),
)
def entropy_from_uniform_to_peak(
    problem: InnerProblem, share: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Entropic: the worst case is nearly uniform for large eta, and near the largest losses for small eta."""
    w = to_floats(solved(solve, problem, ENTROPIC).weights)
    rows = [(v, q, x / q) for v, q, x in zip(problem.f, problem.probabilities, w, strict=True) if q]
    top, ratio = max(problem.charged), problem.spread / problem.eta
    # The absolute rounding error of f/eta is a relative error of exp(f/eta).
    slack = ROUNDING * (1 + problem.size / problem.eta)
    largest, least = max(z for _, _, z in rows), min(z for _, _, z in rows)
    if ratio < 700:
        yield Evidence(largest * exp(-ratio) - 1, slack, "zeta is at most exp(range/eta)")
        yield Evidence(1 - least * exp(ratio), slack, "zeta is at least exp(-range/eta)")
    t = share * problem.spread
    low = sum(q * z for v, q, z in rows if v <= top - t)
    at_top = sum(q for v, q, _ in rows if v == top)
    yield Evidence(low - exp(-t / problem.eta) / at_top, slack, f"the mass where f <= max f - {t:.4g}")
    for v, _, z in rows:
        if z > 1e-290:
            error = abs(log(largest / z) - (top - v) / problem.eta)
            yield Evidence(error, slack * (1 + abs(log(z))), "the ratio of two densities")


entropy_from_uniform_to_peak.mutant("ignores eta")(with_eta(lambda eta: 1.0))
entropy_from_uniform_to_peak.mutant("uses the quadratic phi")(with_divergence(lambda d: QUADRATIC))


# --- Finding 3: the quadratic ---------------------------------------------------------------------

ETAS = (0.1, 0.03, 0.01, 0.003, 0.001, 1e-4)


def _uniform(eta: float, d: Divergence, solve: Solver) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of U[0, 1] and the worst-case density ratios of f(x) = x at the nodes."""
    breaks = (uniform_losses.optimal_multiplier(eta, "quadratic"),) if d is QUADRATIC else ()
    x, p = uniform_losses.graded(breaks)
    w = to_numpy(solve(array(x.tolist()), eta, d, p=array(p.tolist())).weights)
    return x, w / p


@claim(
    "Section 2.2, finding 3",
    id="E6-quadratic",
    verdict=Verdict.HOLDS,
    formula=r"f\sim U[0,G]:\quad \max\zeta^*_{\text{quad}} = \sqrt{\frac{2G}{\eta}},\quad"
    r" \max\zeta^*_{\text{entr}} = \frac{G/\eta}{1-e^{-G/\eta}},\quad"
    r" \nu(\zeta^*_{\text{quad}}>0)=\sqrt{\frac{2\eta}{G}},\quad \zeta^*_{\text{entr}}>0",
    assumptions="eta <= G/2; G = 1",
)
def quadratic_is_sparse(solve: Solver = worst_case) -> Iterator[Evidence | Curve]:
    """Quadratic: the largest density grows like eta^(-1/2), not 1/eta (entropic); the support shrinks."""
    tops: dict[str, list[float]] = {"entropic": [], "quadratic": []}
    support, least = [], []
    for eta in ETAS:
        for d in (ENTROPIC, QUADRATIC):
            x, zeta = _uniform(eta, d, solve)
            tops[d.name].append(float(zeta[-1]))
            exact = uniform_losses.largest_density(eta, d.name)
            # The last node is within 2^-46 of 1, where f is largest; the slope of zeta is at most zeta/eta.
            note = f"{d.name}, eta = {eta}: largest density {zeta[-1]:.6g}"
            yield Evidence(abs(zeta[-1] / exact - 1), ROUNDING * (1 + 2 / eta), note)
            if d is QUADRATIC:
                support.append(1 - float(np.min(x[zeta > 0])))
            elif eta >= 0.003:  # exp(-1/eta) does not underflow
                least.append(float(zeta.min()))
    yield Evidence(-min(least), 0.0, "the entropic worst case is positive everywhere")
    labels = ("eta", "largest density ratio")
    slower = Curve(
        "Largest density, quadratic phi", *labels, "entropic phi", ETAS, tuple(tops["quadratic"]),
        tuple(uniform_losses.largest_density(eta, "entropic") for eta in ETAS),
    )  # fmt: skip
    yield slower
    yield slower.below_bound()
    yield slower.exactly(-0.5, 1e-9)  # a pure power
    faster = Curve(
        "Largest density, entropic phi", *labels, "1/(eta (1 - exp(-1/eta)))", ETAS, tuple(tops["entropic"]),
        slower.bound,
    )  # fmt: skip
    yield faster
    yield faster.exactly(-1.0, 1e-3)  # 1 - exp(-1/eta) is within 5e-5 of 1 for eta <= 0.1
    sparse = Curve(
        "Support, quadratic phi", "eta", "fraction of the domain", "sqrt(2 eta)", ETAS, tuple(support),
        tuple(sqrt(2 * eta) for eta in ETAS),
    )  # fmt: skip
    yield sparse
    # The first node is above mu by at most 1/200 of the quadrature panel that starts at mu.
    yield sparse.exactly(0.5, 5e-3)
    yield sparse.below_bound(ROUNDING)


quadratic_is_sparse.mutant("uses the entropic phi for the quadratic")(with_divergence(lambda d: ENTROPIC))
quadratic_is_sparse.mutant("drops the factor 1/2 of the quadratic")(quadratic_without_half)


# --- Finding 4: the absolute value and the hinge --------------------------------------------------


@claim(
    "Section 2.2, finding 4",
    id="E6-kinked",
    verdict=Verdict.CORRECTED,
    formula=r"\zeta^*(\omega)\in\{0,1\}",
    quote=r"the worst-case distributions here are constructed using histograms with equal weights assigned "
    r"to different support points",
    correction="the largest loss also has an atom, with the mass of all points whose weight is 0. As eta "
    "tends to 0, the atom becomes the whole worst case: the points with equal weights have the mass "
    "nu(max f - c < f < max f), which tends to 0 (c is 2 eta for the absolute value, eta for the hinge)",
    assessment=Assessment(
        Kind.FALSE,
        Consequence.RESULT,
        "The densities of Examples 4 and 5 omit the atom at the maximum, which dominates for small eta.",
        follows=("E4", "E5"),
    ),
    corrected=r"\zeta^*(\omega) = 1\ \text{where}\ \max f>f(\omega)>\max f-c,\quad"
    r" P_*(f=\max f) = \nu(f=\max f)+\nu(f\le\max f-c),\quad c = 2\eta\ \text{or}\ \eta",
    problem=problems(),
    d=st.sampled_from([ABSOLUTE, HINGE]),
)
def equal_weights_and_an_atom(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Absolute value and hinge: the density is 0 or 1 where f < max f; all other mass is at max f."""
    c = (2 if d is ABSOLUTE else 1) * problem.eta
    top = max(problem.charged)
    rows = list(
        zip(problem.f, problem.probabilities, to_floats(solved(solve, problem, d).weights), strict=True)
    )
    # Rounding decides whether a loss near max f - c is above it; such losses are not checked.
    ambiguous = [abs(v - (top - c)) <= ROUNDING * (problem.size + c) for v, _, _ in rows]
    for (v, q, w), skipped in zip(rows, ambiguous, strict=True):
        if v < top and not skipped:
            yield Evidence(abs(w - (q if v > top - c else 0.0)), ROUNDING, f"the weight at f = {v}")
    if not any(ambiguous):
        moved = sum(q for v, q, _ in rows if v <= top - c)
        at_top = sum(q for v, q, _ in rows if v == top)
        atom = sum(w for v, _, w in rows if v == top)
        yield Evidence(abs(atom - at_top - moved), ROUNDING, "the mass of the maximum")


@equal_weights_and_an_atom.counterexample(
    margin=0.33, meets=lambda: chain(in_the_definition(ABSOLUTE), bounded_loss((0.0, 0.75, 1.0)))
)
def _unequal() -> Evidence:
    f, eta = (0.0, 0.75, 1.0), 0.2
    w = solve_exactly(f, eta, "absolute").weights
    shown = ", ".join(str(v) for v in w)
    return Evidence(
        float(w[2] - w[1]),
        0.0,
        f"phi = abs(x - 1) on [0, inf), f = (0, 3/4, 1) with probability 1/3 each, eta = {eta}: the weights "
        f"are {shown}; the mass 1/3 of f = 0 < 1 - 2 eta has moved to f = 1",
    )


equal_weights_and_an_atom.mutant("shares the mass equally over the support")(even_on_the_support)
equal_weights_and_an_atom.mutant("swaps the absolute value and the hinge")(
    with_divergence(lambda d: HINGE if d is ABSOLUTE else ABSOLUTE)
)
