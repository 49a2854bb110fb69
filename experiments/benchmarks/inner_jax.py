"""Time value and gradient of jitted JAX functions, relative to a NumPy call of the compiled kernel.

JAX uses float32, or float64 if the environment variable JAX_ENABLE_X64 is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from phiball.backends import backend
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    ROUNDS,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    bar_verdict,
    compare,
)
from phiball.experiments.benchmarks.inner_problems import DIVERGENCES, ETA, losses_of
from phiball.refimpl import worst_case

SHAPE = (1024, 128)
ROUTES = {"callback to the kernel": ("numba", 2.0), "reference compiled by XLA": ("numpy", 5.0)}  # and bars


def _value_and_gradient(f: Any, divergence: Any, name: str) -> Callable[[], Any]:
    """The jitted function at `f`; the backend is chosen when JAX traces it."""
    with backend(name):
        value = jax.value_and_grad(lambda f: worst_case(f, eta=ETA, divergence=divergence).value.sum())
        compiled = jax.jit(value).lower(f).compile()
    return lambda: jax.block_until_ready(compiled(f))


def jax_report(*, clock: Clock, quick: bool = False, update: Update = silent) -> BenchmarkReport:
    """A table of both routes, for the entropic and the quadratic divergence."""
    f = jnp.asarray(losses_of(SHAPE))
    losses, rows = losses_of(SHAPE).astype(str(f.dtype)), []
    for problem in ("entropic", "quadratic"):
        d = DIVERGENCES[problem]
        players = [Contestant(route, _value_and_gradient(f, d, name)) for route, (name, _) in ROUTES.items()]

        def kernel(d: Any = d) -> Any:
            return worst_case(losses, eta=ETA, divergence=d)

        seconds, rounds = (0.004, 3) if quick else (0.2, ROUNDS)
        times = compare(kernel, players, seconds=seconds, rounds=rounds, clock=clock, update=update)
        for route, (_, bar) in ROUTES.items():
            judged = {"verdict": bar_verdict(times[route].ratio, bar), "at most": bar}
            case = {"problem": problem, "dtype": str(f.dtype), "route": route}
            rows.append({**case, **judged, **times[route].columns("kernel")})
    return BenchmarkReport([BenchmarkTable(f"JAX, jitted, losses of shape {SHAPE}", rows)])
