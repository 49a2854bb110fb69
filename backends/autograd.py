"""Automatic differentiation: gradients of losses with respect to input points, and of solvers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from phiball.backends.arrays import (
    Array,
    array_namespace,
    is_abstract,
    is_array_api_obj,
    is_jax,
    is_recording,
    is_torch,
    library,
    loaded_torch,
)


def input_gradient(
    loss: Callable[[Array, Array], Array], x: Array, i: Array, *, create_graph: bool = False
) -> Array:
    """Compute the gradient of each loss with respect to its point, with torch or JAX.

    Arguments:
    - `loss`: a function of x (k, ...) and i (k,) that returns losses (k,), where loss j depends on x[j]
      alone. (Batch normalisation in training mode mixes the points: the result is the gradient of the sum.)
    - `x` (k, ...): a floating-point array of torch or JAX, which is not modified.
    - `i` (k,): the index of the data point that each x[j] was sampled around, passed on to `loss`.
    - `create_graph`: whether torch can differentiate the gradients again (JAX always can).

    Returns an array of the shape of `x`, after one forward and one backward pass, also under torch.no_grad()
    and torch.inference_mode(). The .grad of a model's parameters does not change.

    With torch, raises ValueError if the losses do not depend on x: with a gradient of zero, an attack would
    not move, and any model would look robust. Raises TypeError unless x is an array of torch or JAX.

    >>> import torch
    >>> from phiball.backends import input_gradient
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> input_gradient(lambda x, i: torch.sum(x**2, -1), x, torch.arange(2)).tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """
    return losses_and_gradient(loss, x, i, create_graph=create_graph)[1]


def losses_and_gradient(
    loss: Callable[[Array, Array], Array], x: Array, i: Array, *, create_graph: bool = False
) -> tuple[Array, Array]:
    """Compute the losses (k,) and their `input_gradient` in the same pass, with the same arguments.

    >>> import torch
    >>> losses, g = losses_and_gradient(lambda x, i: torch.sum(x**2, -1), torch.ones(1, 2), torch.arange(1))
    >>> losses.tolist(), g.tolist()
    ([2.0], [[2.0, 2.0]])
    """
    if not differentiates(x):
        kind = f"a {library(x)} array" if is_array_api_obj(x) else f"of type {type(x).__name__}"
        raise TypeError(f"x is {kind}, without automatic differentiation; expected one of torch or JAX")
    if not array_namespace(x).isdtype(x.dtype, "real floating"):
        raise TypeError(f"x has dtype {x.dtype}; expected floating-point numbers")
    if x.ndim == 0:
        raise ValueError("x has shape (); expected at least one axis, the first of which counts the points")
    if is_jax(x):
        losses, pullback = import_module("jax").vjp(lambda point: loss(point, i), x)
        _check_losses(losses, x)
        return losses, pullback(array_namespace(losses).ones_like(losses))[0]
    torch: Any = import_module("torch")
    with torch.inference_mode(False), torch.enable_grad():
        # With create_graph, the result stays connected to the operations that computed x.
        point = x if create_graph and x.requires_grad else _leaf(x)
        losses = loss(point, i)
        _check_losses(losses, x)
        gradient = None
        if losses.requires_grad:
            (gradient,) = torch.autograd.grad(
                losses.sum(), point, create_graph=create_graph, allow_unused=True
            )
    if gradient is None:
        raise ValueError(
            "loss(x, i) does not depend on x; expected losses computed from x by torch operations, "
            "without detach() or no_grad() between them"
        )
    return losses, gradient


def _check_losses(losses: Any, x: Array) -> None:
    """Raise ValueError unless `losses` is an array of the library of x with one loss for each point."""
    array = library(losses) == library(x)
    if not array or tuple(losses.shape) != tuple(x.shape[:1]):
        got = f"shape {tuple(losses.shape)}" if array else f"type {type(losses).__name__}"
        raise ValueError(
            f"loss(x, i) has {got}; expected an array of shape {tuple(x.shape[:1])}, one loss for each x "
            "(reduction='none' in torch's losses)"
        )


def _leaf(x: Array) -> Array:
    """A leaf tensor with the values of x that requires a gradient; it shares memory with x if it can."""
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def differentiates(x: Array) -> bool:
    """Whether the library of `x` has automatic differentiation.

    >>> import numpy as np
    >>> differentiates(np.zeros(3))
    False
    """
    return is_torch(x) or is_jax(x)


def tracks_derivatives(*values: Any) -> bool:
    """Whether a result computed from `values` must carry derivatives, or is traced by a compiler.

    True if one of the values is
    - a torch tensor that requires a gradient or has a forward-mode tangent;
    - any torch tensor, inside torch.func, torch.compile or make_fx;
    - a tracer of JAX, as inside jax.jit.

    Raises NotImplementedError inside torch.jit.trace, which would record the result as a constant.

    >>> import torch
    >>> tracks_derivatives(1.0, torch.ones(2)), tracks_derivatives(torch.ones(2, requires_grad=True))
    (False, True)
    """
    if any(map(is_abstract, values)):
        return True
    torch = loaded_torch()
    if torch is None:
        return False
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    if not tensors:
        return False
    if is_recording():
        return True
    if torch.jit.is_tracing():
        raise NotImplementedError("torch.jit.trace is not supported; use torch.compile or torch.export")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    return any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def is_traced(x: Any) -> bool:
    """Whether the values of `x` cannot be read, as inside torch.func, torch.compile or jax.jit.

    >>> import torch
    >>> is_traced(torch.ones(2)), torch.func.vmap(lambda x: x + is_traced(x))(torch.zeros(2)).tolist()
    (False, [1.0, 1.0])
    """
    if is_abstract(x):
        return True
    torch = loaded_torch()
    if torch is None or not isinstance(x, torch.Tensor):
        return False
    plain = type(x) in (torch.Tensor, torch.nn.Parameter)
    return not plain or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def differentiable_solve(
    kind: Any, parameters: tuple[Any, ...], losses: Array, eta: float | Array, p: Array | None
) -> tuple[Array, ...]:
    """Solve an inner problem by any code, with derivatives given by a rule.

    Arguments:
    - `kind`, `parameters`: kind(*parameters) is the rule, an object with the methods of
      `phiball.backends.implicit_differentiation.Rule`.
    - `losses` (..., m), `p` (..., m) or None: arrays of torch or JAX that broadcast.
    - `eta`: the price or, for the rule of a budget, the budget; a number or an array (...).

    Returns the tuple (value, mu, weights, gap, ...) of the rule's `solve`. All entries except the gap carry
    derivatives: backward and forward ones in torch, torch.func and JAX, backward ones in torch.compile.

    >>> import torch
    >>> class Mean:  # the value is the mean; mu, weights and gap are not used
    ...     def validate(self, f, eta, p):
    ...         pass
    ...     def solve(self, f, eta, p):
    ...         return f.mean(-1), f.new_zeros(f.shape[:-1]), torch.zeros_like(f), f.new_zeros(f.shape[:-1])
    ...     def vjp(self, inputs, outputs, cotangents, wanted):
    ...         return (cotangents[0][..., None] / inputs[0].shape[-1]).expand(inputs[0].shape), None, None
    >>> f = torch.ones(4, requires_grad=True)
    >>> differentiable_solve(Mean, (), f, 1.0, None)[0].backward()
    >>> f.grad.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    if is_jax(losses):
        from phiball.backends import jax_solver  # imports JAX, which is optional

        return jax_solver.solve_by_rule(kind, parameters, losses, eta, p)
    from phiball.backends import implicit_differentiation  # imports torch, which is optional

    return implicit_differentiation.solve_by_rule(kind, parameters, losses, eta, p)


