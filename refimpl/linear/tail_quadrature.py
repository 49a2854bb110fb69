"""The risk of examples for divergences whose worst case vanishes at small losses.

If phi has a finite slope at 0, the worst case gives no weight (or a constant share of p) to losses below a
level L. The loss is convex in t, so that it exceeds L in one or two tails of [-1, 1], beyond the points,
called cuts, at which it crosses L. A Gauss rule integrates each tail. L is found by Newton's method; the cuts
move with L, so that no integral has a kink. The second derivatives of the risk include the density of t at
the cuts.
"""

from __future__ import annotations

from math import inf, pi
from typing import Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.linear.gauss_rules import gauss_rule
from phiball.refimpl.linear.line_loss import LineLoss
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.margins import Margin

_STEPS = 60  # of Newton's method
_MET = 1e-10  # tolerance on the total weight: an error of the level enters the value squared
_NEAR = 1e-6  # error of the total weight after which one more Newton step is enough
_KINKED = ("indicator", "absolute", "hinge")


def has_tails(divergence: Divergence) -> bool:
    """Whether `TailQuadrature` applies: the worst case has a level, and no atom except in closed form."""
    return divergence.slope0 > -inf and (divergence.recession == inf or divergence.family in _KINKED)


class TailQuadrature:
    """Risks and their derivatives; `margin` is the distribution of t.

    A piece of a tail has 3/2 or 2 times `n_nodes` nodes. `like` is an array with the library and device of
    the data.
    """

    def __init__(
        self, loss: LinearLoss, divergence: Divergence, eta: float, margin: Margin, n_nodes: int, like: Array
    ) -> None:
        xp = array_namespace(like)
        self.loss, self.phi, self.eta, self.margin = loss, centred(divergence), eta, margin
        self.family, self.alpha = divergence.family, divergence.parameter
        power = self.alpha if self.family == "cressie_read" else None
        # The weight has a root singularity at the level: nodes x are replaced by x^2, which needs more nodes.
        self.rooted = self.family is None or (power is not None and power > 2)
        x, w = gauss_rule(2 * n_nodes if self.rooted else 3 * n_nodes // 2, 1, like)
        self.x, self.w = (1 + x) / 2, w
        # If the weight may grow exponentially, tails are not truncated.
        self.whole = self.family is None or margin.wide or (power is not None and power < 1.5)
        self.fixed: Array | None = None
        self.shared: tuple[Array, Array] | None = None
        if loss.monotone and self.family == "indicator":
            assert self.alpha is not None
            # For the CVaR of a monotone loss, the tail is the same for every model.
            cut = margin.upper_quantile(self.alpha, like)
            self.fixed = xp.asarray([cut], dtype=xp.float64, device=device(like))
            if loss.kinks is None:
                one = xp.ones_like(self.fixed)
                self.shared = self._nodes(LineLoss(loss, one, 1.0, one), [one], [self.fixed])

    @property
    def newton(self) -> bool:
        """Whether the Hessian is exact; it is not if the largest loss may change sides."""
        return self.loss.monotone or self.family not in ("absolute", "hinge")

    def width(self) -> int:
        """The approximate number of nodes per example."""
        sides, pieces = 1 if self.loss.monotone else 2, 1 if self.loss.kinks is None else 3
        return int(self.x.shape[0]) * sides * pieces

    def __call__(self, m: Array, r: float, y: Array, start: Array | None) -> tuple[dict[str, Array], Array]:
        """(the sums of `LinearObjective._sums`, levels (k,)) for predictions m (k,) + r t and labels y (k,).

        Levels are relative: 0 at the smallest loss and 1 at the largest. They change little from model to
        model; `start` (k,) has the levels of another model, or is None.
        """
        with ignore_float_warnings():  # if a step overflows, the line search halves it
            return self._risk(LineLoss(self.loss, m, r, y), start)

    def _risk(self, line: LineLoss, start: Array | None) -> tuple[dict[str, Array], Array]:
        xp, eta, phi = array_namespace(line.m), self.eta, self.phi
        one = xp.ones_like(line.m)
        ends = [line(-one), line(one)]
        up = ends[1][0] >= ends[0][0]
        high = xp.where(up, ends[1][0], ends[0][0])
        if self.loss.monotone:
            sides, bottoms = [xp.where(up, one, -one)], [-one]
            lowest = xp.where(up, ends[0][0], ends[1][0])
        else:
            t = line.lowest()
            sides, bottoms, lowest = [one, -one], [t, -t], line(t)[0]
        reach = xp.where(high > lowest, high - lowest, one)
        if start is not None:
            start = lowest + start * reach
        if self.family in ("absolute", "hinge"):  # the level is a given amount below the maximum
            level = high - eta * (1 if self.family == "hinge" else 2)
            cuts = [line.crossing(level, s, b, b) for s, b in zip(sides, bottoms, strict=True)]
            atom = tuple(xp.where(up, ends[1][i], ends[0][i]) for i in (1, 2)), xp.where(up, one, -one)
            return self._with_atom(line, level, sides, cuts, atom), one
        if self.family == "indicator":
            if self.fixed is not None:  # the cut does not depend on the model
                if self.shared is not None:
                    t, p = sides[0][:, None] * self.shared[0], self.shared[1]
                else:
                    t, p = self._nodes(line, sides, [xp.broadcast_to(self.fixed, line.m.shape)])
                return self._cvar(line, lowest, [], [], (t, p / xp.sum(p, axis=1, keepdims=True))), one
            level, cuts = self._level(line, sides, bottoms, lowest, high, start)
            t, p = self._nodes(line, sides, cuts)
            share = (level - lowest) / reach
            return self._cvar(line, level, sides, cuts, (t, p / self.alpha)), share
        mu, cuts = self._level(line, sides, bottoms, lowest, high, start)
        t, p = self._nodes(line, sides, cuts)
        f, slope, curvature = line(t)
        s = (f - mu[:, None]) / eta
        gamma, q = p * phi.dconj(s), p * phi.d2conj(s) / eta
        below = -phi.conj(xp.full_like(mu, phi.slope0 - 1.0)) * xp.clip(1 - xp.sum(p, axis=1), 0.0, 1.0)
        value = mu + eta * (xp.sum(p * phi.conj(s), axis=1) - below)
        sums = _moments(value, gamma * slope, gamma * curvature + q * slope * slope, t)
        turn = q * slope
        total = xp.sum(q, axis=1)
        root = xp.sqrt(xp.where(total > 0, total, xp.ones_like(total)))
        _less_square(sums, xp.sum(turn, axis=1) / root, xp.sum(turn * t, axis=1) / root)
        return sums, (mu - lowest) / reach

    def _level(
        self,
        line: LineLoss,
        sides: list[Array],
        bottoms: list[Array],
        low: Array,
        high: Array,
        start: Array | None,
    ) -> tuple[Array, list[Array]]:
        """(mu (k,), or for a CVaR the level, at which the weights sum to one; the cuts)."""
        xp, m = array_namespace(line.m), line.m
        mu = line(xp.zeros_like(m))[0] if start is None else xp.clip(start, low, high)
        cuts = list(bottoms)
        rows: Array | None = None  # rows that have not converged
        for _ in range(_STEPS):
            part = line if rows is None else LineLoss(line.loss, m[rows], line.r, line.y[rows])
            at, low_, high_ = (v if rows is None else v[rows] for v in (mu, low, high))
            near = [[v if rows is None else v[rows] for v in vs] for vs in (sides, bottoms, cuts)]
            ends, surplus, rate = self._surplus(part, at, *near)
            low_, high_ = xp.where(surplus > 0, at, low_), xp.where(surplus > 0, high_, at)
            new = at + surplus / xp.where(rate > 0, rate, xp.ones_like(rate))
            inside = (rate > 0) & (new >= low_) & (new <= high_)
            new = xp.where(inside, new, (low_ + high_) / 2)
            done = (xp.abs(surplus) <= _MET) | (high_ - low_ <= _MET * xp.abs(high_))
            new = xp.where(done, at, new)
            if self.family != "indicator":
                done = done | (inside & (xp.abs(surplus) <= _NEAR))
                ends = [part.shifted(c, new - at, s, b) for c, s, b in zip(ends, *near[:2], strict=True)]
            if rows is None:
                mu, low, high, cuts, rows = new, low_, high_, ends, ~done
            else:
                mu[rows], low[rows], high[rows] = new, low_, high_
                for cut, end in zip(cuts, ends, strict=True):
                    cut[rows] = end
                left = xp.zeros_like(rows)
                left[rows] = ~done
                rows = left
            if not bool(xp.any(rows)):
                break
        return mu, cuts

    def _surplus(
        self, line: LineLoss, mu: Array, sides: list[Array], bottoms: list[Array], near: list[Array]
    ) -> tuple[list[Array], Array, Array]:
        """(the cuts, the total weight minus one, minus the derivative of the total weight) at mu (k,)."""
        xp, eta, phi = array_namespace(mu), self.eta, self.phi
        level = mu if self.family == "indicator" else mu + eta * phi.slope0
        cuts = [line.crossing(level, *at) for at in zip(sides, bottoms, near, strict=True)]
        t, p = self._nodes(line, sides, cuts)
        if self.family == "indicator":
            rate = xp.zeros_like(mu)
            for _, q, _ in self._cut_density(line, sides, cuts):
                rate = rate + q
            return cuts, xp.sum(p, axis=1) - self.alpha, rate
        s = (line(t)[0] - mu[:, None]) / eta
        return cuts, xp.sum(p * phi.dconj(s), axis=1) - 1, xp.sum(p * phi.d2conj(s), axis=1) / eta

    def _nodes(self, line: LineLoss, sides: list[Array], cuts: list[Array]) -> tuple[Array, Array]:
        """Nodes and weights (t, p), both (k, K), on the tails; p sums to the probability of the tails."""
        xp, margin = array_namespace(line.m), self.margin
        first = -float(margin.tail_end(xp.zeros_like(self.x[:1]))[0])
        ts, ps = [], []
        for side, cut in zip(sides, cuts, strict=True):
            u = xp.asin(xp.clip(cut, -1.0, 1.0))
            begin = xp.clip(u, first, pi / 2)
            end = margin.tail_end(xp.clip(u, 0.0, pi / 2))
            breaks = [begin, xp.maximum(begin, end)]
            if self.whole:
                breaks.append(xp.full_like(u, pi / 2))
            last = breaks[-1]
            if self.loss.kinks is not None:
                for kink in self.loss.kinks(line.y):
                    at = xp.asin(xp.clip(side * (kink - line.m) / line.r, -1.0, 1.0))
                    breaks.append(xp.clip(at, begin, last))
            b = xp.sort(xp.stack(breaks, axis=1), axis=1) if len(breaks) > 2 else xp.stack(breaks, axis=1)
            length = (b[:, 1:] - b[:, :-1])[:, :, None]
            x, w = (self.x**2, 2 * self.x * self.w) if self.rooted else (self.x, self.w)
            angle = xp.reshape(b[:, :-1, None] + length * x, (u.shape[0], -1))
            weight = xp.reshape(length * w, (u.shape[0], -1))
            ts.append(side[:, None] * xp.sin(angle))
            ps.append(margin.peak * weight * margin.density(angle))
        t, p = (ts[0], ps[0]) if len(ts) == 1 else (xp.concat(ts, axis=1), xp.concat(ps, axis=1))
        # Normalize p if the tails cover all of [-1, 1]: for an almost constant loss, a quadrature error in
        # the sum of p would leave no level.
        whole: Array = cuts[0] <= -1.0 if len(cuts) == 1 else cuts[0] + cuts[1] <= 0.0
        return t, xp.where(whole[:, None], p / xp.sum(p, axis=1, keepdims=True), p)

    def _cut_density(
        self, line: LineLoss, sides: list[Array], cuts: list[Array]
    ) -> list[tuple[Array, Array, Array]]:
        """(t, q, the slope of the loss) at each cut; q dL is the change in probability if L changes by dL."""
        xp = array_namespace(line.m)
        out = []
        for side, cut in zip(sides, cuts, strict=True):
            t = side * cut
            slope = line(t)[1]
            steep = line.r * xp.abs(slope)
            inside = (xp.abs(cut) < 1 - 1e-12) & (steep > 0)
            zero = xp.zeros_like(cut)
            u = xp.asin(xp.where(inside, cut, zero))
            density = self.margin.peak * self.margin.density(u) / xp.cos(u)
            out.append((t, xp.where(inside, density / xp.where(inside, steep, 1 + zero), zero), slope))
        return out

    def _cvar(
        self, line: LineLoss, level: Array, sides: list[Array], cuts: list[Array], rule: tuple[Array, Array]
    ) -> dict[str, Array]:
        """The sums for a CVaR, with nodes and worst-case weights `rule`."""
        xp = array_namespace(line.m)
        t, gamma = rule
        f, slope, curvature = line(t)
        value = level + xp.sum(gamma * (f - level[:, None]), axis=1)
        sums = _moments(value, gamma * slope, gamma * curvature, t)
        total, one, two = (xp.zeros_like(level) for _ in range(3))
        for t, q, slope in self._cut_density(line, sides, cuts):
            q = q / self.alpha
            _add_square(sums, q, slope, slope * t)
            total, one, two = total + q, one + q * slope, two + q * slope * t
        root = xp.sqrt(xp.where(total > 0, total, xp.ones_like(total)))
        _less_square(sums, one / root, two / root)
        return sums

    def _with_atom(
        self, line: LineLoss, level: Array, sides: list[Array], cuts: list[Array], atom: Any
    ) -> dict[str, Array]:
        """The sums for the mean of max(f, L), where L is a fixed amount below the largest loss, the atom."""
        xp = array_namespace(line.m)
        t, p = self._nodes(line, sides, cuts)
        f, slope, curvature = line(t)
        (steepest, bend), end = atom
        value = level + xp.sum(p * (f - level[:, None]), axis=1)
        sums = _moments(value, p * slope, p * curvature, t)
        rest = xp.clip(1 - xp.sum(p, axis=1), 0.0, 1.0)
        sums["a"], sums["b"] = sums["a"] + rest * steepest, sums["b"] + rest * steepest * end
        _add_square(sums, rest * bend, xp.ones_like(end), end)
        for t, q, slope in self._cut_density(line, sides, cuts):
            _add_square(sums, q, slope - steepest, slope * t - steepest * end)
        return sums


def _moments(value: Array, pull: Array, bend: Array, t: Array) -> dict[str, Array]:
    """The sums of `LinearObjective._sums` from terms `pull` and `bend` (k, K) at the nodes t."""
    xp = array_namespace(value)
    bend_t = bend * t
    return {
        "value": value,
        "a": xp.sum(pull, axis=1),
        "b": xp.sum(pull * t, axis=1),
        "mm": xp.sum(bend, axis=1),
        "mr": xp.sum(bend_t, axis=1),
        "rr": xp.sum(bend_t * t, axis=1),
    }


def _add_square(sums: dict[str, Array], q: Array, m: Array, r: Array) -> None:
    """Add q v v^T with v = (m, r) to the second derivatives."""
    sums["mm"], sums["mr"], sums["rr"] = (
        sums["mm"] + q * m * m,
        sums["mr"] + q * m * r,
        sums["rr"] + q * r * r,
    )


def _less_square(sums: dict[str, Array], m: Array, r: Array) -> None:
    sums["mm"], sums["mr"], sums["rr"] = sums["mm"] - m * m, sums["mr"] - m * r, sums["rr"] - r * r
