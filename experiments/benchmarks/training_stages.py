"""Where the time of a training step goes: drawing, forward pass, solving, backward pass, optimizer.

Two dense networks, on which the work of the library shows beside that of the network, and the network of
Section 6.1. The unit is a step of plain training (ERM) on the same network. Steps are timed in blocks of one
method, as a training loop makes them, between two blocks of plain steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from phiball.backends import Array, Rng, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.training_steps import (
    BALL,
    BATCH,
    CUBE,
    CUBE_ETA,
    ETA,
    LEVEL,
    Workload,
    require_torch,
    workload,
)
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.loop import losses
from phiball.experiments.training.networks import torch_seed
from phiball.refimpl import ENTROPIC, RTMLMC, SG, RegularizedLoss, Tilted

STAGES = ("drawing", "forward", "solving", "backward", "optimizer")
METHODS = ("SG(0)", "SG(2)", f"RTMLMC({LEVEL})", "one tilted point, linf", "one tilted point, l2")
DENSE = {(64, 128, 10): 64, (784, 256, 10): 128}  # the sizes of the layers, and the batch
BARS = {"64-128-10": (1.8, 2.5, 4.5, 2.5, 3.0), "784-256-10": (1.3, 4.3, 5.0, 2.5, 2.5)}  # plain steps
BLOCK = 0.01  # seconds of steps that are timed at a time
NOTE = (
    "in plain steps; x ERM: medians of blocks, or means where the cost is random; drawing includes the "
    "gradients in the data points that aim tilted points"
)


@dataclass(frozen=True)
class Row:
    """One method on one network: its time in plain steps, the highest that it should take, and the stages."""

    network: str
    method: str
    ratio: float
    bar: float | None
    stages: dict[str, float]
    blocks: int


Times = dict[str, float]
Step = Callable[[], Times]


def dense(sizes: tuple[int, ...], batch: int, seed: int) -> Workload:
    """Return a network of linear layers with ReLU between them, random data, and an optimizer that rests."""
    with torch_seed(seed) as torch:
        layers = []
        for inputs, outputs in pairwise(sizes):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        x, y = torch.rand((batch, sizes[0])), torch.randint(sizes[-1], (batch,))
    return Workload(model, torch.optim.Adam(model.parameters(), lr=0.0), x, y)


def objectives() -> dict[str, RegularizedLoss]:
    """Return the objectives, by method."""
    return dict(
        zip(
            METHODS,
            (
                *(RegularizedLoss(BALL, ETA, ENTROPIC, SG(level), check_index=False) for level in (0, 2)),
                RegularizedLoss(BALL, ETA, ENTROPIC, RTMLMC(LEVEL), check_index=False),
                RegularizedLoss(CUBE, CUBE_ETA, ENTROPIC, SG(0), Tilted(), check_index=False),
                RegularizedLoss(BALL, ETA, ENTROPIC, SG(0), Tilted(), check_index=False),
            ),
            strict=True,
        )
    )


def plain_step(work: Workload, clock: Callable[[], float]) -> Times:
    """Take a step of plain training, and return the time of its stages."""
    cross_entropy = require_torch().nn.functional.cross_entropy
    start = clock()
    work.optimizer.zero_grad()
    ready = clock()
    value = cross_entropy(work.model(work.x), work.y)
    return _finished(work, value, clock, start, ready, (ready, clock()))


def objective_step(
    work: Workload, objective: RegularizedLoss, source: Rng, clock: Callable[[], float]
) -> Times:
    """Take a step with an objective, and return the time of its stages."""
    loss, called = losses(work.model, work.y), (0.0, 0.0)

    def watched(x: Array, i: Array) -> Array:
        nonlocal called
        begin = clock()
        f = loss(x, i)
        called = begin, clock()
        return f

    start = clock()
    work.optimizer.zero_grad()
    ready = clock()
    value = objective(watched, work.x, rng=source)
    return _finished(work, value, clock, start, ready, called)  # the last call, on the perturbed points


def _finished(
    work: Workload,
    value: Array,
    clock: Callable[[], float],
    start: float,
    ready: float,
    called: tuple[float, float],
) -> Times:
    solved = clock()
    value.backward()
    back = clock()
    work.optimizer.step()
    end = clock()
    times = called[0] - ready, called[1] - called[0], solved - called[1], back - solved
    return dict(zip(STAGES, (*times, ready - start + end - back), strict=True))


def measure(
    plain: Step, steps: dict[str, Step], seconds: float, *, clock: Callable[[], float], seed: int = 0
) -> dict[str, list[tuple[float, Times]]]:
    """Return, for each method, (time in plain steps, stages in plain steps) of every block of steps."""
    order = random.Random(seed)
    names = list(steps)

    def block(step: Step, count: int) -> tuple[float, Times]:
        step()  # the method before has emptied the caches
        begin = clock()
        times = [step() for _ in range(count)]
        return (clock() - begin) / count, {name: fmean(t[name] for t in times) for name in STAGES}

    for step in (plain, *steps.values()):
        step()
    count = max(1, round(BLOCK / max(block(plain, 3)[0], 1e-9)))
    found: dict[str, list[tuple[float, Times]]] = {name: [] for name in names}
    end = clock() + seconds * len(names)
    while clock() < end or len(found[names[0]]) < 3:
        for name in order.sample(names, len(names)):
            before = block(plain, count)[0]
            spent, times = block(steps[name], count)
            unit = (before + block(plain, count)[0]) / 2
            found[name].append((spent / unit, {stage: t / unit for stage, t in times.items()}))
    return found


def rows(
    *,
    seconds: float,
    width: int,
    clock: Callable[[], float],
    seed: int = 0,
    update: Update = silent,
) -> Iterator[Row]:
    """Measure all methods on all networks; a `width` of 0 leaves out the network of Section 6.1."""
    works = {"-".join(map(str, sizes)): dense(sizes, batch, seed) for sizes, batch in DENSE.items()}
    if width:
        works[f"Section 6.1, width {width}"] = workload(width, seed)
    for number, (network, work) in enumerate(works.items()):
        update(number / len(works), f"the stages of steps, network {network}")
        source = rng(seed)
        steps: dict[str, Step] = {"ERM": lambda work=work: plain_step(work, clock)}  # type: ignore[misc]
        for name, objective in objectives().items():
            steps[name] = _step(work, objective, source, clock)
        bars: dict[str, float] = dict(zip(METHODS, BARS.get(network, ()), strict=False))
        for name, blocks in measure(steps["ERM"], steps, seconds, clock=clock, seed=seed).items():
            average: Callable[[Any], float] = fmean if name.startswith("RTMLMC") else median
            stages = {stage: average([times[stage] for _, times in blocks]) for stage in STAGES}
            ratio = average([ratio for ratio, _ in blocks])
            yield Row(network, name, ratio, bars.get(name), stages, len(blocks))


def _step(work: Workload, objective: RegularizedLoss, source: Rng, clock: Callable[[], float]) -> Step:
    return lambda: objective_step(work, objective, source, clock)


def table(measured: list[Row], threads: int) -> ReportTable:
    """Return the table of all methods and networks."""
    cells = [
        (
            row.network,
            row.method,
            f"{row.ratio:.2f}",
            "" if row.bar is None else f"{row.bar:.1f}",
            *(f"{row.stages[stage]:.2f}" for stage in STAGES),
        )
        for row in measured
    ]
    batches = ", ".join(f"{'-'.join(map(str, sizes))} {batch}" for sizes, batch in DENSE.items())
    return ReportTable(
        f"The stages of a training step (batches: {batches}, Section 6.1 {BATCH}; {threads} thread(s))",
        ("network", "method", "x ERM", "bar", *STAGES),
        cells,
        NOTE,
        left=2,
    )


def verdicts(measured: list[Row]) -> list[str]:
    """Return a line per row that has a bar: whether it is kept."""
    return [
        f"{row.network}, {row.method}: {row.ratio:.2f} plain steps, "
        f"{'within' if row.ratio <= row.bar else 'ABOVE'} {row.bar:.1f}"
        for row in measured
        if row.bar is not None
    ]
