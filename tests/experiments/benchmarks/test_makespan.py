"""The simulated makespan: exact where it can be worked out by hand, and within proven bounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from phiball.experiments.benchmarks.growth import makespan as bench
from phiball.experiments.benchmarks.growth.makespan import Trouble, ideal, makespan, measured_times
from phiball.experiments.benchmarks.growth.plan import Assumptions, plan
from tests.support.tiny_study import STUDY

NONE = Trouble()


def source(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand() -> None:
    assert makespan([3, 1, 2], 1, NONE, source()) == 6
    assert makespan([3, 1, 2], 2, NONE, source()) == 3
    assert makespan([1, 1, 3], 2, NONE, source()) == 4  # the long one comes last
    assert makespan([3, 1, 2], 9, NONE, source()) == 3
    assert makespan([3, 1, 2], 1, Trouble(latency=0.5), source()) == 7.5
    assert makespan([3, 1, 2], 1, Trouble(slow=1.0, factor=2.0), source()) == 12


def test_greedy_is_within_grahams_bound_of_the_ideal() -> None:
    for seed in range(20):
        times = source(seed).exponential(1.0, 57).tolist()
        for workers in (1, 2, 7, 100):
            took, best = makespan(times, workers, NONE, source()), ideal(times, workers)
            assert best - 1e-9 <= took <= sum(times) / workers + (1 - 1 / workers) * max(times) + 1e-9


def test_stragglers_and_failures_cost_what_they_should() -> None:
    """On one worker: a share p of tasks f times as long; and, for tasks of one length t, failures at rate r.

    Until a task is done it takes on average (e^(rt) - 1) (1/r + repair) seconds: the classic result for work
    that is begun anew after each failure.
    """
    times = [10.0] * 20_000
    took = makespan(times, 1, Trouble(slow=0.1, factor=4.0), source())
    assert took == pytest.approx(sum(times) * 1.3, rel=4 * 3 * 0.3 / 20_000**0.5 / 1.3)
    rate, repair = 100.0, 7.0
    r = rate / 3600
    expected = np.expm1(r * 10.0) * (1 / r + repair)
    took = makespan(times, 1, Trouble(failures=rate, repair=repair), source(1)) / 20_000
    assert took == pytest.approx(expected, rel=0.02)


def test_a_lost_task_is_done_by_another_worker() -> None:
    trouble = Trouble(failures=3600.0, repair=1000.0)  # each lives for a second on average
    took = [makespan([0.5], 4, trouble, source(seed)) for seed in range(200)]
    assert min(took) == 0.5
    assert 0.5 < np.mean(took) < 1000


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows").mkdir()
    with pytest.raises(ValueError, match="which has no rows; expected the folder of a run"):
        measured_times(tmp_path)
    for k, seconds in enumerate((1.0, 3.0)):
        (tmp_path / "rows" / f"{k}.json").write_text(json.dumps({"seconds": seconds}))
    bench.main(STUDY, tmp_path, out=tmp_path)
    written = json.loads((tmp_path / "makespan.json").read_text())
    assert written["measured"] == [1.0, 3.0]
    for row in written["makespans"]:
        assert row["ideal"] <= row["no trouble"] <= row["ideal"] + 3.5 + 0.05 * bench.TASKS / row["workers"]
        assert row["no trouble"] < row["stragglers"] < row["and failures"] * 1.05
    shown = capsys.readouterr().out
    assert "Makespan" in shown
    assert "averaging of gradients, once" in shown


def test_the_plan_by_hand() -> None:
    """Numbers for which every quantity can be worked out: RTMLMC(1) has 4/3 evaluations an image."""
    a = Assumptions(
        images=1200, coordinates=10, parameters=1e9, flops=2.0, activations=1e8, epochs=3, batch=6, chunk=5,
        gpus=4, rate=1e3, bandwidth=1e4, link=2e9, price=7.0, touched=25,
    )  # fmt: skip
    found = {name: value for name, _, value, _ in plan(a, 50.0, level=1)}
    assert found == pytest.approx(
        {
            "evaluations per image": 4 / 3,
            "perturbed points of a GPU's step": 8,
            "weights, gradients, Adam": 16,
            "points of a chunk": 2e-7,
            "activations of a chunk": 0.5,
            "memory of a GPU": 16.5 + 2e-7,
            "network": 48,
            "drawing": 800,
            "inner problems": 160,
            "averaging of gradients, once": 3000,
            "a step": 4008,
            "share of the network": 4800 / 4008,
            "steps of an epoch": 50,
            "a run": 4.008 * 150 / 3600,
            "its cost": 4.008 * 150 / 3600 * 28,
        }
    )
