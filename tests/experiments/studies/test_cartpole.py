"""The study of the cart and pole: what is computed, drawn and said."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.cartpole.figures import METHODS, PLACES
from phiball.experiments.studies.cartpole.study import (
    SCALES,
    STUDY,
    Config,
    backups,
    problems,
)
from phiball.refimpl import Grid, Maximum

TINY = replace(SCALES["smoke"], trials=3, episodes=45, evaluations=2, train_cap=60, eval_cap=90)


@pytest.fixture(scope="module")
def tiny() -> Table:
    return STUDY.compute(TINY, rng(0))


def test_tasks_hold_every_trial_once() -> None:
    for config in (*SCALES.values(), TINY, Config(bins=(2, 2, 2, 2), batch=7)):
        found: dict[Any, list[int]] = {}
        for task in STUDY.tasks(config):
            first, count = task["first"], task["trials"]
            found.setdefault((task["table"], task["initial"]), []).extend(range(first, first + count))
        main = (config.table, config.initial)
        assert next(iter(found)) == main
        assert set(found) == {main, *((g, i) for g in config.grids for i in config.initials)}
        for at, trials in found.items():
            assert trials == list(range(config.trials if at == main else config.others))


def test_the_physics_of_the_paper() -> None:
    found = [p.numbers() for p in problems(Config()).values()]
    assert found == [(9.8, 0.1, 0.5), (9.8, 0.2, 0.5), (9.8, 0.1, 0.25), (49.0, 0.1, 0.5)]


def test_what_rho_counts() -> None:
    grid = Grid((-1.0, -1.0, -1.0, -2.0), (1.0, 1.0, 1.0, 2.0), (1, 2, 4, 4))
    for reading, radius in (("cells", (1.0, 0.5, 0.25, 0.5)), ("units", (0.5, 0.5, 0.5, 0.5))):
        found = backups(Config(rho=0.5, reading=reading, rhos=(1.0, 0.5), etas=(3.0,)), grid, sweep=True)
        assert list(found) == [*METHODS, "rho 1", "eta 3"]
        assert found["regular"].radius == (0.0, 0.0, 0.0, 0.0)
        assert found["outside"].radius == found["inside"].radius == found["eta 3"].radius == radius
        assert found["rho 1"].radius == tuple(2 * r for r in radius)
        assert (found["outside"].maximum, found["inside"].maximum) == (Maximum.OUTSIDE, Maximum.INSIDE)
        assert (found["outside"].eta, found["eta 3"].eta) == (1.0, 3.0)
        assert found["eta 3"].maximum is found["rho 1"].maximum is Maximum.OUTSIDE


def test_the_methods_of_a_trial_differ_in_the_radius_alone() -> None:
    """A radius that reaches no other cell leaves the regular run, number for number."""
    task = STUDY.tasks(TINY)[0]
    row = STUDY.compute_task(replace(TINY, rho=1e-12), task, rng(1))
    assert row["returns"]["regular"] == row["returns"]["outside"] == row["returns"]["inside"]
    assert row["lengths"]["regular"] == row["lengths"]["outside"] == row["lengths"]["inside"]
    assert row["lengths"]["regular"] != STUDY.compute_task(TINY, task, rng(1))["lengths"]["outside"]


def test_rows(tiny: Table) -> None:
    main, other = tiny.rows[0], tiny.rows[-1]
    assert list(main["returns"]) == [*METHODS, "rho 1", "eta 10"]
    assert list(other["returns"]) == list(METHODS)
    assert (main["table"], other["table"]) == ("1x1x6x12", "4x4x10x10")
    for row in tiny.rows:
        for method in METHODS:
            lengths = np.array(row["lengths"][method])
            assert lengths.shape == (row["trials"], 3)  # 45 episodes in windows of 20
            assert 5 < lengths.min() <= lengths.max() <= TINY.train_cap
            for place in PLACES:
                returns = row["returns"][method][place]
                assert len(returns) == row["trials"]
                assert 5 < min(returns) <= max(returns) <= TINY.eval_cap
                assert row[f"{method} {place}"] == pytest.approx(sum(returns) / len(returns))


@pytest.mark.slow
def test_two_jobs_give_the_table_of_one(tiny: Table, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("joblib")
    two, written = run(STUDY, TINY, tmp_path, seed=0, jobs=2)
    assert json.loads(json.dumps(two.rows)) == json.loads(json.dumps(tiny.rows))
    assert {path.name for path in written} >= {"table.csv", "report.md", "training.png", "sensitivity.svg"}


@pytest.mark.slow
def test_the_robust_table_stands_stronger_gravity_better() -> None:
    config = replace(Config(), rhos=(0.25,), etas=(1.0,))
    task = {"table": config.table, "initial": 0.0, "first": 0, "trials": 10}
    returns = STUDY.compute_task(config, task, rng(0))["returns"]
    gain = np.subtract(returns["outside"]["strong g"], returns["regular"]["strong g"])
    assert gain.mean() > 0  # 185 on average, with a standard error of 56 for ten trials


@pytest.mark.slow
def test_initial_values_of_zero_ruin_the_robust_table_in_four_dimensions() -> None:
    """A neighbour that was never visited is worth its initial value, and the soft minimum believes it."""
    config = Config()
    robust = {}
    for initial in (0.0, 100.0):
        task = {"table": "4x4x10x10", "initial": initial, "first": 0, "trials": 4}
        returns = STUDY.compute_task(config, task, rng(0))["returns"]
        robust[initial] = np.mean(returns["outside"]["original"])
        assert np.mean(returns["regular"]["original"]) > 400
    assert robust[0.0] + 150 < robust[100.0]  # 111 and 471 on average


# --- What is said -------------------------------------------------------------------------------


def made_up(gain: dict[str, float]) -> Table:
    """A table in which the robust methods gain so much, by physics, give or take 1; regular has 100."""
    config = replace(SCALES["smoke"], train_cap=100)
    rows = []
    for task in STUDY.tasks(config):
        noise = np.resize([-1.0, 1.0], task["trials"])
        regular = {p: [100.0] * task["trials"] for p in PLACES}
        robust = {p: (100 + gain[p] + noise).tolist() for p in PLACES}
        main = task["table"] == config.table
        names = (*METHODS, "rho 1", "eta 10") if main else METHODS
        returns = {m: regular if m == "regular" else robust for m in names}
        slow, fast = [[10.0, 40.0, 45.0]] * task["trials"], [[10.0, 50.0, 99.0]] * task["trials"]
        lengths = {m: slow if m == "regular" else fast for m in METHODS}
        rows.append({**task, "returns": returns, "lengths": lengths})
    return Table(config, tuple(rows))


def test_findings_follow_the_table() -> None:
    said = STUDY.findings(made_up({"original": 30.0, "heavy": 0.5, "short": -20.0, "strong g": -50.0}))
    cap, better, drop, faster, inside, ranges, tables = said
    assert cap.startswith("4 of the paper's 8 returns exceed 400")
    assert "higher in 1 of 4 problems" in better
    # Four trials, +-1: the standard deviation is 2/sqrt(3), the error half of it.
    assert "is higher: original (+30 ± 1); no different: heavy (+0 ± 1); lower: short (-20 ± 1)" in better
    assert "regular heavy 100%, short 100%, strong g 100%; robust heavy 77%, short 62%, strong g 38%" in drop
    assert "the paper's regular heavy 40%, short 76%, strong g 58%" in drop
    assert (
        "take 32 steps on average in the regular runs and 53 in the robust ones (higher: +21 ± 0)" in faster
    )
    assert "50 steps is reached never in the regular runs, after 40 episodes in the robust ones" in faster
    assert "returns are no different: original (+0 ± 0)" in inside
    assert "By rho, original, robust minus regular is higher: 0.25 (+30 ± 1), 1 (+30 ± 1)." in ranges
    assert "By eta, strong g, robust minus regular is lower: 1 (-50 ± 1), 10 (-50 ± 1)." in ranges
    assert "begin at 0, original, robust minus regular is higher: 1,1,6,12 (+30 ± 1), 4,4,10,10" in tables
    better = STUDY.findings(made_up(dict.fromkeys(PLACES, 30.0)))[1]
    assert "higher in 4 of 4 problems" in better


def test_tables_follow_the_table() -> None:
    table = made_up({"original": 30.0, "heavy": 0.0, "short": -20.0, "strong g": -50.0})
    returns, sweep, tables = STUDY.tables(table)
    assert returns.rows[3] == (
        "strong g",
        "271 ± 21",
        "418 ± 14",
        "100 ± 0",
        "50 ± 1",
        "50 ± 1",
        "-50 ± 1",
        "+0 ± 0",
    )
    assert [row[0] for row in sweep.rows] == ["regular", "rho 0.25", "rho 1", "eta 1", "eta 10"]
    assert sweep.rows[2] == ("rho 1", "130 ± 1", "100 ± 1", "80 ± 1", "50 ± 1")
    assert tables.rows[1] == (
        "4,4,10,10",
        "0",
        "2",
        "100 ± 0",
        "130 ± 1",
        "130 ± 1",
        "100 ± 0",
        "50 ± 1",
        "50 ± 1",
    )
    for report_table in (returns, sweep, tables):
        assert {len(row) for row in report_table.rows} == {len(report_table.headings)}


@pytest.mark.slow
def test_figures(tiny: Table) -> None:
    pytest.importorskip("matplotlib")
    figures = STUDY.draw(tiny)
    assert list(figures) == ["training", "sensitivity"]
    (training,) = figures["training"].axes
    assert [line.get_xdata().tolist() for line in training.lines] == [[10, 30, 45]] * 3
    main = [row for row in tiny.rows if row["table"] == "1x1x6x12"]
    mean = np.mean([trial for row in main for trial in row["lengths"]["outside"]], axis=0)
    np.testing.assert_allclose(training.lines[1].get_ydata(), mean)
    panels = figures["sensitivity"].axes
    assert len(panels) == 2 * 3
    expected = np.mean([x for row in main for x in row["returns"]["eta 10"]["strong g"]])
    assert panels[4].lines[0].get_ydata()[1] == pytest.approx(expected)
    for figure in figures.values():
        picture = BytesIO()
        figure.savefig(picture, dpi=110)
        assert len(picture.getvalue()) < 150_000


# --- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("trials", 1, "trials is 1; expected a whole number of at least 2"),
        ("others", 0, "others is 0"),
        ("batch", 0, "batch is 0"),
        ("episodes", 1.5, "episodes is 1.5"),
        ("train_cap", -1, "train_cap is -1"),
        ("eval_cap", 0, "eval_cap is 0"),
        ("evaluations", 0, "evaluations is 0"),
        ("bins", (1, 1, 6), r"bins is \(1, 1, 6\); expected four numbers"),
        ("bins", (1, 1, 0, 6), "bins is 0; expected a whole number"),
        ("reach", (1.0, 2.0), r"reach is \(1.0, 2.0\); expected four"),
        ("reach", (1.0, 2.0, 0.0, 1.0), "reach is 0.0; expected a positive number"),
        ("discount", 1.0, r"discount is 1.0; expected a number in \[0, 1\)"),
        ("initial", float("nan"), "initial is nan; expected a finite number"),
        ("initials", (0.0, float("inf")), "initials is inf"),
        ("alpha", (0.5, 0.1), r"alpha is \(0.5, 0.1\); expected first, decay, last"),
        ("alpha", (0.5, 0.1, 0.0), "alpha is"),
        ("alpha", (0.1, 0.1, 0.5), "alpha is"),
        ("epsilon", (1.5, 0.1, 0.0), "epsilon is"),
        ("epsilon", (0.5, -0.1, 0.0), "epsilon is"),
        ("epsilon", (0.5, float("nan"), 0.0), "epsilon is"),
        ("rho", 0.0, "rho is 0.0; expected a positive number"),
        ("reading", "pixels", "reading is 'pixels'; expected one of cells, units"),
        ("eta", -1.0, "eta is -1.0"),
        ("heavy", 0.0, "heavy is 0.0"),
        ("short", 0.0, "short is 0.0"),
        ("strong", float("inf"), "strong is inf"),
        ("rhos", (0.5, 0.0), "rhos is 0.0"),
        ("etas", (-2.0,), "etas is -2.0"),
        ("grids", ("1x1x6",), "grids has '1x1x6'; expected four whole numbers"),
        ("grids", ("1x1x6x0",), "grids has '1x1x6x0'"),
    ],
)
def test_bad_options(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**{name: value})


def test_an_epsilon_of_zero_and_no_decay_are_fine() -> None:
    assert Config(epsilon=(0.0, 0.0, 0.0), alpha=(1.0, 0.0, 1.0)).epsilon == (0.0, 0.0, 0.0)
