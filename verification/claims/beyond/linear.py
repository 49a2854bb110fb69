"""Beyond the paper: linear models on a ball or under a Gaussian, whose risk is a one-dimensional integral."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import asin, cos, exp, inf, log, pi, sin, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from scipy.integrate import quad

from phiball.refimpl import ABSOLUTE, ENTROPIC, QUADRATIC, Ball, Gaussian, indicator
from phiball.refimpl.linear import (
    LinearLoss,
    LinearProblem,
    huber_loss,
    linear_model_risk,
    quantile_loss,
    smoothed_hinge_loss,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.oracles.prediction_risk import class_risk, example_risk

Risk: TypeAlias = Callable[..., Any]
PHIS = {"entropic": ENTROPIC, "quadratic": QUADRATIC, "absolute": ABSOLUTE, "indicator": indicator(0.3)}
CASES = (
    ("logistic", 0.7, 1.5, 1.0, 5, 0.1, "entropic"),
    ("logistic", -0.4, 2.0, 1.0, 2, 0.3, "quadratic"),
    ("hinge", 0.8, 0.7, 1.0, 3, 0.2, "absolute"),
    ("squared", 0.3, 0.9, 0.5, 4, 1.0, "indicator"),
    ("absolute", 0.3, 0.9, 0.5, 2, 0.1, "entropic"),
)
"""Loss, intercept m, norm r of the coefficients, label y, dimension d, eta and phi."""

KINKED: tuple[tuple[Callable[[float], LinearLoss], float, float, Callable[[float], float], Any], ...] = (
    (huber_loss, 0.8, 0.5, lambda e: e * e / 2 if abs(e) <= 0.8 else 0.8 * abs(e) - 0.32, (-0.8, 0.8)),
    (quantile_loss, 0.9, 0.5, lambda e: max(-0.9 * e, 0.1 * e), (0.0,)),
    (smoothed_hinge_loss, 0.4, -1.0, lambda e: e - 0.2 if e > 0.4 else max(e, 0.0) ** 2 / 0.8, (0.0, 0.4)),
)
"""Loss, its parameter, label y, formula in e = z - y (1 + z for the hinge), and kinks in e."""


def _exact_risk(loss: Callable[[float], float], kinks: Any, m: float, r: float, d: int, eta: float) -> float:
    """The entropic risk of loss(m + r t), or its mean if eta = inf; t has the distribution of V1 on [-1, 1].

    The integrals are in u = arcsin t, between the kinks of the loss.
    """
    cuts = [-pi / 2, *(asin((k - m) / r) for k in kinks if abs(k - m) < r), pi / 2]

    def mean(g: Callable[[float], float]) -> float:
        parts = (
            quad(lambda u: g(loss(m + r * sin(u))) * cos(u) ** d, a, b, epsabs=1e-13)[0]
            for a, b in pairwise(cuts)
        )
        return float(sum(parts) / quad(lambda u: cos(u) ** d, -pi / 2, pi / 2, epsabs=1e-13)[0])

    return mean(lambda f: f) if eta == inf else eta * log(mean(lambda f: exp(f / eta)))


def _data(seed: int, n: int = 12, d: int = 3) -> tuple[Any, Any, Any]:
    """Random features X (n, d) and labels y, and random coefficients with an intercept."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.where(X[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0)
    return X, y, rng.normal(size=d + 1)


