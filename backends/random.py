"""Random numbers for every array library and device, from one seed."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from phiball.backends.arrays import (
    Array,
    array_namespace,
    device,
    is_abstract,
    is_jax,
    iterate,
    library,
    loaded_torch,
)
from phiball.backends.qmc import scrambled_sobol

Shape = tuple[int, ...]
_MAX_ROUNDS = 1000  # of rejection sampling in `Rng.redraw`


class Rng:
    """A random number generator for every library, created by `rng`.

    Each method that draws numbers returns an array of the given `shape`, with the library, device and dtype
    of the array `like` (integers are int64). Each pair of library and device has its own stream of numbers,
    determined by the seed: drawing torch tensors does not affect later NumPy draws.

    >>> import numpy as np
    >>> generator = rng(7)
    >>> generator.normal((2, 3), like=np.empty(0)).shape
    (2, 3)
    >>> saved = generator.state()
    >>> draw = generator.uniform((), like=np.empty(0))
    >>> bool(draw == Rng.restore(saved).uniform((), like=np.empty(0)))
    True
    """

    def __init__(self, seed: int | np.random.SeedSequence) -> None:
        if isinstance(seed, np.random.SeedSequence):
            self._seed = seed
        elif isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0:
            self._seed = np.random.SeedSequence(int(seed))
        else:
            raise ValueError(f"seed is {seed!r}; expected a whole number that is not negative")
        self._streams: dict[tuple[str, str], Any] = {}
        self._saved: dict[tuple[str, str], Any] = {}  # states of streams that were not used yet
        self._jax_only = False

    @staticmethod
    def from_key(key: Array) -> Rng:
        """A generator whose draws are a pure function of a JAX key; inside jax.jit, of JAX arrays only."""
        import jax

        data = jax.random.key_data(key)
        source = Rng(0 if is_abstract(data) else np.random.SeedSequence(np.asarray(data).ravel().tolist()))
        source._jax_only = is_abstract(data)
        source._streams["jax", "cpu"] = _JaxStream(key, pure=True)
        return source

    def _check_has_seed(self) -> None:
        """Raise for a key inside jax.jit: without its value, the result would be the same for every key."""
        if self._jax_only:
            raise ValueError("inside jax.jit, a key gives no Sobol points and no further generators")

    def __repr__(self) -> str:
        """The seed, followed by the spawn key of a generator made by `spawn` or `keyed`."""
        key = tuple(self._seed.spawn_key)
        return f"rng({self._seed.entropy})" if not key else f"rng({self._seed.entropy}), spawned as {key}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle; the copy continues with the same numbers."""
        return Rng.restore, (self.state(),)

    def _stream(self, like: Array) -> Any:
        """The stream for the library and device of `like`, created on first use."""
        kind = library(like)
        where = str(like.device) if kind in ("torch", "cupy") else "cpu"
        stream = self._streams.get((kind, where))
        if stream is None:
            self._check_has_seed()
            stream = self._streams[kind, where] = _make_stream(kind, where, self._seed)
            if (kind, where) in self._saved:
                stream.restore(self._saved.pop((kind, where)))
        return stream

    def uniform(self, shape: Shape, *, like: Array, low: float = 0.0, high: float = 1.0) -> Array:
        """Independent draws from the uniform distribution on [low, high)."""
        u = self._stream(like).uniform(shape, like)
        if high - low != 1:
            u *= high - low
        if low != 0:
            u += low
        return u

    def fill(self, out: Array) -> None:
        """Overwrite `out`, a contiguous NumPy or torch array, with the numbers that `uniform` would return.

        Several calls on parts of an array give the same numbers as one call, so that a caller can process
        each part while it is in the processor's cache.
        """
        self._stream(out).fill(out)

    def normal(self, shape: Shape, *, like: Array) -> Array:
        """Independent draws from the standard normal distribution."""
        return self._stream(like).normal(shape, like)

    def exponential(self, shape: Shape, *, like: Array) -> Array:
        """Independent draws from the exponential distribution of mean one."""
        return self._stream(like).exponential(shape, like)

    def gamma(self, concentration: float, shape: Shape, *, like: Array) -> Array:
        """Independent draws from the gamma distribution with shape `concentration` and scale one."""
        if not concentration > 0 or not np.isfinite(concentration):
            raise ValueError(f"concentration is {concentration!r}; expected a positive number")
        return self._stream(like).gamma(float(concentration), shape, like)

    def integers(self, high: int, shape: Shape, *, like: Array) -> Array:
        """Independent draws from the uniform distribution on 0, ..., high - 1, as int64."""
        if high < 1:
            raise ValueError(f"high is {high!r}; expected a whole number of at least 1")
        return self._stream(like).integers(int(high), shape, like)

    def permutation(self, n: int, *, like: Array) -> Array:
        """A uniformly random order of 0, ..., n - 1, as int64."""
        if n < 0:
            raise ValueError(f"n is {n!r}; expected a whole number that is not negative")
        return self._stream(like).permutation(int(n), like)

    def sobol(self, shape: Shape, *, like: Array) -> Array:
        """Scrambled Sobol points in (0, 1)^d, where shape = (..., n, d). They need scipy.

        Every point is uniform on the cube, and the n points of one set fill it evenly.
        """
        stream = self._stream(np.empty(0))  # scipy computes the points in main memory
        points = scrambled_sobol(shape, stream._generator).astype(_NumpyStream._float(stream, like))
        return array_namespace(like).asarray(points, device=device(like))

    def redraw(self, draw: Callable[[Rng], tuple[Array, Array]], *, like: Array) -> Array:
        """Repeat draw(rng) until each of k values is accepted, and return the values (k, ...); for JAX.

        `draw` returns candidates (k, ...) and a mask (k,) of the accepted ones. All shapes are fixed, so that
        the loop can be compiled. A value without an accepted candidate in _MAX_ROUNDS rounds is NaN.
        """
        xp = array_namespace(like)

        def step(key: Array, values: Array, found: Array) -> tuple[tuple[Array, ...], Array]:
            source = Rng.from_key(key)
            new, accepted = draw(source)
            more = xp.reshape(accepted & ~found, (-1,) + (1,) * (values.ndim - 1))
            found = found | accepted
            return (source._stream(like).split(), xp.where(more, new, values), found), found

        stream = self._stream(like)
        first = draw(Rng.from_key(stream.split()))
        start = (stream.split(), xp.where(first[1], first[0].T, xp.nan).T, first[1])
        return iterate(step, start, _MAX_ROUNDS)[1]

    def spawn(self, n: int) -> list[Rng]:
        """Create `n` new generators, independent of this one and of each other."""
        self._check_has_seed()
        return [Rng(child) for child in self._seed.spawn(n)]

    def keyed(self, name: str) -> Rng:
        """A new generator, determined by the seed and `name` alone.

        Previous draws and spawns do not affect it. Generators of different names are independent.

        >>> rng(7).keyed("task 1").integers(100, (3,), like=np.empty(0)).tolist()
        [27, 35, 60]
        """
        self._check_has_seed()
        words = np.frombuffer(sha256(name.encode()).digest(), dtype="<u4")
        key = (*self._seed.spawn_key, *(int(word) for word in words))
        return Rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))

    def state(self) -> dict[str, Any]:
        """The state for `restore`, a dictionary that can be pickled."""
        seed = self._seed
        return {
            "entropy": seed.entropy,
            "spawn_key": tuple(seed.spawn_key),
            "children": seed.n_children_spawned,
            "streams": self._saved | {key: stream.state() for key, stream in self._streams.items()},
        }

    @staticmethod
    def restore(state: dict[str, Any]) -> Rng:
        """Create a generator from a saved state; libraries and devices of the state may be missing here."""
        seed = np.random.SeedSequence(
            state["entropy"], spawn_key=state["spawn_key"], n_children_spawned=state["children"]
        )
        restored = Rng(seed)
        restored._saved = dict(state["streams"])
        return restored


