"""Single calls with arguments of every kind: right, or refused with ValueError or TypeError."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import phiball
from phiball.backends import to_numpy, use
from tests.support.fuzz.arguments import ETAS, Argument, like, losses
from tests.support.fuzz.batches import NAMED
from tests.support.fuzz.judge import Problem, faults
from tests.support.fuzz.watch import watched

NAMES = ["worst_case"] * 5 + ["constrained_worst_case", "dual_value", "primal_value", "bisection"]
NAMES += ["worst_case_jvp", "worst_case_ragged"]
PLACES = ["plain"] * 6 + ["inference", "requires_grad", "vmap", "grad"]


class FaultError(AssertionError):
    """What is wrong with a call, as a message and Python that repeats it."""


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

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def search(case: tuple[Any, ...]) -> None:
        with watched(120.0, lambda: f"{case}"):
            check(*case)

    try:
        search()
    except FaultError as fault:
        return str(fault)
    return None


def check(
    name: str, backend: str, place: str, divergence: str, f: Argument, eta: Any, p: Argument | None
) -> None:
    """Make one call, and raise a FaultError if it is wrong."""
    x, e = f.make(), eta.make() if isinstance(eta, Argument) else eta
    law = None if p is None else p.make()
    d = NAMED[divergence]
    before = [_bytes(a) for a in (x, e, law)]

    def fault(what: str) -> FaultError:
        made = "from tests.support.fuzz.arguments import Argument\n"
        made += "from tests.support.fuzz.calls import check\n"
        given = f"{name!r}, {backend!r}, {place!r}, {divergence!r}, {f!r}, {eta!r}, {p!r}"
        return FaultError(f"{what}\n{made}check({given})")

    with use(backend), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            out = call(name, place, d, x, e, law)
        except (ValueError, TypeError) as error:
            if not str(error) or "\n" in str(error).strip():
                raise fault(f"an error that is not one line: {type(error).__name__}: {error}") from None
            out = None
        except Exception as error:  # what is not documented, whatever it is
            raise fault(f"{type(error).__name__}: {error}") from error
    ours = [w for w in said if issubclass(w.category, RuntimeWarning)]
    if ours:
        raise fault(f"a warning: {ours[0].message}")
    if before != [_bytes(a) for a in (x, e, law)]:
        raise fault("an argument was modified")
    if out is not None and name == "worst_case" and place == "plain" and f.dtype in ("float32", "float64"):
        found = judged(x, e, law, d, out)
        if found:
            raise fault(f"wrong: {', '.join(found)}: {out}")


def call(name: str, place: str, d: Any, f: Any, eta: Any, p: Any) -> Any:
    """The call, in its place."""
    function = getattr(phiball, name)
    torch = type(f).__module__.partition(".")[0] == "torch"
    if place == "requires_grad" and torch and f.is_floating_point():
        f = f.requires_grad_()
    if place == "vmap" and torch and name == "worst_case" and f.ndim > 1 and p is None:
        import torch as library

        return library.func.vmap(lambda row: phiball.worst_case(row, eta, d).value)(f)
    if place == "grad" and torch and name == "worst_case" and f.ndim == 1 and f.is_floating_point():
        import torch as library

        return library.func.grad(lambda row: phiball.worst_case(row, eta, d, p=p).value)(f)
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
            return function(f, [0, 1, len(f)] if np.ndim(f) == 1 and len(f) > 1 else [0, 1], eta, d, p=p)
        if name == "worst_case_jvp":
            return function(f, eta, d, f, p=p)
        return function(f, eta, d, p=p)


def judged(f: Any, eta: Any, p: Any, d: Any, out: Any) -> list[str]:
    """The kinds of fault of a solution; none where the losses are too large for the judge's own sums."""
    rows = to_numpy(f)
    shape = rows.shape
    rows = rows.reshape(-1, shape[-1])
    if not rows.size:
        return []
    law = None if p is None else np.broadcast_to(to_numpy(p), shape).reshape(rows.shape)
    etas = eta if isinstance(eta, (int, float)) else to_numpy(eta)
    etas = np.broadcast_to(np.asarray(etas, dtype=rows.dtype), shape[:-1]).reshape(-1)
    got = [to_numpy(v).reshape(rows.shape if v.ndim == len(shape) else -1) for v in _fields(out)]
    assert d.family is not None
    found = faults(Problem.of(rows, etas, law, d.family, d.parameter), got)
    return [kind for kind, where in found.items() if np.any(where)]


def _fields(out: Any) -> tuple[Any, ...]:
    return out.value, out.mu, out.weights, out.gap


def _bytes(x: Any) -> Any:
    if type(x).__module__.partition(".")[0] == "torch":
        return None if x.is_meta or x.is_sparse else x.detach().view(-1).tolist().__repr__()
    return np.asarray(x).tobytes() if hasattr(x, "shape") and np.asarray(x).dtype != object else repr(x)
