"""The library inside threads, event loops, forks and web servers: the same numbers as plain calls."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

import phiball
from phiball.backends import active, backend
from phiball.refimpl import worst_case

ROOT, PACKAGES = Path(phiball.__file__).parent, ("backends", "refimpl", "verification", "experiments")

LOSSES = np.random.default_rng(0).random((40, 5, 7))
VALUES = [worst_case(f, 0.3, "chi2").value for f in LOSSES]

IMPORTING = """
import sys, threading
import numpy as np
import phiball
thread = threading.Thread(target=__import__, args=("torch",))
f, errors = np.arange(3.0), set()
thread.start()
while thread.is_alive():
    for eta in (0.5, np.float64(0.5), np.full((), 0.5)):
        try:
            phiball.worst_case(f, eta)
        except Exception as error:
            errors.add(repr(error))
print(*errors)
"""

# A host with its own event loop and handlers: SIGTERM calls its callback once, and no handler changes.
SIGNALS = """
import asyncio, faulthandler, os, signal
import numpy as np
import phiball

def handlers():
    return [signal.getsignal(s) for s in signal.valid_signals()]

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: called.append(1))
    before = handlers()
    work = asyncio.to_thread(phiball.worst_case, np.arange(3.0), 0.5)  # the first call loads the kernel
    os.kill(os.getpid(), signal.SIGTERM)
    value = (await work).value
    await asyncio.sleep(0.1)
    phiball.worst_case(np.arange(3.0), 0.5, "chi2")
    print(len(called), handlers() == before, repr(float(value)))

called = []
faulthandler.enable()
asyncio.run(main())
"""

# A child forked while another thread compiles a kernel for the first time.
FORKING = """
import os, threading
import numpy as np
import phiball
from numba.core.compiler_lock import global_compiler_lock

f = np.arange(3.0)
phiball.worst_case(f, 0.5)
thread = threading.Thread(target=phiball.worst_case, args=(f, 0.5, "chi2"))
thread.start()
while global_compiler_lock._lock.acquire(blocking=False):
    global_compiler_lock._lock.release()
child = os.fork()
if child == 0:
    for divergence in ("kl", "chi2"):
        print(repr(float(phiball.worst_case(f, 0.5, divergence).value)), flush=True)
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

# A first step of training changes no setting of the host, imports no compiler of torch, and never changes the
# model's training mode, which another thread watches.
TRAINING = """
import os, signal, sys, threading, warnings
import numpy as np
import torch
from phiball import Ball, RegularizedLoss

torch.set_num_threads(1)
loaded, environment = set(sys.modules), dict(os.environ)
handlers = [signal.getsignal(s) for s in signal.valid_signals()]
filters, errors = list(warnings.filters), np.geterr()
layers = torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
model = torch.nn.Sequential(*layers)
x, y, modes = torch.rand(64, 2), torch.arange(64) % 2, set()
ended = threading.Event()

def watch():
    while not ended.is_set():
        modes.add(all(part.training for part in model.modules()))

thread = threading.Thread(target=watch)
state = torch.random.get_rng_state()
thread.start()
objective = RegularizedLoss(Ball(2, 0.5), 1.0)
objective(model[0], x, y, rng=0).backward()
same_state = torch.equal(torch.random.get_rng_state(), state)  # this part of the model draws nothing
passes = model[1].num_batches_tracked.item()
objective(model, x, y, rng=0).backward()
ended.set()
thread.join()
assert model[1].num_batches_tracked.item() == passes + 1  # a step makes one pass, and no pass to check it
assert modes == {True} and same_state
assert not {"torch._dynamo", "torch._inductor", "sympy"} & (set(sys.modules) - loaded)
assert dict(os.environ) == environment
assert [signal.getsignal(s) for s in signal.valid_signals()] == handlers
assert list(warnings.filters) == filters and np.geterr() == errors
"""