def rng(seed: int | None = None) -> Rng:
    """Create a random number generator for every library, which the functions of `phiball` take as `rng=`.

    Arguments:
    - `seed`: a nonnegative integer, or None to use entropy from the operating system.

    >>> import numpy as np
    >>> draw = rng(0).uniform((3,), like=np.empty(0, dtype=np.float32))
    >>> draw.dtype, draw.shape
    (dtype('float32'), (3,))
    """
    return Rng(np.random.SeedSequence() if seed is None else seed)


def as_rng(rng: Any) -> Rng:
    """Convert the argument `rng` of a function to an `Rng`.

    Arguments:
    - `rng`: an integer seed; None for entropy from the operating system; a generator of NumPy or torch, from
      which a seed is drawn; a key of JAX; or an `Rng`, which is returned unchanged.

    >>> import numpy as np
    >>> as_rng(3)
    rng(3)
    >>> first, second = np.random.default_rng(0), np.random.default_rng(0)
    >>> repr(as_rng(first)) == repr(as_rng(second)) != repr(as_rng(second))
    True
    """
    if isinstance(rng, Rng):
        return rng
    if rng is None:
        return Rng(np.random.SeedSequence())
    if is_jax(rng):
        return Rng.from_key(rng)
    if isinstance(rng, np.random.Generator):
        return Rng(int(rng.integers(2**63)))
    torch = loaded_torch()
    if torch is not None and isinstance(rng, torch.Generator):
        return Rng(int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device)))
    if isinstance(rng, bool) or not isinstance(rng, (int, np.integer)):
        raise TypeError(
            f"rng is {rng!r}; expected a whole number, a generator of NumPy or torch, a key of JAX, an Rng, "
            "or None"
        )
    return Rng(int(rng))


