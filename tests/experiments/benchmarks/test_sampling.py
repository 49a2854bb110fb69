"""The benchmark of samples: its ratios where they are known, and what it says of useless schemes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

pytest.importorskip("scipy", reason="scipy: not installed")

from phiball.experiments.benchmarks import sampling as bench
from phiball.experiments.benchmarks import sampling_cost as cost
from tests.support.progress import Watched


@pytest.mark.parametrize("norm", [1.0, 2.0, inf])
def test_ratios_that_are_known(norm: float) -> None:
    """Plain points have ratio 1, and pairs sqrt 2 on an even function: one value for two points.

    The standard deviation of R means is good to sqrt((kurtosis - 1)/(4R)); a mean of 4 squares or
    more has a kurtosis below 3 + 12/4 = 6, so z = 4.75 (one in a million) allows 0.166 at R = 1024.
    """
    ratios = bench.measure(norm, 3, 8, 1024)
    for name in bench.FUNCTIONS:
        assert ratios[name, "plain"] == pytest.approx(1, rel=0.166)
    assert ratios["square", "antithetic"] == pytest.approx(2**0.5, rel=0.166)
    # What Sobol points are for: a smooth function in few dimensions, and the more points the better.
    assert ratios["loss", "Sobol"] < 1 - 0.166
    assert bench.measure(norm, 3, 64, 512)["loss", "Sobol"] < ratios["loss", "Sobol"]


def rows(ratio: float, n: int = 8) -> list[bench.Row]:
    return [
        bench.Row(function, norm, d, scheme, n, ratio if (norm, d) == ("l1", 2) else 0.5)
        for function in bench.FUNCTIONS
        for norm, d in (("l1", 2), ("linf", 10))
        for scheme in bench.SCHEMES
    ]


def test_where_it_does_not_help_is_reported() -> None:
    lines = bench.no_help([*rows(0.97), *rows(2.0, n=2)])
    assert len(lines) == 9
    assert lines[0] == "loss, n = 8: antithetic points do not help at l1 d=2 (0.97)"
    assert set(bench.no_help(rows(0.5))) >= {"square, n = 8: antithetic Sobol points help at every ball"}


@pytest.mark.slow
def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "repetitions", lambda d, quick: 16)
    watched = Watched(monkeypatch)
    timed = cost.rows
    monkeypatch.setattr(cost, "rows", lambda **how: timed(seconds=0.0, dimensions=(3, 20), numbers=1000))
    result = CliRunner().invoke(app, ["bench", "sampling", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Noise of the mean of the loss" in result.output
    assert "time over that of drawing their random numbers" in result.output
    assert "points of balls: " in result.output
    watched.check()
    assert "| l1 | 2 | Sobol |" in (tmp_path / "sampling.md").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "sampling.json").read_text())
    assert len(record["rows"]) == 3 * 3 * 2 * 4 * 4  # functions, norms, dimensions, schemes, counts
    libraries = 1 + (find_spec("torch") is not None)
    assert len(record["cost"]) == 6 * 2 * libraries * 2  # kinds, dimensions, libraries, precisions
    assert cost.count() == 6 * 3 * libraries * 2
    assert all(row["ratio"] > 0 for row in record["rows"] + record["cost"])


def test_ratios_of_time_and_their_bars() -> None:
    """The ratio of two times that are known, and what is said of bars."""
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    assert cost.paired_ratio(lambda: spend(3.0), lambda: spend(1.5), 20.0, lambda: now[0]) == 2.0
    rows = [
        cost.Row("l2", 10, "numpy", "float32", 1.31, 1.3),
        cost.Row("linf", 10, "numpy", "float32", 1.3, 1.3),
    ]
    assert cost.verdicts(rows) == ["points of balls: ABOVE their bars at l2 d=10 numpy float32 1.31"]
    assert cost.verdicts(rows[1:]) == ["points of balls: all within their bars"]
    assert cost.table(rows).rows == [("l2", "10", "1.3", "1.31"), ("linf", "10", "1.3", "1.30")]
