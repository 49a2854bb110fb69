"""Checks of the paper's assumptions, for counterexamples that must satisfy them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from phiball.refimpl import Divergence
from phiball.verification.framework.evidence import Evidence
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.tolerances import ROUNDING

STEP = 1 / 64
GRID = [STEP * k for k in range(1, 8 * 64 + 1)]


def in_the_definition(phi: Divergence | Callable[[float], float]) -> Iterator[Evidence]:
    """Definition 1 on a grid of (0, 8]: phi convex, closed, nonnegative, 0 at 1, infinite below 0."""
    value = _values(phi)
    at = value(GRID)
    yield Evidence(abs(value([1.0])[0]), ROUNDING, "phi(1) = 0")
    yield Evidence(-min(at), ROUNDING, "phi >= 0")
    yield Evidence(_convexity_violation(at, 0.0), ROUNDING * max(v for v in at if isfinite(v)), "phi convex")
    yield Evidence(_jump(value, at), 1e-9, "phi lower semicontinuous")
    yield Evidence(0.0 if value([-1e-3])[0] == inf else inf, 0.0, "phi infinite below 0")


def strongly_convex(phi: Divergence, kappa: float) -> Iterator[Evidence]:
    """The assumption of Section 3 on a grid: phi - kappa x^2/2 is convex."""
    at = _values(phi)(GRID)
    slack = ROUNDING * max(v for v in at if isfinite(v))
    yield Evidence(_convexity_violation(at, kappa), slack, f"phi strongly convex with kappa = {kappa:g}")


def evidence_from(statement: Callable[..., Any], *example: Any, **tested: Any) -> list[Evidence]:
    """Return the evidence of a statement on one example, for use in a counterexample."""
    return list(statement(*example, **tested))


def each(*facts: tuple[str, bool]) -> Iterator[Evidence]:
    """Yield evidence for facts, each given by its description and whether it is true."""
    for description, is_true in facts:
        yield Evidence(0.0 if is_true else inf, 0.0, description)


def bounded_loss(f: Sequence[float], p: Sequence[float] | None = None) -> Iterator[Evidence]:
    """Check that a step function is a bounded loss: its values f on parts of the ball are finite.

    The parts have the probabilities p, by default equal ones.
    """
    q = [1 / len(f)] * len(f) if p is None else list(p)
    measurable = len(q) == len(f) and min(q) >= 0 and abs(sum(q) - 1) <= ROUNDING
    yield from each(
        ("f bounded", all(isfinite(v) for v in f)), ("f measurable (a step function on the ball)", measurable)
    )


def on_an_interval(
    F: Callable[[float], float],
    low: float,
    high: float,
    *,
    convex: bool = False,
    lipschitz: float = inf,
    smooth: float = inf,
    between: tuple[float, float] = (-inf, inf),
) -> Iterator[Evidence]:
    """The given assumptions on a function of theta, checked at 257 points of an interval."""
    step = (high - low) / 256
    at = [F(low + step * k) for k in range(257)]
    slack = ROUNDING * max(map(abs, at))
    slopes = [b - a for a, b in pairwise(at)]
    bends = [b - a for a, b in pairwise(slopes)]
    if convex:
        yield Evidence(-min(bends), slack, "f convex in theta")
    if isfinite(lipschitz):
        yield Evidence(max(map(abs, slopes)) - lipschitz * step, slack, f"f {lipschitz:g}-Lipschitz")
    if isfinite(smooth):
        yield Evidence(max(map(abs, bends)) - smooth * step**2, slack, f"f {smooth:g}-smooth")
    if isfinite(between[1]):
        outside = max(between[0] - min(at), max(at) - between[1])
        yield Evidence(outside, slack, f"{between[0]:g} <= f <= {between[1]:g}")


def _jump(value: Callable[[list[float]], list[float]], at: list[float]) -> float:
    """The largest amount by which phi at an end of its domain exceeds phi just inside.

    `value` evaluates phi on a list, and `at` has its values on `GRID`.
    """
    ends = [(0.0, 1.0)] if isfinite(value([0.0])[0]) else []
    if not isfinite(at[-1]):
        last = max(k for k, v in enumerate(at) if isfinite(v))
        ends.append((_edge(value, GRID[last], GRID[last + 1]), -1.0))
    if not isfinite(at[0]):
        first = min(k for k, v in enumerate(at) if isfinite(v))
        ends.append((_edge(value, GRID[first], GRID[first - 1]), 1.0))
    jumps = [value([x])[0] - value([x + inward * 2.0**-40])[0] for x, inward in ends]
    return max([0.0, *jumps])


def _edge(value: Callable[[list[float]], list[float]], inside: float, outside: float) -> float:
    """The last point from `inside` towards `outside` at which phi is finite, by bisection."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if isfinite(value([middle])[0]) else (inside, middle)
    return inside


def _values(phi: Divergence | Callable[[float], float]) -> Callable[[list[float]], list[float]]:
    """Return phi as a function of a list of numbers."""
    if isinstance(phi, Divergence):
        return lambda x: to_floats(phi.phi(array(x)))
    return lambda x: [phi(v) for v in x]


def _convexity_violation(at: list[float], kappa: float) -> float:
    """kappa STEP^2 minus the smallest second difference of the values `at` on `GRID`.

    Infinite if the values are infinite between two finite ones.
    """
    finite = [k for k, v in enumerate(at) if isfinite(v)]
    if finite != list(range(finite[0], finite[-1] + 1)):
        return inf
    inside = [at[k] for k in finite]
    bends = [a - 2 * b + c for a, b, c in zip(inside, inside[1:], inside[2:], strict=False)]
    return kappa * STEP**2 - min(bends)
