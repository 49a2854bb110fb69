"""Beyond the paper: sampling from tilted distributions, with weights that preserve the risk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import exp, expm1, inf, log, log10, prod, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import t as student

from phiball.backends import Array, Rng, active, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    Gaussian,
    RegularizedLoss,
    Tilted,
    Uniform,
    robust_risk,
)
from phiball.refimpl.sampling import signed_weights
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.conversion import array
from phiball.verification.instances.loss_distributions import Sampler, tilted_sample
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL
from phiball.verification.oracles import row_solver
from phiball.verification.oracles.certainty_equivalents import ball_log_mgf

# --- A linear loss --------------------------------------------------------------------------------

Estimate: TypeAlias = Callable[..., Any]
TILTED = Tilted()


def tilted_values(
    ball: Ball | Gaussian,
    eta: float,
    g: tuple[float, ...],
    curvature: float,
    level: int,
    shape: tuple[int, int],
    seed: int,
    proposal: Tilted | Uniform = TILTED,
) -> Any:
    """Evaluate the objective of f(b) = g.b + curvature |b|^2/2 `calls` times, with N data points at 0.

    `shape` is (calls, N). Each data point has 2^level perturbed points.
    """
    xp = active().namespace
    slope, generator = array(g), rng(seed)

    def loss(x: Array, i: Array) -> Array:
        return xp.sum(x * slope, axis=-1) + curvature / 2 * xp.sum(x * x, axis=-1)

    def gradient(x: Array, i: Array) -> Array:
        return slope + curvature * x

    if isinstance(proposal, Tilted):
        proposal = replace(proposal, gradient=gradient)
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(level), proposal)
    calls, N = shape
    z = xp.zeros((N, len(g)), dtype=xp.float64)
    return np.array([float(objective(loss, z, rng=generator)) for _ in range(calls)])


@claim(
    "Tilted sampling, linear losses",
    id="T2",
    verdict=Verdict.HOLDS,
    formula=r"f = g\cdot b \quad\Rightarrow\quad f(b_i) + \eta\log\frac{\nu}{q}(b_i) = "
    r"\eta\log\mathbb{E}_\nu e^{g\cdot b/\eta}",
    assumptions="entropic phi; a linear loss; one point; a ball of norm 2 or inf, or the normal distribution",
    examples=60,
    g=st.lists(st.floats(-3, 3), min_size=1, max_size=4).map(tuple),
    eta=powers_of_ten(-2, 3),
    norm=st.sampled_from([2.0, inf]),
)
def linear_loss_is_exact(
    g: tuple[float, ...], eta: float, norm: float, estimate: Estimate = tilted_values
) -> Iterator[Evidence]:
    """For a linear loss, every single tilted point gives the exact risk."""
    values = estimate(Ball(norm, 1.0), eta, g, 0.0, 0, (3, 2), 1)
    size = sum(map(abs, g))  # the loss and eta times the log-weight are of this order, and cancel
    error = float(np.max(np.abs(values - eta * ball_log_mgf([v / eta for v in g], norm))))
    yield Evidence(error, 2.0**-44 * (size + 1e-6), "a ball")
    values = estimate(Gaussian(0.5), eta, g, 0.0, 0, (3, 2), 1)
    exact = sum(v * v for v in g) / (8 * eta)
    error = float(np.max(np.abs(values - exact)))
    yield Evidence(error, 2.0**-44 * (size + exact + 1e-6), "the normal distribution")


@linear_loss_is_exact.mutant("omits eta before the log-weight")
def _(ball: Ball, eta: float, g: tuple[float, ...], *rest: Any) -> Any:
    return tilted_values(ball, 1.0, tuple(v / eta for v in g), *rest)


# --- One point, and more --------------------------------------------------------------------------


def risk_and_lower_bound(g: float, curvature: float, eta: float) -> tuple[float, float]:
    """The risk of g b + curvature b^2/2 on [-1, 1], and E_q f - eta KL(q|nu) for the tilt q by g/eta."""

    def mean(h: Callable[[float], float]) -> float:
        return float(quad(h, -1, 1, epsabs=1e-13, epsrel=1e-13)[0]) / 2

    def f(b: float) -> float:
        return g * b + curvature * b * b / 2

    mass = mean(lambda b: exp(g * b / eta))
    risk = eta * log(mean(lambda b: exp(f(b) / eta)))
    expected = mean(lambda b: f(b) * exp(g * b / eta)) / mass
    slope = mean(lambda b: g * b * exp(g * b / eta)) / mass
    return risk, expected - (slope - eta * log(mass))  # eta KL = E_q[g.b] - eta log E_nu exp(g.b/eta)


CALLS = 40
T_QUANTILE = float(student.isf(TEST_LEVEL / 2, CALLS - 1))


def _mean_is(values: Any, exact: float, note: str) -> Evidence:
    """Evidence that the expectation of `values` is `exact`, by a t-test."""
    error = abs(float(values.mean()) - exact)
    # 1e-12 is for rounding errors, if every value is exact.
    return Evidence(error, T_QUANTILE * float(values.std(ddof=1)) / sqrt(len(values)) + 1e-12, note)


@claim(
    "Tilted sampling, one point",
    id="T3",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_q\left[f + \eta\log\frac{\nu}{q}\right] = \mathbb{E}_q f - \eta\,\mathrm{KL}(q|\nu) "
    r"\le \eta\log\mathbb{E}_\nu e^{f/\eta}",
    assumptions="entropic phi; f = g b + c b^2/2 on [-1, 1]",
    error_level=16 * TEST_LEVEL,
)
def one_point_is_a_lower_bound(estimate: Estimate = tilted_values, seed: int = 0) -> Iterator[Evidence]:
    """The expected value from one tilted point is E_q f - eta KL(q|nu), which is at most the risk."""
    for g, c, eta in product((0.0, 1.0), (-1.0, 0.5), (0.2, 0.5, 1.0, 5.0)):
        risk, bound = risk_and_lower_bound(g, c, eta)
        yield Evidence(bound - risk, 1e-11, "the bound is at most the risk, by quadrature")
        values = estimate(Ball(inf, 1.0), eta, (g,), c, 0, (CALLS, 100), seed)
        yield _mean_is(values, bound, f"g {g:g}, c {c:g}, eta {eta:g}")


@one_point_is_a_lower_bound.mutant("uses two points instead of one")
def _(ball: Ball, eta: float, g: tuple[float, ...], curvature: float, level: int, *rest: Any) -> Any:
    return tilted_values(ball, eta, g, curvature, 1, *rest)


@claim(
    "Tilted sampling, inner expectation",
    id="T8",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_q\, e^{f/\eta}\,\frac{\nu}{q} = \mathbb{E}_\nu\, e^{f/\eta}",
    assumptions="f = g b + c b^2/2 on [-1, 1]; tilts use the gradient at 0, or at tilted points (retilt)",
    error_level=12 * TEST_LEVEL,
)
def inner_expectation_is_unbiased(estimate: Estimate = tilted_values, seed: int = 0) -> Iterator[Evidence]:
    """The estimate of the inner expectation of the dual is unbiased, also if the tilt is random (retilt)."""
    for retilt, c, eta in product((0, 1, 2), (-1.0, 0.5), (0.5, 2.0)):
        risk, _ = risk_and_lower_bound(1.0, c, eta)
        # exp(value/eta) of a data point is the mean of exp(f/eta) nu/q over its 2^7 points.
        values = np.exp(
            estimate(Ball(inf, 1.0), eta, (1.0,), c, 7, (CALLS, 1), seed, Tilted(retilt=retilt)) / eta
        )
        yield _mean_is(values, exp(risk / eta), f"retilt {retilt}, c {c:g}, eta {eta:g}")


@inner_expectation_is_unbiased.mutant("solves with twice the eta of the tilt")
def _(ball: Ball, eta: float, *rest: Any) -> Any:
    return tilted_values(ball, 2 * eta, *rest)


# --- RT-MLMC --------------------------------------------------------------------------------------

Weights: TypeAlias = Callable[..., tuple[Array, Array]]


def _mean_over_draws(f: Any, q: Any, level: int, solve: Callable[[Array], tuple[Array, Array]]) -> Any:
    """The mean value and gradient over all draws of 2^level points from q, with gradients 1, -2 and 0.5."""
    picks = np.array(list(product(range(len(f)), repeat=2**level)))
    chance = np.array([prod(q[k] for k in row) for row in picks])
    value, weights = solve(array(np.asarray(f)[picks]))
    value, weights = (v if isinstance(v, np.ndarray) else to_numpy(v) for v in (value, weights))
    weighted = (weights * np.array([1.0, -2.0, 0.5])[picks]).sum(axis=-1)
    return np.array([chance @ value, chance @ weighted])


@claim(
    "Tilted sampling, RT-MLMC",
    id="T4",
    verdict=Verdict.HOLDS,
    formula=r"\sum_{l=0}^{L} P(l)\,\frac{1}{P(l)}\,\mathbb{E}_q\, G^l = \mathbb{E}_q\, g^L, \qquad "
    r"\lim_L \mathbb{E}_q\, R^L = \eta\log\mathbb{E}_\nu e^{f/\eta}",
    assumptions="entropic phi; three points, q_i proportional to nu_i e^(s_i); L up to 2; R^L is the value "
    "of level L; of the limit only the upper bound is checked",
    examples=60,
    f=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    s=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    eta=powers_of_ten(-1, 2),
    level=st.integers(0, 2),
)
def rt_mlmc_with_tilted_points(
    f: list[float], s: list[float], eta: float, level: int, weights: Weights = signed_weights
) -> Iterator[Evidence]:
    """RT-MLMC with tilted points has the same expectation as the estimator of level L."""
    nu = np.array([0.5, 0.25, 0.25])
    mass = float(nu @ np.exp(s))
    q = nu * np.exp(s) / mass
    shifted = np.array(f) + eta * (log(mass) - np.array(s))  # f + eta log(nu/q)

    def solve(telescoping: bool) -> Callable[[Array], tuple[Array, Array]]:
        return lambda rows: weights(rows, eta, ENTROPIC, telescoping=telescoping)

    probabilities = RTMLMC(level).probabilities
    rt_mlmc = sum(p * (_mean_over_draws(shifted, q, k, solve(True)) / p) for k, p in enumerate(probabilities))
    level_L = _mean_over_draws(
        shifted, q, level, lambda rows: row_solver.solve_closed_form(to_numpy(rows), eta, "entropic")
    )
    rounding = 2.0**-44 * (1 + float(np.max(np.abs(shifted)))) * (1 + 1 / eta)
    yield Evidence(float(np.max(np.abs(rt_mlmc - level_L))), rounding, "the value and the gradient")
    top = float(np.max(f))
    risk = top + eta * log(float(nu @ np.exp((np.array(f) - top) / eta)))
    yield Evidence(level_L[0] - risk, rounding, "level L is at most the risk of the reference distribution")


@rt_mlmc_with_tilted_points.mutant("omits level 0")
def _(rows: Array, eta: float, phi: Any, *, telescoping: bool) -> tuple[Array, Array]:
    value, w = signed_weights(rows, eta, phi, telescoping=telescoping)
    return (0 * value, 0 * w) if rows.shape[-1] == 1 else (value, w)


G = (1.0, -0.5, 0.25)  # a gradient; on the unit ball the tilt is G/eta


@claim(
    "Tilted sampling, small eta",
    id="T5",
    verdict=Verdict.HOLDS,
    formula=r"\eta\to 0: \quad b \to \arg\max_{\|b\|\le\rho}\, g\cdot b",
    assumptions="g is nonzero, for norm inf in every entry; rates sqrt(eta) for norm 2 and eta for norm inf",
    error_level=4 * TEST_LEVEL,  # the bound and the exponent for each norm
)
def small_eta_is_fgm(sample: Sampler = Ball.sample_tilted, seed: int = 0) -> Iterator[Evidence | Curve]:
    """As eta -> 0 the tilted points converge to the point of the fast gradient method."""
    g = np.array(G)
    size = float(np.sqrt(g @ g))
    etas = [10.0**-k for k in range(1, 6)]
    best = {2.0: g / size, inf: np.sign(g)}
    for norm, rate in ((2.0, 0.5), (inf, 1.0)):
        distances = []
        for eta in etas:
            points, _ = tilted_sample(sample, norm, tuple(v / eta for v in G), 4000, seed)
            offset = points - best[norm]
            # The root mean square distance for norm 2, the largest mean distance of a coordinate for inf.
            distances.append(
                sqrt(float(np.mean(np.sum(offset * offset, axis=-1))))
                if norm == 2
                else float(np.mean(np.abs(offset), axis=0).max())
            )
        # Norm 2: E|b - u|^2 <= 2 (1 - E b.u) <= (d + 1) eta/|g| with u = g/|g|.
        # Norm inf: E(1 - |b_j|) <= eta/|g_j|.
        bound = [sqrt(4 * eta / size) if norm == 2 else eta / min(map(abs, G)) for eta in etas]
        curve = Curve(
            f"norm {norm:g}",
            "eta/rho",
            "distance to the FGM point",
            "exact bound",
            tuple(etas),
            tuple(distances),
            tuple(bound),
        )
        yield curve
        # With 4000 points the mean is accurate to about 2 %. For small eta it tends to the bound.
        yield curve.below_bound(NORMAL_QUANTILE * 0.02)
        yield curve.exactly(rate, 0.05)


@small_eta_is_fgm.mutant("tilts in the opposite direction")
def _(ball: Ball, x: Array, s: Array, n_samples: int, *, rng: Rng) -> tuple[Array, Array]:
    return ball.sample_tilted(x, -s, n_samples, rng=rng)


@claim(
    "Tilted sampling, large eta",
    id="T6",
    verdict=Verdict.HOLDS,
    formula=r"\eta\to\infty: \quad \mathbb{E}_q\left(\frac{\nu}{q} - 1\right)^2 = "
    r"\left(\mathbb{E}_\nu e^{g\cdot b/\eta}\right)^2 - 1 \to 0",
    assumptions="norms 1, 2 and inf; rate 1/eta for the root mean square",
    error_level=18 * TEST_LEVEL,  # five scales and an exponent for each norm
)
def large_eta_is_uniform(sample: Sampler = Ball.sample_tilted, seed: int = 0) -> Iterator[Evidence | Curve]:
    """As eta grows the tilted distribution becomes uniform: all weights tend to 1, at rate 1/eta."""
    etas = [10.0**k for k in range(5)]
    n = 20_000
    for norm in (1.0, 2.0, inf):
        spread, exact = [], []
        for eta in etas:
            _, log_w = tilted_sample(sample, norm, tuple(v / eta for v in G), n, seed)
            terms = np.expm1(log_w) ** 2
            spread.append(sqrt(float(terms.mean())))
            excess = expm1(ball_log_mgf([v / eta for v in G], norm))  # E_nu exp(g.b/eta) - 1
            exact.append(sqrt(excess * (2 + excess)))
            slack = NORMAL_QUANTILE * float(terms.std()) / sqrt(n)
            yield Evidence(abs(float(terms.mean()) - exact[-1] ** 2), slack, f"eta {eta:g}")
        curve = Curve(
            f"norm {norm:g}",
            "eta/rho",
            "root mean square of nu/q - 1",
            "exact value",
            tuple(etas),
            tuple(spread),
            tuple(exact),
        )
        yield curve
        # The slack covers eta = 1, where the weights are not close to 1, and a sampling error of 1 %.
        yield curve.exactly(-1.0, 0.05)


@large_eta_is_uniform.mutant("tilts twice as much")
def _(ball: Ball, x: Array, s: Array, n_samples: int, *, rng: Rng) -> tuple[Array, Array]:
    return ball.sample_tilted(x, 2 * s, n_samples, rng=rng)


# --- More points ----------------------------------------------------------------------------------

D, RHO, CURVATURE, SLOPE = 10, 1.0, 1.0, 0.5


def _bowl_risk(eta: float) -> float:
    """The risk of sum_j SLOPE b_j + CURVATURE b_j^2/2 on [-1, 1]^D, by quadrature in one coordinate."""
    integral, _ = quad(
        lambda b: exp((SLOPE * b + CURVATURE * b * b / 2) / eta), -1, 1, epsabs=0, epsrel=1e-12
    )
    return D * eta * log(integral / 2)


def bowl_values(
    proposal: Tilted | Uniform, eta: float, level: int, runs: int, seed: int
) -> tuple[Any, float]:
    """`runs` estimates of `_bowl_risk` from 2^level points each, and their mean gain over the halves.

    The gain is the estimate from all points minus the mean of the estimates from the two halves.
    """
    xp = active().namespace

    def loss(x: Array, i: Array) -> Array:
        return xp.sum(SLOPE * x + CURVATURE / 2 * x * x, axis=-1)

    if isinstance(proposal, Tilted):
        proposal = replace(proposal, gradient=lambda x, i: SLOPE + CURVATURE * x)
    estimate = robust_risk(
        loss,
        xp.zeros((runs, D), dtype=xp.float64),
        Ball(inf, RHO),
        eta,
        ENTROPIC,
        n_samples=1 << level,
        rng=rng(seed),
        method=proposal,
    )
    return to_numpy(estimate.values), float(estimate.bias)


@claim(
    "Tilted sampling, more points",
    id="T7",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\,\hat R_n \le \mathbb{E}\,\hat R_{2n} \le \eta\log\mathbb{E}_\nu e^{f/\eta}, \quad "
    r"\hat R_n = \eta\log\frac1n\sum_{i=1}^n e^{f(b_i)/\eta}\,\frac{\nu}{q}(b_i)",
    assumptions="entropic phi; n is a power of two; f = sum_j b_j/2 + b_j^2/2 on [-1, 1]^10, eta = 0.5",
    error_level=6 * TEST_LEVEL,  # five sizes, and the comparison of biases
)
def more_points_tighten(values: Any = bowl_values, seed: int = 0) -> Iterator[Evidence | Curve]:
    """The expected estimate increases towards the risk with the number of tilted points."""
    eta, runs = 0.5, 1000
    risk = _bowl_risk(eta)
    biases: dict[str, list[float]] = {"tilted": [], "uniform": []}
    levels = range(1, 6)
    for level in levels:
        value, gain = values(Tilted(), eta, level, runs, seed)
        # On every draw, the log of a mean is at least the mean of the logs for the two halves.
        note = f"{2**level} points give at least the mean of their halves"
        yield Evidence(-gain, 2.0**-44 * (1 + abs(risk)), note)
        error = NORMAL_QUANTILE * float(value.std()) / sqrt(runs)
        yield Evidence(float(value.mean()) - risk, error, f"{2**level} points are below the risk")
        biases["tilted"].append(risk - float(value.mean()))
        biases["uniform"].append(risk - float(bowl_values(Uniform(), eta, level, runs, seed)[0].mean()))
    few = 2  # with more points the bias is close to the noise, and may be negative
    curve = Curve(
        "bias of the value in ten dimensions",
        "points",
        "risk minus mean estimate",
        "uniform points, measured",
        tuple(2.0**level for level in levels),
        tuple(max(bias, 1e-6) for bias in biases["tilted"]),
        tuple(biases["uniform"]),
    )
    yield curve
    # The bias of uniform points is larger by a hundred standard errors.
    yield curve.below_bound()
    yield Evidence(-min(biases["tilted"][:few]), 0.0, "the bias of two and of four points is positive")


@more_points_tighten.mutant("adds 0.1 eta log10(n) to the value")
def _(proposal: Any, eta: float, level: int, runs: int, seed: int) -> tuple[Any, float]:
    value, gain = bowl_values(proposal, eta, level, runs, seed)
    return value + 0.1 * eta * log10(2.0**level), gain
