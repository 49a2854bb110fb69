"""The pricing problem of Section 6.3 for many trials at once: distributions, data, risks and optima.

    Psi(w, z) = -w (z_1 w + z_2),   z = (tanh(3 beta_1'x), exp(-2 beta_2'x)) + N(0, I),   w = theta'g(x)

w is the price at covariates x, Psi is the cost of the price (the negative revenue), and g(x) are F random
features. As printed, the problem has no optimum: revenue grows like w^2 wherever E[z_1 | x] > 0. Here theta
lies in an l2 ball, and prices may be bounded too. Arrays have a leading axis of T independent trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi, sqrt

import numpy as np

from phiball.backends import Array, Rng

DOUBLE = np.empty(0)  # `like=DOUBLE` draws NumPy numbers in double precision


@dataclass(frozen=True)
class Market:
    """Parameters of T trials: beta_1, beta_2 (T, d), and omega (T, F, d), b (T, F) of the features."""

    beta1: Array
    beta2: Array
    omega: Array
    b: Array

    def angles(self, x: Array) -> Array:
        """omega_i'x + b_i at points x (T, N, d), in the dtype of x: (T, N, F)."""
        omega, b = self.omega.astype(x.dtype), self.b.astype(x.dtype)
        return x @ omega.swapaxes(1, 2) + b[:, None, :]

    def features(self, x: Array) -> Array:
        """g(x) at points x (T, N, d): (T, N, F)."""
        angles = self.angles(x)
        return np.cos(angles, out=angles)

    def sensitivity(self, x: Array) -> Array:
        """E[z | x] at points x (T, N, d): (T, N, 2)."""
        a = np.tanh(3 * (x @ self.beta1[:, :, None]))
        b = np.exp(-2 * (x @ self.beta2[:, :, None]))
        return np.concatenate([a, b], axis=-1)


def draw_market(trials: int, d: int, features: int, beta_bound: float, rng: Rng) -> Market:
    """Draw the parameters of `trials` independent trials."""
    beta = rng.uniform((2, trials, d), like=DOUBLE, low=-beta_bound, high=beta_bound)
    omega = rng.normal((trials, features, d), like=DOUBLE)
    return Market(beta[0], beta[1], omega, rng.uniform((trials, features), like=DOUBLE, high=2 * pi))


def draw_data(market: Market, M: int, m: int, rng: Rng) -> tuple[Array, Array]:
    """Draw covariates x (T, M, d), and z (T, M, 2), the mean of m observed coefficients at each.

    Psi is linear in z, so only the mean of the m observations matters; it is drawn directly.
    """
    trials, _, d = market.omega.shape
    x = rng.normal((trials, M, d), like=DOUBLE)
    return x, market.sensitivity(x) + rng.normal((trials, M, 2), like=DOUBLE) / sqrt(m)


@dataclass(frozen=True)
class Cost:
    """Psi at the price v = theta'g(x), which is clipped to [low, high], with a useful gradient outside.

    If the cost were constant outside the bounds, a rule that starts there, such as theta = 0, would have no
    gradient. So the cost is extended by its tangent where descent then leads back inside, and by a constant
    elsewhere. It equals Psi between the bounds, and is at least Psi of the clipped price outside.
    """

    low: float = -inf
    high: float = inf

    def value(self, v: Array, z: Array) -> Array:
        """The cost at v (...) with coefficients z (..., 2)."""
        w = np.clip(v, self.low, self.high)
        return -w * (z[..., 0] * w + z[..., 1]) + (v - w) * self.slope(v, z)

    def slope(self, v: Array, z: Array) -> Array:
        """The derivative of the cost in v."""
        w = np.clip(v, self.low, self.high)
        slope: Array = -(2 * z[..., 0] * w + z[..., 1])
        slope = np.where(v < self.low, np.minimum(slope, 0), slope)
        return np.where(v > self.high, np.maximum(slope, 0), slope)


def optimal_price(z: Array, high: float) -> Array:
    """The price in [0, high] of least cost, with coefficients z (..., 2) and z_2 > 0."""
    inside = z[..., 0] < -z[..., 1] / (2 * high)
    return np.where(inside, -z[..., 1] / (2 * np.where(inside, z[..., 0], -1.0)), high)


# --- Prices without bounds: the risk is a quadratic function of theta --------------------------------


@dataclass(frozen=True)
class Quadratic:
    """theta'H theta + q'theta in each trial: H (T, F, F), q (T, F)."""

    H: Array
    q: Array

    def __call__(self, theta: Array) -> Array:
        """The value at theta (T, F) of each trial."""
        return np.einsum("tf,tfg,tg->t", theta, self.H, theta) + np.sum(self.q * theta, axis=-1)


