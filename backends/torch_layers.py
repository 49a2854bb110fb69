"""The layers of a torch network: affine maps, activations and sums, for bounds on its outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, TypeAlias

from phiball.backends.arrays import Array

Box: TypeAlias = tuple[slice, ...]  # rows and columns of an image

SUPPORTED = (
    "Linear, Conv2d, ReLU, LeakyReLU, AvgPool2d, AdaptiveAvgPool2d, BatchNorm1d, BatchNorm2d, Flatten, "
    "Dropout, Identity, Sequential and sums"
)


@dataclass(frozen=True)
class Layer:
    """One layer, in double precision; it maps batches (k,) + input shape to batches (k,) + `shape`.

    - `inputs`: the positions of the layers that it reads; () for the input of the network.
    - `shape`: the shape of one output.
    - `slope`: the slope of an activation max(z, slope z); None for other layers.
    - `linear`, `absolute`: for an affine layer W z + b, the functions z -> W z and z -> |W| z. A layer with
      inputs, but without `slope` and `linear`, adds its inputs.
    - `bias`: b. `bias_size`: the sum of the sizes of its terms.
    - `n_terms`: a bound on the number of terms of an entry of W z + b; 0 if there is no rounding.
    - `adjoint`: the function (rows, input shape) -> W' rows; derived from `linear` by default.
    - `window`: for a layer of images whose pixels read a window of pixels: kernel size, stride and padding,
      each for both axes. `unpadded` has `linear` and `adjoint` without padding.
    """

    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    slope: float | None = None
    linear: Callable[[Array], Array] | None = None
    absolute: Callable[[Array], Array] | None = None
    bias: Any = 0.0
    bias_size: Any = 0.0
    n_terms: int = 0
    adjoint: Callable[[Array, tuple[int, ...]], Array] | None = None
    window: tuple[Any, ...] | None = None
    unpadded: tuple[Any, Any] = (None, None)

    def transpose(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """W' applied to rows (k,) + `shape` of the output, for inputs of the given shape."""
        if self.adjoint is not None:
            return self.adjoint(rows, shape)
        torch = import_module("torch")
        return torch.func.vjp(self.linear, rows.new_zeros((rows.shape[0], *shape)))[1](rows)[0]


def pixel_layers(layers: list[Layer], z: int, pixel: tuple[int, ...]) -> list[tuple[Layer, int, Box]] | None:
    """The part of the network that a pixel of layer z depends on, for the transposes of its layers.

    Returns a list of layers, each with the position of the original layer and the rows and columns of it that
    the part has; None if a layer up to z is not made of images.
    """
    boxes: dict[int, Box] = {z: tuple(slice(k, k + 1) for k in pixel)}
    for at in reversed(range(z + 1)):
        layer = layers[at]
        if at not in boxes:
            continue
        if len(layer.shape) != 3 or (layer.linear is not None and layer.window is None):
            return None
        for i in layer.inputs:
            need = [
                slice(max(s.start, 0), min(s.stop, n))
                for s, n in zip(_reads(layer, boxes[at]), layers[i].shape[1:], strict=True)
            ]
            old = boxes.get(i, need)
            boxes[i] = tuple(
                slice(min(s.start, t.start), max(s.stop, t.stop)) for s, t in zip(old, need, strict=True)
            )
    parts: list[tuple[Layer, int, Box]] = []
    position: dict[int, int] = {}
    for at in sorted(boxes):
        layer, box, inputs = layers[at], boxes[at], []
        for i in layer.inputs:
            inputs.append(position[i])
            reads = _reads(layer, box)
            if reads != boxes[i]:  # add a layer that crops its input, or pads it with zeros
                parts.append((_crop(position[i], layers[i].shape[0], boxes[i], reads), i, reads))
                inputs[-1] = len(parts) - 1
        shape = (layer.shape[0], *(s.stop - s.start for s in box))
        linear, adjoint = layer.unpadded
        parts.append(
            (replace(layer, inputs=tuple(inputs), shape=shape, linear=linear, adjoint=adjoint), at, box)
        )
        position[at] = len(parts) - 1
    return parts


def _reads(layer: Layer, box: Box) -> Box:
    """The rows and columns that a box of the output reads, including padding."""
    if layer.window is None:
        return box
    return tuple(
        slice(s.start * stride - pad, (s.stop - 1) * stride - pad + kernel)
        for s, kernel, stride, pad in zip(box, *layer.window, strict=True)
    )


