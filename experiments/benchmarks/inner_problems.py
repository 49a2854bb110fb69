"""Inner problems for benchmarks, other solvers, and reference solutions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import backend
from phiball.experiments.benchmarks.harness import Contestant, optional_module
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
    worst_case,
)
from phiball.verification.oracles.exact_solver import solve_exactly, solve_extended

Shape: TypeAlias = tuple[int, int]
Solver: TypeAlias = Callable[[Any], Any]  # from losses to weights
SHAPES: tuple[Shape, ...] = ((4096, 8), (1024, 128), (64, 4096), (1, 1 << 20))
BAR_SHAPES = SHAPES[1:3]  # shapes at which times are compared with bars
ETA, ALPHA = 0.1, 0.25  # price of the divergence, and the fraction of the indicator divergence (CVaR)
THREE_HALVES = "Cressie-Read 1.5"
POWERS = (-1.0, 0.0, 0.5, 1.2, 3.0, 5.0)  # orders of Cressie-Read other than 1.5
DIVERGENCES: dict[str, Divergence] = {
    "entropic": ENTROPIC,
    "quadratic": QUADRATIC,
    "indicator": indicator(ALPHA),
    THREE_HALVES: cressie_read(1.5),
    "absolute": ABSOLUTE,
    "hinge": HINGE,
    **{f"Cressie-Read {k:g}": cressie_read(k) for k in POWERS},
}
UNIFORM, SHARED, PER_ROW = "uniform", "one p", "p per row"  # reference distributions
CHECKED_ROWS = 2  # rows of each batch whose weights are checked
EXACT_UP_TO, EXTENDED_UP_TO = 128, 4096  # longest rows for exact and for extended arithmetic


def losses_of(shape: Shape) -> Any:
    """Random losses from Exp(1)."""
    return np.random.default_rng(0).exponential(size=shape)


def reference_probabilities(name: str, shape: Shape) -> Any:
    """The reference distribution p, or None if `name` is UNIFORM.

    Its probabilities are normalised draws from Exp(1), and 0 for one point in sixteen.
    """
    if name == UNIFORM:
        return None
    p = np.random.default_rng(1).exponential(size=shape if name == PER_ROW else shape[1:])
    p[..., 1::16] = 0.0
    return p / p.sum(axis=-1, keepdims=True)


def reference_weights(divergence: Divergence, row: Any, p: Any) -> Any:
    """The weights of one row of losses by exact or extended arithmetic, or None if neither is available.

    `p` is the reference distribution, None for the uniform one. Exact arithmetic takes rows of up to
    EXACT_UP_TO points. Longer rows are solved only for uniform p and some divergences.
    """
    family, parameter = divergence.family or "", divergence.parameter
    if row.size <= EXACT_UP_TO:
        return np.array([float(w) for w in solve_exactly(row, ETA, family, parameter, p).weights])
    if p is not None or family in ("absolute", "hinge"):
        return None
    if family == "indicator":
        count = int(ALPHA * row.size)
        return np.where(row >= np.partition(row, -count)[-count], 1 / count, 0.0)
    if family == "cressie_read" and row.size > EXTENDED_UP_TO:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # the value at order 0 is not used
        return solve_extended(row, ETA, family, parameter)[1]


class WeightError:
    """A function from weights to their largest error in the first `rows` rows, times the row length.

    The problem is given by a divergence, losses f (n, m), and the reference distribution p: (m,), (n, m), or
    None for the uniform one. The correct weights are computed once, at the first call.
    """

    def __init__(self, divergence: Divergence, f: Any, p: Any, rows: int = CHECKED_ROWS) -> None:
        self._divergence, self._f, self._p, self._rows = divergence, f, p, rows
        self._exact: list[Any] | None = None

    def __call__(self, weights: Any) -> float | None:
        if self._exact is None:
            per_row = self._p is not None and self._p.ndim == 2
            self._exact = [
                reference_weights(self._divergence, self._f[i], self._p[i] if per_row else self._p)
                for i in range(min(self._rows, len(self._f)))
            ]
        m = self._f.shape[-1]
        pairs = zip(np.reshape(weights, self._f.shape), self._exact, strict=False)
        errors = [m * float(np.max(np.abs(w - exact))) for w, exact in pairs if exact is not None]
        return max(errors, default=None)


def _sort_sparsemax(f: Any) -> Any:
    """The weights of the quadratic divergence, by sorting each row of losses f (n, m)."""
    m = f.shape[-1]
    ranked = -np.sort(-f, axis=-1)
    mu = (np.cumsum(ranked, axis=-1) - m * ETA) / np.arange(1, m + 1)
    last = np.sum(ranked > mu, axis=-1, keepdims=True) - 1
    return np.maximum(f - np.take_along_axis(mu, last, axis=-1), 0) / (m * ETA)


def _partition(f: Any) -> Any:
    """The weights of the indicator divergence: equal on the k largest losses of each row."""
    k = int(ALPHA * f.shape[-1])
    weights = np.zeros_like(f)
    np.put_along_axis(weights, np.argpartition(-f, k - 1, axis=-1)[..., :k], 1 / k, axis=-1)
    return weights


def _topk(x: Any) -> Any:
    """The same weights as `_partition`, for a torch tensor."""
    k = int(ALPHA * x.shape[-1])
    return x.new_zeros(x.shape).scatter_(-1, x.topk(k, -1).indices, 1 / k)


def peers(problem: str) -> dict[str, Solver]:
    """The solvers of a problem from NumPy and from other installed libraries, by name."""
    torch, entmax = map(optional_module, ("torch", "entmax"))

    def on_torch(function: Solver) -> Solver:
        return lambda f: function(torch.from_numpy(f)).numpy()  # type: ignore[union-attr]

    found: dict[str, Solver] = {}
    if problem == "entropic" and torch:
        found["torch.softmax"] = on_torch(lambda x: torch.softmax(x / ETA, -1))
    if problem == "quadratic":
        found["NumPy sort"] = _sort_sparsemax
        if entmax:
            found["entmax.sparsemax"] = on_torch(lambda x: entmax.sparsemax(x / (x.shape[-1] * ETA), -1))
    if problem == "indicator":
        found["np.argpartition"] = _partition
        if torch:
            found["torch.topk"] = on_torch(_topk)
    if problem == THREE_HALVES and entmax:
        # On m points the weights are (f/(2 eta sqrt(m)) - tau)_+^2, where tau makes their sum one. This is
        # entmax15 of f/(eta sqrt(m)).
        found["entmax.entmax15"] = on_torch(lambda x: entmax.entmax15(x / (ETA * x.shape[-1] ** 0.5), -1))
    return found


def contestants(f: Any, *, quick: bool = False) -> dict[tuple[str, str], Contestant]:
    """All solvers of all problems on the losses f, by problem and solver; `quick` omits array code."""
    found: dict[tuple[str, str], Contestant] = {}

    def add(problem: str, name: str, run: Callable[[], Any], error: Any) -> None:
        found[problem, name] = Contestant(f"{problem}, {name}", run, error)

    for problem, divergence in DIVERGENCES.items():
        for distribution in (UNIFORM, SHARED, PER_ROW):
            p = reference_probabilities(distribution, f.shape)
            error = WeightError(divergence, f, p, 1 if quick else CHECKED_ROWS)
            add(problem, f"phiball, {distribution}", partial(_weights, f, divergence, p), error)
        error = WeightError(divergence, f, None, 1 if quick else CHECKED_ROWS)
        for name, solve in peers(problem).items():
            add(problem, name, partial(solve, f), error)
    if not quick:
        error = WeightError(QUADRATIC, f, None)
        found["quadratic", "phiball, array code"] = Contestant("array code", partial(_array_code, f), error)
    return found


def _weights(f: Any, divergence: Divergence, p: Any = None) -> Any:
    return worst_case(f, eta=ETA, divergence=divergence, p=p).weights


def _array_code(f: Any) -> Any:
    with backend("numpy"):
        return _weights(f, QUADRATIC)
