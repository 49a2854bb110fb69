"""Beyond the paper: what tilted perturbations tend to, and how their bias falls with their number."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, inf, log, log10, sqrt
from typing import Any

import numpy as np
from scipy.integrate import quad

from phiball.backends import Array, Rng, active, rng, to_numpy
from phiball.refimpl import ENTROPIC, Ball, Tilted, Uniform, robust_risk
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.laws import Sampler, tilted_sample
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL

G = (1.0, -0.5, 0.25)  # a gradient; in units of the radius, the tilt is G/eta


@claim(
    "Tilted sampling, small eta",
    id="T5",
    verdict=Verdict.HOLDS,
    formula=r"\eta\to 0: \quad b \to \arg\max_{\|b\|\le\rho}\, g\cdot b",
    assumptions="g is not 0; norms 2 and inf, g with no zero for norm inf; rates sqrt(eta) and eta",
    error_level=4 * TEST_LEVEL,  # for each norm the bound and the exponent, which have ten standard errors
)
def small_eta_is_fgm(sample: Sampler = Ball.sample_tilted, seed: int = 0) -> Iterator[Evidence | Curve]:
    """As eta goes to 0 the tilted points tend to the point of the fast gradient method."""
    g = np.array(G)
    size = float(np.sqrt(g @ g))
    etas = [10.0**-k for k in range(1, 6)]
    best = {2.0: g / size, inf: np.sign(g)}
    for norm, rate in ((2.0, 0.5), (inf, 1.0)):
        away = []
        for eta in etas:
            points, _ = tilted_sample(sample, norm, tuple(v / eta for v in G), 4000, seed)
            off = points - best[norm]
            # The mean square in norm 2, the mean of the largest coordinate in norm inf.
            away.append(
                sqrt(float(np.mean(np.sum(off * off, axis=-1))))
                if norm == 2
                else float(np.mean(np.abs(off), axis=0).max())
            )
        # E|b - g/|g||^2 = 2 (1 - E x) <= (d+1)/t with t = |g|/eta, and E(1 - |b_j|) <= eta/|g_j|.
        bound = [sqrt(4 * eta / size) if norm == 2 else eta / min(map(abs, G)) for eta in etas]
        curve = Curve(
            f"norm {norm:g}",
            "eta/rho",
            "distance to the FGM point",
            "exact bound",
            tuple(etas),
            tuple(away),
            tuple(bound),
        )
        yield curve
        # 4000 points: the mean is known to some 2 %, and the bound is the limit for small eta.
        yield curve.below_bound(NORMAL_QUANTILE * 0.02)
        yield curve.exactly(rate, 0.05)


@small_eta_is_fgm.mutant("goes down instead of up")
def _(ball: Ball, z: Array, s: Array, n: int, source: Rng) -> tuple[Array, Array]:
    return ball.sample_tilted(z, -s, n, source)


@claim(
    "Tilted sampling, large eta",
    id="T6",
    verdict=Verdict.HOLDS,
    formula=r"\eta\to\infty: \quad \mathbb{E}_q\left(\frac{\nu}{q} - 1\right)^2 = "
    r"\left(\mathbb{E}_\nu e^{g\cdot b/\eta}\right)^2 - 1 \to 0",
    assumptions="norms 1, 2 and inf; rate 1/eta of the root",
    error_level=18 * TEST_LEVEL,  # five scales and an exponent for each norm
)
def large_eta_is_uniform(sample: Sampler = Ball.sample_tilted, seed: int = 0) -> Iterator[Evidence | Curve]:
    """As eta grows the tilted law tends to the uniform one: all weights tend to 1, at rate 1/eta."""
    etas = [10.0**k for k in range(5)]
    n = 20_000
    for norm in (1.0, 2.0, inf):
        spread, exact = [], []
        for eta in etas:
            _, log_w = tilted_sample(sample, norm, tuple(v / eta for v in G), n, seed)
            terms = np.expm1(log_w) ** 2
            spread.append(sqrt(float(terms.mean())))
            root = _mgf_minus_one(norm, eta)
            exact.append(sqrt(root * (2 + root)))
            yield Evidence(
                abs(float(terms.mean()) - exact[-1] ** 2),
                NORMAL_QUANTILE * float(terms.std()) / sqrt(n),
                f"eta {eta:g}",
            )
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
        # At eta = 1 the weights are not yet close to 1, and the error of the root is a hundredth.
        yield curve.exactly(-1.0, 0.05)


def _mgf_minus_one(norm: float, eta: float) -> float:
    """E exp(G.b/eta) - 1 on the unit ball in three dimensions, by series of positive terms."""
    s = [v / eta for v in G]
    if norm == inf:  # the product of 1 + sum_k s_j^(2k)/(2k+1)!
        value = 0.0
        for v in s:
            factor = _series(v * v, lambda k: 1 / _factorial(2 * k + 1))
            value += factor + value * factor
        return value
    if norm == 2:  # sum_k (t^2/4)^k / (k! (5/2)_k), t = |s|
        square = sum(v * v for v in s)
        return _series(square, lambda k: 1 / (4**k * _factorial(k) * _rising(2.5, k)))
    h = [1.0] + [0.0] * 20  # sum_k h_k(s^2) 3!/(3 + 2k)!, h_k the complete symmetric polynomial
    for v in s:
        for k in range(1, 21):
            h[k] += v * v * h[k - 1]
    return sum(h[k] * 6 / _factorial(3 + 2 * k) for k in range(1, 21))


def _series(x: float, coefficient: Any) -> float:
    return sum(float(coefficient(k)) * x**k for k in range(1, 21))


def _factorial(n: int) -> float:
    return float(np.prod(np.arange(1, n + 1, dtype=float)))


def _rising(a: float, k: int) -> float:
    return float(np.prod(a + np.arange(k, dtype=float)))


@large_eta_is_uniform.mutant("tilts twice as much")
def _(ball: Ball, z: Array, s: Array, n: int, source: Rng) -> tuple[Array, Array]:
    return ball.sample_tilted(z, 2 * s, n, source)


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
    """`runs` estimates of that risk from 2^level points, and what they are above those of their halves."""
    xp = active().namespace

    def loss(x: Array, i: Array) -> Array:
        return xp.sum(SLOPE * x + CURVATURE / 2 * x * x, axis=-1)

    estimate = robust_risk(
        loss,
        xp.zeros((runs, D), dtype=xp.float64),
        Ball(inf, RHO),
        eta,
        ENTROPIC,
        samples=1 << level,
        rng=rng(seed),
        proposal=proposal,
        input_gradient=lambda x, i: SLOPE + CURVATURE * x,
    )
    return to_numpy(estimate.values), float(estimate.bias)


@claim(
    "Tilted sampling, more points",
    id="T7",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\,\hat R_n \le \mathbb{E}\,\hat R_{2n} \le \eta\log\mathbb{E}_\nu e^{f/\eta}, \quad "
    r"\hat R_n = \eta\log\frac1n\sum_{i=1}^n e^{f(b_i)/\eta}\,\frac{\nu}{q}(b_i)",
    assumptions="entropic phi, n a power of two; f = sum_j b_j/2 + b_j^2/2 on [-1, 1]^10, eta = 0.5",
    error_level=6 * TEST_LEVEL,  # five sizes, and the bias beside that of uniform points
)
def more_points_tighten(values: Any = bowl_values, seed: int = 0) -> Iterator[Evidence | Curve]:
    """The mean of the estimate rises with the number of tilted points, towards the risk."""
    eta, runs = 0.5, 1000
    risk = _bowl_risk(eta)
    biases: dict[str, list[float]] = {"tilted": [], "uniform": []}
    levels = range(1, 6)
    for level in levels:
        value, gain = values(Tilted(), eta, level, runs, seed)
        # Of each draw, the log of a mean is at least the mean of the logs of its halves.
        yield Evidence(-gain, 2.0**-44 * (1 + abs(risk)), f"{2**level} points and their halves")
        error = NORMAL_QUANTILE * float(value.std()) / sqrt(runs)
        yield Evidence(float(value.mean()) - risk, error, f"{2**level} points are below the risk")
        biases["tilted"].append(risk - float(value.mean()))
        biases["uniform"].append(risk - float(bowl_values(Uniform(), eta, level, runs, seed)[0].mean()))
    few = 2  # the bias of more points is near the noise, and may fall below 0
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
    # Uniform points miss a hundred times the standard error more.
    yield curve.below_bound()
    yield Evidence(-min(biases["tilted"][:few]), 0.0, "the bias of two and of four points is not noise")


@more_points_tighten.mutant("averages instead of log-mean-exp")
def _(proposal: Any, eta: float, level: int, runs: int, seed: int) -> tuple[Any, float]:
    value, gain = bowl_values(proposal, eta, 1, runs << (level - 1), seed)
    return value.reshape(runs, -1).mean(axis=1), -gain


@more_points_tighten.mutant("tilts with another eta than it solves with")
def _(proposal: Any, eta: float, level: int, runs: int, seed: int) -> tuple[Any, float]:
    value, gain = bowl_values(proposal, eta, level, runs, seed)
    return value + 0.1 * eta * log10(2.0**level), gain
