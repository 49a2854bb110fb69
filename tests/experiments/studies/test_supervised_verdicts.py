"""Verdicts of the study of supervised learning on synthetic tables."""

from typing import Any

import numpy as np
import pytest

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.paper_methods import PaperReading, paper_methods
from phiball.experiments.studies.supervised.report import (
    all_ratios,
    largest_ratio,
    panel_verdict,
    panels,
    tables,
)
from phiball.experiments.studies.supervised.study import STUDY, Config
from phiball.experiments.training.trials import difference

pytest.importorskip("scipy", reason="scipy: not installed")
STUDENT = {2: 12.706205, 3: 4.302653, 5: 2.776445}  # from a printed table, two-sided 95 %
ONE_NORM = Config(
    data=("digits",), norms=("l2",), chosen=("none",), methods=("ERM", "FGM", "IFGM", "RT-MLMC"), seeds=3
)  # fmt: skip
OURS, PANEL = "RT-MLMC l2 0.45", ["PGM l2 0.1"]


def make_table(numbers: dict[str, list[float]], at_largest: float = 0.0) -> Table:
    """Make a table with the same error in all columns, from one number per method and trial.

    `at_largest` is added to the errors of RT-MLMC at the largest ratio of each attack.
    """
    rows = []
    for method in paper_methods(ONE_NORM):
        for trial, error in enumerate(numbers.get(method, [60.0] * 3)):
            row: dict[str, Any] = {"stage": "report", "data": "digits", "method": method, "setting": method}
            row |= {"trial": trial, "evaluations": 1.0, "tested on": 1000, "trained on": 9000, "clean": error}
            for attack, ratios in ONE_NORM.ratios.items():
                row |= {f"{attack} {ratio:g}": error for ratio in ratios}
                row[f"{attack} {ratios[-1]:g}"] += at_largest * (method == OURS)
            rows.append(row)
    return Table(ONE_NORM, tuple(rows))


def verdict_of(numbers: dict[str, list[float]], *baselines: str) -> str:
    return str(panel_verdict(make_table(numbers), PaperReading("one", OURS, baselines), "digits", PANEL))


def test_verdict_is_best_tied_or_not_best_by_paired_differences() -> None:
    ours = [20.0, 30.0, 40.0]  # trials differ more than methods, so only paired differences are significant
    far, above, near = [25.0, 35.5, 45.0], [18.0, 28.5, 38.0], [20.1, 31.0, 39.5]
    fgm, ifgm = "FGM l2 0.45", "IFGM l2 0.45"
    for numbers, expected in (
        ({"ERM": far, fgm: far, ifgm: far}, "best"),
        ({"ERM": far, fgm: near, ifgm: far}, "tied"),
        ({"ERM": far, fgm: near, ifgm: above}, "not best"),
    ):
        assert verdict_of({OURS: ours, **numbers}, "ERM", fgm, ifgm) == expected
    # Errors are tied if they are equal, or differ by less than one of 1,000 images.
    for gap, expected in ((0.0, "tied"), (0.05, "tied"), (0.2, "not best"), (-0.2, "best")):
        assert verdict_of({OURS: [90.0 + gap] * 3, "ERM": [90.0] * 3}, "ERM") == expected


@pytest.mark.parametrize("trials", [2, 3, 5])
def test_difference_is_significant_beyond_students_quantile(trials: int) -> None:
    """The differences have standard error 1."""
    spread = np.linspace(-1, 1, trials)
    spread *= np.sqrt(trials) / np.std(spread, ddof=1)
    for factor, expected in ((0.999, 0), (1.001, 1)):
        ours = (50 + factor * STUDENT[trials] + spread).tolist()
        found = difference(make_table({OURS: ours, "ERM": [50.0] * trials}), "digits", PANEL, OURS, "ERM")
        assert found is not None
        assert (found.mean, found.stderr) == (pytest.approx(factor * STUDENT[trials]), pytest.approx(1))
        assert found.sign == expected


def test_panels_use_the_mean_over_ratios_or_the_largest_ratio() -> None:
    table = make_table({OURS: [50.0, 50.1, 50.2], "ERM": [52.0] * 3}, at_largest=6.0)
    reading = PaperReading("one", OURS, ("ERM",))
    assert list(panels(table, reading, largest_ratio).values()) == ["not best"] * 4
    assert list(panels(table, reading, all_ratios).values()) == ["best"] * 4
    errors, verdicts = tables(table)
    assert len(errors.rows) == len(paper_methods(ONE_NORM))
    assert [row[1:] for row in verdicts.rows] == [("4 / 0 / 0", "0 / 0 / 4")] * 3  # three readings
    assert "in every panel in 3 of 3 readings" in STUDY.findings(table)[0]
