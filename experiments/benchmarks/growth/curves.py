"""What `phiball bench scaling` measures: work of growing size, ours and that of others, and its theory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf, log2
from typing import Any

import numpy as np

from phiball.backends import rng
from phiball.backends import threads as cores
from phiball.experiments.benchmarks.inner.problems import ETA, law_of, losses_of, peers
from phiball.experiments.benchmarks.third_party import optional_module
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    cressie_read,
    indicator,
    worst_case,
)

ROWS, POINTS = 64, 128  # fixed while the other grows
THREADED = (2048, 2048)  # the batch that is spread over threads
BATCH, COPIES, CHUNK = 64, 16, 256
SOLVED: dict[str, Divergence] = {
    "entropic": ENTROPIC,
    "quadratic": QUADRATIC,
    "indicator": indicator(0.25),
    "Cressie-Read 1.5": cressie_read(1.5),
    "Cressie-Read 3": cressie_read(3),
    "absolute": ABSOLUTE,
}
Work = Callable[[], Any]


@dataclass(frozen=True)
class Axis:
    """What grows: its name, what stays fixed, and the sizes at which time and memory are measured."""

    name: str
    fixed: str
    time: tuple[int, ...]
    memory: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """Work of growing size: `make(size)` prepares it; `time` and `memory` say how it grows in theory.

    No theory, None, leaves a quantity out; `varies`: its cost is random, so that the mean is taken.
    """

    axis: str
    name: str
    make: Callable[[int], Work]
    time: Callable[[float], float] | None
    memory: Callable[[float], float] | None
    ours: bool = True
    varies: bool = False


def axes() -> dict[str, Axis]:
    """Return all axes; sizes are four times apart where the work allows it."""
    fours = tuple(4**k for k in range(2, 9))
    threads = tuple(range(1, max(2, cores()) + 1))
    return {
        "m": Axis("points m of a row", f"{ROWS} rows", fours, tuple(1 << k for k in range(12, 17))),
        "batch": Axis(
            "rows of a batch", f"rows of {POINTS} points", fours[:-1], tuple(1 << k for k in range(11, 16))
        ),
        "level": Axis(
            "points 2^L of an estimate",
            f"a training step, network 64-128-10, batches of {BATCH}",
            tuple(1 << k for k in range(9)),
            tuple(1 << k for k in range(6, 11)),
        ),
        "dimension": Axis(
            "dimension d",
            f"{BATCH} x {COPIES} points of a ball",
            fours[:-1],
            tuple(4**k for k in range(4, 8)),
        ),
        "threads": Axis("threads", f"a batch of {THREADED}", threads, threads),
    }


def linear(x: float) -> float:
    """Cost in proportion to the size."""
    return x


def sorting(x: float) -> float:
    """Cost of sorting."""
    return x * log2(2 * x)


def constant(x: float) -> float:
    """Cost that does not grow."""
    return 1.0


def curves() -> Iterator[Curve]:
    """Yield all curves, ours first on each axis; other systems are there if they are installed."""
    for axis, shape in (("m", lambda m: (ROWS, m)), ("batch", lambda n: (n, POINTS))):
        for name, divergence in SOLVED.items():
            yield Curve(axis, name, partial(_solve, shape, divergence), linear, linear)
        yield Curve(axis, "quadratic, one p", partial(_solve, shape, QUADRATIC, law="one p"), linear, linear)
        for problem in ("entropic", "quadratic", "indicator", "Cressie-Read 1.5"):
            for name, peer in peers(problem).items():
                if "bisect" not in name:
                    by_sorting = axis == "m" and name in ("NumPy sort", "entmax.sparsemax", "entmax.entmax15")
                    cost = sorting if by_sorting else linear
                    yield Curve(axis, name, partial(_peer, shape, peer), cost, linear, ours=False)
        if optional_module("torch"):
            cost = sorting if axis == "m" else linear
            yield Curve(axis, "torch.sort", partial(_torch_sort, shape), cost, linear, ours=False)
    yield from _training()
    yield from _sampling()
    for name in ("entropic", "quadratic"):
        make = partial(_threaded, SOLVED[name])
        yield Curve("threads", name, make, lambda n: 1 / n, constant)
    if optional_module("torch"):
        yield Curve("threads", "torch.softmax", _threaded_softmax, lambda n: 1 / n, constant, ours=False)


def _solve(shape: Callable[[int], tuple[int, int]], d: Divergence, size: int, law: str = "uniform") -> Work:
    f, p = losses_of(shape(size)), law_of(law, shape(size))
    return lambda: worst_case(f, ETA, d, p=p)


def _peer(shape: Callable[[int], tuple[int, int]], solve: Callable[[Any], Any], size: int) -> Work:
    f = losses_of(shape(size))
    return lambda: solve(f)


def _torch_sort(shape: Callable[[int], tuple[int, int]], size: int) -> Work:
    f = import_module("torch").from_numpy(losses_of(shape(size)))
    return lambda: f.sort(-1, descending=True)


def _threaded(d: Divergence, size: int) -> Work:
    f = losses_of(THREADED)

    def work() -> Any:
        before = os.environ.get("PHIBALL_THREADS")
        os.environ["PHIBALL_THREADS"] = str(size)
        try:
            return worst_case(f, ETA, d)
        finally:
            os.environ.pop("PHIBALL_THREADS")
            if before is not None:
                os.environ["PHIBALL_THREADS"] = before

    return work


def _threaded_softmax(size: int) -> Work:
    torch = import_module("torch")
    f = torch.from_numpy(losses_of(THREADED))

    def work() -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(size)
        try:
            return torch.softmax(f / ETA, -1)
        finally:
            torch.set_num_threads(before)

    return work


def _training() -> Iterator[Curve]:
    if not optional_module("torch"):
        return

    def points(estimator: Callable[[int], SG | RTMLMC]) -> Callable[[float], float]:
        return lambda size: estimator(round(log2(size))).evaluations

    yield Curve("level", "SG(L)", partial(_step, SG), points(SG), linear)
    yield Curve("level", f"SG(L), chunk {CHUNK}", partial(_step, SG, chunk=CHUNK), points(SG), constant)
    yield Curve("level", "RTMLMC(L)", partial(_step, RTMLMC), points(RTMLMC), None, varies=True)
    yield Curve("level", "plain steps on 2^L x the data", _plain_step, linear, linear, ours=False)


def _network() -> tuple[Any, Any, Any, Any]:
    torch = import_module("torch")
    source = torch.Generator().manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    x = torch.rand((BATCH, 64), generator=source)
    y = torch.randint(10, (BATCH,), generator=source)
    return model, torch.optim.Adam(model.parameters(), lr=0.0), x, y


def _step(estimator: Callable[[int], SG | RTMLMC], size: int, chunk: int | None = None) -> Work:
    cross_entropy = import_module("torch.nn.functional").cross_entropy
    model, optimizer, x, y = _network()
    objective = RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, estimator(round(log2(size))), check_index=False)
    source = rng(0)

    def loss(z: Any, i: Any) -> Any:
        return cross_entropy(model(z), y[i], reduction="none")

    def work() -> None:
        optimizer.zero_grad()
        if chunk is None:
            objective(loss, x, rng=source).backward()
        else:
            objective.backward(loss, x, rng=source, chunk=chunk)
        optimizer.step()

    return work


def _plain_step(size: int) -> Work:
    cross_entropy = import_module("torch.nn.functional").cross_entropy
    model, optimizer, x, y = _network()

    def work() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x.repeat(size, 1)), y.repeat(size)).backward()
        optimizer.step()

    return work


def _sampling() -> Iterator[Curve]:
    for norm, name in ((2.0, "l2"), (inf, "linf"), (1.0, "l1")):
        yield Curve("dimension", f"{name} ball", partial(_draw, norm), linear, linear)
    for norm, name in ((2.0, "l2"), (inf, "linf")):
        yield Curve("dimension", f"{name} ball, tilted", partial(_draw_tilted, norm), linear, linear)
    yield Curve("dimension", "NumPy normals", _normals, linear, linear, ours=False)
    yield Curve("dimension", "NumPy uniforms", _uniforms, linear, linear, ours=False)
    if optional_module("torch"):
        yield Curve("dimension", "torch.randn", _torch_normals, linear, linear, ours=False)


def _draw(norm: float, size: int) -> Work:
    ball, z, source = Ball(norm, 1.0), np.zeros((BATCH, size)), rng(0)
    return lambda: ball.sample(z, COPIES, source)


def _draw_tilted(norm: float, size: int) -> Work:
    ball, z, source = Ball(norm, 1.0), np.zeros((BATCH, size)), rng(0)
    s = np.random.default_rng(0).normal(size=z.shape)
    return lambda: ball.sample_tilted(z, s, COPIES, source)


def _normals(size: int) -> Work:
    source = np.random.default_rng(0)
    return lambda: source.standard_normal((BATCH, COPIES, size))


def _uniforms(size: int) -> Work:
    source = np.random.default_rng(0)
    return lambda: source.random((BATCH, COPIES, size))


def _torch_normals(size: int) -> Work:
    torch = import_module("torch")
    source = torch.Generator().manual_seed(0)
    return lambda: torch.randn((BATCH, COPIES, size), dtype=torch.float64, generator=source)
