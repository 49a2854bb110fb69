"""`import phiball`: light, lazy, and with the public names of refimpl."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phiball
from phiball import QUADRATIC, Ball, backends, refimpl, worst_case
from phiball import rng as make_rng
from phiball.experiments import robustness
from tests.support.paths import ROOT

ELSEWHERE = {"input_gradient": backends, "rng": backends, "robustness_report": robustness}
NAMES = [*refimpl.__all__, *ELSEWHERE]


def test_a_public_name_is_the_one_of_its_package() -> None:
    for name in NAMES:
        package: Any = ELSEWHERE.get(name, refimpl)
        assert getattr(phiball, name) is getattr(package, name), name


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from phiball import *", names)
    assert {name for name in names if name != "__builtins__"} == set(NAMES)


def test_dir_lists_all_names() -> None:
    assert {*NAMES, "__version__", "backends", "experiments", "refimpl", "verification"} <= set(dir(phiball))


def test_the_version_is_that_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{phiball.__version__}"\n' in text


def test_names_pickle() -> None:
    assert pickle.loads(pickle.dumps(worst_case)) is worst_case
    assert pickle.loads(pickle.dumps(QUADRATIC)) == QUADRATIC
    assert pickle.loads(pickle.dumps(Ball(2, 0.5))) == Ball(2, 0.5)
    assert pickle.loads(pickle.dumps(make_rng)) is make_rng


def test_a_typo_is_answered_with_a_suggestion() -> None:
    unknown: Any = phiball
    with pytest.raises(
        AttributeError, match=r"^module 'phiball' has no .*'worstcase'; did you mean 'worst_case'\?$"
    ):
        _ = unknown.worstcase
    with pytest.raises(AttributeError, match=r"^module 'phiball' has no attribute 'xyzzy'$"):
        _ = unknown.xyzzy
    with pytest.raises(ImportError, match="cannot import name 'best_case'"):
        exec("from phiball import best_case")


def fresh(code: str, folder: Path) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PHIBALL")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


LOADED = "print(*[name for name in ('numpy', 'phiball.refimpl', 'phiball.backends') if name in sys.modules])"


@pytest.mark.parametrize("use", ["", "phiball.__version__", "hasattr(phiball, '__wrapped__')"])
def test_the_import_loads_nothing(use: str, tmp_path: Path) -> None:
    assert fresh(f"import sys, phiball\n{use}\n{LOADED}", tmp_path) == []


@pytest.mark.slow
def test_the_first_use_loads_what_it_needs(tmp_path: Path) -> None:
    assert fresh(f"import sys, phiball\nphiball.rng\n{LOADED}", tmp_path) == ["numpy", "phiball.backends"]
    assert len(fresh(f"import sys, phiball\nphiball.worst_case\n{LOADED}", tmp_path)) == 3


@pytest.mark.slow
def test_sub_packages_resolve(tmp_path: Path) -> None:
    code = "import phiball\nprint(phiball.refimpl.Ball is phiball.Ball, phiball.backends.rng is phiball.rng)"
    assert fresh(code, tmp_path) == ["True", "True"]
    code = "import phiball.refimpl.inner.worst_case as module\nprint(module.worst_case.__name__)"
    assert fresh(code, tmp_path) == ["worst_case"]


@pytest.mark.slow
def test_type_checkers_know_the_names(tmp_path: Path) -> None:
    """They read the block under TYPE_CHECKING, which takes over all of refimpl's names at once."""
    pytest.importorskip("mypy", reason="mypy: not installed")
    (tmp_path / "use.py").write_text(
        "import phiball\n"
        "from phiball import Ball, rng\n"
        "reveal_type(phiball.worst_case)\n"
        "reveal_type(phiball.__version__)\n"
        "reveal_type(Ball(2, 0.5))\n"
        "reveal_type(rng(0))\n"
        "phiball.backends.set_backend('numpy')\n"
        "phiball.worstcase\n",
        encoding="utf-8",
    )
    (tmp_path / "phiball").symlink_to(ROOT)
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache")]  # a second run takes seconds
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "use.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = run.stdout.splitlines()
    for number, text in (
        (3, "-> phiball.refimpl.inner.worst_case.WorstCase"),
        (4, '"str"'),
        (5, '"phiball.refimpl.laws.balls.Ball"'),
        (6, '"phiball.backends.random.Rng"'),
        (8, 'Module has no attribute "worstcase"'),
    ):
        assert any(line.startswith(f"use.py:{number}: ") and text in line for line in lines), run.stdout
    assert [line for line in lines if "error:" in line and not line.startswith("use.py:8:")] == []
