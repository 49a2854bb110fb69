"""The ways to train that are compared under the recipe, all set by the radius of the attack.

- `ERM`: plain training.
- `random-start FGM`: from a uniform point of the ball, a step of 1.25 radii, projected (Wong, Rice and
  Kolter).
- `N-FGSM`: from noise of twice the radius a step of one radius, not projected (de Jorge et al.).
- `ATTA-1`: the perturbation of the epoch before, moved by one step of the radius and projected (Zheng et
  al.); in the first epoch, a uniform point of the ball. Perturbations are never reset.
- `tilted`: one tilted point in the ball of the attack, with the strong tilt KAPPA_OWN; in linf that is
  `RobustLoss`.
- `random-start tilted`: the same with the gradient at a uniform point of the ball.
- `wide tilted`: one tilted point in a ball of twice the radius, less tilted; in l2 that is `RobustLoss`.
- `RT-MLMC`: the paper's, in a ball of radius 0.45 with eta = 0.9 and L = 7.
- `IFGM`: several projected steps, at several times the cost.
- `random-start FGM at a constant rate`: without the recipe, at Adam's usual rate.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

from phiball.backends import Array, Rng, input_gradient
from phiball.experiments.studies.supervised.attacks import NORMS
from phiball.experiments.training.methods import (
    UNWEIGHTED_ETA,
    Loss,
    Method,
    attacked,
    by_objective,
    mean_loss,
)
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    Tilted,
    Uniform,
    fgm,
    ifgm,
    white_noise,
)

REFERENCE = "random-start FGM"  # that all are compared with
CONSTANT = "random-start FGM at a constant rate"
FAMILIES = (
    "ERM", CONSTANT, REFERENCE, "N-FGSM", "ATTA-1", "tilted", "random-start tilted", "wide tilted",
    "RT-MLMC", "IFGM",
)  # fmt: skip
CONSTANT_RATE = 1e-3
KAPPA_WIDE = {2.0: 1.0, inf: 2.0}
KAPPA_OWN = 10.0  # of 3 and 10, that with fewer errors on held-out images of MNIST, with one seed
RHO, ETA, SCHEME = 0.45, 0.9, RTMLMC(7, "stratified")  # the paper's, with its levels spread over a batch
INNER_STEPS = 5  # of IFGM in training

# The attacks: those of the usual sizes for these images of [0, 1], which no method meets in training but by
# its own radius.
RADII = {
    "digits": {"l2": 0.5, "linf": 0.1},
    "mnist": {"l2": 1.5, "linf": 0.15},
    "fashion-mnist": {"l2": 1.0, "linf": 0.1},
    "kmnist": {"l2": 1.0, "linf": 0.1},
}


def methods(config: Any, data: str) -> dict[str, Method]:
    """Return the methods of the configuration by name, for the attack of its norm on a data set."""
    ball = Ball(NORMS[config.norm], RADII[data][config.norm])
    wide = Ball(ball.norm, 2 * ball.radius)
    made = [
        Method("ERM", "", 1, lambda loss, x, source: mean_loss(loss, x)),
        *(
            Method(name, "", 2, partial(attacked, partial(_random_start, ball)))
            for name in (REFERENCE, CONSTANT)
        ),
        Method("N-FGSM", "", 2, partial(attacked, partial(_noise_and_step, ball, wide))),
        Method("ATTA-1", "", 2, partial(_moved_on, ball), first=partial(_first, ball)),
        _tilted("tilted", ball, Tilted(kappa=KAPPA_OWN)),
        _tilted("random-start tilted", ball, Tilted(kappa=KAPPA_OWN, start="uniform")),
        _tilted("wide tilted", wide, Tilted(kappa=KAPPA_WIDE[ball.norm])),
        Method("RT-MLMC", "", SCHEME.evaluations, partial(by_objective, _paper(config.norm))),
        Method("IFGM", "", INNER_STEPS + 1, partial(attacked, partial(_steps, ball))),
    ]
    found = {method.family: method for method in made}
    return {name: found[name] for name in FAMILIES if name in config.methods}


def _paper(norm: str) -> RegularizedLoss:
    return RegularizedLoss(Ball(NORMS[norm], RHO), ETA, ENTROPIC, SCHEME, Uniform(), check_index=False)


def _tilted(family: str, ball: Ball, proposal: Tilted) -> Method:
    objective = RegularizedLoss(ball, UNWEIGHTED_ETA, ENTROPIC, SG(0), proposal, check_index=False)
    return Method(family, "", 2, partial(by_objective, objective))


def _random_start(ball: Ball, gradient: Any, x: Array, source: Rng) -> Array:
    return fgm(gradient, x, ball, rng=source)


def _noise_and_step(ball: Ball, wide: Ball, gradient: Any, x: Array, source: Rng) -> Array:
    return fgm(gradient, white_noise(x, wide, source), ball)


def _steps(ball: Ball, gradient: Any, x: Array, source: Rng) -> Array:
    return ifgm(gradient, x, ball, steps=INNER_STEPS)


def _first(ball: Ball, x: Array, source: Rng) -> Array:
    return white_noise(x, ball, source) - x


def _moved_on(ball: Ball, loss: Loss, x: Array, source: Rng, kept: Array) -> tuple[Array, Array]:
    """The mean loss at the kept perturbations, each moved by one step, and these."""
    stepped = fgm(partial(input_gradient, loss), x + kept, ball)
    points = ball.project(stepped, x, event_ndim=x.ndim - 1)
    return mean_loss(loss, points), points - x
