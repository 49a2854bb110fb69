"""Single calls on inner problems with arguments of every kind: right, or refused in one line."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import phiball
from phiball.backends import to_numpy
from tests.support.fuzz.arguments import ETAS, Argument, like, losses
from tests.support.fuzz.batches import NAMED
from tests.support.fuzz.certificates import budget_faults, certified, tangent_faults
from tests.support.fuzz.guard import FaultError, fault, guarded, search
from tests.support.fuzz.judge import Problem, faults

NAMES = ["worst_case"] * 5 + ["constrained_worst_case"] * 2 + ["dual_value", "primal_value", "bisection"]
NAMES += ["worst_case_jvp", "worst_case_ragged"]
PLACES = ["plain"] * 24 + ["inference", "requires_grad", "vmap", "grad"] * 4 + ["compile"]
COMPILED = ("ENTROPIC", "QUADRATIC", "HINGE")  # torch takes seconds for each


@st.composite
def calls(draw: Any) -> tuple[Any, ...]:
    """(name, backend, place, divergence, f, eta, p)."""
    f = draw(losses())
    eta = draw(st.one_of(ETAS, like(f, rows=True).filter(bool)))
    backend = draw(st.sampled_from(["numba", "numpy"]))
    name, place = draw(st.sampled_from(NAMES)), draw(st.sampled_from(PLACES))
    return name, backend, place, draw(st.sampled_from(list(NAMED))), f, eta, draw(like(f))


def run(count: int, start: int) -> str | None:
    """Make `count` calls from a seed; the fault of the smallest that has one."""
    return search(check, calls(), count, start)


def check(
    name: str, backend: str, place: str, divergence: str, f: Argument, eta: Any, p: Argument | None
) -> None:
    """Make one call, and raise a FaultError if it is wrong."""
    x, e = f.make(), eta.make() if isinstance(eta, Argument) else eta
    law = None if p is None else p.make()

    def say(what: str) -> FaultError:
        return fault(what, check, name, backend, place, divergence, f, eta, p)

    def work() -> Any:
        return call(name, place, divergence, x, e, law)

    out = guarded(work, backend, (x, e, law), say)
    if out is not None and f.dtype in ("float32", "float64"):
        found = judged(name, x, e, law, NAMED[divergence], out)
        if found:
            raise say(f"wrong: {', '.join(found)}: {out}")


def call(name: str, place: str, divergence: str, f: Any, eta: Any, p: Any) -> Any:
    """The call, in its place; {"value": ...} or {"weights": ...} where a place gives no more."""
    function, d = getattr(phiball, name), NAMED[divergence]
    torch = type(f).__module__.partition(".")[0] == "torch"
    one = name == "worst_case" and torch
    if place == "requires_grad" and torch and f.is_floating_point():
        f = f.detach().requires_grad_()
    if place == "vmap" and one and f.ndim > 1 and p is None:
        import torch as library

        return {"value": library.func.vmap(lambda row: phiball.worst_case(row, eta, d).value)(f)}
    if place == "grad" and one and f.ndim == 1 and f.is_floating_point():
        import torch as library

        return {"weights": library.func.grad(lambda row: phiball.worst_case(row, eta, d, p=p).value)(f)}
    if place == "compile" and one and divergence in COMPILED and isinstance(eta, float) and p is None:
        return {"value": compiled(divergence)(f, eta)}
    context: Any = nullcontext()
    if place == "inference" and torch:
        import torch as library

        context = library.inference_mode()
    with context:
        if name == "dual_value":
            return function(f, 0.5, eta, d, p)
        if name == "primal_value":
            return function(f, p if p is not None else f, eta, d, p)
        if name == "bisection":
            return function(f, eta, d, tol=1e-2, p=p)
        if name == "worst_case_ragged":
            return function(f, offsets(f), eta, d, p=p)
        if name == "worst_case_jvp":
            return function(f, eta, d, f, p=p)
        return function(f, eta, d, p=p)


def offsets(f: Any) -> list[int]:
    """Where the rows of a ragged problem begin, and its end."""
    return [0, 1, len(f)] if np.ndim(f) == 1 and len(f) > 1 else [0, 1]


@cache
def compiled(divergence: str) -> Any:
    """worst_case in a graph of torch."""
    import torch

    def loss(f: Any, eta: float) -> Any:
        return phiball.worst_case(f, eta, NAMED[divergence]).value

    return torch.compile(loss, backend="aot_eager", dynamic=True)


def judged(name: str, f: Any, eta: Any, p: Any, d: Any, out: Any) -> list[str]:
    """The kinds of fault of what a call returned."""
    assert d.family is not None
    rows = to_numpy(f)
    if not rows.size:
        return []
    if name == "worst_case_ragged":
        parts = [slice(a, b) for a, b in pairwise(offsets(f))]
        etas = np.broadcast_to(
            np.asarray(eta if isinstance(eta, (int, float)) else to_numpy(eta)), len(parts)
        )
        found: list[str] = []
        for j, part in enumerate(parts):
            law = None if p is None else to_numpy(p)[part]
            whole = {field: to_numpy(getattr(out, field)) for field in ("value", "mu", "weights", "gap")}
            row = {field: x[part] if field == "weights" else x[j] for field, x in whole.items()}
            found += _row_faults("worst_case", rows[part], etas[j], law, d, row)
        return found
    fields = out if isinstance(out, dict) else vars(out) if hasattr(out, "__dict__") else {name: out}
    return _row_faults(name, rows, eta, p, d, {field: to_numpy(x) for field, x in fields.items()})


def _row_faults(name: str, f: Any, eta: Any, p: Any, d: Any, out: dict[str, Any]) -> list[str]:
    shape = f.shape
    rows = f.reshape(-1, shape[-1])
    law = None if p is None else np.broadcast_to(to_numpy(p), shape).reshape(rows.shape)
    etas = eta if isinstance(eta, (int, float)) else to_numpy(eta)
    etas = np.broadcast_to(np.asarray(etas, dtype=rows.dtype), shape[:-1]).reshape(-1)
    got = {field: x.reshape(rows.shape if np.ndim(x) == len(shape) else -1) for field, x in out.items()}
    if name == "constrained_worst_case":
        problem = Problem.of(rows, np.where(got["eta"] > 0, got["eta"], 1), law, d.family, d.parameter)
        found = budget_faults(problem, etas, got)
    else:
        problem = Problem.of(rows, etas, law, d.family, d.parameter)
        if name == "worst_case_jvp":
            found = tangent_faults(problem, got)
        elif name == "worst_case" and "gap" in got:
            found = faults(problem, [got[field] for field in ("value", "mu", "weights", "gap")])
        else:
            found = certified(problem, got)
    return [kind for kind, where in found.items() if np.any(where)]
