"""Section 3 of the paper, the gradient estimators: their levels, their cost and their expectation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, to_numpy
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Divergence, RegularizedLoss, signed_weights
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.all_draws import ListedLaw, batch_of_all_draws
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import bounded_loss, each, in_the_definition
from phiball.verification.instances.divergences import PAPER_DIVERGENCES
from phiball.verification.instances.faulty_solvers import halves_by_one
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import levels

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
def levels_are_a_law(level: int, law: Levels = _probabilities) -> Iterator[Evidence]:
    """P(l) = 2^-l/(2 - 2^-L) for l = 0, ..., L are probabilities, each half of the one before."""
    p = law(level)
    yield Evidence(abs(sum(p) - 1), 2.0**-48, "the sum")
    yield Evidence(max((abs(a - 2 * b) for a, b in pairwise(p)), default=0.0), 2.0**-48)
    yield Evidence(abs(len(p) - level - 1), 0.0, "the number of levels")


@levels_are_a_law.mutant("is not truncated")
def _(level: int) -> tuple[float, ...]:
    return tuple(2.0 ** -(k + 1) for k in range(level + 1))


@claim(
    "Section 3.1, cost",
    id="D2",
    verdict=Verdict.CORRECTED,
    formula=r"\sum_{\ell=0}^{L} P(\ell)\, 2^\ell = \frac{L}{2 - 2^{-L}}",
    assumptions="one data point, with its level drawn from P",
    quote=r"the (expected) number of samples for RT-MLMC is $\nout_L\cdot \frac{L}{2 -2^{-L}}=\cO(L)$.",
    correction="L + 1 in the place of L; the order O(L) stays",
    assessment=Assessment(
        Kind.CONSTANT, Consequence.NONE, "There are L + 1 levels, and each takes 1/(2 - 2^-L) samples."
    ),
    corrected=r"\sum_{\ell=0}^{L} P(\ell)\, 2^\ell = \frac{L + 1}{2 - 2^{-L}}",
    examples=31,
    level=st.integers(0, 30),
)
def expected_samples(level: int, cost: Cost = _evaluations) -> Evidence:
    """RT-MLMC draws sum_l P(l) 2^l perturbed points per data point on average."""
    exact = sum(p * 2.0**k for k, p in enumerate(_probabilities(level)))
    return Evidence(abs(cost(level) - exact), 2.0**-44 * exact)


def _within_printed_cost() -> Iterator[Evidence]:
    yield from each(("P(l) are probabilities", abs(sum(_probabilities(1)) - 1) < 2.0**-48))


@expected_samples.counterexample(margin=0.5, meets=_within_printed_cost)
def _printed_cost() -> Evidence:
    printed, exact = 1 / (2 - 2.0**-1), _evaluations(1)
    return Evidence(
        exact - printed,
        0.0,
        f"L = 1: 1 sample with probability 2/3 and 2 with 1/3 are {exact:.4f} on average; printed "
        f"{printed:.4f}",
    )


@expected_samples.mutant("the printed formula")
def _(level: int) -> float:
    return level / (2 - 2.0**-level)


@claim(
    "Eq. (13b), expectation",
    id="D3",
    verdict=Verdict.CORRECTED,
    formula=(
        r"\mathbb{E}\, V^{RT} = \sum_{\ell=0}^{L} \mathbb{E}\, G^\ell = \mathbb{E}\, \nabla "
        r"\widetilde{R}\left(\theta; \{z_i'\}_{i \le 2^\ell}\right) = \mathbb{E}\, V^{SG}"
    ),
    assumptions="the halves of a level are solved as the level below is",
    quote=r"$\sum_{\ell=0}^L\bE_{\zeta^{\ell}}[G^{\ell}(\theta, \zeta^{\ell})] = \bE_{z\sim\hP} "
    r"\bE_{\{z_i'\}_{i\in[2^\ell]}\sim \nu_z}$",
    correction="with 2^L for 2^l, and G^0 = g^0, which Eq. (12) leaves undefined",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The sum over l leaves level L, not l; and Eq. (12) at l = 0 speaks of half a point.",
    ),
    corrected=(
        r"\mathbb{E}\, V^{RT} = \mathbb{E}\, \nabla \widetilde{R}\left(\theta; \{z_i'\}_{i \le "
        r"2^L}\right) = \mathbb{E}\, V^{SG}, \quad G^0 = g^0"
    ),
    examples=40,
    f=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=3),
    eta=powers_of_ten(-2, 2),
    phi=st.sampled_from(PAPER_DIVERGENCES),
    level=st.integers(0, 2),
)
def same_expectation(
    f: list[float], eta: float, phi: Divergence, level: int, objective: Objective = RegularizedLoss
) -> Iterator[Evidence]:
    """RT-MLMC and SG have one expectation, in value and gradient: that of level L, by enumeration."""
    exact = _level(f, eta, phi, level)
    # Weights near a kink of phi move by rounding/eta, and so does their sum.
    rounding = 2.0**-42 * (1 + max(map(abs, f)) + max(map(abs, f)) / eta)
    for estimator in (SG(level), RTMLMC(level), RTMLMC(level, "stratified")):
        value, gradient = _enumerated(objective(ListedLaw(len(f)), eta, phi, estimator), f, level)
        yield Evidence(abs(value - exact[0]), rounding, f"{estimator}: the value")
        if phi.family in ("entropic", "quadratic"):  # else the weights may not be unique
            yield Evidence(abs(gradient - exact[1]), rounding, f"{estimator}: the gradient")


def _level(f: list[float], eta: float, phi: Divergence, level: int) -> tuple[float, float]:
    """The mean value and gradient over all draws of 2^level points, by closed forms."""
    picks = levels.draws(len(f), 2**level)
    value, weights = levels.solve(np.array(f)[picks], eta, phi.family or "", phi.parameter)
    return float(value.mean()), float((weights * SLOPES[picks]).sum(axis=-1).mean())


def _enumerated(made: RegularizedLoss, f: list[float], level: int) -> tuple[float, float]:
    """The mean of the objective and of its gradient over all draws, each at each level by its chance."""
    codes, source = batch_of_all_draws(len(f), level)

    def loss(x: Array, i: Array) -> Array:
        xp = array_namespace(x)
        return xp.take(xp.asarray(f, dtype=x.dtype), xp.astype(x[:, 0], xp.int64))

    drawn = made.points(loss, array(codes), rng=source)
    gradient = to_numpy(drawn.weights) @ SLOPES[to_numpy(drawn.points)[:, 0].astype(int)]
    return float(drawn.value), float(gradient)


class _Rescaled(RTMLMC):
    """RT-MLMC whose groups are scaled wrongly."""

    def assign_levels(self, n: int, rng: Any, *, like: Array) -> Any:
        """The groups of RT-MLMC, with the scale of `rescaled`."""
        groups = super().assign_levels(n, rng, like=like)
        return [replace(group, scale=self.rescaled(group)) for group in groups]

    def rescaled(self, group: Any) -> float:
        """1 in the place of 1/P(l)."""
        return 1.0


class _NoLevelZero(_Rescaled):
    """RT-MLMC without its level 0."""

    def rescaled(self, group: Any) -> float:
        """The scale of the group, or 0 for level 0."""
        return float(group.scale) if group.level else 0.0


def _within_without_level_zero() -> Iterator[Evidence]:
    yield from in_the_definition(ENTROPIC)
    yield from bounded_loss((0.0, 1.0))


@same_expectation.counterexample(margin=0.4, meets=_within_without_level_zero)
def _without_level_zero() -> Evidence:
    f = [0.0, 1.0]
    whole = _level(f, 1.0, ENTROPIC, 1)[0]
    rest = _enumerated(RegularizedLoss(ListedLaw(2), 1.0, ENTROPIC, _NoLevelZero(1)), f, 1)[0]
    return Evidence(
        whole - rest,
        0.0,
        f"f = (0, 1), entropic, eta = L = 1: F^1 = 1/4 + log((1 + e)/2)/2 = {whole:.4f}; without a level "
        f"0 of E f = 1/2 the sum is {rest:.4f}",
    )


@same_expectation.mutant("forgets 1/P(l)")
def _(law: ListedLaw, eta: float, phi: Divergence, estimator: Any) -> RegularizedLoss:
    wrong = _Rescaled(estimator.level, estimator.allocation) if isinstance(estimator, RTMLMC) else estimator
    return RegularizedLoss(law, eta, phi, wrong)


@same_expectation.mutant("takes a level less")
def _(law: ListedLaw, eta: float, phi: Divergence, estimator: Any) -> RegularizedLoss:
    return RegularizedLoss(law, eta, phi, SG(max(0, estimator.level - 1)))


@claim(
    "Eq. (18)",
    id="D3-entropic",
    verdict=Verdict.HOLDS,
    formula=(
        r"G^\ell = \nabla_\theta \left[U_{1:2^\ell} - \frac{1}{2} U_{1:2^{\ell-1}} - \frac{1}{2} "
        r"U_{2^{\ell-1}+1:2^\ell}\right], \quad U = \eta \log \frac{1}{n} \sum_j e^{f_j/\eta}"
    ),
    assumptions="phi(x) = x log x - x + 1; G^0 = g^0",
    examples=200,
    f=st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    eta=powers_of_ten(-2, 2),
    level=st.integers(0, 3),
)
def log_sum_exp_differences(
    f: list[float], eta: float, level: int, weights: Weights = signed_weights
) -> Iterator[Evidence]:
    """For the entropic phi, differences of log-sum-exp are the general construction."""
    n = 2**level
    v = np.array(f[:n])

    def u(x: Any) -> tuple[Any, Any]:
        e = np.exp((x - x.max()) / eta)
        return x.max() + eta * np.log(e.mean()), e / e.sum()

    value, gamma = u(v)
    if n > 1:
        halves = [u(v[: n // 2]), u(v[n // 2 :])]
        value = value - sum(h[0] for h in halves) / 2
        gamma = gamma - np.concatenate([h[1] for h in halves]) / 2
    xp = active().namespace
    got, w = weights(xp.asarray(v), eta, ENTROPIC, telescoping=True)
    rounding = 2.0**-44 * (1 + 1 / eta) * (1 + np.abs(v).max())
    yield Evidence(abs(float(got) - value), rounding, "the value")
    yield Evidence(float(np.abs(to_numpy(w) - gamma).max()), rounding, "the weights")


log_sum_exp_differences.mutant("weighs the halves by one")(halves_by_one)
