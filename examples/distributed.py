"""DistributedDataParallel: two processes, each with a source of random numbers of its own.

python examples/distributed.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from phiball import RobustLoss, rng

WORLD = 2


def work(rank, file):
    """Train on every second batch; the gradients are averaged by the wrapper."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)  # the same weights and the same order on every rank
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    robust = RobustLoss(0.5, seed=rng(0).spawn(WORLD)[rank])
    for _ in range(10):
        for batch in torch.randperm(1197)[:1152].split(64):
            b = batch[rank::WORLD]
            yb = y[b]
            loss = robust(lambda z, i: cross_entropy(model(z), yb[i], reduction="none"), x[b])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    error = float((layers(x[1197:]).argmax(-1) != y[1197:]).float().mean())
    weights = [torch.zeros(128, 64) for _ in range(WORLD)]
    dist.all_gather(weights, layers[0].weight.detach())
    if rank == 0:
        print(f"clean error {100 * error:.0f} %, equal weights: {torch.equal(*weights)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (os.path.join(folder, "meeting"),), nprocs=WORLD)
