"""Hypothesis strategies for hard inner problems, which shrink to small integers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from phiball.backends import Array
from phiball.verification.instances.conversion import array


@dataclass(frozen=True)
class InnerProblem:
    """An inner problem in Python floats; `p` is None for the uniform distribution."""

    f: tuple[float, ...]
    eta: float
    p: tuple[float, ...] | None = None

    def __str__(self) -> str:
        p = "" if self.p is None else f", p = {self.p}"
        return f"(f = {self.f}, eta = {self.eta!r}{p})"

    @property
    def losses(self) -> Array:
        """f as an array of the active backend."""
        return array(self.f)

    @property
    def distribution(self) -> Array | None:
        """p as an array of the active backend."""
        return None if self.p is None else array(self.p)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """p, or the uniform probabilities."""
        return self.p or (1 / len(self.f),) * len(self.f)

    @property
    def charged(self) -> list[float]:
        """The losses that have positive probability."""
        return [v for v, q in zip(self.f, self.probabilities, strict=True) if q > 0]

    @property
    def spread(self) -> float:
        """max f - min f, over the points of positive probability."""
        return max(self.charged) - min(self.charged)

    @property
    def size(self) -> float:
        """max abs f over the points of positive probability: the scale of rounding errors in the value."""
        return max(abs(v) for v in self.charged)


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    """10^u with u in [low, high]; shrinks towards 1."""
    return st.floats(low, high).map(lambda u: float(f"{10**u:.6g}"))


def _losses(max_size: int) -> st.SearchStrategy[list[float]]:
    ties = st.integers(-3, 3).map(float)
    two_values = st.sampled_from([0.0, 1.0])
    spike = st.integers(1, max_size).map(lambda m: [1.0] + [0.0] * (m - 1))
    constant = st.integers(1, max_size).map(lambda m: [1.0] * m)
    return st.one_of(
        st.lists(ties, min_size=1, max_size=max_size),
        st.lists(two_values, min_size=1, max_size=max_size),
        spike,
        constant,
        st.lists(st.floats(-4, 4, width=32, allow_subnormal=False), min_size=1, max_size=max_size),
    )


@st.composite
def problems(draw: st.DrawFn, max_size: int = 10, nonuniform: bool = True) -> InnerProblem:
    """Hard problems: ties, one point, constants, offsets; eta from 1e-6 to 1e6 of the range; zeros in p."""
    shape = draw(_losses(max_size))
    unit = draw(st.sampled_from([1.0, 1e-3, 1e3]))
    offset = draw(st.sampled_from([0.0, 100.0, -1e6]))
    f = tuple(unit * v + offset for v in shape)
    width = max(f) - min(f) or unit
    extremes = st.sampled_from([1.0, 0.5, 2.0, 1e-6, 1e6, 1e-3, 1e3])
    ratio = draw(st.one_of(extremes, powers_of_ten(-1.0, 0.0), powers_of_ten(-2.0, 2.0)))
    p = draw(probabilities(len(f))) if nonuniform else None
    return InnerProblem(f, ratio * width, p)


@st.composite
def moderate_problems(draw: st.DrawFn, max_size: int = 12) -> InnerProblem:
    """Problems for the guarantees of Algorithm 2: f and eta are neither very large nor very small."""
    shape = draw(st.lists(st.floats(-3, 3, width=32, allow_subnormal=False), min_size=1, max_size=max_size))
    unit = draw(powers_of_ten(-1.0, 1.0))
    offset = draw(st.sampled_from([0.0, 100.0]))
    return InnerProblem(tuple(unit * v + offset for v in shape), draw(powers_of_ten(-1.0, 1.0)))


@st.composite
def spikes(draw: st.DrawFn) -> InnerProblem:
    """One large loss among zeros, where dividing the weights by their sum changes the value most."""
    m = draw(st.integers(2, 12))
    height = draw(st.integers(1, 60))
    return InnerProblem((0.0,) * (m - 1) + (float(height),), draw(powers_of_ten(-1.0, 1.0)))


def precisions() -> st.SearchStrategy[float]:
    """epsilon from 1e-6 to 1e-1."""
    return powers_of_ten(-6.0, -1.0)


@st.composite
def dyadic_problems(draw: st.DrawFn, min_size: int = 1, max_size: int = 6) -> InnerProblem:
    """Losses that are multiples of 1/8 in [-4, 4], so that adding 2^20 and doubling are exact in float64."""
    f = draw(st.lists(st.integers(-32, 32), min_size=min_size, max_size=max_size))
    eta = draw(st.one_of(st.sampled_from([1.0, 0.5, 4.0, 0.03125]), powers_of_ten(-2.0, 2.0)))
    return InnerProblem(tuple(v / 8 for v in f), eta, draw(probabilities(len(f))))


@st.composite
def probabilities(draw: st.DrawFn, m: int) -> tuple[float, ...] | None:
    """None for the uniform distribution, or probabilities of very different sizes, including zeros."""
    if not draw(st.booleans()):
        return None
    counts = draw(st.lists(st.sampled_from([1, 0, 2, 1000]), min_size=m, max_size=m))
    return tuple(c / sum(counts) for c in counts) if any(counts) else None
