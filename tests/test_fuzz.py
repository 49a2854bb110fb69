"""The fuzzer finds what is planted, and prints Python that repeats it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import phiball
from tests.support.fuzz import calls, points, tasks
from tests.support.fuzz.arguments import Argument
from tests.support.fuzz.batches import NAMED, batch
from tests.support.fuzz.judge import PRECISE
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not PRECISE, reason="no extended precision here")
CALL = ("worst_case", "numpy", "plain", "QUADRATIC")
LOSSES = Argument("numpy", "float64", "C", [[0.0, 0.5, 1.0]])


def plant(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Put `wrong`, a function of the true solution and the losses, in the place of worst_case."""
    true = phiball.worst_case

    def planted(f: Any, *args: Any, **kwargs: Any) -> Any:
        return wrong(true(f, *args, **kwargs), f)

    monkeypatch.setattr(phiball, "worst_case", planted)


def test_batches_and_calls_without_a_fault() -> None:
    assert [text for j in range(4) for text in tasks.solve(batch((0, j)), "numpy")] == []
    assert calls.run(15, 0) is None
    assert points.run(15, 0) is None


def test_batches_cover_what_they_name() -> None:
    some = [batch((1, j)) for j in range(120)]
    assert {b.name for b in some} == set(NAMED)
    assert {b.f.dtype.name for b in some} == {"float32", "float64"}
    assert any(not b.f.flags.c_contiguous for b in some)
    assert any(0 in b.f.strides for b in some)
    assert any(not b.f.flags.writeable for b in some)
    assert any(b.p is None for b in some)


def test_a_value_that_is_slightly_off(monkeypatch: pytest.MonkeyPatch) -> None:
    b = next(b for b in (batch((0, j)) for j in range(50)) if b.f.shape[-1] == 5 and b.f.dtype == np.float64)
    plant(monkeypatch, lambda out, f: replace(out, value=out.value * (1 + 1e-11)))
    (text, *_) = tasks.solve(b, "numpy")
    assert text.startswith("value: ")
    monkeypatch.undo()
    said: dict[str, Any] = {}
    exec(text.partition("\n")[2], said)  # the snippet runs
    assert said["b"].seed == b.seed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda out, f: replace(out, weights=out.weights * 0), "wrong: .*weights"),
        (lambda out, f: replace(out, gap=out.gap * np.nan), "wrong: .*not finite"),
        (lambda out, f: f.sort() or out, "an argument was modified"),
        (lambda out, f: {}["key"], "KeyError: 'key'"),
    ],
)
def test_what_is_wrong_with_a_call(wrong: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = replace(LOSSES, values=[[1.0, 0.5, 0.0]])
    calls.check(*CALL, f, 1.0, None)
    plant(monkeypatch, wrong)
    with pytest.raises(calls.FaultError, match=message) as error:
        calls.check(*CALL, f, 1.0, None)
    with pytest.raises(calls.FaultError, match=message):
        exec(str(error.value).partition("\n")[2], {})  # the snippet repeats it


def test_every_kind_of_call_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth on top of what each returns is noticed."""
    f, z = (
        replace(LOSSES, values=[1.0, 0.5, 0.25]),
        replace(LOSSES, values=[[1.0, 0.5, 0.25], [3.0, 0.0, 1.0]]),
    )
    names = {name for name in calls.NAMES if name != "primal_value"}

    def more(x: Any) -> Any:
        return x + 0.001 if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f" else x

    for name in sorted(names):
        case = (name, "numpy", "plain", "QUADRATIC", f, 0.5, None)
        calls.check(*case)
        true = getattr(phiball, name)

        def planted(*args: Any, true: Any = true, **kwargs: Any) -> Any:
            out = true(*args, **kwargs)
            if isinstance(out, (np.ndarray, np.generic)):
                return out - 5  # a bound, which is to be too low
            return replace(out, value=more(out.value))

        with monkeypatch.context() as patched:
            patched.setattr(phiball, name, planted)
            with pytest.raises(calls.FaultError, match="wrong"):
                calls.check(*case)
    weak = {"contains", "r2", "r3", "gaussian", "constrained_risk", "linear_model_risk", "quadrature"}
    for name in sorted({*points.METHODS, *points.RISKS} - weak):
        law = (2, 1e-4, None)  # so small that a thousandth leads out of the ball
        case = (name, "numpy", "ENTROPIC", law, z, z, 0.5)
        points.check(*case)
        true_call = points.call
        with monkeypatch.context() as patched:
            patched.setattr(points, "call", lambda *a, c=true_call: tuple(more(x) for x in c(*a)))
            with pytest.raises(points.FaultError, match="wrong"):
                points.check(*case)


def test_a_call_that_does_not_come_back() -> None:
    lines = "import time", "from tests.support.fuzz.watch import watched"
    code = "\n".join((*lines, "with watched(0.3, lambda: 'this call'):", "    time.sleep(60)"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "HANG: not back after 0 s\nthis call" in done.stdout
