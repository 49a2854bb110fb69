"""The library inside threads, event loops and shells: the same numbers as plain calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from phiball.refimpl import worst_case

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
    run = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_no_folder_is_made_without_home(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    code = "import numpy, phiball; phiball.worst_case(numpy.arange(3.0), 0.5)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
