"""The grid of training methods and settings that `phiball bench settings` compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import inf

from phiball.experiments.training.methods import UNWEIGHTED_ETA, Method, attacked, by_objective, mean_loss
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    Tilted,
    fgm,
    ifgm,
    indicator,
)

NORMS = {2.0: "l2", inf: "linf"}
# In any one direction a uniform point of an l2 ball in d dimensions goes radius/sqrt(d + 2), and one of a
# linf ball radius/sqrt(3): the radii of sampled methods are that much larger for a similar effect, d = 64.
ATTACK_RADII = {2.0: (0.25, 0.5, 1.0, 2.0), inf: (0.05, 0.1, 0.2, 0.3)}
SAMPLE_RADII = {2.0: (1.0, 2.0, 4.0, 8.0), inf: (0.2, 0.4, 0.8, 1.6)}
# A tilted point goes the whole radius along the gradient at a strong tilt, and little at a weak one: kappa
# of 0.1, 0.3 and 1 take it 0.1, 0.27 and 0.61 of the radius in l2, and in linf a third to half of kappa.
TILTED_RADII = {2.0: (0.5, 1.0, 2.0, 4.0), inf: (0.1, 0.2, 0.4, 0.8)}
RATIOS = (0.02, 0.2, 2.0)  # eta/radius; 2 is the paper's
KAPPAS = (0.1, 0.3, 1.0)
STEPS = 7  # of IFGM in training


def baselines(radii: tuple[int, ...], level: int) -> Iterator[Method]:
    """Yield the methods without a divergence: plain training, noise in 1 and 2^level copies, and attacks."""
    yield Method("ERM", "", 1, mean_loss)
    for norm, name in NORMS.items():
        for copies in (SG(0), SG(level)):
            family = f"noise {name}" if copies.level == 0 else f"noise x{copies.evaluations:g} {name}"
            for radius in (SAMPLE_RADII[norm][k] for k in radii):
                objective = RegularizedLoss(
                    Ball(norm, radius), UNWEIGHTED_ETA, ENTROPIC, copies, check_index=False
                )
                cost = copies.evaluations
                yield Method(family, f"radius {radius:g}", cost, partial(by_objective, objective))
        for radius in (ATTACK_RADII[norm][k] for k in radii):
            ball = Ball(norm, radius)
            for family, cost, attack in [
                ("FGM", 2, lambda g, x, source, ball=ball: fgm(g, x, ball)),
                ("random-start FGM", 2, lambda g, x, source, ball=ball: fgm(g, x, ball, rng=source)),
                ("IFGM", STEPS + 1, lambda g, x, source, ball=ball: ifgm(g, x, ball, steps=STEPS)),
            ]:
                yield Method(f"{family} {name}", f"radius {radius:g}", cost, partial(attacked, attack))


def tilted(radii: tuple[int, ...]) -> Iterator[Method]:
    """Yield one tilted point with eta = ratio * radius, and with the eta that kappa gives each data point."""
    for norm, name in NORMS.items():
        for radius in (TILTED_RADII[norm][k] for k in radii):
            proposals = [(f"tilted {name}", f"eta {r * radius:g}", r * radius, Tilted()) for r in RATIOS]
            proposals += [
                (f"tilted by kappa {name}", f"kappa {k:g}", UNWEIGHTED_ETA, Tilted(kappa=k)) for k in KAPPAS
            ]
            for family, strength, eta, proposal in proposals:
                objective = RegularizedLoss(
                    Ball(norm, radius), eta, ENTROPIC, SG(0), proposal, check_index=False
                )
                yield Method(family, f"radius {radius:g}, {strength}", 2, partial(by_objective, objective))


def regularized(
    family: str, ball: Ball, ratio: float, divergence: Divergence, estimator: SG | RTMLMC
) -> Method:
    """Return the regularised loss with eta = ratio * radius."""
    objective = RegularizedLoss(ball, ratio * ball.radius, divergence, estimator, check_index=False)
    eta = "" if divergence.family == "indicator" else f", eta {ratio * ball.radius:g}"  # which ignores it
    setting = f"radius {ball.radius:g}{eta}"
    return Method(family, setting, estimator.evaluations, partial(by_objective, objective))


def balls_and_etas(radii: tuple[int, ...], level: int) -> dict[Method, Ball]:
    """Return the entropic divergence with SG at one level, for every ball and eta, with its ball."""
    return {
        regularized(f"entropic SG({level}) {name}", ball, ratio, ENTROPIC, SG(level)): ball
        for norm, name in NORMS.items()
        for ball in (Ball(norm, SAMPLE_RADII[norm][k]) for k in radii)
        for ratio in RATIOS
    }


def estimators(ball: Ball, levels: Iterable[int]) -> Iterator[Method]:
    """Yield every estimator at one ball, each with a few etas."""
    candidates: dict[str, SG | RTMLMC] = {f"SG({level})": SG(level) for level in levels}
    candidates |= {f"RT-MLMC(7) {mode}": RTMLMC(7, mode) for mode in ("random", "stratified")}
    for name, estimator in candidates.items():
        for ratio in RATIOS[: 1 if name == "SG(0)" else None]:  # one point has no use for eta
            yield regularized(f"estimator {name}", ball, ratio, ENTROPIC, estimator)


def divergences(ball: Ball, level: int) -> Iterator[Method]:
    """Yield the other divergences at one ball, each with a few strengths."""
    for ratio in RATIOS:
        yield regularized("divergence quadratic", ball, ratio, QUADRATIC, SG(level))
    for alpha in (0.5, 0.25, 0.125):
        cvar = regularized("divergence CVaR", ball, 1.0, indicator(alpha), SG(level))
        yield Method(cvar.family, f"{cvar.setting}, alpha {alpha:g}", cvar.evaluations, cvar.objective)
