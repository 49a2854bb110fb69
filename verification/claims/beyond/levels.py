"""Beyond the paper: sharper bounds and exact rates for the levels of the entropic risk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, expm1

from hypothesis import strategies as st

from phiball.refimpl import worst_case
from phiball.refimpl.sampling import signed_weights
from phiball.refimpl.theory import gradient_bias
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.enumeration import (
    ENUMERATED,
    LEVELS,
    Bound,
    Weights,
    difference_moment,
    gradient_error,
    level_mean,
)
from phiball.verification.instances.loss_distributions import (
    BOUNDED,
    LIPSCHITZ,
    TWO_POINTS,
    DiscreteDistribution,
    QuadraticLosses,
    Smoothness,
    bounded_distributions,
    gradient_change,
    quadratic_losses,
)
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import halves_by_one
from phiball.verification.oracles.exact_levels import two_point_level, two_point_limit


def small_ratio_bound(distribution: DiscreteDistribution, level: int) -> float:
    """2^-l eta (e^(B/eta) - 1)^2/8, since X = e^(f/eta) has variance at most (e^(B/eta) - 1)^2/4."""
    return distribution.eta * expm1(distribution.ratio) ** 2 / 8 * 2.0**-level


def large_ratio_bound(distribution: DiscreteDistribution, level: int) -> float:
    """2^-l eta (e^(B/(2 eta)) - 1)^2.

    With X = e^(f/eta) >= 1, F - F^l = eta E log(E X/mean X) is at most eta Var X/(2^l E X).
    """
    return distribution.eta * expm1(distribution.ratio / 2) ** 2 * 2.0**-level


def sharp_value_bound(distribution: DiscreteDistribution, level: int) -> float:
    """The smaller of `small_ratio_bound` and `large_ratio_bound`."""
    return min(small_ratio_bound(distribution, level), large_ratio_bound(distribution, level))


@claim(
    "Lemma EC.5 (I), sharpened",
    id="G1-sharp",
    verdict=Verdict.HOLDS,
    formula=r"0 \le F - F^{\ell} \le \eta \min\left( \frac{1}{8} \left( e^{B/\eta} - 1 \right)^2, "
    r"\left( e^{B/(2\eta)} - 1 \right)^2 \right) 2^{-\ell}",
    assumptions=BOUNDED,
    examples=150,
    distribution=bounded_distributions(),
    level=st.integers(0, 3),
)
def value_bias_is_smaller(
    distribution: DiscreteDistribution,
    level: int,
    solve: Solver = worst_case,
    bound: Bound = sharp_value_bound,
) -> Iterator[Evidence]:
    """0 <= F - F^l <= eta min((e^(B/eta) - 1)^2/8, (e^(B/(2 eta)) - 1)^2)/2^l.

    For small eta this bound grows like e^(B/eta), and the paper's like e^(2B/eta).
    """
    bias = distribution.limit[0] - level_mean(distribution, level, solve)[0]
    slack = distribution.eta * distribution.rounding
    yield Evidence(-bias, slack, "F^l <= F")
    yield Evidence.at_most(bias, bound(distribution, level), slack, f"F - F^l = {bias:.4g}")


value_bias_is_smaller.mutant("uses 32 instead of 8", replaces="bound")(
    lambda distribution, level: small_ratio_bound(distribution, level) / 4
)
value_bias_is_smaller.mutant("uses a quarter of the bound for small eta", replaces="bound")(
    lambda distribution, level: large_ratio_bound(distribution, level) / 4
)


def _half_chi_square(q: float, ratio: float) -> float:
    return two_point_limit(q, ratio)[2] / 2


@claim(
    "Lemma EC.5 (I), limit",
    id="G1-limit",
    verdict=Verdict.HOLDS,
    formula=r"\lim_{\ell \to \infty} 2^{\ell} (F - F^{\ell}) = \frac{\eta}{2} \chi^2",
    assumptions="chi^2 is the divergence of the worst case from nu; f = B with probability q, else 0; "
    "eta = 1; extrapolation from l = 6 and 7",
)
def value_bias_limit(
    solve: Solver = worst_case, limit: Callable[[float, float], float] = _half_chi_square
) -> Iterator[Evidence]:
    """As l grows, 2^l (F - F^l) tends to eta/2 times the chi-square of the worst case."""
    for q in (0.5, 0.1, 0.9):
        for ratio in (0.5, 1.0, 2.0):
            distribution = replace(TWO_POINTS, f=(0.0, ratio), p=(1 - q, q))
            F, levels = distribution.limit[0], (6, 7)
            scaled = [2**k * (F - level_mean(distribution, k, solve)[0]) for k in levels]
            # The next term is of order 2^-l; extrapolation from two levels leaves an error of order 4^-l.
            extrapolated = 2 * scaled[1] - scaled[0]
            slack = exp(2 * ratio) * 4.0 ** -levels[0]
            note = f"q = {q}, B = {ratio}: {extrapolated:.6g}, limit {limit(q, ratio):.6g}"
            yield Evidence(abs(extrapolated - limit(q, ratio)), slack, note)


value_bias_limit.mutant("omits the factor 1/2", replaces="limit")(
    lambda q, ratio: two_point_limit(q, ratio)[2]
)


# --- The gradient ---------------------------------------------------------------------------------

Bias = Callable[..., float]


@claim(
    "Lemma EC.5 (II), sharpened",
    id="G2-sharp",
    verdict=Verdict.HOLDS,
    formula=r"\left\| \nabla F^{\ell} - \nabla F \right\|_2 \le L_f \, r (r - 1) 2^{-\ell},"
    r" \quad r = e^{B/(2\eta)}",
    assumptions=LIPSCHITZ,
    examples=150,
    distribution=bounded_distributions(),
    level=st.integers(0, 3),
)
def gradient_bias_by_cauchy_schwarz(
    distribution: DiscreteDistribution, level: int, solve: Solver = worst_case, bias: Bias = gradient_bias
) -> Evidence:
    """The gradient's bias is at most L_f r (r - 1)/2^l, r = e^(B/(2 eta)); the paper has rate 2^(-l/2)."""
    bound = bias(level, lipschitz=distribution.lipschitz, bound=distribution.height, eta=distribution.eta)
    error = gradient_error(distribution, level, solve) ** 0.5
    note = f"bias {error:.4g}, bound {bound:.4g}"
    return Evidence.at_most(error, bound, distribution.lipschitz * distribution.rounding, note)


