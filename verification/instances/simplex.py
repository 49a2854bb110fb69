"""Exact points of the simplex, their chi-square divergence and their random halves."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import TypeAlias

from hypothesis import strategies as st

Mean: TypeAlias = Callable[[list[Fraction]], Fraction]


def chi_square(gamma: list[Fraction]) -> Fraction:
    """m sum (gamma_i - 1/m)^2."""
    m = len(gamma)
    return m * sum(((v - Fraction(1, m)) ** 2 for v in gamma), Fraction(0))


def half_variance(gamma: list[Fraction]) -> Fraction:
    """E(sum over I of gamma_i - 1/2)^2 for I a random half, over all halves."""
    m = len(gamma)
    sums = (sum(half, Fraction(0)) - Fraction(1, 2) for half in combinations(gamma, m // 2))
    return sum((v * v for v in sums), Fraction(0)) / comb(m, m // 2)


@st.composite
def simplex(draw: st.DrawFn) -> list[Fraction]:
    """2, 4, 6 or 8 probabilities, exact."""
    m = 2 * draw(st.integers(1, 4))
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 1000]), min_size=m, max_size=m).filter(any))
    return [Fraction(c, sum(counts)) for c in counts]
