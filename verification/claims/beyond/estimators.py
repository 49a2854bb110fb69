"""Beyond the paper: exact second moments of the gradient estimators, and a sharp bias bound for a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, rng, to_numpy
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    indicator,
    worst_case,
)
from phiball.refimpl.inner import dual_value
from phiball.refimpl.sampling import signed_weights
from phiball.refimpl.theory import gradient_second_moment
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import NAMED
from phiball.verification.instances.enumeration import (
    gradient_moments,
    largest_chi_square,
    level_weights,
    rt_moments,
)
from phiball.verification.instances.loss_distributions import (
    DiscreteDistribution,
    Mean,
    bias_of_order_statistics,
    bias_of_two,
    discrete_distributions,
    exact_chi_square,
    half_variance,
    simplex,
)
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import LARGEST_LOSS, MEAN_LOSS
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, ROUNDING, TEST_LEVEL
from phiball.verification.oracles import row_solver, uniform_losses

SLACK = 2.0**-40

# --- A random half --------------------------------------------------------------------------------


def _half_variance_formula(gamma: list[Fraction]) -> Fraction:
    return exact_chi_square(gamma) / (4 * (len(gamma) - 1))


@claim(
    "Lemma EC.4, sharpened",
    id="D7-exact",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\left[\sum_{i \in I} \gamma_i - \frac{1}{2}\right]^2 = \frac{1}{4 (m - 1)} "
    r"D_{\chi^2}\left(\gamma, \frac{1}{m}\right)",
    assumptions="gamma is in the simplex, m is even, I is a random half; D_chi2 = m sum (gamma_i - 1/m)^2",
    gamma=simplex(),
)
def random_half_variance_exactly(gamma: list[Fraction], value: Mean = _half_variance_formula) -> Evidence:
    """The mass of a random half of m points has variance exactly D_chi2/(4 (m - 1))."""
    return Evidence(float(abs(half_variance(gamma) - value(gamma))), 0.0)


random_half_variance_exactly.mutant("uses m instead of m - 1")(
    lambda gamma: exact_chi_square(gamma) / (4 * len(gamma))
)


# --- One level ------------------------------------------------------------------------------------


def _level_bound(n: int, mean_chi_square: float) -> float:
    """The bound E chi^2/(n - 1)."""
    return mean_chi_square / (n - 1)


def weights_at(eta: float, phi: Divergence) -> Callable[[Array], Array]:
    """The function that maps rows of losses to their optimal weights."""
    return lambda rows: worst_case(rows, eta, phi).weights


def _signed(rows: Array, eta: float, phi: Divergence) -> Array:
    """The weights of each row minus half the weights of its halves."""
    return signed_weights(rows, eta, phi, telescoping=True)[1]


@claim(
    "Proposition 3, proof of (II), sharpened",
    id="D6-level",
    verdict=Verdict.HOLDS,
    formula=(r"\mathbb{E}\|G^\ell\|_2^2 \le \frac{L_f^2\, \mathbb{E} \chi^2}{2^\ell - 1}, \quad \ell \ge 1"),
    assumptions="exact weights; any phi; chi^2 of the weights on all 2^l points",
    examples=120,
    distribution=discrete_distributions(3),
    phi=st.sampled_from(NAMED),
    level=st.integers(1, 2),
)
def level_second_moment(
    distribution: DiscreteDistribution,
    phi: Divergence,
    level: int,
    bound: Callable[[int, float], float] = _level_bound,
    weights: Callable[[Array, float, Divergence], Array] = _signed,
) -> Evidence:
    """E|G^l|^2 is at most L_f^2 times the mean chi-square of the weights, divided by 2^l - 1."""
    n = 2**level
    picks, w = level_weights(
        distribution.f, level, lambda rows: weights(rows, distribution.eta, phi), telescoping=False
    )
    exact = level_weights(distribution.f, level, weights_at(distribution.eta, phi), telescoping=False)[1]
    mean_chi_square = float(row_solver.chances(distribution.p, picks) @ row_solver.chi_square(exact))
    square = gradient_moments(distribution.p, distribution.g, picks, w)[1]
    limit = distribution.lipschitz**2 * bound(n, mean_chi_square)
    slack = SLACK * (1 + max(distribution.f) / distribution.eta)
    return Evidence.at_most(square, limit, slack, f"E|G^l|^2 = {square:.6g}, bound {limit:.6g}")


@level_second_moment.mutant("uses 2n instead of n - 1", replaces="bound")
def _(n: int, mean_chi_square: float) -> float:
    return mean_chi_square / (2 * n)


@level_second_moment.mutant("does not subtract the weights of the halves", replaces="weights")
def _(rows: Array, eta: float, phi: Divergence) -> Array:
    return worst_case(rows, eta, phi).weights


# --- The whole estimator --------------------------------------------------------------------------


@claim(
    "Proposition 3 (II), sharpened",
    id="D6-sharp",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\|V^{RT}\|_2^2 \le (2 - 2^{-L}) L_f^2 \left[1 + \sum_{\ell=1}^{L} 2^\ell "
    r"\min\left(1, \frac{C}{2^\ell - 1}\right)\right], \quad \mathbb{E}\|V^{SG}\|_2^2 \le L_f^2",
    assumptions="exact weights; any phi; chi-square at most C for all draws",
    examples=80,
    distribution=discrete_distributions(),
    phi=st.sampled_from(NAMED),
    level=st.integers(0, 3),
)
def whole_second_moment(
    distribution: DiscreteDistribution,
    phi: Divergence,
    level: int,
    bound: Callable[[SG | RTMLMC, float, float], float] = gradient_second_moment,
) -> Iterator[Evidence]:
    """E|V|^2 <= (2 - 2^-L) L_f^2 [1 + sum_l 2^l min(1, C/(2^l - 1))] for RT-MLMC, and L_f^2 for SG."""
    solve = weights_at(distribution.eta, phi)
    # If losses tie, the weights of some phi are not unique; C is computed from the weights of this solver.
    C = max(
        largest_chi_square(distribution, k, lambda f: to_numpy(solve(array(f)))) for k in range(level + 1)
    )
    square = rt_moments(distribution, level, solve)[1]
    limit = bound(RTMLMC(level), distribution.lipschitz, C)
    slack = 4**level * SLACK * (1 + max(distribution.f) / distribution.eta)
    yield Evidence.at_most(square, limit, slack, f"RT-MLMC: E|V|^2 = {square:.6g}, bound {limit:.6g}")
    plain = gradient_moments(
        distribution.p, distribution.g, *level_weights(distribution.f, level, solve, telescoping=False)
    )[1]
    yield Evidence.at_most(plain, bound(SG(level), distribution.lipschitz, C), slack, "SG")


@claim(
    "Proposition 3 (II), sharpened",
    id="D6-attained",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\|V^{RT}\|_2^2 = 2 - 2^{-L} \text{ for } C = 0, \quad \mathbb{E}\|V^{RT}\|_2^2 = "
    r"\frac{3}{2} (1 + 2\, \mathbb{E} \chi^2) \text{ for } L = 1",
    assumptions="a constant loss, or the losses 0 and 1 with gradients -1 and 1; chi^2 of two points",
)
def second_moment_is_attained(
    bound: Callable[[SG | RTMLMC, float, float], float] = gradient_second_moment,
) -> Iterator[Evidence]:
    """The bound of D6-sharp is attained for a constant loss, and at L = 1 for two losses."""
    constant = DiscreteDistribution((1.0, 1.0), ((1.0, 0.0), (1.0, 0.0)), (0.5, 0.5), 1.0)
    for level in range(4):
        square = rt_moments(constant, level, weights_at(1.0, QUADRATIC))[1]
        error = abs(square - bound(RTMLMC(level), 1.0, 0.0))
        yield Evidence(error, SLACK, f"a constant loss, L = {level}: E|V|^2 = {square:.6g}")
    # Half of the pairs have unequal losses, so the mean chi-square of two points is half its maximum.
    for phi, eta in ((QUADRATIC, 1.0), (QUADRATIC, 4.0), (ENTROPIC, 0.3), (ENTROPIC, 2.0)):
        distribution = DiscreteDistribution((0.0, 1.0), ((-1.0, 0.0), (1.0, 0.0)), (0.5, 0.5), eta)
        weights = row_solver.solve_closed_form(distribution.f, eta, phi.family or "")[1]
        mean_chi_square = float(row_solver.chi_square(weights)) / 2
        square = rt_moments(distribution, 1, weights_at(eta, phi))[1]
        error = abs(square - bound(RTMLMC(1), 1.0, mean_chi_square))
        yield Evidence(error, SLACK, f"{phi.name}, eta = {eta:g}, L = 1: E|V|^2 = {square:.6g}")


@whole_second_moment.mutant("omits level 0", replaces="bound")
@second_moment_is_attained.mutant("omits level 0", replaces="bound")
def _(estimator: SG | RTMLMC, lipschitz: float, C: float) -> float:
    if isinstance(estimator, SG):
        return gradient_second_moment(estimator, lipschitz, C)
    return gradient_second_moment(estimator, lipschitz, C) - (2 - 2.0**-estimator.level) * lipschitz**2


Weights: TypeAlias = Callable[..., tuple[Array, Array]]


def sharp_bias(n: int) -> float:
    """The bound G/(n + 1) with G = 1."""
    return 1 / (n + 1)


@claim(
    "Proposition EC.1, sharpened",
    id="D12-sharp",
    verdict=Verdict.HOLDS,
    formula=r"0 \le F(\theta) - F^\ell(\theta) \le \frac{G}{2^\ell + 1}",
    assumptions="the inverse distribution function is G-Lipschitz; any phi; checked for G = 1 and AV@R, "
    "which is linear in the order statistics",
    examples=150,
    slopes=st.lists(st.sampled_from([1.0, 0.0, 0.5, 0.1]), min_size=1, max_size=6),
    alpha=st.one_of(st.sampled_from([0.5, 0.25, 1.0, 0.01, 1e-6]), st.floats(0.01, 1.0)),
    n=st.sampled_from([1, 2, 4, 8, 16, 64]),
)
def sharp_bias_of_a_level(
    slopes: list[float],
    alpha: float,
    n: int,
    solve: Solver = worst_case,
    bound: Callable[[int], float] = sharp_bias,
) -> Iterator[Evidence]:
    """The expected optimum over n = 2^l points is at most G/(n + 1) below the risk."""
    # The inverse distribution function is piecewise linear through the points (u, x).
    u = np.linspace(0, 1, len(slopes) + 1)
    x = np.concatenate([[0.0], np.cumsum(np.array(slopes) / len(slopes))])
    means = row_solver.order_means(u, x, n)
    F = row_solver.average_value_at_risk(u, x, alpha)
    bias = F - float(solve(array(means), 1.0, indicator(alpha)).value)
    slack = ROUNDING / alpha  # AV@R divides an integral by alpha
    yield Evidence(-bias, slack, "the bias is nonnegative")
    yield Evidence.at_most(bias, bound(n), slack, f"bias {bias:.6g}, bound {bound(n):.6g}")


@claim(
    "Proposition EC.1, sharpened",
    id="D12-attained",
    verdict=Verdict.HOLDS,
    formula=r"\sup_{\phi, \eta} \frac{F - F^\ell}{G / (2^\ell + 1)} = 1",
    assumptions="f is uniform on [0, 1], G = 1",
)
def sharp_bias_is_attained(
    solve: Solver = worst_case, bound: Callable[[int], float] = sharp_bias
) -> Iterator[Evidence]:
    """The bias approaches G/(n + 1): for AV@R as alpha -> 0, and for the other phi as eta -> 0."""
    for n in (1, 2, 4, 16, 128, 1024):
        ratio = bias_of_order_statistics(n, 1e-8, solve) / bound(n)
        # F is 1 - alpha/2, so the ratio differs from 1 by (n + 1) alpha/2.
        yield Evidence(abs(1 - ratio), (n + 1) * 1e-8, f"AV@R at 1e-8, n = {n}: ratio {ratio:.9f}")
    # The ratio falls short of 1 by about (n + 1)(max f - R); `gap` is at least max f - R, see B5.
    for phi, gap in ((ENTROPIC, 4e-4), (QUADRATIC, 4e-2), (ABSOLUTE, 1e-4), (HINGE, 1e-4)):
        eta = 1e-5
        for n, bias in ((1, bias_of_one(eta, phi, solve)), (2, bias_of_two(eta, phi, solve))):
            ratio = bias / bound(n)
            yield Evidence(ratio - 1, 4 * ROUNDING, f"{phi.name}, eta = {eta:g}, n = {n}: ratio at most 1")
            yield Evidence(1 - ratio, (n + 1) * gap, f"{phi.name}, eta = {eta:g}, n = {n}: {ratio:.5f}")


def bias_of_one(eta: float, phi: Divergence, solve: Solver) -> float:
    """F - F^0 for f uniform on [0, 1]: the value of one point is its loss, with mean 1/2."""
    F = uniform_losses.optimal_value(eta, phi.family or "", phi.parameter)
    return F - float(solve(array([0.5]), eta, phi).value)


@sharp_bias_of_a_level.mutant("uses n + 2 instead of n + 1", replaces="bound")
@sharp_bias_is_attained.mutant("uses n + 2 instead of n + 1", replaces="bound")
def _(n: int) -> float:
    return 1 / (n + 2)


sharp_bias_of_a_level.mutant("returns the mean", replaces="solve")(MEAN_LOSS)
sharp_bias_is_attained.mutant("returns the mean", replaces="solve")(MEAN_LOSS)


@claim(
    "Section 3.1, levels",
    id="D12-monotone",
    verdict=Verdict.HOLDS,
    formula=r"F^{\ell-1}(\theta) \le F^\ell(\theta) \le F(\theta)",
    assumptions="any phi",
    examples=200,
    f=st.lists(
        st.one_of(st.integers(-3, 3).map(float), st.floats(-3, 3, width=32, allow_subnormal=False)),
        min_size=8,
        max_size=8,
    ),
    eta=powers_of_ten(-2, 2),
    phi=st.sampled_from(NAMED),
    level=st.integers(1, 3),
)
def levels_increase(
    f: list[float], eta: float, phi: Divergence, level: int, weights: Weights = signed_weights
) -> Iterator[Evidence]:
    """On every sample, the value of a level is at least the mean of the values of its two halves."""
    n = 2**level
    slack = ROUNDING * (1 + max(map(abs, f)))
    value = float(weights(array(f[:n]), eta, phi, telescoping=True)[0])
    yield Evidence(-value, slack, "the value of G^l is nonnegative")
    if phi.family in ("entropic", "quadratic", "indicator", "absolute", "hinge"):
        rows = np.array(f[:n])
        whole, *halves = (
            float(row_solver.solve_closed_form(part, eta, phi.family, phi.parameter)[0])
            for part in (rows, rows[: n // 2], rows[n // 2 :])
        )
        yield Evidence(abs(value - whole + sum(halves) / 2), slack, "the value of G^l by closed forms")


@levels_increase.mutant("adds the halves")
def _(rows: Array, eta: float, phi: Divergence, *, telescoping: bool) -> tuple[Array, Array]:
    value, w = signed_weights(rows, eta, phi, telescoping=True)
    return 2 * value - signed_weights(rows, eta, phi, telescoping=False)[0], w


# --- Linear losses on balls -----------------------------------------------------------------------

SIZES = (16, 64, 256, 1024, 4096)
ETA = 0.05


def _bias_by_quadrature(n: int, d: int) -> float:
    return row_solver.hinge_bias(n, d, ETA)


def sampled_bias(n: int, d: int, rows: int, solve: Solver, seed: int) -> tuple[float, float]:
    """An estimate of F - F^n for the hinge and f = b_1 on the unit ball of R^d, and its standard error.

    F is the expected dual value of a sample at mu* = 1 - eta. On every sample the dual value at this mu is at
    least the optimal value.
    """
    xp = active().namespace
    b = Ball(2, 1.0).sample(xp.zeros((rows, d), dtype=xp.float64), n, rng=rng(seed))
    f = b[..., 0]
    excess = to_numpy(dual_value(f, 1 - ETA, ETA, HINGE) - solve(f, ETA, HINGE).value)
    return float(excess.mean()), float(excess.std(ddof=1)) / rows**0.5


@claim(
    "Assumption 3 (II), linear losses",
    id="D11-rate",
    verdict=Verdict.HOLDS,
    formula=r"F - F^n \sim c\, n^{-2/(d+1)}, \qquad"
    r" \frac{Q(1) - Q(1 - u)}{u} \to \infty \quad (u \to 0),\ d \ge 2",
    assumptions="f = b_1 with b uniform on the unit ball of R^d; Q is the inverse distribution function of "
    "f; F^n is the objective with n points; the hinge, eta = 0.05",
    remark="The paper calls Assumption 3 (II) relatively mild. In two or more dimensions, however, the "
    "density of a linear loss vanishes at the boundary of the ball; then Q is not Lipschitz, and the bias "
    "falls more slowly than 1/n.",
    error_level=4 * TEST_LEVEL,
)
def bias_on_a_ball(
    bias: Callable[[int, int], float] = _bias_by_quadrature, solve: Solver = worst_case, seed: int = 0
) -> Iterator[Evidence | Curve]:
    """For a linear loss on a ball of R^d the bias for the hinge falls like n^(-2/(d+1))."""
    for d in (1, 2, 3, 5):
        sampled, error = sampled_bias(16, d, 2000, solve, seed)
        note = f"d = {d}, n = 16: {sampled:.4g} sampled, {bias(16, d):.4g} by quadrature"
        yield Evidence(abs(sampled - bias(16, d)), NORMAL_QUANTILE * error, note)
        curve = Curve(
            f"bias for the hinge, f linear on the ball of R^{d}",
            "points n",
            "F - F^n",
            "n^(-2/(d+1)) through the first point",
            SIZES,
            tuple(bias(n, d) for n in SIZES),
            tuple(bias(SIZES[0], d) * (n / SIZES[0]) ** (-2 / (d + 1)) for n in SIZES),
        )
        yield curve
        # The next term is smaller by a factor of n^(-2/(d+1)).
        yield curve.exactly(-2 / (d + 1), 0.03)
        t = np.array([1e-1, 1e-5])
        slopes = t / (1 - row_solver.coordinate_distribution(1 - t, d)[0])
        note = f"d = {d}: mean slope of Q {slopes[0]:.3g} where Q > 0.9, {slopes[1]:.3g} where Q > 1 - 1e-5"
        yield Evidence(20.0 - float(slopes[1] / slopes[0]) if d > 1 else 0.0, 0.0, note)


bias_on_a_ball.mutant("falls like 1/n", replaces="bias")(lambda n, d: _bias_by_quadrature(16, d) * 16 / n)
bias_on_a_ball.mutant("returns the largest loss", replaces="solve")(LARGEST_LOSS)
