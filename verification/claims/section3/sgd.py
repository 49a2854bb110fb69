"""Section 3 of the paper, what its complexity rests on: the lemmas of projected SGD and stationarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, to_numpy
from phiball.refimpl import gradient_mapping, onto_box, projected_sgd
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import on_an_interval
from phiball.verification.instances.piecewise_linear import PiecewiseLinear, mean_gap, piecewise_linear
from phiball.verification.instances.sgd_paths import (
    Sgd,
    SmoothFunction,
    follow,
    smooth_functions,
    stationarity,
)
from phiball.verification.instances.strategies import powers_of_ten

Step: TypeAlias = Callable[[PiecewiseLinear], float]
Map: TypeAlias = Callable[..., Array]

# --- Nonsmooth convex -----------------------------------------------------------------------------


def corrected_step(F: PiecewiseLinear) -> float:
    """D/(M sqrt T) with D = |theta_1 - theta*|."""
    return F.distance / (F.M * sqrt(F.steps))


def printed_step(F: PiecewiseLinear) -> float:
    """D/(M sqrt T) with D = F(theta_1) - min F."""
    return F.gap / (F.M * sqrt(F.steps))


@claim(
    "Lemma EC.1",
    id="F1",
    verdict=Verdict.CORRECTED,
    formula=r"\gamma = \frac{D_*}{M\sqrt{T}}, \quad \mathbb{E}\left[ F(\widetilde{\theta})"
    r" - \min_{\theta} F(\theta) \right] \le \frac{D_* M}{\sqrt{T}}, \quad"
    r" D_* = F(\theta_1) - \min_{\theta} F(\theta)",
    assumptions="F convex, E V a subgradient of F, E|V|^2 <= M^2; the average of T iterates",
    quote=r"where the constant $D_*=F(\theta_1) - \min\limits_{\theta\in\Theta}~F(\theta)$.",
    correction="D_* is the distance |theta_1 - theta*|",
    assessment=Assessment(
        Kind.CONSTANT,
        Consequence.REPAIR,
        "A function that is flat far from its minimum has a small gap, and still a long way to go.",
    ),
    corrected=r"D_* = \| \theta_1 - \theta^* \|",
    F=piecewise_linear().filter(lambda F: F.distance > 0),
)
def average_of_sgd(F: PiecewiseLinear, sgd: Sgd = projected_sgd, step: Step = corrected_step) -> Evidence:
    """With D = |theta_1 - theta*| and the step D/(M sqrt T), the mean gap is at most D M/sqrt T."""
    gap = mean_gap(F, sgd, step(F))
    bound = F.distance * F.M / sqrt(F.steps)
    return Evidence.at_most(gap, bound, 2.0**-42 * F.M, f"the mean gap is {gap:.4g}, the bound {bound:.4g}")


def _slope_of_a_hundredth() -> Iterator[Evidence]:
    yield from on_an_interval(lambda t: 0.01 * abs(t), -1.0, 1.0, convex=True, lipschitz=0.01)


@average_of_sgd.counterexample(margin=0.009, meets=_slope_of_a_hundredth)
def _shallow(sgd: Sgd = projected_sgd) -> Iterator[Evidence]:
    for T in (1, 100):
        F = PiecewiseLinear(0.01, 0.01, 0.0, 1.0, 0.0, T)
        gap = mean_gap(F, sgd, printed_step(F))
        printed = F.gap * F.M / sqrt(T)
        words = "no step is made" if T == 1 else "steps of length 1e-5"
        yield Evidence(
            gap - printed,
            0.0,
            f"F = 0.01 abs(theta), theta_1 = 1, so M = D_* = 0.01, T = {T}: {words}, and the gap {gap:.4g} "
            f"is above D_* M/sqrt T = {printed:.2g}",
        )


average_of_sgd.mutant("the printed step", replaces="step")(printed_step)


@claim(
    "Lemma EC.1, rate",
    id="F1-rate",
    part_of="F1",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\left[ F(\widetilde{\theta}) - \min_{\theta} F(\theta) \right] = O(T^{-1/2})",
    assumptions="F = abs(theta) from theta_1 = 1, without noise; D = M = 1",
)
def sgd_rate(sgd: Sgd = projected_sgd, step: Step = corrected_step) -> Iterator[Evidence | Curve]:
    """The gap of the average falls like T^-1/2, below D M/sqrt T, and no faster."""
    T = [16 * 4**k for k in range(4)]
    runs = [PiecewiseLinear(1.0, 1.0, 0.0, 1.0, 0.0, t) for t in T]
    gaps = tuple(mean_gap(F, sgd, step(F)) for F in runs)
    bound = tuple(F.distance * F.M / sqrt(F.steps) for F in runs)
    curve = Curve(
        "gap of the average", "T", "F(average) - min F", "D M/sqrt T", tuple(map(float, T)), gaps, bound
    )
    yield curve
    yield curve.below_bound()
    yield curve.exactly(-0.5, 0.06)  # the gap is (1 + 1/sqrt T)/(2 sqrt T)


@average_of_sgd.mutant("forgets the root of T", replaces="step")
@sgd_rate.mutant("forgets the root of T", replaces="step")
def _(F: PiecewiseLinear) -> float:
    return F.distance / (F.M * F.steps)


# --- Stationarity ---------------------------------------------------------------------------------

VECTOR = st.lists(st.floats(-3, 3, width=32, allow_subnormal=False), min_size=3, max_size=3)


@claim(
    "Section 1, notations: stationary point",
    id="F5",
    verdict=Verdict.CORRECTED,
    formula=r"\mathbb{E}\left\| \frac{1}{\gamma} \left[ \theta - \mathrm{Proj}_{\Theta}"
    r"\left( \theta - \delta \nabla F(\theta) \right) \right] \right\|_2^2 \le \delta^2",
    assumptions="some step gamma > 0",
    quote=r"if for some step size $\gamma>0$, it holds that $\bE\left\| \frac{1}{\gamma} \left[ \theta - "
    r"\Proj_{\Theta}\big(\theta -\delta\nabla F(\theta)\big)\right] \right\|^2_2\le \delta^2.$",
    correction="gamma in front of the gradient, as in Lemma EC.2",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "With delta in front of the gradient a large gamma makes every point stationary.",
    ),
    corrected=r"\mathbb{E}\left\| \frac{1}{\gamma} \left[ \theta - \mathrm{Proj}_{\Theta}"
    r"\left( \theta - \gamma \nabla F(\theta) \right) \right] \right\|_2^2 \le \delta^2",
    theta=VECTOR,
    gradient=VECTOR,
    step=powers_of_ten(-2, 2),
)
def mapping_is_the_gradient(
    theta: list[float], gradient: list[float], step: float, mapping: Map = gradient_mapping
) -> Iterator[Evidence]:
    """The mapping is the gradient where Theta is everything, and (theta - Proj(theta - step grad F))/step."""
    v, at = np.array(gradient), np.array(theta)
    slack = 2.0**-48 * (np.abs(v).max() + np.abs(at).max() / step)
    free = to_numpy(mapping(array(gradient), array(theta), step_size=step))
    yield Evidence(float(np.abs(free - v).max()), slack, "Theta is everything: the gradient")
    inside = array(list(np.clip(at, -1, 1)))
    boxed = to_numpy(mapping(array(gradient), inside, step_size=step, project=onto_box(-1.0, 1.0)))
    # On a box each coordinate moves by its gradient until it meets the wall.
    room = np.where(v > 0, np.clip(at, -1, 1) + 1, 1 - np.clip(at, -1, 1)) / step
    yield Evidence(float(np.abs(boxed - np.sign(v) * np.minimum(np.abs(v), room)).max()), slack, "a box")


def _within_everything_is_stationary() -> Iterator[Evidence]:
    yield from on_an_interval(lambda t: 10 * t, -1.0, 1.0, convex=True, lipschitz=10.0, smooth=0.0)


@mapping_is_the_gradient.counterexample(margin=9.8, meets=_within_everything_is_stationary)
def _everything_is_stationary() -> Evidence:
    gradient, delta, gamma = 10.0, 0.1, 10.0
    xp = active().namespace
    theta = xp.zeros((1,), dtype=xp.float64)
    printed = abs(float((theta - (theta - delta * gradient))[0])) / gamma
    return Evidence(
        gradient - printed,
        0.0,
        f"F = 10 theta, delta = 0.1, gamma = 10: the printed norm is 0.1 * 10/10 = {printed:.2g} <= delta, "
        "and the gradient is 10",
    )


@mapping_is_the_gradient.mutant("the printed formula, delta = 0.1")
def _(gradient: Array, theta: Array, *, step_size: float, project: Any = lambda theta: theta) -> Array:
    return (theta - project(theta - 0.1 * gradient)) / step_size


# --- Smooth nonconvex: the shape of F is that of a wave or a bowl ---------------------------------


def gradient_constant(F: SmoothFunction) -> float:
    """S, the Lipschitz constant of grad F."""
    return F.smoothness


@claim(
    "Section EC.1, S-smoothness",
    id="F6",
    verdict=Verdict.CORRECTED,
    formula=r"\| F(\theta) - F(\theta') \| \le S \| \theta - \theta' \|",
    assumptions="F continuously differentiable; the step 1/(2S)",
    quote=r"is continuously differentiable and $S$-smooth such that "
    r"$\|F(\theta) - F(\theta')\|\le S\|\theta - \theta'\|$",
    correction="the gradient of F is S-Lipschitz",
    assessment=Assessment(
        Kind.MISPRINT, Consequence.NONE, "The gradient sign is missing; with the printed S Lemma EC.2 fails."
    ),
    corrected=r"\| \nabla F(\theta) - \nabla F(\theta') \| \le S \| \theta - \theta' \|",
    examples=150,
    F=smooth_functions(),
)
def projected_step_descends(
    F: SmoothFunction, sgd: Sgd = projected_sgd, S: Callable[[SmoothFunction], float] = gradient_constant
) -> Evidence:
    """If grad F is S-Lipschitz, a projected step 1/(2S) lowers F by at least 3 |mapping|^2/(8S)."""
    step = 1 / (2 * S(F))
    none, sure = np.zeros((1, 1)), np.ones(1)
    paths = follow(sgd, F.slope, F.start, step_size=step, noise=none, chance=sure, low=F.low, high=F.high)
    first, second = (float(v[0]) for v in paths.iterates)
    lowered = 3 / (8 * S(F)) * ((first - second) / step) ** 2
    size = F.value(F.start) + F.lipschitz * (F.high - F.low)
    return Evidence(F.value(second) - F.value(first) + lowered, 2.0**-46 * size)


def _within_lipschitz_for_smooth() -> Iterator[Evidence]:
    yield from on_an_interval(lambda t: t * t / 2, -0.1, 0.1, lipschitz=0.1, smooth=1.0)


@projected_step_descends.counterexample(margin=0.001, meets=_within_lipschitz_for_smooth)
def _lipschitz_for_smooth(sgd: Sgd = projected_sgd) -> Evidence:
    F = SmoothFunction(True, 1.0, 1.0, -0.1, 0.1, 0.1, 0.0, 1, 100)
    S = F.lipschitz
    measured, printed = stationarity(F, sgd, S), 8 * S * F.drop / F.steps
    return Evidence(
        measured - printed,
        0.0,
        f"F = theta^2/2 on abs(theta) <= 0.1 has abs(F - F') <= 0.1 abs(theta - theta'); at the step 1/(2 S) "
        f"with S = 0.1 the mean of |mapping|^2 over T = 100 is {measured:.2g}, and 8 S D/T = {printed:.2g}",
    )


@projected_step_descends.mutant("the printed S, a Lipschitz constant of F", replaces="S")
def _(F: SmoothFunction) -> float:
    return F.lipschitz


def lemma_bound(F: SmoothFunction) -> float:
    """8 S D/T + 6 sigma^2/m."""
    return 8 * F.smoothness * F.drop / F.steps + 6 * F.sigma**2 / F.batch


@claim(
    "Lemma EC.2",
    id="F7",
    verdict=Verdict.HOLDS,
    formula=r"\gamma = \frac{1}{2S}, \quad \mathbb{E}\left\| \frac{1}{\gamma} \left[ \widetilde{\theta} -"
    r" \mathrm{Proj}_{\Theta}\left( \widetilde{\theta} - \gamma \nabla F(\widetilde{\theta}) \right) \right]"
    r" \right\|^2 \le \frac{8 S D_*}{T} + \frac{6\sigma^2}{m}",
    assumptions="grad F is S-Lipschitz, E V = grad F with variance sigma^2, batches of m; a random iterate",
    examples=150,
    F=smooth_functions(),
)
def random_iterate_is_stationary(
    F: SmoothFunction, sgd: Sgd = projected_sgd, bound: Callable[[SmoothFunction], float] = lemma_bound
) -> Evidence:
    """With the step 1/(2S), E|mapping|^2 at a random iterate is at most 8 S D/T + 6 sigma^2/m."""
    measured, limit = stationarity(F, sgd, F.smoothness), bound(F)
    return Evidence.at_most(
        measured, limit, F.rounding, f"E|mapping|^2 is {measured:.4g}, the bound {limit:.4g}"
    )


@random_iterate_is_stationary.mutant("forgets the noise", replaces="bound")
def _(F: SmoothFunction) -> float:
    return 8 * F.smoothness * F.drop / F.steps
