"""DistributedDataParallel under torchrun, with a checkpoint: the same command resumes training.

torchrun --nproc-per-node 2 examples/data_parallel.py [checkpoint.pt]
python examples/data_parallel.py    # in one process, with other random perturbations
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

from phiball import RobustLoss, rng

EPOCHS = 10
if "RANK" not in os.environ:  # started without torchrun
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # set it to a network interface on several machines
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
torch.manual_seed(0)  # the same weights on every rank
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(layers)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
robust = RobustLoss(0.5, clip=(0, 1), rng=rng(0).spawn(world)[rank])  # different perturbations on each rank

file, first = Path(sys.argv[1]) if len(sys.argv) > 1 else None, 0
if file is not None and file.exists():
    state = torch.load(file, weights_only=True)
    if len(state["robust"]) != world:
        raise SystemExit(
            f"{file} was written by {len(state['robust'])} processes, not {world}: use as many processes"
        )
    layers.load_state_dict(state["layers"])
    optimizer.load_state_dict(state["optimizer"])
    robust.load_state_dict(state["robust"][rank])
    first = state["epoch"]
for epoch in range(first, EPOCHS):
    order = torch.randperm(1197, generator=torch.Generator().manual_seed(epoch))  # the same on every rank
    for batch in order[:1152].split(64):
        b = batch[rank::world]
        loss = robust(model, x[b], y[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if file is not None:
        states = [None] * world  # the random state of each rank
        dist.all_gather_object(states, robust.state_dict())
        if rank == 0:  # write a new file and rename it: if the run is killed, the old file stays complete
            state = {"layers": layers.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "robust": states, "epoch": epoch + 1}, f"{file}.new")
            Path(f"{file}.new").replace(file)

error = float((layers(x[1197:]).argmax(-1) != y[1197:]).float().mean())
weights = [torch.zeros(128, 64) for _ in range(world)]
dist.all_gather(weights, layers[0].weight.detach())
if rank == 0:
    equal, total = all(torch.equal(weights[0], other) for other in weights), float(weights[0].sum())
    print(f"{world} processes: clean error {100 * error:.0f} %, equal weights: {equal}, sum {total:.6f}")
dist.destroy_process_group()