@claim(
    "Lemma EC.5 (II), rate",
    id="G2-order",
    verdict=Verdict.HOLDS,
    formula=r"\left\| \nabla F^{\ell} - \nabla F \right\|_2^2 = \Theta(4^{-\ell})",
    assumptions="f = 0 or 1 with equal probabilities and gradients -1 or 1, eta = 1; l = 0, ..., 8",
)
def gradient_bias_order(solve: Solver = worst_case, bias: Bias = gradient_bias) -> Iterator[Evidence | Curve]:
    """The squared bias of the gradient falls like 4^-l; the paper's bound falls like 2^-l."""
    errors = [gradient_error(TWO_POINTS, k, solve) for k in LEVELS]
    bounds = [bias(k, lipschitz=1.0, bound=1.0, eta=1.0) ** 2 for k in LEVELS]
    x = tuple(2.0**k for k in LEVELS)
    label = "L_f^2 r^2 (r - 1)^2/4^l"
    curve = Curve(
        "squared bias of the gradient", "2^l", "|grad F^l - grad F|^2", label, x, tuple(errors), tuple(bounds)
    )
    yield curve
    yield curve.below_bound()
    yield curve.exactly(-2, 0.12)  # 4^l times the curve falls from 0.214 to its limit 0.132


@gradient_bias_by_cauchy_schwarz.mutant("falls like 4^-l", replaces="bias")
@gradient_bias_order.mutant("falls like 4^-l", replaces="bias")
def _(level: int, *, lipschitz: float, bound: float, eta: float) -> float:
    return gradient_bias(2 * level, lipschitz=lipschitz, bound=bound, eta=eta)


# --- The differences ------------------------------------------------------------------------------


def chi_square_level_bound(distribution: DiscreteDistribution, level: int) -> float:
    """The bound L_f^2 sinh^2(B/(2 eta))/(2^l - 1), for l >= 1."""
    return distribution.lipschitz**2 * distribution.chi_square / float(2**level - 1)


