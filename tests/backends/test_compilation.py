"""Compiled kernels are cached on disk if possible."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from phiball.backends.numba import compilation
from tests.support.paths import ROOT

SOLVE = """
import numpy as np
from phiball.backends.numba.powers import solve_power
from phiball.refimpl import cressie_read, worst_case
def solve():
    value = worst_case(np.array([[0.0, 1.0]]), 2.0, cressie_read(3), p=np.array([0.5, 0.5])).value
    np.testing.assert_allclose(value, 0.5625, rtol=1e-14)
"""


def _run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_second_process_loads_the_kernel_from_disk(tmp_path: Path) -> None:
    code = SOLVE + (
        "solve()\nstats = solve_power.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [_run(code, **environment) for _ in range(2)]
    assert [run.stdout.split() for run in runs] == [["0", "1"], ["1", "0"]], runs[0].stderr


def test_cache_is_invalidated_by_a_change_in_any_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba itself does not detect changes in functions of other files."""
    for name in ("compilation.py", "primitives.py"):
        (tmp_path / name).write_text("1\n")
    monkeypatch.setattr(compilation, "files", lambda package: tmp_path)
    compilation._sources_hash.cache_clear()
    before = compilation._sources_hash()
    (tmp_path / "primitives.py").write_text("2\n")
    compilation._sources_hash.cache_clear()
    assert compilation._sources_hash() != before
    compilation._sources_hash.cache_clear()


@pytest.mark.slow
def test_solving_works_with_a_warning_if_no_cache_folder_is_writable(tmp_path: Path) -> None:
    """In many containers, the installation and the home folder are read-only."""
    package = tmp_path / "site" / "phiball"
    for name in ("backends", "refimpl"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "__init__.py", package)
    # Existing files of the same name prevent even root from creating these folders.
    (package / "backends" / "numba" / "__pycache__").touch()
    nowhere = tmp_path / "a file"
    nowhere.touch()
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), f"{nowhere}/folder")
    path = {"PYTHONPATH": str(tmp_path / "site"), "PATH": os.environ["PATH"], "PHIBALL_BACKEND": "numba"}
    code = f"import phiball; assert {str(package)!r} in phiball.__file__\n{SOLVE}solve()"
    run = _run(code, **path, **places)
    assert run.returncode == 0, run.stderr
    (line,) = run.stderr.splitlines()
    assert line.startswith("no cache folder for compiled kernels is writable")


def test_kernels_run_without_compilation() -> None:
    """NUMBA_DISABLE_JIT is used for debugging and coverage."""
    run = _run(SOLVE + "solve()", **{**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert run.returncode == 0, run.stderr
