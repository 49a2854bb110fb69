"""Single arguments of every kind: libraries, dtypes, shapes, layouts, numbers at the ends of the range."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.fuzz.layouts import LAYOUTS

SHAPES = [(1,), (2,), (3,), (5,), (17,), (2, 3), (3, 3), (1, 4), (2, 2, 3), (0,), (), (0, 3), (3, 0)]
DTYPES = (
    ["float64"] * 6
    + ["float32"] * 4
    + ["float16", "bfloat16", "int64", "int8", "bool", "complex128", "object"]
)
KINDS = ["numpy"] * 6 + ["torch"] * 4 + ["strict", "list", "pandas", "meta", "sparse", "masked", "scalar"]
ENDS = [0.0, -0.0, 1.0, 5e-324, 1e-310, 1e-45, 1e308, -1e308, 1.7e308, 3e38, 65504.0]
NUMBERS = st.one_of(st.floats(-10, 10, width=16), st.floats(-10, 10, width=16), st.sampled_from(ENDS))
ANY = st.one_of(NUMBERS, st.floats(allow_nan=True, allow_infinity=True))
ETAS = st.one_of(
    st.floats(1e-6, 1e6),
    st.sampled_from([1.0, 0.5, 3, 1e-3, 1e6, 1e-300, 1e300, 2.3e-308, 1.7e308]),
    st.sampled_from([0, -1.0, 5e-324, float("nan"), float("inf"), "1", None, True, 1j, [1.0]]),
)


@dataclass(frozen=True)
class Argument:
    """An array that `make` makes; its repr is Python."""

    kind: str
    dtype: str
    layout: str
    values: Any

    def numbers(self) -> Any:
        """What the array holds, as one of NumPy."""
        with np.errstate(all="ignore"):
            x = np.array(self.values, dtype=float)
            dtype = "float32" if self.dtype == "bfloat16" else self.dtype  # which NumPy does not have
            x = np.asarray(x > 0 if dtype == "bool" else x.astype(dtype))
        return LAYOUTS[self.layout](x) if x.ndim and x.size else x

    def make(self) -> Any:
        """The array, or another object of that kind."""
        x = self.numbers()
        if self.kind in ("torch", "meta", "sparse") and x.dtype != object:
            import torch

            if self.layout in ("Fortran", "strided"):  # torch has these strides too, and that of zero
                t = torch.from_numpy(x)
            elif self.layout == "zero strides" and x.ndim and x.size:
                t = torch.from_numpy(np.array(x.reshape(-1, x.shape[-1])[0])).expand(x.shape)
            else:
                t = torch.from_numpy(np.array(x))
            t = t.to(torch.bfloat16) if self.dtype == "bfloat16" else t
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, that sparse tensors are in beta
                return {"torch": lambda: t, "meta": lambda: t.to("meta"), "sparse": t.to_sparse}[self.kind]()
        if self.kind == "list":
            return x.tolist()
        if self.kind == "masked":
            return np.ma.masked_array(x)
        if self.kind == "scalar":
            return x.reshape(-1)[0] if x.size else 0.5
        if self.kind == "pandas":
            return _pandas(x)
        if self.kind == "strict" and x.dtype.name in ("float64", "float32", "int64"):
            import array_api_strict

            return array_api_strict.asarray(x)
        return x


def _pandas(x: Any) -> Any:
    try:
        import pandas
    except ImportError:
        return x
    return pandas.Series(x) if x.ndim == 1 else pandas.DataFrame(x) if x.ndim == 2 else x


@st.composite
def losses(draw: Any) -> Argument:
    """An argument for losses."""
    shape = draw(st.sampled_from(SHAPES))
    kind, dtype = draw(st.sampled_from(KINDS)), draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(list(LAYOUTS)))
    n = int(np.prod(shape))
    values = draw(st.lists(draw(st.sampled_from([NUMBERS, NUMBERS, ANY])), min_size=n, max_size=n))
    if dtype in ("int64", "int8", "object"):
        values = [v if abs(v) < 100 else 1.0 for v in values]
    return Argument(kind, dtype, layout, np.array(values, dtype=float).reshape(shape).tolist())


@st.composite
def like(draw: Any, f: Argument, rows: bool = False) -> Argument | None:
    """A law (or, for `rows`, an array of etas) that mostly goes with `f`, or None."""
    if draw(st.integers(0, 2)) == 0:
        return None
    if draw(st.integers(0, 5)) == 0:
        return draw(losses())
    shape = np.shape(np.array(f.values, dtype=float))
    shape = shape[:-1] if rows else shape[draw(st.integers(0, max(0, len(shape) - 1))) :]
    n = int(np.prod(shape))
    x = np.array(draw(st.lists(st.floats(0, 1, width=16), min_size=n, max_size=n)), dtype=float).reshape(
        shape
    )
    if rows:
        x = x + 1e-3
    elif shape and n:
        x = (x + (x.sum(axis=-1, keepdims=True) == 0)) / np.maximum(x.sum(axis=-1, keepdims=True), 1e-300)
        x = np.where(np.isfinite(x), x, 0.0)
        whole = x.sum(axis=-1, keepdims=True)
        x = x / np.where(whole > 0, whole, 1.0)
    return Argument(f.kind, f.dtype, draw(st.sampled_from(list(LAYOUTS))), x.tolist())
