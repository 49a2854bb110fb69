"""Section 3, Proposition 3 (I) and Assumption 3 (II): the bias of a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, bisection, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import each, in_the_definition, strongly_convex
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import restricted
from phiball.verification.instances.enumeration import bisected_weights, gradient_moments, level_weights
from phiball.verification.instances.loss_distributions import (
    bias_by_sampling,
    bias_of_order_statistics,
    bias_of_two,
)
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import LARGEST_LOSS
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL
from phiball.verification.oracles import row_solver

# --- Proposition 3 (I): the expectation of V ------------------------------------------------------

POINTS = np.array([(1.0, 0.0), (0.0, 1.0), (-1.0, 0.3), (0.5, -1.0)])  # f_theta(z_i) = a_i . theta


def _mean(theta: Any, level: int, solve: Callable[[Array], Array], points: Any = POINTS) -> Any:
    """E V at theta, for the uniform distribution on the points."""
    p = (1 / len(points),) * len(points)
    return gradient_moments(p, points, *level_weights(points @ theta, level, solve, telescoping=False))[0]


def level_value(theta: Any, level: int, eta: float, phi: Divergence, points: Any = POINTS) -> float:
    """F^l at theta: the mean over all draws of 2^l points of the value in closed form."""
    rows = (points @ theta)[row_solver.draws(len(points), 2**level)]
    return float(row_solver.solve_closed_form(rows, eta, phi.family or "", phi.parameter)[0].mean())


@claim(
    "Proposition 3 (I)",
    id="D4",
    verdict=Verdict.CORRECTED,
    formula=r"\mathbb{E} V^{SG} = \mathbb{E} V^{RT} = \nabla \widetilde{F}, \quad |\widetilde{F} - F| \le "
    r"\epsilon + G\, 2^{-L}",
    assumptions="f is convex in theta; the inner problem is solved to precision eps",
    quote=r"$\bE[V^{\SG}(\theta)]=\bE[V^{\RTMLMC}(\theta)]=\nabla\widetilde{F}(\theta)$, where "
    r"$|\widetilde{F}(\theta) - F(\theta)|\le \epsilon + G_{\mathrm{idf}}\cdot 2^{-L}$.",
    correction="if gamma is divided by its sum and is optimal up to eps in the primal, E V is an "
    "eps-subgradient of F^L, and F - F^L is between 0 and G/(2^L + 1). This is sufficient for Theorem 2",
    assessment=Assessment(
        Kind.FALSE,
        Consequence.RESULT,
        "If the weights are only nearly optimal, E V need not be the gradient of any function.",
    ),
    corrected=r"F^L(\theta') \ge F^L(\theta) + \langle \mathbb{E} V(\theta), \theta' - \theta \rangle - "
    r"\epsilon",
    examples=80,
    theta=st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
    other=st.tuples(st.floats(-50, 50), st.floats(-50, 50)),
    eta=powers_of_ten(-1, 1),
    eps=powers_of_ten(-4, -1),
    phi=st.sampled_from([QUADRATIC, ENTROPIC]),
    level=st.integers(0, 1),
    shift=st.sampled_from([0.0, 10.0]),
)
def expectation_is_a_subgradient(
    theta: tuple[float, float],
    other: tuple[float, float],
    eta: float,
    eps: float,
    phi: Divergence,
    level: int,
    shift: float,
    solve: Solver = bisection,
) -> Iterator[Evidence]:
    """The expectation of the estimator is an eps-subgradient of F^L, the objective with 2^L points."""
    point, points = np.array(theta), POINTS + shift
    V = _mean(point, level, lambda rows: solve(rows, eta, phi, tol=eps).weights, points)
    at = level_value(point, level, eta, phi, points)
    # At theta' = 0 all losses are equal; this theta' detects wrong weights best.
    for target in (np.array(other), np.zeros(2)):
        excess = at + float(V @ (target - point)) - eps - level_value(target, level, eta, phi, points)
        yield Evidence(excess, 2.0**-40 * (1000 + eta), f"theta' = {target}")


ARC, LARGEST_RATIO = 64, 4.0  # the number of midpoints of [0, 1], and the upper end of the domain of phi


def _arc() -> Any:
    """a(x) = (cos pi x, sin pi x) at the midpoints: f_theta(x) = a(x) . theta for x uniform on [0, 1]."""
    x = (np.arange(ARC) + 0.5) / ARC
    return np.stack([np.cos(np.pi * x), np.sin(np.pi * x)], axis=-1)


def _within_section_3() -> Iterator[Evidence]:
    phi = restricted(ENTROPIC, 0.0, LARGEST_RATIO)
    yield from in_the_definition(phi)
    yield from strongly_convex(phi, 1 / LARGEST_RATIO)
    # Ratios x in [0, 4] with mean 1 satisfy E x^2 <= 4.
    found = []
    for losses in ([0.0] * 63 + [1e6], [0.0] * 3 + [1e6], [0.0] * 8 + [1e6] * 8):
        ratios = len(losses) * np.array(to_floats(worst_case(array(losses), 1.0, phi).weights))
        found.append(float(np.mean((ratios - 1) ** 2)))
    note = f"Assumption 3 (I) (chi-square <= C = {LARGEST_RATIO - 1:g} for m = 4, 16 and 64)"
    yield Evidence.at_most(max(found), LARGEST_RATIO - 1, 1e-6, note)
    # f = |theta| cos(pi x - omega) has at most one turning point, so its inverse cdf has slope <= pi |theta|.
    slopes = []
    for theta in ((1.0, 0.0), (0.6, -0.8), (0.0, 2.0)):
        f = np.sort(_arc() @ np.array(theta))
        slopes.append(float(np.diff(f).max()) * ARC / float(np.linalg.norm(theta)))
    note = "Assumption 3 (II) (inverse cdf pi |theta|-Lipschitz for theta = (1, 0), (0.6, -0.8) and (0, 2))"
    yield Evidence.at_most(max(slopes), np.pi, 1e-9, note)
    lengths = np.linalg.norm(_arc(), axis=1)
    yield from each(("f linear (hence convex) in theta and 1-Lipschitz", bool(np.all(lengths <= 1 + 1e-15))))


@expectation_is_a_subgradient.counterexample(margin=0.1, meets=_within_section_3)
def _curl() -> Evidence:
    phi, eta, theta, h = restricted(ENTROPIC, 0.0, LARGEST_RATIO), 1.0, np.array([1.0, 0.0]), 1e-5

    def curl(T: int) -> float:
        ahead, behind = (
            [
                _mean(theta + s * h * e, 1, lambda rows: bisected_weights(rows, eta, phi, T), _arc())
                for e in np.eye(2)
            ]
            for s in (1, -1)
        )
        return float((ahead[0] - behind[0])[1] - (ahead[1] - behind[1])[0]) / (2 * h)

    after_1, after_60 = curl(1), curl(60)
    f, x = _arc() @ theta, (np.arange(ARC) + 0.5) / ARC
    u = (f[:, None] - f) / 2
    gap = float((np.cosh(u) - 1 - np.log(np.cosh(u))).max())
    by_hand = float((np.sinh(u) * np.sin(np.pi * (x - x[:, None])) / 2).mean())
    return Evidence(
        min(abs(after_1), abs(by_hand)) - abs(after_60),
        0.0,
        "phi = x log x - x + 1 on [0, 4] and infinite elsewhere; eta = 1, L = 1; f_theta(x) = theta_1 "
        "cos(pi x) + theta_2 sin(pi x) for x uniform on [0, 1]; Theta is the disc |theta| <= 2, so G_idf = "
        "2 pi; theta = (1, 0). For points x_1 and x_2, one bisection step gives mu = (f_1 + f_2)/2, which "
        f"is optimal up to eps = {gap:.2f}, and gamma = (e^u, e^-u)/2 with u = (f_1 - f_2)/2. The curl of V "
        "is sinh(u) sin(pi (x_2 - x_1))/2; both factors are positive if x_1 < x_2 and negative if x_1 > x_2. "
        f"So E V has curl {by_hand:.4f} ({after_1:.4f} by finite differences) and is not a gradient, as "
        "gradients have curl 0. After 60 steps the curl is "
        f"{'below 1e-6' if abs(after_60) < 1e-6 else after_60}",
    )


@expectation_is_a_subgradient.mutant("does not divide gamma by its sum")
def _(rows: Array, eta: float, phi: Divergence, *, tol: float) -> WorstCase:
    exact = worst_case(rows, eta, phi)
    return WorstCase(exact.value, exact.mu, bisected_weights(rows, eta, phi, 3), exact.gap, exact.eta)


# --- The bias of a level --------------------------------------------------------------------------


def printed_bias(n: int) -> float:
    """G 2^-l, with n = 2^l and G = 1."""
    return 1 / n


@claim(
    "Proposition EC.1",
    id="D12",
    verdict=Verdict.HOLDS,
    formula=r"0 \le F(\theta) - F^\ell(\theta) \le G\, 2^{-\ell}",
    assumptions="the inverse distribution function of the loss is G-Lipschitz; here f is uniform on [0, 1] "
    "and G = 1",
    error_level=36 * TEST_LEVEL,  # two tests for each of two phi and nine n
)
def bias_of_a_level(
    solve: Solver = worst_case, bound: Callable[[int], float] = printed_bias, seed: int = 0
) -> Iterator[Evidence | Curve]:
    """Replacing the distribution by n = 2^l sampled points lowers the expected risk, by at most G/n."""
    rounding = 2.0**-44
    for n in (1, 2, 4, 16, 128):
        for alpha in (1e-6, 0.01, 0.05, 0.1, 0.25, 0.5, 0.7, 0.95, 1.0):
            bias = bias_of_order_statistics(n, alpha, solve)
            yield Evidence(-bias, rounding, f"AV@R at {alpha:.3g}, n = {n}: not negative")
            yield Evidence.at_most(bias, bound(n), rounding, f"AV@R at {alpha:.3g}, n = {n}: {bias:.6g}")
    for phi in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE):
        for eta in (1e-3, 0.01, 0.1, 0.3, 1.0, 10.0):
            bias = bias_of_two(eta, phi, solve)
            yield Evidence(-bias, rounding, f"{phi.name}, eta = {eta:g}, n = 2: not negative")
            yield Evidence.at_most(bias, bound(2), rounding, f"{phi.name}, eta = {eta:g}, n = 2: {bias:.6g}")
    sizes = [2**level for level in range(9)]
    for phi in (ENTROPIC, QUADRATIC):
        biases = [bias_by_sampling(n, 0.1, phi, solve, rows=max(1000, 20000 // n), seed=seed) for n in sizes]
        for n, (bias, error) in zip(sizes, biases, strict=True):
            yield Evidence(-bias, NORMAL_QUANTILE * error, f"{phi.name}, eta = 0.1, n = {n}: not negative")
            yield Evidence(
                bias - bound(n), NORMAL_QUANTILE * error, f"{phi.name}, eta = 0.1, n = {n}: {bias:.4g}"
            )
        yield Curve(
            f"bias of a level, {phi.name}, f uniform",
            "points 2^l",
            "F - F^l",
            "printed bound G 2^-l",
            tuple(sizes),
            tuple(bias for bias, _ in biases),
            tuple(bound(n) for n in sizes),
        )


bias_of_a_level.mutant("returns the largest loss", replaces="solve")(LARGEST_LOSS)
bias_of_a_level.mutant("decreases like 4^-l", replaces="bound")(lambda n: 1 / n**2)


# --- A density bounded below -----------------------------------------------------------------------

Pieces: TypeAlias = list[tuple[int, int]]


def _largest_slope(pieces: Pieces) -> Fraction:
    """1/Upsilon, where Upsilon is the smallest density; each piece is (width, unnormalised mass)."""
    whole = sum(mass for _, mass in pieces)
    return max(Fraction(width * whole, mass) for width, mass in pieces)


def _quantile(pieces: Pieces, u: Fraction) -> Fraction:
    """The inverse distribution function of a density that is constant on adjacent pieces."""
    whole, x, below = sum(mass for _, mass in pieces), Fraction(0), Fraction(0)
    for width, mass in pieces:
        share = Fraction(mass, whole)
        if u <= below + share:
            return x + (u - below) / share * width
        x, below = x + width, below + share
    return x


@claim(
    "Assumption 3 (II), density bounded below",
    id="D10",
    verdict=Verdict.CORRECTED,
    formula=r"p \ge \Upsilon \text{ on its support} \;\Rightarrow\; |Q(u) - Q(v)| \le \frac{1}{\Upsilon} |u "
    r"- v|",
    assumptions="p is the density and Q the inverse distribution function of the loss",
    quote=r"As long as the probability density of $f_{\theta}(Z)$ is lower bounded by $\Upsilon$ within its "
    r"support",
    correction="true if the support is an interval, as it is if f is continuous in z",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "If the support has a gap, the inverse distribution function jumps over it.",
    ),
    corrected=r"p \ge \Upsilon \text{ on } [a, b],\; p = 0 \text{ elsewhere} \;\Rightarrow\; |Q(u) - Q(v)| "
    r"\le \frac{1}{\Upsilon} |u - v|",
    pieces=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    u=st.fractions(0, 1, max_denominator=60),
    v=st.fractions(0, 1, max_denominator=60),
)
def density_bounded_below(
    pieces: Pieces, u: Fraction, v: Fraction, slope: Callable[[Pieces], Fraction] = _largest_slope
) -> Iterator[Evidence]:
    """If the density is at least Upsilon on an interval, its inverse cdf is 1/Upsilon-Lipschitz."""
    distance = abs(_quantile(pieces, u) - _quantile(pieces, v))
    yield Evidence(float(distance - slope(pieces) * abs(u - v)), 0.0, f"the quantiles are {distance} apart")
    # The piece with the smallest density attains the constant.
    whole, below = sum(mass for _, mass in pieces), 0
    ends = [(below := below + mass) for _, mass in pieces]
    slopes = [
        (_quantile(pieces, Fraction(end, whole)) - _quantile(pieces, Fraction(end - mass, whole)))
        / Fraction(mass, whole)
        for end, (_, mass) in zip(ends, pieces, strict=True)
    ]
    yield Evidence(float(abs(max(slopes) - slope(pieces))), 0.0, "1/Upsilon is attained")


GAP_U, GAP_X = [0.0, 0.5, 0.5 + 1e-12, 1.0], [0.0, 1.0, 10.0, 11.0]


def _within_gap() -> Iterator[Evidence]:
    # The density is 1/slope of the quantile function. The middle piece is its jump over the gap.
    slopes = [(b - a) / (v - u) for u, v, a, b in zip(GAP_U, GAP_U[1:], GAP_X, GAP_X[1:], strict=False)]
    dense = all(1 / slope >= 0.5 * (1 - 1e-9) for slope in (slopes[0], slopes[2]))
    yield from each(("density at least 1/2 on the support", dense))


@density_bounded_below.counterexample(margin=2.9, meets=_within_gap)
def _gap() -> Evidence:
    u, x = GAP_U, GAP_X
    bias = row_solver.average_value_at_risk(u, x, 0.5) - float(row_solver.order_means(u, x, 1)[0])
    return Evidence(
        bias - 2.0,
        0.0,
        "f uniform on the union of [0, 1] and [10, 11], so Upsilon = 1/2 and G = 1/Upsilon = 2: AV@R with "
        f"alpha = 1/2 is 10.5, and E f is 5.5, so the bias of level 0 is {bias:.4g}, above G = 2",
    )


@density_bounded_below.mutant("uses the largest density")
def _(pieces: Pieces) -> Fraction:
    return min(Fraction(w * sum(m for _, m in pieces), mass) for w, mass in pieces)
