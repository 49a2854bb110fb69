from phiball.refimpl.attacks import apgd, fgm, ifgm, pgm, white_noise
from phiball.refimpl.distributions.balls import (
    Ball,
)
from phiball.refimpl.distributions.gaussian import (
    Gaussian,
)
from phiball.refimpl.inner.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    hockey_stick,
    indicator,
)
from phiball.refimpl.inner.duality import bisection
from phiball.refimpl.inner.worst_case import (
    WorstCase,
    worst_case,
)
from phiball.refimpl.risk.adversarial_risk import (
    AdversarialRisk,
    adversarial_risk,
)
from phiball.refimpl.risk.density import (
    Density,
    WorstCaseSample,
    worst_case_density,
    worst_case_sample,
)
from phiball.refimpl.risk.estimate import (
    Estimate,
)
from phiball.refimpl.risk.robust_risk import (
    robust_risk,
)
from phiball.refimpl.sampling.estimators import (
    RTMLMC,
    SG,
)
from phiball.refimpl.sampling.pointwise_loss import pointwise_loss
from phiball.refimpl.sampling.proposals import (
    Tilted,
    Uniform,
)
from phiball.refimpl.training.regularized_loss import (
    RegularizedLoss,
)
from phiball.refimpl.training.robust_loss import (
    RobustLoss,
)

__all__ = [
    "ABSOLUTE",
    "ENTROPIC",
    "HINGE",
    "QUADRATIC",
    "RTMLMC",
    "SG",
    "AdversarialRisk",
    "Ball",
    "Density",
    "Divergence",
    "Estimate",
    "Gaussian",
    "RegularizedLoss",
    "RobustLoss",
    "Tilted",
    "Uniform",
    "WorstCase",
    "WorstCaseSample",
    "adversarial_risk",
    "apgd",
    "bisection",
    "cressie_read",
    "fgm",
    "hockey_stick",
    "ifgm",
    "indicator",
    "pgm",
    "pointwise_loss",
    "robust_risk",
    "white_noise",
    "worst_case",
    "worst_case_density",
    "worst_case_sample",
]
