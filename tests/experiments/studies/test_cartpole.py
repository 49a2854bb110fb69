"""The study of the cart and pole: its dynamics, its compiled learner, and the whole study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.framework.runner import run
from phiball.experiments.studies.cartpole.environment import EDGE, START, Backup, Physics, learn, move, play
from phiball.experiments.studies.cartpole.figures import METHODS, PLACES
from phiball.experiments.studies.cartpole.study import SCALES, STUDY, Config, backups, problems
from phiball.refimpl import Grid, Maximum
from tests.support.plain_cartpole import plain_learn, plain_move, plain_play

PHYSICS = {
    "original": Physics(),
    "heavy": Physics(mass=0.2),
    "short": Physics(length=0.25),
    "strong g": Physics(gravity=49.0),
}
ROUNDING = 4 * float(np.finfo(float).eps)
TINY = replace(SCALES["smoke"], trials=3, episodes=45, evaluations=2, train_cap=60, eval_cap=90)
REACH = (2.4, 3.0, 0.2094, 3.5)
COARSE = Grid(tuple(-r for r in REACH), REACH, (1, 1, 6, 12))
FINE = Grid(tuple(-r for r in REACH), REACH, (4, 3, 6, 5))
everywhere = pytest.mark.parametrize("physics", PHYSICS.values(), ids=PHYSICS)


def gymnasium_like(physics: Physics) -> Any:
    """Gymnasium's problem with other physics; what it derives from them it does not derive again."""
    env = pytest.importorskip("gymnasium").make("CartPole-v1").unwrapped
    env.gravity, env.masspole, env.length = physics.gravity, physics.mass, physics.length
    env.total_mass = env.masspole + env.masscart
    env.polemass_length = env.masspole * env.length
    return env


