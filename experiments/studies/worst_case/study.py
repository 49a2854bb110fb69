"""Section 2.2 of the paper: worst-case distributions of a toy loss, for five regularisations.

The paper gives neither the weights of its network nor alpha and eta. Here are two networks, one for each
reading of the distribution of the weights (see `landscape`). They were chosen because, as in the paper, their
loss is largest near x = 5; other networks are drawn to count how often that happens. eta is given as a
fraction of the range of the loss, so that both networks are comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from phiball.backends import Array, Rng
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Task, TaskDir
from phiball.experiments.studies.worst_case import report
from phiball.experiments.studies.worst_case.landscape import (
    READINGS,
    count_maxima,
    draw_weights,
    network_loss,
)
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, indicator, worst_case
from phiball.refimpl.inner import dual_value, primal_value

REGULARISATIONS = ("indicator", "entropic", "quadratic", "absolute value", "hinge")
NETWORKS_PER_TASK = 10
NETWORK_POINTS = 1001
PROMINENCE = 0.01  # of a local maximum, relative to the range of f
DECIMALS = 9  # f is rounded, since its last digits, which decide ties on a plateau, differ between machines


@dataclass(frozen=True)
class Config(StudyConfig):
    """The options; "unstated" marks values that the paper does not give."""

    reading: str = option(
        "both", "Distribution of the weights; as printed, the sigmoids saturate.", ("both", *READINGS)
    )
    width: int = option(512, "Units of the first and of the second layer.")
    units: int = option(10, "Sigmoids of the third layer.")
    first_std: float = option(0.5, "Standard deviation of W1 (unstated: N(0, 0.25) may mean 0.25).")
    literal_seed: int = option(248, "NumPy seed of the network of reading literal (unstated).", minimum=0)
    scaled_seed: int = option(47, "NumPy seed of the network of reading scaled (unstated).", minimum=0)
    radius: float = option(5.0, "The ball is [-radius, radius].")
    points: int = option(10_000, "Points of the grid.", minimum=2)
    alphas: tuple[float, ...] = option((1.0, 0.5, 0.1, 0.01), "alpha of each row (unstated).", maximum=1)
    etas: tuple[float, ...] = option(
        (2.0, 0.2, 0.02, 0.002), "eta of each row, as a fraction of max f - min f (unstated)."
    )
    networks: int = option(100, "Other networks of each reading, for comparison.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.alphas) != len(self.etas):
            counts = f"{len(self.alphas)} numbers and etas {len(self.etas)}"
            raise ValueError(f"alphas has {counts}; expected one per row")


SCALES = {
    "smoke": Config(points=1000, networks=10),
    "small": Config(points=4000, networks=30),
    "paper": Config(),
}


@lru_cache(maxsize=2)
def loss_on_grid(config: Config, reading: str) -> tuple[Array, Array]:
    """The points of the grid, and the loss there."""
    seed = config.literal_seed if reading == "literal" else config.scaled_seed
    weights = draw_weights(
        reading,
        np.random.default_rng(seed).standard_normal,
        width=config.width,
        units=config.units,
        first_std=config.first_std,
    )
    z = np.linspace(-config.radius, config.radius, config.points)
    return z, np.round(network_loss(weights, z), DECIMALS)


def _landscape(config: Config, reading: str) -> Row:
    z, f = loss_on_grid(config, reading)
    top = z[f == f.max()]
    return {
        "lowest": f.min(),
        "mean": f.mean(),
        "highest": f.max(),
        "top_from": top.min(),
        "top_to": top.max(),
        "maxima": count_maxima(f, PROMINENCE * np.ptp(f)),
        "losses": f,
    }


def divergence(regularisation: str, alpha: float) -> Divergence:
    """Return the divergence of a regularisation; only the indicator depends on alpha."""
    others = dict(zip(REGULARISATIONS[1:], (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE), strict=True))
    return indicator(alpha) if regularisation == "indicator" else others[regularisation]


def printed_ratio(regularisation: str, f: Array, eta: float, alpha: float, mu: float) -> Array:
    """Return the density ratio zeta as printed in Examples 1 to 5; a correct ratio has mean one."""
    ratio: dict[str, Any] = {
        "indicator": lambda: (f >= np.quantile(f, 1 - alpha, method="inverted_cdf")) / alpha,
        "entropic": lambda: np.exp((f - mu) / eta),
        "quadratic": lambda: np.maximum(f - mu, 0) / eta,
        "absolute value": lambda: 1.0 * (f + 2 * eta - f.max() >= 0),
        "hinge": lambda: 1.0 * (f + eta - f.max() >= 0),
    }
    return ratio[regularisation]()


def _density(config: Config, reading: str, regularisation: str, row: int) -> Row:
    """The worst case at the alpha and eta of a row of the figure, and the mass and value as printed."""
    z, f = loss_on_grid(config, reading)
    n, alpha = config.points, config.alphas[row]
    eta = config.etas[row] * float(np.ptp(f))
    d = divergence(regularisation, alpha)
    solved = worst_case(f, eta, d)
    weights = solved.weights
    zeta = n * weights
    # If phi grows linearly (finite recession), part of the mass is an atom, which the printed zeta lacks.
    ratio = np.minimum(zeta, 1.0) if d.recession < np.inf else zeta
    atom = max(0.0, 1 - float(ratio.mean())) if d.recession < np.inf else 0.0
    printed = printed_ratio(regularisation, f, eta, alpha, float(solved.mu))
    cumulative = np.cumsum(weights)
    return {
        "eta": eta,
        "alpha": alpha,
        "value": solved.value,
        "dual_minus_primal": dual_value(f, solved.mu, eta, d) - primal_value(f, weights, eta, d),
        "mass": weights.sum(),
        # If the slope of phi at 0 is infinite, zeta is positive everywhere, but may underflow.
        "support": 1.0 if d.slope0 == -np.inf else np.mean(weights > 0),
        "largest": ratio.max() / (2 * config.radius),
        "atom": atom if atom > 1e-12 else 0.0,
        "low": z[np.searchsorted(cumulative, 0.05)],
        "high": z[min(n - 1, int(np.searchsorted(cumulative, 0.95)))],
        "printed_mass": printed.mean(),
        "printed_value": primal_value(f, printed / printed.sum(), eta, d),
        "density": ratio / (2 * config.radius),
    }


def _networks(config: Config, reading: str, count: int, rng: Rng) -> Row:
    """For `count` other networks: how often the loss is largest near the end, and its local maxima."""
    z = np.linspace(-config.radius, config.radius, NETWORK_POINTS)
    places, maxima = [], []
    for _ in range(count):
        weights = draw_weights(
            reading,
            lambda shape: rng.normal(shape, like=z),
            width=config.width,
            units=config.units,
            first_std=config.first_std,
        )
        f = np.round(network_loss(weights, z), DECIMALS)
        places.append(float(z[np.argmax(f)]))
        maxima.append(count_maxima(f, PROMINENCE * float(np.ptp(f))))
    return {
        "drawn": count,
        "at_end": sum(place >= 0.8 * config.radius for place in places),
        "many": sum(number >= 3 for number in maxima),
        "numbers": maxima,
    }


class WorstCaseStudy(Study[Config]):
    """The loss of each reading, its worst case for each regularisation and row, and other networks."""

    name = "worst-case"
    title = "Worst-case distributions of a toy loss (Section 2.2)."
    scales = SCALES
    draw = staticmethod(report.draw)
    tables = staticmethod(report.tables)
    findings = staticmethod(report.findings)

    def tasks(self, config: Config) -> list[Task]:
        tasks: list[Task] = []
        for reading in READINGS if config.reading == "both" else (config.reading,):
            tasks.append({"part": "landscape", "reading": reading})
            tasks += [
                {"part": "density", "reading": reading, "regularisation": name, "row": row}
                for name in REGULARISATIONS
                for row in range(len(config.etas))
            ]
            tasks += [
                {"part": "networks", "reading": reading, "first": first}
                for first in range(0, config.networks, NETWORKS_PER_TASK)
            ]
        return tasks

    def work(self, config: Config, task: Task) -> float:
        """Return the approximate cost of a task, in network evaluations; a solve costs a tenth of one."""
        other = {"networks": NETWORKS_PER_TASK * NETWORK_POINTS, "density": config.points / 10}
        return float(other.get(task["part"], config.points))

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        if task["part"] == "landscape":
            return _landscape(config, task["reading"])
        if task["part"] == "density":
            return _density(config, task["reading"], task["regularisation"], task["row"])
        count = min(NETWORKS_PER_TASK, config.networks - task["first"])
        return _networks(config, task["reading"], count, rng)


STUDY = WorstCaseStudy()
