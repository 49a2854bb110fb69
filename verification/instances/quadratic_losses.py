"""Smooth losses of one parameter, of which L_f, S_f and B are known exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import to_numpy
from phiball.refimpl import ENTROPIC
from phiball.verification.instances.arrays import array
from phiball.verification.instances.strategies import powers_of_ten


@dataclass(frozen=True)
class QuadraticLosses:
    """f_i = c_i + g_i theta + h_i theta^2/2 on abs(theta) <= tau, one for each perturbed point."""

    terms: tuple[tuple[float, float, float], ...]
    tau: float
    eta: float

    def __str__(self) -> str:
        return f"((c, g, h) = {self.terms}, tau = {self.tau!r}, eta = {self.eta!r})"

    @property
    def lipschitz(self) -> float:
        """L_f."""
        return max(abs(g) + abs(h) * self.tau for _, g, h in self.terms)

    @property
    def smoothness(self) -> float:
        """S_f."""
        return max(abs(h) for _, _, h in self.terms)

    @property
    def height(self) -> float:
        """A bound B on the range of the losses, which a constant moves to [0, B]."""
        swing = [abs(g) * self.tau + abs(h) * self.tau**2 / 2 for _, g, h in self.terms]
        up = max(c + s for (c, _, _), s in zip(self.terms, swing, strict=True))
        return up - min(c - s for (c, _, _), s in zip(self.terms, swing, strict=True))

    @property
    def ratio(self) -> float:
        """B/eta."""
        return self.height / self.eta

    @property
    def rounding(self) -> float:
        """Of a gradient, whose weights are off by the rounding of f over eta."""
        size = max(abs(c) for c, _, _ in self.terms) + self.height
        return 2.0**-46 * self.lipschitz * (1 + size / self.eta)


Smoothness: TypeAlias = Callable[[QuadraticLosses], float]


@st.composite
def quadratic_losses(draw: st.DrawFn) -> QuadraticLosses:
    """One to four of them; flat, steep or bent ones, B/eta up to about 100."""
    eta = draw(st.sampled_from([1.0, 0.1, 10.0]))
    tau = draw(st.sampled_from([1.0, 0.1, 0.01]))
    offset = st.one_of(st.just(0.0), st.floats(0, 1, width=32))
    slope = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.1]), st.floats(-2, 2, width=32))
    bend = st.one_of(st.sampled_from([0.0, 0.1, 1.0, -1.0]), st.floats(-4, 4, width=32))
    term = st.tuples(offset, slope, bend)
    # Two losses that are equal at 0, with opposite gradients, change their weights the most.
    twins = term.map(lambda t: [t, (t[0], -t[1], -t[2])])
    terms = draw(st.one_of(st.lists(term, min_size=1, max_size=4), twins))
    unit = draw(st.one_of(st.sampled_from([1.0, 10.0, 0.1]), powers_of_ten(-1, 1)))
    return QuadraticLosses(tuple((c, unit * g, unit * h) for c, g, h in terms), tau, eta)


def gradient_change(
    f: QuadraticLosses, places: tuple[float, float], solve: Callable[..., Any]
) -> tuple[float, float]:
    """|grad F^l(theta) - grad F^l(theta')| on these points as the sample, and |theta - theta'|."""
    theta = np.array([[f.tau * place] for place in places])
    c, g, h = np.array(f.terms).T
    losses = array(c + g * theta + h * theta**2 / 2)
    weights = to_numpy(solve(losses, f.eta, ENTROPIC).weights)
    first, second = (weights * (g + h * theta)).sum(axis=-1)
    return float(abs(first - second)), float(abs(theta[0, 0] - theta[1, 0]))