def weighted_sum(weights: Array, losses: Array) -> Array:
    """sum_i weights_i losses_i for two arrays of shape (m,), as one operation in torch.

    >>> import numpy as np
    >>> float(weighted_sum(np.array([0.5, 2.0]), np.array([1.0, 3.0])))
    6.5
    """
    if is_torch(losses):
        return losses.dot(weights)
    return array_namespace(losses).sum(weights * losses)


def backward(scalar: Array) -> None:
    """Call `scalar.backward()`.

    Raises TypeError unless `scalar` is a torch tensor, and ValueError if it does not require a gradient.

    >>> import torch
    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> backward(theta**2)
    >>> float(theta.grad)
    6.0
    """
    if not is_torch(scalar):
        raise TypeError(
            f"the losses are a {library(scalar)} array, which has no backward(); expected torch tensors"
        )
    if not scalar.requires_grad:
        raise ValueError(
            "the losses do not depend on anything that requires a gradient; expected a model with trainable "
            "parameters, called without torch.no_grad()"
        )
    scalar.backward()


def without_gradient() -> AbstractContextManager[Any]:
    """A context in which torch records no gradient; empty if torch is not imported.

    >>> import torch
    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> with without_gradient():
    ...     (theta**2).requires_grad
    False
    """
    torch = loaded_torch()
    return nullcontext() if torch is None else torch.no_grad()
