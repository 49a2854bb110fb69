"""The robust risk of a linear model at one example, in 30 digits.

A linear model has the coefficients theta, and its prediction at the example is m. If x is uniform on a ball
of radius rho around the example in R^d, the prediction at x is m + r t, where r = rho |theta| and t has a
density proportional to (1 - t^2)^((d-1)/2). If x is Gaussian, t is standard normal and r a standard
deviation. Losses and divergences are named by strings. mpmath computes the integrals in u = arcsin t, or in
t for a Gaussian, split at kinks; thresholds are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np

Function = Callable[[Any], Any]
DIGITS = 30


def loss(name: str, z: Any, y: Any) -> Any:
    """The loss of a prediction z and a label y: logistic, hinge, squared, absolute or poisson."""
    if name == "logistic":
        return mp.log1p(mp.exp(-y * z))
    if name == "hinge":
        return max(mp.mpf(0), 1 - y * z)
    if name == "squared":
        return (z - y) ** 2 / 2
    if name == "absolute":
        return abs(z - y)
    return mp.exp(z) - y * z + (y * mp.log(y) if y else 0) - y


def _minimiser(name: str, y: Any) -> Any:
    """The prediction at which the loss is smallest, or has its kink."""
    if name == "logistic":
        return y * mp.inf
    if name == "hinge":
        return 1 / y
    if name == "poisson":
        return mp.log(y) if y else -mp.inf
    return y


def _bisect(low: Any, high: Any, move_right: Callable[[Any], bool], steps: int = 4 * DIGITS) -> Any:
    """Bisect [low, high]: keep the right half if `move_right` holds at the middle, else the left half."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if move_right(middle) else (low, middle)
    return (low + high) / 2


class Example:
    """f(t), the loss of the prediction m + r t with label y, and the distribution of t in [-reach, reach].

    It is that of a ball of dimension d, with reach 1; or for d = inf the normal distribution, truncated.
    """

    def __init__(self, name: str, m: float, r: float, y: float, d: float, reach: float = 1) -> None:
        self.name, self.m, self.r, self.y, self.d = name, mp.mpf(m), mp.mpf(r), mp.mpf(y), d
        self.reach = mp.mpf(reach)
        turn = (_minimiser(name, self.y) - self.m) / self.r
        self.turn = min(self.reach, max(-self.reach, turn))
        self.top = max(self(-self.reach), self(self.reach))
        self.total = self.integral(lambda t: 1)

    def __call__(self, t: Any) -> Any:
        return loss(self.name, self.m + self.r * t, self.y)

    def integral(self, g: Function, *cuts: Any) -> Any:
        """The integral of g(t) cos(u)^d or g(t) exp(-t^2/2), split at the loss's minimiser and at `cuts`."""
        if self.d == mp.inf:
            ends = [side * min(t, self.reach) for t in range(4, int(self.reach) + 8, 8) for side in (-1, 1)]
            return mp.quad(lambda t: g(t) * mp.exp(-t * t / 2), sorted({*ends, self.turn, *cuts}))
        core = 3 / mp.sqrt(self.d + 2)  # three standard deviations of t
        points = {mp.asin(t) for t in (self.turn, *cuts)} | {-mp.pi / 2, -core, core, mp.pi / 2}
        ordered = sorted(u for u in points if abs(u) <= mp.pi / 2)
        whole = mp.mpf(0)
        for a, b in pairwise(ordered):
            whole += mp.quad(lambda u: g(mp.sin(u)) * mp.cos(u) ** self.d, [a, b])
        return whole

    def mean(self, g: Function, *cuts: Any) -> Any:
        """E g(t)."""
        return self.integral(g, *cuts) / self.total

    def crossings(self, level: Any) -> tuple[Any, Any]:
        """The two t at which f crosses the level: one below the minimiser, and one above."""
        left = _bisect(-self.reach, self.turn, lambda t: self(t) > level)
        return left, _bisect(self.turn, self.reach, lambda t: self(t) <= level)

    def tail(self, g: Function, level: Any) -> Any:
        """E g(t) over the t with f(t) > level."""
        cuts = self.crossings(level)
        return self.mean(lambda t: g(t) if t < cuts[0] or t > cuts[1] else mp.mpf(0), *cuts)


