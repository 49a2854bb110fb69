"""Gradients over several processes: torch averages them once, though there are several backward passes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def in_process_group() -> bool:
    """Whether this process trains together with others, in torch's default process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


@contextmanager
def synchronised_once() -> Iterator[Callable[[], None]]:
    """Keep the gradients of DistributedDataParallel on their process, until `release()`, which this yields.

    In the block, a model that is wrapped in DistributedDataParallel adds its gradients up without averaging
    them over the processes. The passes after `release()` average as always: call it before the last of them,
    which then averages the whole sum. Every process averages once, whatever its number of passes. A model
    under `model.no_sync()` stays as it is, for accumulation over batches.
    """
    if not in_process_group():
        yield lambda: None
        return
    wrapped: Any = import_module("torch.nn.parallel").DistributedDataParallel
    held: list[Any] = []
    released = False

    def hold(module: Any, _: Any) -> None:
        # A compiled model has the one that is wrapped inside.
        for model in (module, getattr(module, "_orig_mod", None)):
            if isinstance(model, wrapped) and not released and model.require_backward_grad_sync:
                held.append(model)
                model.require_backward_grad_sync = False  # what model.no_sync() does

    def release() -> None:
        nonlocal released
        released = True
        while held:
            held.pop().require_backward_grad_sync = True

    # The loss is a function: which model it calls is seen when it calls it.
    hook = import_module("torch.nn.modules.module").register_module_forward_pre_hook(hold)
    try:
        yield release
    finally:
        hook.remove()
        release()


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process, beside others."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Join the processes that torchrun has started, for the block; yields (rank, their number), or (0, 1)."""
    if not started_by_torchrun():
        yield 0, 1
        return
    torch, group = import_module("torch"), import_module("torch.distributed")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    group.init_process_group()
    try:
        yield group.get_rank(), group.get_world_size()
    finally:
        group.destroy_process_group()


def from_first(value: T) -> T:
    """The value that the first process gives, on all of them; `value` itself where there is no other."""
    if not in_process_group():
        return value
    values = [value]
    import_module("torch.distributed").broadcast_object_list(values, src=0)
    return values[0]