def _make_stream(kind: str, where: str, seed: np.random.SeedSequence) -> Any:
    """A new stream for the library `kind` and the device `where`."""
    # The spawn key includes library and device, so that each pair has a different stream for the same seed.
    words = np.frombuffer(f"{kind}/{where}".ljust(32).encode()[:32], dtype=np.uint32)
    key = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *(int(word) for word in words)))
    if kind == "torch":
        return _TorchStream(key, where)
    if kind == "jax":
        import jax

        return _JaxStream(jax.random.key(int(key.generate_state(1, np.uint32)[0])))
    if kind == "cupy":
        return _CupyStream(key)
    return _NumpyStream(key)


class _NumpyStream:
    """A stream of random numbers as arrays of NumPy or array-api-strict."""

    def __init__(self, key: np.random.SeedSequence) -> None:
        self._numpy_generator = np.random.Generator(np.random.PCG64(key))

    @property
    def _generator(self) -> Any:
        return self._numpy_generator

    def _to_library(self, draw: Any, like: Array, dtype: Any = None) -> Array:
        xp = array_namespace(like)
        return xp.asarray(draw, dtype=like.dtype if dtype is None else dtype, device=device(like))

    def _float(self, like: Array) -> Any:
        return np.float32 if "float32" in str(like.dtype) else np.float64

    def uniform(self, shape: Shape, like: Array) -> Array:
        return self._to_library(self._generator.random(shape, dtype=self._float(like)), like)

    def fill(self, out: Array) -> None:
        self._generator.random(out=out, dtype=out.dtype)

    def normal(self, shape: Shape, like: Array) -> Array:
        return self._to_library(self._generator.standard_normal(shape, dtype=self._float(like)), like)

    def exponential(self, shape: Shape, like: Array) -> Array:
        return self._to_library(self._generator.standard_exponential(shape, dtype=self._float(like)), like)

    def gamma(self, concentration: float, shape: Shape, like: Array) -> Array:
        draw = self._generator.standard_gamma(concentration, shape, dtype=self._float(like))
        return self._to_library(draw, like)

    def integers(self, high: int, shape: Shape, like: Array) -> Array:
        xp = array_namespace(like)
        return self._to_library(self._generator.integers(high, size=shape), like, xp.int64)

    def permutation(self, n: int, like: Array) -> Array:
        xp = array_namespace(like)
        return self._to_library(self._generator.permutation(n), like, xp.int64)

    def state(self) -> Any:
        return self._numpy_generator.bit_generator.state

    def restore(self, state: Any) -> None:
        self._numpy_generator.bit_generator.state = state


class _CupyStream(_NumpyStream):
    """A stream of random numbers as CuPy arrays, drawn on the device.

    CuPy cannot save the state of a generator. So each draw uses a new generator, whose seed depends on the
    number of draws so far. This number is the saved state.
    """

    def __init__(self, key: np.random.SeedSequence) -> None:
        self._key = key
        self._draws = 0

    @property
    def _generator(self) -> Any:
        import cupy

        key = self._key
        word = np.random.SeedSequence(key.entropy, spawn_key=(*key.spawn_key, self._draws))
        self._draws += 1
        seed = int(word.generate_state(1, np.uint64)[0])
        return cupy.random.Generator(cupy.random.Philox4x3210(seed))

    def permutation(self, n: int, like: Array) -> Array:
        # CuPy's generator has no permutation: sort independent uniforms.
        xp = array_namespace(like)
        return xp.astype(xp.argsort(self._generator.random(n)), xp.int64)

    def state(self) -> int:
        return self._draws

    def restore(self, state: int) -> None:
        self._draws = state


