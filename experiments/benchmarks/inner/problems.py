"""The inner problems that are timed, the systems that solve them, and their solutions by oracles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from phiball.backends import use
from phiball.experiments.benchmarks.third_party import optional_module
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    bisection,
    cressie_read,
    indicator,
    worst_case,
)
from phiball.verification.oracles.inner import solve_exactly, solve_extended

SHAPES = ((4096, 8), (1024, 128), (64, 4096), (1, 1 << 20))
BAR_SHAPES = SHAPES[1:3]  # those at which times are judged
ETA, ALPHA = 0.1, 0.25
POWERS = (-1.0, 0.0, 0.5, 1.2, 3.0, 5.0)  # of Cressie-Read, beside 1.5
DIVERGENCES: dict[str, Divergence] = {
    "entropic": ENTROPIC,
    "quadratic": QUADRATIC,
    "indicator": indicator(ALPHA),
    "Cressie-Read 1.5": cressie_read(1.5),
    "absolute": ABSOLUTE,
    "hinge": HINGE,
    **{f"Cressie-Read {k:g}": cressie_read(k) for k in POWERS},
}
UNIFORM, SHARED, OWN = "uniform", "one p", "p per row"
LAWS = (UNIFORM, SHARED, OWN)
VALUE_ONLY = "(value only)"
EXACT_UP_TO, EXTENDED_UP_TO = 128, 4096  # points of a row that exact and extended arithmetic are used for
Solver = Callable[[Any], Any]  # losses to weights, or to values where its name says so


def losses_of(shape: tuple[int, int]) -> Any:
    """Return losses from Exp(1)."""
    return np.random.default_rng(0).exponential(size=shape)


def law_of(name: str, shape: tuple[int, int]) -> Any:
    """Return p of that name: Exp(1), normalised, with one point in sixteen that has no mass."""
    if name == UNIFORM:
        return None
    p = np.random.default_rng(1).exponential(size=shape if name == OWN else shape[1:])
    p[..., 1::16] = 0.0
    return p / p.sum(axis=-1, keepdims=True)


def ours(problem: str, law: str, shape: tuple[int, int]) -> Solver:
    """Return phiball's solver under a law."""
    divergence, p = DIVERGENCES[problem], law_of(law, shape)
    return lambda f: worst_case(f, ETA, divergence, p=p).weights


def _sort_sparsemax(f: Any) -> Any:
    m = f.shape[-1]
    ranked = -np.sort(-f, axis=-1)
    mu = (np.cumsum(ranked, axis=-1) - m * ETA) / np.arange(1, m + 1)
    last = np.sum(ranked > mu, axis=-1, keepdims=True) - 1
    return np.maximum(f - np.take_along_axis(mu, last, axis=-1), 0) / (m * ETA)


def _partition(f: Any) -> Any:
    k = int(ALPHA * f.shape[-1])
    weights = np.zeros_like(f)
    np.put_along_axis(weights, np.argpartition(-f, k - 1, axis=-1)[..., :k], 1 / k, axis=-1)
    return weights


def _topk(x: Any) -> Any:
    k = int(ALPHA * x.shape[-1])
    return x.new_zeros(x.shape).scatter_(-1, x.topk(k, -1).indices, 1 / k)


def _array_code(f: Any) -> Any:
    with use("numpy"):
        return worst_case(f, ETA, QUADRATIC).weights