def _crop(position: int, channels: int, old: Box, new: Box) -> Layer:
    """A layer that crops the box `old` to `new`, with zeros outside `old`."""
    pad = import_module("torch").nn.functional.pad
    ends = [
        e for s, t in zip(old[::-1], new[::-1], strict=True) for e in (s.start - t.start, t.stop - s.stop)
    ]
    shape = (channels, *(s.stop - s.start for s in new))
    return Layer(
        (position,),
        shape,
        linear=lambda z: pad(z, ends),
        adjoint=lambda rows, _: pad(rows, [-e for e in ends]),
    )


def network_layers(network: Any, x: Array) -> list[Layer]:
    """The layers of a network for inputs x (N,) + event, each after those that it reads.

    The modules of the network are found with torch.fx. Raises NotImplementedError for a layer or an operation
    that is not supported, and ValueError for a network in training mode.

    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()
    >>> [layer.shape for layer in network_layers(network, torch.zeros(1, 3))]
    [(3,), (2,), (2,)]
    """
    torch = import_module("torch")
    for name, module in network.named_modules():
        if module.training:
            raise ValueError(f"layer {name or 'network'!r} is in training mode; call network.eval() first")
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotImplementedError(f"layer {name or 'network'!r} has a forward hook; remove it first")
    for name, value in network.state_dict().items():
        if value.is_floating_point() and (value.dtype != x.dtype or value.device != x.device):
            raise TypeError(
                f"{name} is {value.dtype} on {value.device} and x {x.dtype} on {x.device}; expected the same"
            )
    # In a Sequential, a network that is itself a single layer is traced like any other.
    try:
        traced = torch.fx.symbolic_trace(torch.nn.Sequential(network).eval())
    except (torch.fx.proxy.TraceError, TypeError) as error:
        raise NotImplementedError(f"torch.fx cannot trace the network: {error}") from error
    modules = dict(traced.named_modules())
    layers: list[Layer] = []
    position: dict[Any, int] = {}  # of the layer that computes the value of each node
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            if layers:
                raise NotImplementedError("the network has several inputs; expected one")
            layers.append(Layer((), tuple(x.shape[1:])))
        elif node.op == "output":
            if node.args[0] not in position or position[node.args[0]] != len(layers) - 1:
                raise NotImplementedError("the network returns more than its last layer; expected one tensor")
            return layers
        else:
            module = modules[node.target] if node.op == "call_module" else _as_module(node)
            name = str(node.target).removeprefix("0.")
            inputs = tuple(position[arg] for arg in node.args if arg in position)
            if module is None or not inputs:
                raise NotImplementedError(f"operation {name!r} is not supported; expected layers {SUPPORTED}")
            _check_in_place(node, module, modules)
            layer = _layer(module, name, inputs, layers, x)
            if layer is None:
                position[node] = inputs[0]
                continue
            layers.append(layer)
        position[node] = len(layers) - 1
    raise AssertionError("a traced graph ends with its output")


def _as_module(node: Any) -> Any:
    """A module that computes the same as a call of a function or method; "sum" for +; None if unknown."""
    torch = import_module("torch")
    if node.target in (operator.add, operator.iadd, torch.add, "add"):
        return "sum" if len(node.all_input_nodes) == len(set(node.args)) and not node.kwargs else None
    if node.target in (torch.relu, torch.nn.functional.relu, "relu"):
        return torch.nn.ReLU(**node.kwargs)
    if node.target in (torch.flatten, "flatten"):
        given = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))
        return torch.nn.Flatten(**{"start_dim": 0, **given, **node.kwargs})
    return None


def _check_in_place(node: Any, module: Any, modules: dict[str, Any]) -> None:
    """Raise if an operation changes its input in place, and another one reads that input."""
    nn = import_module("torch").nn
    if not getattr(module, "inplace", False) and node.target is not operator.iadd:
        return
    changed, shares_memory = node, True
    while shares_memory and changed.args:
        changed = changed.args[0]
        if len(changed.users) > 1:
            raise NotImplementedError(
                f"operation {node.target!s} changes its input in place, which another layer reads; "
                "expected inplace=False"
            )
        source = modules.get(changed.target) if changed.op == "call_module" else _as_module(changed)
        shares_memory = type(source) in (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)


