"""The cart-pole study: dynamics, compiled learning and runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.framework.study_runs import run_study
from phiball.experiments.studies.cartpole.environment import (
    MAX_POSITION,
    START,
    Backup,
    Physics,
    learn,
    move,
    play,
)
from phiball.experiments.studies.cartpole.report import METHODS, PROBLEM_NAMES
from phiball.experiments.studies.cartpole.study import PROBLEMS, SCALES, STUDY, Config, backups
from phiball.refimpl.qlearning import Grid, Maximum, StatePerturbation, Transition, q_update

PHYSICS = {
    "original": Physics(),
    "heavy": Physics(mass=0.2),
    "short": Physics(length=0.25),
    "strong g": Physics(gravity=49.0),
}
ROUNDING = 4 * float(np.finfo(float).eps)
TINY = replace(SCALES["smoke"], trials=3, episodes=45, evaluations=2, train_cap=60, eval_cap=90)
STATE_LIMITS = (2.4, 3.0, 0.2094, 3.5)
COARSE = Grid(tuple(-r for r in STATE_LIMITS), STATE_LIMITS, (1, 1, 6, 12))


def gymnasium_environment(physics: Physics) -> Any:
    """Gymnasium's cart-pole with other physics; its derived quantities are updated too."""
    env = pytest.importorskip("gymnasium").make("CartPole-v1").unwrapped
    env.gravity, env.masspole, env.length = physics.gravity, physics.mass, physics.length
    env.total_mass = env.masspole + env.masscart
    env.polemass_length = env.masspole * env.length
    return env


@pytest.mark.parametrize("physics", PHYSICS.values(), ids=PHYSICS)
def test_steps_agree_with_gymnasium(physics: Physics) -> None:
    env, draw = gymnasium_environment(physics), np.random.default_rng(0)
    ends, theirs, ours = [], [], []
    for episode in range(60):
        env.reset(seed=episode)
        aim = draw.choice([-0.1, 0.1])  # balancing a leaning pole drives the cart over the edge
        for _ in range(250):
            state = np.array(env.state)
            steered = int(state[2] + 0.3 * state[3] > aim)
            a = steered if episode % 2 else int(draw.integers(2))
            ended = env.step(a)[2]
            again = state.copy()
            over = move(again, a, physics.numbers())
            assert over == ended
            theirs.append(env.state)
            ours.append(again)
            if ended:
                ends.append(abs(again[0]) > MAX_POSITION)
                break
    np.testing.assert_allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)
    assert len(ends) - sum(ends) > 5  # the pole fell
    assert sum(ends) > 5 or physics.gravity > 10  # the cart left the track


@pytest.mark.parametrize(
    ("physics", "backup"),
    [
        (PHYSICS["original"], Backup()),
        (PHYSICS["short"], Backup(tuple(0.25 * h for h in COARSE.width), 1.0, Maximum.OUTSIDE)),
        (PHYSICS["strong g"], Backup(tuple(1.3 * h for h in COARSE.width), 30.0, Maximum.INSIDE)),
    ],
    ids=["regular", "outside", "inside"],
)
def test_compiled_learning_and_play_agree_with_gymnasium(physics: Physics, backup: Backup) -> None:
    """The reference is a Python loop over gymnasium's steps, with `q_update` for robust methods."""
    cap, discount = 60, 0.9
    draw = np.random.default_rng(1)
    starts, numbers = draw.uniform(-START, START, (20, 4)), draw.random((20, cap, 2))
    Q = np.full((COARSE.n_states, 2), 2.0)
    env, lengths = gymnasium_environment(physics), []
    for start, drawn in zip(starts, numbers, strict=True):
        env.reset()
        env.state = start.copy()
        for t in range(cap):
            s = int(COARSE.cell(np.array(env.state)))
            a = int(drawn[t, 1] >= 0.5) if drawn[t, 0] < 0.3 else int(np.argmax(Q[s]))
            _, reward, ended, _, _ = env.step(a)
            state = np.array(env.state)
            if any(backup.radius):
                near = COARSE.neighbourhood_at(state[None], backup.radius)
                perturbation = StatePerturbation(near, backup.eta, "kl", backup.maximum)
                step = Transition(s, a, reward, 0, ended)
                Q = q_update(Q, step, perturbation, discount=discount, step_size=0.2)
            else:
                later = 0 if ended else discount * Q[int(COARSE.cell(state))].max()
                Q[s, a] += 0.2 * (reward + later - Q[s, a])
            if ended:
                break
        lengths.append(t + 1)
    table = np.full((COARSE.n_states, 2), 2.0)
    schedules = np.full(20, 0.2), np.full(20, 0.3)
    took = learn(table, COARSE, backup, discount, schedules, starts, numbers, physics)
    assert took.tolist() == lengths
    np.testing.assert_allclose(table, Q, rtol=1e-9)
    assert np.sum(np.any(Q != 2.0, axis=1)) > 10
    played = []
    for start in starts:
        env.reset()
        env.state, ended, t = start.copy(), False, 0
        while not ended and t < 300:
            ended = env.step(int(np.argmax(Q[int(COARSE.cell(np.array(env.state)))])))[2]
            t += 1
        played.append(t)
    assert play(table, COARSE, starts, 300, physics).tolist() == played


