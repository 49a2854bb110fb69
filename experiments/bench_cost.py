"""What a training step costs: time and memory of every way to train, beside a plain step.

The network of Section 6.1 on a batch of 64 random images. Time is a multiple of a plain step (ERM) that was
measured beside it. An evaluation is an image that passes through the network; a plain step has one a data
point.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from ctypes import CDLL
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import inf
from multiprocessing import get_all_start_methods, get_context
from statistics import fmean, median
from typing import Any

from phiball.backends import Array, input_gradient, rng
from phiball.experiments.networks import cnn
from phiball.experiments.peers import peers
from phiball.experiments.sheets import Sheet
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    Tilted,
    Uniform,
    fgm,
    ifgm,
    white_noise,
)

BATCH = 64
BALL, ETA, LEVEL, STEPS = Ball(2, 0.45), 0.9, 7, 15  # of Section 6.1
CHUNKS = (64, 256, 1024)
CUBE, CUBE_ETA = Ball(inf, 0.3), 0.006  # a tilted step's cost does not depend on them
BAR = 1.10  # plain steps an evaluation
TILTED_BAR = 2.3  # plain steps with one tilted point, where FGM takes 1.8
NOTE = (
    "x ERM: medians, and means where the cost is random; peak: memory in use by a step beyond that of the "
    "network, MB; chunk: objective.backward in pieces of so many evaluations; ERM on more images shows what "
    "the network alone costs at that size"
)


@dataclass(frozen=True)
class Task:
    """The network, one batch of random images, and a count of the images that pass through it."""

    model: Any
    optimizer: Any
    x: Array
    y: Array
    seen: list[int] = field(default_factory=list)

    def loss(self, x: Array, i: Array) -> Array:
        """The cross-entropy of each x."""
        return import_module("torch").nn.functional.cross_entropy(self.model(x), self.y[i], reduction="none")

    def plain(self, x: Array, y: Array) -> None:
        """Leave the gradient of the mean loss of the images x."""
        import_module("torch").nn.functional.cross_entropy(self.model(x), y).backward()

    def step(self, gradient: Callable[[], None]) -> None:
        """One step of training, with the gradient that `gradient` leaves."""
        self.optimizer.zero_grad()
        gradient()
        self.optimizer.step()


@dataclass(frozen=True)
class Method:
    """A way to train: `gradient` leaves the gradient of a step; `varies`: whether its cost is random."""

    gradient: Callable[[], None]
    varies: bool = False


@dataclass(frozen=True)
class Row:
    """One method: its time over that of a plain step, evaluations a data point, and peak memory in MB."""

    method: str
    ratio: float
    evaluations: float
    steps: int
    peak: float | None

    @property
    def each(self) -> float:
        """Plain steps an evaluation."""
        return self.ratio / self.evaluations


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError(
            "the bench of training needs torch, which is not installed: pip install 'phiball[bench]'; "
            "--part quality does without"
        ) from error


def task(width: int, seed: int) -> Task:
    """The network with random images and labels, and an optimizer whose steps do not move it."""
    torch = _torch()
    source = torch.Generator().manual_seed(seed)
    model = cnn(width, seed=seed)
    # A rate of zero: the step costs what it costs, and every method meets the same network.
    found = Task(
        model,
        torch.optim.Adam(model.parameters(), lr=0.0),
        torch.rand((BATCH, 1, 28, 28), generator=source),
        torch.randint(10, (BATCH,), generator=source),
    )
    model.register_forward_pre_hook(lambda module, inputs: found.seen.append(len(inputs[0])))
    return found


def methods(work: Task, *, quick: bool = False, full: bool = False, seed: int = 0) -> dict[str, Method]:
    """Every way to train, on the batch of `work`; the first is the plain one."""
    source = rng(seed)
    gradient = partial(input_gradient, work.loss)
    levels = (0, 1, 2) if quick else tuple(range(LEVEL + 1 if full else 5))

    def ours(
        estimator: SG | RTMLMC, retilt: int | None = None, ball: Ball = BALL, eta: float = ETA
    ) -> Method:
        proposal = Uniform() if retilt is None else Tilted(retilt=retilt)
        objective = RegularizedLoss(ball, eta, ENTROPIC, estimator, proposal)
        return Method(
            lambda: objective(work.loss, work.x, rng=source).backward(), isinstance(estimator, RTMLMC)
        )

    def chunked(estimator: SG | RTMLMC, chunk: int) -> Method:
        objective = RegularizedLoss(BALL, ETA, ENTROPIC, estimator)

        def run() -> None:
            objective.backward(work.loss, work.x, rng=source, chunk=chunk)

        return Method(run, isinstance(estimator, RTMLMC))

    def copies(n: int) -> Method:
        x, y = work.x.repeat(n, 1, 1, 1), work.y.repeat(n)
        return Method(lambda: work.plain(x, y))

    found = {
        "ERM": Method(lambda: work.plain(work.x, work.y)),
        "plain noise": Method(lambda: work.plain(white_noise(work.x, BALL, source), work.y)),
        "FGM": Method(lambda: work.plain(fgm(gradient, work.x, BALL), work.y)),
        "random-start FGM": Method(lambda: work.plain(fgm(gradient, work.x, BALL, rng=source), work.y)),
        f"IFGM, {STEPS} steps": Method(lambda: work.plain(ifgm(gradient, work.x, BALL, steps=STEPS), work.y)),
        "tilted linf, SG(0)": ours(SG(0), 0, CUBE, CUBE_ETA),
        "tilted l2, SG(0)": ours(SG(0), 0),
        "tilted l2, SG(2)": ours(SG(2), 0),
        "tilted l2, SG(0), retilt 1": ours(SG(0), 1),
        f"tilted l2, RT-MLMC, L = {LEVEL}": ours(RTMLMC(LEVEL), 0),
        f"RT-MLMC, L = {LEVEL}, random": ours(RTMLMC(LEVEL)),
        f"RT-MLMC, L = {LEVEL}, stratified": ours(RTMLMC(LEVEL, "stratified")),
        **{f"RT-MLMC, L = {LEVEL}, chunk {n}": chunked(RTMLMC(LEVEL), n) for n in CHUNKS[:2]},
        **{f"SG, L = {level}": ours(SG(level)) for level in levels},
        **{f"SG, L = {levels[-1]}, chunk {n}": chunked(SG(levels[-1]), n) for n in CHUNKS},
        **{f"SG, L = {level}, chunk 256": chunked(SG(level), 256) for level in levels[2:-1]},
        **{f"ERM on {n} x the images": copies(n) for n in (() if quick else (4, 16))},
    }
    for name, (run, varies) in peers(work, BALL, STEPS, LEVEL, seed).items():
        found[name] = Method(run, varies)
    return found


def measure(
    work: Task, ways: dict[str, Method], seconds: float, *, clock: Callable[[], float], seed: int = 0
) -> dict[str, tuple[float, float, int]]:
    """Method to (time over that of ERM, evaluations a data point, steps measured).

    In each round every method takes one step, in random order, right after a plain step; the first round
    warms up. A method that has used its `seconds` leaves after two rounds.
    """
    plain = next(iter(ways.values())).gradient
    order = random.Random(seed)
    names = list(ways)
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}

    def timed(gradient: Callable[[], None]) -> float:
        start = clock()
        work.step(gradient)
        return clock() - start

    for turn in range(1 + 400):
        left = [n for n in names if len(times[n]) < 2 or sum(t for t, _, _ in times[n]) < seconds]
        if not left:
            break
        for name in order.sample(left, len(left)):
            work.step(plain)  # the method before may have emptied the cache
            unit = timed(plain)
            work.seen.clear()
            spent = timed(ways[name].gradient)
            if turn:
                times[name].append((spent, unit, sum(work.seen) / BATCH))
    return {
        name: (
            (fmean if ways[name].varies else median)([t for t, _, _ in rows])
            / (fmean if ways[name].varies else median)([unit for _, unit, _ in rows]),
            fmean(count for _, _, count in rows),
            len(rows),
        )
        for name, rows in times.items()
    }


def peak(name: str, width: int, quick: bool, full: bool, seed: int, threads: int) -> float:
    """Memory in MB that a step of a method adds; in a process of its own, whose high-water mark it reads.

    It is the memory in use: what an allocator keeps of freed memory comes on top, up to twice as much.
    """
    resource = import_module("resource")
    if hasattr(CDLL(None), "mallopt"):  # glibc: freed blocks of 64 kB and more go back to the system
        CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    _torch().set_num_threads(threads)
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    work = task(width, seed)
    method = methods(work, quick=quick, full=full, seed=seed)[name]
    warm = RegularizedLoss(BALL, ETA, ENTROPIC, SG(1))  # loads what the first step loads
    work.step(lambda: warm(work.loss, work.x[:1], rng=rng(seed)).backward())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8 if method.varies else 1):  # the largest of eight draws
        work.step(method.gradient)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit


def rows(
    *,
    seconds: float,
    width: int = 64,
    quick: bool = False,
    full: bool = False,
    seed: int = 0,
    threads: int = 1,
    memory: bool = True,
    say: Callable[[str], None] = lambda word: None,
) -> Iterator[Row]:
    """Measure every method: its memory, each in a new process, then the time of all in turn."""
    _torch().set_num_threads(threads)
    work = task(width, seed)
    ways = methods(work, quick=quick, full=full, seed=seed)
    peaks: dict[str, float | None] = dict.fromkeys(ways)
    if memory and "forkserver" in get_all_start_methods():  # not on Windows
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", __name__])  # so that torch is imported once
        for name in ways:
            say(f"measuring the memory of {name}")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                peaks[name] = pool.submit(peak, name, width, quick, full, seed, threads).result()
    say("measuring time")
    # On one thread the time of the processor, which leaves out most of what else the machine does.
    clock = time.process_time if threads == 1 else time.perf_counter
    for name, (ratio, evaluations, steps) in measure(work, ways, seconds, clock=clock, seed=seed).items():
        yield Row(name, ratio, evaluations, steps, peaks[name])


def sheet(measured: list[Row], width: int, threads: int) -> Sheet:
    """Table 1."""
    cells = [
        (
            row.method,
            f"{row.ratio:.2f}",
            f"{row.evaluations:.2f}",
            f"{row.each:.2f}",
            "" if row.peak is None else f"{row.peak:.0f}",
            str(row.steps),
        )
        for row in measured
    ]
    return Sheet(
        f"A training step, batch {BATCH}, width {width}, {threads} thread(s), as a multiple of ERM",
        ("method", "x ERM", "evaluations", "x ERM an evaluation", "peak", "steps"),
        cells,
        NOTE,
    )


def verdicts(measured: list[Row]) -> list[str]:
    """Whether RT-MLMC and SG in one graph keep to 1.10 plain steps an evaluation, one tilted point to 2.3."""
    lines = []
    for row in measured:
        if row.method.startswith(("RT-MLMC, ", "SG, ")) and "chunk" not in row.method:
            word = "within" if row.each <= BAR else "ABOVE"
            lines.append(f"{row.method}: {row.each:.3f} plain steps an evaluation, {word} {BAR:.2f}")
        if row.method.startswith("tilted") and row.method.endswith("SG(0)"):
            word = "within" if row.ratio <= TILTED_BAR else "ABOVE"
            lines.append(f"{row.method}: {row.ratio:.2f} plain steps, {word} {TILTED_BAR:.2f}")
    return lines
