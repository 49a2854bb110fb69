"""Selection of the active backend and its kernels."""

import asyncio
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from phiball.backends import (
    BACKENDS,
    Backend,
    active,
    array_namespace,
    backend,
    is_array_api_obj,
    kernel,
    selection,
    set_backend,
)
from phiball.backends.numba import solve as numba_solve
from phiball.refimpl import ENTROPIC

NAMES = ["numpy", "numba", "torch", "jax", "cupy", "strict"]


@pytest.fixture(autouse=True)
def _no_backend_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without a selected backend, and restore the selection."""
    monkeypatch.delenv("PHIBALL_BACKEND", raising=False)
    monkeypatch.setattr(selection, "_process_backend", None)


def test_environment_variable_selects_the_backend_or_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    assert active().name == "numba"
    for name in NAMES:
        monkeypatch.setenv("PHIBALL_BACKEND", name)
        assert active() is BACKENDS[name]
    monkeypatch.setenv("PHIBALL_BACKEND", "")
    assert active().name == "numba"
    monkeypatch.setenv("PHIBALL_BACKEND", "abacus")
    with pytest.raises(ValueError, match=f"PHIBALL_BACKEND is 'abacus'; the backends are {', '.join(NAMES)}"):
        active()


@pytest.mark.slow
def test_import_does_not_load_optional_libraries() -> None:
    """array_api_compat.numpy is not loaded either, because it imports numpy.f2py and numpy.testing."""
    code = "import sys, phiball; phiball.worst_case; print(*sys.modules)"
    environment = {"PHIBALL_BACKEND": "abacus"}  # an invalid name is reported only when the backend is used
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    for module in ("numpy.f2py", "numpy.testing", "torch", "numba", "joblib", "phiball.refimpl.linear.fit"):
        assert f" {module} " not in run.stdout
    assert " phiball.refimpl.inner.solvers " in run.stdout, run.stderr


def test_unknown_name_raises_and_lists_the_valid_names() -> None:
    unknown: list[Any] = ["abacus", "NumPy", "", None, ["numpy"]]
    for name in unknown:
        words = f"{re.escape(repr(name))}.*the backends are {', '.join(NAMES)}"
        with pytest.raises(ValueError, match=words):
            set_backend(name)
        with pytest.raises(ValueError, match=words), backend(name):
            pass
    assert active().name == "numba"


def test_missing_library_raises_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module, library, extra in (
        ("torch", "array_api_compat.torch", "torch", "torch"),
        ("cupy", "array_api_compat.cupy", "cupy", "cupy"),
        ("strict", "array_api_strict", "array-api-strict", "dev"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"{name!r} needs {library}.*pip install .*phiball\[{extra}\]"):
            set_backend(name)
        assert active().name == "numba"  # the selection is unchanged


def test_set_backend_overrides_the_variable_and_blocks_override_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "torch")
    set_backend("numba")
    assert active().name == "numba"
    with backend("numpy") as outer:
        assert active() is outer is BACKENDS["numpy"]
        with backend("strict"):
            assert active().name == "strict"
        with pytest.raises(ZeroDivisionError), backend("strict"):
            raise ZeroDivisionError
        assert active().name == "numpy"
    assert active().name == "numba"


def test_set_backend_applies_to_all_threads_and_backend_to_its_own() -> None:
    def active_in_another_thread() -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: active().name).result()

    set_backend("numpy")
    assert active_in_another_thread() == "numpy"
    block = backend("strict")
    assert active_in_another_thread() == active().name == "numpy"  # `backend` takes effect only in `with`
    with block:
        assert active().name == "strict"
        assert active_in_another_thread() == "numpy"
    assert active().name == "numpy"


def test_backend_is_local_to_an_asyncio_task() -> None:
    async def one(name: str) -> list[str]:
        with backend(name):
            seen = [active().name]
            await asyncio.sleep(0)
            return [*seen, active().name]

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(one("numpy"), one("strict")))

    assert asyncio.run(both()) == [["numpy"] * 2, ["strict"] * 2]


def test_namespace_of_numpy_is_numpy_itself() -> None:
    for arrays in ((np.zeros(2),), (np.float64(1.0),), (np.zeros(2), np.float32(1.0)), (np.zeros(2), 1.0)):
        assert array_namespace(*arrays) is np
    assert is_array_api_obj(np.float64(1.0))
    assert not is_array_api_obj(1.0)
    with pytest.raises(TypeError, match=r"expected arrays of one supported library, got builtins\.list"):
        array_namespace([1.0])


@kernel
def triple(x: int, *, plus: int = 0) -> tuple[str, int]:
    """Three times x."""
    return "reference", 3 * x + plus


def test_kernel_replaces_its_reference_unless_not_implemented(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_calls: list[int] = []

    def compiled(x: int, *, plus: int = 0) -> Any:
        kernel_calls.append(x)
        if x > 100:
            raise OverflowError("too large for the kernel")
        return NotImplemented if x % 2 else ("kernel", 3 * x + plus)

    module = ModuleType("quick_kernels")
    module.triple = compiled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quick_kernels", module)
    quick = Backend("quick", "numpy", "numpy", "", {f"{__name__}:triple": "quick_kernels:triple"})
    monkeypatch.setitem(BACKENDS, "quick", quick)
    with backend("quick"):
        assert triple(2, plus=1) == ("kernel", 7)
        assert triple(3, plus=1) == ("reference", 10)
        assert triple.reference(2) == ("reference", 6)  # type: ignore[attr-defined]
        with pytest.raises(OverflowError, match="too large"):  # errors of kernels are raised
            triple(102)
    with backend("numpy"):
        assert triple(2) == ("reference", 6)
    assert kernel_calls == [2, 3, 102]
    assert (triple.__name__, triple.__doc__) == ("triple", "Three times x.")


def test_function_with_the_name_of_a_reference_is_not_replaced() -> None:
    """Kernels are registered by the module and name of the function that they replace, not by name alone."""

    def solve(*arguments: object) -> str:
        return "mine"

    solve.__qualname__ = "solve"  # as at the top of a module
    problem = np.zeros(2), np.ones(()), None, ENTROPIC
    with backend("numba"):
        assert active().kernel("phiball.refimpl.inner.solvers:solve") is numba_solve.solve
        assert kernel(solve)(*problem) == "mine"


def test_every_registered_kernel_replaces_an_existing_reference() -> None:
    for name, chosen in BACKENDS.items():
        for reference in chosen.kernels:
            module, function = reference.split(":")
            assert hasattr(getattr(import_module(module), function), "reference"), reference
            if name == "numba":
                assert callable(chosen.kernel(reference)), reference


def test_kernel_is_imported_on_first_use_or_names_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Backend(
        "late", "numpy", "quicklib", "pip install quicklib", {f"{__name__}:triple": "nowhere:triple"}
    )
    monkeypatch.setitem(BACKENDS, "late", late)
    with backend("late"):
        assert active().kernel("other") is None
        with pytest.raises(ImportError, match=r"'late' needs quicklib.*pip install quicklib"):
            triple(2)
