"""Training on several processes of torchrun: which part of a batch is whose, and what they agree on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from phiball.backends import Array, Rng
from phiball.backends.distributed import from_first, in_process_group


@dataclass(frozen=True)
class Ranks:
    """The processes that train one model together: this one is number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    @staticmethod
    def here() -> Ranks:
        """Return those of torch's process group, or a single one where there is none."""
        if not in_process_group():
            return Ranks()
        group = import_module("torch.distributed")
        return Ranks(group.get_rank(), group.get_world_size())

    def wrap(self, model: Any) -> Any:
        """Return the model as it is to be called: its gradients are averaged over the processes."""
        if self.count == 1:
            return model
        return import_module("torch.nn.parallel").DistributedDataParallel(model)

    def rng(self, rng: Rng) -> Rng:
        """Return the rng of this process: each draws its own perturbations."""
        return rng if self.count == 1 else rng.keyed(f"rank {self.rank} of {self.count}")

    def part(self, batch: Array) -> tuple[Array, float]:
        """Return this process's part of a batch, and the factor by which its mean loss is to be multiplied.

        The average over the processes is then the mean loss of the batch. A batch with fewer data points than
        there are processes leaves some with nothing: they take one, with a factor of 0.
        """
        own = batch[self.rank :: self.count]
        return (own, self.count * len(own) / len(batch)) if len(own) else (batch[:1], 0.0)

    def mean(self, loss: Array) -> float:
        """Return the average of a number over the processes."""
        if self.count == 1:
            return float(loss)
        total = loss.clone()
        import_module("torch.distributed").all_reduce(total)
        return float(total) / self.count

    def first_says(self, yes: bool) -> bool:
        """Return what the first process says: clocks differ."""
        return yes if self.count == 1 else from_first(yes)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        import_module("torch.distributed").all_gather_object(values, value)
        return values