# phiball is first imported and called in another thread than the main one, as in embedding hosts.
OFF_MAIN = """
import threading
def work():
    import numpy as np
    import phiball
    print(repr(float(phiball.worst_case(np.arange(3.0), 0.5).value)))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

ZIPPED = """
import sys
import numpy as np
import phiball
x, y = np.array([[0.2], [1.0]]), np.array([1, 1])
model = lambda x: np.concatenate([-x, x], axis=1)
phiball.robustness_report(model, (x, y), norm="linf", radii=[0, 0.5], rng=0).save(sys.argv[1])
print(repr(float(phiball.worst_case(np.arange(3.0), 0.5).value)), ".zip" in phiball.__file__)
"""
FIRST = repr(float(worst_case(np.arange(3.0), 0.5).value))


def _run(code: str, *arguments: str, **environment: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def _value(f: np.ndarray) -> np.ndarray:
    return worst_case(f, 0.3, "chi2").value


def test_threads_give_the_same_numbers() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(_value, LOSSES))
    np.testing.assert_array_equal(found, VALUES)


def test_event_loop_gives_the_same_numbers() -> None:
    async def solve_all() -> list[np.ndarray]:
        return await asyncio.gather(*(asyncio.to_thread(_value, f) for f in LOSSES))

    np.testing.assert_array_equal(asyncio.run(solve_all()), VALUES)


def test_numpy_calls_work_while_another_thread_imports_torch() -> None:
    assert _run(IMPORTING) == []


def test_event_loop_keeps_its_signal_handlers(tmp_path: Path) -> None:
    assert _run(SIGNALS, NUMBA_CACHE_DIR=str(tmp_path)) == ["1", "True", FIRST]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork: not on this system")
def test_child_forked_beside_a_compiling_thread(tmp_path: Path) -> None:
    """The child does not wait for the compilation; its reference code may differ in the last bits."""
    first, second, exit_code = map(float, _run(FORKING, NUMBA_CACHE_DIR=str(tmp_path)))
    assert first == pytest.approx(float(FIRST), rel=1e-14)
    assert second == pytest.approx(float(worst_case(np.arange(3.0), 0.5, "chi2").value), rel=1e-14)
    assert exit_code == 0


def test_first_import_off_the_main_thread() -> None:
    assert _run(OFF_MAIN) == [FIRST]


def test_first_training_step_leaves_the_host_alone() -> None:
    pytest.importorskip("torch", reason="torch: not installed")
    assert _run(TRAINING) == []


class _Solved:
    """A dataset whose items are inner problems, solved in the worker that loads them."""

    def __len__(self) -> int:
        return len(LOSSES)

    def __getitem__(self, k: int) -> np.ndarray:
        return _value(LOSSES[k])


def test_workers_of_a_data_loader_give_the_same_numbers() -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch: not installed")
    found = np.concatenate(list(data.DataLoader(_Solved(), batch_size=8, num_workers=2)))
    np.testing.assert_array_equal(found, VALUES)


def test_backend_can_be_left_in_another_context() -> None:
    """As in the dependencies of web frameworks: only the context that entered is affected; nothing leaks."""
    inside, outside = copy_context(), copy_context()
    before = active().name
    choice = backend("numpy")
    inside.run(choice.__enter__)
    assert inside.run(lambda: active().name) == "numpy"
    outside.run(choice.__exit__, None, None, None)
    assert {outside.run(lambda: active().name), active().name} == {before}
    gc.collect()
    objects = len(gc.get_objects())
    for _ in range(1000):
        choice = backend("numpy")
        copy_context().run(choice.__enter__)
        choice.__exit__(None, None, None)
    del choice
    gc.collect()
    assert len(gc.get_objects()) - objects < 100


def test_web_application_gives_the_same_numbers() -> None:
    fastapi = pytest.importorskip("fastapi", reason="fastapi: not installed")
    testclient = pytest.importorskip("fastapi.testclient", reason="httpx: not installed")
    app = fastapi.FastAPI()

    async def numpy_backend() -> AsyncIterator[None]:
        with backend("numpy"):
            yield

    def in_a_thread() -> Iterator[None]:
        with backend("numpy"):  # entered and left in two threads
            yield

    def answer(k: int) -> dict[str, Any]:
        return {"backend": active().name, "value": _value(LOSSES[k]).tolist()}

    default = active().name
    expected = {"/numpy": "numpy", "/thread": default, "/plain": default}
    for path, dependency in (("/numpy", numpy_backend), ("/thread", in_a_thread), ("/plain", None)):
        app.get(path, dependencies=[] if dependency is None else [fastapi.Depends(dependency)])(answer)
    with testclient.TestClient(app) as client, ThreadPoolExecutor(4) as pool:
        calls = [(path, k) for k in range(len(LOSSES)) for path in expected]
        answers = list(pool.map(lambda call: client.get(f"{call[0]}?k={call[1]}").json(), calls))
    for (path, k), found in zip(calls, answers, strict=True):
        assert found["backend"] == expected[path]
        np.testing.assert_allclose(found["value"], VALUES[k], rtol=1e-15)


def test_report_from_a_zip_file(tmp_path: Path) -> None:
    """Zipped applications import the package, its data files and kernels from the archive."""
    pytest.importorskip("jinja2", reason="jinja2: not installed")
    with ZipFile(tmp_path / "site.zip", "w") as archive:
        for file in [ROOT / "__init__.py", *(f for p in PACKAGES for f in (ROOT / p).rglob("*"))]:
            if file.suffix in (".py", ".pyi", ".j2"):
                archive.write(file, Path("phiball", file.relative_to(ROOT)))
    path = str(tmp_path / "site.zip")
    assert _run(ZIPPED, str(tmp_path / "page.html"), PYTHONPATH=path) == [FIRST, "True"]
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_no_file_is_written_to_the_working_directory_without_home(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    code = "import numpy, phiball; phiball.worst_case(numpy.arange(3.0), 0.5)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