def empirical_risk(market: Market, x: Array, z: Array) -> Quadratic:
    """The mean cost on the data."""
    g, M = market.features(x), x.shape[1]
    return Quadratic(-g.swapaxes(1, 2) @ (z[:, :, :1] * g) / M, -np.sum(z[:, :, 1:] * g, axis=1) / M)


def true_risk(market: Market) -> Quadratic:
    """The expected cost for x ~ N(0, I).

    The vector q follows from E[exp(s'x) cos(v'x + c)] = exp((|s|^2 - |v|^2)/2) cos(s'v + c), with
    s = -2 beta_2, v = omega_i and c = b_i. For the entry H_ij, the product of two cosines is half the sum of
    two terms cos(v'x + c): one with v = omega_i + omega_j and c = b_i + b_j, the other with the differences.
    Let v_1 be the component of v along beta_1, v_2 the rest of v, and u ~ N(0, 1). Since tanh is odd,
    E[tanh(3 beta_1'x) cos(v'x + c)] = -sin(c) exp(-|v_2|^2/2) E[tanh(3 |beta_1| u) sin(v_1 u)].
    """
    omega, b = market.omega, market.b
    length = np.linalg.norm(market.beta1, axis=1)[:, None]
    along = (omega @ (market.beta1 / length)[:, :, None])[:, :, 0]
    # The integrand is even, 0 at 0 and analytic, so the trapezoidal rule is exact up to rounding.
    step = 0.01
    u = step * np.arange(1, 901)
    density = 2 * step * np.exp(-(u**2) / 2) / sqrt(2 * pi) * np.tanh(3 * length * u)
    angles = along[:, :, None] * u
    products = (np.sin(angles) * density[:, None, :]) @ np.cos(angles).swapaxes(1, 2)
    # |v_2|^2 from the Gram matrix of the components of omega orthogonal to beta_1.
    gram = omega @ omega.swapaxes(1, 2) - along[:, :, None] * along[:, None, :]
    square = np.diagonal(gram, axis1=1, axis2=2)
    H = np.zeros_like(gram)
    for sign in (1, -1):
        across = square[:, :, None] + square[:, None, :] + 2 * sign * gram
        c = b[:, :, None] + sign * b[:, None, :]
        H += 0.5 * np.sin(c) * np.exp(-across / 2) * (products + sign * products.swapaxes(1, 2))
    s = -2 * market.beta2[:, :, None]
    exponent = (np.sum(s**2, axis=1) - np.sum(omega**2, axis=2)) / 2
    return Quadratic(H, -np.exp(exponent) * np.cos((omega @ s)[:, :, 0] + b))


def least_in_ball(risk: Quadratic, radius: float) -> Array:
    """The theta (T, F) of least risk with |theta| <= radius in each trial: a trust-region problem.

    theta is a minimiser if and only if (H + lambda I) theta = -q/2, H + lambda I has no negative eigenvalue,
    lambda >= 0, and |theta| = radius unless lambda = 0. In the eigenbasis of H this is a scalar equation for
    lambda = floor + t, where floor is the least lambda allowed.
    """
    e, U = np.linalg.eigh(risk.H)
    q = (risk.q[:, None, :] @ U)[:, 0, :] / 2
    scale = np.abs(e).max(axis=1, keepdims=True)
    floor = np.maximum(-e[:, :1], 0)
    gaps = np.maximum(e + floor, 0)
    gaps[gaps < 1e-14 * scale] = 0

    def theta(t: Array) -> Array:
        curvature = gaps + t  # without curvature, theta is 0
        return -q / np.where(curvature > 0, curvature, inf)

    def length(t: Array) -> Array:
        return np.linalg.norm(theta(t), axis=1, keepdims=True)

    # Trials whose solution has t = 0: no gradient where the curvature is 0, and theta inside the ball.
    unbounded = (gaps == 0) & (np.abs(q) > 1e-14 * np.linalg.norm(q, axis=1, keepdims=True))
    at_floor = ~unbounded.any(axis=1, keepdims=True) & (length(np.zeros_like(floor)) <= radius)
    low, high = np.zeros_like(floor), np.linalg.norm(q, axis=1, keepdims=True) / radius
    for _ in range(200):  # bisection to the last bit
        middle = (low + high) / 2
        too_long = length(middle) > radius
        low, high = np.where(too_long, middle, low), np.where(too_long, high, middle)
    solution = theta(np.where(at_floor, 0.0, high))
    # If H has a negative eigenvalue, theta moves from there along the eigenvector to the boundary.
    rest = np.sqrt(np.maximum(radius**2 - np.sum(solution**2, axis=1, keepdims=True), 0))
    solution[:, :1] += np.where(at_floor & (floor > 0), rest, 0)
    return (U @ solution[:, :, None])[:, :, 0]