@claim(
    "Lemma EC.5 (III), sharpened",
    id="G3-sharp",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \left\| G^{\ell} \right\|_2^2 \le \frac{L_f^2}{2^{\ell} - 1}"
    r" \sinh^2 \left( \frac{B}{2\eta} \right), \quad \ell \ge 1",
    assumptions=LIPSCHITZ,
    examples=150,
    distribution=bounded_distributions(),
    level=st.integers(1, 3),
)
def difference_by_chi_square(
    distribution: DiscreteDistribution,
    level: int,
    weights: Weights = signed_weights,
    bound: Bound = chi_square_level_bound,
) -> Evidence:
    """The second moment of the difference of level l >= 1 is at most L_f^2 sinh^2(B/(2 eta))/(2^l - 1)."""
    moment = difference_moment(distribution, level, weights)
    slack = distribution.lipschitz**2 * distribution.rounding
    return Evidence.at_most(moment, bound(distribution, level), slack)


difference_by_chi_square.mutant("uses a quarter of the constant", replaces="bound")(
    lambda distribution, level: chi_square_level_bound(distribution, level) / 4
)


LevelValue = Callable[[int, float, float], float]


def _moment(level: int, q: float, ratio: float) -> float:
    """E|G^l|^2 for f/eta = `ratio` with probability q and 0 otherwise, by a binomial sum."""
    return two_point_level(level, q, ratio).moment


@claim(
    "Lemma EC.5 (III), rate",
    id="G3-order",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \left\| G^{\ell} \right\|_2^2 = \Theta(4^{-\ell})",
    assumptions="f = 0 or 1 with equal probabilities and gradients -1 or 1, eta = 1; l = 3, ..., 8",
)
def difference_order(
    weights: Weights = signed_weights, exact: LevelValue = _moment
) -> Iterator[Evidence | Curve]:
    """The second moment of the difference of level l falls like 4^-l; the paper's bound like 2^-l."""
    levels = LEVELS[3:]
    moments = []
    for k in levels:
        moments.append(exact(k, 0.5, 1.0))
        if k in ENUMERATED:
            error = abs(moments[-1] - difference_moment(TWO_POINTS, k, weights))
            yield Evidence(error, TWO_POINTS.rounding, f"E|G^{k}|^2 by enumeration and by a binomial sum")
    bounds = tuple(chi_square_level_bound(TWO_POINTS, k) for k in levels)
    x = tuple(2.0**k for k in levels)
    curve = Curve(
        "second moment of a level",
        "2^l",
        "E|G^l|^2",
        "L_f^2 sinh^2(B/(2 eta))/(2^l - 1)",
        x,
        tuple(moments),
        bounds,
    )
    yield curve
    yield curve.below_bound()
    yield curve.exactly(-2, 0.2)  # 4^l times the curve falls from 0.66 to its limit 0.40


difference_order.mutant("subtracts the halves in full", replaces="weights")(halves_by_one)


@difference_order.mutant("uses the moment of the level below", replaces="exact")
def _(level: int, q: float, ratio: float) -> float:
    return _moment(level - 1, q, ratio)


# --- Smoothness -----------------------------------------------------------------------------------


def sharp_smoothness(f: QuadraticLosses) -> float:
    """S_f + L_f^2/eta: the Hessian is the mean Hessian of f plus 1/eta times the variance of grad f."""
    return f.smoothness + f.lipschitz**2 / f.eta


@claim(
    "Lemma EC.5 (IV), sharpened",
    id="G4-sharp",
    verdict=Verdict.HOLDS,
    formula=r"\left\| \nabla F^{\ell}(\theta) - \nabla F^{\ell}(\theta') \right\|"
    r" \le \left( S_f + \frac{L_f^2}{\eta} \right) \| \theta - \theta' \|",
    assumptions="f is L_f-Lipschitz and S_f-smooth in theta, bounded or not; the entropic phi",
    examples=120,
    f=quadratic_losses(),
    places=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
)
def level_is_smooth_without_exponentials(
    f: QuadraticLosses,
    places: tuple[float, float],
    solve: Solver = worst_case,
    smoothness: Smoothness = sharp_smoothness,
) -> Evidence:
    """Every F^l is S-smooth with S = S_f + L_f^2/eta, for bounded and unbounded f."""
    change, distance = gradient_change(f, places, solve)
    note = f"the gradient changes by {change:.4g} over a distance of {distance:.4g}"
    return Evidence.at_most(change, smoothness(f) * distance, f.rounding, note)


@level_is_smooth_without_exponentials.mutant("uses half the variance", replaces="smoothness")
def _(f: QuadraticLosses) -> float:
    return f.smoothness + f.lipschitz**2 / (2 * f.eta)
