"""The mathematics of phi-divergence regularised adversarial learning, one file a concept."""

from phiball.refimpl.attacks import fgm, ifgm, pgm, white_noise
from phiball.refimpl.causal import CausalValue, Conditional, causal_risk, causal_value, conditional_loss
from phiball.refimpl.inner.check import check_divergence
from phiball.refimpl.inner.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
)
from phiball.refimpl.inner.worst_case import WorstCase, bisection, dual_value, primal_value, worst_case
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.laws.gaussian import Gaussian
from phiball.refimpl.qlearning.bellman import (
    DecisionProcess,
    FixedPoint,
    Maximum,
    bellman,
    robust_value,
    value_iteration,
)
from phiball.refimpl.qlearning.grid import Grid, Neighbourhood
from phiball.refimpl.qlearning.neighbours import ExactNeighbours, SampledNeighbours, TelescopedNeighbours
from phiball.refimpl.qlearning.run import QLearning, q_learning, q_update
from phiball.refimpl.risk.constrained import ConstrainedRisk, constrained_risk
from phiball.refimpl.risk.density import Density, Draws, worst_case_density, worst_case_sample
from phiball.refimpl.risk.quadrature import Integral, Quadrature, integrated_risk, quadrature
from phiball.refimpl.risk.robust_risk import AdversarialRisk, Estimate, adversarial_risk, robust_risk
from phiball.refimpl.sampling.estimators import RTMLMC, SG, signed_weights
from phiball.refimpl.sampling.proposals import Tilted, Uniform
from phiball.refimpl.theory.generalization import (
    Certificate,
    CoveringBound,
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
    Plan,
    chi_square_bound,
    convex_plan,
    gradient_bias,
    nonconvex_plan,
    second_moment,
)
from phiball.refimpl.training.regularized_loss import RegularizedLoss, SignedPoints
from phiball.refimpl.training.sgd import (
    Iterates,
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
    "CausalValue",
    "Certificate",
    "Conditional",
    "ConstrainedRisk",
    "CoveringBound",
    "DecisionProcess",
    "Density",
    "Divergence",
    "Draws",
    "Estimate",
    "ExactNeighbours",
    "FixedPoint",
    "Gaussian",
    "Grid",
    "Integral",
    "Iterates",
    "Maximum",
    "Neighbourhood",
    "Plan",
    "QLearning",
    "Quadrature",
    "RegularizedLoss",
    "SampledNeighbours",
    "SignedPoints",
    "TelescopedNeighbours",
    "Tilted",
    "Uniform",
    "WorstCase",
    "adversarial_risk",
    "bellman",
    "bisection",
    "causal_risk",
    "causal_value",
    "check_divergence",
    "chi_square_bound",
    "conditional_loss",
    "constrained_risk",
    "convex_plan",
    "covering_bound",
    "cressie_read",
    "dual_value",
    "excess_order",
    "fgm",
    "generalization_bound",
    "gradient_bias",
    "gradient_mapping",
    "ifgm",
    "indicator",
    "integrated_risk",
    "linear_capacity",
    "linear_covering",
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
    "r1",
    "r2",
    "r3",
    "ramp_loss",
    "regularized_adversarial_risk",
    "robust_risk",
    "robust_value",
    "second_moment",
    "signed_weights",
    "surrogate",
    "surrogate_estimate",
    "value_iteration",
    "white_noise",
    "worst_case",
    "worst_case_density",
    "worst_case_sample",
]
