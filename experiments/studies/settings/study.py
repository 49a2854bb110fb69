"""Which training settings withstand attacks, at equal cost (beyond the paper).

The study `supervised` trains as the paper does, by Adam at a constant rate. Here the rate increases linearly
over the first tenth of the steps and then decays to 0 along a cosine. The setting and the peak rate of each
method are those with the least error under PGM on held-out images; all methods have the same candidate rates.
Methods are configured by the radius of the attack (see `method_grid`).

On the test images the networks are attacked by PGM and APGD in two norms; training uses one of the norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from phiball.backends import Array, Rng
from phiball.experiments.framework.config import option
from phiball.experiments.framework.tasks import Row, Table, Task
from phiball.experiments.studies.settings import report
from phiball.experiments.studies.settings.method_grid import FAMILIES, RADII, REFERENCE, method_grid
from phiball.experiments.studies.settings.report import held_out_error
from phiball.experiments.training.image_attacks import (
    ATTACK_NORMS,
    after_apgd,
    after_pgm,
    chunks,
    error_percentage,
    is_correct,
)
from phiball.experiments.training.image_study import SMOKE, ImageConfig, ImageStudy, check_increasing
from phiball.experiments.training.loop import Schedule
from phiball.experiments.training.training_methods import Method
from phiball.refimpl import Ball
from phiball.refimpl.distributions.norms import as_norm

ATTACKS = {"PGM": after_pgm, "APGD": after_apgd}
SMALL_METHODS = ("ERM", REFERENCE, "N-FGSM", "ATTA-1", "tilted", "random-start tilted", "wide tilted")


@dataclass(frozen=True)
class Config(ImageConfig):
    """The options of the study."""

    methods: tuple[str, ...] = option(FAMILIES, "Methods.", FAMILIES)
    norms: tuple[str, ...] = option(("linf",), "Norms of the ball in training.", ATTACK_NORMS)
    # `seeds` is not recorded, so that a finished run can be extended by more seeds.
    seeds: int = option(
        5, "Networks trained by each method, at least 2; more can be added.", minimum=2, affects_results=False
    )
    rates: tuple[float, ...] = option((1e-3, 2e-3, 4e-3, 8e-3), "Candidates for the peak learning rate.")
    warmup: float = option(
        0.1, "The fraction of steps over which the rate increases.", minimum=0, maximum=0.9
    )
    steps: int = option(40, "Steps of the attack PGM.")
    apgd_steps: int = option(100, "Steps of the attack APGD, for each of its two losses.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing("rates", self.rates)


SCALES = {
    "smoke": Config(**SMOKE, rates=(2e-3, 6e-3), steps=5, apgd_steps=10),
    "small": Config(
        methods=SMALL_METHODS,
        seeds=3,
        rates=(1.5e-3, 4e-3, 1e-2),
        train=4000,
        held_out=800,
        judged=400,
        attacked=500,
        width=16,
        epochs=4,
        steps=10,
        apgd_steps=8,
    ),
    "paper": Config(),
}


def errors_by_attack(
    model: Any, x: Array, y: Array, radii: dict[str, float], steps: dict[str, int], rng: Rng
) -> dict[str, float]:
    """Return the error in % on clean images ("clean"), and for each attack and norm (such as "PGM l2").

    `steps` is the number of steps of each attack, `radii` the radius of the attacks in each norm.
    """
    pieces = chunks(x, y)
    clean = [is_correct(model, *piece) for piece in pieces]
    percentages = {"clean": error_percentage(clean)}
    for kind, norm in product(steps, radii):
        ball, attack_rng = Ball(as_norm(norm), radii[norm]), rng.keyed(f"{kind} {norm}")
        correct = [
            ATTACKS[kind](model, x, y, ok, ball, steps[kind], attack_rng)
            for (x, y), ok in zip(pieces, clean, strict=True)
        ]
        percentages[f"{kind} {norm}"] = error_percentage(correct)
    return percentages


def _steps(config: Config, stage: str) -> dict[str, int]:
    """The steps of each attack of a stage; settings are chosen by PGM only."""
    return {"PGM": config.steps} if stage == "choose" else {"PGM": config.steps, "APGD": config.apgd_steps}


class SettingsStudy(ImageStudy[Config]):
    """Choose settings and rates on held-out images, and compare all methods on test images."""

    name = "settings"
    title = "Which training settings withstand attacks, at equal cost (beyond the paper)."
    scales = SCALES
    draw = staticmethod(report.draw)
    tables = staticmethod(report.tables)

    def tasks(self, config: Config, judged: list[Row] | None = None) -> list[Task]:
        """Return the tasks of the first stage or, given its rows, of the second."""
        places = [{"data": data, "norm": norm} for data in config.data for norm in config.norms]
        if judged is None:
            return [
                {"stage": "choose", **place, "method": method, "setting": setting, "rate": rate, "trial": 0}
                for place in places
                for method, setting in method_grid(config.methods, place["data"], place["norm"])
                for rate in config.rates
            ]
        return [
            {"stage": "report", **place, "method": name, **_best(judged, place, name), "trial": trial}
            for trial in range(config.seeds)
            for place in places
            for name in FAMILIES
            if name in config.methods
        ]

    def method(self, config: Config, task: Task) -> Method:
        return method_grid(config.methods, task["data"], task["norm"])[task["method"], task["setting"]]

    def schedule(self, config: Config, task: Task) -> Schedule:
        return Schedule(config.epochs, config.batch, task["rate"], config.warmup)

    def attack(
        self, config: Config, task: Task, model: Any, train_x: Array, x: Array, y: Array, rng: Rng
    ) -> Row:
        """Return the errors on clean images, and under PGM and (second stage) APGD in both norms."""
        steps = _steps(config, task["stage"])
        return errors_by_attack(model, x, y, RADII[task["data"]], steps, rng)

    def attack_work(self, config: Config, task: Task) -> float:
        steps = _steps(config, task["stage"])
        total = steps["PGM"] + 2 * steps.get("APGD", 0)  # APGD runs with two losses
        images = config.judged if task["stage"] == "choose" else config.attacked
        # About 70 % of the images are correct without an attack; only these are attacked.
        return images * total * len(ATTACK_NORMS) * 0.7

    def findings(self, table: Table) -> list[str]:
        return []  # the tables say all: stars mark significant differences


def _best(judged: list[Row], place: Task, method: str) -> dict[str, Any]:
    """Return the setting and the rate with the lowest error on held-out images; the lower rate in a tie."""
    wanted = {**place, "method": method}.items()
    rows = [row for row in judged if wanted <= row.items()]
    best = min(rows, key=lambda row: (held_out_error(row), row["rate"]))
    return {"setting": best["setting"], "rate": best["rate"]}


STUDY = SettingsStudy()