def numbers_of(seed: int, episodes: int, cap: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    return draw.uniform(-START, START, (episodes, 4)), draw.random((episodes, cap, 2))


@everywhere
def test_every_step_is_that_of_gymnasium(physics: Physics) -> None:
    env, draw = gymnasium_like(physics), np.random.default_rng(0)
    ends, theirs, ours, plain = [], [], [], []
    for episode in range(100):
        env.reset(seed=episode)
        aim = draw.choice([-0.1, 0.1])  # a pole that leans drives the cart over the edge
        for _ in range(250):
            state = np.array(env.state)
            steered = int(state[2] + 0.3 * state[3] > aim)
            a = steered if episode % 2 else int(draw.integers(2))
            ended = env.step(a)[2]
            again = state.copy()
            over = move(again, a, physics.numbers())
            after, plain_over = plain_move(state.tolist(), a, physics)
            assert over == plain_over == ended
            theirs.append(env.state)
            ours.append(again)
            plain.append(after)
            if ended:
                ends.append(abs(again[0]) > EDGE)
                break
    np.testing.assert_allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(plain, theirs, rtol=ROUNDING, atol=ROUNDING)
    assert len(ends) - sum(ends) > 5  # the pole fell
    assert sum(ends) > 5 or physics.gravity > 10  # the cart left


def test_regular_learning_is_that_of_a_loop_over_gymnasium() -> None:
    """The textbook's Q-learning, with a dictionary for a table."""
    physics, cap, discount = PHYSICS["original"], 60, 0.9
    starts, numbers = numbers_of(1, 40, cap)
    Q: dict[Any, list[float]] = {}
    edges = [np.linspace(-r, r, n + 1)[1:-1] for r, n in zip(REACH, COARSE.bins, strict=True)]

    def values(state: Any) -> list[float]:
        key = tuple(int(np.digitize(x, e)) for x, e in zip(state, edges, strict=True))
        return Q.setdefault(key, [2.0, 2.0])

    env, lengths = gymnasium_like(physics), []
    for start, drawn in zip(starts, numbers, strict=True):
        env.reset()
        env.state = start.copy()
        for t in range(cap):
            here = values(env.state)
            a = int(drawn[t, 1] >= 0.5) if drawn[t, 0] < 0.3 else here.index(max(here))
            _, reward, ended, _, _ = env.step(a)
            here[a] += 0.2 * (reward + (0 if ended else discount * max(values(env.state))) - here[a])
            if ended:
                break
        lengths.append(t + 1)
    table = np.full((COARSE.states, 2), 2.0)
    schedules = np.full(40, 0.2), np.full(40, 0.3)
    took = learn(table, COARSE, Backup(), discount, schedules, starts, numbers, physics)
    assert took.tolist() == lengths
    ours, theirs = table[np.any(table != 2.0, axis=1)], [q for q in Q.values() if q != [2.0, 2.0]]
    np.testing.assert_allclose(sorted(ours.tolist()), sorted(theirs), rtol=1e-12)
    assert len(theirs) > 15


@pytest.mark.slow
@pytest.mark.parametrize("maximum", list(Maximum), ids=lambda m: m.value)
@pytest.mark.parametrize(("grid", "rho", "eta"), [(COARSE, 0.25, 1.0), (FINE, 1.3, 30.0)])
def test_compiled_learning_is_the_plain_one(grid: Grid, rho: float, eta: float, maximum: Maximum) -> None:
    starts, numbers = numbers_of(2, 8, 30)
    draw = np.random.default_rng(3)
    Q = draw.normal(10, 3, (grid.states, 2))
    before = Q.copy()
    schedules = draw.uniform(0.1, 1, 8), draw.uniform(0, 1, 8)
    backup = Backup(tuple(rho * h for h in grid.width), eta, maximum)
    for physics in (PHYSICS["original"], PHYSICS["short"]):
        plain, lengths = plain_learn(Q, grid, backup, 0.95, schedules, starts, numbers, physics)
        took = learn(Q, grid, backup, 0.95, schedules, starts, numbers, physics)
        assert took.tolist() == lengths
        np.testing.assert_allclose(Q, plain, rtol=1e-12)
    assert np.max(np.abs(Q - before)) > 0.5


@pytest.mark.slow
@everywhere
def test_compiled_play_is_the_plain_one(physics: Physics) -> None:
    starts, _ = numbers_of(4, 12, 1)
    number = np.arange(COARSE.states)
    angle, spin = number // 12 % 6 - 2.5, number % 12 - 5.5
    Q = np.stack([0 * angle, angle + 2 * spin + 0.3], axis=1)  # balances, but not for ever
    took = play(Q, COARSE, starts, 300, physics)
    assert took.tolist() == plain_play(Q, COARSE, starts, 300, physics)
    assert took.max() > 40


def test_truncated_episode_is_bootstrapped() -> None:
    def after(start: list[float]) -> float:
        Q = np.full((COARSE.states, 2), 5.0)
        one = np.ones(1)
        learn(
            Q, COARSE, Backup(), 0.9, (0.5 * one, one), np.array([start]), np.full((1, 1, 2), 0.7), Physics()
        )
        return float(Q[Q != 5.0][0]) if np.any(Q != 5.0) else 5.0

    assert after([0.0, 0.0, 0.0, 0.0]) == pytest.approx(0.5 * 5 + 0.5 * (1 + 0.9 * 5))
    assert after([0.0, 0.0, 0.2, 3.0]) == pytest.approx(0.5 * 5 + 0.5 * 1)  # the pole falls


# --- The study --------------------------------------------------------------------------------------


def test_the_physics_of_the_paper() -> None:
    found = [p.numbers() for p in problems(Config()).values()]
    assert found == [(9.8, 0.1, 0.5), (9.8, 0.2, 0.5), (9.8, 0.1, 0.25), (49.0, 0.1, 0.5)]


def test_units_of_rho() -> None:
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


def test_methods_of_a_trial_differ_in_the_radius_alone() -> None:
    """A radius that reaches no other cell leaves the regular run, number for number."""
    task = STUDY.tasks(TINY)[0]
    row = STUDY.compute_task(replace(TINY, rho=1e-12), task, rng(1))
    assert row["returns"]["regular"] == row["returns"]["outside"] == row["returns"]["inside"]
    assert row["lengths"]["regular"] == row["lengths"]["outside"] == row["lengths"]["inside"]
    assert row["lengths"]["regular"] != STUDY.compute_task(TINY, task, rng(1))["lengths"]["outside"]


@pytest.mark.slow
def test_run_is_the_same_with_one_and_two_jobs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = STUDY.compute(TINY, rng(0))
    two, written = run(STUDY, TINY, tmp_path, seed=0, jobs=2)
    assert json.loads(json.dumps(two.rows)) == json.loads(json.dumps(one.rows))
    assert {path.name for path in written} >= {"table.csv", "report.md", "training.png", "sensitivity.svg"}
    trials: dict[Any, list[int]] = {}
    for row in one.rows:
        at = trials.setdefault((row["table"], row["initial"]), [])
        at += range(row["first"], row["first"] + row["trials"])
        for method in METHODS:
            assert np.shape(row["lengths"][method]) == (row["trials"], 3)  # 45 episodes in windows of 20
            for place in PLACES:
                returns = row["returns"][method][place]
                assert 5 < min(returns) <= max(returns) <= TINY.eval_cap
                assert row[f"{method} {place}"] == pytest.approx(sum(returns) / len(returns))
    assert trials == {("1x1x6x12", 0.0): [0, 1, 2], ("4x4x10x10", 0.0): [0, 1]}


@pytest.mark.slow
def test_robust_table_withstands_stronger_gravity_better() -> None:
    config = replace(Config(), rhos=(0.25,), etas=(1.0,))
    task = {"table": config.table, "initial": 0.0, "first": 0, "trials": 10}
    returns = STUDY.compute_task(config, task, rng(0))["returns"]
    gain = np.subtract(returns["outside"]["strong g"], returns["regular"]["strong g"])
    assert gain.mean() > 0  # 185 on average, with a standard error of 56 for ten trials


def test_invalid_options() -> None:
    for name, value, message in (
        ("trials", 1, "trials is 1; expected a whole number of at least 2"),
        ("bins", (1, 1, 6), r"bins is \(1, 1, 6\); expected four numbers"),
        ("discount", 1.0, r"discount is 1.0; expected a number in \[0, 1\)"),
        ("alpha", (0.5, 0.1, 0.0), "alpha is"),
        ("epsilon", (1.5, 0.1, 0.0), "epsilon is"),
        ("reading", "pixels", "reading is 'pixels'; expected one of cells, units"),
        ("grids", ("1x1x6x0",), "grids has '1x1x6x0'; expected four whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            Config(**{name: value})  # type: ignore[arg-type]
