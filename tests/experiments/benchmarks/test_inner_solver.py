"""The benchmark of the inner solver: every solver is right, and what is written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

pytest.importorskip("mpmath", reason="mpmath: not installed")

from phiball.experiments.benchmarks import inner_solver as bench
from phiball.experiments.benchmarks import timing


def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((3, 8), (2, 64))
    monkeypatch.setattr(bench, "SHAPES", shapes)
    monkeypatch.setattr(bench, "rows", partial(bench.rows, shapes=shapes))
    monkeypatch.setattr(bench, "ratio", lambda work, unit, seconds: (work(), 2.0)[1])
    monkeypatch.delenv("PHIBALL_THREADS", raising=False)
    result = CliRunner().invoke(app, ["bench", "inner", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "worst m·error of gamma" in result.output
    rows = json.loads((tmp_path / "inner.json").read_text())["rows"]
    assert {row["problem"] for row in rows} == set(bench.FAMILIES)
    assert len({(row["problem"], row["solver"]) for row in rows}) == len(rows) / len(shapes)
    for row in rows:
        assert row["ratio"] == 2.0
        assert (row["error"] is None) == (bench.VALUE_ONLY in row["solver"])
        # Bisection stops at a tolerance; a weight moves by as much over eta, times m.
        assert (row["error"] or 0.0) < (1e-4 if "bisection" in row["solver"] else 1e-8), row


def test_a_ratio_of_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower quartiles: rare slow runs do not count."""
    now = [0.0]
    costs = iter([3.0, 3.0, 300.0, 3.0, 3.0, 300.0, *[3.0] * 99])

    def work() -> Any:
        now[0] += next(costs)

    def unit() -> Any:
        now[0] += 1.5

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.ratio(work, unit, 1.0) == 2.0
