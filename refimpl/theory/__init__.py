"""The paper's theory as functions: regularization effects, generalization bounds, settings for SGD."""

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
from phiball.refimpl.theory.plans import (
    Plan,
    chi_square_bound,
    convex_plan,
    gradient_bias,
    gradient_second_moment,
    nonconvex_plan,
)
from phiball.refimpl.theory.ramp import ramp_loss
from phiball.refimpl.theory.regularizers import r1, r2, r3, surrogate, surrogate_estimate

__all__ = [
    "Certificate",
    "CoveringBound",
    "Plan",
    "chi_square_bound",
    "convex_plan",
    "covering_bound",
    "excess_order",
    "generalization_bound",
    "gradient_bias",
    "gradient_second_moment",
    "linear_capacity",
    "linear_covering",
    "network_capacity",
    "nonconvex_plan",
    "r1",
    "r2",
    "r3",
    "ramp_loss",
    "regularized_adversarial_risk",
    "surrogate",
    "surrogate_estimate",
]
