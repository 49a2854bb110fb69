"""The robust risk of a linear function on a Euclidean ball: a problem in one variable.

For b uniform on the unit ball of R^d, g.b = |g| x, where x has a density proportional to (1 - x^2)^((d-1)/2)
on [-1, 1]. So the risk of g.b on the ball of radius rho is eta h(t) with t = rho |g|/eta and

    h(t) = min over s of  -s + E phi*(s + t x),      h'(t) = E[x phi*'(s + t x)] at the minimizer s.

The worst-case distribution of x has the density phi*'(s + t x) with respect to the distribution of x.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.inner.divergences import Divergence, centred

_STEP = 1 / 32  # step of the trapezoidal rule, which is exact to rounding except for steep integrands
# Pairs (u, r): the nodes have the distances r, from 1e-17 to 40, from the cut (see `linear_risk`).
_DISTANCES = [(u, exp(u - exp(-u))) for u in (_STEP * k for k in range(-115, 119))]
_NARROW = 0.4  # largest allowed probability of one node; a normal peak is then integrated to 3e-9
_MISSED = 1e-9  # if the total probability differs from 1 by more, the search failed (as for t above 1e140)
_MET = 1e-13  # tolerance of the total probability; enough, as the value depends on the squared error of s


def linear_risk(t: Array, d: int, divergence: Divergence) -> tuple[Array, Array]:
    """(h(t), h'(t)), both (N,), for t >= 0 (N,) in float64 and a ball in dimension d; h'(0) is set to 0.

    Substituting x = tanh v turns the density into cosh(v)^-(d+1), a bell curve on the line. The line is cut
    where phi*' becomes positive, and a double exponential rule, whose nodes are dense at the cut, integrates
    both sides. A kink of phi* elsewhere reduces the accuracy. If phi* grows exponentially, the worst-case
    distribution may be a narrow peak far from the cut; ValueError is raised if it falls between the nodes.

    >>> import numpy as np
    >>> from phiball import QUADRATIC
    >>> from phiball.refimpl.theory.linear_risk import linear_risk
    >>> h, slope = linear_risk(np.array([0.6, 4.0]), 1, QUADRATIC)  # t^2/6, and t - (4/3) sqrt(t) + 1/2
    >>> print(np.round(h, 9), np.round(slope, 9))
    [0.06       1.83333333] [0.2        0.66666667]
    """
    xp = array_namespace(t)
    c = centred(divergence)
    distribution = _Distribution(t, d, c)
    with ignore_float_warnings():
        # Find sigma = s + t, which is (max f - mu)/eta for the loss f = g.b. The bracket [0, 2 t] is that of
        # the corrected Algorithm 2. Besides, sigma is at most phi'(inf), the `recession`.
        low, high = xp.zeros_like(t), xp.where(2 * t < c.recession, 2 * t, xp.full_like(t, c.recession))
        lack, surplus = distribution.surplus(low), distribution.surplus(high)
        # If the total probability is below one even at `high`, the rest is an atom at the maximum of f.
        sigma, done = high, surplus <= 0
        was_below = done
        for step in range(200):
            # False position (Illinois method), with a bisection in every fourth step.
            middle = low + (high - low) / 2
            chord = high - (high - low) * (surplus / (surplus - lack))
            use = (chord > low) & (chord < high) & (step % 4 < 3)
            sigma = xp.where(done, sigma, xp.where(use, chord, middle))
            value = distribution.surplus(sigma)
            done = done | (xp.abs(value) <= _MET) | (middle <= low) | (middle >= high)
            if xp.all(done):
                break
            below = value <= 0
            again = (below == was_below) & (step > 0)
            lack, surplus = xp.where(again, lack / 2, lack), xp.where(again, surplus / 2, surplus)
            low, lack = xp.where(below, sigma, low), xp.where(below, value, lack)
            high, surplus = xp.where(below, high, sigma), xp.where(below, surplus, value)
            was_below = below
        return distribution.value_and_mean(sigma)


class _Distribution:
    """The distribution of x, and expectations under it, for t (N,) and sigma (N,)."""

    def __init__(self, t: Array, d: int, c: Divergence) -> None:
        xp = array_namespace(t)
        self.xp, self.t, self.d, self.c = xp, t, d, c
        made: dict[str, Any] = {"dtype": t.dtype, "device": device(t)}
        r = xp.asarray([r for _, r in _DISTANCES], **made)
        width = xp.asarray([_STEP * r * (1 + exp(-u)) for u, r in _DISTANCES], **made)
        self.offsets = xp.concat([xp.flip(-r), r])
        self.widths = xp.concat([xp.flip(width), width])
        self.total = xp.sum(self.widths * self._bell(self.offsets))

    def _bell(self, v: Array) -> Array:
        """cosh(v)^-(d+1), the density of v = artanh x up to a factor."""
        xp = self.xp
        return xp.exp(-(self.d + 1) / 2 * xp.log1p(xp.sinh(v) ** 2))

    def nodes(self, sigma: Array) -> tuple[Array, Array, Array]:
        """Nodes y = 1 - x (N, n) with probabilities p (N, n), and whether the line is cut at a kink (N,)."""
        xp, c = self.xp, self.c
        t = xp.where(self.t > 0, self.t, xp.full_like(self.t, 1e-300))
        y = xp.clip((sigma - c.slope0) / t, 1e-250, 2.0)
        v = xp.log((2 - y) / y) / 2
        # A kink more than twelve standard deviations below the mean is negligible: cut the line at the mean.
        cut = v > -12 / sqrt(self.d + 1)
        v = xp.where(cut, v, xp.zeros_like(v))[:, None] + self.offsets
        v = xp.clip(v, -300.0, 300.0)
        return 2 / (1 + xp.exp(2 * v)), self.widths * self._bell(v) / self.total, cut

    def density(self, sigma: Array, y: Array, p: Array) -> tuple[Array, Array]:
        """The argument w = s + t x of phi* and the worst-case probabilities q at the nodes, both (N, n)."""
        xp = self.xp
        w = sigma[:, None] - self.t[:, None] * y
        zeta = self.c.dconj(w)
        return w, xp.where(self.proper(p, zeta), p * zeta, xp.zeros_like(p))

    def proper(self, p: Array, value: Array) -> Array:
        """The mask of nodes to sum over: p > 0, and `value` is finite unless phi* has no pole.

        Rounding may move w to the pole phi'(inf) of phi*, where `value` is infinite.
        """
        return (p > 0) & ((value < self.xp.inf) | (self.c.recession == self.xp.inf))

    def surplus(self, sigma: Array) -> Array:
        """The total worst-case probability minus one, E phi*'(s + t x) - 1."""
        y, p, _ = self.nodes(sigma)
        _, q = self.density(sigma, y, p)
        return self.xp.sum(q, axis=-1) - 1

    def value_and_mean(self, sigma: Array) -> tuple[Array, Array]:
        """(h, h'): -s + E phi*(s + t x), and the mean of x under the worst-case distribution."""
        xp, c = self.xp, self.c
        y, p, cut = self.nodes(sigma)
        w, q = self.density(sigma, y, p)
        # Subtract the value of phi* below the cut, where it is constant: nodes there contribute nothing.
        zero = xp.zeros_like(sigma)
        below = c.conj(xp.full_like(sigma, c.slope0)) if c.slope0 > -xp.inf else zero
        below = xp.where(cut, below, zero)
        conj = c.conj(w)
        above = xp.where(self.proper(p, conj), p * (conj - below[:, None]), xp.zeros_like(p))
        mass, mean = xp.sum(q, axis=-1), xp.sum(q * (1 - y), axis=-1)
        atom = (sigma >= c.recession) & (mass < 1)
        narrow = xp.max(q, axis=-1) > _NARROW * xp.where(mass > 0, mass, xp.ones_like(mass))
        narrow = narrow | (~(xp.abs(mass - 1) <= _MISSED) & ~atom & (self.t > 0))
        if xp.any(narrow):
            t = float(xp.max(self.t[narrow]))
            raise ValueError(
                f"the worst case of the {c.name} divergence at rho ||g||_*/eta = {t:.3g} in {self.d} "
                "dimensions is too narrow for quadrature: increase eta, or use the entropic divergence"
            )
        mean = xp.where(atom, mean + (1 - mass), mean / mass)
        # At t = 0 the uniform distribution is optimal.
        return (self.t - sigma) + (below + xp.sum(above, axis=-1)), xp.where(self.t > 0, mean, zero)
