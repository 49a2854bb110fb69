"""One rank of training under torchrun; with `die`, the second rank is killed in its third step.

    python -m torch.distributed.run --standalone --nproc-per-node 2 THIS FOLDER [die]

It writes the curve and the final weights of each run to FOLDER/rank{r}.json.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from phiball.experiments.training.loop import Schedule
from tests.support.stopped_training import Training, weights

PLAN = Schedule(epochs=2, batch=7, rate=0.01)  # 22 images: the last batch of an epoch has one image


def main(folder: Path, die: bool) -> None:
    """Train without random points, then with random points that each rank draws itself."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))

    def on_step(done: int, total: int, loss: float) -> None:
        if die and done == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    found = {}
    for name in ("plain", "RT-MLMC random"):
        training = Training(name, folder / f"{name}.pt", PLAN).run(on_step)
        found[name] = [training.curve, weights(training.model)]
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["die"])
