"""The divergences that claims use: the named ones, strongly convex ones, and restrictions to an interval."""

from __future__ import annotations

from functools import partial
from math import inf, isfinite

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    hockey_stick,
    indicator,
)
from phiball.refimpl.inner.divergences import DIVERGENCES

NAMED = (
    *DIVERGENCES.values(),
    *(indicator(alpha) for alpha in (0.5, 0.75, 0.1, 1.0)),
    *(cressie_read(k) for k in (2.0, 0.5, 0.0, -1.0, 1.25, 1.5, 3.0, 5.0)),
    hockey_stick(1.5),
)
CONSISTENT = tuple(d for d in NAMED if d.family != "indicator")
"""The divergences in `NAMED` whose risk tends to the largest loss as eta tends to 0."""

PAPER_DIVERGENCES = (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3))
"""The divergences of the paper's Examples 1 to 5."""


def divergences() -> st.SearchStrategy[Divergence]:
    """The divergences in `NAMED`."""
    return st.sampled_from(NAMED)


def _on_positives(x: Array, value: Array) -> Array:
    """`value` where x >= 0, and infinity where x < 0."""
    xp = array_namespace(x)
    return xp.where(x < 0, xp.full_like(x, inf), value)


# --- x log x - x + 1 + k (x - 1)^2 / 2 ------------------------------------------------------------


def _mixed_phi(x: Array, *, k: float) -> Array:
    xp = array_namespace(x)
    safe = xp.where(x > 0, x, xp.ones_like(x))
    entropy = xp.where(x > 0, safe * xp.log(safe) - (safe - 1), xp.ones_like(x))
    return _on_positives(x, entropy + k * (x - 1) ** 2 / 2)


def _mixed_log_ratio(s: Array, *, k: float) -> Array:
    """log x for the x with phi'(x) = s: the root v of v + k (exp(v) - 1) = s, by Newton's method."""
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
    # At s = phi'(x) = log x + k (x - 1), phi*(s) = s x - phi(x) is x - 1 + k (x^2 - 1)/2; y is x - 1.
    y = array_namespace(s).expm1(_mixed_log_ratio(s, k=k))
    return y + k * y * (y + 2) / 2


def mixed(k: float) -> Divergence:
    """phi = x log x - x + 1 + k (x - 1)^2/2: k-strongly convex, with slope -inf at 0."""
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
    """1 + y, where y + y^3 = s, by Cardano's formula; zero for s <= phi'(0) = -2."""
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
"""Strongly convex phi, each with its modulus kappa: phi'' >= kappa on [0, inf)."""

STRONGLY_CONVEX = tuple(KAPPA)

# --- A smaller domain -----------------------------------------------------------------------------


def restricted(d: Divergence, a: float = 0.0, b: float = inf) -> Divergence:
    """phi of `d` on [a, b], for 0 <= a < 1 < b, and infinite elsewhere."""

    def phi(x: Array) -> Array:
        xp = array_namespace(x)
        # Tolerate rounding at the ends of the domain.
        inside = (x >= a * (1 - 2.0**-48)) & (x <= b * (1 + 2.0**-48))
        return xp.where(inside, d.phi(x), xp.full_like(x, inf))

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        with ignore_float_warnings():  # the density may overflow before it is truncated
            x = d.dconj(s)
        return xp.where(x < a, xp.full_like(s, a), xp.where(x > b, xp.full_like(s, b), x))

    def conj(s: Array) -> Array:
        xp, x = array_namespace(s), dconj(s)
        safe = xp.where(x < inf, x, xp.ones_like(x))
        return xp.where(x < inf, s * safe - d.phi(safe), xp.full_like(s, inf))

    def d2conj(s: Array) -> Array:
        xp, x = array_namespace(s), dconj(s)
        with ignore_float_warnings():
            return xp.where((x > a) & (x < b), d.d2conj(s), xp.zeros_like(s))

    return Divergence(
        f"{d.name} on [{a:g}, {b:g}]",
        phi=phi,
        conj=conj,
        dconj=dconj,
        d2conj=d2conj,
        slope0=-inf if a else d.slope0,
        slope1=d.slope1,
        recession=inf if isfinite(b) else d.recession,
        curvature1=d.curvature1,
    )


HALF_ABSOLUTE = restricted(ABSOLUTE, 0.5)
"""abs(x - 1) on [1/2, inf). It satisfies Proposition 1 (I), as phi(t)/t tends to 1; it is infinite near 0."""
