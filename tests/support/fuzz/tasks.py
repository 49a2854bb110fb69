"""What one process does at a time: some batches and some single calls, and what is wrong with them."""

from __future__ import annotations

import mpmath as mp
import numpy as np

import phiball
from phiball.backends import use
from phiball.verification.oracles import inner as oracles
from tests.support.fuzz import calls, points
from tests.support.fuzz.batches import Batch, batch
from tests.support.fuzz.judge import Problem, faults, value
from tests.support.fuzz.watch import watched

BATCHES, CALLS = 4, 150  # in a task; as many calls on inner problems as on points
Found = tuple[int, int, list[str]]


def task(seed: int, number: int) -> Found:
    """(inputs, of them single calls, faults) of one task."""
    inputs, found = 0, []
    for j in range(BATCHES):
        b = batch((seed, BATCHES * number + j))
        inputs += int(np.prod(b.f.shape[:-1]))
        found += solve(b, "numpy" if j % 4 == 3 else "numba")
    for kind in (calls, points):
        fault = kind.run(CALLS, (seed << 20) + number)
        found += [fault] if fault else []
    return inputs + 2 * CALLS, 2 * CALLS, found


def solve(b: Batch, backend: str) -> list[str]:
    """Solve a batch, and judge every row; a short row also by 50 digits."""
    before = [None if x is None else np.array(x) for x in (b.f, b.eta, b.p)]
    with watched(300.0, lambda: b.snippet(backend, 0)), use(backend):
        try:
            out = phiball.worst_case(b.f, b.eta, b.divergence, p=b.p)
        except Exception as error:
            if isinstance(error, ValueError) and _beyond(b):
                return []
            return [f"{type(error).__name__}: {error}\n{b.snippet(backend, 0)}"]
    for x, y in zip(before, (b.f, b.eta, b.p), strict=True):
        if x is not None and not np.array_equal(x, y):
            return [f"an argument was modified\n{b.snippet(backend, 0)}"]
    shape, d = b.f.shape, b.divergence
    assert d.family is not None
    flat = b.f.reshape(-1, shape[-1])
    law = None if b.p is None else b.p.reshape(flat.shape)
    problem = Problem.of(flat, b.eta.reshape(-1), law, d.family, d.parameter)
    got = out.value.reshape(-1), out.mu.reshape(-1), out.weights.reshape(flat.shape), out.gap.reshape(-1)
    texts = []
    for kind, where in faults(problem, got).items():
        if np.any(where):
            row = int(np.flatnonzero(where)[0])
            said = [float(x[row]) for x in (got[0], got[1], got[3])]
            truth = float(value(problem.rows(slice(row, row + 1)))[0])
            text = f"{kind}: {np.sum(where)} rows; value, mu, gap = {said}, true value {truth}"
            texts.append(f"{text}\n{b.snippet(backend, row)}")
    if not texts and shape[-1] <= 8 and abs(d.parameter or 0) <= 3:
        texts = exactly(b, problem, float(got[0][0]), float(got[3][0]))
    return texts


def _beyond(b: Batch) -> bool:
    """Whether the range of losses over eta is beyond the dtype in some row: the batch may be refused."""
    with np.errstate(over="ignore"):
        return bool(np.any(np.isinf(np.ptp(b.f, axis=-1) / b.eta)))


def exactly(b: Batch, problem: Problem, got: float, gap: float) -> list[str]:
    """The first row against exact fractions and 50 digits."""
    d, first = b.divergence, problem.rows(slice(0, 1))
    law = None if b.p is None else b.p.reshape(-1, b.f.shape[-1])[0]
    f, eta = b.f.reshape(-1, b.f.shape[-1])[0], float(b.eta.reshape(-1)[0])
    assert d.family is not None
    true = oracles.solve_exactly(f, eta, d.family, d.parameter, law).value
    with mp.workdps(oracles.DIGITS):
        true = mp.mpf(getattr(true, "numerator", true)) / getattr(true, "denominator", 1)
        if abs(mp.mpf(got) - true) <= abs(gap) + float(first.rounding[0]):
            return []
    return [f"value {got!r}, by 50 digits {mp.nstr(true, 20)}\n{b.snippet('numba', 0)}"]
