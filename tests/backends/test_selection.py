"""Which backend is active, and how a kernel stands in for its reference."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType
from typing import Any

import pytest

from phiball.backends import BACKENDS, Backend, active, kernel, selection, use

NAMES = ["numpy", "numba", "torch", "cupy", "strict"]


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice made yet, and none left behind."""
    monkeypatch.delenv("PHIBALL_BACKEND", raising=False)
    monkeypatch.setattr(selection, "_calls", [])


def test_the_backends_are_these() -> None:
    assert sorted(BACKENDS) == sorted(NAMES)
    assert all(BACKENDS[name].name == name for name in NAMES)


def test_numba_is_the_default() -> None:
    assert active().name == "numba"


@pytest.mark.parametrize("name", NAMES)
def test_the_variable_is_read_when_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", name)
    assert active().name == name
    monkeypatch.setenv("PHIBALL_BACKEND", "")
    assert active().name == "numba"


@pytest.mark.slow
def test_a_bad_variable_does_not_disturb_the_import() -> None:
    code = (
        "import os, phiball.refimpl, phiball.backends as b\n"
        "try: b.active()\n"
        "except ValueError as error: print(error)\n"
        "os.environ['PHIBALL_BACKEND'] = 'strict'\n"
        "print(b.active().name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PHIBALL_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=True,
    )
    message, name = run.stdout.splitlines()
    assert "PHIBALL_BACKEND" in message
    assert "'jax'" in message
    assert name == "strict"


@pytest.mark.parametrize("name", ["jax", "NumPy", "", None, ["numpy"]])
def test_an_unknown_name_lists_the_valid_ones(name: Any) -> None:
    with pytest.raises(ValueError, match="the backends are") as error:
        use(name)
    assert repr(name) in str(error.value)
    assert all(valid in str(error.value) for valid in NAMES)
    assert active().name == "numba"


def test_an_unknown_variable_lists_the_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "jax")
    with pytest.raises(ValueError, match="PHIBALL_BACKEND is 'jax'") as error:
        active()
    assert all(valid in str(error.value) for valid in NAMES)


@pytest.mark.parametrize(
    ("name", "module", "library", "extra"),
    [
        ("torch", "array_api_compat.torch", "torch", r"phiball\[torch\]"),
        ("cupy", "array_api_compat.cupy", "cupy", r"phiball\[cupy\]"),
        ("strict", "array_api_strict", "array-api-strict", r"phiball\[dev\]"),
    ],
)
def test_a_missing_library_names_the_extra(
    name: str, module: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{name!r} needs {library}.*pip install .*{extra}"):
        use(name)
    assert active().name == "numba"  # a failed choice changes nothing


def test_a_missing_kernel_library_says_what_to_install() -> None:
    backend = Backend(
        "quick",
        "array_api_compat.numpy",
        "quicklib",
        "pip install quicklib",
        {"solve": "no_such_module:solve"},
    )
    with pytest.raises(ImportError, match=r"'quick' needs quicklib.*pip install quicklib"):
        backend.kernel("solve")


def test_a_call_lasts_and_outranks_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    use("strict")
    assert active().name == "strict"
    monkeypatch.setenv("PHIBALL_BACKEND", "torch")
    assert active().name == "strict"
    use("numpy")
    assert active().name == "numpy"


def test_blocks_nest_and_end() -> None:
    use("numba")
    with use("numpy") as outer:
        assert active() is outer is BACKENDS["numpy"]
        with use("strict"):
            assert active().name == "strict"
        assert active().name == "numpy"
        with pytest.raises(ZeroDivisionError), use("strict"):
            raise ZeroDivisionError
        assert active().name == "numpy"
    assert active().name == "numba"


def test_a_block_leaves_the_variable_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    with use("numpy"):
        pass
    monkeypatch.setenv("PHIBALL_BACKEND", "strict")
    assert active().name == "strict"


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_call_is_for_every_thread_and_a_block_for_its_own() -> None:
    use("numpy")
    assert in_thread(lambda: active().name) == "numpy"
    with use("strict"):
        assert in_thread(lambda: active().name) == "numpy"
    in_thread(lambda: use("strict"))
    assert active().name == "strict"


def test_blocks_of_two_threads_leave_nothing_behind() -> None:
    made_first, made_second, entered_first = Event(), Event(), Event()

    def first() -> str:
        chosen = use("numpy")
        made_first.set()
        made_second.wait(10)  # both are made before either is entered
        with chosen:
            entered_first.set()
            return active().name

    def second() -> str:
        made_first.wait(10)
        chosen = use("strict")
        made_second.set()
        entered_first.wait(10)
        with chosen:
            return active().name

    with ThreadPoolExecutor(2) as pool:
        names = [work.result() for work in (pool.submit(first), pool.submit(second))]
    assert names == ["numpy", "strict"]
    assert active().name == "numba"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A backend with a kernel `triple` that declines odd numbers; it notes what it was asked."""
    asked: list[int] = []

    def triple(x: int, *, plus: int = 0) -> Any:
        asked.append(x)
        if x > 100:
            raise OverflowError("too large for the kernel")
        return NotImplemented if x % 2 else ("kernel", 3 * x + plus)

    module = ModuleType("quick_kernels")
    module.triple = triple  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quick_kernels", module)
    backend = Backend("quick", "array_api_compat.numpy", "numpy", "", {"triple": "quick_kernels:triple"})
    monkeypatch.setitem(BACKENDS, "quick", backend)
    return asked


@kernel
def triple(x: int, *, plus: int = 0) -> tuple[str, int]:
    """Three times x."""
    return "reference", 3 * x + plus


def test_a_kernel_stands_in_unless_it_declines(quick: list[int]) -> None:
    with use("quick"):
        assert triple(2, plus=1) == ("kernel", 7)
        assert triple(3, plus=1) == ("reference", 10)
        assert quick == [2, 3]
        assert triple.reference(2) == ("reference", 6)  # type: ignore[attr-defined]
    assert quick == [2, 3]


def test_another_backend_does_not_consult_it(quick: list[int]) -> None:
    with use("numpy"):
        assert triple(2) == ("reference", 6)
    assert quick == []


def test_an_error_in_a_kernel_is_not_swallowed(quick: list[int]) -> None:
    with use("quick"), pytest.raises(OverflowError, match="too large"):
        triple(102)


def test_the_name_and_the_docstring_are_kept() -> None:
    assert triple.__name__ == "triple"
    assert triple.__doc__ == "Three times x."


def test_a_kernel_is_imported_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend("late", "array_api_compat.numpy", "numpy", "", {"triple": "no_such_module:triple"})
    monkeypatch.setitem(BACKENDS, "late", backend)
    with use("late"):
        assert active().kernel("other") is None
        with pytest.raises(ImportError):
            triple(2)