@claim(
    "Linear models, one dimension",
    id="V1",
    verdict=Verdict.HOLDS,
    formula=(r"\theta \cdot b = \rho |\theta| t, \quad t \sim c (1 - t^2)^{(d-1)/2} \text{ on } [-1, 1]"),
    assumptions="b is uniform on the Euclidean ball of radius rho; four divergences, seven losses; C classes",
)
def the_risk_has_one_dimension(risk: Risk = linear_model_risk) -> Iterator[Evidence]:
    """The risk of a linear model is an integral in one variable, or in C - 1 variables for C classes."""
    for loss, m, r, y, d, eta, phi in CASES:
        theta = np.full(d, r / sqrt(d))
        problem = LinearProblem(loss, Ball(2, 1.0), eta, PHIS[phi])
        value = risk(problem, theta, m, np.zeros((1, d)), np.asarray([y])).value
        exact = example_risk(loss, m, r, y, d, eta, phi)
        yield Evidence(abs(value - exact), 1e-9 * (1 + abs(exact)), f"{loss} loss, {phi} phi, d = {d}")
    for (make, parameter, y, formula, kinks), d, eta in product(KINKED, (1, 4), (0.3, inf)):
        kinked = make(parameter)
        problem = LinearProblem(kinked, Ball(2, 1.0), eta)
        value = risk(problem, np.full(d, 1.5 / sqrt(d)), 0.3, np.zeros((1, d)), np.asarray([y])).value
        exact = _exact_risk(formula, kinks, 0.3 - y if y > 0 else 1.3, 1.5, d, eta)
        yield Evidence(abs(value - exact), 1e-9, f"{kinked.name} loss, d = {d}, eta = {eta:g}")
    W = np.asarray([[0.5, -0.2, 1.0], [-0.3, 0.8, 0.1], [0.2, 0.1, -0.7]])
    x, problem = np.asarray([[0.3, -0.5, 0.2]]), LinearProblem("multinomial", Ball(2, 0.8), 0.2)
    value = risk(problem, W, np.zeros(3), x, np.asarray([2.0])).value
    exact = class_risk(W, x[0], 2, 0.8, 0.2)
    yield Evidence(abs(value - exact), 1e-9 * (1 + abs(exact)), "three classes, two variables")


@the_risk_has_one_dimension.mutant("uses a ball of one more dimension")
def _(problem: LinearProblem, coef: Any, intercept: float, X: Any, y: Any, **how: Any) -> Any:
    more = np.zeros((len(X), 1))
    wide = np.concatenate([coef, np.zeros_like(coef[..., :1])], axis=-1)
    return linear_model_risk(problem, wide, intercept, np.concatenate([X, more], axis=1), y, **how)


@claim(
    "Linear models, limits",
    id="V2",
    verdict=Verdict.HOLDS,
    formula=r"F \to \mathbb{E}\, \ell(y (\theta \cdot x + c) - \rho |\theta|) \ (\eta \to 0), \quad F \to "
    r"\mathbb{E}_{x, b}\, \ell \ (\eta \to \infty), \quad F = \mathbb{E}\, \ell \ (\rho = 0)",
    assumptions="logistic loss, entropic phi",
    examples=15,
    seed=st.integers(0, 10**6),
    rho=st.floats(0.05, 1.0),
)
def limits_of_the_risk(seed: int, rho: float, risk: Risk = linear_model_risk) -> Iterator[Evidence]:
    """The risk tends to the adversarial loss as eta -> 0, and to the mean loss as eta -> infinity."""
    X, y, theta = _data(seed)
    margin = y * (X @ theta[:3] + theta[3])

    def value(eta: float, radius: float) -> float:
        problem = LinearProblem("logistic", Ball(2, radius), eta)
        return float(risk(problem, theta[:3], theta[3], X, y).value)

    largest_change = rho * float(np.linalg.norm(theta[:3]))
    largest = float(np.mean(np.logaddexp(0, largest_change - margin)))
    yield Evidence(abs(value(0.0, rho) - largest), 1e-12 * (1 + largest), "eta = 0: the closed form")
    eta = 2e-3
    # For d = 3 a cap of height h has probability at least (h/2)^2/2, and the loss on it is at least
    # the largest loss minus h times `largest_change`.
    slack = eta * (2 * np.log(2 * (1 + largest_change / eta)) + 3)
    short = largest - value(eta, rho)
    yield Evidence(short - slack, 1e-12, "eta = 0.002: close to the maximum")
    yield Evidence(-short, 1e-9, "eta = 0.002: below the maximum")
    plain = float(np.mean(np.logaddexp(0, -margin)))
    yield Evidence(abs(value(0.1, 0.0) - plain), 1e-12 * (1 + plain), "radius 0: the loss at the data")
    mean, large = value(inf, rho), 1e3
    # The entropic risk exceeds the mean by at most range^2/(8 eta).
    excess = value(large, rho) - mean
    yield Evidence(excess - (2 * largest_change) ** 2 / (8 * large), 1e-10, "eta = 1000: close to the mean")
    yield Evidence(-excess, 1e-10, "eta = 1000: above the mean")


