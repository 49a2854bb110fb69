"""Training with two DistributedDataParallel processes equals training with one."""

import os
import signal
import subprocess
from typing import Any

import pytest

from phiball.backends import rng
from tests.support.parallel import ddp_worker as worker
from tests.support.parallel.torchrun import GLOO_AT_EXIT, environment, torchrun
from tests.support.paths import ROOT
from tests.support.training_models import Recorder, close, gradients

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="torch: built without gloo",
    ),
]
LIMIT = 240  # seconds; about fifteen on two free cores


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The gradients of each rank, by way of training (see ddp_worker.py)."""
    folder = tmp_path_factory.mktemp("ddp")
    with subprocess.Popen(
        [*torchrun(folder / "logs"), worker.__file__, str(folder)],
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            output, _ = started.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            pytest.fail(f"the two processes did not finish within {LIMIT} s")
    assert started.returncode == 0 or GLOO_AT_EXIT in output, output
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def train_in_one_process(objective: Any) -> tuple[list[list[Any]], list[list[int]]]:
    """Compute in one process the mean gradients of both ranks at each step, and count their points."""
    model = worker.network()
    sources = rng(worker.SEED).spawn(2)
    steps: list[list[Any]] = []
    counts: list[list[int]] = [[], []]
    for step in range(worker.STEPS):
        parts = []
        for rank, source in enumerate(sources):
            x, y = worker.batch(step, rank)
            loss = Recorder(worker.loss_of(model, y))
            objective(loss, x, rng=source).backward()
            counts[rank].append(len(loss.points[-1]))
            parts.append(gradients(model))
        steps.append([(a + b) / 2 for a, b in zip(*parts, strict=True)])
        with torch.no_grad():
            for p, g in zip(model.parameters(), steps[-1], strict=True):
                p -= 0.1 * g
    return steps, counts


def test_gradients_equal_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    for name, objective in [
        ("plain random", worker.RANDOM_LEVELS),
        ("plain fixed", worker.FIXED_LEVEL),
        ("chunks fixed", worker.FIXED_LEVEL),
        ("chunks random", worker.RANDOM_LEVELS),
    ]:
        expected, counts = train_in_one_process(objective)
        for rank in ranks:
            assert len(rank[name]) == worker.STEPS
            assert all(close(*pair) for pair in zip(rank[name], expected, strict=True)), name
        # With random levels, the ranks have different numbers of points.
        assert objective is worker.FIXED_LEVEL or counts[0] != counts[1]


def test_accumulated_gradients_are_averaged_once(ranks: list[dict[str, Any]]) -> None:
    """The worker asserts that gradients are averaged once per step."""
    first, second = (rank["accumulated fixed"] for rank in ranks)
    assert all(close(a, b) for a, b in zip(first, second, strict=True))
    model, total = worker.network(), []
    for rank, source in enumerate(rng(worker.SEED).spawn(2)):
        x, y = worker.batch(0, rank)
        for half in (slice(0, 4), slice(4, 8)):
            worker.FIXED_LEVEL(worker.loss_of(model, y[half]), x[half], rng=source).backward()
            total.append(gradients(model))
    assert close(first[0], [sum(parts) / 4 for parts in zip(*total, strict=True)])
