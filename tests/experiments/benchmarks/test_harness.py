"""The benchmark harness: ratios of times, accuracy, memory and reports."""

import json
import os
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.experiments.benchmarks import harness
from phiball.experiments.benchmarks.harness import BenchmarkReport, BenchmarkTable, Contestant


class FakeClock:
    """A clock that only the functions returned by `spending` advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def spending(self, *costs: float) -> Callable[[], None]:
        """A function that takes each of these times in turn, then always the last."""
        left = list(costs)

        def work() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return work


def test_ratios_ignore_interruptions_unless_the_cost_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, costs = FakeClock(), (3.0, 3.0, 3.0, 300.0, 3.0)
    monkeypatch.setattr(harness.time, "perf_counter", clock)
    contestants = [
        Contestant("steady", clock.spending(*costs)),
        Contestant("random", clock.spending(*costs), varies=True),
        Contestant("slow", clock.spending(6.0)),
    ]
    found = harness.compare(clock.spending(1.5), contestants, seconds=100.0, rounds=3, clock=clock)
    assert found["steady"].ratio == 2.0
    assert found["random"].ratio > 2.0
    assert found["slow"].ratio == 4.0
    assert found["slow"].relative_to(found["steady"]).ratio == 2.0


def test_answer_beyond_its_tolerance_is_inaccurate() -> None:
    contestants = [
        Contestant("right", lambda: 1.0, lambda answer: abs(answer - 1.0)),
        Contestant("wrong", lambda: 1.001, lambda answer: abs(answer - 1.0)),
        Contestant("close enough", lambda: 1.001, lambda answer: abs(answer - 1.0), tol=0.01),
        Contestant("not judged", lambda: 1.0),
    ]
    found = harness.compare(lambda: None, contestants, seconds=0.0, rounds=1)
    words = {name: timing.accurate for name, timing in found.items()}
    assert words == {"right": "yes", "wrong": "NO", "close enough": "yes", "not judged": ""}


@pytest.mark.slow
@pytest.mark.skipif(not harness.MEMORY, reason="no /proc on this system")
def test_peak_memory_and_errors_of_a_new_process_are_returned() -> None:
    ones = partial(np.ones, 64 << 17)  # 64 MB
    assert harness.in_new_process(harness.peak_memory, ones) == pytest.approx(64, abs=2)
    with pytest.raises(ValueError, match="invalid literal"):
        harness.in_new_process(int, "planted")
    with pytest.raises(BrokenProcessPool):
        harness.in_new_process(os._exit, 3)


def test_report_is_written_as_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"solver": "a", "x unit": 1234.5, "error": None}, {"solver": "b", "x unit": 0.001, "error": 2.0}]

    def measure(*, size: int, clock: Any, update: Any) -> BenchmarkReport:
        update(0.5, "half")
        return BenchmarkReport(
            [BenchmarkTable("Times", rows)], ["b is wrong"], {"a.txt": lambda path: path.write_text("figure")}
        )

    harness.run_benchmark(measure, "name", out=tmp_path / "new", size=4)
    record = json.loads((tmp_path / "new/name.json").read_text())
    assert (record["threads"], record["size"], record["findings"]) == (1, 4, ["b is wrong"])
    assert record["tables"] == {"Times": rows}
    assert "| b | 1.0e-03 | 2.00 |" in (tmp_path / "new/name.md").read_text(encoding="utf-8")
    assert (tmp_path / "new/a.txt").read_text() == "figure"
    assert "b is wrong" in capsys.readouterr().out
