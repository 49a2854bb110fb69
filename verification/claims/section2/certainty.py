"""Section 2 of the paper: what makes the risk an optimized certainty equivalent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from phiball.backends import array_namespace
from phiball.refimpl import Divergence, worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import numbers
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.faulty_solvers import best_case, with_answer, with_eta, with_losses
from phiball.verification.instances.solutions import Solver, solved
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance

OCE = "Eq. (3b), optimized certainty equivalent"


def value(solve: Solver, problem: Problem, d: Divergence) -> float:
    """R, as the solver gives it."""
    return float(solved(solve, problem, d).value)


@claim(
    f"{OCE}: bounds",
    id="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_{\nu}[f] \le R_\eta(f) \le \text{ess.sup}_{\nu}\,f",
    assumptions="any phi of the Definition; f(z) itself is no lower bound: f = -z'^2 around 0 has R < f(0)",
    examples=150,
    problem=problems(),
    d=divergences(),
)
def risk_is_between_mean_and_maximum(
    problem: Problem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk lies between the mean and the essential supremum of the loss."""
    got, tolerance = value(solve, problem, d), value_tolerance(problem)
    mean = sum(q * v for q, v in zip(problem.probabilities, problem.f, strict=True))
    yield Evidence(mean - got, tolerance + ROUNDING * problem.size, "the mean is at most R")
    yield Evidence(got - max(problem.charged), tolerance, "R is at most the maximum")


@claim(
    f"{OCE}: translation",
    id="A8-translation",
    part_of="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"R_\eta(f+c) = R_\eta(f)+c,\quad \mu^*(f+c)=\mu^*(f)+c,\quad \zeta^*(f+c)=\zeta^*(f)",
    problem=problems(),
    d=divergences(),
    c=st.sampled_from([1.0, -1.0, 1e3, -1e6, 0.1]),
)
def risk_follows_added_constants(
    problem: Problem, d: Divergence, c: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A constant added to the loss is added to the risk, and the worst case stays."""
    moved = replace(problem, f=tuple(v + c for v in problem.f))
    tolerance = value_tolerance(problem) + value_tolerance(moved)
    before, after = solved(solve, problem, d), solved(solve, moved, d)
    yield Evidence(abs(float(after.value) - float(before.value) - c), tolerance + ROUNDING * abs(c), "R")
    # f + c is rounded at the size of f and c: in units of eta that moves the worst case of a smooth phi.
    slack = ROUNDING * (1 + (problem.size + moved.size) / problem.eta)
    if d.curvature1 == 1:
        errors = [abs(a - b) for a, b in zip(numbers(before.weights), numbers(after.weights), strict=True)]
        yield Evidence(max(errors), slack, "the worst case")


@claim(
    f"{OCE}: scaling",
    id="A8-scaling",
    part_of="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"R_{c\eta}(cf) = c\,R_\eta(f),\quad c>0",
    problem=problems(),
    d=divergences(),
    c=powers_of_ten(-6.0, 6.0),
)
def risk_is_homogeneous(problem: Problem, d: Divergence, c: float, solve: Solver = worst_case) -> Evidence:
    """The loss and eta multiplied by c multiply the risk by c."""
    scaled = Problem(tuple(c * v for v in problem.f), c * problem.eta, problem.p)
    error = abs(value(solve, scaled, d) - c * value(solve, problem, d))
    return Evidence(error, 2 * value_tolerance(scaled))


@claim(
    f"{OCE}: eta",
    id="A8-eta",
    part_of="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"\eta\le\eta' \;\Rightarrow\; R_{\eta'}(f)\le R_\eta(f),\qquad"
    r" \eta\mapsto R_\eta(f)\ \text{convex}",
    assumptions="R is a supremum of functions of eta that are affine and not increasing, as D >= 0",
    problem=problems(),
    d=divergences(),
    factor=powers_of_ten(-3.0, 3.0),
)
def risk_falls_with_eta(
    problem: Problem, d: Divergence, factor: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The risk falls as eta grows, and is convex in eta."""
    other = replace(problem, eta=factor * problem.eta)
    risk, other_risk = value(solve, problem, d), value(solve, other, d)
    larger, smaller = (other, problem) if factor > 1 else (problem, other)
    tolerance = 2 * value_tolerance(larger)
    rise = other_risk - risk if factor > 1 else risk - other_risk
    yield Evidence(rise, tolerance, f"from eta = {smaller.eta:.6g} to {larger.eta:.6g}")
    middle = replace(problem, eta=(problem.eta + other.eta) / 2)
    yield Evidence(value(solve, middle, d) - (risk + other_risk) / 2, tolerance, "convex")


@claim(
    f"{OCE}: monotone",
    id="A8-monotone",
    part_of="A8-bounds",
    verdict=Verdict.HOLDS,
    formula=r"f\le g\ \text{almost surely} \;\Rightarrow\; R_\eta(f)\le R_\eta(g)",
    problem=problems(),
    d=divergences(),
    rise=st.lists(st.sampled_from([0.0, 0.5, 1.0, 0.1]), min_size=10, max_size=10),
)
def risk_is_monotone(
    problem: Problem, d: Divergence, rise: list[float], solve: Solver = worst_case
) -> Evidence:
    """A loss that is larger everywhere has a larger risk."""
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
    assumptions="here f_theta(z_i) = abs(a_i theta - b_i) and its square",
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

    def at(theta: float) -> Problem:
        return Problem(tuple(abs(u * theta - v) ** power for u, v in zip(a, b, strict=False)), eta)

    low, high = at(thetas[0]), at(thetas[1])
    over = value(solve, at(sum(thetas) / 2), d) - (value(solve, low, d) + value(solve, high, d)) / 2
    return Evidence(over, 2 * max(value_tolerance(low), value_tolerance(high)))


# --- Faults ---------------------------------------------------------------------------------------


risk_is_between_mean_and_maximum.mutant("takes the best case")(best_case)
risk_is_convex_in_theta.mutant("takes the best case")(best_case)
risk_follows_added_constants.mutant("cuts losses off at zero")(
    with_losses(lambda losses: array_namespace(losses).clip(losses, 0.0, None))
)
risk_is_homogeneous.mutant("keeps eta at one")(with_eta(lambda eta: 1.0))
risk_falls_with_eta.mutant("inverts eta")(with_eta(lambda eta: 1 / eta))
risk_is_monotone.mutant("penalises the size of the losses")(
    with_answer(value=lambda s, f: s.value - 1.5 * array_namespace(f).max(f))
)
