"""Section 3: the gradient, its estimators, and the cost of the estimators and of Algorithm 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from math import log2
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Divergence,
    RegularizedLoss,
    bisection,
    cressie_read,
    worst_case,
)
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.refimpl.sampling import signed_weights
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import bounded_loss, each, in_the_definition
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import PAPER_DIVERGENCES, divergences
from phiball.verification.instances.enumeration import ListedDistribution, batch_of_all_draws
from phiball.verification.instances.printed_algorithms import (
    Algorithm,
    Output,
    algorithm2,
    corrected_bracket,
    iterations,
    printed_iterations,
)
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import halves_by_one
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles import definitions, row_solver
from phiball.verification.oracles.exact_solver import solve_exactly


def gradient_in_losses(problem: InnerProblem, d: Divergence) -> list[float]:
    """The gradient of R in the losses, by autograd for torch arrays, else as the worst-case weights."""
    losses = problem.losses
    if not hasattr(losses, "requires_grad_"):
        return to_floats(worst_case(losses, problem.eta, d, p=problem.distribution).weights)
    losses.requires_grad_()
    worst_case(losses, problem.eta, d, p=problem.distribution).value.backward()
    return to_floats(losses.grad)


@claim(
    "Section 3, Danskin's theorem",
    id="A8-danskin",
    verdict=Verdict.HOLDS,
    formula=r"\nabla F(\theta) = \mathbb{E}_{z\sim\hat P}\,\mathbb{E}_{z'\sim\bar\gamma_z}"
    r"\left[\nabla f_\theta(z')\right]",
    assumptions="a subgradient if the worst case is not unique",
    examples=80,
    problem=problems(max_size=6),
    d=divergences(),
    direction=st.lists(st.sampled_from([1.0, 0.0, -1.0, 0.5]), min_size=6, max_size=6),
    size=st.sampled_from([1.0, 1e-2, 1e-4]),
)
def danskin_gradient(
    problem: InnerProblem,
    d: Divergence,
    direction: list[float],
    size: float,
    gradient: Callable[[InnerProblem, Divergence], list[float]] = gradient_in_losses,
) -> Iterator[Evidence]:
    """The gradient of the risk is the expected gradient of the loss under the worst case."""
    w = gradient(problem, d)
    exact = (problem.eta, d.family or "", d.parameter, problem.p)
    risk = solve_exactly(problem.f, *exact).value
    h = size * (problem.spread or problem.eta)
    for sign in (1, -1):
        moved = replace(
            problem, f=tuple(v + sign * h * g for v, g in zip(problem.f, direction, strict=False))
        )
        moved_risk = solve_exactly(moved.f, *exact).value
        # R is convex in f, so w is a subgradient if and only if the tangent is below R on both sides.
        tangent = sum(x * (b - a) for x, a, b in zip(w, problem.f, moved.f, strict=True))
        rise = definitions.exact_difference(moved_risk, risk)
        # The step moved.f - problem.f has the rounding error of f.
        yield Evidence(tangent - rise, ROUNDING * h + 2.0**-50 * problem.size, f"a step of {sign * h:.4g}")


danskin_gradient.mutant("averages under the reference distribution")(
    lambda problem, d: list(problem.probabilities)
)


Levels: TypeAlias = Callable[[int], tuple[float, ...]]
Cost: TypeAlias = Callable[[int], float]
Weights: TypeAlias = Callable[..., tuple[Array, Array]]
Objective: TypeAlias = Callable[..., RegularizedLoss]

SLOPES = np.array([1.0, -2.0, 0.5])  # gradients in theta at the points 0, 1 and 2


def _probabilities(level: int) -> tuple[float, ...]:
    return RTMLMC(level).probabilities


def _evaluations(level: int) -> float:
    return RTMLMC(level).evaluations


@claim(
    "Section 3.1, levels",
    id="D1",
    verdict=Verdict.HOLDS,
    formula=r"P(\ell) = \frac{2^{-\ell}}{2 - 2^{-L}}, \quad \sum_{\ell=0}^{L} P(\ell) = 1",
    assumptions="L >= 0",
    examples=31,
    level=st.integers(0, 30),
)
def levels_are_a_distribution(level: int, distribution: Levels = _probabilities) -> Iterator[Evidence]:
    """P(l) = 2^-l/(2 - 2^-L), l = 0, ..., L, are probabilities, each half the previous one."""
    p = distribution(level)
    yield Evidence(abs(sum(p) - 1), 2.0**-48, "the sum")
    yield Evidence(max((abs(a - 2 * b) for a, b in pairwise(p)), default=0.0), 2.0**-48, "P(l) = 2 P(l + 1)")
    yield Evidence(abs(len(p) - level - 1), 0.0, "the number of levels")


levels_are_a_distribution.mutant("does not truncate")(
    lambda level: tuple(2.0 ** -(k + 1) for k in range(level + 1))
)


@claim(
    "Section 3.1, cost",
    id="D2",
    verdict=Verdict.CORRECTED,
    formula=r"\sum_{\ell=0}^{L} P(\ell)\, 2^\ell = \frac{L}{2 - 2^{-L}}",
    assumptions="one data point, whose level is drawn from P",
    quote=r"the (expected) number of samples for RT-MLMC is $\nout_L\cdot \frac{L}{2 -2^{-L}}=\cO(L)$.",
    correction="L + 1 in place of L; the order O(L) is unchanged",
    assessment=Assessment(
        Kind.CONSTANT,
        Consequence.NONE,
        "There are L + 1 levels, and each contributes 1/(2 - 2^-L) samples on average.",
    ),
    corrected=r"\sum_{\ell=0}^{L} P(\ell)\, 2^\ell = \frac{L + 1}{2 - 2^{-L}}",
    examples=31,
    level=st.integers(0, 30),
)
def expected_samples(level: int, cost: Cost = _evaluations) -> Evidence:
    """On average, RT-MLMC draws (L + 1)/(2 - 2^-L) perturbed points per data point."""
    exact = sum(p * 2.0**k for k, p in enumerate(_probabilities(level)))
    return Evidence(abs(cost(level) - exact), 2.0**-44 * exact)


@expected_samples.counterexample(
    margin=0.5, meets=lambda: each(("P(l) are probabilities", abs(sum(_probabilities(1)) - 1) < 2.0**-48))
)
def _printed_cost() -> Evidence:
    printed, exact = 1 / (2 - 2.0**-1), _evaluations(1)
    return Evidence(
        exact - printed,
        0.0,
        f"L = 1: one sample with probability 2/3 and two with probability 1/3, {exact:.4f} on average; the "
        f"printed number is {printed:.4f}",
    )


expected_samples.mutant("the printed formula")(lambda level: level / (2 - 2.0**-level))


@claim(
    "Eq. (13b), expectation",
    id="D3",
    verdict=Verdict.CORRECTED,
    formula=r"\mathbb{E}\, V^{RT} = \sum_{\ell=0}^{L} \mathbb{E}\, G^\ell = \mathbb{E}\, \nabla "
    r"\widetilde{R}\left(\theta; \{z_i'\}_{i \le 2^\ell}\right) = \mathbb{E}\, V^{SG}",
    assumptions="the halves of a level are solved in the same way as the level below",
    quote=r"$\sum_{\ell=0}^L\bE_{\zeta^{\ell}}[G^{\ell}(\theta, \zeta^{\ell})] = \bE_{z\sim\hP} "
    r"\bE_{\{z_i'\}_{i\in[2^\ell]}\sim \nu_z}$",
    correction="2^L in place of 2^l; and define G^0 = g^0, since Eq. (12) is undefined for l = 0",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The sum over l telescopes to level L. At l = 0, Eq. (12) would split a single point into halves.",
    ),
    corrected=r"\mathbb{E}\, V^{RT} = \mathbb{E}\, \nabla \widetilde{R}\left(\theta; \{z_i'\}_{i \le "
    r"2^L}\right) = \mathbb{E}\, V^{SG}, \quad G^0 = g^0",
    examples=40,
    f=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=3),
    eta=powers_of_ten(-2, 2),
    phi=st.sampled_from(PAPER_DIVERGENCES),
    level=st.integers(0, 2),
)
def same_expectation(
    f: list[float], eta: float, phi: Divergence, level: int, objective: Objective = RegularizedLoss
) -> Iterator[Evidence]:
    """RT-MLMC and SG have the same expected value and gradient, namely those of level L."""
    exact = _level(f, eta, phi, level)
    # The rounding error of f/eta carries over to the weights.
    rounding = 2.0**-42 * (1 + max(map(abs, f)) + max(map(abs, f)) / eta)
    for estimator in (SG(level), RTMLMC(level), RTMLMC(level, "stratified")):
        value, gradient = _enumerated(objective(ListedDistribution(len(f)), eta, phi, estimator), f, level)
        yield Evidence(abs(value - exact[0]), rounding, f"{estimator}: the value")
        if phi.family in ("entropic", "quadratic"):  # otherwise the weights need not be unique
            yield Evidence(abs(gradient - exact[1]), rounding, f"{estimator}: the gradient")


def _level(f: list[float], eta: float, phi: Divergence, level: int) -> tuple[float, float]:
    """The mean value and gradient over all draws of 2^level points, by closed forms."""
    picks = row_solver.draws(len(f), 2**level)
    value, weights = row_solver.solve_closed_form(np.array(f)[picks], eta, phi.family or "", phi.parameter)
    return float(value.mean()), float((weights * SLOPES[picks]).sum(axis=-1).mean())


def _enumerated(made: RegularizedLoss, f: list[float], level: int) -> tuple[float, float]:
    """The expected objective and gradient of `made`, by enumeration of all draws and levels."""
    codes, generator = batch_of_all_draws(len(f), level)

    def loss(x: Array, i: Array) -> Array:
        xp = array_namespace(x)
        return xp.take(xp.asarray(f, dtype=x.dtype), xp.astype(x[:, 0], xp.int64))

    drawn = made.points(loss, array(codes), rng=generator)
    gradient = to_numpy(drawn.weights) @ SLOPES[to_numpy(drawn.points)[:, 0].astype(int)]
    return float(drawn.value), float(gradient)


def rescaled(weight: Callable[[Any], float]) -> type[RTMLMC]:
    """RT-MLMC with `weight(group)` in place of the weight 1/P(l) of each group."""

    class Rescaled(RTMLMC):
        def assign_levels(self, n: int, rng: Any, *, like: Array) -> Any:
            groups = super().assign_levels(n, rng, like=like)
            return [replace(group, weight=weight(group)) for group in groups]

    return Rescaled


@same_expectation.counterexample(
    margin=0.4, meets=lambda: chain(in_the_definition(ENTROPIC), bounded_loss((0.0, 1.0)))
)
def _without_level_zero() -> Evidence:
    without_zero = rescaled(lambda group: float(group.weight) if group.level else 0.0)
    f = [0.0, 1.0]
    exact = _level(f, 1.0, ENTROPIC, 1)[0]
    rest = _enumerated(RegularizedLoss(ListedDistribution(2), 1.0, ENTROPIC, without_zero(1)), f, 1)[0]
    return Evidence(
        exact - rest,
        0.0,
        f"f = (0, 1) with probability 1/2 each, entropic phi, eta = L = 1: F^1 = 1/4 + log((1 + e)/2)/2 = "
        f"{exact:.4f}; without level 0, which contributes E f = 1/2, the sum is {rest:.4f}",
    )


@same_expectation.mutant("omits 1/P(l)")
def _(distribution: ListedDistribution, eta: float, phi: Divergence, estimator: Any) -> RegularizedLoss:
    wrong = rescaled(lambda _: 1.0)(estimator.level) if isinstance(estimator, RTMLMC) else estimator
    return RegularizedLoss(distribution, eta, phi, wrong)


@claim(
    "Eq. (18)",
    id="D3-entropic",
    verdict=Verdict.HOLDS,
    formula=r"G^\ell = \nabla_\theta \left[U_{1:2^\ell} - \frac{1}{2} U_{1:2^{\ell-1}} - \frac{1}{2} "
    r"U_{2^{\ell-1}+1:2^\ell}\right], \quad U = \eta \log \frac{1}{n} \sum_j e^{f_j/\eta}",
    assumptions="phi(x) = x log x - x + 1; G^0 = g^0",
    examples=200,
    f=st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    eta=powers_of_ten(-2, 2),
    level=st.integers(0, 3),
)
def log_sum_exp_differences(
    f: list[float], eta: float, level: int, weights: Weights = signed_weights
) -> Iterator[Evidence]:
    """For the entropic phi, G^l is the gradient of a difference of log-sum-exp terms."""
    n = 2**level
    v = np.array(f[:n])
    value, gamma = row_solver.solve_closed_form(v, eta, "entropic")
    if n > 1:
        parts, halves = row_solver.solve_closed_form(v.reshape(2, -1), eta, "entropic")
        value, gamma = value - parts.mean(), gamma - halves.ravel() / 2
    xp = active().namespace
    got, w = weights(xp.asarray(v), eta, ENTROPIC, telescoping=True)
    rounding = 2.0**-44 * (1 + 1 / eta) * (1 + np.abs(v).max())
    yield Evidence(abs(float(got) - value), rounding, "the value")
    yield Evidence(float(np.abs(to_numpy(w) - gamma).max()), rounding, "the weights")


log_sum_exp_differences.mutant("weighs the halves by one")(halves_by_one)


CENTRED = cressie_read(2)  # (x - 1)^2/2, kappa = 1
ETA = 0.1


class QueryCounter:
    """phi = (x - 1)^2/2, with a count of the evaluations of (phi')^-1."""

    def __init__(self) -> None:
        self.queries = 0
        self.phi = replace(CENTRED, name="counted", dconj=self._counted, family=None, parameter=None)

    def _counted(self, s: Array) -> Array:
        self.queries += int(np.prod(s.shape))
        return CENTRED.dconj(s)


def losses(m: int) -> Any:
    """m equally spaced losses in [0, 1], including both ends, in random order."""
    return np.random.default_rng(m).permutation(np.linspace(0, 1, m)) if m > 1 else np.ones(1)


def queries_of_algorithm2(f: Any, eps: float, algorithm: Algorithm = algorithm2) -> tuple[int, int]:
    """The number of evaluations of (phi')^-1 by Algorithm 2 at precision eps, and T."""
    counter, rows = QueryCounter(), array(f)
    low, high = corrected_bracket(rows, ETA, counter.phi)
    T = iterations(high - low, 1.0, ETA, eps)
    algorithm(rows, ETA, counter.phi, T, (low, high))
    return counter.queries, T


def queries_of_bisection(f: Any, eps: float, solve: Solver) -> int:
    """The number of evaluations of (phi')^-1 by the library's bisection, up to a duality gap of eps."""
    counter = QueryCounter()
    solve(array(f), ETA, counter.phi, tol=eps)
    return counter.queries


SIZES = (4, 16, 64, 256, 1024)
PRECISIONS = tuple(10.0**-k for k in range(1, 9))
BITS = tuple(log2(1 / eps) for eps in PRECISIONS)


@claim(
    "Proposition 2 (IV)",
    id="C9",
    verdict=Verdict.HOLDS,
    formula=r"\text{cost} = O(m T) = O\left(m \log \frac{1}{\epsilon}\right)",
    assumptions="cost counts queries, the evaluations of a loss; phi = (x - 1)^2/2; f in [0, 1]; eta = 0.1",
)
def cost_of_algorithm2(
    algorithm: Algorithm = algorithm2, solve: Solver = bisection
) -> Iterator[Evidence | Curve]:
    """Algorithm 2 queries each of the m losses once in each of its T = O(log 1/eps) steps."""
    for m in SIZES[::2]:
        for eps in PRECISIONS[1::2]:
            queries, T = queries_of_algorithm2(losses(m), eps, algorithm)
            yield Evidence(abs(queries - m * T), 0.0, f"m = {m}, eps = {eps:g}: {queries} queries, T = {T}")
            queries = queries_of_bisection(losses(m), eps, solve)
            # The duality gap is (eta/2)(1 + chi^2)(s - 1)^2 (C4-gap), where s is the mass of gamma and
            # chi^2 < 1/eta. It falls to eps in at most log2(1/eta)/2 more steps than T, rounded up.
            extra = 1 + log2(1 / ETA) / 2
            note = f"m = {m}, eps = {eps:g}: {queries} queries of bisection"
            yield Evidence(queries - m * (T + extra), 0.0, note)
    for title, label, x, runs in (
        ("queries of Algorithm 2, eps = 1e-6", "losses m", SIZES, [(m, 1e-6) for m in SIZES]),
        ("queries of Algorithm 2, m = 64", "log2(1/eps)", BITS, [(64, eps) for eps in PRECISIONS]),
    ):
        counts = tuple(queries_of_algorithm2(losses(m), eps, algorithm)[0] for m, eps in runs)
        bound = tuple(m * (printed_iterations(1.0, 1.0, ETA, eps) + 1) for m, eps in runs)
        curve = Curve(title, label, "queries", "the paper's m T, T rounded up", x, counts, bound)
        yield curve
        yield curve.at_most(1.0, 2.0**-44)
        yield curve.below_bound()


@cost_of_algorithm2.mutant("queries each loss twice", replaces="algorithm")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    algorithm2(f, eta, phi, T, bracket)
    return algorithm2(f, eta, phi, T, bracket)


@cost_of_algorithm2.mutant("takes 1/sqrt(eps) steps", replaces="solve")
def _(rows: Array, eta: float, phi: Divergence, *, tol: float) -> WorstCase:
    for _ in range(int(tol**-0.5)):
        phi.dconj(rows)
    return bisection(rows, eta, phi, tol=tol)


# --- The estimators -------------------------------------------------------------------------------


def points_solved(level: int) -> int:
    """The number of points in the inner problems of G^l, including both halves."""
    return 2 << level if level else 1


def queries_of_level(level: int, eps: float, *, telescoping: bool) -> int:
    """The number of queries of Algorithm 2 for g^l, or for G^l (with both halves) if `telescoping`."""
    f = losses(2**level)
    parts = [f, *(np.split(f, 2) if telescoping and level else ())]
    return sum(queries_of_algorithm2(part, eps)[0] for part in parts)


@claim(
    "Proposition 3 (IV)",
    id="D13",
    verdict=Verdict.HOLDS,
    formula=r"\text{SG: } O\left(2^L \log \frac{1}{\epsilon}\right), \quad \text{RT-MLMC, in the mean: } "
    r"O\left(L \log \frac{1}{\epsilon}\right)",
    assumptions="one data point; inner problems solved by Algorithm 2 to precision eps; losses in [0, 1]",
)
def cost_of_estimators(
    distribution: Levels = _probabilities, points: Callable[[int], int] = points_solved
) -> Iterator[Evidence | Curve]:
    """SG costs O(2^L log 1/eps) queries, and RT-MLMC O(L log 1/eps) on average."""
    levels, eps = tuple(range(1, 11)), 1e-4
    T = iterations(1.0, 1.0, ETA, eps)
    for top in (0, *levels):
        solved = sum(p * points(k) for k, p in enumerate(distribution(top)))
        exact = (1 + 2 * top) / (2 - 2.0**-top)
        yield Evidence(abs(solved - exact), 2.0**-44 * exact, f"L = {top}: (1 + 2L)/(2 - 2^-L) points solved")
    level_costs = [queries_of_level(k, eps, telescoping=True) for k in range(levels[-1] + 1)]
    mlmc = [sum(p * q for p, q in zip(distribution(top), level_costs, strict=False)) for top in levels]
    sg = [queries_of_level(top, eps, telescoping=False) for top in levels]
    order = [(1 + 2 * top) / (2 - 2.0**-top) for top in levels]
    by_precision = [
        sum(p * queries_of_level(k, e, telescoping=True) for k, p in enumerate(distribution(6)))
        for e in PRECISIONS
    ]
    steps = [iterations(1.0, 1.0, ETA, e) for e in PRECISIONS]
    for title, label, x, y, bound in (
        ("queries of RT-MLMC", "L", levels, mlmc, [T * v for v in order]),
        ("queries of SG", "2^L", [2**top for top in levels], sg, [T * 2**top for top in levels]),
        ("queries of RT-MLMC, L = 6", "log2(1/eps)", BITS, by_precision, [v * order[5] for v in steps]),
    ):
        bound_label = "T times the points solved"
        curve = Curve(title, label, "queries per data point", bound_label, tuple(x), tuple(y), tuple(bound))
        yield curve
        yield curve.at_most(1.0, 0.1)  # slack, as level 0 costs less: its bracket has width 0
        yield curve.below_bound(2.0**-44)


@cost_of_estimators.mutant("draws all levels with equal probability", replaces="distribution")
def _(level: int) -> tuple[float, ...]:
    return (1 / (level + 1),) * (level + 1)


cost_of_estimators.mutant("does not count the halves", replaces="points")(lambda level: 1 << level)
