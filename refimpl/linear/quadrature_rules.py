"""Quadrature rules for each example's integral over t: one for all examples, or rules split at kinks."""

from __future__ import annotations

from math import inf
from typing import Any

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.line_loss import LineLoss
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.margins import Margin, piecewise_rule

_REFINEMENTS = 2  # of the level at which the weight vanishes; its error enters the value squared


class QuadratureRules:
    """The rules for a loss and a divergence with price eta > 0; `margin` is the distribution of t.

    A rule has `n_nodes` nodes, or half as many per piece if it is split. `like` is an array with the library
    and device of the data.
    """

    def __init__(
        self, loss: LinearLoss, divergence: Divergence, eta: float, margin: Margin, n_nodes: int, like: Array
    ) -> None:
        self.loss, self.phi, self.eta, self.margin, self.n_nodes = loss, divergence, eta, margin, n_nodes
        self.ends = divergence.recession < inf
        self.level = eta < inf and divergence.slope0 > -inf
        smooth = loss.kinks is None and not self.level
        self.shared = margin.rule(n_nodes, like, ends=self.ends) if smooth else None

    def width(self) -> int:
        """The approximate number of nodes per example."""
        if self.shared is not None:
            return int(self.shared[0].shape[0])
        return (len(self.margin.breaks) + 3) * self.n_nodes

    def __call__(self, m: Array, r: float, y: Array) -> tuple[Array, Array]:
        """Nodes and weights (t, p), both (K,) or (k, K), for predictions m (k,) + r t and labels y (k,)."""
        if self.shared is not None:
            return self.shared
        cuts = [] if self.loss.kinks is None else [(kink - m) / r for kink in self.loss.kinks(y)]
        return self._cut_at_level(m, r, y, cuts) if self.level else self._pieces(m, cuts)

    def _pieces(self, m: Array, cuts: list[Array]) -> tuple[Array, Array]:
        xp = array_namespace(m)
        made: dict[str, Any] = {"dtype": m.dtype, "device": device(m)}
        cut = xp.stack(cuts, axis=1) if cuts else xp.zeros((m.shape[0], 1), **made)
        return piecewise_rule(cut, max(4, self.n_nodes // 2), self.margin, ends=self.ends)

    def _cut_at_level(self, m: Array, r: float, y: Array, cuts: list[Array]) -> tuple[Array, Array]:
        """Split the rule also where f = mu + eta slope0: below this level the worst case has no weight."""
        line, one = LineLoss(self.loss, m, r, y), array_namespace(m).ones_like(m)
        lowest = line.lowest()
        t, p = self._pieces(m, cuts)
        for _ in range(_REFINEMENTS):
            f = line(t)[0]
            level = worst_case(f, self.eta, self.phi, p=p, check=False).mu + self.eta * self.phi.slope0
            right, left = (line.crossing(level, side, b, b) for side, b in ((one, lowest), (-one, -lowest)))
            t, p = self._pieces(m, [*cuts, right, -left])
        return t, p
