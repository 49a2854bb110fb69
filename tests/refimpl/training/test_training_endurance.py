"""Memory, Python objects, threads and open files do not grow during training."""

import gc
import os
import threading
from math import inf
from pathlib import Path
from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import QUADRATIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system"),
]
WARM, STEPS = 30, 100
MOST_MB = 6.0  # leaking the hidden layer of each step would add 12 MB or more


def resources() -> tuple[float, int, int, int]:
    """Resident memory in MB, Python objects, threads and open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return memory, len(gc.get_objects()), threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("leak", [False, True])
def test_memory_and_objects_grow_only_if_the_training_loop_leaks(leak: bool) -> None:
    source = torch.Generator().manual_seed(0)
    x, y = torch.rand((256, 64), generator=source), torch.randint(10, (256,), generator=source)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    objectives = (
        RegularizedLoss(Ball(inf, 0.1), 0.1, QUADRATIC, RTMLMC(4)),
        RegularizedLoss(Ball(2, 0.5), 0.5, estimator=SG(0), proposal=Tilted()),
    )
    draws, leaked = rng(1), []

    def loss(z: Any, i: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(z), y[i], reduction="none")

    def train(steps: int) -> None:
        for step in range(steps):
            objectives[step % 2](loss, x, rng=draws).backward()
            if leak:
                leaked.append((torch.ones(256, 1024), [step]))  # 1 MB; 100 MB do not fit into freed memory

    train(WARM)
    growth = []
    for _ in range(3):  # the memory that other tests have freed may change the growth once
        before = resources()
        train(STEPS)
        growth.append([b - a for a, b in zip(before, resources(), strict=True)])
    memory, objects, threads, files = map(min, zip(*growth, strict=True))
    assert (memory > MOST_MB, objects >= STEPS // 2) == (leak, leak)
    assert (threads, files) == (0, 0)
