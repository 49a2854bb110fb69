"""Training on several processes of torchrun: the parts of a batch, and values that all processes share."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from phiball.backends import Array, Rng
from phiball.backends.process_group import broadcast_object, in_process_group


@dataclass(frozen=True)
class Ranks:
    """The processes that train one model together: this one is number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    @staticmethod
    def here() -> Ranks:
        """Return the ranks of torch's process group, or of a single process without one."""
        if not in_process_group():
            return Ranks()
        group = import_module("torch.distributed")
        return Ranks(group.get_rank(), group.get_world_size())

    def wrap(self, model: Any) -> Any:
        """Wrap the model so that its gradients are averaged over the processes."""
        if self.count == 1:
            return model
        return import_module("torch.nn.parallel").DistributedDataParallel(model)

    def rng(self, rng: Rng) -> Rng:
        """Return the generator of this process, which draws its own perturbations."""
        return rng if self.count == 1 else rng.keyed(f"rank {self.rank} of {self.count}")

    def part(self, batch: Array) -> tuple[Array, float]:
        """Return this process's part of a batch, and a factor for the mean loss of the part.

        With these factors the average over the processes is the mean loss of the batch. If a batch has fewer
        data points than there are processes, the remaining processes take its first one with a factor of 0.
        """
        part = batch[self.rank :: self.count]
        return (part, self.count * len(part) / len(batch)) if len(part) else (batch[:1], 0.0)

    def mean(self, loss: Array) -> float:
        """Return the average of a number over the processes."""
        if self.count == 1:
            return float(loss)
        total = loss.clone()
        import_module("torch.distributed").all_reduce(total)
        return float(total) / self.count

    def broadcast_object(self, flag: bool) -> bool:
        """Return the flag of the first process, so that all processes act alike: their clocks differ."""
        return flag if self.count == 1 else broadcast_object(flag)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        import_module("torch.distributed").all_gather_object(values, value)
        return values
