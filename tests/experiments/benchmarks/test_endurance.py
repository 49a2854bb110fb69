"""The benchmark of long runs: trends, verdicts, and a leak that is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("scipy", reason="scipy: not installed")

from phiball.experiments.benchmarks import endurance as bench  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from tests.support.progress import Watched  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_trend_of_a_straight_line() -> None:
    rise = bench.trend([1.0 + 0.5 * k for k in range(9)])
    assert rise.change == pytest.approx(4.0)
    assert rise.half_width == pytest.approx(0.0, abs=1e-12)
    noisy = bench.trend(list(np.random.default_rng(0).normal(size=50)))
    assert 0.3 < noisy.half_width < 3
    assert f"{bench.Trend(0.5, 0.25):.2f}" == "+0.50 ± 0.25"


def windows(**change: list[float]) -> list[bench.Window]:
    steady: dict[str, list[float]] = {
        "memory": [100.0] * 20,
        "objects": [9] * 20,
        "threads": [2] * 20,
        "files": [5] * 20,
        "time": [3.0] * 20,
    }
    columns = {**steady, **change}
    return [bench.Window(k, *(columns[name][k] for name in steady)) for k in range(20)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "steady"),
        ({"memory": [50.0 * min(k, 3) for k in range(20)]}, "steady"),  # while it warms up
        ({"memory": [100 + 0.05 * k for k in range(20)]}, "steady"),  # less than a MB
        ({"memory": [100 + 0.1 * k for k in range(20)]}, "GREW: memory"),
        ({"threads": [2 + k // 10 for k in range(20)]}, "GREW: threads"),
        ({"files": [5 + k for k in range(20)], "time": [1.01**k for k in range(20)]}, "GREW: files, time"),
        ({"time": [0.99**k for k in range(20)]}, "steady"),
        ({"time": [3.0 + k % 2 for k in range(20)]}, "steady, but times are too noisy"),
    ],
)
def test_verdicts(change: dict[str, list[float]], verdict: str) -> None:
    assert bench.Run("SG", windows(**change)).verdict == verdict


@pytest.mark.slow
def test_the_whole_bench_notices_a_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    sound = bench.METHODS["entropic, SG(2), l2"]

    def leaks(loss: Any, x: Any, *, rng: Any) -> Any:
        kept.append(torch.ones(1 << 16))  # 256 kB
        return sound(loss, x, rng=rng)

    monkeypatch.setattr(bench, "METHODS", {"sound": sound, "leaks": leaks})
    monkeypatch.setattr(bench, "WINDOW", 10)
    watched = Watched(monkeypatch)
    result = CliRunner().invoke(app, ["bench", "endurance", "--steps", "205", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "leaks: GREW: memory" in result.output
    watched.check(20)
    sound_run, leaky_run = json.loads((tmp_path / "endurance.json").read_text())["runs"]
    assert [window["step"] for window in sound_run["windows"]] == list(range(10, 201, 10))
    # Some of what leaks, 45 MB, may fill room that was free before.
    grown = [run["windows"][-1]["memory"] - run["windows"][4]["memory"] for run in (sound_run, leaky_run)]
    assert grown[0] < 5 < 15 < grown[1]
    assert "| leaks |" in (tmp_path / "endurance.md").read_text(encoding="utf-8")


def test_too_few_steps_are_one_line() -> None:
    result = CliRunner().invoke(app, ["bench", "endurance", "--steps", "900"])
    assert result.exit_code == 1
    assert result.stderr == "phiball: steps is 900; expected at least 1000, to see a trend\n"
