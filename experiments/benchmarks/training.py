"""`phiball bench training`: the cost of a training step, and the quality of the estimators.

The part `cost` times a step of each method on small dense networks and on the network of Section 6.1, with a
batch of random data; the unit is a step of plain training (ERM). An evaluation is a data point that passes
through the network; a plain step has one per data point. The part `quality` is in `training_quality`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from phiball.backends import Array, input_gradient, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    NEW_PROCESSES,
    Clock,
    Contestant,
    Report,
    Row,
    Table,
    compare,
    in_new_process,
    peak_memory,
)
from phiball.experiments.benchmarks.third_party import HINT, optional_module
from phiball.experiments.benchmarks.training_quality import quality_tables
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.loop import losses
from phiball.experiments.training.networks import cnn, torch_seed
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

PARTS = ("all", "cost", "quality")
BATCH = 64
BALL, ETA, LEVEL, STEPS = Ball(2, 0.45), 0.9, 7, 15  # of Section 6.1
CUBE, CUBE_ETA = Ball(inf, 0.3), 0.006  # a tilted step's cost does not depend on them
DENSE = {(64, 128, 10): 64, (784, 256, 10): 128}  # layer sizes, and batch
MULTILEVEL, TILTED_CUBE, TILTED_BALL = f"RTMLMC({LEVEL})", "tilted linf, SG(0)", "tilted l2, SG(0)"
PER_EVALUATION_BAR, TILTED_BAR = 1.10, 2.3  # on the network of Section 6.1
DENSE_BARS = {  # plain steps
    "64-128-10": {"SG(0)": 1.8, "SG(2)": 2.5, MULTILEVEL: 4.5, TILTED_CUBE: 2.5, TILTED_BALL: 3.0},
    "784-256-10": {"SG(0)": 1.3, "SG(2)": 4.3, MULTILEVEL: 5.0, TILTED_CUBE: 2.5, TILTED_BALL: 2.5},
}
NOTE = (
    "peak: memory in MB that a step uses in addition to the network; chunk: objective.backward in pieces of "
    "so many evaluations; ERM on more images is the cost of the network alone at that size; "
    "at most: of x ERM, on the network of Section 6.1 per evaluation for SG and RT-MLMC"
)


@dataclass(frozen=True)
class Workload:
    """A network, an optimizer that does not move it, one batch, and how many data points were evaluated."""

    model: Any
    optimizer: Any
    x: Array
    y: Array
    seen: list[int] = field(default_factory=list)

    def loss(self, x: Array, i: Array) -> Array:
        """Return the cross-entropy of each x, a perturbed copy of data point i."""
        return losses(self.model, self.y)(x, i)

    def plain(self, x: Array, y: Array) -> None:
        """Leave the gradient of the mean loss of x in the parameters."""
        import_module("torch").nn.functional.cross_entropy(self.model(x), y).backward()

    def step(self, gradient: Callable[[], Any]) -> float:
        """Take a training step by `gradient`; return its evaluations per data point."""
        self.seen.clear()
        self.optimizer.zero_grad()
        gradient()
        self.optimizer.step()
        return sum(self.seen) / len(self.x)


def _workload(model: Any, x: Array, y: Array) -> Workload:
    # With a rate of zero every method meets the same network, and a step costs the same.
    work = Workload(model, import_module("torch").optim.Adam(model.parameters(), lr=0.0), x, y)
    model.register_forward_pre_hook(lambda module, inputs: work.seen.append(len(inputs[0])))
    return work


def paper_workload(width: int, seed: int) -> Workload:
    """Return the network of Section 6.1 with random images and labels."""
    with torch_seed(seed) as torch:
        x, y = torch.rand((BATCH, 1, 28, 28)), torch.randint(10, (BATCH,))
    return _workload(cnn(width, seed=seed), x, y)


def dense_workload(sizes: tuple[int, ...], batch: int, seed: int) -> Workload:
    """Return a network of linear layers with ReLU between them, and random data."""
    with torch_seed(seed) as torch:
        layers = [layer for ends in pairwise(sizes) for layer in (torch.nn.Linear(*ends), torch.nn.ReLU())]
        x, y = torch.rand((batch, sizes[0])), torch.randint(sizes[-1], (batch,))
        return _workload(torch.nn.Sequential(*layers[:-1]), x, y)


@dataclass(frozen=True)
class TrainingStep:
    """`gradient` leaves the gradient of a step in the parameters; `varies`: its cost is random."""

    gradient: Callable[[], Any]
    varies: bool = False


def _objective_step(
    work: Workload,
    estimator: SG | RTMLMC,
    proposal: Uniform | Tilted | None = None,
    ball: Ball = BALL,
    eta: float = ETA,
    chunk: int | None = None,
    seed: int = 0,
) -> TrainingStep:
    objective = RegularizedLoss(ball, eta, ENTROPIC, estimator, proposal or Uniform(), check_index=False)
    source, varies = rng(seed), isinstance(estimator, RTMLMC)
    if chunk is not None:
        run = partial(objective.backward, work.loss, work.x, rng=source, chunk=chunk)
        return TrainingStep(run, varies)
    return TrainingStep(lambda: objective(work.loss, work.x, rng=source).backward(), varies)


def dense_steps(work: Workload, seed: int) -> dict[str, TrainingStep]:
    """Return the training steps that have bars on the dense networks."""
    ours = partial(_objective_step, work, seed=seed)
    return {
        "SG(0)": ours(SG(0)),
        "SG(2)": ours(SG(2)),
        MULTILEVEL: ours(RTMLMC(LEVEL)),
        TILTED_CUBE: ours(SG(0), Tilted(), CUBE, CUBE_ETA),
        TILTED_BALL: ours(SG(0), Tilted()),
    }


def paper_steps(work: Workload, *, quick: bool, seed: int) -> dict[str, TrainingStep]:
    """Return all training steps on the network of Section 6.1."""
    source, last = rng(seed), 2 if quick else 4
    slope = partial(input_gradient, work.loss)
    ours = partial(_objective_step, work, seed=seed)

    def plain(make: Callable[[], Array]) -> TrainingStep:
        return TrainingStep(lambda: work.plain(make(), work.y))

    def copies(n: int) -> TrainingStep:
        x, y = work.x.repeat(n, 1, 1, 1), work.y.repeat(n)
        return TrainingStep(lambda: work.plain(x, y))

    named = {
        "ERM": plain(lambda: work.x),
        "plain noise": plain(lambda: white_noise(work.x, BALL, source)),
        "FGM": plain(lambda: fgm(slope, work.x, BALL)),
        "random-start FGM": plain(lambda: fgm(slope, work.x, BALL, rng=source)),
        f"IFGM, {STEPS} steps": plain(lambda: ifgm(slope, work.x, BALL, steps=STEPS)),
        TILTED_CUBE: ours(SG(0), Tilted(), CUBE, CUBE_ETA),
        TILTED_BALL: ours(SG(0), Tilted()),
        "tilted l2, SG(2)": ours(SG(2), Tilted()),
        "tilted l2, SG(0), retilt 1": ours(SG(0), Tilted(retilt=1)),
        MULTILEVEL: ours(RTMLMC(LEVEL)),
        f"{MULTILEVEL}, stratified": ours(RTMLMC(LEVEL, "stratified")),
        f"{MULTILEVEL}, chunk 256": ours(RTMLMC(LEVEL), chunk=256),
        **{f"SG({level})": ours(SG(level)) for level in range(last + 1)},
        **{f"SG({last}), chunk {n}": ours(SG(last), chunk=n) for n in (64, 256)},
        **{f"ERM on {n} x the images": copies(n) for n in (() if quick else (4, 16))},
    }
    torchattacks = optional_module("torchattacks")
    if torchattacks:
        step = 2.5 * BALL.radius / STEPS
        attack = torchattacks.PGDL2(work.model, eps=BALL.radius, alpha=step, steps=STEPS)
        named[f"torchattacks PGD, {STEPS} steps"] = plain(lambda: attack(work.x, work.y))
    return named


def step_memory(name: str, width: int, quick: bool, seed: int) -> float:
    """Return the memory in MB that a step adds; to be called in a new process."""
    work = paper_workload(width, seed)
    step = paper_steps(work, quick=quick, seed=seed)[name]
    small = replace(work, x=work.x[:1], y=work.y[:1])
    small.step(_objective_step(small, SG(1)).gradient)  # loads what the first step loads
    count = 8 if step.varies else 1  # the largest of eight draws
    return peak_memory(lambda: [work.step(step.gradient) for _ in range(count)])


def step_rows(
    network: str,
    work: Workload,
    steps: dict[str, TrainingStep],
    *,
    seconds: float,
    clock: Clock,
    peaks: dict[str, float] | None = None,
    update: Update = silent,
) -> list[Row]:
    """Time the steps over a plain step, and count their evaluations."""
    counts: dict[str, list[float]] = {name: [] for name in steps}
    players = [
        Contestant(
            name,
            lambda step=step, count=counts[name]: count.append(work.step(step.gradient)),  # type: ignore[misc]
            varies=step.varies,
        )
        for name, step in steps.items()
    ]

    def unit() -> None:
        work.step(lambda: work.plain(work.x, work.y))

    times = compare(unit, players, seconds=seconds, clock=clock, update=update)
    rows = []
    for name, timing in times.items():
        evaluations, bar = fmean(counts[name]), DENSE_BARS.get(network, {}).get(name)
        shown = timing.ratio
        if network not in DENSE_BARS and name.startswith("tilted") and name.endswith("SG(0)"):
            bar = TILTED_BAR
        elif network not in DENSE_BARS and name.startswith(("SG", "RTMLMC")) and "chunk" not in name:
            bar, shown = PER_EVALUATION_BAR, timing.ratio / evaluations
        verdict = "" if bar is None else "within" if round(shown, 2) <= bar else "ABOVE"
        row = {
            "network": network,
            "method": name,
            "verdict": verdict,
            "at most": bar,
            **timing.columns("ERM"),
        }
        per_evaluation = {"evaluations": evaluations, "x ERM per evaluation": timing.ratio / evaluations}
        rows.append({**row, **per_evaluation, "peak": (peaks or {}).get(name)})
    return rows


def cost_report(
    *, width: int, quick: bool, seed: int, clock: Clock, seconds: float, update: Update = silent
) -> Report:
    """Time the steps on all networks, and measure their memory on the network of Section 6.1."""
    require("torch", user="bench training --part cost", extra="bench")
    rows = []
    for number, (sizes, batch) in enumerate(DENSE.items()):
        work, network = dense_workload(sizes, batch, seed), "-".join(map(str, sizes))
        update(0.1 * number, f"network {network}")
        rows += step_rows(network, work, dense_steps(work, seed), seconds=seconds / 4, clock=clock)
    work = paper_workload(width, seed)
    steps = paper_steps(work, quick=quick, seed=seed)
    peaks = {}
    for number, name in enumerate(steps if NEW_PROCESSES else ()):
        update(0.2 + 0.2 * number / len(steps), f"memory of {name}")
        peaks[name] = in_new_process(step_memory, name, width, quick, seed)

    def part(share: float, text: str) -> None:
        update(0.4 + 0.6 * share, text)

    network = f"Section 6.1, width {width}"
    rows += step_rows(network, work, steps, seconds=seconds, clock=clock, peaks=peaks, update=part)
    missing = [] if optional_module("torchattacks") else [HINT.format("torchattacks")]
    return Report([Table("A training step", rows, NOTE)], missing)


def measure(
    *,
    clock: Clock,
    width: int = 64,
    quick: bool = False,
    part: str = "all",
    seed: int = 0,
    update: Update = silent,
) -> Report:
    """Return the tables of one part, or of both."""
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)}")
    report = Report([])
    if part != "quality":
        seconds = 0.1 if quick else 1.0
        report = cost_report(width=width, quick=quick, seed=seed, clock=clock, seconds=seconds, update=update)
    if part != "cost":
        quality = quality_tables(work=1 << (16 if quick else 20), seed=seed, update=update)
        report = Report([*report.tables, *quality], report.findings)
    return report
