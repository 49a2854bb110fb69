"""Section 3 of the paper, Assumption 3 (II): which losses have a Lipschitz inverse distribution function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.oracles import levels

# --- A density bounded below -----------------------------------------------------------------------

Pieces: TypeAlias = list[tuple[int, int]]


def _largest_slope(pieces: Pieces) -> Fraction:
    """1/Upsilon, Upsilon the least density, for pieces of (width, mass in parts of the whole)."""
    whole = sum(mass for _, mass in pieces)
    return max(Fraction(width * whole, mass) for width, mass in pieces)


def _quantile(pieces: Pieces, u: Fraction) -> Fraction:
    """The inverse distribution function, for a density that is constant on each of the adjacent pieces."""
    whole, x, below = sum(mass for _, mass in pieces), Fraction(0), Fraction(0)
    for width, mass in pieces:
        share = Fraction(mass, whole)
        if u <= below + share:
            return x + (u - below) / share * width
        x, below = x + width, below + share
    return x


@claim(
    "Assumption 3 (II), density bounded below",
    id="D10",
    verdict=Verdict.CORRECTED,
    formula=(
        r"p \ge \Upsilon \text{ on its support} \;\Rightarrow\; |Q(u) - Q(v)| \le \frac{1}{\Upsilon} "
        r"|u - v|"
    ),
    assumptions="p the density and Q the inverse distribution function of the loss",
    quote=r"As long as the probability density of $f_{\theta}(Z)$ is lower bounded by $\Upsilon$ within its "
    r"support",
    correction="true if the support is an interval, which it is if f is continuous in z",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "Over a gap in the support the inverse distribution function jumps.",
    ),
    corrected=(
        r"p \ge \Upsilon \text{ on } [a, b],\; p = 0 \text{ elsewhere} \;\Rightarrow\; "
        r"|Q(u) - Q(v)| \le \frac{1}{\Upsilon} |u - v|"
    ),
    pieces=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    u=st.fractions(0, 1, max_denominator=60),
    v=st.fractions(0, 1, max_denominator=60),
)
def density_bounded_below(
    pieces: Pieces, u: Fraction, v: Fraction, slope: Callable[[Pieces], Fraction] = _largest_slope
) -> Iterator[Evidence]:
    """A density of at least Upsilon makes the inverse distribution function 1/Upsilon-Lipschitz."""
    far = abs(_quantile(pieces, u) - _quantile(pieces, v))
    yield Evidence(float(far - slope(pieces) * abs(u - v)), 0.0, f"the quantiles are {far} apart")
    # The steepest piece attains it.
    whole, below = sum(mass for _, mass in pieces), 0
    ends = [(below := below + mass) for _, mass in pieces]
    slopes = [
        (_quantile(pieces, Fraction(end, whole)) - _quantile(pieces, Fraction(end - mass, whole)))
        / Fraction(mass, whole)
        for end, (_, mass) in zip(ends, pieces, strict=True)
    ]
    yield Evidence(float(abs(max(slopes) - slope(pieces))), 0.0, "1/Upsilon is attained")


GAP_U, GAP_X = [0.0, 0.5, 0.5 + 1e-12, 1.0], [0.0, 1.0, 10.0, 11.0]


def _within_gap() -> Iterator[Evidence]:
    # On a piece of the quantile function the density is the inverse of its slope; the jump has no mass.
    slopes = [(b - a) / (v - u) for u, v, a, b in zip(GAP_U, GAP_U[1:], GAP_X, GAP_X[1:], strict=False)]
    dense = all(1 / slope >= 0.5 * (1 - 1e-9) for slope in (slopes[0], slopes[2]))
    yield from each(("the density is 1/2 or more on the support", dense))


@density_bounded_below.counterexample(margin=2.9, meets=_within_gap)
def _gap() -> Evidence:
    # U([0, 1] and [10, 11]): density 1/2, and AV@R at 1/2 is the mean of the upper piece.
    u, x = GAP_U, GAP_X
    bias = levels.average_value_at_risk(u, x, 0.5) - float(levels.order_means(u, x, 1)[0])
    return Evidence(
        bias - 2.0,
        0.0,
        "f uniform on [0, 1] and [10, 11], so Upsilon = 1/2 and G = 2; AV@R at 1/2 is 10.5, and one point "
        f"has the mean 5.5: the bias of level 0 is {bias:.4g}, above G = 2",
    )


@density_bounded_below.mutant("takes the largest density")
def _(pieces: Pieces) -> Fraction:
    return min(Fraction(w * sum(m for _, m in pieces), mass) for w, mass in pieces)


# --- Linear losses on balls -----------------------------------------------------------------------

SIZES = (4, 16, 64, 256, 1024)


def _coordinates() -> int:
    """The dimension of the disc."""
    return 2


def _disc(n: int) -> float:
    """F - F^n of the hinge at eta = 0.05 for f = b_1, b uniform on the disc."""
    return levels.hinge_bias(n, 2, 0.05)


@claim(
    "Assumption 3 (II)",
    id="D11",
    section="beyond",
    verdict=Verdict.HOLDS,
    formula=r"\frac{Q(1) - Q(1 - u)}{u} \to \infty \quad (u \to 0), \qquad n\,(F - F^n) \to \infty",
    assumptions="f = b_1, b uniform on the disc; hinge, eta = 0.05",
    remark="A remark on Assumption 3 (II), which the paper calls relatively mild: the density of a linear "
    "loss vanishes at the edge of a ball of two or more active coordinates, so that Q is not Lipschitz. "
    "D11-rate gives the rate of the bias.",
)
def linear_loss_on_a_disc(
    bias: Callable[[int], float] = _disc, d: Callable[[], int] = _coordinates
) -> Iterator[Evidence | Curve]:
    """For a linear loss on a disc Assumption 3 (II) fails, and its bias falls more slowly than 1/n."""
    t = 10.0 ** -np.arange(1, 6)
    slopes = t / (1 - levels.coordinate_law(1 - t, d())[0])
    growth = float(slopes[-1] / slopes[0])
    note = (
        f"from t below the edge to it Q has slope {slopes[0]:.3g} for t = 0.1, {slopes[-1]:.3g} for t = 1e-5"
    )
    yield Evidence(20.0 - growth, 0.0, note)
    seen = tuple(bias(n) for n in SIZES)
    curve = Curve(
        "bias of the hinge, f linear on a disc",
        "points n",
        "F - F^n",
        "G/n with the least G that n = 4 allows",
        SIZES,
        seen,
        tuple(seen[0] * SIZES[0] / n for n in SIZES),
    )
    yield curve
    # At n = 4 the order has not quite set in: 1/n itself has the exponent -0.95 at these sizes.
    yield Evidence(-0.9 - curve.fit.slope, 0.0, f"the bias falls with the exponent {curve.fit}")


@linear_loss_on_a_disc.mutant("has one active coordinate", replaces="bias")
def _(n: int) -> float:
    return levels.hinge_bias(n, 1, 0.05)


@linear_loss_on_a_disc.mutant("is a loss on an interval", replaces="d")
def _() -> int:
    return 1
