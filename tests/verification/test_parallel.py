"""Claims on several processes give the same results, and Ctrl-C ends all processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phiball.verification.framework.suite import find_claims, run_claims
from tests.support.parallel.clusters import wait_until

COMPARE = """
from dataclasses import replace
from phiball.backends import backend
from phiball.verification.framework.suite import find_claims, run_claims
from phiball.verification.report.json import to_json

def without_times(results):
    return to_json([replace(result, seconds=0.0) for result in results], {})

def show(result):
    print(result.id)

with backend("strict"):  # also used by the worker processes
    claims = find_claims("pricing")
    results = run_claims(claims, n_jobs=2, seed=3, on_result=show)
    assert without_times(results) == without_times(run_claims(claims, seed=3))
assert [result.id for result in results] == [claim.id for claim in claims]
"""


@pytest.mark.slow
def test_results_and_their_order_do_not_depend_on_the_number_of_processes() -> None:
    """Runs in a new process: Hypothesis also tries constants of the modules that other tests import."""
    ended = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [claim.id for claim in find_claims("pricing")]
    with pytest.raises(ValueError, match="n_jobs is 0; expected"):
        run_claims(find_claims("pricing"), n_jobs=0)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="process groups: not on this system")
def test_ctrl_c_ends_all_processes_of_verify(tmp_path: Path) -> None:
    code = "from phiball.experiments.cli.main import main; main()"
    options = ["--section", "2", "--n-jobs", "2", "--verbose", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "verify", *options],
        env={**os.environ, "PHIBALL_BACKEND": "numpy", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(4):  # wait for the header, an empty line, the section and the first claim
        process.stdout.readline()
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.splitlines()[-1] == "phiball: stopped"
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []

    def is_gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, "a process is still running")