@limits_of_the_risk.mutant("ignores the radius")
def _(problem: LinearProblem, coef: Any, intercept: float, X: Any, y: Any) -> Any:
    return linear_model_risk(replace(problem, reference=Ball(2, 0.0)), coef, intercept, X, y)


@claim(
    "Linear models, convexity",
    id="V3",
    verdict=Verdict.HOLDS,
    formula=r"F(\theta', c') \ge F(\theta, c) + \nabla F(\theta, c) \cdot (\theta' - \theta, c' - c)",
    assumptions="a convex loss; four divergences",
    examples=20,
    seed=st.integers(0, 10**6),
    phi=st.sampled_from(sorted(PHIS)),
    loss=st.sampled_from(["logistic", "squared", "hinge"]),
)
def the_risk_is_convex(seed: int, phi: str, loss: str, risk: Risk = linear_model_risk) -> Iterator[Evidence]:
    """The risk is convex in coefficients and intercept, with the subgradient of Danskin's theorem."""
    X, y, theta = _data(seed)
    other = np.random.default_rng(seed + 1).normal(size=4)
    problem = LinearProblem(loss, Ball(2, 0.7), 0.2, PHIS[phi])
    here, there = (risk(problem, v[:3], v[3], X, y) for v in (theta, other))
    slope = here.coef_gradient @ (other - theta)[:3] + here.intercept_gradient * (other - theta)[3]
    size = 1 + abs(here.value) + abs(there.value)
    yield Evidence(float(here.value + slope - there.value), 1e-8 * size, f"{loss} loss, {phi} phi")
    yield Evidence(float(np.max(here.coef_gradient) > 1e6), 0.0, "the gradient entries are at most 1e6")


@the_risk_is_convex.mutant("ignores the radius in the gradient")
def _(problem: LinearProblem, coef: Any, intercept: float, X: Any, y: Any) -> Any:
    right = linear_model_risk(problem, coef, intercept, X, y)
    less = linear_model_risk(replace(problem, reference=Ball(2, 0.0)), coef, intercept, X, y)
    return replace(right, coef_gradient=less.coef_gradient, intercept_gradient=less.intercept_gradient)


class _Plane:
    """The optimal coupling of Sinkhorn DRO with cost |x - z|^2/2, by quadrature over z in the plane.

    Row i is the density of z given example i, exp((f - lam c)/(lam epsilon)) up to a factor.
    """

    def __init__(self, loss: str, X: Any, y: Any, theta: Any, lam: float, epsilon: float) -> None:
        z = np.linspace(-9.0, 9.0, 401)
        self.area = float(z[1] - z[0]) ** 2
        points = np.stack(np.meshgrid(z, z), axis=-1).reshape(-1, 2)
        margin = y[:, None] * (points @ theta)
        formulas = {"logistic": np.logaddexp(0, -margin), "squared": (points @ theta - y[:, None]) ** 2 / 2}
        self.loss, self.lam, self.epsilon = formulas[loss], lam, epsilon
        self.cost = np.sum((X[:, None, :] - points) ** 2, axis=2) / 2
        self.density = self._normalized((self.loss - lam * self.cost) / (lam * epsilon))

    def _normalized(self, log_density: Any) -> Any:
        density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        return density / (density.sum(axis=1, keepdims=True) * self.area)

    def mean(self, values: Any, density: Any) -> float:
        return float(np.mean(np.sum(values * density, axis=1)) * self.area)

    def discrepancy(self, density: Any) -> float:
        """The cost of a coupling plus epsilon times its entropy, relative to the Lebesgue measure."""
        return self.mean(self.cost + self.epsilon * np.log(np.maximum(density, 1e-300)), density)

    def objective(self, tilt: float = 0.0) -> float:
        """E f - lam W of the optimal coupling, or of another one, tilted by `tilt` times the loss."""
        density = self._normalized(np.log(np.maximum(self.density, 1e-300)) + tilt * self.loss)
        return self.mean(self.loss, density) - self.lam * self.discrepancy(density)


