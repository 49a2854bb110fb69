"""Solves after interrupts are correct, and no thread keeps running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import random, signal, sys, time
import numpy as np
import phiball.backends.numba.solve
from phiball.backends import backend
from phiball.refimpl import QUADRATIC, worst_case

def handler(_, frame):
    if frame.f_code.co_filename != "<string>":  # in the library, not in this script
        raise KeyboardInterrupt

f = np.random.default_rng(4).exponential(size=(1500, 800))
if sys.argv[1] == "first":  # interrupt the first solve, which compiles the kernel
    delays, pause = (0.05, 0.3, 0.6, 1.0), 0.0
else:  # repeat the interrupt every `pause` seconds, also while the first one is handled
    worst_case(f, 0.1, QUADRATIC)
    delays, pause = [random.Random(k).uniform(1e-5, 2e-3) for k in range(600)], 2e-4
signal.signal(signal.SIGALRM, handler)
interrupts = 0
for delay in delays:
    signal.setitimer(signal.ITIMER_REAL, delay, pause)
    try:
        worst_case(f, 0.1, QUADRATIC)
    except KeyboardInterrupt:
        interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
value = worst_case(f, 0.1, QUADRATIC).value
with backend("numpy"):
    np.testing.assert_allclose(value, worst_case(f, 0.1, QUADRATIC).value, rtol=1e-12)
began = time.process_time()
time.sleep(0.3)
assert time.process_time() - began < 0.2, "a thread keeps running"
print(interrupts)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.parametrize(("when", "min_interrupts"), [("first", 1), ("later", 20)])
def test_solves_after_interrupts_are_correct(when: str, min_interrupts: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PHIBALL_THREADS": "3", "PHIBALL_BACKEND": "numba"}
    if when == "first":  # with an empty cache, so that the kernel is compiled
        environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", CODE, when], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= min_interrupts
