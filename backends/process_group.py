"""Training in several processes: torch's process group, and when its processes average gradients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def in_process_group() -> bool:
    """Whether torch's default process group is initialized."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


@contextmanager
def sync_gradients_once() -> Iterator[Callable[[], None]]:
    """Average gradients over processes once for several backward passes. Yields a function `release`.

    In the block, models wrapped in DistributedDataParallel accumulate gradients locally. Call `release()`
    before the last backward pass: this pass then averages the accumulated sum over the processes. A model
    inside `model.no_sync()` stays unsynchronized.
    """
    if not in_process_group():
        yield lambda: None
        return
    wrapped: Any = import_module("torch.nn.parallel").DistributedDataParallel
    held: list[Any] = []
    released = False

    def hold(module: Any, _: Any) -> None:
        # torch.compile keeps the original model in _orig_mod.
        for model in (module, getattr(module, "_orig_mod", None)):
            if isinstance(model, wrapped) and not released and model.require_backward_grad_sync:
                held.append(model)
                model.require_backward_grad_sync = False  # as model.no_sync() does

    def release() -> None:
        nonlocal released
        released = True
        while held:
            held.pop().require_backward_grad_sync = True

    # A loss may call any model, which is not known here: so the hook runs before every module.
    hook = import_module("torch.nn.modules.module").register_module_forward_pre_hook(hold)
    try:
        yield release
    finally:
        hook.remove()
        release()


def started_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Join torchrun's process group for the block, and yield (rank, world size); without torchrun, (0, 1)."""
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


def broadcast_object(value: T) -> T:
    """Return the `value` of process 0 on every process; `value` itself without a process group."""
    if not in_process_group():
        return value
    values = [value]
    import_module("torch.distributed").broadcast_object_list(values, src=0)
    return values[0]
