"""Beyond the paper: bounds on the robust value of Section 6.2, and bounded prices in Section 6.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, log, sqrt, tanh
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence
from phiball.refimpl.qlearning import Maximum, StatePerturbation, robust_value
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.conversion import array
from phiball.verification.instances.decision_processes import to_neighbourhood
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import ROUNDING

Value: TypeAlias = Callable[..., Array]


@claim(
    "Section 6.2, robust value",
    id="J2-bounds",
    verdict=Verdict.HOLDS,
    formula=r"\max_a \min Q(\cdot, a) \le V \le \max_a \mathbb{E}_{\beta} Q(\cdot, a) \le "
    r"\mathbb{E}_{\beta} \max_a Q(\cdot, a)",
    assumptions="phi(x) + c (x - 1) >= 0 for some c and all x; any neighbourhood",
    examples=60,
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=3),
    counts=st.lists(st.sampled_from([1, 0, 2, 1000]), min_size=4, max_size=4).filter(any),
    eta=powers_of_ten(-2.0, 2.0),
    d=divergences(),
)
def robust_value_is_between(
    rows: list[list[int]], counts: list[int], eta: float, d: Divergence, value: Value = robust_value
) -> Iterator[Evidence]:
    """The robust value V is at least max_a min Q and at most max_a mean Q, over the perturbations."""
    Q, p = np.array(rows, dtype=float).T, np.array(counts) / sum(counts)
    beta = to_neighbourhood([[0, 1, 2, 3]], [p])
    V, informed = (float(value(array(Q), StatePerturbation(beta, eta, d, kind))[0]) for kind in Maximum)
    yield Evidence(float(Q[p > 0].min(axis=0).max()) - V, 4 * ROUNDING, "V is at least max_a min Q")
    yield Evidence(V - float((p @ Q).max()), 4 * ROUNDING, "V is at most max_a mean Q")
    yield Evidence(V - informed, 4 * ROUNDING, "an agent that observes the perturbation does no worse")


@robust_value_is_between.mutant("uses a soft maximum over the perturbations")
def _(Q: Array, perturbation: StatePerturbation) -> Array:
    per_action = [-robust_value(-Q[:, a : a + 1], perturbation) for a in range(Q.shape[1])]
    return array_namespace(Q).max(array_namespace(Q).stack(per_action), axis=0)


@claim(
    "Section 6.2, robust value",
    id="J2-nominal",
    verdict=Verdict.HOLDS,
    formula=r"V(s) \le \max_a Q(s, a) \text{ may fail}",
)
def value_may_exceed_the_nominal(value: Value = robust_value) -> Iterator[Evidence]:
    """V can exceed max_a Q(s, a): 0.547 > 0 for eta = 1, Q = 0 at s and Q = 1 at two neighbours."""
    exact = -np.log((2 * np.exp(-1.0) + 1) / 3)
    perturbation = StatePerturbation(to_neighbourhood([[0, 1, 2]], [[1 / 3] * 3]), 1.0)
    V = float(value(array([[1.0], [0.0], [1.0]]), perturbation)[0])
    yield Evidence(abs(V - exact), ROUNDING, f"V = {V:.6f}, while Q = 0 at the state itself")
    yield Evidence(0.5 - V, 0.0, f"V = {V:.6f} > 0")


@value_may_exceed_the_nominal.mutant("returns the smallest value")
def _(Q: Array, perturbation: StatePerturbation) -> Array:
    return robust_value(Q, replace(perturbation, eta=1e-9))


Price: TypeAlias = Callable[[Any, Any, float], Any]

SIGMA = sqrt(10 * 0.05**2)
"""The standard deviation of beta'x for beta_1 = 0.05 (1, ..., 1) and beta_2 = 0.05 (1, -1, ...)."""


def exact_best_price(a: Any, b: Any, W: float) -> Any:
    """The w in [0, W] with the largest revenue a w^2 + b w, for b > 0: -b/(2a) if it is in [0, W], else W."""
    inside = a < -b / (2 * W)
    return np.where(inside, -b / (2 * np.where(inside, a, -1.0)), W)


def normal_density(u: float) -> float:
    """The density of N(0, SIGMA^2) at u."""
    return exp(-0.5 * (u / SIGMA) ** 2) / (SIGMA * sqrt(2 * np.pi))


def revenue_given(a: float, W: float) -> float:
    """The mean over b = exp(-2v), v ~ N(0, SIGMA^2), of the largest revenue for a fixed a, in closed form."""
    s = 2 * SIGMA  # standard deviation of log b
    if a >= 0:
        return a * W**2 + W * exp(s * s / 2)
    c = log(-2 * a * W)  # the best price is -b/(2a) if log b < c, else W
    low = exp(2 * s * s) * float(ndtr((c - 2 * s * s) / s)) / (-4 * a)
    high = a * W**2 * float(ndtr(-c / s)) + W * exp(s * s / 2) * float(ndtr((s * s - c) / s))
    return low + high


