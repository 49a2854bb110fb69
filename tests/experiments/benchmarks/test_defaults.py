"""The comparison of RobustLoss with a grid: who is chosen, what the verdict is, and that it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

from phiball.experiments.benchmarks.choices import defaults as bench  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_grid_is_chosen_on_held_out_data_and_judged_on_test_data() -> None:
    scores = {  # held out, and test by seed
        bench.DEFAULT: (30.0, [20.0, 22.0, 24.0]),
        "first": (10.0, [19.0, 21.0, 20.0]),
        "second": (11.0, [1.0, 1.0, 1.0]),
    }
    rows = []
    for setting, (held_out, test) in scores.items():
        for seed, score in enumerate(test):
            row = bench.Row("wine", "l2", setting, seed, "test", score, 0.0, 0.0)
            rows += [row, replace(row, part="held out", score=held_out)]
    (found,) = bench.comparisons(rows)
    assert found.chosen == "first"
    assert found.difference == pytest.approx((2.0, 1.0))  # 1, 1 and 4: the seeds are paired
    assert found.within
    assert found.cells[-1] == "yes"
    assert not replace(found, difference=(2.1, 1.0)).within


@pytest.mark.slow
def test_it_runs_on_a_table() -> None:
    rows = list(bench.study(("wine",), 2, quick=True))
    settings = {row.setting for row in rows}
    assert len(rows) == 2 * 2 * 2 * len(settings)
    assert {bench.DEFAULT, "plain", "FGM"} < settings
    assert all(0 <= row.clean <= row.attack <= 100 for row in rows)
    assert [(c.data, c.norm) for c in bench.comparisons(rows)] == [("wine", "l2"), ("wine", "linf")]
