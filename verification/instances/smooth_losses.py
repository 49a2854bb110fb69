"""Smooth losses and data for the regularisers of Section 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf, log, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array
from phiball.refimpl import ABSOLUTE, ENTROPIC, QUADRATIC, Ball, Divergence
from phiball.verification.framework.evidence import Evidence
from phiball.verification.instances.conversion import array, mean
from phiball.verification.instances.tolerances import QUADRATURE
from phiball.verification.oracles.certainty_equivalents import disc_risk, line_risk, parabola

Linear: TypeAlias = Callable[[Array, Ball, float, Divergence], Array]
Variation: TypeAlias = Callable[[Array, Ball], Array]

# f(z) = sin z + z^2 at two data points; f is monotone within a distance of 0.1 from each of them.
DATA = (0.3, -1.2)
GRADIENTS = [float(np.cos(z) + 2 * z) for z in DATA]
BENDS = [2 - float(np.sin(z)) for z in DATA]

# f(z) = sin(z_1) cos(z_2) + z_1 z_2/2 at two data points of the plane.
PLANE = ((0.4, -0.3), (-1.1, 0.8))
PLANE_GRADIENTS = [
    [float(np.cos(x) * np.cos(y) + y / 2), float(x / 2 - np.sin(x) * np.sin(y))] for x, y in PLANE
]
PLANE_BEND = 2.5  # a bound on the eigenvalues of the Hessian, -sin(x) cos(y) +- (1/2 - cos(x) sin(y))

SLOPES = st.one_of(st.integers(-3, 3).map(float), st.floats(-3, 3, width=32, allow_subnormal=False))
QUADRATICS = st.lists(st.tuples(SLOPES, SLOPES), min_size=1, max_size=3)
"""Pairs (g, S) of f = g z + S z^2/2, one per data point."""


def plane_regulariser(rho: float, eta: float, family: str) -> float:
    """The regulariser E in the plane: the mean of R(f; z) - f(z) over the data points, with l2 balls."""

    def at(x: float, y: float) -> float:
        def rise(b: Any) -> Any:  # f(z + b) - f(z)
            # Differences of sine and cosine as products, to avoid cancellation for small b.
            u, v = b[:, 0], b[:, 1]
            sine = 2 * np.cos(x + u / 2) * np.sin(u / 2)
            cosine = -2 * np.sin(y + v / 2) * np.sin(v / 2)
            return sine * (np.cos(y) + cosine) + np.sin(x) * cosine + (x * v + y * u + u * v) / 2

        return disc_risk(rise, rho, eta, family)

    return float(np.mean([at(x, y) for x, y in PLANE]))


def linearisation(
    points: list[tuple[float, float]],
    rho: float,
    ratio: float,
    phi: Divergence,
    linear: Linear,
    constant: float,
) -> Iterator[Evidence]:
    """Check that a regulariser and its linearisation differ by at most `constant` mean(abs(S)) rho^2.

    The regulariser is the mean of R(f; z) - f(z) over the data points. `points` has a pair (g, S) for each
    data point, where a perturbation b changes f by g b + S b^2/2. `linear` is the regulariser of g b alone.
    """
    eta = rho / ratio
    excess = [line_risk(*parabola(g, S, rho), eta, phi.family or "", phi.parameter) for g, S in points]
    bends = [abs(S) for _, S in points]
    # Both are integrals; for the quadratic phi the oracle also adds numbers of size eta.
    rounding = QUADRATURE * rho * max(abs(g) + rho * abs(S) for g, S in points) + 2.0**-48 * eta
    line = linear(array([[g] for g, _ in points]), Ball(2, rho), eta, phi)
    error = abs(float(np.mean(excess)) - mean(line))
    bound = constant * float(np.mean(bends)) * rho**2
    yield Evidence.at_most(
        error, bound, rounding, f"on a line: the error is {error:.4g}, the bound {bound:.4g}"
    )
    if phi is ENTROPIC:
        # One data point whose loss is a sum over coordinates: in the norm inf, its risk and S are sums too.
        box = linear(array([[g for g, _ in points]]), Ball(inf, rho), eta, phi)
        error, bound = abs(sum(excess) - mean(box)), constant * sum(bends) * rho**2
        note = f"in a box: the error is {error:.4g}, the bound {bound:.4g}"
        yield Evidence.at_most(error, bound, 3 * rounding, note)


def shortfall_of_r1(g: float, C: float, phi: Divergence) -> float:
    """abs(g) minus the certainty equivalent of g b at eta = 1/C <= abs(g), for b uniform on [-1, 1]."""
    g = abs(g)
    if phi is ENTROPIC:
        return (log(2 * g * C) - float(np.log1p(-exp(-2 * g * C)))) / C
    if phi is QUADRATIC:
        return 4 / 3 * sqrt(g / C) - 1 / (2 * C)
    width = 2 / C if phi is ABSOLUTE else 1 / C
    return width - width**2 / (4 * g)
