"""A look at a model that leaves no trace in its mode and buffers, in random numbers or in graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from phiball.backends.arrays import Array, is_torch


@contextmanager
def undisturbed(x: Array) -> Iterator[None]:
    """A context in which torch modules may be called on points like `x` without a trace.

    Modules run in evaluation mode, so that dropout and batch statistics do not mix the points, and get their
    mode and their buffers back at the end. No gradient is recorded, and torch's random numbers go on as if
    nothing had been drawn. Hooks of modules are called. A compiled module raises RuntimeError, because
    another mode would have it compiled again. For arrays of other libraries nothing is done.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    >>> with undisturbed(torch.ones(3, 2)):
    ...     y = model(torch.ones(3, 2))
    >>> model.training, int(model[0].num_batches_tracked), y.requires_grad
    (True, 0, False)
    """
    if not is_torch(x):
        yield
        return
    torch: Any = sys.modules["torch"]
    compiled = getattr(getattr(torch, "_dynamo", None), "OptimizedModule", ())
    seen: dict[int, tuple[Any, bool, dict[str, Any]]] = {}

    def enter(module: Any, _: Any) -> None:
        if isinstance(module, (compiled, torch.jit.ScriptModule)) or torch.compiler.is_compiling():
            raise RuntimeError("a compiled module cannot be called in another mode without a trace")
        if id(module) not in seen:
            buffers = {name: b.clone() for name, b in module._buffers.items() if b is not None}
            seen[id(module)] = module, module.training, buffers
        module.training = False

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        devices = [x.device.index] if x.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        handle = torch.nn.modules.module.register_module_forward_pre_hook(enter)
        try:
            yield
        finally:
            handle.remove()
            for module, training, buffers in seen.values():
                module.training = training
                for name, kept in buffers.items():
                    if not torch.equal(module._buffers[name], kept):
                        module._buffers[name].copy_(kept)
