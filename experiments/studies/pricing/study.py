"""Personalised pricing (Section 6.3): adversarial and regularised training against plain training.

The problem as printed has no optimum (see `model`), so there are two readings with bounds. `ball`: theta lies
in an l2 ball; plain training (ERM) and the best rule are then trust-region problems, solved exactly, and the
optimal risk R* is that of the best rule. `prices`: in addition prices lie in [0, W], and R* is the risk of
the best price at each x, which may be lower than the risk of every rule. The improvement J of a rule is the
percentage by which it reduces ERM's excess risk over R*.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from phiball.backends import Array, Rng
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Task, TaskDir
from phiball.experiments.studies.pricing import report
from phiball.experiments.studies.pricing.model import (
    Cost,
    Market,
    draw_data,
    draw_market,
    empirical_risk,
    least_in_ball,
    optimal_price,
    true_risk,
)
from phiball.experiments.studies.pricing.training import (
    METHODS,
    PricingProblem,
    TrainingSettings,
    train_rule,
    worst_cost,
)
from phiball.refimpl import RTMLMC, SG, Ball
from phiball.refimpl.distributions.norms import as_norm

READINGS = ("ball", "prices")
BLOCK = 1000  # points x in memory at a time
LARGEST_RT_STEP = 0.1  # with larger steps the noise of RT-MLMC dominates


@dataclass(frozen=True)
class Config(StudyConfig):
    """The parameters; "unstated" marks those that the paper does not give, other defaults are the paper's."""

    reading: str = option("ball", "The bound on the revenue (unstated: as printed there is none).", READINGS)
    norm: str = option("linf", "Norm of the ball around covariates (unstated).", ("linf", "l2"))
    covariates: tuple[int, ...] = option((25, 50, 100, 200), "M, the number of covariates x.")
    draws: tuple[int, ...] = option((10, 30, 50, 100, 200), "m, the number of z per x.")
    trials: int = option(50, "Independent trials.", minimum=2)
    radius: float = option(0.45, "rho, the radius of the ball around covariates.")
    eta: float = option(0.9, "eta, the price of the divergence.")
    dimension: int = option(10, "Dimension of x.")
    features: int = option(100, "Random features.")
    beta_bound: float = option(0.1, "Bound on the entries of beta_1 and beta_2.")
    bound: float = option(3.0, "theta lies in the l2 ball of this radius (unstated).")
    highest: float = option(2.0, "W, the highest price of the reading prices (unstated).")
    level: int = option(
        4,
        "L: SG takes 2^L points per ball, and RT-MLMC has the same expectation (unstated).",
        minimum=0,
        maximum=12,
    )
    levels: tuple[int, ...] = option(
        (0, 2, 4, 6), "Other L, for SG only, at the middle m.", minimum=0, maximum=12
    )
    attack_steps: int = option(15, "Steps of IFGM and of the attack for the worst cost.")
    steps: int = option(500, "Steps of projected descent (unstated).")
    batch: int = option(25, "Covariates per step; RT-MLMC takes more, at equal cost (unstated).")
    step_size: float = option(0.1, "First step size, which decays linearly to zero (unstated).")
    rt_step_size: float = option(
        0.05, "First step size of RT-MLMC, which is noisier (unstated).", maximum=LARGEST_RT_STEP
    )
    test_points: int = option(5000, "Test points of the reading prices; the reading ball needs none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("covariates", "draws", "levels"):
            numbers = getattr(self, name)
            if len(set(numbers)) < len(numbers):
                raise ValueError(f"{name} is {numbers!r}; expected distinct numbers")


SCALES = {
    "smoke": Config(covariates=(25, 50), draws=(10, 100), trials=10, levels=(0, 3), level=3, steps=100),
    "small": Config(draws=(10, 50, 200), trials=20, steps=300),
    "paper": Config(),
}


def training_settings(config: Config, method: str, level: int) -> TrainingSettings:
    """The training settings of a method."""
    rt_mlmc = method == "rt-mlmc"
    factor = SG(level).evaluations / RTMLMC(level).evaluations if rt_mlmc else 1.0
    return TrainingSettings(
        ball=Ball(as_norm(config.norm), config.radius),
        eta=config.eta,
        bound=config.bound,
        level=level,
        attack_steps=config.attack_steps,
        steps=config.steps,
        batch=round(config.batch * factor),
        step_size=config.rt_step_size if rt_mlmc else config.step_size,
    )


def excess(config: Config, market: Market, rules: Array, rng: Rng) -> tuple[Array, Array]:
    """The optimal risk R* (T,) of each trial, and the excess R(theta) - R* (K, T) of K rules (K, T, F)."""
    if config.reading == "ball":
        risk = true_risk(market)
        best = risk(least_in_ball(risk, config.bound))
        return best, np.stack([risk(theta) for theta in rules]) - best
    trials, n, cost = rules.shape[1], config.test_points, Cost(0.0, config.highest)
    best, risks = np.zeros(trials), np.zeros(rules.shape[:2])
    for start in range(0, n, BLOCK):
        x = rng.normal((trials, min(BLOCK, n - start), config.dimension), like=rules)
        z = market.sensitivity(x)
        g = market.features(x.astype(np.float32))
        best += cost.value(optimal_price(z, config.highest), z).sum(axis=1) / n
        for k, theta in enumerate(rules):
            price = np.clip((g @ theta[:, :, None].astype(np.float32))[:, :, 0], 0.0, config.highest)
            risks[k] += cost.value(price, z).sum(axis=1) / n
    return best, risks - best


def _runs(config: Config, task: Task) -> dict[str, tuple[str, int]]:
    """The method and the level of each rule that a task trains, by name."""
    if task["part"] == "methods":
        return {method: (method, config.level) for method in METHODS}
    return {f"L{level}": ("sg", level) for level in config.levels}


class PricingStudy(Study[Config]):
    """One task per M and m with all methods, and one per M with SG at all levels."""

    name = "pricing"
    title = "Personalised pricing: improvement over plain training (Section 6.3)."
    scales = SCALES
    draw = staticmethod(report.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(report.findings)

    def tasks(self, config: Config) -> list[Task]:
        middle = config.draws[len(config.draws) // 2]
        return [
            *({"part": "methods", "M": M, "m": m} for M in config.covariates for m in config.draws),
            *({"part": "levels", "M": M, "m": middle} for M in config.covariates),
        ]

    def work(self, config: Config, task: Task) -> float:
        """Return the approximate cost of a task: the prices evaluated per trial, in training and attack."""
        points = {"erm": 1, "fgm": 2, "ifgm": config.attack_steps + 1}
        runs = _runs(config, task).values()
        training = sum(points.get(method, SG(level).evaluations) for method, level in runs)
        return float(config.steps * config.batch * training + task["M"] * config.attack_steps * len(runs))

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Return the improvement over ERM per trial, in percent, with means and standard errors."""
        runs = _runs(config, task)
        data, test, plain, *sources = rng.spawn(3 + len(runs))
        market = draw_market(config.trials, config.dimension, config.features, config.beta_bound, data)
        x, z = draw_data(market, task["M"], task["m"], data)
        bounded = config.reading == "prices"
        problem = PricingProblem(market, Cost(0.0, config.highest) if bounded else Cost(), x, z)
        rules = {
            name: train_rule(method, problem, training_settings(config, method, level), source)
            for (name, (method, level)), source in zip(runs.items(), sources, strict=True)
        }
        if bounded:
            erm = train_rule("erm", problem, training_settings(config, "erm", config.level), plain)
        else:
            erm = least_in_ball(empirical_risk(market, x, z), config.bound)
        best, gaps = excess(config, market, np.stack([erm, np.zeros_like(erm), *rules.values()]), test)
        improved = 100 * (1 - gaps[1:] / gaps[0])
        row: dict[str, Any] = {"best": best.mean(), "erm_gap": gaps[0].mean(), "nothing": improved[0].mean()}
        ball = Ball(as_norm(config.norm), config.radius)
        for (name, theta), J in zip(rules.items(), improved[1:], strict=True):
            row[name] = J.mean()
            row[f"{name}_stderr"] = J.std(ddof=1) / sqrt(len(J))
            row[f"{name}_worst"] = worst_cost(problem, theta, ball, config.attack_steps).mean()
            row[f"{name}_trials"] = J
        return row


STUDY = PricingStudy()
