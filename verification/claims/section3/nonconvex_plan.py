"""Section 3 of the paper, its theorem on smooth nonconvex losses: the plans, their cost, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from scipy.stats import t as student

from phiball.backends import Array, active, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    gradient_mapping,
    nonconvex_plan,
    onto_box,
    projected_sgd,
)
from phiball.refimpl.training.plans import Plan
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.printed_algorithms import (
    EPSILONS,
    INVERSE_EPSILONS,
    NONCONVEX_UNITS,
    Planner,
)
from phiball.verification.instances.sgd_paths import Sgd, stacked_gradient
from phiball.verification.instances.tolerances import TEST_LEVEL
from phiball.verification.oracles.complexity import wave_slope

# --- The cost -------------------------------------------------------------------------------------


@claim(
    "Theorem 3, cost",
    id="G6-cost",
    part_of="G6",
    verdict=Verdict.HOLDS,
    formula=r"\mathrm{cost}_{RT-MLMC} = \widetilde{O}(\epsilon^{-4})",
    assumptions="L_f = S_f = B = eta = 1; plans of projected SGD that guarantee E|mapping|^2 <= epsilon^2",
)
def cost_in_epsilon(plan: Planner = nonconvex_plan) -> Iterator[Evidence | Curve]:
    """An epsilon-stationary point costs O(eps^-4 log^2(1/eps)) perturbed points with RT-MLMC."""
    for constrained in (True, False):
        plans = [plan(eps, **NONCONVEX_UNITS, constrained=constrained, estimator=RTMLMC) for eps in EPSILONS]
        for made, eps in zip(plans, EPSILONS, strict=True):
            yield Evidence.at_most(made.bound, eps**2, 0.0, f"the bound for epsilon = {eps:.2g}")
            # Whole steps and points leave little of it unused.
            yield Evidence.at_most(0.99 * eps**2, made.bound, 0.0, f"no more than epsilon = {eps:.2g} takes")
            if constrained:  # 1/(2 S) with S = S_f + L_f^2/eta
                yield Evidence(abs(made.step_size - 1 / 4), 0.0, f"the step for epsilon = {eps:.2g}")
        name = "cost, constrained" if constrained else "cost, unconstrained"
        costs = [made.evaluations for made in plans]
        yield from Curve.of_order(name, "1/epsilon", INVERSE_EPSILONS, costs, 4, 2).within_order()


@cost_in_epsilon.mutant("draws all levels in full")
def _(epsilon: float, *, estimator: Any, **rest: Any) -> Plan:
    made = nonconvex_plan(epsilon, estimator=estimator, **rest)
    return replace(made, estimator=SG(made.estimator.level))


# --- End to end: f = B (1 - cos(theta - b))/2, b uniform on [-1, 1] -----------------------------------

HEIGHT, ETA, EPSILON, START = 2.0, 4.0, 0.5, 1.6


def _wave(theta: Array, x: Array) -> Array:
    return HEIGHT * (1 - array_namespace(x).cos(theta - x)) / 2


def _wave_gradient(theta: Array, x: Array) -> Array:
    return HEIGHT * array_namespace(x).sin(theta - x) / 2


def stationarity_of_runs(
    made: Plan, sgd: Sgd, project: Callable[[Array], Array], *, runs: int, seed: int
) -> Any:
    """The mean of |mapping|^2 over all iterates of each run, hence over the choice of one."""
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
    formula=r"\mathbb{E}\left\| \frac{1}{\gamma} \left[ \widetilde{\theta} - \mathrm{Proj}_{\Theta}"
    r"\left( \widetilde{\theta} - \gamma \nabla F(\widetilde{\theta}) \right) \right] \right\|_2^2"
    r" \le \epsilon^2",
    assumptions="f = 1 - cos(theta - b), b uniform on [-1, 1], eta = 4, epsilon = 0.5; RT-MLMC, from "
    "theta_1 = 1.6",
    error_level=2 * TEST_LEVEL,
)
def random_iterate_of_training(
    plan: Planner = nonconvex_plan, sgd: Sgd = projected_sgd, seed: int = 0
) -> Iterator[Evidence]:
    """Projected SGD finds an epsilon-stationary point, as planned, with and without constraints."""
    problem = {"lipschitz": HEIGHT / 2, "smoothness": HEIGHT / 2, "bound": HEIGHT, "eta": ETA}
    first = float(wave_slope(START, HEIGHT, ETA)) ** 2
    yield Evidence(2.5 * EPSILON**2 - first, 0.0, f"it starts at a squared slope of {first:.3g}")
    for constrained, runs in ((False, 12), (True, 4)):  # batches are large under a constraint
        project = onto_box(0.5, 3.0) if constrained else onto_box(-np.inf, np.inf)
        made = plan(EPSILON, **problem, constrained=constrained, estimator=RTMLMC)
        values = stationarity_of_runs(made, sgd, project, runs=runs, seed=seed)
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
        tail = float(student.isf(TEST_LEVEL, runs - 1))
        note = f"T = {made.steps}, batch {made.batch}: E|mapping|^2 is {mean:.3g} for {EPSILON**2:.3g}"
        yield Evidence.at_most(mean, EPSILON**2, tail * spread / sqrt(runs), note)


@random_iterate_of_training.mutant("a hundredth of the steps", replaces="plan")
def _(epsilon: float, **rest: Any) -> Plan:
    made = nonconvex_plan(epsilon, **rest)
    return replace(made, steps=max(1, made.steps // 100))