def _layer(module: Any, name: str, inputs: tuple[int, ...], layers: list[Layer], x: Array) -> Layer | None:
    """The layer of a module; None for a module that returns its input."""
    torch = import_module("torch")
    nn, shape = torch.nn, layers[inputs[0]].shape
    kind = type(module)  # not isinstance: a subclass may compute something else
    if module == "sum":
        if any(layers[i].shape != shape for i in inputs):
            raise NotImplementedError(f"sum {name!r} has terms of different shapes")
        return Layer(inputs, shape, n_terms=len(inputs))
    if kind in (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d):
        return None
    if kind is nn.ReLU or (kind is nn.LeakyReLU and 0 <= module.negative_slope <= 1):
        return Layer(inputs, shape, slope=float(getattr(module, "negative_slope", 0.0)), n_terms=1)
    linear = absolute = module
    bias = size = 0.0
    n_terms, adjoint = 0, None
    window: tuple[Any, ...] | None = None
    unpadded: tuple[Any, Any] = (None, None)
    if kind is nn.Linear:
        weight = _double(module.weight)
        linear, absolute = (lambda z, w=w: nn.functional.linear(z, w) for w in (weight, weight.abs()))
        n_terms = module.in_features
    elif kind is nn.Conv2d and module.padding_mode == "zeros":
        weight = _double(module.weight)
        stride, dilation = module.stride, module.dilation

        def convolution(z: Array, w: Array, padding: Any) -> Array:
            return nn.functional.conv2d(z, w, None, stride, padding, dilation, module.groups)

        def transposed(rows: Array, size: tuple[int, ...], padding: Any) -> Array:
            size = (rows.shape[0], *size)
            return nn.grad.conv2d_input(size, weight, rows, stride, padding, dilation, module.groups)

        linear, absolute = (partial(convolution, w=w, padding=module.padding) for w in (weight, weight.abs()))
        if not isinstance(module.padding, str):
            adjoint = partial(transposed, padding=module.padding)
            kernel = tuple(d * (k - 1) + 1 for d, k in zip(dilation, module.kernel_size, strict=True))
            window = (kernel, stride, module.padding)
            unpadded = partial(convolution, w=weight, padding=0), partial(transposed, padding=0)
        n_terms = weight[0].numel()
    elif kind in (nn.BatchNorm1d, nn.BatchNorm2d) and module.running_mean is not None:
        column = (-1, *[1] * (len(shape) - 1))
        scale = (_double(module.running_var) + module.eps).rsqrt()
        scale = scale if module.weight is None else scale * _double(module.weight)
        offset = 0 * scale if module.bias is None else _double(module.bias)
        shift = scale * _double(module.running_mean)
        bias, size = (offset - shift).reshape(column), (offset.abs() + shift.abs()).reshape(column)
        scale = scale.reshape(column)
        linear, absolute = (lambda z, s=s: s * z for s in (scale, scale.abs()))
        window, unpadded = ((1, 1), (1, 1), (0, 0)), (linear, None)
        n_terms = 4
    elif kind in (nn.AvgPool2d, nn.AdaptiveAvgPool2d) and getattr(module, "divisor_override", None) is None:
        n_terms = prod(shape[1:])
        if kind is nn.AvgPool2d and module.padding in (0, (0, 0)) and not module.ceil_mode:
            sizes = (module.kernel_size, module.stride, 0)
            window = tuple(size if isinstance(size, tuple) else (size, size) for size in sizes)
            unpadded = linear, None
    elif not (kind is nn.Flatten and module.start_dim == 1):
        raise NotImplementedError(f"layer {name!r} is {module}, which is not supported; expected {SUPPORTED}")
    if kind in (nn.Linear, nn.Conv2d) and module.bias is not None:
        bias = _double(module.bias).reshape((-1, 1, 1) if kind is nn.Conv2d else (-1,))
        size = bias.abs()
    out = tuple(linear(x.new_zeros((1, *shape), dtype=torch.float64)).shape[1:])
    return Layer(inputs, out, None, linear, absolute, bias, size, n_terms, adjoint, window, unpadded)


def _double(tensor: Array) -> Array:
    return tensor.double()
