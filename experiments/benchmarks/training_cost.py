"""`phiball bench training`: the cost of a training step, and the quality of the estimators.

The part `cost` times a step of each method on the network of Section 6.1, with a batch of random data; the
unit is a step of plain training (ERM). An evaluation is a pass of one data point through the network; a plain
step has one per data point. The part `quality` is in `training_quality`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from statistics import fmean
from typing import Any, TypeAlias

from phiball.backends import Array, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    MEMORY,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    bar_verdict,
    compare,
    in_new_process,
    part_of,
    peak_memory,
)
from phiball.experiments.benchmarks.training_quality import quality_tables
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.image_networks import cnn, torch_seed
from phiball.experiments.training.loop import cross_entropy_loss
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted, Uniform, fgm, ifgm

Gradient: TypeAlias = Callable[[], Any]
PARTS = ("all", "cost", "quality")
BATCH = 64
BALL, ETA, LEVEL, STEPS = Ball(2, 0.45), 0.9, 7, 15  # as in Section 6.1
CUBE, CUBE_ETA = Ball(inf, 0.3), 0.006  # any values: the cost of a step does not depend on them
MULTILEVEL = f"RTMLMC({LEVEL})"
BARS = {"tilted linf, SG(0)": 2.3, "tilted l2, SG(0)": 2.3}  # in plain steps
PER_EVALUATION_BAR = 1.10  # plain steps per evaluation, for SG and RT-MLMC without chunks
NOTE = (
    "peak: memory in MB of a step, without the network. chunk: evaluations per chunk of objective.backward. "
    "ERM on n x the images: plain training on n copies of the batch, the cost of the network alone. at most: "
    "bar for the column x ERM; for SG and RT-MLMC without chunks, bar for the column x ERM per evaluation"
)


@dataclass(frozen=True)
class Workload:
    """A network, an optimizer that does not change it, and one batch of images x and labels y.

    `batch_sizes` lists the sizes of all forward passes of the current step.
    """

    model: Any
    optimizer: Any
    x: Array
    y: Array
    batch_sizes: list[int] = field(default_factory=list)

    def loss(self, x: Array, i: Array) -> Array:
        """The cross-entropy at each x, a perturbation of data point i."""
        return cross_entropy_loss(self.model, self.y)(x, i)

    def plain(self, x: Array, y: Array) -> None:
        """Compute the gradient, in the parameters, of the mean loss of the images x with labels y."""
        import_module("torch").nn.functional.cross_entropy(self.model(x), y).backward()

    def step(self, gradient: Callable[[], Any]) -> float:
        """Take a training step with `gradient`; return the number of evaluations per data point."""
        self.batch_sizes.clear()
        self.optimizer.zero_grad()
        gradient()
        self.optimizer.step()
        return sum(self.batch_sizes) / len(self.x)


def paper_workload(width: int, seed: int) -> Workload:
    """The network of Section 6.1 with random images and labels."""
    with torch_seed(seed) as torch:
        x, y = torch.rand((BATCH, 1, 28, 28)), torch.randint(10, (BATCH,))
    model = cnn(width, seed=seed)
    # With a zero learning rate every method sees the same network, at the same cost per step.
    work = Workload(model, torch.optim.Adam(model.parameters(), lr=0.0), x, y)
    model.register_forward_pre_hook(lambda module, inputs: work.batch_sizes.append(len(inputs[0])))
    return work


def _objective_step(
    work: Workload,
    estimator: SG | RTMLMC,
    proposal: Uniform | Tilted | None = None,
    ball: Ball = BALL,
    eta: float = ETA,
    chunk: int | None = None,
    seed: int = 0,
) -> Gradient:
    """A function that computes the gradient of the regularized loss, in chunks if `chunk` is given."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, estimator, proposal or Uniform())
    source = rng(seed)
    if chunk is not None:
        return partial(objective.backward, work.loss, work.x, rng=source, chunk=chunk)
    return lambda: objective(work.loss, work.x, rng=source).backward()


