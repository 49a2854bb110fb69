"""Section 6.3 of the paper: the pricing problem, whether it has a solution, and how it is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active
from phiball.refimpl import Conditional, conditional_loss
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import each

# --- The problem ----------------------------------------------------------------------------------

Sensitivity: TypeAlias = Callable[[Any], Any]
Psi: TypeAlias = Callable[[Array, Array], Array]


def printed_sensitivity(t: Any) -> Any:
    """E[z_1 | x] as a function of t = beta_1'x."""
    return np.tanh(3 * t)


def cost(w: Array, z: Array) -> Array:
    """Psi(w, z) = -w z'(w, 1), for n prices and n coefficients."""
    return -w * (z[:, 0] * w + z[:, 1])


def erm_curvature(M: int, m: int, seed: int, sensitivity: Sensitivity) -> float:
    """The least eigenvalue of half the Hessian of the empirical risk in theta, on a drawn training set.

    With f_theta(x) = theta'g(x) it is -G' diag(mean z_1) G/M: m coefficients z for each of M covariates x.
    """
    rng = np.random.default_rng(seed)
    beta1 = rng.uniform(-0.1, 0.1, size=10)
    x, omega, b = rng.normal(size=(M, 10)), rng.normal(size=(100, 10)), rng.uniform(0, 2 * np.pi, size=100)
    g = np.cos(x @ omega.T + b)
    z1 = sensitivity(x @ beta1) + rng.normal(size=(m, M)).mean(axis=0)
    return float(np.linalg.eigvalsh(-(g.T * z1) @ g / M)[0])


def _unbounded(sensitivity: Sensitivity) -> Iterator[Evidence]:
    for M in (25, 50, 100, 200):
        for trial in range(3):
            least = erm_curvature(M, 100, trial, sensitivity)
            note = f"M = {M}, m = 100, trial {trial}: least eigenvalue {least:.4f}"
            # The matrix has 100 features of size 1: rounding is a few units of its norm, 100 at most.
            yield Evidence(-least, 1e-11, note)


@claim(
    "Section 6.3, pricing",
    id="P1",
    verdict=Verdict.REFUTED,
    formula=r"\inf_{\theta} \mathbb{E} \Psi(\theta^{\top} g(x), z) > -\infty, \quad "
    r"\Psi(w, z) = -w z^{\top} (w, 1)^{\top}",
    assumptions="the printed law of x and z, linear rules on 100 random features, w in R",
    quote=r"where $\mathcal{R}^*$ denotes the ground truth optimal revenue",
    correction="prices have to be bounded, which the paper does not say: see P3",
    remark="The risk of a training set is unbounded as well, wherever the mean of z_1 is positive at one x_i "
    "that the features tell from the others; so it was on each that we drew.",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "E[z_1 | x] is positive for half of the x, where the revenue grows like the square of the price, so "
        "that the optimal revenue is infinite.",
    ),
)
def pricing_has_a_solution(sensitivity: Sensitivity = printed_sensitivity) -> Iterator[Evidence]:
    """The empirical risk of the pricing problem is bounded below: its Hessian has no negative eigenvalue."""
    yield from _unbounded(sensitivity)


def _within_revenue_grows() -> Iterator[Evidence]:
    z = float(printed_sensitivity(1.0))
    printed = abs(z - float(np.tanh(3.0))) < 1e-15
    yield from each(("the mean of z given x is that of the printed law", printed))


@pricing_has_a_solution.counterexample(margin=9e5, meets=_within_revenue_grows)
def _revenue_grows() -> Evidence:
    # One x with beta_1'x = 1, beta_2'x = 0, and the mean of z given it; the loss is linear in z.
    xp = active().namespace
    z = [float(printed_sensitivity(1.0)), 1.0]
    data = Conditional.stacked(xp.zeros((1, 1), dtype=xp.float64), array([[z]]), weight=None)
    loss = conditional_loss(lambda x: x[:, 0], cost, data, linear=True)
    prices = [1.0, 10.0, 1000.0]
    revenue = [-float(loss(array([[w]]), xp.asarray([0], dtype=xp.int64))[0]) for w in prices]
    shown = ", ".join(f"{r:.4g} at w = {w:g}" for r, w in zip(revenue, prices, strict=True))
    words = "at an x with beta_1'x = 1, beta_2'x = 0 the expected revenue of the price w is tanh(3) w^2 + w"
    return Evidence(revenue[-1], 0.0, f"{words}: {shown}")


@pricing_has_a_solution.mutant("demand that falls with the price everywhere")
def _(t: Any) -> Any:
    return -np.ones_like(t)


# --- The score ------------------------------------------------------------------------------------

Score: TypeAlias = Callable[[Fraction, Fraction, Fraction], Fraction]


def improvement(risk: Fraction, erm: Fraction, best: Fraction) -> Fraction:
    """J = 1 - (R - R*)/(R_ERM - R*)."""
    return 1 - (risk - best) / (erm - best)


_NUMBERS = st.fractions(-10, 10, max_denominator=20)


@claim(
    "Section 6.3, improvement",
    id="P2",
    verdict=Verdict.HOLDS,
    formula=r"J(\theta) = 1 - \frac{R(\theta) - R^*}{R(\theta_{ERM}) - R^*}",
    assumptions="R(theta_ERM) is not R*",
    remark="Arithmetic on the printed formula: it says what the score means, and nothing of any model.",
    examples=50,
    risk=_NUMBERS,
    erm=_NUMBERS,
    best=_NUMBERS,
    scale=st.fractions(-5, 5, max_denominator=10).filter(bool),
    offset=_NUMBERS,
)
def score_is_a_share(
    risk: Fraction,
    erm: Fraction,
    best: Fraction,
    scale: Fraction,
    offset: Fraction,
    score: Score = improvement,
) -> Iterator[Evidence]:
    """J is the part of the gap of ERM that is closed, and the same for a loss and for a revenue."""
    if erm == best:
        return
    yield Evidence(abs(float(score(best, erm, best) - 1)), 0.0, "1 at the optimum")
    yield Evidence(abs(float(score(erm, erm, best))), 0.0, "0 for ERM")
    half = (erm + best) / 2
    yield Evidence(abs(float(score(half, erm, best) - Fraction(1, 2))), 0.0, "1/2 in the middle")
    plain = score(risk, erm, best)
    turned = score(*(scale * v + offset for v in (risk, erm, best)))
    yield Evidence(abs(float(plain - turned)), 0.0, "in other units, also with the sign changed")


@score_is_a_share.mutant("relative to the optimum")
def _(risk: Fraction, erm: Fraction, best: Fraction) -> Fraction:
    return (erm - risk) / best if best else Fraction(0)
