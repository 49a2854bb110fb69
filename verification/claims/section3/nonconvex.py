"""Section 3, Theorem 3: smooth nonconvex losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil, exp, sqrt
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.stats import t as student

from phiball.backends import Array, active, array_namespace, rng, to_numpy
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss
from phiball.refimpl.optimize import gradient_mapping, onto_box, projected_sgd
from phiball.refimpl.sampling import signed_weights
from phiball.refimpl.theory import nonconvex_plan
from phiball.refimpl.theory.plans import Plan
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import in_the_definition, on_an_interval
from phiball.verification.instances.conversion import array
from phiball.verification.instances.enumeration import Bound, Weights, exact_level_mean, second_moment_of
from phiball.verification.instances.loss_distributions import DiscreteDistribution, bounded_distributions
from phiball.verification.instances.printed_algorithms import (
    EPSILONS,
    INVERSE_EPSILONS,
    NONCONVEX_UNITS,
    Planner,
    Setting,
    Table,
    altered,
    guarantee,
    settings,
    table_2,
)
from phiball.verification.instances.sgd_paths import Sgd, SmoothFunction, follow, stacked_gradient
from phiball.verification.instances.solver_mutants import without_halves
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import TEST_LEVEL
from phiball.verification.oracles.exact_levels import wave_slope

# --- The variance of RT-MLMC ----------------------------------------------------------------------


def variance_bound(distribution: DiscreteDistribution, top: int) -> float:
    """2 (L+1) L_f^2 e^(4B/eta)."""
    return 2 * (top + 1) * distribution.lipschitz**2 * distribution.growth(4)


@claim(
    "Proof of Theorem 3, variance",
    id="G5",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\left\| v(\theta) - \nabla F^L(\theta) \right\|^2"
    r" \le \frac{2 (L+1) L_f^2 e^{4B/\eta}}{n_L}",
    assumptions="0 <= f <= B, f is L_f-Lipschitz; n_L = 1, since both sides are proportional to 1/n_L",
    distribution=bounded_distributions(),
    top=st.integers(0, 4),
)
def variance_is_bounded(
    distribution: DiscreteDistribution,
    top: int,
    weights: Weights = signed_weights,
    bound: Bound = variance_bound,
) -> Evidence:
    """For one data point, the variance of RT-MLMC is at most 2 (L+1) L_f^2 e^(4B/eta)."""
    mean = exact_level_mean(distribution, top)
    variance = second_moment_of(distribution, top, weights) - float(np.sum(mean**2))
    return Evidence.at_most(
        variance, bound(distribution, top), 2.0**top * distribution.lipschitz**2 * distribution.rounding
    )


variance_is_bounded.mutant("does not subtract the halves", replaces="weights")(without_halves)


# --- The hyper-parameters -------------------------------------------------------------------------


@claim(
    "Theorem 3, hyper-parameters",
    id="G6",
    verdict=Verdict.CORRECTED,
    formula=r"L = \left\lceil \log_2\frac{4 L_f^2 e^{4B/\eta}}{\epsilon^2} \right\rceil, \quad n_L = "
    r"\left\lceil \frac{96 (L+1) L_f^2 e^{4B/\eta}}{\epsilon^2} \right\rceil, \quad T = \left\lceil "
    r"\frac{64 \overline{S} D}{\epsilon^2} \right\rceil \Rightarrow \mathbb{E}\| \cdot \|^2 \le \epsilon^2",
    assumptions="Lemmas EC.2 and EC.5, with a valid smoothness constant; Euclidean norm",
    quote=r"With the configuration of the following hyper-parameters, one can guarantee the RT-MLMC scheme "
    r"finds $\epsilon$-stationary point",
    correction="the theorem stands as printed, with the smoothness constant of G4 in its proof",
    corrected=r"\overline{S} = (S_f + L_f^2/\eta) e^{B/\eta} + L_f^2/\eta \, e^{2B/\eta}",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The theorem states orders, which hold. The step size and T of its proof use the constant of Lemma "
        "EC.5 (IV), which has S_f^2 in place of S_f.",
        follows=("G4",),
    ),
    examples=200,
    problem=settings(),
    ratio=powers_of_ten(-3, 0),
)
def hyper_parameters_suffice(problem: Setting, ratio: float, table: Table = table_2) -> Evidence:
    """With the hyper-parameters of the proof, the bounds of the lemmas sum to at most eps^2."""
    eps = ratio * problem.lipschitz
    h = table(problem, eps)
    total = guarantee(problem, h)
    note = f"{h}: the sum is {total:.4g}, eps^2 = {eps**2:.4g}"
    return Evidence.at_most(total, eps**2, 2.0**-44 * eps**2, note)


@hyper_parameters_suffice.counterexample(
    margin=1.0,
    meets=lambda: chain(
        in_the_definition(ENTROPIC),
        on_an_interval(lambda t: 0.05 * t * t, -0.1, 0.1, lipschitz=0.01, smooth=0.1, between=(0.0, 0.0005)),
    ),
)
def _step_of_the_printed_constant() -> Evidence:
    # f does not depend on z, so F^L = f: no bias and no noise, and n_L is irrelevant.
    S_f, edge, eps, no_noise = 0.1, 0.1, 1e-3, np.zeros((1, 1))
    L_f, B, eta = S_f * edge, S_f * edge**2 / 2, 1.0
    S = (S_f**2 + L_f**2 / eta) * exp(B / eta) + L_f**2 / eta * exp(2 * B / eta)
    T, step = ceil(64 * S * B / eps**2), 1 / (2 * S)
    F = SmoothFunction(True, S_f, 1.0, -edge, edge, edge, 0.0, 1, T)
    paths = follow(
        projected_sgd, F.slope, edge, step_size=step, noise=no_noise, chance=np.ones(1), low=-edge, high=edge
    )
    theta = np.array([float(v[0]) for v in paths.iterates])
    mapping = (theta - np.clip(theta - step * S_f * theta, -edge, edge)) / step
    mean = float(np.mean(mapping**2))
    return Evidence(
        mean / eps**2,
        0.0,
        f"f = 0.05 theta^2 on Theta = [-0.1, 0.1], eta = 1: the printed smoothness constant is {S:.4g}, so "
        f"the step size is {step:.3g} and theta alternates between 0.1 and -0.1; the squared "
        f"gradient mapping is (0.2/{step:.3g})^2 = {mean:.2g}, above eps^2 = 1e-6",
    )


hyper_parameters_suffice.mutant("a tenth of the steps")(
    altered(table_2, steps=lambda made: max(1, made.steps // 10))
)


# --- The orders -----------------------------------------------------------------------------------


@claim(
    "Table 2, exponents",
    id="G8",
    verdict=Verdict.HOLDS,
    formula=r"L = O\left( \log\frac{1}{\epsilon^2} \right); \quad T = \widetilde{O}(\epsilon^{-2}),"
    r" n_L = \widetilde{O}(\epsilon^{-2}), \gamma = O(1); \quad T = \widetilde{O}(\epsilon^{-4}),"
    r" n_L = O(1), \gamma = \widetilde{O}(\epsilon^2)",
    assumptions="the formulas of the proof at L_f = S = D = 1, B/eta = 0.1; on average (L+1)/(2 - 2^-L) "
    "perturbed points per data point",
    remark="This checks the formulas of the proof only; G6-cost and G6-run check plans and runs of SGD.",
)
def exponents_of_table_2(table: Table = table_2) -> Iterator[Evidence | Curve]:
    """The formulas of the proof have the orders of Table 2, such as cost eps^-4 and memory eps^-2."""
    for constrained in (True, False):
        problem = Setting(1.0, 1.0, 1.0, 10.0, 1.0, constrained)
        made = [table(problem, eps) for eps in EPSILONS]
        points = [RTMLMC(h.level).evaluations for h in made]
        T, batch = [float(h.steps) for h in made], [float(h.batch) for h in made]
        memory = [n * m for n, m in zip(batch, points, strict=True)]
        cost = [t * m for t, m in zip(T, memory, strict=True)]
        rows: list[tuple[str, list[float], float, float]] = [
            ("T", T, 2 if constrained else 4, 0 if constrained else 1),
            ("cost", cost, 4, 2),
            ("L", [float(h.level) for h in made], 0, 1),
            ("step", [h.step_size for h in made], 0 if constrained else -2, 0),
            ("n_L", batch, 2 if constrained else 0, 1 if constrained else 0),
        ]
        if constrained:
            rows.append(("memory", memory, 2, 2))
        where = "constrained" if constrained else "unconstrained"
        for name, y, power, logs in rows:
            for piece in Curve.of_order(
                f"{name}, {where}", "1/epsilon", INVERSE_EPSILONS, y, power, logs
            ).within_order():
                if isinstance(piece, Evidence) or name in ("T", "cost"):  # plot these curves only
                    yield piece


exponents_of_table_2.mutant("squares the number of steps")(altered(table_2, steps=lambda made: made.steps**2))


# --- Memory ---------------------------------------------------------------------------------------


def expected_points(level: int, steps: int) -> float:
    """The expected number of perturbed points of one data point; `steps` is not used."""
    return RTMLMC(level).evaluations


def expected_peak(level: int, steps: int) -> float:
    """The expected number of perturbed points in the largest of the T - 1 steps, for batches of one."""
    below = np.cumsum(RTMLMC(level).probabilities) ** (steps - 1)
    return float(2.0 ** np.arange(level + 1) @ np.diff(below, prepend=0.0))


@claim(
    "Theorem 3 (II), memory",
    id="G7",
    verdict=Verdict.HOLDS,
    formula=r"\mathrm{Memo.} = O(n_L L) = \widetilde{O}(1)",
    assumptions="Theta unconstrained, batches of one data point; the hyper-parameters of the proof",
    quote=r"then the memory cost of RT-MLMC improves to $\tO(1)$.",
    remark="Table 2 defines the memory as n_L L, the order of the average number of points in a step. A "
    "single step can have 2^L = O(epsilon^-2) points: the largest step of a run has 32 points on average for "
    "epsilon = 1/2, and 524288 for epsilon = 1/256. For the entropic phi the points can be processed one by "
    "one and need not be stored.",
)
def memory_in_the_mean(memory: Callable[[int, int], float] = expected_points) -> Iterator[Evidence | Curve]:
    """If Theta is unconstrained, a step has O(log(1/eps)) perturbed points on average."""
    made = [table_2(Setting(1.0, 1.0, 1.0, 10.0, 1.0, False), eps) for eps in EPSILONS]
    y = [memory(h.level, h.steps) for h in made]
    for h, points in zip(made, y, strict=True):
        exact = sum(2.0**k * 2.0**-k / (2 - 2.0**-h.level) for k in range(h.level + 1))
        yield Evidence(abs(points - exact), 2.0**-44 * exact, f"L = {h.level}: {points:.4g} points")
    yield from Curve.of_order("points per step", "1/epsilon", INVERSE_EPSILONS, y, 0, 1).within_order()
    # The numbers in the remark.
    peaks = [expected_peak(h.level, h.steps) for h in made]
    for peak, stated in ((peaks[0], 32), (peaks[-1], 524288)):
        yield Evidence(abs(peak - stated), 0.5, f"the largest step of a run has {peak:.0f} points on average")


memory_in_the_mean.mutant("counts the points of the largest step of a run")(expected_peak)


# --- The cost -------------------------------------------------------------------------------------


@claim(
    "Theorem 3, cost",
    id="G6-cost",
    part_of="G6",
    verdict=Verdict.HOLDS,
    formula=r"\mathrm{cost}_{RT-MLMC} = \widetilde{O}(\epsilon^{-4})",
    assumptions="L_f = S_f = B = eta = 1; plans of projected SGD that guarantee E|gradient mapping|^2 "
    "<= epsilon^2",
)
def cost_in_epsilon(plan: Planner = nonconvex_plan) -> Iterator[Evidence | Curve]:
    """With RT-MLMC, an epsilon-stationary point costs O(eps^-4 log^2(1/eps)) perturbed points."""
    for constrained in (True, False):
        plans = [plan(eps, **NONCONVEX_UNITS, constrained=constrained, estimator=RTMLMC) for eps in EPSILONS]
        for made, eps in zip(plans, EPSILONS, strict=True):
            yield Evidence.at_most(made.bound, eps**2, 0.0, f"the bound for epsilon = {eps:.2g}")
            # The plan is not wasteful: its bound is below epsilon^2 only by rounding steps and points up.
            yield Evidence.at_most(
                0.99 * eps**2, made.bound, 0.0, f"the bound for epsilon = {eps:.2g} is close to epsilon^2"
            )
            if constrained:  # 1/(2 S) with S = S_f + L_f^2/eta
                yield Evidence(abs(made.step_size - 1 / 4), 0.0, f"the step size for epsilon = {eps:.2g}")
        name = "cost, constrained" if constrained else "cost, unconstrained"
        costs = [made.evaluations for made in plans]
        yield from Curve.of_order(name, "1/epsilon", INVERSE_EPSILONS, costs, 4, 2).within_order()


cost_in_epsilon.mutant("always draws the highest level")(
    altered(nonconvex_plan, estimator=lambda made: SG(made.estimator.level))
)


# --- End to end: f = B (1 - cos(theta - b))/2, b uniform on [-1, 1] -----------------------------------

HEIGHT, ETA, EPSILON, START = 2.0, 4.0, 0.5, 1.6


def _wave(theta: Array, x: Array) -> Array:
    return HEIGHT * (1 - array_namespace(x).cos(theta - x)) / 2


def _wave_gradient(theta: Array, x: Array) -> Array:
    return HEIGHT * array_namespace(x).sin(theta - x) / 2


def stationarity_of_runs(
    made: Plan, sgd: Sgd, project: Callable[[Array], Array], *, runs: int, seed: int
) -> Any:
    """The mean squared gradient mapping over the iterates of each run."""
    objective = RegularizedLoss(Ball(2, 1.0), ETA, ENTROPIC, made.estimator)
    gradient = stacked_gradient(
        objective, _wave, _wave_gradient, (0.0,), runs=runs, batch=made.batch, seed=seed
    )
    seen: list[Any] = []

    def recorded(theta: Array) -> Array:
        seen.append(to_numpy(theta))
        return gradient(theta)

    xp = active().namespace
    start = xp.full((runs,), START, dtype=xp.float64)
    how = {"step_size": made.step_size, "steps": made.steps, "project": project, "average": False}
    run = sgd(recorded, start, rng=rng(seed + 1), **how)
    iterates = np.stack([*seen, to_numpy(run.last)])
    slope = array(wave_slope(iterates, HEIGHT, ETA))
    theta = array(iterates)
    mapping = gradient_mapping(slope, theta, step_size=made.step_size, project=project)
    return np.mean(to_numpy(mapping) ** 2, axis=0)


@claim(
    "Theorem 3, end to end",
    id="G6-run",
    part_of="G6",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\left\| \frac{1}{\gamma} \left[ \widetilde{\theta} - \mathrm{Proj}_{\Theta}\left( "
    r"\widetilde{\theta} - \gamma \nabla F(\widetilde{\theta}) \right) \right] \right\|_2^2 \le \epsilon^2",
    assumptions="f = 1 - cos(theta - b), b uniform on [-1, 1], Theta = R and [0.5, 3], eta = 4, epsilon = "
    "0.5; RT-MLMC from theta_1 = 1.6",
    error_level=2 * TEST_LEVEL,
)
def random_iterate_of_training(
    plan: Planner = nonconvex_plan, sgd: Sgd = projected_sgd, seed: int = 0
) -> Iterator[Evidence]:
    """Projected SGD finds an epsilon-stationary point in the planned steps, with and without a constraint."""
    problem = {"lipschitz": HEIGHT / 2, "smoothness": HEIGHT / 2, "bound": HEIGHT, "eta": ETA}
    first = float(wave_slope(START, HEIGHT, ETA)) ** 2
    yield Evidence(2.5 * EPSILON**2 - first, 0.0, f"the initial squared slope is {first:.3g}")
    for constrained, runs in ((False, 12), (True, 4)):  # with a constraint, batches are large
        project = onto_box(0.5, 3.0) if constrained else onto_box(-np.inf, np.inf)
        made = plan(EPSILON, **problem, constrained=constrained, estimator=RTMLMC)
        values = stationarity_of_runs(made, sgd, project, runs=runs, seed=seed)
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
        quantile = float(student.isf(TEST_LEVEL, runs - 1))
        note = f"T = {made.steps}, batch {made.batch}: E|mapping|^2 = {mean:.3g}, eps^2 = {EPSILON**2:.3g}"
        yield Evidence.at_most(mean, EPSILON**2, quantile * spread / sqrt(runs), note)


random_iterate_of_training.mutant("a hundredth of the steps", replaces="plan")(
    altered(nonconvex_plan, steps=lambda made: max(1, made.steps // 100))
)
