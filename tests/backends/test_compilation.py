"""Compiled functions: kept on disk where that is possible, and right where files are damaged or refused."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numba
import pytest

from phiball.backends.numba import compilation
from tests.support.paths import ROOT

SOURCE = """
from phiball.backends.numba.compilation import compiled

@compiled()
def double(x):
    return 2 * x
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A function that loads a compiled function of a file, as a new process does."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "source.py").write_text(SOURCE)
    compilation._say_that_nothing_is_kept.cache_clear()

    def load() -> Any:
        spec = spec_from_file_location("source", tmp_path / "source.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        compilation._digest.cache_clear()
        return module.double

    return load


def _hits(function: Any) -> tuple[int, int]:
    return function.stats.cache_hits.total(), function.stats.cache_misses.total()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "its last byte missing": lambda content: content[:-1],
    "a byte changed": lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
    "its checksum changed": lambda content: bytes(32) + content[32:],
    "of another program": lambda content: b"\x80\x04N.",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(
    damage: str, load: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load()(1.5) == 3.0
    again = load()
    assert again(1.5) == 3.0
    assert _hits(again) == (1, 0)
    (file,) = (tmp_path / "cache").rglob("*.kernel")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with caplog.at_level(logging.WARNING, logger="phiball"):
        mended = load()
        assert mended(1.5) == 3.0
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{file} is damaged (")
    assert _hits(mended) == (0, 1)
    again = load()
    assert again(1.5) == 3.0
    assert _hits(again) == (1, 0)
    assert len(list(file.parent.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners of files")
@pytest.mark.parametrize("how", ["of another user", "all may write to it"])
def test_what_another_user_can_have_written_is_not_loaded(
    how: str,
    load: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is unpickled, which would run what it says."""
    assert load()(1.5) == 3.0
    (file,) = (tmp_path / "cache").rglob("*.kernel")
    if how == "of another user":
        fstat = os.fstat

        def of_another(descriptor: int) -> Any:
            status = list(fstat(descriptor))
            status[4] = 123456789  # st_uid
            return os.stat_result(status)

        monkeypatch.setattr(compilation.os, "fstat", of_another)
    else:
        file.chmod(0o666)
    monkeypatch.setattr(compilation.pickle, "loads", lambda body: pytest.fail("it was unpickled"))
    with caplog.at_level(logging.WARNING, logger="phiball"):
        assert load()(1.5) == 3.0
    assert f"{file} is of another user; it is compiled again" in caplog.messages
    monkeypatch.undo()


def test_a_changed_source_is_noticed(load: Callable[[], Any], tmp_path: Path) -> None:
    """And what was made from the old one is dropped."""
    assert load()(1.5) == 3.0
    (old,) = (tmp_path / "cache").rglob("*.kernel")
    (tmp_path / "source.py").write_text(SOURCE.replace("2 * x", "4 * x"))
    assert load()(1.5) == 6.0
    assert load()(2) == 8
    kept = list((tmp_path / "cache").rglob("*.kernel"))
    assert len(kept) == 2
    assert old not in kept


@pytest.mark.parametrize("when", ["before", "between", "full"])
def test_without_a_folder_it_works_and_says_so_once(
    when: str,
    load: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is none from the beginning, it goes away before the first call, or the disk is full."""
    cache = tmp_path / "cache"
    if when == "before":
        for folder in (cache, tmp_path / "__pycache__", tmp_path / "home"):
            folder.write_text("a file where a folder should be")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with caplog.at_level(logging.WARNING, logger="phiball"):
        functions = [load(), load()]
        if when == "between":
            shutil.rmtree(cache)
            cache.write_text("a file where a folder was")
        elif when == "full":
            monkeypatch.setattr(Path, "replace", _fail)
        for function in functions:
            assert function(1.5) == 3.0
    (record,) = caplog.records
    assert record.getMessage().startswith("kernels are compiled again in each process (")
    assert record.getMessage().endswith("let NUMBA_CACHE_DIR name a folder")
    assert not list(tmp_path.rglob("*.kernel*"))


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )


SOLVE = """
import numpy as np
from phiball.refimpl import ENTROPIC, worst_case
def solve():
    value = worst_case(np.array([[0.0, 1.0]]), 0.5, ENTROPIC).value
    np.testing.assert_allclose(value, 0.5 * np.log((1 + np.exp(2)) / 2))
"""


@pytest.mark.slow
def test_an_installation_that_cannot_be_written_to(tmp_path: Path) -> None:
    """And no home and no folder for the cache, as in many containers."""
    package = tmp_path / "site" / "phiball"
    for name in ("backends", "refimpl"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "__init__.py", package)
    # A file in its place keeps the folder from being made, even for root, whom no permission stops.
    (package / "backends" / "numba" / "__pycache__").touch()
    nowhere = tmp_path / "a file"
    nowhere.touch()
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), f"{nowhere}/folder")
    path = {"PYTHONPATH": str(tmp_path / "site"), "PATH": os.environ["PATH"], "PHIBALL_BACKEND": "numba"}
    run = _run(
        f"import phiball; assert {str(package)!r} in phiball.__file__\n{SOLVE}solve()", **path, **places
    )
    assert run.returncode == 0, run.stderr
    (line,) = run.stderr.splitlines()
    assert line.startswith("kernels are compiled again in each process (no folder")


FORK = """
import os, signal, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
first = threading.Thread(target=solve)
first.start()
time.sleep({wait})
child = os.fork()
if child == 0:
    signal.alarm(60)
    solve()
    os._exit(0)
first.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("wait", [0.1, 1.5])
def test_a_fork_while_another_thread_imports_or_compiles(wait: float, tmp_path: Path) -> None:
    run = _run(SOLVE + FORK.replace("{wait}", str(wait)), **{**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)})
    assert run.returncode == 0, run.stderr


def test_kernels_run_where_nothing_is_compiled() -> None:
    """NUMBA_DISABLE_JIT is for debuggers, and for measuring which lines of the kernels run."""
    run = _run(SOLVE + "solve()", **{**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert run.returncode == 0, run.stderr