def paper_steps(work: Workload, *, quick: bool, seed: int) -> dict[str, Gradient]:
    """The methods by name; each is a function that computes the gradient of a step in the parameters."""
    last = 2 if quick else 4
    ours = partial(_objective_step, work, seed=seed)

    def plain(perturbed: Callable[[], Array]) -> Gradient:
        return lambda: work.plain(perturbed(), work.y)

    def copies(n: int) -> Gradient:
        return partial(work.plain, work.x.repeat(n, 1, 1, 1), work.y.repeat(n))

    return {
        "ERM": plain(lambda: work.x),
        "FGM": plain(lambda: fgm(work.loss, work.x, BALL)),
        f"IFGM, {STEPS} steps": plain(lambda: ifgm(work.loss, work.x, BALL, steps=STEPS)),
        "tilted linf, SG(0)": ours(SG(0), Tilted(), CUBE, CUBE_ETA),
        "tilted l2, SG(0)": ours(SG(0), Tilted()),
        MULTILEVEL: ours(RTMLMC(LEVEL)),
        f"{MULTILEVEL}, stratified": ours(RTMLMC(LEVEL, "stratified")),
        f"{MULTILEVEL}, chunk 256": ours(RTMLMC(LEVEL), chunk=256),
        **{f"SG({level})": ours(SG(level)) for level in range(last + 1)},
        **{f"SG({last}), chunk {n}": ours(SG(last), chunk=n) for n in (64, 256)},
        **{f"ERM on {n} x the images": copies(n) for n in (() if quick else (4, 16))},
    }


def step_memory(name: str, width: int, quick: bool, seed: int) -> float:
    """The memory in MB that a step of the method `name` adds; call this in a new process."""
    work = paper_workload(width, seed)
    step = paper_steps(work, quick=quick, seed=seed)[name]
    small = replace(work, x=work.x[:1], y=work.y[:1])
    small.step(_objective_step(small, SG(1)))  # warm up: imports and compilation
    count = 8 if _varies(name) else 1  # steps; the peak is that of the largest
    return peak_memory(lambda: [work.step(step) for _ in range(count)])


def _varies(name: str) -> bool:
    """Whether the cost of a step is random."""
    return name.startswith(MULTILEVEL)


def cost_report(
    *, width: int, quick: bool, seed: int, clock: Clock, seconds: float, update: Update = silent
) -> BenchmarkReport:
    """Time the steps relative to a plain step, count their evaluations, and measure their memory."""
    require("torch", user="bench training --part cost", extra="bench")
    work = paper_workload(width, seed)
    steps = paper_steps(work, quick=quick, seed=seed)
    peaks = {}
    for number, name in enumerate(steps if MEMORY else ()):
        update(0.4 * number / len(steps), f"memory of {name}")
        peaks[name] = in_new_process(step_memory, name, width, quick, seed)
    counts: dict[str, list[float]] = {name: [] for name in steps}
    players = [
        Contestant(name, lambda name=name: counts[name].append(work.step(steps[name])), varies=_varies(name))  # type: ignore[misc]
        for name in steps
    ]
    times = compare(
        lambda: work.step(steps["ERM"]),
        players,
        seconds=seconds,
        clock=clock,
        update=part_of(update, 0.4, 1.0),
    )
    rows = []
    for name, timing in times.items():
        evaluations, bar, ratio = fmean(counts[name]), BARS.get(name), timing.ratio
        if name.startswith(("SG", "RTMLMC")) and "chunk" not in name:
            bar, ratio = PER_EVALUATION_BAR, timing.ratio / evaluations
        verdict = "" if bar is None else bar_verdict(ratio, bar)
        row = {"method": name, "verdict": verdict, "at most": bar, **timing.columns("ERM")}
        per_evaluation = {"evaluations": evaluations, "x ERM per evaluation": timing.ratio / evaluations}
        rows.append({**row, **per_evaluation, "peak": peaks.get(name)})
    title = f"A training step, network of Section 6.1, width {width}"
    return BenchmarkReport([BenchmarkTable(title, rows, NOTE)])


def bench_training(
    *,
    clock: Clock,
    width: int = 64,
    quick: bool = False,
    part: str = "all",
    seed: int = 0,
    update: Update = silent,
) -> BenchmarkReport:
    """The tables of one `part` of the benchmark, cost or quality, or of all."""
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)}")
    report = BenchmarkReport([])
    if part != "quality":
        seconds = 0.1 if quick else 1.0
        report = cost_report(width=width, quick=quick, seed=seed, clock=clock, seconds=seconds, update=update)
    if part != "cost":
        quality = quality_tables(work=1 << (16 if quick else 20), seed=seed, update=update)
        report = BenchmarkReport([*report.tables, *quality])
    return report
