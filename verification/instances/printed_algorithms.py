"""Algorithm 2 of the paper as it is printed: T halvings of a bracket of mu, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, log2
from typing import NamedTuple, TypeAlias

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence

Bracket: TypeAlias = Callable[[Array, float, Divergence], tuple[float, float]]


class Output(NamedTuple):
    """gamma, which need not sum to one, the multiplier mu, and h(mu) = sum gamma - 1."""

    gamma: Array
    mu: float
    h: float


Algorithm: TypeAlias = Callable[[Array, float, Divergence, int, tuple[float, float]], Output]


def printed_bracket(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    """[min f, max f - eta K], K = phi'(0+); max f - eta (min f - max f) above where K = -inf."""
    xp = array_namespace(f)
    lowest, highest = float(xp.min(f)), float(xp.max(f))
    K = phi.slope0
    return lowest, highest - eta * (lowest - highest if -inf == K else K)


def corrected_bracket(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    """[min f - eta g, max f - eta g] with g in the subdifferential of phi at 1."""
    xp = array_namespace(f)
    g = phi.slope1
    low, high = float(xp.min(f)) - eta * g, float(xp.max(f)) - eta * g
    return max(low, float(xp.max(f)) - eta * phi.recession), high


def printed_iterations(width: float, kappa: float, eta: float, eps: float) -> float:
    """T = log2(width^2 / (2 kappa eta eps))/2: a real number, which may be negative."""
    return log2(width**2 / (2 * kappa * eta * eps)) / 2 if width else -inf


def iterations(width: float, kappa: float, eta: float, eps: float) -> int:
    """The printed T rounded up, and at least 1."""
    return max(1, ceil(max(printed_iterations(width, kappa, eta, eps), 1.0)))


def algorithm2(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    """Steps 1 to 7; (phi')^-1 is phi*' above K, and the index set N is where it is truncated."""
    xp = array_namespace(f)
    m = f.shape[-1]
    low, high = bracket
    gamma, mu, h = xp.zeros_like(f), low, -1.0
    for _ in range(T):
        mu = (low + high) / 2
        gamma = xp.where(f <= mu + eta * phi.slope0, xp.zeros_like(f), phi.dconj((f - mu) / eta)) / m
        h = float(xp.sum(gamma)) - 1
        if h <= 0:
            high = mu
        else:
            low = mu
    return Output(gamma, mu, h)