@claim(
    "Linear models, Sinkhorn DRO",
    id="V4",
    verdict=Verdict.HOLDS,
    formula=r"\sup_P \mathbb{E}_P f - \lambda W_\varepsilon(\hat P, P) = F + "
    r"\tfrac{d}{2} \lambda \varepsilon \log(2 \pi \varepsilon), "
    r"\quad \nu = N(x, \varepsilon I), \ \eta = \lambda \varepsilon",
    assumptions="cost |x - z|^2/2, entropy relative to the Lebesgue measure, entropic phi; d = 2",
)
def sinkhorn_dro_has_a_gaussian_reference(
    problem: Callable[..., LinearProblem] = LinearProblem.sinkhorn,
) -> Iterator[Evidence]:
    """Sinkhorn DRO with quadratic cost is the entropic risk of a Gaussian, for a multiplier or a radius."""
    X, y, theta = np.asarray([[0.4, -0.6], [1.0, 0.3]]), np.asarray([1.0, -1.0]), np.asarray([0.9, -0.5])
    for loss, lam, epsilon in (("logistic", 0.8, 0.3), ("logistic", 3.0, 0.5), ("squared", 2.5, 0.4)):
        constant = epsilon * log(2 * pi * epsilon)
        risk = linear_model_risk(problem(loss, lam=lam, epsilon=epsilon), theta, 0.0, X, y)
        plane = _Plane(loss, X, y, theta, lam, epsilon)
        name = f"{loss} loss, lambda = {lam}, epsilon = {epsilon}"
        yield Evidence(abs(risk.value + lam * constant - plane.objective()), 1e-9, f"{name}: the value")
        for tilt in (-0.3, 0.3):
            excess = plane.objective(tilt) - risk.value - lam * constant
            yield Evidence(excess, 1e-9, f"{name}: another coupling, tilted by {tilt}")
        radius = plane.discrepancy(plane.density)  # lambda is the multiplier of this radius
        constrained = problem(loss, budget=(radius + constant) / epsilon, epsilon=epsilon)
        found = linear_model_risk(constrained, theta, 0.0, X, y)
        worst = plane.mean(plane.loss, plane.density)
        yield Evidence(abs(found.value - worst), 1e-7, f"{name}: the value for the radius {radius:.3f}")
        yield Evidence(abs(found.eta / (lam * epsilon) - 1), 2e-4, f"{name}: the multiplier for this radius")


@sinkhorn_dro_has_a_gaussian_reference.mutant("uses lambda as the price")
def _(loss: str, *, epsilon: float, lam: float = 1.0, budget: float | None = None) -> LinearProblem:
    return LinearProblem(loss, Gaussian(sqrt(epsilon)), lam, budget=budget)


@sinkhorn_dro_has_a_gaussian_reference.mutant("uses epsilon as the standard deviation")
def _(loss: str, *, epsilon: float, lam: float = 1.0, budget: float | None = None) -> LinearProblem:
    return LinearProblem(loss, Gaussian(epsilon), lam * epsilon, budget=budget)
