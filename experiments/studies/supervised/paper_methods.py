"""The training methods of the study `supervised`, and the readings of the paper.

The paper gives one radius, rho = 0.45, for all methods, and a "stepsize" of 0.1 for FGM and IFGM. It gives
neither the norm of the ball nor the meaning of a step of 0.1 for FGM, which takes one step. So there are two
norms and three readings of the step:

- `rho`: FGM moves by the full radius; IFGM takes steps of 0.1 inside the ball.
- `literal`: FGM moves by 0.1; IFGM is as in `rho`.
- `step`: 0.1 is the radius of both FGM and IFGM.

We add methods that are not in the paper. With radius rho: SG, the quadratic divergence, CVaR, random-start
FGM and noise. With the setting that does best on held-out images: RT-MLMC, noise, random-start FGM and tilted
points.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from phiball.experiments.training.training_methods import (
    UNWEIGHTED_ETA,
    Method,
    adversarial_training,
    plain_training,
    random_start_fgm,
    regularized_training,
    tilted_training,
)
from phiball.refimpl import ENTROPIC, QUADRATIC, RTMLMC, SG, Ball, Tilted, fgm, ifgm, indicator
from phiball.refimpl.distributions.norms import as_norm

FAMILIES = (
    "ERM", "FGM", "IFGM", "RT-MLMC", "random-start FGM", "noise x4", "SG", "quadratic", "CVaR",
)  # fmt: skip
FEWER_SEEDS = ("SG", "quadratic", "CVaR")  # trained with fewer seeds, in the last norm only
CHOSEN = ("RT-MLMC", "noise x4", "random-start FGM", "tilted")
FOUR_POINTS = SG(2)  # per data point, about as many as RT-MLMC on average


@dataclass(frozen=True)
class PaperReading:
    """One reading of the paper: the names of the paper's own method (`ours`) and of the baselines."""

    name: str
    ours: str
    baselines: tuple[str, ...]


def readings(config: Any) -> list[PaperReading]:
    """Return the readings whose methods are all in the configuration."""
    methods, readings = paper_methods(config), []
    for norm in config.norms:
        rho, step = f"{norm} {config.rho:g}", f"{norm} {config.step:g}"
        for name, first, second in (("rho", rho, rho), ("literal", step, rho), ("step", step, step)):
            reading = PaperReading(
                f"{norm}, {name}", f"RT-MLMC {rho}", ("ERM", f"FGM {first}", f"IFGM {second}")
            )
            if {reading.ours, *reading.baselines} <= methods.keys():
                readings.append(reading)
    return readings


def paper_methods(config: Any) -> dict[str, Method]:
    """Return the methods of the configuration with the paper's settings, by name."""
    methods = {"ERM": plain_training()}
    for norm in config.norms:
        ball, eta = Ball(as_norm(norm), config.rho), config.eta * config.rho
        setting = f"{norm} {config.rho:g}"
        for radius in dict.fromkeys((config.rho, config.step)):
            baseline_ball, name = Ball(as_norm(norm), radius), f"{norm} {radius:g}"
            # In the ball of radius 0.1, IFGM takes steps of the default size.
            step = config.step if radius > config.step else None
            methods[f"FGM {name}"] = adversarial_training("FGM", name, 2, _fgm(baseline_ball))
            attack = _ifgm(baseline_ball, config.steps, step)
            methods[f"IFGM {name}"] = adversarial_training("IFGM", name, config.steps + 1, attack)
        more = [
            random_start_fgm(setting, ball),
            regularized_training("RT-MLMC", setting, ball, eta, ENTROPIC, _rtmlmc(config)),
            regularized_training("noise x4", setting, ball, UNWEIGHTED_ETA, ENTROPIC, FOUR_POINTS),
        ]
        if norm == config.norms[-1]:  # by default linf: in so small an l2 ball they are like plain training
            more += [
                regularized_training("SG", setting, ball, eta, ENTROPIC, FOUR_POINTS),
                regularized_training("quadratic", setting, ball, eta, QUADRATIC, FOUR_POINTS),
                regularized_training("CVaR", setting, ball, eta, indicator(config.alpha), FOUR_POINTS),
            ]
        methods |= {f"{method.family} {setting}": method for method in more}
    return {name: method for name, method in methods.items() if method.family in config.methods}


def candidate_methods(config: Any) -> dict[str, Method]:
    """Return the candidate settings, by name, for the families of CHOSEN in the configuration."""
    estimator, ratio = _rtmlmc(config), config.eta
    methods = [
        regularized_training(
            "RT-MLMC", f"linf {r:g}, eta {q * r:g}", Ball(inf, r), q * r, ENTROPIC, estimator
        )
        for r, q in ((0.3, ratio), (0.6, ratio), (1.0, ratio), (1.5, ratio), (0.6, 0.2))
    ]
    methods += [
        regularized_training("noise x4", f"linf {r:g}", Ball(inf, r), UNWEIGHTED_ETA, ENTROPIC, FOUR_POINTS)
        for r in (0.3, 0.6, 1.0, 1.5)
    ]
    methods += [
        random_start_fgm(f"{norm} {r:g}", Ball(as_norm(norm), r))
        for norm, r in (("l2", 1.5), ("l2", 3.0), ("linf", 0.1), ("linf", 0.2), ("linf", 0.3))
    ]
    methods += [
        tilted_training("tilted", f"linf {r:g}, eta {eta:g}", Ball(inf, r), Tilted(), eta)
        for r, eta in ((0.2, 0.004), (0.3, 0.006))
    ]
    methods += [
        tilted_training(
            "tilted", f"{norm} {r:g}, kappa {kappa:g}", Ball(as_norm(norm), r), Tilted(kappa=kappa)
        )
        for norm, r, kappa in (("linf", 0.3, 0.3), ("linf", 0.2, 1.0), ("linf", 0.3, 1.0), ("l2", 3.0, 1.0))
    ]
    return {
        f"{method.family} {method.setting}": method for method in methods if method.family in config.chosen
    }


def _rtmlmc(config: Any) -> RTMLMC:
    return RTMLMC(config.level, config.allocation)


def _fgm(ball: Ball) -> Any:
    return lambda loss, x, rng: fgm(loss, x, ball)


def _ifgm(ball: Ball, steps: int, step: float | None) -> Any:
    """The attack IFGM with steps of size `step`, or of the library's default size if None."""
    return lambda loss, x, rng: ifgm(loss, x, ball, steps=steps, step=step)
