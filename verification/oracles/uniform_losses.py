"""Closed forms for f uniform on [0, G], f with an atom, and volumes of balls; quadrature on [0, 1]."""

from __future__ import annotations

from math import expm1, inf, log1p, sqrt
from typing import Any

import mpmath as mp
import numpy as np


def optimal_value(eta: float, family: str, parameter: float | None = None, G: float = 1.0) -> float:
    """R for f uniform on [0, G]."""
    if family == "entropic":
        # eta log(eta (e^(G/eta) - 1)/G), without the overflow.
        return G + eta * float(np.log(eta / G * -expm1(-G / eta)))
    if family == "quadratic":
        return G - 4 / 3 * sqrt(G * eta / 2) + eta / 2 if eta <= G / 2 else G / 2 + G**2 / (24 * eta)
    if family == "absolute":
        return G - 2 * eta + 2 * eta**2 / G if 2 * eta <= G else G / 2
    if family == "hinge":
        return G - eta + eta**2 / (2 * G) if eta <= G else G / 2
    if family == "indicator":
        assert parameter is not None
        return G * (1 - parameter / 2)
    raise ValueError(f"family is {family!r}; expected one of the paper's five")


def optimal_multiplier(eta: float, family: str, G: float = 1.0) -> float:
    """mu* for f uniform on [0, G]."""
    if family == "entropic":
        return optimal_value(eta, family, G=G)
    if family == "quadratic":
        return G - sqrt(2 * G * eta) if eta <= G / 2 else G / 2 - eta
    raise ValueError(f"family is {family!r}; expected entropic or quadratic")


def largest_density(eta: float, family: str, G: float = 1.0) -> float:
    """The largest density ratio zeta* for f uniform on [0, G]."""
    if family == "entropic":
        return G / eta / -expm1(-G / eta)
    if family == "quadratic":
        return (G - optimal_multiplier(eta, family, G)) / eta
    raise ValueError(f"family is {family!r}; expected entropic or quadratic")


def missing_with_atom(eta: float, q: float, family: str) -> float:
    """max f - R for f = 1 with probability q, else 0.

    Requires eta <= q (quadratic), eta <= 1/2 (absolute) or eta <= 1 (hinge).
    """
    if family == "entropic":
        return -eta * log1p((1 - q) * expm1(-1 / eta))
    if family == "quadratic":
        return eta * (1 / q - 1) / 2
    if family in ("absolute", "hinge"):
        return (2 if family == "absolute" else 1) * eta * (1 - q)
    raise ValueError(f"family is {family!r}; expected entropic, quadratic, absolute or hinge")


def graded(breaks: tuple[float, ...] = (), levels: int = 46, degree: int = 20) -> tuple[Any, Any]:
    """Nodes and weights for U[0, 1], refined near 1: Gauss rules between the points 1 - 2^-j and `breaks`.

    Accurate to rounding for exp((x - 1)/eta) with eta >= 1e-12, and for functions that are smooth except at
    the breaks.
    """
    ends = sorted({0.0, *(1 - 2.0**-j for j in range(1, levels)), 1.0, *(b for b in breaks if 0 < b < 1)})
    t, w = np.polynomial.legendre.leggauss(degree)
    low, high = np.array(ends[:-1])[:, None], np.array(ends[1:])[:, None]
    nodes, weights = low + (high - low) * (t + 1) / 2, (high - low) * w / 2
    return nodes.ravel(), weights.ravel()


def dyadic(levels: int = 160, degree: int = 20) -> tuple[Any, Any]:
    """Nodes and weights for U[0, 1], refined near 0, that integrate powers of u to rounding."""
    t, w = np.polynomial.legendre.leggauss(degree)
    low = np.array([*(2.0**-j for j in range(1, levels)), 0.0])[:, None]
    high = np.array([2.0**-j for j in range(levels)])[:, None]
    return (low + (high - low) * (t + 1) / 2).ravel(), ((high - low) * w / 2).ravel()


def volume(norm: float, radius: float, d: int) -> Any:
    """The volume of a ball in R^d, by the textbook formulas for the norms 1, 2 and inf."""
    rho = mp.mpf(radius)
    if norm == 1:
        return (2 * rho) ** d / mp.factorial(d)
    if norm == 2:
        return mp.pi ** (mp.mpf(d) / 2) * rho**d / mp.gamma(mp.mpf(d) / 2 + 1)
    if norm == inf:
        return (2 * rho) ** d
    raise ValueError(f"norm is {norm!r}; expected 1, 2 or inf")
