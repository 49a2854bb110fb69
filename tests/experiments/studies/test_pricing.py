"""The study of pricing: stacked training against the library, and the whole of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    fgm,
)

pytest.importorskip("rich", reason="the tables of a study need rich")

from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.pricing import study as pricing
from phiball.experiments.studies.pricing.model import (
    Cost,
    Market,
    draw_data,
    draw_market,
    empirical_risk,
    least_in_ball,
    true_risk,
)
from phiball.experiments.studies.pricing.study import STUDY
from phiball.experiments.studies.pricing.training import (
    METHODS,
    Problem,
    Training,
    attacked,
    gradient,
    regularized_gradient,
    train,
    worst_cost,
)

LINF, L2 = Ball(inf, 0.45), Ball(2, 0.45)
BOUNDED = Cost(0.0, 2.0)
TINY = replace(
    pricing.SCALES["smoke"],
    covariates=(6, 9),
    draws=(5, 8),
    trials=3,
    features=12,
    levels=(0, 1),
    level=2,
    attack_steps=3,
    steps=8,
    batch=4,
    test_points=50,
)


def markets(trials: int = 3, features: int = 12) -> Market:
    return draw_market(trials, 10, features, 0.1, rng(1))


def problems(cost: Cost, trials: int = 3) -> tuple[Problem, Any]:
    market = markets(trials)
    x, z = draw_data(market, 7, 5, rng(2))
    return Problem(market, cost, x, z), np.random.default_rng(3).normal(size=(trials, 12)) / 3


# --- Training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [Cost(), BOUNDED])
def test_gradients_are_those_of_the_costs(cost: Cost) -> None:
    problem, theta = problems(cost)
    h = 1e-6
    numeric = np.empty_like(theta)
    for f in range(theta.shape[1]):
        step = h * np.eye(theta.shape[1])[f]
        up, down = problem.values(theta + step, problem.x), problem.values(theta - step, problem.x)
        numeric[:, f] = ((up - down) / (2 * h)).mean(axis=1)
    np.testing.assert_allclose(problem.gradient(theta, problem.x), numeric, atol=1e-7)
    found = problem.input_gradient(theta, problem.x)
    for j in range(10):
        step = h * np.eye(10)[j]
        up, down = problem.values(theta, problem.x + step), problem.values(theta, problem.x - step)
        np.testing.assert_allclose(found[:, :, j], (up - down) / (2 * h), atol=1e-7)


@pytest.mark.parametrize("cost", [Cost(), BOUNDED])
@pytest.mark.parametrize("estimator", [SG(3), RTMLMC(4)])
def test_stacked_gradient_is_the_library_s(cost: Cost, estimator: Any) -> None:
    """On one trial, with the same draws."""
    market, theta = markets(1), problems(cost, 1)[1]
    x, z = draw_data(market, 7, 5, rng(2))
    problem = Problem(market, cost, x, z)
    objective = RegularizedLoss(LINF, eta=0.9, divergence=ENTROPIC, estimator=estimator)

    def prices(theta: Any, x: Any) -> Any:
        return np.cos(x @ market.omega[0].T + market.b[0]) @ theta

    expected = objective.gradient(
        theta[0],
        lambda theta, x, i: cost.value(prices(theta, x), z[0, i]),
        lambda theta, x, i: (
            cost.slope(prices(theta, x), z[0, i])[:, None] * np.cos(x @ market.omega[0].T + market.b[0])
        ),
        x[0],
        rng=rng(11),
    )
    found = regularized_gradient(problem, theta, LINF, 0.9, estimator, rng(11))
    np.testing.assert_allclose(found[0], expected, atol=1e-11)
    assert np.linalg.norm(expected) > 0.01


@pytest.mark.parametrize("ball", [LINF, L2])
def test_trials_do_not_mix(ball: Ball) -> None:
    """RT-MLMC gives trials different numbers of points: its mean must be that of SG, in every trial."""
    problem, theta = problems(Cost())
    draw = rng(12)

    def copies(n: int) -> Problem:
        return replace(problem, x=np.repeat(problem.x, n, axis=1), z=np.repeat(problem.z, n, axis=1))

    sg = regularized_gradient(copies(1500), theta, ball, 0.9, SG(2), draw)
    rt = [regularized_gradient(copies(150), theta, ball, 0.9, RTMLMC(2), draw) for _ in range(30)]
    error = np.std(rt, axis=0, ddof=1) / sqrt(len(rt))
    assert np.all(np.abs(np.mean(rt, axis=0) - sg) < 6 * error + 0.02 * np.abs(sg).max())
    assert np.abs(sg[0] - sg[1]).max() > 0.05


@pytest.mark.parametrize("ball", [LINF, L2])
def test_attacks_of_all_trials_are_those_of_each(ball: Ball) -> None:
    problem, theta = problems(Cost())
    found = attacked(problem, theta, ball, fgm)
    for t in range(3):
        market = problem.market

        def slope(x: Any, i: Any, t: int = t, market: Market = market) -> Any:
            angle = x @ market.omega[t].T + market.b[t]
            w = np.cos(angle) @ theta[t]
            z = problem.z[t, i]
            return -(2 * z[:, 0] * w + z[:, 1])[:, None] * (-np.sin(angle) * theta[t]) @ market.omega[t]

        np.testing.assert_allclose(found[t], fgm(slope, problem.x[t], ball), atol=1e-12)
    worst = worst_cost(problem, theta, ball, 15)
    points = ball.sample(problem.x, 50, rng(5))
    sampled = np.max([problem.values(theta, points[:, :, k]) for k in range(50)], axis=0)
    assert np.all(worst > sampled.mean(axis=1))


def how(**changes: Any) -> Training:
    return replace(Training(LINF, 0.9, 3.0, 2, 3, 300, 100, 0.1), **changes)


def test_descent_finds_the_exact_erm() -> None:
    problem, _ = problems(Cost())
    risk = empirical_risk(problem.market, problem.x, problem.z)
    least = risk(least_in_ball(risk, 3.0))
    found = risk(train("erm", problem, how(), rng(0)))
    assert np.all(found >= least - 1e-5 * np.abs(least))
    assert np.all(found <= least + 0.01 * np.abs(least))


def test_batches_are_data_of_their_trial() -> None:
    problem, _ = problems(Cost())
    some = problem.batch(4, rng(1))
    assert some.x.shape == (3, 4, 10)
    for t in range(3):
        places = [np.flatnonzero((problem.x[t] == x).all(axis=1)).item() for x in some.x[t]]
        assert len(set(places)) == 4
        np.testing.assert_array_equal(some.z[t], problem.z[t, places])
    assert problem.batch(7, rng(1)) is problem


def test_methods_differ_and_regularisation_tends_to_noise() -> None:
    """Each method descends a gradient of its own; a huge eta leaves the mean over the ball."""
    problem, theta = problems(Cost())
    found = {name: gradient(name, problem, theta, how(), rng(3)) for name in METHODS}
    for a in METHODS:
        for b in METHODS:
            assert a == b or np.abs(found[a] - found[b]).max() > 1e-3
    calm = gradient("sg", problem, theta, how(eta=1e9, level=10), rng(3))
    points = LINF.sample(problem.x, 4000, rng(4))
    mean = np.mean([problem.gradient(theta, points[:, :, k]) for k in range(4000)], axis=0)
    np.testing.assert_allclose(calm, mean, atol=0.15 * np.abs(mean).max())


# --- The study --------------------------------------------------------------------------------------


def test_scales() -> None:
    paper = pricing.SCALES["paper"]
    assert (paper.covariates, paper.draws, paper.trials) == ((25, 50, 100, 200), (10, 30, 50, 100, 200), 50)
    assert (paper.radius, paper.eta, paper.features, paper.dimension) == (0.45, 0.9, 100, 10)
    assert len(STUDY.tasks(paper)) == 24
    # RT-MLMC takes 5/(2 - 1/16) points a covariate where SG takes 16.
    assert [pricing.training(paper, name, 4).batch for name in ("sg", "rt-mlmc")] == [25, 155]


@pytest.mark.parametrize("reading", pricing.READINGS)
@pytest.mark.parametrize("norm", pricing.NORMS)
def test_every_reading_gives_a_report(reading: str, norm: str) -> None:
    table = STUDY.compute(replace(TINY, reading=reading, norm=norm), rng(0))
    assert len(table.rows) == 6
    for row in table.rows:
        assert np.all(np.isfinite([value for value in row.values() if isinstance(value, float)]))
        assert row["best"] < 0 < row["erm_gap"]
        names = METHODS if row["part"] == "methods" else ("L0", "L1")
        for name in names:
            assert row[name] == pytest.approx(np.mean(row[f"{name}_trials"]))
            assert len(row[f"{name}_trials"]) == 3
    assert len(STUDY.tables(table)[0].rows) == 4
    assert len(STUDY.findings(table)) == 8


def test_improvement_is_the_share_of_the_gap_of_erm(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = np.array([[2.0, 4.0, 8.0], [4.0, 4.0, 4.0], *([[1.0, 4.0, 4.0]] * len(METHODS))])
    monkeypatch.setattr(pricing, "excess", lambda *_: (-np.ones(3), gaps))
    row = STUDY.compute_task(TINY, STUDY.tasks(TINY)[0], rng(0))
    assert row["nothing"] == pytest.approx((-100 + 0 + 50) / 3)
    np.testing.assert_allclose(row["fgm_trials"], [50, 0, 50])
    assert row["fgm"] == pytest.approx(100 / 3)
    assert row["fgm_stderr"] == pytest.approx(50 / 3)


def test_excess_of_the_best_rule_is_zero() -> None:
    market = markets()
    config = replace(TINY, features=12)
    risk = true_risk(market)
    best = least_in_ball(risk, config.bound)
    value, gaps = pricing.excess(config, market, np.stack([best, 0 * best]), rng(0))
    np.testing.assert_allclose(gaps[0], 0, atol=1e-12)
    np.testing.assert_allclose(gaps[1], -value, atol=1e-12)


def test_excess_with_bounded_prices() -> None:
    """Against R* by another integration, and the risk of a rule by another sample."""
    market = markets(2)
    theta = np.random.default_rng(3).normal(size=(1, 2, 12))
    config = replace(TINY, reading="prices", test_points=60_000)
    best, gaps = pricing.excess(config, market, theta, rng(0))
    draw, n = np.random.default_rng(1), 60_000
    for t in range(2):
        x = draw.normal(size=(n, 10))
        a, b = np.tanh(3 * x @ market.beta1[t]), np.exp(-2 * x @ market.beta2[t])
        w = np.clip(np.cos(x @ market.omega[t].T + market.b[t]) @ theta[0, t], 0, 2)
        top = np.where(a >= -b / 4, 4 * a + 2 * b, -(b**2) / np.minimum(4 * a, -1e-9))
        spread = 4.9 * sqrt(2 / n)
        assert abs(best[t] + top.mean()) < spread * top.std()
        lost = top - (a * w + b) * w
        assert abs(gaps[0, t] - lost.mean()) < spread * lost.std()


def table_of(places: tuple[int, ...] = (50,), **changed: Any) -> Table:
    """Numbers of a made-up study: KL above FGM above IFGM, but for what is changed at M in `places`."""
    rows = []
    for M in (25, 50):
        means = {"erm": 0.0, "fgm": -5.0, "ifgm": -9.0, "sg": 8.0, "rt-mlmc": 6.0}
        means |= changed if M in places else {}
        row: dict[str, Any] = {"part": "methods", "M": M, "m": 10, "nothing": -10.0}
        for name, J in means.items():
            row |= {name: J, f"{name}_stderr": 1.0, f"{name}_worst": 0.0}
            row[f"{name}_trials"] = [J - 1, J, J + 1]
        row |= {"fgm_worst": 5.0, "ifgm_worst": 0.5}
        levels: dict[str, Any] = {"part": "levels", "M": M, "m": 10}
        for L, J in ((0, 4.0), (1, 7.0)):
            levels |= {f"L{L}": J, f"L{L}_stderr": 1.0, f"L{L}_trials": [J - 1, J, J + 2]}
        rows += [row, levels]
    return Table(replace(TINY, covariates=(25, 50), draws=(10,)), tuple(rows))


def test_findings_follow_the_table() -> None:
    agree = STUDY.findings(table_of())
    assert "agrees with the paper: KL, SG is above FGM in 2 of 2" in agree[0]
    assert "negative in 2 of 2" in agree[1]
    assert 'intractability" differs from the paper. In 2 of 2' in agree[3]
    assert "most at L = 1, by 3.0 ± 0.0 over L = 0" in agree[6]
    lost = STUDY.findings(table_of(fgm=9.0))
    assert "differs from the paper: KL, SG is above FGM in 1 of 2" in lost[0]
    assert "not at M = 50, m = 10" in lost[0]
    assert "differs from the paper: J is negative in 1 of 2" in lost[1]
    assert "IFGM, differs from the paper: J is negative in 1 of 2" in STUDY.findings(table_of(ifgm=3.0))[2]
    assert "is not decided. In 2 of 2" in STUDY.findings(table_of(fgm=-20.0))[3]
    assert "cannot be judged" in STUDY.findings(table_of((25, 50), fgm=1.0))[3]


def test_figure_has_a_panel_for_each_number_of_covariates() -> None:
    pytest.importorskip("matplotlib")
    (figure,) = STUDY.draw(table_of()).values()
    assert [axes.get_title() for axes in figure.axes] == ["M = 25", "M = 50"]
    handles, labels = figure.axes[0].get_legend_handles_labels()
    assert labels == ["FGM", "IFGM", "KL, SG", "KL, RT-MLMC"]
    assert handles[0].lines[0].get_ydata().tolist() == [-5.0]


@pytest.mark.slow
def test_jobs_and_interruptions_change_nothing(tmp_path: Path) -> None:
    for name in ("joblib", "matplotlib", "threadpoolctl"):
        pytest.importorskip(name)
    config = replace(TINY, covariates=(6,), draws=(5,))
    run(STUDY, config, tmp_path / "one", jobs=1)
    run(STUDY, config, tmp_path / "two", jobs=2)
    whole = (tmp_path / "one" / "table.csv").read_bytes()
    assert (tmp_path / "two" / "table.csv").read_bytes() == whole
    first, _ = sorted((tmp_path / "two" / "rows").iterdir())
    first.unlink()
    run(STUDY, config, tmp_path / "two", jobs=1)
    assert (tmp_path / "two" / "table.csv").read_bytes() == whole


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("reading", "cone", ValueError, "reading is 'cone'; expected one of ball, prices"),
    ("norm", "l1", ValueError, "norm is 'l1'; expected one of linf, l2"),
    ("covariates", (), ValueError, "covariates is ()"),
    ("covariates", (25, 25), ValueError, "no two the same"),
    ("covariates", (25, 0), ValueError, "covariates is 0"),
    ("draws", (1.5,), ValueError, "draws is 1.5"),
    ("draws", 10, ValueError, "expected a tuple"),
    ("levels", (-1,), ValueError, "levels is -1"),
    ("levels", (13,), ValueError, "expected at most 12"),
    ("level", 13, ValueError, "level is 13"),
    ("level", 1.5, ValueError, "level is 1.5"),
    ("trials", 1, ValueError, "trials is 1; expected a whole number of at least 2"),
    *((name, 0, ValueError, f"{name} is 0") for name in ("dimension", "features", "attack_steps", "steps")),
    *((name, 0, ValueError, f"{name} is 0") for name in ("batch", "test_points")),
    *((name, 0.0, ValueError, f"{name} is 0.0") for name in ("radius", "eta", "beta_bound", "bound")),
    *((name, -1.0, ValueError, f"{name} is -1.0") for name in ("highest", "step_size", "rt_step_size")),
    ("eta", "much", TypeError, "eta is 'much'"),
    ("rt_step_size", 0.2, ValueError, "rt_step_size is 0.2; expected at most 0.1"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), BAD)
def test_bad_options_are_named(name: str, value: Any, error: type[Exception], text: str) -> None:
    make = partial(pricing.Config, **{name: value})
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)
