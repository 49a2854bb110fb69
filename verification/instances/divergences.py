"""Strongly convex phi for the claims on Algorithm 2, and the constant kappa of each.

kappa is the modulus of strong convexity: phi'' >= kappa on [0, inf).
"""

from __future__ import annotations

from functools import partial
from math import inf

from phiball.backends import Array, array_namespace
from phiball.refimpl import QUADRATIC, Divergence, cressie_read


def _on_positives(x: Array, value: Array) -> Array:
    xp = array_namespace(x)
    return xp.where(x < 0, xp.full_like(x, inf), value)


# --- x log x - x + 1 + k (x - 1)^2 / 2 ------------------------------------------------------------


def _mixed_phi(x: Array, *, k: float) -> Array:
    xp = array_namespace(x)
    safe = xp.where(x > 0, x, xp.ones_like(x))
    entropy = xp.where(x > 0, safe * xp.log(safe) - (safe - 1), xp.ones_like(x))
    return _on_positives(x, entropy + k * (x - 1) ** 2 / 2)


def _mixed_log_ratio(s: Array, *, k: float) -> Array:
    """v with v + k (exp(v) - 1) = s, by Newton's method, whose steps descend after the first."""
    xp = array_namespace(s)
    positive = s > 0
    v = xp.where(positive, xp.log1p(xp.where(positive, s, xp.zeros_like(s)) / k), s)
    for _ in range(30):
        v = v - (v + k * xp.expm1(v) - s) / (1 + k * xp.exp(v))
    return v


def _mixed_dconj(s: Array, *, k: float) -> Array:
    return array_namespace(s).exp(_mixed_log_ratio(s, k=k))


def _mixed_d2conj(s: Array, *, k: float) -> Array:
    x = _mixed_dconj(s, k=k)
    return x / (1 + k * x)


def _mixed_conj(s: Array, *, k: float) -> Array:
    # s x - phi(x) with s = log x + k (x - 1) leaves x - 1 + k (x^2 - 1)/2.
    y = array_namespace(s).expm1(_mixed_log_ratio(s, k=k))
    return y + k * y * (y + 2) / 2


def mixed(k: float) -> Divergence:
    """phi = x log x - x + 1 + k (x - 1)^2/2: steep at 0 like the entropy, and k-strongly convex."""
    return Divergence(
        f"entropic + {k:g} (x - 1)^2/2",
        phi=partial(_mixed_phi, k=k),
        conj=partial(_mixed_conj, k=k),
        dconj=partial(_mixed_dconj, k=k),
        d2conj=partial(_mixed_d2conj, k=k),
        slope0=-inf,
        slope1=0.0,
        recession=inf,
        curvature1=1 + k,
    )


# --- (x - 1)^2/2 + (x - 1)^4/4 --------------------------------------------------------------------


def _quartic_phi(x: Array) -> Array:
    return _on_positives(x, (x - 1) ** 2 / 2 + (x - 1) ** 4 / 4)


def _quartic_dconj(s: Array) -> Array:
    """1 + y with y + y^3 = s, by Cardano's formula; zero below phi'(0) = -2."""
    xp = array_namespace(s)
    y = 2 / 3**0.5 * xp.sinh(xp.asinh(1.5 * 3**0.5 * s) / 3)
    return xp.where(s > -2, 1 + y, xp.zeros_like(s))


def _quartic_d2conj(s: Array) -> Array:
    xp = array_namespace(s)
    y = _quartic_dconj(s) - 1
    return xp.where(s > -2, 1 / (1 + 3 * y**2), xp.zeros_like(s))


def _quartic_conj(s: Array) -> Array:
    x = _quartic_dconj(s)
    return s * x - ((x - 1) ** 2 / 2 + (x - 1) ** 4 / 4)


QUARTIC = Divergence(
    "(x - 1)^2/2 + (x - 1)^4/4",
    phi=_quartic_phi,
    conj=_quartic_conj,
    dconj=_quartic_dconj,
    d2conj=_quartic_d2conj,
    slope0=-2.0,
    slope1=0.0,
    recession=inf,
    curvature1=1.0,
)


KAPPA: dict[Divergence, float] = {
    QUADRATIC: 1.0,
    cressie_read(2): 1.0,
    mixed(1.0): 1.0,
    mixed(0.1): 0.1,
    QUARTIC: 1.0,
}
"""The divergences on which the guarantees of Algorithm 2 are measured, each with its kappa."""
