"""Two processes of DistributedDataParallel train as one process does with the same samples."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from phiball.backends import rng
from tests.support.parallel import ddp_worker as worker
from tests.support.parallel.torchrun import environment, torchrun
from tests.support.training_models import Recorder, close, gradients

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="torch: built without gloo",
    ),
]
LIMIT = 240  # seconds; it takes some fifteen on two free cores


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks wrote."""
    folder = tmp_path_factory.mktemp("ddp")
    with subprocess.Popen(
        [*torchrun(folder / "logs"), worker.__file__, str(folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            output, _ = started.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            pytest.fail(f"the two processes did not end within {LIMIT} s")
    assert started.returncode == 0, output
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def one_process(objective: Any) -> list[list[Any]]:
    """The gradients of each step, the mean of those of two ranks, computed one after the other."""
    model = worker.network()
    sources = rng(worker.SEED).spawn(2)
    steps = []
    for step in range(worker.STEPS):
        parts = []
        for rank, source in enumerate(sources):
            x, y = worker.batch(step, rank)
            objective(worker.loss_of(model, y), x, rng=source).backward()
            parts.append(gradients(model))
        steps.append([(a + b) / 2 for a, b in zip(*parts, strict=True)])
        with torch.no_grad():
            for p, g in zip(model.parameters(), steps[-1], strict=True):
                p -= 0.1 * g
    return steps


def chunks(objective: Any) -> list[list[int]]:
    """How many chunks each rank has, step by step."""
    model, counts = worker.network(), []
    for rank, source in enumerate(rng(worker.SEED).spawn(2)):
        counts.append([])
        for step in range(worker.STEPS):
            x, y = worker.batch(step, rank)
            loss = Recorder(worker.loss_of(model, y))
            objective.backward(loss, x, rng=source, chunk=worker.CHUNK)
            counts[-1].append(len(loss.points))
    return counts


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("plain random", worker.RANDOM),
        ("plain stratified", worker.STRATIFIED),
        ("plain fixed", worker.FIXED),
        ("chunks fixed", worker.FIXED),
        ("chunks random", worker.RANDOM),
        ("chunks stratified", worker.STRATIFIED),
        ("pieces random", worker.RANDOM),
    ],
)
def test_the_gradients_of_one_process(name: str, objective: Any, ranks: list[dict[str, Any]]) -> None:
    expected = one_process(objective)
    for rank in ranks:
        assert len(rank[name]) == worker.STEPS
        for found, wanted in zip(rank[name], expected, strict=True):
            assert close(found, wanted)


def test_the_ranks_draw_their_own_perturbations() -> None:
    x = worker.batch(0, 0)[0]
    sources = [*rng(worker.SEED).spawn(2), *rng(worker.SEED).spawn(2)]
    drawn = [worker.FIXED.points(lambda x, i: x[:, 0], x, rng=source).points for source in sources]
    assert not torch.any(drawn[0] == drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])


def test_accumulation_averages_the_sum_once(ranks: list[dict[str, Any]]) -> None:
    """The worker asserts that there was one average a step; here, that both ranks have it."""
    first, second = (rank["accumulated fixed"] for rank in ranks)
    assert all(close(a, b) for a, b in zip(first, second, strict=True))
    model, total = worker.network(), []
    for rank, source in enumerate(rng(worker.SEED).spawn(2)):
        x, y = worker.batch(0, rank)
        for half in (slice(0, 4), slice(4, 8)):
            worker.FIXED(worker.loss_of(model, y[half]), x[half], rng=source).backward()
            total.append(gradients(model))
    assert close(first[0], [sum(parts) / 4 for parts in zip(*total, strict=True)])


def test_the_ranks_have_different_numbers_of_chunks() -> None:
    """Or the tests of chunks would show nothing: DDP alone averages at every backward pass."""
    for objective in (worker.RANDOM, worker.STRATIFIED):
        first, second = chunks(objective)
        assert first != second
