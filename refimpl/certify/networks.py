"""Lower bounds on linear functions of the outputs of a network, over all inputs of a set.

Interval bounds propagate a box through the layers. CROWN (Zhang et al., "Efficient neural network robustness
certification with general activation functions") replaces each activation by two lines that bound it, and
propagates linear functions from an output back to the input. Here every CROWN bound is combined with the
interval bound.

The bounds hold for the network as it is evaluated in the dtype of x. `error` bounds the difference between
this evaluation and exact arithmetic: a sum of n products, in any order, differs by at most about n eps/2
times the sum of their sizes. Four times this is used, to include the rounding of the bounds themselves, which
are computed in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import product
from math import inf, prod

from phiball.backends import Array, array_namespace, device, is_array_api_obj
from phiball.backends.torch_layers import Box, Layer, pixel_layers
from phiball.refimpl.certify.input_set import InputSet, products

MAX_ENTRIES = 2**20  # of the largest array of coefficients; more would not fit into the processor's cache


class NetworkBounds:
    """Bounds on every value of a network, (N,) + shape for each layer: `low`, `high` and `error`.

    Arguments:
    - `layers`: the layers of the network, from `network_layers`.
    - `inputs`: the set of inputs.
    - `eps`: the machine epsilon of the dtype in which the network is evaluated.
    - `crown`: whether to tighten the bounds on the inputs of all activations with CROWN. Otherwise, only
      those of the first activations in norms other than inf are tightened: their inputs are linear in x.
    """

    def __init__(self, layers: list[Layer], inputs: InputSet, *, eps: float, crown: bool) -> None:
        self.layers, self.inputs, self.eps = layers, inputs, eps
        self.low: list[Array] = []
        self.high: list[Array] = []
        self.error: list[Array] = []
        self.lines: dict[int, tuple[Array, ...]] = {}  # below and above each activation, from `_lines`
        linear: list[bool] = []  # whether each layer is a linear function of x
        refined: set[int] = set()
        for layer in layers:
            linear.append(layer.slope is None and all(linear[i] for i in layer.inputs))
            z = layer.inputs[0] if layer.inputs else 0
            if layer.slope is not None and z not in refined:
                refined.add(z)
                exact = inputs.ball.norm == inf and layers[z].inputs == (0,)  # a single layer
                if not exact and (crown or (linear[z] and inputs.ball.norm < inf)):
                    self._refine(z)
            if layer.slope is not None:
                self.lines[len(self.low)] = _lines(self.low[z], self.high[z], layer.slope)
            self._append(layer)

    def _append(self, layer: Layer) -> None:
        """Append the interval bounds of a layer, from those of its inputs."""
        xp = array_namespace(self.inputs.x)
        unit = 2 * self.eps * (layer.n_terms + 4 if layer.n_terms else 0)
        if not layer.inputs:
            shape = (-1, *layer.shape)
            low, high = xp.reshape(self.inputs.low, shape), xp.reshape(self.inputs.high, shape)
            error = xp.zeros_like(low)
        elif layer.linear is not None and layer.absolute is not None:
            (z,) = layer.inputs
            middle = layer.linear((self.low[z] + self.high[z]) / 2) + layer.bias
            width = layer.absolute((self.high[z] - self.low[z]) / 2)
            rounding = unit * (layer.absolute(self._size(z)) + layer.bias_size)
            low, high = middle - width - rounding, middle + width + rounding
            error = layer.absolute(self.error[z]) + rounding
        else:
            rounding = unit * sum(self._size(z) for z in layer.inputs)
            low, high = (sum(ends[z] for z in layer.inputs) for ends in (self.low, self.high))
            if layer.slope is not None:
                low, high = (xp.maximum(end, layer.slope * end) for end in (low, high))
            low, high = low - rounding, high + rounding
            error = sum(self.error[z] for z in layer.inputs) + rounding
        self.low.append(low)
        self.high.append(high)
        self.error.append(error)

    def _size(self, z: int) -> Array:
        xp = array_namespace(self.low[z])
        return xp.maximum(xp.abs(self.low[z]), xp.abs(self.high[z]))

    def _refine(self, z: int) -> None:
        """Tighten the bounds on layer z with CROWN, where they have both signs."""
        xp = array_namespace(self.low[z])
        n, shape = self.low[z].shape[0], self.layers[z].shape
        low, high, error = (xp.reshape(a[z] + 0.0, (n, -1)) for a in (self.low, self.high, self.error))
        mixed = (low < 0) & (high > 0)
        for part, units, rows in self._parts(z):
            if not xp.any(mixed[:, units]):
                continue
            # All points share the coefficients of the layers after the last activation.
            at, offset = len(part.layers) - 1, xp.zeros_like(low[0, units])
            while part.layers[at].linear is not None:
                layer = part.layers[at]
                offset = offset + xp.sum(rows * layer.bias, axis=tuple(range(1, rows.ndim)))
                at = layer.inputs[0]
                rows = layer.transpose(rows, part.layers[at].shape)
            if at == 0:  # the bounds are linear in x
                both = xp.reshape(xp.stack([rows, -rows]), (1, -1, *rows.shape[1:]))
                bound = xp.reshape(part.minimum(0, both), (n, 2, -1))
                low[:, units] = xp.maximum(low[:, units], bound[:, 0, :] + offset - error[:, units])
                high[:, units] = xp.minimum(high[:, units], error[:, units] + offset - bound[:, 1, :])
                continue
            points, which = xp.nonzero(mixed[:, units])
            size = part.chunk_size(2)
            for start in range(0, points.shape[0], size):
                i, j = points[start : start + size], which[start : start + size]
                own = xp.take(rows, j, axis=0)
                bound = part.minimum(at, xp.stack([own, -own], axis=1), i)
                k = xp.take(units, j, axis=0)
                low[i, k] = xp.maximum(low[i, k], bound[:, 0] + offset[j] - error[i, k])
                high[i, k] = xp.minimum(high[i, k], error[i, k] + offset[j] - bound[:, 1])
        self.low[z], self.high[z] = xp.reshape(low, (n, *shape)), xp.reshape(high, (n, *shape))

    def _parts(self, z: int) -> Iterator[tuple[NetworkBounds, Array, Array]]:
        """Parts of the network up to layer z, with the flat indices of its last units, and a row for each.

        If the layers are images, a part is what a pixel depends on. Otherwise, it is the whole network.
        """
        xp, shape, at = array_namespace(self.low[z]), self.layers[z].shape, device(self.low[z])
        every = xp.reshape(xp.arange(prod(shape), device=at), shape)
        images = len(shape) == 3 and pixel_layers(self.layers, z, (0, 0)) is not None
        for pixel in product(*map(range, shape[1:])) if images else [()]:
            if images:
                part = self._crop(pixel_layers(self.layers, z, pixel) or [])
            else:
                part = copy(self)
                part.layers = self.layers[: z + 1]
            units = xp.reshape(every[(..., *pixel)], (-1,))
            size, order = part.chunk_size(2), xp.arange(units.shape[0], device=at)
            for start in range(0, units.shape[0], size):
                chunk = slice(start, start + size)
                rows = xp.astype(order[chunk, None] == order, xp.float64)
                yield part, units[chunk], xp.reshape(rows, (-1, *part.layers[-1].shape))

    def _crop(self, parts: list[tuple[Layer, int, Box]]) -> NetworkBounds:
        """The inputs and lines for the layers that `pixel_layers` returns."""
        part = copy(self)
        part.layers = [layer for layer, _, _ in parts]
        part.lines = {
            k: tuple(a[(..., *box)] for a in self.lines[at])
            for k, (layer, at, box) in enumerate(parts)
            if layer.slope is not None
        }
        part.inputs = self.inputs.crop(parts[0][2], self.layers[0].shape)
        return part

    def chunk_size(self, k: int) -> int:
        """The number of points for which `minimum` may be called at a time, with k rows each."""
        return max(1, MAX_ENTRIES // (k * max(prod(layer.shape) for layer in self.layers)))

    def minimum(
        self,
        position: int,
        rows: Array,
        index: Array | None = None,
        *,
        relax: bool = True,
        exact: bool = False,
    ) -> Array:
        """A lower bound on rows.v over the set of inputs, for the exact value v of a layer.

        Arguments:
        - `position`: the layer. `rows` (n, k) + its shape: coefficients for n points; n = 1 serves all points
          if no activation precedes the layer.
        - `index` (n,): the points; all by default.
        - `relax`: True bounds activations by lines (CROWN), False by the interval of their values.
        - `exact`: as in `InputSet.minimum`.

        Returns shape (N or n, k).
        """
        xp = array_namespace(rows)

        def take(a: Array) -> Array:
            return a if index is None else xp.take(a, index, axis=0)

        def dot(rows: Array, v: Array) -> Array:
            return products(xp.reshape(rows, (*rows.shape[:2], -1)), xp.reshape(v, (v.shape[0], -1)))

        coefficients = {position: rows}
        total: Array = 0.0
        for at in reversed(range(position + 1)):
            if at not in coefficients:
                continue
            rows, layer = coefficients.pop(at), self.layers[at]
            n, k = rows.shape[:2]
            parts = [(z, rows) for z in layer.inputs]
            if not layer.inputs:
                total = total + self.inputs.minimum(xp.reshape(rows, (n, k, -1)), index, exact=exact)
            elif layer.slope is not None:
                down = xp.clip(rows, max=0.0)
                if relax:
                    (z,) = layer.inputs
                    below, above, offset = map(take, self.lines[at])
                    total = total + dot(down, offset)
                    parts = [(z, rows * xp.where(rows > 0, below[:, None, ...], above[:, None, ...]))]
                else:
                    total = total + dot(rows - down, take(self.low[at])) + dot(down, take(self.high[at]))
                    parts = []
            elif layer.linear is not None:
                (z,) = layer.inputs
                if is_array_api_obj(layer.bias):
                    total = total + dot(rows, xp.broadcast_to(layer.bias, (1, *layer.shape)))
                flat = layer.transpose(xp.reshape(rows, (n * k, *layer.shape)), self.layers[z].shape)
                parts = [(z, xp.reshape(flat, (n, k, *self.layers[z].shape)))]
            for z, part in parts:
                coefficients[z] = coefficients[z] + part if z in coefficients else part
        return total


def _lines(low: Array, high: Array, slope: float) -> tuple[Array, Array, Array]:
    """(a, b, c) with a z <= max(z, slope z) <= b z + c for low <= z <= high."""
    xp = array_namespace(low)
    positive, negative = low >= 0, high <= 0
    mixed = ~(positive | negative)
    ones = xp.ones_like(low)
    width = xp.where(mixed, high - low, ones)
    above = xp.where(positive, ones, xp.where(negative, slope * ones, (high - slope * low) / width))
    offset = xp.where(mixed, (slope - 1) * low * (high / width), 0 * ones)
    # Of the lines of slope 1 and `slope`, take the one with the smaller area between it and the activation.
    below = xp.where(positive | (mixed & (high > -low)), ones, slope * ones)
    return below, above, offset