class _JaxStream:
    """A stream of random numbers as JAX arrays; each draw splits the key.

    `pure` allows draws inside jax.jit: it is set if the key was passed by the user, not derived from a seed.
    """

    def __init__(self, key: Any, *, pure: bool = False) -> None:
        self._key, self._pure = key, pure

    def split(self) -> Array:
        """Return a new key; raise if jax.jit would turn draws from a seed into constants."""
        import jax

        keys = jax.random.split(self._key)
        if is_abstract(keys) and not self._pure:
            raise ValueError(
                "inside jax.jit, random numbers need a JAX key: pass rng=key, with key = jax.random.key(seed)"
            )
        self._key = keys[0]
        return keys[1]

    def _draw(self, function: str, *args: Any) -> Array:
        import jax

        return getattr(jax.random, function)(self.split(), *args)

    def uniform(self, shape: Shape, like: Array) -> Array:
        return self._draw("uniform", shape, like.dtype)

    def normal(self, shape: Shape, like: Array) -> Array:
        return self._draw("normal", shape, like.dtype)

    def exponential(self, shape: Shape, like: Array) -> Array:
        return self._draw("exponential", shape, like.dtype)

    def gamma(self, concentration: float, shape: Shape, like: Array) -> Array:
        return self._draw("gamma", concentration, shape, like.dtype)

    def integers(self, high: int, shape: Shape, like: Array) -> Array:
        return self._draw("randint", shape, 0, high, array_namespace(like).int64)

    def permutation(self, n: int, like: Array) -> Array:
        return self._draw("permutation", array_namespace(like).arange(n))

    def state(self) -> Any:
        import jax

        return np.asarray(jax.random.key_data(self._key)).tolist()

    def restore(self, state: Any) -> None:
        import jax

        self._key = jax.random.wrap_key_data(np.asarray(state, dtype=np.uint32))


class _TorchStream:
    """A stream of random numbers as torch tensors on one device."""

    def __init__(self, key: np.random.SeedSequence, where: str) -> None:
        import torch

        self._torch = torch
        self._generator = torch.Generator(device=where)
        self._generator.manual_seed(int(key.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def _where(self, like: Array) -> dict[str, Any]:
        return {"generator": self._generator, "device": like.device}

    def uniform(self, shape: Shape, like: Array) -> Array:
        return self._torch.rand(shape, dtype=like.dtype, **self._where(like))

    def fill(self, out: Array) -> None:
        out.uniform_(generator=self._generator)

    def normal(self, shape: Shape, like: Array) -> Array:
        return self._torch.randn(shape, dtype=like.dtype, **self._where(like))

    def exponential(self, shape: Shape, like: Array) -> Array:
        # -log(1 - u): torch's exponential_ takes four times as long.
        return self.uniform(shape, like).neg_().log1p_().neg_()

    def gamma(self, concentration: float, shape: Shape, like: Array) -> Array:
        """Marsaglia and Tsang's rejection method: torch's gamma takes no generator."""
        torch = self._torch
        boost = concentration < 1  # Gamma(a) = Gamma(a + 1) U^(1/a)
        d = concentration + (1 if boost else 0) - 1 / 3
        out, accepted = self._candidates(d, prod(shape), like)
        while not accepted.all():
            (missing,) = torch.nonzero(~accepted, as_tuple=True)
            again, accepted[missing] = self._candidates(d, missing.numel(), like)
            out[missing] = again
        if boost:
            out *= (1 - self.uniform((out.numel(),), like)) ** (1 / concentration)
        return out.reshape(shape)

    def _candidates(self, d: float, n: int, like: Array) -> tuple[Array, Array]:
        """n candidates for draws from Gamma(d + 1/3), and a mask of the accepted ones."""
        z = self.normal((n,), like)
        v = z.mul((9 * d) ** -0.5).add_(1).pow_(3)  # d v is the candidate
        # Accept if log u < z^2/2 + d (1 - v + log v); for v <= 0 this is NaN, and the comparison false.
        bound = v.log().sub_(v).add_(1).mul_(d).add_(z.square_(), alpha=0.5)
        accepted = self.uniform((n,), like).neg_().log1p_() < bound
        return v.mul_(d), accepted

    def integers(self, high: int, shape: Shape, like: Array) -> Array:
        return self._torch.randint(high, shape, dtype=self._torch.int64, **self._where(like))

    def permutation(self, n: int, like: Array) -> Array:
        return self._torch.randperm(n, dtype=self._torch.int64, **self._where(like))

    def state(self) -> Any:
        return self._generator.get_state().numpy().tobytes()

    def restore(self, state: Any) -> None:
        saved = np.frombuffer(state, dtype=np.uint8).copy()
        self._generator.set_state(self._torch.from_numpy(saved))
