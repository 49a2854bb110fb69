"""Distributions of losses at one data point: discrete, on midpoints, tilted, uniform and quadratic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb, exp, hypot, sinh
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, Rng, active, array_namespace, rng, to_numpy
from phiball.refimpl import ENTROPIC, Ball, Divergence, indicator
from phiball.refimpl.inner import dual_value
from phiball.verification.instances.conversion import array
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import uniform_losses
from phiball.verification.oracles.exact_solver import solve_exactly

BOUNDED = "0 <= f <= B; the entropic phi"
LIPSCHITZ = "0 <= f <= B, f is L_f-Lipschitz in theta; the entropic phi"
"""The assumptions of claims on `bounded_distributions`, in words."""


@dataclass(frozen=True)
class DiscreteDistribution:
    """A few points with losses f, gradients g (in the plane) and probabilities p; and the price eta."""

    f: tuple[float, ...]
    g: tuple[tuple[float, float], ...]
    p: tuple[float, ...]
    eta: float

    def __str__(self) -> str:
        return f"(f = {self.f}, grad f = {self.g}, p = {self.p}, eta = {self.eta!r})"

    @property
    def height(self) -> float:
        """B, the largest loss; the smallest is 0."""
        return max(self.f)

    @property
    def ratio(self) -> float:
        """B/eta."""
        return self.height / self.eta

    @property
    def lipschitz(self) -> float:
        """L_f, the largest norm of a gradient."""
        return max(hypot(*v) for v in self.g)

    @property
    def chi_square(self) -> float:
        """sinh^2(B/(2 eta)), a bound on the chi-square divergence of the entropic weights of every sample."""
        return sinh(self.ratio / 2) ** 2

    @property
    def rounding(self) -> float:
        """The rounding error of the weights, and of the values divided by eta."""
        return 2.0**-42 * (1 + self.ratio)

    def growth(self, power: float) -> float:
        """e^(power B/eta)."""
        return exp(power * self.ratio)

    @property
    def limit(self) -> tuple[float, Any]:
        """F and grad F, where F is the entropic risk of the distribution, computed in 50 digits."""
        best = solve_exactly(self.f, self.eta, "entropic", p=self.p)
        return float(best.value), np.array([float(w) for w in best.weights]) @ np.array(self.g)


@st.composite
def bounded_distributions(draw: st.DrawFn) -> DiscreteDistribution:
    """Two or three losses, including 0 and B, with various probabilities; B/eta from 1e-3 to 10."""
    eta = draw(st.sampled_from([1.0, 0.1, 10.0]))
    ratio = draw(st.one_of(st.sampled_from([1.0, 0.1, 2.0, 4.0, 1e-3]), powers_of_ten(-1, 1)))
    L = draw(st.sampled_from([1.0, 100.0, 0.1]))
    between = draw(st.lists(st.floats(0, 1, width=32), max_size=1))
    shares = draw(
        st.lists(st.sampled_from([1, 2, 10, 100]), min_size=2 + len(between), max_size=2 + len(between))
    )
    directions = [(-L, 0.0), (L, 0.0), (0.0, L), (0.6 * L, -0.8 * L), (0.0, 0.0)]
    # The loss B has a gradient of norm L; the others may have zero gradients.
    g = [draw(st.sampled_from(directions[:4] if k == 1 else directions)) for k in range(len(shares))]
    f = [0.0, ratio * eta, *(v * ratio * eta for v in between)]
    return DiscreteDistribution(tuple(f), tuple(g), tuple(c / sum(shares) for c in shares), eta)


TWO_POINTS = DiscreteDistribution((0.0, 1.0), ((-1.0, 0.0), (1.0, 0.0)), (0.5, 0.5), 1.0)
"""f = 0 or 1 with equal probabilities, eta = 1, gradients -1 and 1: the instance used for curves."""


@st.composite
def discrete_distributions(draw: st.DrawFn, max_points: int = 2) -> DiscreteDistribution:
    """Two points or more: ties, opposite and equal gradients, eta from 0.01 to 100."""
    k = draw(st.integers(2, max_points))
    losses = st.one_of(st.integers(0, 3).map(float), st.floats(0, 3, width=32, allow_subnormal=False))
    f = draw(st.lists(losses, min_size=k, max_size=k))
    gradients = st.sampled_from([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.1, 0.0)])
    g = draw(st.lists(gradients, min_size=k, max_size=k))
    counts = draw(st.lists(st.sampled_from([1, 2, 10]), min_size=k, max_size=k))
    return DiscreteDistribution(
        tuple(f), tuple(g), tuple(c / sum(counts) for c in counts), draw(powers_of_ten(-2.0, 2.0))
    )


class Midpoints(Ball):
    """An interval whose samples are the midpoints of n equal cells, so that averages are exact sums."""

    def sample(
        self,
        x: Array,
        n_samples: int,
        *,
        rng: Rng | int | None = None,
        event_ndim: int = 1,
        antithetic: bool = False,
        qmc: bool = False,
    ) -> Array:
        """The midpoints around each x (N, 1); shape (N, n_samples, 1)."""
        xp = array_namespace(x)
        t = (2 * xp.arange(n_samples, dtype=x.dtype) + 1) / n_samples - 1
        return x[:, None, :] + self.radius * t[None, :, None]


Sampler: TypeAlias = Callable[..., tuple[Array, Array]]


def tilted_sample(
    sample: Sampler, norm: float, tilt: tuple[float, ...], n: int, seed: int
) -> tuple[Any, Any]:
    """Draw `n` tilted points of the unit ball around 0, with their log-weights, as NumPy arrays."""
    s = array(tilt)
    points, log_w = sample(Ball(norm, 1.0), 0 * s, s, n, rng=rng(seed))
    return to_numpy(points), to_numpy(log_w)


Mean: TypeAlias = Callable[[list[Fraction]], Fraction]
"""A function of the weights gamma, such as `half_variance`."""


def exact_chi_square(gamma: list[Fraction]) -> Fraction:
    """m sum_i (gamma_i - 1/m)^2, for m weights gamma."""
    m = len(gamma)
    return m * sum(((v - Fraction(1, m)) ** 2 for v in gamma), Fraction(0))


def half_variance(gamma: list[Fraction]) -> Fraction:
    """E (sum_{i in I} gamma_i - 1/2)^2, where I is a random half of the indices, by enumeration."""
    m = len(gamma)
    sums = (sum(half, Fraction(0)) - Fraction(1, 2) for half in combinations(gamma, m // 2))
    return sum((v * v for v in sums), Fraction(0)) / comb(m, m // 2)


@st.composite
def simplex(draw: st.DrawFn) -> list[Fraction]:
    """2, 4, 6 or 8 exact probabilities."""
    m = 2 * draw(st.integers(1, 4))
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 1000]), min_size=m, max_size=m).filter(any))
    return [Fraction(c, sum(counts)) for c in counts]


# --- Losses that are uniform on [0, 1], and smooth losses -------------------------------------------


def bias_of_two(eta: float, phi: Divergence, solve: Solver) -> float:
    """The risk F of f uniform on [0, 1], minus the mean risk of two independent draws of f.

    The risk of two draws depends on their mean and their distance t, which has the density 2 (1 - t).
    """
    kinks = (eta, 2 * eta)
    nodes, weights = uniform_losses.graded(kinks)
    rows = array(np.stack([np.zeros_like(nodes), nodes], axis=-1))
    excess = to_numpy(solve(rows, eta, phi).value) - nodes / 2  # risk minus mean of the losses 0 and t
    F = uniform_losses.optimal_value(eta, phi.family or "", phi.parameter)
    return F - 0.5 - float((weights * 2 * (1 - nodes) * excess).sum())


def bias_of_order_statistics(n: int, alpha: float, solve: Solver) -> float:
    """AV@R of f uniform on [0, 1], minus the mean AV@R of n independent draws of f.

    AV@R is linear in the order statistics of the draws, whose means are i/(n + 1).
    """
    rows = array(np.arange(1, n + 1) / (n + 1))
    return 1 - alpha / 2 - float(solve(rows, 1.0, indicator(alpha)).value)


def bias_by_sampling(
    n: int, eta: float, phi: Divergence, solve: Solver, rows: int, seed: int
) -> tuple[float, float]:
    """The risk F of f uniform on [0, 1] minus the mean risk of n draws of f, and the standard error.

    The first is estimated by the mean, over `rows` samples of n draws, of the dual value of the sample at mu*
    minus the risk of the sample. Here mu* is the multiplier for f uniform on [0, 1], so the dual value has
    mean F. It is close to the risk of the same sample, so their difference has a small variance.
    """
    xp = active().namespace
    f = rng(seed + n).uniform((rows, n), like=xp.zeros(1, dtype=xp.float64))
    mu = uniform_losses.optimal_multiplier(eta, phi.family or "")
    differences = to_numpy(dual_value(f, mu, eta, phi) - solve(f, eta, phi).value)
    return float(differences.mean()), float(differences.std(ddof=1)) / rows**0.5


@dataclass(frozen=True)
class QuadraticLosses:
    """f_i = c_i + g_i theta + h_i theta^2/2 on abs(theta) <= tau, one per perturbed point."""

    terms: tuple[tuple[float, float, float], ...]
    tau: float
    eta: float

    def __str__(self) -> str:
        return f"((c, g, h) = {self.terms}, tau = {self.tau!r}, eta = {self.eta!r})"

    @property
    def lipschitz(self) -> float:
        """L_f, a Lipschitz constant of the losses in theta."""
        return max(abs(g) + abs(h) * self.tau for _, g, h in self.terms)

    @property
    def smoothness(self) -> float:
        """S_f, a Lipschitz constant of the gradients of the losses."""
        return max(abs(h) for _, _, h in self.terms)

    @property
    def height(self) -> float:
        """A bound B on the range of the losses; adding a constant moves them to [0, B]."""
        swing = [abs(g) * self.tau + abs(h) * self.tau**2 / 2 for _, g, h in self.terms]
        up = max(c + s for (c, _, _), s in zip(self.terms, swing, strict=True))
        return up - min(c - s for (c, _, _), s in zip(self.terms, swing, strict=True))

    @property
    def ratio(self) -> float:
        """B/eta."""
        return self.height / self.eta

    @property
    def rounding(self) -> float:
        """The rounding error of a gradient, from the rounding of f/eta in the weights."""
        size = max(abs(c) for c, _, _ in self.terms) + self.height
        return 2.0**-46 * self.lipschitz * (1 + size / self.eta)


Smoothness: TypeAlias = Callable[[QuadraticLosses], float]


@st.composite
def quadratic_losses(draw: st.DrawFn) -> QuadraticLosses:
    """One to four losses: flat, steep or curved, with B/eta up to about 100."""
    eta = draw(st.sampled_from([1.0, 0.1, 10.0]))
    tau = draw(st.sampled_from([1.0, 0.1, 0.01]))
    offset = st.one_of(st.just(0.0), st.floats(0, 1, width=32))
    slope = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.1]), st.floats(-2, 2, width=32))
    bend = st.one_of(st.sampled_from([0.0, 0.1, 1.0, -1.0]), st.floats(-4, 4, width=32))
    term = st.tuples(offset, slope, bend)
    # Weights change most for two losses that are equal at 0 and have opposite gradients.
    twins = term.map(lambda t: [t, (t[0], -t[1], -t[2])])
    terms = draw(st.one_of(st.lists(term, min_size=1, max_size=4), twins))
    unit = draw(st.one_of(st.sampled_from([1.0, 10.0, 0.1]), powers_of_ten(-1, 1)))
    return QuadraticLosses(tuple((c, unit * g, unit * h) for c, g, h in terms), tau, eta)


def gradient_change(
    f: QuadraticLosses, places: tuple[float, float], solve: Callable[..., Any]
) -> tuple[float, float]:
    """The change of the risk's gradient from theta = tau places[0] to tau places[1], and their distance."""
    theta = np.array([[f.tau * place] for place in places])
    c, g, h = np.array(f.terms).T
    losses = array(c + g * theta + h * theta**2 / 2)
    weights = to_numpy(solve(losses, f.eta, ENTROPIC).weights)
    first, second = (weights * (g + h * theta)).sum(axis=-1)
    return float(abs(first - second)), float(abs(theta[0, 0] - theta[1, 0]))
