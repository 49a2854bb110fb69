"""The commands of the benchmarks: options reach them, and a missing package is one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

QUICK: dict[str, Any] = {"threads": 2, "quick": True}
OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "inner_solver": (
        ["--threads", "2", "--busy"],
        {"threads": 2, "quick": False, "busy": True, "against": None},
    ),
    "scaling": (["--axis", "m", "--quick"], {"axis": "m", "quick": True}),
    "endurance": (["--steps", "2000", "--seed", "3"], {"steps": 2000, "quick": False, "seed": 3}),
    "attacks": (["--threads", "2", "--quick"], QUICK),
    "sampling": (["--quick"], {"quick": True}),
    "linear": (["--quick"], {"quick": True}),
    "settings": (["--threads", "2", "--quick"], QUICK),
    "estimators": (["--threads", "2", "--quick", "--seed", "3"], {**QUICK, "seed": 3}),
    "training": (
        ["--threads", "2", "--width", "8", "--full", "--part", "cost", "--seed", "3"],
        {"threads": 2, "width": 8, "quick": False, "full": True, "part": "cost", "seed": 3},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_passed_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"phiball.experiments.benchmarks.{name}"
    fake, received = ModuleType(module), dict[str, Any]()
    fake.main = received.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, fake)
    arguments, expected = OPTIONS[name]
    result = CliRunner().invoke(app, ["bench", name.partition("_")[0], *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert received == {**expected, "out": tmp_path}


@pytest.mark.parametrize("name", ["attacks", "settings", "estimators", "training", "endurance"])
def test_torch_is_named_where_it_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    result = CliRunner().invoke(app, ["bench", name, "--quick"])
    assert result.exit_code == 1
    user = f"bench {name}{' --part stages' if name == 'training' else ''}"
    message = f"{user} needs torch, which is not installed: pip install 'phiball[bench]'"
    assert result.stderr == f"phiball: {message}\n"


@pytest.mark.parametrize("name", ["attacks", "settings", "estimators"])
def test_scikit_learn_is_named_where_it_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch: not installed")
    monkeypatch.delenv("PHIBALL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = CliRunner().invoke(app, ["bench", name, "--quick"])
    assert result.exit_code == 1
    message = "the data set digits needs scikit-learn, which is not installed: "
    assert result.stderr == f"phiball: {message}pip install 'phiball[experiments]'\n"


def test_scipy_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="scipy: not installed")
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    result = CliRunner().invoke(app, ["bench", "sampling", "--quick"])
    assert result.exit_code == 1
    assert "need scipy, which is not installed" in result.stderr
    assert len(result.stderr.splitlines()) == 1