def optimal_revenue(W: float) -> float:
    """The optimal revenue -R*: the mean of `revenue_given` over a = tanh(3u), u ~ N(0, SIGMA^2)."""
    parts = (
        quad(lambda u: normal_density(u) * revenue_given(tanh(3 * u), W), low, high, epsabs=1e-12, limit=200)
        for low, high in ((-10 * SIGMA, 0.0), (0.0, 10 * SIGMA))
    )
    return float(sum(part[0] for part in parts))


@claim(
    "Pricing with w in [0, W]",
    id="P3",
    verdict=Verdict.HOLDS,
    formula=r"w^* = W \text{ if } a \ge -\frac{b}{2W}, \quad w^* = -\frac{b}{2a} \text{ otherwise}",
    assumptions="revenue a w^2 + b w with a = tanh(3 beta_1'x), b = exp(-2 beta_2'x) > 0 and w in [0, W]",
    a=st.one_of(st.sampled_from([0.0, -1.0, 1.0]), st.floats(-1, 1)),
    b=st.one_of(st.sampled_from([1.0, 0.1, 10.0]), st.floats(0.01, 20)),
    W=st.sampled_from([1.0, 0.5, 2.0]),
)
def best_bounded_price(a: float, b: float, W: float, price: Price = exact_best_price) -> Iterator[Evidence]:
    """With prices in [0, W] the best price is -b/(2a) if it lies in [0, W], and W otherwise."""
    w = float(price(np.float64(a), np.float64(b), W))
    yield Evidence(max(w - W, -w), 0.0, "the price is in [0, W]")
    grid = np.linspace(0, W, 1001)
    short = float((a * grid**2 + b * grid).max()) - (a * w**2 + b * w)
    yield Evidence(short, 2.0**-48 * (abs(a) * W**2 + b * W), "no price on a grid has a larger revenue")


@claim(
    "Pricing with w in [0, W]",
    id="P3-optimum",
    verdict=Verdict.HOLDS,
    formula=r"R^* = -\mathbb{E} \left[ a (w^*)^2 + b w^* \right] > -\infty",
    assumptions="beta_1 = 0.05 (1, ..., 1), beta_2 = 0.05 (1, -1, ..., 1, -1)",
)
def bounded_optimum(price: Price = exact_best_price) -> Iterator[Evidence]:
    """R* is finite: -0.525712773, -1.059390522 and -2.257046026 for W = 0.5, 1 and 2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(250)
    weights = weights / weights.sum()
    u, v = SIGMA * nodes[:, None], SIGMA * nodes[None, :]
    a, b = np.broadcast_arrays(np.tanh(3 * u), np.exp(-2 * v))
    for W, stated in ((0.5, 0.525712773), (1.0, 1.059390522), (2.0, 2.257046026)):
        w = price(a, b, W)
        mean = float(weights @ (a * w**2 + b * w) @ weights)
        exact = optimal_revenue(W)
        # The largest revenue is not smooth in (a, b): Gauss-Hermite with 250 points has errors of 1e-5.
        yield Evidence(abs(mean - exact), 1e-5, f"W = {W}: {mean:.7f} by Gauss-Hermite, {exact:.7f} by quad")
        yield Evidence(abs(exact - stated), 1e-9, f"W = {W}: R* = {-exact:.9f}")


@best_bounded_price.mutant("always returns the highest price")
@bounded_optimum.mutant("always returns the highest price")
def _(a: Any, b: Any, W: float) -> Any:
    return np.full_like(a, W)


# --- With a < 0 the optimal revenue can still be infinite -----------------------------------------


def truncated_mean(t: float, power: float = 1.0) -> float:
    """E[abs(a)^-power; abs(a) > t] for a = tanh(3u), u ~ N(0, SIGMA^2)."""
    # In y = log u the integrand is smooth for every t.
    low = log(np.arctanh(t) / 3)
    integral = quad(
        lambda y: 2 * exp(y) * normal_density(exp(y)) * tanh(3 * exp(y)) ** -power,
        *(low, log(10 * SIGMA)),
        epsabs=1e-10,
        limit=200,
    )
    return float(integral[0])


@claim(
    "Pricing with z_1 < 0",
    id="P1-sign",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \left[ \frac{b^2}{4 |a|} \right] = \infty",
    assumptions="a = E[z_1 | x] = -abs(tanh(3 beta_1'x)); b is as in P3; prices are unbounded",
)
def sign_is_not_enough(mean: Callable[[float], float] = truncated_mean) -> Iterator[Evidence]:
    """Even if a < 0, the optimal revenue is infinite: E[1/abs(a); abs(a) > t] grows like log(1/t)."""
    slope = 2 * normal_density(0.0) / 3  # the density of abs(a) at 0
    scales = [10.0**-k for k in (2, 4, 6, 8, 10)]
    values = [mean(t) for t in scales]
    for k in range(1, len(scales)):
        grown, expected = values[k] - values[k - 1], slope * log(100)
        # On [0, t] the density of abs(a) is constant up to a relative error of 1.2 t^2: 1e-4 for t = 1e-2.
        note = f"t = {scales[k]:g}: {values[k]:.4f}, {grown:.4f} more than at {scales[k - 1]:g}"
        yield Evidence(abs(grown / expected - 1), 2e-3, note)


sign_is_not_enough.mutant("uses abs(a)^(-1/2) instead of 1/abs(a)")(lambda t: truncated_mean(t, 0.5))
