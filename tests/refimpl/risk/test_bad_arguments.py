"""Invalid arguments of risks, worst-case densities and quadrature rules raise."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball import ENTROPIC, Ball, Gaussian, Tilted
from phiball.backends import rng
from phiball.refimpl.risk import (
    Quadrature,
    adversarial_risk,
    quadrature_rule,
    robust_risk,
    worst_case_density,
    worst_case_sample,
)
from tests.support.risk_distributions import first


def budget_risk(**arguments: Any) -> Any:
    return robust_risk(**arguments)


def quadrature_risk(*, panels: int, **arguments: Any) -> Any:
    return robust_risk(method=Quadrature(panels), **arguments)


Z = np.array([[0.0, 0.5], [0.25, 1.0]])
BALL = Ball(2, 0.5)
SAMPLING_ARGUMENTS: dict[str, Any] = {
    "loss": first,
    "x": Z,
    "reference": BALL,
    "n_samples": 4,
    "rng": rng(0),
    "chunk": 10,
}
PENALTY_ARGUMENTS: dict[str, Any] = {"eta": 1.0, "divergence": ENTROPIC}
ONE, TWO = {"n_samples": 1}, {"n_samples": 2}  # the smallest valid numbers
VALID_ARGUMENTS: dict[Any, dict[str, Any]] = {
    robust_risk: SAMPLING_ARGUMENTS | PENALTY_ARGUMENTS | TWO,
    adversarial_risk: {k: v for k, v in SAMPLING_ARGUMENTS.items() if k != "reference"}
    | ONE
    | {"ball": Ball(2, 0.5, clip=(0.0, 1.0)), "attack": lambda loss, x, ball: x},
    budget_risk: SAMPLING_ARGUMENTS | TWO | {"divergence": ENTROPIC, "budget": 0.1},
    worst_case_density: SAMPLING_ARGUMENTS | ONE | PENALTY_ARGUMENTS | {"at": Z},
    worst_case_sample: SAMPLING_ARGUMENTS | ONE | PENALTY_ARGUMENTS | {"size": 1},
    quadrature_risk: {"loss": first, "x": Z, "reference": BALL, "panels": 1, "chunk": 1} | PENALTY_ARGUMENTS,
    quadrature_rule: {"ball": BALL, "x": Z, "panels": 1, "event_ndim": 1},
}
# Argument, invalid value, error and message, for every function that has the argument.
INVALID_FOR_ALL_FUNCTIONS: list[tuple[str, Any, Any, str]] = [
    ("loss", 3, TypeError, "loss is 3; expected a function"),
    ("loss", lambda x, i: x[:, 0] * nan, ValueError, r"(losses|loss\(x, i\)) contains (nan|NaN)"),
    ("x", [[0.0]], TypeError, r"x is \[\[0.0\]\]"),
    ("x", Z + nan, ValueError, "x contains (NaN or infinity|nan)"),
    ("ball", None, TypeError, "ball is None"),
    ("reference", None, (TypeError, ValueError), "reference is None"),
    ("eta", 0.0, ValueError, "eta is 0.0"),
    ("eta", np.ones(3), ValueError, r"eta has shape \(3,\)"),
    ("divergence", "kl2", ValueError, "divergence is 'kl2'; expected one of"),
    ("n_samples", 0, ValueError, "n_samples is 0"),
    ("rng", "0", TypeError, "rng is '0'; expected a whole number"),
    ("chunk", 0, ValueError, "chunk is 0; expected"),
    ("panels", 0, ValueError, "panels is 0"),
]
INVALID_FOR_ONE_FUNCTION: list[tuple[Any, str, Any, Any, str]] = [
    (robust_risk, "loss", len, TypeError, "loss is <built-in function len>; .* of two arguments"),
    (robust_risk, "loss", lambda x, i: x, ValueError, r"loss\(x, i\) has shape \(4, 2\); expected \(4,\)"),
    (robust_risk, "loss", lambda x, i: 1.0, TypeError, r"loss\(x, i\) is 1.0"),
    (robust_risk, "loss", lambda x, i: i, TypeError, r"loss\(x, i\) has dtype .*int64"),
    (robust_risk, "x", np.array(1.0), ValueError, r"x has shape \(\); expected \(N,\) \+ event"),
    (robust_risk, "x", Z[:0], ValueError, r"x has shape \(0, 2\)"),
    (robust_risk, "n_samples", 1, ValueError, "n_samples is 1; expected"),
    (robust_risk, "n_samples", 2.0, ValueError, "n_samples is 2.0"),
    (robust_risk, "eta", None, TypeError, "expected exactly one of eta and budget, got neither"),
    (robust_risk, "budget", 1.0, TypeError, "expected exactly one of eta and budget, got both"),
    (robust_risk, "method", "grid", ValueError, "method is 'grid'; expected 'quadrature'"),
    (robust_risk, "method", None, TypeError, "method is None; expected Uniform"),
    (budget_risk, "n_samples", 1, ValueError, "n_samples is 1"),
    (budget_risk, "budget", -0.1, ValueError, "budget is -0.1; expected"),
    (budget_risk, "budget", inf, ValueError, "budget is inf"),
    (budget_risk, "budget", "1", TypeError, "budget is '1'; expected a number"),
    (budget_risk, "budget", np.ones(3), ValueError, r"has shape \(3,\)"),
    (budget_risk, "method", Tilted(), ValueError, r"method is Tilted.*; expected Uniform\(\) with a budget"),
    (budget_risk, "method", "quadrature", ValueError, "budget and method='quadrature' cannot be combined"),
    (budget_risk, "x", iter([Z]), TypeError, "budget needs all data in memory"),
    (adversarial_risk, "attack", 1, TypeError, "attack is 1; expected a function"),
    (adversarial_risk, "attack", lambda f, x, b: x[:1], ValueError, r"attack.* has shape \(1, 2\)"),
    (adversarial_risk, "attack", lambda f, x, b: 1.0, TypeError, r"attack\(loss, x, ball\) is 1.0"),
    (adversarial_risk, "attack", lambda f, x, b: x + 1, ValueError, r"moves a point by 1.414.*radius 0.5"),
    (adversarial_risk, "attack", lambda f, x, b: x * nan, ValueError, r"ball\) contains NaN"),
    (adversarial_risk, "attack", lambda f, x, b: x + 0.25, ValueError, r"ball\) is outside the box"),
    (worst_case_density, "reference", Gaussian(1.0), ValueError, "is Gaussian.*of positive radius"),
    (worst_case_density, "reference", Ball(2, 0.0), ValueError, "is Ball.*positive radius"),
    (worst_case_density, "reference", Ball(2, 1.0, (0.0, 3.0)), ValueError, "is Ball.*without clip"),
    (worst_case_density, "at", [[0.0, 1.0]], TypeError, r"at is \[\[0.0, 1.0\]\]"),
    (worst_case_density, "at", Z[:, 0], ValueError, r"at has shape \(2,\); expected \(K,\) \+ event"),
    (worst_case_density, "at", Z[:, :1], ValueError, r"at has shape \(2, 1\)"),
    (worst_case_sample, "size", 0, ValueError, "size is 0"),
    (quadrature_risk, "x", np.zeros((1, 3)), ValueError, "x has points of 3 coordinates"),
    (quadrature_risk, "reference", Gaussian(1.0), TypeError, "reference is Gaussian.*expected a Ball"),
    (quadrature_rule, "x", np.zeros(3), ValueError, "x has points of 3 coordinates"),
    (quadrature_rule, "panels", 1.0, ValueError, "panels is 1.0"),
    (quadrature_rule, "event_ndim", -1, ValueError, "event_ndim is -1"),
    (quadrature_rule, "event_ndim", 3, ValueError, "event_ndim is 3; expected"),
]


@pytest.mark.parametrize("function", VALID_ARGUMENTS, ids=lambda f: f.__name__)
def test_each_invalid_argument_raises(function: Any) -> None:
    valid = VALID_ARGUMENTS[function]
    function(**valid)
    for_this_function = [case[1:] for case in INVALID_FOR_ONE_FUNCTION if case[0] is function]
    for name, value, error, message in [
        *(case for case in INVALID_FOR_ALL_FUNCTIONS if case[0] in valid),
        *for_this_function,
    ]:
        with pytest.raises(error, match=message):
            function(**{**valid, name: value})
