"""One rank of DistributedDataParallel training, started by torchrun; see test_regularized_loss_ddp.py.

    python -m torch.distributed.run --standalone --nproc-per-node 2 ddp_worker.py FOLDER

It writes the gradients of each way of training to FOLDER/rank{r}.pt.
"""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss
from tests.support import training_models
from tests.support.training_models import cross_entropy as loss_of

torch = pytest.importorskip("torch", reason="torch: not installed")
dist = pytest.importorskip("torch.distributed", reason="torch: built without torch.distributed")

STEPS, BATCH, SEED = 3, 8, 7
RANDOM_LEVELS = RegularizedLoss(Ball(2, 0.5), 0.3, ENTROPIC, RTMLMC(4))
FIXED_LEVEL = RegularizedLoss(Ball(2, 0.5), 0.3, ENTROPIC, SG(3))


network = partial(training_models.network, (5,))  # the same initial weights on every rank


def batch(step: int, rank: int) -> tuple[Any, Any]:
    """The data of one rank at one step."""
    return training_models.data((5,), BATCH, seed=100 + 10 * step + rank)


def plain(objective: RegularizedLoss, model: Any, x: Any, y: Any, source: Any) -> None:
    """One forward and one backward pass, as in any training with DistributedDataParallel."""
    objective(model, x, y, rng=source).backward()


def in_chunks(objective: RegularizedLoss, model: Any, x: Any, y: Any, source: Any) -> None:
    """One backward pass per chunk of 3 perturbed points: those of one data point are in several chunks.

    With random levels, the number of chunks differs between ranks.
    """
    objective.backward(model, x, y, rng=source, chunk=3)


def accumulated(objective: RegularizedLoss, model: Any, x: Any, y: Any, source: Any) -> None:
    """Add the gradients of the two halves of a batch; the ranks average them after the second half."""
    half = len(x) // 2
    with model.no_sync():
        objective.backward(loss_of(model, y[:half]), x[:half], rng=source, chunk=16, grad_scale=0.5)
    objective.backward(loss_of(model, y[half:]), x[half:], rng=source, chunk=16, grad_scale=0.5)


def train(how: Any, objective: RegularizedLoss, model: Any) -> list[list[Any]]:
    """Return the gradients of each step; assert that they are averaged once per step."""
    averages = []

    def average(bucket: Any) -> Any:
        averages.append(step)
        done = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
        return done.then(lambda future: future.value()[0])

    model.register_comm_hook(None, lambda _, bucket: average(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = rng(SEED).spawn(dist.get_world_size())[dist.get_rank()]
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        how(objective, model, *batch(step, dist.get_rank()), source)
        seen.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    assert averages == list(range(STEPS)), f"gradients were averaged in steps {averages}"
    return seen


def main(folder: Path) -> None:
    """Train in every way."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for name, how, objective in [
        ("plain random", plain, RANDOM_LEVELS),
        ("plain fixed", plain, FIXED_LEVEL),
        ("chunks fixed", in_chunks, FIXED_LEVEL),
        ("chunks random", in_chunks, RANDOM_LEVELS),
        ("accumulated fixed", accumulated, FIXED_LEVEL),
    ]:
        found[name] = train(how, objective, torch.nn.parallel.DistributedDataParallel(network()))
    torch.save(found, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
