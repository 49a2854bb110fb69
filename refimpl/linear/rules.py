"""Which nodes an example's integral over t needs: those of all, or a rule that is cut where it has kinks."""

from __future__ import annotations

from math import inf
from typing import Any

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.line import Line
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.nodes import gauss, pieces, quantile

_REFINEMENTS = 2  # of a threshold: its error enters the value by its square


class Rules:
    """The rules for a loss, a divergence and its price eta > 0, where `moving` features move.

    `nodes` is their number, or twice that on each piece of a rule that is cut. `like` is an array of the
    library and the device of the data.
    """

    def __init__(
        self, loss: LinearLoss, divergence: Divergence, eta: float, moving: int, nodes: int, like: Array
    ) -> None:
        self.loss, self.phi, self.eta, self.moving, self.nodes = loss, divergence, eta, moving, nodes
        self.ends = divergence.recession < inf
        self.tail: float | None = None
        if loss.monotone and divergence.family == "indicator" and eta < inf:
            # The CVaR of a monotone loss: the worst t are those beyond this one, whatever the model is.
            assert divergence.parameter is not None
            self.tail = quantile(divergence.parameter, moving, like)
        self.shared = self._shared(like)

    def _shared(self, like: Array) -> tuple[Array, Array] | None:
        if self.loss.kinks is not None:
            return None
        if self.tail is not None:
            xp = array_namespace(like)
            cuts = xp.asarray([[-self.tail, self.tail]], dtype=like.dtype, device=device(like))
            t, p = pieces(cuts, self._per_piece(), self.moving, ends=self.ends)
            return t[0, :], p[0, :]
        if self.eta == inf or self.phi.slope0 == -inf:
            return gauss(self.nodes, self.moving, like, ends=self.ends)
        return None

    def _per_piece(self) -> int:
        return max(4, self.nodes // 2)

    def width(self) -> int:
        """About how many nodes an example has."""
        return self.shared[0].shape[0] if self.shared is not None else 5 * self.nodes

    def __call__(self, m: Array, r: float, y: Array) -> tuple[Array, Array]:
        """(t, p) for examples with predictions m (k,) and labels y (k,): (K,), or (k, K) if it is cut."""
        if self.shared is not None:
            return self.shared
        xp = array_namespace(m)
        cuts = [] if self.tail is None else [xp.full_like(m, -self.tail), xp.full_like(m, self.tail)]
        if self.loss.kinks is not None:
            cuts += [(kink - m) / r for kink in self.loss.kinks(y)]
        if self.tail is None and self.eta < inf and self.phi.slope0 > -inf:
            return self._cut_at_threshold(m, r, y, cuts)
        return self._pieces(m, cuts)

    def _pieces(self, m: Array, cuts: list[Array]) -> tuple[Array, Array]:
        xp = array_namespace(m)
        made: dict[str, Any] = {"dtype": m.dtype, "device": device(m)}
        cut = xp.stack(cuts, axis=1) if cuts else xp.zeros((m.shape[0], 1), **made)
        return pieces(cut, self._per_piece(), self.moving, ends=self.ends)

    def _cut_at_threshold(self, m: Array, r: float, y: Array, cuts: list[Array]) -> tuple[Array, Array]:
        """The rule is cut as well where the loss has no weight any more, f = mu + eta slope0."""
        xp, eta, phi = array_namespace(m), self.eta, self.phi
        line = Line(self.loss, m, r, y)
        if phi.family in ("absolute", "hinge"):  # a given amount below the maximum
            one = xp.ones_like(m)
            level = xp.maximum(line(one)[0], line(-one)[0]) - eta * (1 - phi.slope0)
            return self._pieces(m, [*cuts, *line.crossings(level)])
        if phi.family == "indicator":
            assert phi.parameter is not None
            level = line.upper_level(phi.parameter, self.moving, self._per_piece())
            return self._pieces(m, [*cuts, *line.crossings(level)])
        t, p = self._pieces(m, cuts)
        for _ in range(_REFINEMENTS):
            f = self.loss.jet(m[:, None] + r * t, y[:, None])[0]
            level = worst_case(f, eta, phi, p=p, check=False).mu + eta * phi.slope0
            t, p = self._pieces(m, [*cuts, *line.crossings(level)])
        return t, p
