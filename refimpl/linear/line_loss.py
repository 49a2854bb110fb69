"""The loss of an example as a convex function of t in [-1, 1]: its minimum, and where it crosses a level."""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, array_namespace
from phiball.refimpl.linear.losses import Jet, LinearLoss
from phiball.refimpl.printing import one_line

_STEPS = 60  # enough for bisection of an interval of length 2
_MET = 1e-14  # length of an interval or step at which to stop


@dataclass(frozen=True)
class LineLoss:
    """The losses of k examples with labels y (k,) as functions of t: the predictions are m (k,) + r t."""

    loss: LinearLoss
    m: Array
    r: float
    y: Array
    __repr__ = one_line

    def __call__(self, t: Array) -> Jet:
        """The loss at t, (k,) or (k, K), and its derivatives with respect to the prediction."""
        if t.ndim == 1:
            return self.loss.jet(self.m + self.r * t, self.y)
        return self.loss.jet(self.m[:, None] + self.r * t, self.y[:, None])

    def lowest(self) -> Array:
        """The t (k,) that minimizes the loss."""
        xp = array_namespace(self.m)
        high = xp.ones_like(self.m)
        low, t = -high, xp.zeros_like(high)
        for _ in range(_STEPS):
            _, slope, bend = self(t)
            low, high = xp.where(slope < 0, t, low), xp.where(slope < 0, high, t)
            step = -slope / (self.r * xp.where(bend > 0, bend, xp.ones_like(bend)))
            # Where t has converged, set both ends of the interval to t.
            found = (bend > 0) & (xp.abs(step) <= _MET)
            low, high = xp.where(found, t, low), xp.where(found, t, high)
            if bool(xp.all(high - low <= _MET)):
                break
            new = t + step
            inside = (bend > 0) & (new >= low) & (new <= high)
            t = xp.where(inside, new, (low + high) / 2)
        return t

    def crossing(self, level: Array, side: Array, bottom: Array, start: Array) -> Array:
        """The tau (k,) in [bottom, 1] at which the loss, at t = side * tau, rises above `level`.

        All arguments have shape (k,). `side` is -1 or 1, and t = side * bottom minimizes the loss. The result
        is 1 if the loss stays below the level, and `bottom` if it is above throughout. `start` is a first
        guess, or `bottom`. Newton's method converges from above, as the loss is convex and increases in tau;
        slow steps are replaced by bisection.
        """
        xp = array_namespace(self.m)
        one = xp.ones_like(self.m)
        low, high = bottom, one
        tau = xp.where(start > bottom, start, one)
        for _ in range(_STEPS):
            f, slope, _ = self(side * tau)
            over, rate = f - level, self.r * side * slope
            low, high = xp.where(over > 0, low, tau), xp.where(over > 0, tau, high)
            new = tau - over / xp.where(rate > 0, rate, one)
            # Where the loss is flat: if it is above the level, it is so on all of [low, tau]; if below,
            # bisect.
            flat = xp.where(over > 0, low, (low + high) / 2)
            new = xp.where(rate > 0, xp.minimum(xp.maximum(new, low), high), flat)
            moved = xp.abs(new - tau)
            if bool(xp.all(moved <= _MET)):
                return new
            slow = (moved > 1e-2) & (new > tau - (tau - low) / 4) & (over > 0)
            tau = xp.where(slow, (low + new) / 2, new)
        return tau

    def shifted(self, tau: Array, change: Array, side: Array, bottom: Array) -> Array:
        """The crossing `tau` (k,) after a small `change` (k,) of the level, to first order."""
        xp = array_namespace(tau)
        rate = self.r * side * self(side * tau)[1]
        moves = (rate > 0) & (tau > bottom) & (tau < 1)
        step = xp.where(moves, change / xp.where(moves, rate, xp.ones_like(rate)), xp.zeros_like(rate))
        return xp.minimum(xp.maximum(tau + step, bottom), xp.ones_like(tau))
