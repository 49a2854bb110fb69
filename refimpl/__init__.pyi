from phiball.refimpl.attacks import fgm, ifgm, pgm, white_noise
from phiball.refimpl.causal import Conditional, causal_risk, causal_value, conditional_loss
from phiball.refimpl.inner.check import check_divergence
from phiball.refimpl.inner.constrained import constrained_worst_case
from phiball.refimpl.inner.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
)
from phiball.refimpl.inner.products import worst_case_jvp
from phiball.refimpl.inner.ragged import worst_case_ragged
from phiball.refimpl.inner.worst_case import bisection, dual_value, primal_value, worst_case
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.laws.gaussian import Gaussian
from phiball.refimpl.linear.fit import fit_linear_model
from phiball.refimpl.linear.losses import LinearLoss, huber_loss, quantile_loss, smoothed_hinge_loss
from phiball.refimpl.linear.problem import LinearProblem, Reweighting
from phiball.refimpl.linear.risk import linear_model_risk
from phiball.refimpl.qlearning.bellman import (
    DecisionProcess,
    Maximum,
    bellman,
    robust_value,
    value_iteration,
)
from phiball.refimpl.qlearning.grid import Grid, Neighbourhood
from phiball.refimpl.qlearning.neighbours import ExactNeighbours, SampledNeighbours, TelescopedNeighbours
from phiball.refimpl.qlearning.run import q_learning, q_update
from phiball.refimpl.risk.adversarial_risk import AdversarialRisk, adversarial_risk
from phiball.refimpl.risk.constrained import constrained_risk
from phiball.refimpl.risk.density import worst_case_density, worst_case_sample
from phiball.refimpl.risk.quadrature import integrated_risk, quadrature
from phiball.refimpl.risk.robust_risk import Estimate, robust_risk
from phiball.refimpl.sampling.estimators import RTMLMC, SG, signed_weights
from phiball.refimpl.sampling.proposals import Tilted, Uniform
from phiball.refimpl.theory.generalization import (
    covering_bound,
    excess_order,
    generalization_bound,
    linear_capacity,
    linear_covering,
    network_capacity,
    regularized_adversarial_risk,
)
from phiball.refimpl.theory.ramp import ramp_loss
from phiball.refimpl.theory.regularizers import r1, r2, r3, surrogate, surrogate_estimate
from phiball.refimpl.training.plans import (
    chi_square_bound,
    convex_plan,
    gradient_bias,
    nonconvex_plan,
    second_moment,
)
from phiball.refimpl.training.regularized_loss import RegularizedLoss
from phiball.refimpl.training.robust_loss import RobustLoss
from phiball.refimpl.training.sgd import (
    gradient_mapping,
    mirror_descent,
    onto_ball,
    onto_box,
    onto_simplex,
    projected_sgd,
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
    "Conditional",
    "DecisionProcess",
    "Divergence",
    "Estimate",
    "ExactNeighbours",
    "Gaussian",
    "Grid",
    "LinearLoss",
    "LinearProblem",
    "Maximum",
    "Neighbourhood",
    "RegularizedLoss",
    "Reweighting",
    "RobustLoss",
    "SampledNeighbours",
    "TelescopedNeighbours",
    "Tilted",
    "Uniform",
    "adversarial_risk",
    "bellman",
    "bisection",
    "causal_risk",
    "causal_value",
    "check_divergence",
    "chi_square_bound",
    "conditional_loss",
    "constrained_risk",
    "constrained_worst_case",
    "convex_plan",
    "covering_bound",
    "cressie_read",
    "dual_value",
    "excess_order",
    "fgm",
    "fit_linear_model",
    "generalization_bound",
    "gradient_bias",
    "gradient_mapping",
    "huber_loss",
    "ifgm",
    "indicator",
    "integrated_risk",
    "linear_capacity",
    "linear_covering",
    "linear_model_risk",
    "mirror_descent",
    "network_capacity",
    "nonconvex_plan",
    "onto_ball",
    "onto_box",
    "onto_simplex",
    "pgm",
    "primal_value",
    "projected_sgd",
    "q_learning",
    "q_update",
    "quadrature",
    "quantile_loss",
    "r1",
    "r2",
    "r3",
    "ramp_loss",
    "regularized_adversarial_risk",
    "robust_risk",
    "robust_value",
    "second_moment",
    "signed_weights",
    "smoothed_hinge_loss",
    "surrogate",
    "surrogate_estimate",
    "value_iteration",
    "white_noise",
    "worst_case",
    "worst_case_density",
    "worst_case_jvp",
    "worst_case_ragged",
    "worst_case_sample",
]
