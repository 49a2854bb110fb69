"""Fixtures that run a test on each backend and dtype."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from phiball.backends import BACKENDS, Array, backend, device, library, to_numpy

PLACES = (*BACKENDS, "torch:cuda")
"""Where tests run: a backend, or a backend and a device."""
DEVICES = ("cupy", "torch:cuda")
"""The places that need a GPU."""
BOTH = ("float64", "float32")
DTYPES: dict[str, dict[str, tuple[str, ...]]] = {
    # Kernels are tested in both precisions, as they are compiled for each; torch tests float32.
    "arrays": {"numba": BOTH, "torch": ("float32",), **dict.fromkeys(DEVICES, BOTH)},
    "doubles": {},
}
"""The dtypes to test, by fixture and place; a place that is not listed has float64 only."""
FAST_PLACES = ("numba",)


@dataclass(frozen=True)
class Arrays:
    """Converts to and from arrays of one backend in one precision."""

    backend: str
    xp: Any
    dtype: Any
    eps: float
    device: Any = None

    @property
    def at(self) -> dict[str, Any]:
        """Keyword arguments for the device on which the tests of this backend create arrays."""
        return {} if self.device is None else {"device": self.device}

    def asarray(self, values: Any, dtype: Any = None) -> Array:
        """`values` as an array of this backend, in its precision by default."""
        # Copy: torch warns about read-only memory.
        return self.xp.asarray(np.array(values), dtype=self.dtype if dtype is None else dtype, **self.at)

    def numpy(self, x: Array) -> Any:
        """`x` as a NumPy array of the same precision; assert that `x` has this library and device."""
        own = self.asarray([0.0])
        assert library(x) == library(own), f"{type(x)} is not of {self.backend}"
        assert device(x) == device(own), f"an array on {device(x)}; expected {device(own)}"
        return to_numpy(x)


NUMPY = Arrays("numpy", np, np.float64, float(np.finfo(float).eps))


@cache
def missing(place: str) -> str | None:
    """The reason why tests cannot run at `place`; None if they can."""
    name, _, where = place.partition(":")
    library = {"strict": "array_api_strict"}.get(name, name)
    if find_spec(library) is None:
        return "not installed"
    if name == "cupy":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns on import if it finds no CUDA
            import cupy
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError:
            return "no CUDA device"
    if where == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "no CUDA device"
    return None


@contextmanager
def _x64() -> Iterator[None]:
    """JAX in double precision for the whole process: callback threads do not see jax.enable_x64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def _activated(case: str) -> Iterator[Arrays]:
    """Yield the arrays of a case such as "torch:cuda-float32", with its backend active."""
    place, _, dtype = case.partition("-")
    name, _, where = place.partition(":")
    with backend(name) as chosen, _x64() if case == "jax-float64" else nullcontext():
        xp = chosen.namespace
        kind = getattr(xp, dtype)
        # Use the second device of array-api-strict: mixing it with the default device raises an error.
        device_ = xp.Device("device1") if name == "strict" else where or None
        yield Arrays(name, xp, kind, float(xp.finfo(kind).eps), device_)


@pytest.fixture
def arrays(request: pytest.FixtureRequest) -> Iterator[Arrays]:
    """An active backend, with arrays in one precision."""
    yield from _activated(request.param)


@pytest.fixture
def doubles(request: pytest.FixtureRequest) -> Iterator[Arrays]:
    """An active backend, with arrays in double precision."""
    yield from _activated(request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run torch on one thread, which is faster for small tensors on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