def test_truncated_episode_is_bootstrapped_and_terminated_one_is_not() -> None:
    def after(start: list[float]) -> float:
        Q = np.full((COARSE.n_states, 2), 5.0)
        one = np.ones(1)
        learn(
            Q, COARSE, Backup(), 0.9, (0.5 * one, one), np.array([start]), np.full((1, 1, 2), 0.7), Physics()
        )
        return float(Q[Q != 5.0][0]) if np.any(Q != 5.0) else 5.0

    assert after([0.0, 0.0, 0.0, 0.0]) == pytest.approx(0.5 * 5 + 0.5 * (1 + 0.9 * 5))
    assert after([0.0, 0.0, 0.2, 3.0]) == pytest.approx(0.5 * 5 + 0.5 * 1)  # the pole falls


def test_problems_and_methods_are_those_of_the_paper() -> None:
    found = [p.numbers() for p in PROBLEMS.values()]
    assert found == [(9.8, 0.1, 0.5), (9.8, 0.2, 0.5), (9.8, 0.1, 0.25), (49.0, 0.1, 0.5)]
    grid = Grid((-1.0, -1.0, -1.0, -2.0), (1.0, 1.0, 1.0, 2.0), (1, 2, 4, 4))
    methods = backups(Config(rho=0.5, rhos=(1.0, 0.5), etas=(3.0,)), grid, sweep=True)
    radius = (1.0, 0.5, 0.25, 0.5)
    assert methods == {
        "regular": Backup(),
        "outside": Backup(radius, 1.0, Maximum.OUTSIDE),
        "inside": Backup(radius, 1.0, Maximum.INSIDE),
        "rho 1": Backup(tuple(2 * r for r in radius), 1.0, Maximum.OUTSIDE),
        "eta 3": Backup(radius, 3.0, Maximum.OUTSIDE),
    }


def test_robust_methods_with_a_tiny_radius_equal_the_regular_method() -> None:
    """Perturbations of a tiny radius reach no other cell."""
    task = STUDY.tasks(TINY)[0]
    row = STUDY.compute_task(replace(TINY, rho=1e-12), task, rng(1))
    assert row["returns"]["regular"] == row["returns"]["outside"] == row["returns"]["inside"]
    assert row["lengths"]["regular"] == row["lengths"]["outside"] == row["lengths"]["inside"]
    assert row["lengths"]["regular"] != STUDY.compute_task(TINY, task, rng(1))["lengths"]["outside"]


@pytest.mark.slow
def test_run_is_the_same_with_one_and_two_jobs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = STUDY.compute(TINY, rng(0))
    two, written = run_study(STUDY, TINY, tmp_path, seed=0, n_jobs=2)
    assert json.loads(json.dumps(two.rows)) == json.loads(json.dumps(one.rows))
    assert {path.name for path in written} >= {"table.csv", "report.md", "training.png", "training.svg"}
    for row in one.rows:
        for method in METHODS:
            assert np.shape(row["lengths"][method]) == (row["trials"], 3)  # 45 episodes in windows of 20
            for place in PROBLEM_NAMES:
                returns = row["returns"][method][place]
                assert 5 < min(returns) <= max(returns) <= TINY.eval_cap
                assert row[f"{method} {place}"] == pytest.approx(sum(returns) / len(returns))
