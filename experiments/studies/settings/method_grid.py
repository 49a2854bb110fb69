"""The grid of training methods, configured by the norm and the radius of the attack.

Gradient methods, with two evaluations per image:

- `RobustLoss`: the library's default settings.
- `FGM`: one step of the radius.
- `random-start FGM`: from a uniform point of the ball, a step of 1.25 radii, projected (Wong, Rice and
  Kolter).
- `N-FGSM`: from noise of twice the radius, a step of one radius, not projected (de Jorge et al.).
- `ATTA-1`: the perturbation of the previous epoch, moved by one step of the radius and projected (Zheng et
  al.). The first perturbation is a uniform point of the ball. Perturbations are never reset.
- `tilted`: one tilted point in the ball of the attack, with kappa (the strength of the tilt) 10; the default
  of `RobustLoss` in linf.
- `random-start tilted`: the same with the gradient at a uniform point of the ball.
- `wide tilted`: one tilted point in a ball of twice the radius, with a smaller kappa; the default of
  `RobustLoss` in l2.
- `tilted, chosen`: one tilted point, with the best of several balls and kappas.
- `eta 0.02` and `eta 1.28/d`: one tilted point in a ball of twice the radius, with a fixed eta. Both are 0.02
  for the 64 pixels of digits.

Methods without a gradient in x, at uniform points of a wider ball: `noise x4` (four unweighted points), `SG`,
`quadratic` and `CVaR` (four points with the entropic, quadratic and indicator divergence), `RT-MLMC`.

`ERM` is plain training. `IFGM` takes several projected steps, at several times the cost.
"""

from __future__ import annotations

from functools import partial
from math import inf, sqrt

from phiball.backends import Array, Rng
from phiball.experiments.training.training_methods import (
    UNWEIGHTED_ETA,
    Loss,
    Method,
    adversarial_training,
    mean_loss,
    plain_training,
    random_start_fgm,
    regularized_training,
    tilted_training,
)
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RobustLoss,
    Tilted,
    fgm,
    ifgm,
    indicator,
    white_noise,
)
from phiball.refimpl.distributions.norms import as_norm

REFERENCE = "random-start FGM"  # all methods are compared with this one
DEFAULT = "RobustLoss"
FAMILIES = (
    "ERM", DEFAULT, REFERENCE, "FGM", "N-FGSM", "ATTA-1", "tilted", "random-start tilted", "wide tilted",
    "tilted, chosen", "eta 0.02", "eta 1.28/d", "noise x4", "SG", "quadratic", "CVaR", "RT-MLMC", "IFGM",
)  # fmt: skip
KAPPA = 10.0  # of "tilted"
KAPPA_WIDE = {2.0: 1.0, inf: 2.0}  # of "wide tilted", by norm
# The candidates of "tilted, chosen": (radius in units of the attack's, kappa).
TILTS = ((1, 3.0), (2, 0.3), (2, 1.0), (2, 3.0), (4, 0.3), (4, 1.0))
RATIOS = (0.2, 2.0)  # eta/radius; the paper has 2
FOUR_POINTS, RT_MLMC = SG(2), RTMLMC(7, "stratified")
PAPER_RADIUS, PAPER_ETA = 0.45, 0.9
INNER_STEPS = 5  # of IFGM in training

# The radii of the attacks, usual for images in [0, 1].
RADII = {
    "digits": {"l2": 0.5, "linf": 0.1},
    "mnist": {"l2": 1.5, "linf": 0.15},
    "fashion-mnist": {"l2": 1.0, "linf": 0.1},
    "kmnist": {"l2": 1.0, "linf": 0.1},
}
PIXELS = {"digits": 64}  # other data sets: 28 x 28


def method_grid(families: tuple[str, ...], data: str, norm: str) -> dict[tuple[str, str], Method]:
    """Return the methods of the families, by family and setting, for attacks of a norm on a data set."""
    radius = RADII[data][norm]
    ball = Ball(as_norm(norm), radius)
    wide = Ball(ball.norm, 2 * radius)
    # In any direction the standard deviation of a uniform point is radius/sqrt(d + 2) in an l2 ball and
    # radius/sqrt(3) in a linf ball, so uniform points need a larger radius.
    d = PIXELS.get(data, 784)
    large = radius * (sqrt(d + 2) if norm == "l2" else 8)
    half, whole = Ball(ball.norm, large / 2), Ball(ball.norm, large)
    methods = [
        plain_training(),
        Method(DEFAULT, "", 2, lambda loss, x, rng: RobustLoss(radius, norm, rng=rng)(loss, x)),
        random_start_fgm("", ball),
        adversarial_training("FGM", "", 2, lambda loss, x, rng: fgm(loss, x, ball)),
        adversarial_training(
            "N-FGSM", "", 2, lambda loss, x, rng: fgm(loss, white_noise(x, wide, rng=rng), ball)
        ),
        Method("ATTA-1", "", 2, partial(_atta, ball), lambda x, rng: white_noise(x, ball, rng=rng) - x),
        tilted_training("tilted", "", ball, Tilted(kappa=KAPPA)),
        tilted_training("random-start tilted", "", ball, Tilted(kappa=KAPPA, start="uniform")),
        tilted_training("wide tilted", "", wide, Tilted(kappa=KAPPA_WIDE[ball.norm])),
        *(
            tilted_training(
                "tilted, chosen",
                f"radius {n * radius:g}, kappa {kappa:g}",
                Ball(ball.norm, n * radius),
                Tilted(kappa=kappa),
            )
            for n, kappa in TILTS
        ),
        tilted_training("eta 0.02", "", wide, Tilted(), 0.02),
        tilted_training("eta 1.28/d", "", wide, Tilted(), 1.28 / d),
        *(_uniform("noise x4", b, UNWEIGHTED_ETA, ENTROPIC, show_eta=False) for b in (half, whole)),
        *(_uniform("SG", b, q * b.radius, ENTROPIC) for b in (half, whole) for q in RATIOS),
        *(_uniform("quadratic", whole, q * large, QUADRATIC) for q in RATIOS),
        *(_uniform("CVaR", b, 1.0, indicator(0.5), show_eta=False) for b in (half, whole)),
        _uniform("RT-MLMC", Ball(ball.norm, PAPER_RADIUS), PAPER_ETA, ENTROPIC, RT_MLMC),
        _uniform("RT-MLMC", whole, RATIOS[0] * large, ENTROPIC, RT_MLMC),
        adversarial_training(
            "IFGM", "", INNER_STEPS + 1, lambda loss, x, rng: ifgm(loss, x, ball, steps=INNER_STEPS)
        ),
    ]
    return {(method.family, method.setting): method for method in methods if method.family in families}


def _uniform(
    family: str,
    ball: Ball,
    eta: float,
    divergence: Divergence,
    estimator: SG | RTMLMC = FOUR_POINTS,
    *,
    show_eta: bool = True,
) -> Method:
    """Training at uniform points of a ball; the setting's name holds the radius and, if shown, eta."""
    setting = f"radius {ball.radius:.3g}" + (f", eta {eta:.3g}" if show_eta else "")
    return regularized_training(family, setting, ball, eta, divergence, estimator)


def _atta(ball: Ball, loss: Loss, x: Array, rng: Rng, perturbations: Array) -> tuple[Array, Array]:
    """Move the perturbations by one step; return the mean loss there, and the new perturbations."""
    stepped = fgm(loss, x + perturbations, ball)
    points = ball.project(stepped, x, event_ndim=x.ndim - 1)
    return mean_loss(loss, points), points - x