def peers(problem: str) -> dict[str, Solver]:
    """Return the other systems for a problem that are installed, as functions of NumPy losses."""
    solvers: dict[str, Solver] = {}
    torch, entmax, special = map(optional_module, ("torch", "entmax", "scipy.special"))

    def on_torch(function: Callable[[Any], Any]) -> Solver:
        return lambda f: function(torch.from_numpy(f)).numpy()  # type: ignore[union-attr]

    if problem == "entropic":
        if torch:
            solvers["torch.softmax"] = on_torch(lambda x: torch.softmax(x / ETA, -1))
            solvers[f"torch.logsumexp {VALUE_ONLY}"] = on_torch(lambda x: torch.logsumexp(x / ETA, -1))
        if special:
            solvers[f"scipy logsumexp {VALUE_ONLY}"] = lambda f: special.logsumexp(f / ETA, -1)
    if problem == "quadratic":
        solvers["NumPy sort"] = _sort_sparsemax
        if entmax:
            solvers["entmax.sparsemax"] = on_torch(lambda x: entmax.sparsemax(x / (x.shape[-1] * ETA), -1))
            solvers["entmax.sparsemax_bisect"] = on_torch(
                lambda x: entmax.sparsemax_bisect(x / (x.shape[-1] * ETA), -1)
            )
    if problem == "indicator":
        solvers["np.argpartition"] = _partition
        if torch:
            solvers["torch.topk"] = on_torch(_topk)
    if problem == "Cressie-Read 1.5" and entmax:
        # gamma = (sqrt(m) (f/(2 eta m) - tau))_+^2, which is entmax at 1.5 of f / (eta sqrt(m))
        solvers["entmax.entmax15"] = on_torch(lambda x: entmax.entmax15(x / (ETA * x.shape[-1] ** 0.5), -1))
        solvers["entmax.entmax_bisect"] = on_torch(
            lambda x: entmax.entmax_bisect(x / (ETA * x.shape[-1] ** 0.5), 1.5, -1)
        )
    return solvers


def solvers(problem: str, shape: tuple[int, int], *, slow: bool = True) -> dict[str, tuple[str, Solver]]:
    """Return name to (law, solver) of all that solve a problem; `slow`: with our array code and bisection."""
    named = {f"phiball, {law}": (law, ours(problem, law, shape)) for law in LAWS}
    if problem == "quadratic" and slow:
        named["phiball, array code"] = (UNIFORM, _array_code)
        named["phiball bisection (Algorithm 2)"] = (
            UNIFORM,
            lambda f: bisection(f, ETA, QUADRATIC, tol=1e-12).weights,
        )
    return {**named, **{name: (UNIFORM, solve) for name, solve in peers(problem).items()}}


def truth(problem: str, row: Any, p: Any) -> Any:
    """Return the weights of one row by an oracle, or None where the row is too long for it."""
    divergence, m = DIVERGENCES[problem], row.size
    family, parameter = divergence.family or "", divergence.parameter
    if m <= EXACT_UP_TO:
        return np.array([float(w) for w in solve_exactly(row, ETA, family, parameter, p).weights])
    if p is not None or family in ("absolute", "hinge"):
        return None
    if family == "indicator":
        count = int(ALPHA * m)
        return np.where(row >= np.partition(row, -count)[-count], 1 / count, 0.0)
    if family == "cressie_read" and m > EXTENDED_UP_TO:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # of the value at k = 0, which is not used
        return solve_extended(row, ETA, family, parameter)[1]


@contextmanager
def thread_limit(n: int | None) -> Iterator[None]:
    """Let phiball and torch use n threads inside the block; None leaves phiball its default."""
    before = os.environ.pop("PHIBALL_THREADS", None)
    if n is not None:
        os.environ["PHIBALL_THREADS"] = str(n)
    torch = optional_module("torch")
    torch_before = torch.get_num_threads() if torch else 1
    if torch and n is not None:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(torch_before)
        os.environ.pop("PHIBALL_THREADS", None)
        if before is not None:
            os.environ["PHIBALL_THREADS"] = before


def first_solves(lengths: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Return name to a tiny solve of rows of so many points, which loads a kernel or compiles it."""
    return {
        f"{problem}, {law}, rows of {m}": partial(ours(problem, law, (2, m)), losses_of((2, m)))
        for problem in DIVERGENCES
        for law in LAWS
        for m in lengths
    }


def compile_from_the_end(lengths: tuple[int, ...]) -> None:
    """Make all first solves, the last first; for a process beside the one that makes them in order."""
    with use("numba"):
        for solve in reversed(first_solves(lengths).values()):
            solve()
