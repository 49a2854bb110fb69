"""Bad arguments of the risks and of the worst-case distribution."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    Ball,
    Gaussian,
    adversarial_risk,
    robust_risk,
    worst_case_density,
    worst_case_sample,
)
from phiball.refimpl.risk import constrained_risk, integrated_risk, quadrature
from tests.support.risk_distributions import first

Z = np.array([[0.0, 0.5], [0.25, 1.0]])
BALL = Ball(2, 0.5)
SAMPLED: dict[str, Any] = {
    "loss": first,
    "x": Z,
    "reference": BALL,
    "n_samples": 4,
    "rng": rng(0),
    "chunk": 10,
}
PRICED: dict[str, Any] = {"eta": 1.0, "divergence": ENTROPIC}
ONE, TWO = {"n_samples": 1}, {"n_samples": 2}  # the fewest of each
GOOD: dict[Any, dict[str, Any]] = {
    robust_risk: SAMPLED | PRICED | TWO,
    adversarial_risk: SAMPLED | ONE | {"reference": Ball(2, 0.5, clip=(0.0, 1.0)), "attack": lambda z: z},
    constrained_risk: SAMPLED | TWO | {"divergence": ENTROPIC, "radius": 0.1},
    worst_case_density: SAMPLED | ONE | PRICED | {"at": Z},
    worst_case_sample: SAMPLED | ONE | PRICED | {"n": 1},
    integrated_risk: {"loss": first, "x": Z, "reference": BALL, "panels": 1, "chunk": 1} | PRICED,
    quadrature: {"reference": BALL, "x": Z, "panels": 1, "event_ndim": 1},
}
# Of every function that has the argument.
COMMON: list[tuple[str, Any, Any, str]] = [
    ("loss", 3, TypeError, "loss is 3; expected a function"),
    ("loss", lambda x, i: x[:, 0] * nan, ValueError, r"(losses|loss\(x, i\)) contains (nan|NaN)"),
    ("z", [[0.0]], TypeError, r"z is \[\[0.0\]\]"),
    ("z", Z + nan, ValueError, "z contains (NaN or infinity|nan)"),
    ("ball", None, (TypeError, ValueError), "ball is None"),
    ("eta", 0.0, ValueError, "eta is 0.0"),
    ("eta", np.ones(3), ValueError, r"eta has shape \(3,\)"),
    ("divergence", "entropic", TypeError, "divergence is 'entropic'"),
    ("samples", 0, ValueError, "samples is 0"),
    ("rng", 0, TypeError, "rng is 0; expected what phiball.backends.rng"),
    ("chunk", 0, ValueError, "chunk is 0; expected a whole number of at least 1"),
    ("panels", 0, ValueError, "panels is 0"),
]
SPECIAL: list[tuple[Any, str, Any, Any, str]] = [
    (robust_risk, "loss", len, TypeError, "loss is <built-in function len>; .* of two arguments"),
    (robust_risk, "loss", lambda x, i: x, ValueError, r"loss\(x, i\) has shape \(4, 2\); expected \(4,\)"),
    (robust_risk, "loss", lambda x, i: 1.0, TypeError, r"loss\(x, i\) is 1.0"),
    (robust_risk, "loss", lambda x, i: i, TypeError, r"loss\(x, i\) has dtype .*int64"),
    (robust_risk, "z", np.array(1.0), ValueError, r"z has shape \(\); expected \(N,\) \+ event"),
    (robust_risk, "z", Z[:0], ValueError, r"z has shape \(0, 2\)"),
    (robust_risk, "samples", 1, ValueError, "samples is 1; expected a whole number of at least 2"),
    (robust_risk, "samples", 2.0, ValueError, "samples is 2.0"),
    (constrained_risk, "samples", 1, ValueError, "samples is 1"),
    (constrained_risk, "radius", -0.1, ValueError, "radius is -0.1; expected a finite number that is not"),
    (constrained_risk, "radius", inf, ValueError, "radius is inf"),
    (constrained_risk, "radius", "1", TypeError, "radius is '1'; expected a number"),
    (adversarial_risk, "attack", 1, TypeError, "attack is 1; expected a function"),
    (adversarial_risk, "attack", lambda z: z[:1], ValueError, r"attack\(z\) has shape \(1, 2\); expected"),
    (adversarial_risk, "attack", lambda z: 1.0, TypeError, r"attack\(z\) is 1.0"),
    (adversarial_risk, "attack", lambda z: z + 1, ValueError, r"moves a point by 1.414.*radius 0.5"),
    (adversarial_risk, "attack", lambda z: z * nan, ValueError, r"attack\(z\) contains NaN"),
    (adversarial_risk, "attack", lambda z: z + 0.25, ValueError, r"attack\(z\) leaves the box"),
    (worst_case_density, "ball", Gaussian(1.0), ValueError, "ball is Gaussian.*a positive radius"),
    (worst_case_density, "ball", Ball(2, 0.0), ValueError, "ball is Ball.*positive radius"),
    (worst_case_density, "ball", Ball(2, 1.0, (0.0, 3.0)), ValueError, "ball is Ball.*without clip"),
    (worst_case_density, "at", [[0.0, 1.0]], TypeError, r"at is \[\[0.0, 1.0\]\]"),
    (worst_case_density, "at", Z[:, 0], ValueError, r"at has shape \(2,\); expected \(K,\) \+ event"),
    (worst_case_density, "at", Z[:, :1], ValueError, r"at has shape \(2, 1\)"),
    (worst_case_sample, "n", 0, ValueError, "n is 0"),
    (integrated_risk, "z", np.zeros((1, 3)), ValueError, "z has points of 3 coordinates"),
    (quadrature, "z", np.zeros(3), ValueError, "z has points of 3 coordinates"),
    (quadrature, "panels", 1.0, ValueError, "panels is 1.0"),
    (quadrature, "event_ndim", -1, ValueError, "event_ndim is -1"),
    (quadrature, "event_ndim", 3, ValueError, "event_ndim is 3; expected at most the axes of z, 2"),
]


@pytest.mark.parametrize("function", GOOD, ids=lambda f: f.__name__)
def test_bad_arguments(function: Any) -> None:
    good = GOOD[function]
    function(**good)
    own = [case[1:] for case in SPECIAL if case[0] is function]
    for name, value, error, message in [*(case for case in COMMON if case[0] in good), *own]:
        with pytest.raises(error, match=message):
            function(**{**good, name: value})
