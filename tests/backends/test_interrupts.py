"""Ctrl-C, during a first compilation and in a storm: later solves answer, are right, and nothing spins."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import signal, sys, time
import numba, numpy as np
from phiball.backends import use
from phiball.refimpl import QUADRATIC, worst_case

def handler(*_):
    if armed:
        raise KeyboardInterrupt

first = sys.argv[1] == "first"
f = np.random.default_rng(4).exponential(size=(1500, 800))
armed, interrupts = False, 0
signal.signal(signal.SIGINT, handler)
if not first:
    worst_case(f, 0.1, QUADRATIC)
print("ready", flush=True)
end = time.monotonic() + 2
while time.monotonic() < end or not interrupts:
    try:
        armed = True
        worst_case(f, 0.1, QUADRATIC)
        armed = False
    except KeyboardInterrupt:
        armed = False
        interrupts += 1
        if first:
            break
signal.signal(signal.SIGINT, signal.SIG_IGN)
value = worst_case(f, 0.1, QUADRATIC).value
with use("numpy"):
    np.testing.assert_allclose(value, worst_case(f, 0.1, QUADRATIC).value, rtol=1e-12)
began = time.process_time()
time.sleep(0.3)
assert time.process_time() - began < 0.2, "a thread spins"
print(interrupts, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "rate"), [("first", 1), ("later", 5), ("later", 500)])
def test_solves_after_interrupts_are_right(when: str, rate: int, tmp_path: Path) -> None:
    """`first` interrupts once, while the kernel is compiled: the cache is empty."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)} if when == "first" else {}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, when],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PHIBALL_THREADS": "3", "PHIBALL_BACKEND": "numba", **cache},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    moments, latest = random.Random(rate), time.monotonic() + 300
    while process.poll() is None:
        time.sleep(moments.expovariate(rate))
        process.send_signal(signal.SIGINT if time.monotonic() < latest else signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert int(out) > 0
