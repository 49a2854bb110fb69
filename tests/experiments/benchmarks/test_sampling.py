"""The bench of samples: its ratios where they are known, and what it says of schemes that do not help."""

from __future__ import annotations

import json
import sys
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

pytest.importorskip("scipy", reason="scipy: not installed")

from phiball.experiments.benchmarks import sampling as bench


def test_options_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    fake = ModuleType("phiball.experiments.benchmarks.sampling")
    fake.main = given.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "phiball.experiments.benchmarks.sampling", fake)
    result = CliRunner().invoke(app, ["bench", "sampling", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert given == {"quick": True, "out": tmp_path}


def test_scipy_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    result = CliRunner().invoke(app, ["bench", "sampling", "--quick"])
    assert result.exit_code == 1
    assert "need scipy, which is not installed" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("norm", [1.0, 2.0, inf])
def test_ratios_that_are_known(norm: float) -> None:
    """Plain points have ratio 1, and pairs sqrt 2 on an even function: one value for two points.

    The standard deviation of R means is good to sqrt((kurtosis - 1)/(4R)); a mean of 4 squares or
    more has a kurtosis below 3 + 12/4 = 6, so z = 4.75 (one in a million) allows 0.166 at R = 1024.
    """
    found = bench.measure(norm, 3, 8, 1024)
    for name in bench.FUNCTIONS:
        assert found[name, "plain"] == pytest.approx(1, rel=0.166)
    assert found["square", "antithetic"] == pytest.approx(2**0.5, rel=0.166)
    # What Sobol points are for: a smooth function in few dimensions, and the more points the better.
    assert found["loss", "Sobol"] < 1 - 0.166
    assert bench.measure(norm, 3, 64, 512)["loss", "Sobol"] < found["loss", "Sobol"]


def rows(ratio: float, n: int = 8) -> list[bench.Row]:
    return [
        bench.Row(function, norm, d, scheme, n, ratio if (norm, d) == ("l1", 2) else 0.5)
        for function in bench.FUNCTIONS
        for norm, d in (("l1", 2), ("linf", 10))
        for scheme in bench.SCHEMES
    ]


def test_where_it_does_not_help_is_said() -> None:
    lines = bench.no_help([*rows(0.97), *rows(2.0, n=2)])
    assert len(lines) == 9
    assert lines[0] == "loss, n = 8: antithetic does not help at l1 d=2 (0.97)"
    assert set(bench.no_help(rows(0.5))) >= {"square, n = 8: both helps at every ball"}


def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "repetitions", lambda d, quick: 16)
    result = CliRunner().invoke(app, ["bench", "sampling", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Noise of the mean of the loss" in result.output
    record = json.loads((tmp_path / "sampling.json").read_text())["rows"]
    assert len(record) == 3 * 3 * 2 * 4 * 4  # functions, norms, dimensions, schemes, counts
    assert all(row["ratio"] > 0 for row in record)
