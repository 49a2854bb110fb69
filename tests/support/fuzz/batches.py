"""Batches of inner problems at random, each made again by its seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator
from tests.support.fuzz.layouts import LAYOUTS

NAMED = {
    "ENTROPIC": ENTROPIC,
    "QUADRATIC": QUADRATIC,
    "ABSOLUTE": ABSOLUTE,
    "HINGE": HINGE,
    **{f"indicator({a})": indicator(a) for a in (1e-3, 0.3, 0.75, 1.0)},
    **{f"cressie_read({k})": cressie_read(k) for k in (-3.0, -1.0, 0.0, 0.5, 1.5, 2.0, 3.0, 10.0)},
}


@dataclass(frozen=True)
class Batch:
    """A call of worst_case on many rows, and the seed that makes it again."""

    seed: tuple[int, int]
    f: Any
    eta: Any
    p: Any
    name: str

    @property
    def divergence(self) -> Divergence:
        """phi."""
        return NAMED[self.name]

    def snippet(self, backend: str, row: int) -> str:
        """Python that repeats the call, on one row and on all."""
        index = np.unravel_index(row, self.f.shape[:-1])
        law = None if self.p is None else np.broadcast_to(self.p, self.f.shape)[index].tolist()
        lines = [
            "import numpy as np",
            "import phiball",
            "from phiball.backends import use",
            "from tests.support.fuzz.batches import batch",
            f"with use({backend!r}):",
        ]
        if self.f.shape[-1] <= 100:
            eta = float(np.broadcast_to(self.eta, self.f.shape[:-1])[index])
            kind = f"np.{self.f.dtype.name}"
            p = "None" if law is None else f"np.array([{law}], dtype={kind})"
            lines.append(f"    f, p = np.array([{self.f[index].tolist()}], dtype={kind}), {p}")
            lines.append(f"    print(vars(phiball.worst_case(f, {eta!r}, phiball.{self.name}, p=p)))")
        lines.append(f"    b = batch({self.seed})  # row {row} of")
        lines.append("    print(vars(phiball.worst_case(b.f, b.eta, b.divergence, p=b.p)))")
        return "\n".join(lines)


def batch(seed: tuple[int, int]) -> Batch:
    """Problems of random size, scale, offset, ties, precision and layout, under laws with zeros."""
    r = np.random.default_rng(seed)
    name = list(NAMED)[r.integers(len(NAMED))]
    dtype = (np.float64, np.float32)[r.integers(2)]
    m = int(
        r.choice(
            [1, 2, 3, 5, 8, 16, 17, 33, 64, 200, 3000],
            p=[0.04, 0.13, 0.15, *[0.13] * 4, 0.08, 0.05, 0.02, 0.01],
        )
    )
    n = int(max(1, 16_000 // max(m, 4)))
    most = 30.0 if dtype is np.float32 else 290.0
    scale = 10.0 ** r.uniform(-6, 6, size=(n, 1))
    if r.random() < 0.15:  # anything that the dtype holds
        scale = 10.0 ** r.uniform(-most, most, size=(n, 1))
    f = r.choice([r.normal, r.random, r.standard_exponential])(size=(n, m)) * scale
    f = np.where(r.random((n, 1)) < 0.2, np.round(f / scale) * scale, f)  # ties
    f = f + r.choice([0.0, 0.0, 0.0, 1.0, -1e3, 1e6], size=(n, 1)) * scale
    f[r.random(n) < 0.02] *= -0.0
    eta = scale[:, 0] * 10.0 ** r.choice([r.uniform(-3, 3, n), r.uniform(-8, 12, n)])
    p = None
    if r.random() < 0.5:
        p = r.random((n, m)) ** r.choice([1, 1, 4, 12])
        p = np.where(r.random((n, m)) < r.choice([0.0, 0.3]), 0.0, p)
        p[:, 0] += 1e-3
        p = p / p.sum(axis=-1, keepdims=True)
    limits = np.finfo(dtype)
    eta = np.clip(eta, limits.smallest_normal, limits.max / 4).astype(dtype)
    move = LAYOUTS[list(LAYOUTS)[r.integers(len(LAYOUTS))]]
    shape = (n, m) if n % 2 or r.random() < 0.7 else (2, n // 2, m)
    f = move(f.astype(dtype).reshape(shape))
    p = None if p is None else move(p.astype(dtype).reshape(shape))
    return Batch(seed, f, eta.reshape(shape[:-1]), p, name)
