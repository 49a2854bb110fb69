"""What the compiled kernels may cost, beside what they do: each bar with the ratio that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from phiball.experiments.benchmarks.inner.problems import (
    BAR_SHAPES,
    DIVERGENCES,
    ETA,
    LAWS,
    POWERS,
    UNIFORM,
    losses_of,
    ours,
    peers,
)
from phiball.experiments.benchmarks.timing import ROUNDS, Clock, Ratio, ratio_of_rounds
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Divergence, constrained_worst_case, worst_case, worst_case_ragged

LAW_BAR, POWER_BAR, KINKED_BAR, PEER_BAR = 1.6, 4.0, 1.0, 1.0
RADII = {"entropic": 0.5, "quadratic": 0.5, "Cressie-Read 1.5": 0.5, "absolute": 0.5}  # of the radius form


@dataclass(frozen=True)
class Comparison:
    """Two solvers to be timed in turn: what, over what, on which shape, and the bar if there is one."""

    work: str
    unit: str
    shape: tuple[int, int]
    bar: float | None
    solve: Callable[[], Any]
    beside: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.work} over {self.unit}, {self.shape}"


@dataclass(frozen=True)
class Verdict:
    """A comparison that was timed."""

    work: str
    unit: str
    shape: tuple[int, int]
    bar: float | None
    ratio: Ratio

    @property
    def word(self) -> str:
        """Whether the ratio is within the bar, to the two digits that are shown; "" without a bar."""
        if self.bar is None:
            return ""
        return "within" if round(self.ratio.middle, 2) <= self.bar else "ABOVE"


def comparisons(
    shapes: tuple[tuple[int, int], ...] = BAR_SHAPES, *, quick: bool = False
) -> Iterator[Comparison]:
    """Yield every comparison: laws, powers, kinks, and unless `quick` ragged rows, the radius form, peers."""
    for shape in shapes:
        f = losses_of(shape)

        def solve(problem: str, law: str = UNIFORM, f: Any = f) -> Callable[[], Any]:
            return partial(ours(problem, law, f.shape), f)

        for problem in DIVERGENCES:
            for law in LAWS[1:]:
                yield Comparison(
                    f"{problem}, {law}", f"{problem}, {UNIFORM}", shape, LAW_BAR, solve(problem, law),
                    solve(problem),
                )  # fmt: skip
        for k in POWERS:
            unit = "Cressie-Read 1.5"
            work = f"Cressie-Read {k:g}"
            yield Comparison(work, unit, shape, POWER_BAR, solve(work), solve(unit))
        for work in ("absolute", "hinge"):
            yield Comparison(work, "quadratic", shape, KINKED_BAR, solve(work), solve("quadratic"))
        if quick:
            continue
        yield from _ragged(f)
        yield from _radius_form(f)
        for problem in DIVERGENCES:
            for name, peer in peers(problem).items():
                yield Comparison(problem, name, shape, PEER_BAR, solve(problem), partial(peer, f))


def _ragged(f: Any) -> Iterator[Comparison]:
    n, m = f.shape
    flat = f.reshape(-1)
    cuts = np.sort(np.random.default_rng(2).choice(np.arange(1, n * m), n - 1, replace=False))
    lengths = {"rows of one length": np.arange(0, n * m + 1, m), "random lengths": np.r_[0, cuts, n * m]}
    for problem in ("entropic", "quadratic", "indicator", "Cressie-Read 1.5"):
        d = DIVERGENCES[problem]
        for name, offsets in lengths.items():
            yield Comparison(
                f"ragged {problem}, {name}", "dense", (n, m), None,
                partial(worst_case_ragged, flat, offsets, ETA, d), partial(worst_case, f, ETA, d),
            )  # fmt: skip


def _radius_form(f: Any) -> Iterator[Comparison]:
    for problem, radius in RADII.items():
        d: Divergence = DIVERGENCES[problem]
        yield Comparison(
            f"radius form, {problem}", "worst_case", f.shape, None,
            partial(constrained_worst_case, f, radius, d), partial(worst_case, f, ETA, d),
        )  # fmt: skip


def judge(c: Comparison, seconds: float, rounds: int = ROUNDS, clock: Clock = perf_counter) -> Verdict:
    """Time the two in turn."""
    return Verdict(c.work, c.unit, c.shape, c.bar, ratio_of_rounds(c.solve, c.beside, seconds, rounds, clock))


def table(verdicts: list[Verdict], threads: int) -> ReportTable:
    """Return what was timed, beside its bar."""
    cells = [
        (v.work, v.unit, str(v.shape), str(v.ratio), "" if v.bar is None else f"{v.bar:g}", v.word)
        for v in verdicts
    ]
    above = [v for v in verdicts if v.word == "ABOVE"]
    judged = sum(1 for v in verdicts if v.word)
    return ReportTable(
        f"Bars, {threads} thread(s): {judged - len(above)} of {judged} within",
        ("time of", "over that of", "shape", "ratio (rounds)", "at most", "verdict"),
        cells,
        "ratio: the median of the rounds, in which the two take turns, and their extremes",
        left=3,
    )
