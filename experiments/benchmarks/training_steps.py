"""The training steps whose cost is measured, on the network of Section 6.1 and one random batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from typing import Any

from phiball.backends import Array, input_gradient, rng
from phiball.experiments.benchmarks.third_party import third_party_steps
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.loop import losses
from phiball.experiments.training.networks import cnn, fast_cnn
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
FAST = "fast network: "


@dataclass(frozen=True)
class Workload:
    """The network, one batch of random images, and a count of the images that pass through it."""

    model: Any
    optimizer: Any
    x: Array
    y: Array
    seen: list[int] = field(default_factory=list)

    def loss(self, x: Array, i: Array) -> Array:
        """Return the cross-entropy of each x, a perturbed copy of image i."""
        return losses(self.model, self.y)(x, i)

    def plain(self, x: Array, y: Array) -> None:
        """Leave the gradient of the mean loss of the images x in the parameters."""
        import_module("torch").nn.functional.cross_entropy(self.model(x), y).backward()

    def step(self, gradient: Callable[[], None]) -> None:
        """Take a step of training, with the gradient that `gradient` leaves."""
        self.optimizer.zero_grad()
        gradient()
        self.optimizer.step()


@dataclass(frozen=True)
class TrainingStep:
    """`gradient` leaves the gradient of a step in the parameters; `varies`: whether its cost is random."""

    gradient: Callable[[], None]
    varies: bool = False


def require_torch(part: str = "cost") -> Any:
    """Return torch, or raise an ImportError that says how to install it; the part `quality` does without."""
    return require("torch", user=f"bench training --part {part}", extra="bench")


def workload(width: int, seed: int) -> Workload:
    """Return the network with random images and labels, and an optimizer whose steps do not move it."""
    torch = require_torch()
    source = torch.Generator().manual_seed(seed)
    model = cnn(width, seed=seed)
    # A rate of zero: a step costs the same, and every method meets the same network.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    x = torch.rand((BATCH, 1, 28, 28), generator=source)
    return _counted(Workload(model, optimizer, x, torch.randint(10, (BATCH,), generator=source)))


def fast(work: Workload) -> Workload:
    """Return the same workload on the network in its fast form."""
    model = fast_cnn(work.model[0].out_channels)
    # The parameters themselves, not copies: one optimizer and one place for gradients serve both forms.
    model.load_state_dict(work.model.state_dict(keep_vars=True), assign=True)
    return _counted(replace(work, model=model))


def _counted(work: Workload) -> Workload:
    work.model.register_forward_pre_hook(lambda module, inputs: work.seen.append(len(inputs[0])))
    return work


def training_steps(
    work: Workload, *, quick: bool = False, full: bool = False, seed: int = 0
) -> dict[str, TrainingStep]:
    """Return all training steps on the batch of `work`, by method; the first is plain training."""
    source = rng(seed)
    gradient = partial(input_gradient, work.loss)
    rapid = fast(work)
    levels = (0, 1, 2) if quick else tuple(range(LEVEL + 1 if full else 5))

    def ours(
        estimator: SG | RTMLMC,
        retilt: int | None = None,
        ball: Ball = BALL,
        eta: float = ETA,
        on: Workload = work,
    ) -> TrainingStep:
        proposal = Uniform() if retilt is None else Tilted(retilt=retilt)
        objective = RegularizedLoss(ball, eta, ENTROPIC, estimator, proposal, check_index=False)
        return TrainingStep(
            lambda: objective(on.loss, on.x, rng=source).backward(), isinstance(estimator, RTMLMC)
        )

    def iterated(on: Workload) -> TrainingStep:
        slope = partial(input_gradient, on.loss)
        return TrainingStep(lambda: on.plain(ifgm(slope, on.x, BALL, steps=STEPS), on.y))

    def chunked(estimator: SG | RTMLMC, chunk: int) -> TrainingStep:
        objective = RegularizedLoss(BALL, ETA, ENTROPIC, estimator, check_index=False)

        def run() -> None:
            objective.backward(work.loss, work.x, rng=source, chunk=chunk)

        return TrainingStep(run, isinstance(estimator, RTMLMC))

    def copies(n: int) -> TrainingStep:
        x, y = work.x.repeat(n, 1, 1, 1), work.y.repeat(n)
        return TrainingStep(lambda: work.plain(x, y))

    named = {
        "ERM": TrainingStep(lambda: work.plain(work.x, work.y)),
        "plain noise": TrainingStep(lambda: work.plain(white_noise(work.x, BALL, source), work.y)),
        "FGM": TrainingStep(lambda: work.plain(fgm(gradient, work.x, BALL), work.y)),
        "random-start FGM": TrainingStep(lambda: work.plain(fgm(gradient, work.x, BALL, rng=source), work.y)),
        f"IFGM, {STEPS} steps": iterated(work),
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
        FAST + "ERM": TrainingStep(lambda: rapid.plain(rapid.x, rapid.y)),
        FAST + f"IFGM, {STEPS} steps": iterated(rapid),
        FAST + f"RT-MLMC, L = {LEVEL}, random": ours(RTMLMC(LEVEL), on=rapid),
    }
    for name, (run, varies) in third_party_steps(work, BALL, STEPS, LEVEL, seed).items():
        named[name] = TrainingStep(run, varies)
    return named