def example_risk(
    name: str, m: float, r: float, y: float, d: float, eta: float, divergence: str, alpha: float = 0.3
) -> float:
    """The robust risk of one example; `alpha` is the parameter of the indicator or of the power.

    d = inf means a Gaussian, truncated at 14 standard deviations beyond the worst case of a loss of slope 1.
    """
    with mp.workdps(DIGITS):
        reach = 1 if d < mp.inf else 14 + r / eta if divergence == "entropic" else 14
        f, price = Example(name, m, r, y, d, reach), mp.mpf(eta)
        if divergence == "average":
            return float(f.mean(f))
        if divergence == "entropic":
            # Scale the integrand to about 1: mpmath stops at an absolute error.
            steps = [mp.mpf(k) for k in range(-int(reach), int(reach) + 1)]
            size = f.top if d < mp.inf else max(f(t) - price * t * t / 2 for t in steps)
            return float(size + price * mp.log(f.mean(lambda t: mp.exp((f(t) - size) / price))))
        low, high = f(f.turn), f.top
        if divergence == "quadratic":  # E(f - mu)_+ = eta, and R = mu + E(f - mu)_+^2/(2 eta) + eta/2
            mu = _level(lambda s: f.tail(lambda t: f(t) - s, s) > price, low - price, high)
            return float(mu + f.tail(lambda t: (f(t) - mu) ** 2, mu) / (2 * price) + price / 2)
        if divergence == "power" and alpha < 1:
            return float(_power_below_one(f, price, mp.mpf(alpha)))
        if divergence == "power":  # phi = (x^k - k x + k - 1)/(k (k - 1)) with k = alpha > 1
            k = mp.mpf(alpha)
            floor = -price / (k - 1)  # the density ratio is positive where f > mu + floor

            def ratio(t: Any, mu: Any) -> Any:
                return max(mp.mpf(0), 1 + (k - 1) * (f(t) - mu) / price) ** (1 / (k - 1))

            mu = _level(lambda s: f.tail(lambda t: ratio(t, s), s + floor) > 1, low, high)
            kept = f.tail(lambda t: mp.mpf(1), mu + floor)
            conjugate = f.tail(lambda t: (ratio(t, mu) ** k - 1) / k, mu + floor) - (1 - kept) / k
            return float(mu + price * conjugate)
        if divergence == "indicator":
            mu = _level(lambda s: f.tail(lambda t: mp.mpf(1), s) > alpha, low, high)
            return float(mu + f.tail(lambda t: f(t) - mu, mu) / alpha)
        # Absolute value and hinge: losses more than `width` below the top are raised to top - width.
        width = {"absolute": 2, "hinge": 1}[divergence] * price
        kept = f.tail(lambda t: mp.mpf(1), f.top - width)
        return float(f.tail(f, f.top - width) + (1 - kept) * (f.top - width))


def _power_below_one(f: Example, price: Any, k: Any) -> Any:
    """The risk for the power with k < 1, whose worst case may have an atom at the largest loss.

    The multiplier is at least top - eta/(1 - k), the pole. If the density at the pole has mass below one, an
    atom has the remaining mass, and the dual value at the pole is the risk.
    """

    def base(t: Any, over: Any) -> Any:  # `over` is mu minus the pole
        return (1 - k) * (max(f.top - f(t), mp.mpf(0)) + over) / price

    def conjugate(t: Any, over: Any) -> Any:
        y = base(t, over)
        return -mp.log(y) if k == 0 else (y ** (k / (k - 1)) - 1) / k

    def deficit(over: Any) -> Any:  # negative if the mass exceeds one; nearly linear
        return f.mean(lambda t: base(t, over) ** (1 / (k - 1))) ** (k - 1) - 1

    over = price * mp.mpf(10) ** -40
    if deficit(over) < 0:
        over = mp.findroot(deficit, (over, price / (1 - k)), solver="anderson", tol=mp.mpf(10) ** -18)
    return f.top - price / (1 - k) + over + price * f.mean(lambda t: conjugate(t, over))


def _level(above: Callable[[Any], bool], low: Any, high: Any) -> Any:
    """The largest level at which `above` holds, to half the digits: the dual is flat at its minimum."""
    return _bisect(low, high, above, 2 * DIGITS)


def class_risk(W: Any, x: Any, y: int, rho: float, eta: float, nodes: int = 24) -> float:
    """The entropic risk of the cross entropy of W (x + b) with label y.

    b is uniform on the ball of radius rho in R^3.

    A product rule in spherical coordinates, in double precision, without reduction to a subspace.
    """
    u, a = np.polynomial.legendre.leggauss(nodes)
    radius, shell = (1 + u) / 2, a * (1 + u) ** 2  # the density of the radius s is proportional to s^2
    angle = 2 * np.pi * np.arange(2 * nodes) / (2 * nodes)
    s, c, phi = np.meshgrid(radius, u, angle, indexing="ij")
    flat = np.sqrt(1 - c * c)
    b = rho * np.stack([s * flat * np.cos(phi), s * flat * np.sin(phi), s * c], axis=-1)
    p = np.broadcast_to(shell[:, None, None] * a[None, :, None], s.shape)
    z = (np.asarray(x) + b) @ np.asarray(W).T
    f = np.log(np.sum(np.exp(z), axis=-1)) - z[..., y]
    top = float(np.max(f))
    return top + eta * float(np.log(np.sum(p * np.exp((f - top) / eta)) / np.sum(p)))
