"""Robust Q-learning on the cart-pole problem (Section 6.2).

A Q-table is learned on the original problem by three updates: the regular one, the paper's (with the maximum
over actions outside the soft minimum), and a variant with the maximum inside. Its greedy policy is then run
on the original problem and on three problems with other physics. The methods of a trial share all random
numbers. The expectation over the perturbed state is an exact finite sum.

The paper's update is an infimum over perturbations, which has the right sign; the supremum in its text would
be optimistic. The paper does not state the grid, the discount, the schedules, the initial values, rho and its
unit, eta, the number of episodes, or the value after a truncated episode (bootstrapped here). It caps
training episodes at 400 steps, but reports larger returns, so training and evaluation have separate caps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from phiball.backends import Rng
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Task, TaskDir
from phiball.experiments.studies.cartpole import report
from phiball.experiments.studies.cartpole.environment import START, Backup, Physics, learn, play
from phiball.experiments.studies.cartpole.report import METHODS, PROBLEM_NAMES, WINDOW
from phiball.refimpl.qlearning import Grid, Maximum
from phiball.refimpl.qlearning.bellman import valid_discount

CHUNK = 5 * WINDOW  # episodes whose random numbers are drawn at a time


@dataclass(frozen=True)
class Config(StudyConfig):
    """The parameters of the study."""

    trials: int = option(80, "Tables learned by each method; 10 in the paper.", minimum=2)
    others: int = option(40, "Trials for each of the other grids and initial values.", minimum=2)
    batch: int = option(10, "Trials per task.")
    episodes: int = option(2000, "Training episodes.")
    train_cap: int = option(400, "Steps after which a training episode is truncated.")
    eval_cap: int = option(500, "Steps after which an evaluation episode is truncated.")
    evaluations: int = option(20, "Evaluation episodes of a learned table in each problem.")
    bins: tuple[int, ...] = option(
        (1, 1, 6, 12), "Grid cells for position, velocity, angle and angular velocity."
    )
    reach: tuple[float, ...] = option((2.4, 3.0, 0.2094, 3.5), "Half-width of the grid in each coordinate.")
    discount: float = option(0.99, "Discount factor.", minimum=0)
    initial: float = option(0.0, "The initial value of all table entries.", minimum=-inf)
    alpha: tuple[float, ...] = option(
        (0.5, 0.002, 0.05), "Step size: first, decay per episode, last.", minimum=0
    )
    epsilon: tuple[float, ...] = option(
        (1.0, 0.0025, 0.01), "Exploration: first, decay per episode, last.", minimum=0
    )
    rho: float = option(0.25, "Radius of the ball around a state, in grid cells.")
    eta: float = option(1.0, "Price of the divergence.")
    rhos: tuple[float, ...] = option((0.125, 0.25, 0.5, 1.0), "Other radii to try.")
    etas: tuple[float, ...] = option((0.1, 1.0, 10.0, 100.0), "Other prices to try.")
    grids: tuple[str, ...] = option(
        ("1x1x3x6", "1x1x6x12", "1x1x12x24", "2x2x6x12", "4x4x6x12", "4x4x10x10"), "Other grids to try."
    )
    initials: tuple[float, ...] = option(
        (0.0, 100.0), "Initial values to try on each of these grids.", minimum=-inf
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        valid_discount(self.discount)
        for name, floor in (("alpha", 0.0), ("epsilon", -1.0)):
            schedule = getattr(self, name)
            if len(schedule) != 3 or not floor < schedule[2] <= schedule[0] <= 1:
                expected = "first, decay, last with 1 >= first >= last, and for alpha last > 0"
                raise ValueError(f"{name} is {schedule!r}; expected {expected}")
        for name, entries in (("bins", self.bins), ("reach", self.reach)):
            if len(entries) != 4:
                raise ValueError(f"{name} is {entries!r}; expected four numbers")
        for grid in self.grids:
            if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", grid):
                raise ValueError(f"grids has {grid!r}; expected four whole numbers such as 1x1x6x12")

    @property
    def table(self) -> str:
        """The name of the main grid."""
        return "x".join(map(str, self.bins))


SCALES = {
    "smoke": Config(
        trials=4,
        others=2,
        batch=2,
        episodes=300,
        evaluations=5,
        rhos=(0.25, 1.0),
        etas=(1.0, 10.0),
        grids=("1x1x6x12", "4x4x10x10"),
        initials=(0.0,),
    ),
    "small": Config(trials=40, others=16),
    "paper": Config(),
}


# The physics of the problems on which tables are evaluated.
PHYSICS = (Physics(), Physics(mass=0.2), Physics(length=0.25), Physics(gravity=49.0))
PROBLEMS = dict(zip(PROBLEM_NAMES, PHYSICS, strict=True))


def backups(config: Config, grid: Grid, sweep: bool) -> dict[str, Backup]:
    """The methods by name; with `sweep`, also other radii and prices."""

    def robust(rho: float, eta: float, maximum: Maximum = Maximum.OUTSIDE) -> Backup:
        return Backup(tuple(rho * h for h in grid.width), eta, maximum)

    main = (Backup(), *(robust(config.rho, config.eta, maximum) for maximum in Maximum))
    methods = dict(zip(METHODS, main, strict=True))
    if sweep:
        methods |= {f"rho {rho:g}": robust(rho, config.eta) for rho in config.rhos if rho != config.rho}
        methods |= {f"eta {eta:g}": robust(config.rho, eta) for eta in config.etas if eta != config.eta}
    return methods


def _methods(config: Config, task: Task) -> tuple[Grid, dict[str, Backup]]:
    """The grid of a task, and the methods that learn on it, which include the sweep on the main grid."""
    bins = tuple(int(n) for n in task["table"].split("x"))
    grid = Grid(tuple(-r for r in config.reach), config.reach, bins)
    return grid, backups(config, grid, (task["table"], task["initial"]) == (config.table, config.initial))


def _trial(config: Config, grid: Grid, initial: float, methods: dict[str, Backup], rng: Rng) -> Any:
    """For each method, the mean return by problem, and the mean length of training episodes by window."""
    like = np.empty(0)
    Q = {name: np.full((grid.n_states, 2), float(initial)) for name in methods}
    lengths: dict[str, list[float]] = {name: [] for name in methods}
    for first in range(0, config.episodes, CHUNK):
        k = np.arange(first, min(first + CHUNK, config.episodes))
        schedules = _decayed(config.alpha, k), _decayed(config.epsilon, k)
        starts = rng.uniform((k.size, 4), like=like, low=-START, high=START)
        numbers = rng.uniform((k.size, config.train_cap, 2), like=like)
        for name, backup in methods.items():
            steps = learn(Q[name], grid, backup, config.discount, schedules, starts, numbers, Physics())
            windows = np.split(steps, range(WINDOW, k.size, WINDOW))
            lengths[name] += [float(np.mean(window)) for window in windows]
    starts = rng.uniform((config.evaluations, 4), like=like, low=-START, high=START)
    return {
        name: (
            {
                problem: float(np.mean(play(Q[name], grid, starts, config.eval_cap, physics)))
                for problem, physics in PROBLEMS.items()
            },
            lengths[name],
        )
        for name in methods
    }


def _decayed(schedule: tuple[float, ...], k: Any) -> Any:
    first, decay, last = schedule
    return np.maximum(last, first * np.exp(-decay * k))


class CartPoleStudy(Study[Config]):
    """Batches of trials on the main grid, and on each pair of another grid and initial value."""

    name = "cartpole"
    title = "Robust Q-learning on the cart-pole problem (Section 6.2)."
    scales = SCALES
    draw = staticmethod(report.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(report.findings)

    def tasks(self, config: Config) -> list[Task]:
        main = (config.table, float(config.initial))
        rest = [(grid, float(initial)) for initial in config.initials for grid in config.grids]
        return [
            {"table": grid, "initial": initial, "first": first, "trials": min(config.batch, trials - first)}
            for grid, initial in dict.fromkeys([main, *rest])
            for trials in [config.trials if (grid, initial) == main else config.others]
            for first in range(0, trials, config.batch)
        ]

    def work(self, config: Config, task: Task) -> float:
        """Return the approximate cost of a task: the number of tables that it learns."""
        return float(task["trials"] * len(_methods(config, task)[1]))

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        """Return the mean return per learned table and problem, and the lengths of the training episodes."""
        grid, methods = _methods(config, task)
        sources = rng.spawn(task["trials"])
        trials = [_trial(config, grid, task["initial"], methods, source) for source in sources]
        returns = {m: {p: [trial[m][0][p] for trial in trials] for p in PROBLEM_NAMES} for m in methods}
        lengths = {m: [trial[m][1] for trial in trials] for m in METHODS}
        means = {f"{m} {p}": float(np.mean(returns[m][p])) for m in METHODS for p in PROBLEM_NAMES}
        return {**means, "returns": returns, "lengths": lengths}


STUDY = CartPoleStudy()
