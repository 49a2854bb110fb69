"""Verdicts of the study of supervised learning, on tables whose verdicts are known by construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rich", reason="the tables of a study need rich")
pytest.importorskip("scipy", reason="the verdicts of the study need scipy")

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.findings import findings
from phiball.experiments.studies.supervised.methods import Reading
from phiball.experiments.studies.supervised.study import Config
from phiball.experiments.studies.supervised.verdicts import (
    comparisons,
    difference,
    every,
    guessing,
    largest,
    middle,
    panels,
    score,
    verdict,
)
from tests.support.supervised_tables import ATTACKS, ONE, OURS, SMALL, STUDENT, levels, made, random_table


def reading(*baselines: str) -> Reading:
    return Reading("one", OURS, baselines)


def word(numbers: dict[str, list[float]], *baselines: str, config: Config = ONE) -> str:
    found = verdict(made(config, levels(numbers)), reading(*baselines), config.data[0], ["PGM l2 0.1"])
    assert found is not None
    return found.word


def test_verdicts_known_by_construction() -> None:
    ours = [20.0, 30.0, 40.0]  # trials differ more than methods do: only pairs tell them apart
    far, above = [25.0, 35.5, 45.0], [18.0, 28.5, 38.0]
    near = [20.1, 31.0, 39.5]
    assert word({OURS: ours, "ERM": far}, "ERM") == "best"
    assert word({OURS: ours, "ERM": above}, "ERM") == "not"
    assert word({OURS: ours, "ERM": near}, "ERM") == "tied"
    three = "ERM", "FGM l2 0.45", "IFGM l2 0.45"
    assert word({OURS: ours, "ERM": far, "FGM l2 0.45": far, "IFGM l2 0.45": far}, *three) == "best"
    assert word({OURS: ours, "ERM": far, "FGM l2 0.45": near, "IFGM l2 0.45": far}, *three) == "tied"
    assert word({OURS: ours, "ERM": far, "FGM l2 0.45": near, "IFGM l2 0.45": above}, *three) == "not"


@pytest.mark.parametrize("trials", [2, 3, 5])
def test_the_interval_is_student_s(trials: int) -> None:
    """Differences of mean d and standard error 1 are clear just beyond the printed quantile."""
    config = replace(ONE, seeds=trials)
    spread = np.linspace(-1, 1, trials)
    spread *= np.sqrt(trials) / np.std(spread, ddof=1)
    for factor, expected in ((0.999, "tied"), (1.001, "not")):
        ours = (50 + factor * STUDENT[trials] + spread).tolist()
        assert word({OURS: ours, "ERM": [50.0] * trials}, "ERM", config=config) == expected
        table = made(config, levels({OURS: ours, "ERM": [50.0] * trials}))
        found = difference(table, "digits", ["clean"], OURS, "ERM")
        assert found is not None
        assert found.mean == pytest.approx(factor * STUDENT[trials])
        assert found.stderr == pytest.approx(1)
        assert str(found) == f"{factor * STUDENT[trials]:+.1f} ± 1.0"


def test_differences_without_spread() -> None:
    """Equal errors are tied, and so are those that are one of 1,000 images apart in each trial."""
    flat = [90.0, 90.0, 90.0]
    assert word({OURS: flat, "ERM": flat}, "ERM") == "tied"
    assert word({OURS: [e + 0.05 for e in flat], "ERM": flat}, "ERM") == "tied"
    assert word({OURS: [e + 0.2 for e in flat], "ERM": flat}, "ERM") == "not"
    assert word({OURS: [e - 0.2 for e in flat], "ERM": flat}, "ERM") == "best"


def test_methods_with_fewer_trials_are_compared_in_those_that_they_share() -> None:
    numbers = {OURS: [20.0, 30.0, 99.0], "ERM": [10.0, 19.9, 0.0]}
    table = made(ONE, levels(numbers), lambda row: (row["method"], row["trial"]) == ("ERM", 2))
    found = difference(table, "digits", ["clean"], OURS, "ERM")
    assert found is not None
    assert (found.mean, found.stderr) == (pytest.approx(10.05), pytest.approx(0.05))
    assert found.sign == 1
    # One trial has no error: however large a difference, it decides nothing.
    table = made(ONE, levels(numbers), lambda row: row["method"] == "ERM" and row["trial"] > 0)
    found = difference(table, "digits", ["clean"], OURS, "ERM")
    assert found is not None
    assert (found.sign, str(found)) == (0, "+10.0")
    # Trials are paired by number, not by place.
    rows = made(ONE, levels(numbers)).rows
    moved = Table(
        ONE, tuple(sorted(rows, key=lambda row: row["trial"] * (-1 if row["method"] == OURS else 1)))
    )
    whole = difference(moved, "digits", ["clean"], OURS, "ERM")
    assert whole is not None
    assert whole.stderr == pytest.approx(np.std([10.0, 10.1, 99.0], ddof=1) / np.sqrt(3))


def test_the_baseline_that_decides_is_named() -> None:
    numbers = {
        OURS: [20.0] * 3,
        "ERM": [10.0, 31.0, 1.0],
        "FGM l2 0.45": [19.0] * 3,
        "IFGM l2 0.45": [30.0] * 3,
    }
    table = made(ONE, levels(numbers))
    found = verdict(table, reading("ERM", "FGM l2 0.45", "IFGM l2 0.45"), "digits", ["clean"])
    assert str(found) == "not (+1.0 ± 0.0, FGM l2 0.45)"  # ERM is lower in the mean, but not clearly
    best = verdict(table, reading("IFGM l2 0.45"), "digits", ["clean"])
    assert str(best) == "best (-10.0 ± 0.0, IFGM l2 0.45)"
    assert verdict(table, reading("ERM", "SG l2 0.45"), "digits", ["clean"]) is None


def test_columns_of_an_attack() -> None:
    assert every(SMALL, "PGM l2") == [f"PGM l2 {r}" for r in (0.025, 0.05, 0.1, 0.15, 0.2)]
    assert middle(SMALL, "noise linf") == ["noise linf 0.9"]
    assert largest(SMALL, "noise linf") == ["noise linf 1.5"]


def test_panels_take_the_mean_over_ratios_or_the_largest() -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        if method != OURS or attack == "clean":
            return 50.0
        return 50 + trial / 10 + (10.0 if ratio in (0.2, 1.5) else -10.0)

    table = made(ONE, error)
    assert {v.word for v in panels(table, reading("ERM"), largest).values()} == {"not"}
    found = panels(table, reading("ERM"), every)
    assert list(found) == [("digits", attack) for attack in ATTACKS]
    for one in found.values():
        assert one.word == "best"
        assert one.decisive.mean == pytest.approx(0.1 + (10 - 4 * 10) / 5)


def test_contests() -> None:
    names = [r.name for r in comparisons(random_table(SMALL))]
    balls = [f"{norm}, {name}" for norm in ("l2", "linf") for name in ("rho", "literal", "step")]
    assert names == [*balls, "l2, beyond", "linf, beyond", "chosen"]
    rivals = comparisons(random_table(SMALL))[7].baselines
    assert set(rivals) == {
        "random-start FGM linf 0.45",
        "random-start FGM, chosen",
        "noise x4 linf 0.45",
        "noise x4, chosen",
    }
    assert [r.name for r in comparisons(random_table(ONE))] == ["l2, rho", "l2, literal", "l2, step"]


def test_classifiers_near_guessing_may_be_left_out() -> None:
    """Ours beats ERM, and a constant classifier is better than it under a strong attack."""
    numbers = {OURS: [98.0, 98.1, 98.2], "ERM": [99.5, 99.6, 99.7]}
    strong = levels({**numbers, "FGM l2 0.45": [90.0, 89.0, 90.0]}, rest=99.9)

    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        plain = 89.0 if method == "FGM l2 0.45" and trial > 0 else 5.0
        return plain if attack == "clean" else strong(data, method, trial, attack, ratio)

    table = made(ONE, error)
    assert guessing(table, "digits", "FGM l2 0.45") == 2
    assert guessing(table, "digits", OURS) == 0
    both = reading("ERM", "FGM l2 0.45")
    assert {v.word for v in panels(table, both, every).values()} == {"not"}
    assert {v.word for v in panels(table, both, every, alive=True).values()} == {"best"}
    said = findings(table)
    assert "above 80 %, by trials: FGM l2 0.45 (digits 2 of 3)." in " ".join(said)
    assert "(FGM l2 0.45) left out where they are: best in 4, tied in 0, not in 0 of 4" in said[2]
    assert "l2, rho 0 / 0 / 4 of 4, lowest mean in 0 (with baselines near guessing);" in said[0]
    assert "l2, step 4 / 0 / 0 of 4, lowest mean in 4." in said[0]


def test_score() -> None:
    row = random_table(SMALL).rows[0]
    parts = [row["clean"]]
    parts += [np.mean([row[f"{attack} {r:g}"] for r in SMALL.ratios[attack]]) for attack in ATTACKS]
    assert score(row) == pytest.approx(np.mean(parts))
