"""The loss of examples along t, convex on [-1, 1]: where it crosses a level, and the level of a tail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, pi, sqrt

from phiball.backends import Array, array_namespace
from phiball.refimpl.linear.losses import Jet, LinearLoss
from phiball.refimpl.linear.nodes import pieces
from phiball.refimpl.printing import one_line

_HALVINGS = 45  # of an interval of length 2, to rounding of what a cut needs
_STEPS = 30
_MET = 1e-11  # of the mass: an error of the level enters the value by its square


@dataclass(frozen=True)
class Line:
    """The losses of examples with predictions m (k,) and labels y (k,), as functions of t: at m + r t."""

    loss: LinearLoss
    m: Array
    r: float
    y: Array
    __repr__ = one_line

    def __call__(self, t: Array) -> Jet:
        """The loss, and its derivatives in the prediction, at t (k,)."""
        return self.loss.jet(self.m + self.r * t, self.y)

    def crossings(self, level: Array) -> list[Array]:
        """The t on both sides of the minimum at which the loss is `level` (k,), or the ends."""
        one = array_namespace(self.m).ones_like(self.m)
        lowest = _bisect(-one, one, lambda t: self(t)[1] < 0)
        return [
            _bisect(-one, lowest, lambda t: self(t)[0] > level),
            _bisect(lowest, one, lambda t: self(t)[0] <= level),
        ]

    def upper_level(self, alpha: float, d: int, nodes: int) -> Array:
        """The level (k,) that the loss exceeds with probability `alpha`, by Newton's method."""
        xp = array_namespace(self.m)
        one = xp.ones_like(self.m)
        high = xp.maximum(self(-one)[0], self(one)[0])
        low = self(_bisect(-one, one, lambda t: self(t)[1] < 0))[0]
        top = exp(lgamma((d + 2) / 2) - lgamma((d + 1) / 2)) / sqrt(pi)  # the density of t at 0
        level = (low + high) / 2
        for _ in range(_STEPS):
            cuts = self.crossings(level)
            t, p = pieces(xp.stack(cuts, axis=1), nodes, d)
            outside = (t < cuts[0][:, None]) | (t > cuts[1][:, None])
            surplus = xp.sum(xp.where(outside, p, xp.zeros_like(p)), axis=1) - alpha
            if bool(xp.all(xp.abs(surplus) <= _MET)):
                break
            low, high = xp.where(surplus > 0, level, low), xp.where(surplus > 0, high, level)
            rate = xp.zeros_like(level)
            for cut in cuts:
                steep = self.r * xp.abs(self(cut)[1])
                density = top * (1 - cut * cut) ** ((d - 1) / 2)
                inside = (xp.abs(cut) < 1 - 1e-12) & (steep > 0)
                rate = rate + xp.where(inside, density / xp.where(inside, steep, one), xp.zeros_like(rate))
            new = level + surplus / xp.where(rate > 0, rate, one)
            keep = (rate > 0) & (new > low) & (new < high)
            level = xp.where(keep, new, (low + high) / 2)
        return level


def _bisect(low: Array, high: Array, right: Callable[[Array], Array]) -> Array:
    xp = array_namespace(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        go = right(middle)
        low, high = xp.where(go, middle, low), xp.where(go, high, middle)
    return (low + high) / 2
