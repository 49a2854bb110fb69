"""Long training: memory, threads and open files do not grow, and a step does not do more work over time."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, QUADRATIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted, Uniform, indicator

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system"),
]
WARM, STEPS = 40, 160
MOST_MB = 8.0  # leaking the hidden layer of each step would add 20 MB or more
METHODS = {
    "entropic, SG(2)": RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, SG(2)),
    "quadratic, RTMLMC(7)": RegularizedLoss(Ball(inf, 0.1), 0.1, QUADRATIC, RTMLMC(7)),
    "CVaR, SG(3), antithetic": RegularizedLoss(
        Ball(2, 0.5), 0.5, indicator(0.5), SG(3), Uniform(antithetic=True)
    ),
    "tilted, SG(0)": RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, SG(0), Tilted()),
}


def training_step(objective: RegularizedLoss) -> Callable[[Any], Any]:
    """A step of training a network 64-128-10 on one batch of 256, as a function of the generator."""
    source = torch.Generator().manual_seed(0)
    x, y = torch.rand((256, 64), generator=source), torch.randint(10, (256,), generator=source)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(z: Any, i: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(z), y[i], reduction="none")

    def step(draws: Any) -> Any:
        optimizer.zero_grad()
        value = objective(loss, x, rng=draws)
        value.backward()
        optimizer.step()
        return value

    return step


def function_calls(step: Callable[[Any], Any]) -> int:
    """The number of Python and C functions that a step calls; its draws are always the same."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        step(rng(0))
    finally:
        sys.setprofile(None)
    return count


def resources() -> tuple[float, int, int, int]:
    """Resident memory in MB, Python objects, threads and open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return memory, len(gc.get_objects()), threading.active_count(), files


def growth(step: Callable[[Any], Any]) -> tuple[float, int, int, int]:
    """What the steps after the warm-up add to the resources."""
    draws = rng(1)
    for _ in range(WARM):
        step(draws)
    before = resources()
    for _ in range(STEPS):
        step(draws)
    return tuple(b - a for a, b in zip(before, resources(), strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("name", METHODS)
def test_nothing_grows_in_long_training(name: str) -> None:
    step = training_step(METHODS[name])
    step(rng(0))
    calls = function_calls(step)
    memory, objects, threads, files = growth(step)
    assert memory < MOST_MB
    assert objects < STEPS // 2
    assert (threads, files) == (0, 0)
    assert function_calls(step) <= calls


def test_a_leak_is_noticed() -> None:
    step = training_step(METHODS["entropic, SG(2)"])
    leaked: list[Any] = []
    memory, objects, _, _ = growth(lambda draws: leaked.append((step(draws), torch.ones(256, 128))))
    assert memory > MOST_MB
    assert objects >= STEPS // 2
