"""What descent refuses, and in which words."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball.refimpl import gradient_mapping, mirror_descent, projected_sgd


@pytest.mark.parametrize("descend", [projected_sgd, mirror_descent])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"step_size": 0.0}, ValueError, r"step_size is 0\.0; expected a positive number"),
        ({"step_size": -1.0}, ValueError, r"step_size is -1\.0; expected a positive number"),
        ({"step_size": nan}, ValueError, "step_size is nan; expected a positive number"),
        ({"step_size": "1"}, TypeError, "step_size is '1'; expected a number"),
        ({"step_size": lambda t: -t}, ValueError, r"step_size\(t\) is -1; expected a positive number"),
        ({"step_size": lambda t: "x"}, TypeError, r"step_size\(t\) is 'x'; expected a number"),
        ({"steps": 0}, ValueError, "steps is 0; expected a whole number of at least 1"),
        ({"steps": 2.5}, ValueError, r"steps is 2\.5; expected a whole number of at least 1"),
        ({"average": 1}, TypeError, "average is 1; expected True or False"),
        ({"average": False}, TypeError, "rng is None; expected what phiball.backends.rng"),
        ({"gradient": None}, TypeError, "gradient is None; expected a function of theta"),
        (
            {"gradient": lambda t: None},
            TypeError,
            r"gradient\(theta\) is None, of type NoneType; expected an arr",
        ),
        (
            {"gradient": lambda t: t[:1]},
            ValueError,
            r"gradient\(theta\) has shape \(1,\); expected that of theta, \(2,\)",
        ),
        (
            {"gradient": lambda t: np.ones(2, dtype=int)},
            TypeError,
            r"gradient\(theta\) has dtype int64; expected float32 or float64",
        ),
        (
            {"gradient": lambda t: t * nan},
            ValueError,
            r"gradient\(theta\) contains NaN or infinity at t = 1;",
        ),
        ({"gradient": lambda t: t / 0 + inf}, ValueError, r"gradient\(theta\) contains NaN or infinity"),
        ({"theta0": [0.5, 0.5]}, TypeError, r"theta0 is \[0\.5, 0\.5\], of type list; expected an array"),
        ({"theta0": np.array([1, 0])}, TypeError, "theta0 has dtype int64; expected float32 or float64"),
        ({"theta0": np.array([0.5, nan])}, ValueError, "theta0 contains NaN or infinity; expected finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_descent_checks_its_arguments(descend: Any, wrong: Any, error: Any, message: str) -> None:
    how = {"gradient": lambda t: t, "theta0": np.full(2, 0.5), "step_size": 1.0, "steps": 3, **wrong}
    with pytest.raises(error, match=message):
        descend(how.pop("gradient"), how.pop("theta0"), **how)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (3, TypeError, "project is 3; expected a function of theta"),
        (lambda t: t[:1], ValueError, r"project\(theta\) has shape \(1,\); expected that of theta, \(2,\)"),
        (lambda t: None, TypeError, r"project\(theta\) is None, of type NoneType; expected an array"),
    ],
)
def test_the_projection_is_checked(wrong: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        projected_sgd(np.sign, np.ones(2), step_size=1.0, steps=2, project=wrong)
    with pytest.raises(error, match=message):
        gradient_mapping(np.ones(2), np.ones(2), step_size=1.0, project=wrong)


@pytest.mark.filterwarnings("ignore:overflow")
def test_divergence_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"step_size is 1e\+300, and the iterates diverge; expected a smaller"
    ):
        projected_sgd(lambda theta: 1e300 * theta, np.ones(1), step_size=1e300, steps=2)
    with pytest.raises(ValueError, match=r"NaN or infinity at t = 2; .*a smaller step_size if the iterates"):
        projected_sgd(lambda theta: 1e300 * theta, np.ones(1), step_size=1.0, steps=9)


@pytest.mark.parametrize(
    "theta0", [[0.5, 0.4], [1.0, 0.0], [1.5, -0.5], [0.5, 0.500002], [[0.5, 0.5], [0.7, 0.7]]]
)
def test_mirror_descent_starts_in_the_simplex(theta0: Any) -> None:
    with pytest.raises(
        ValueError, match=r"theta0 leaves the open simplex; expected positive entries that sum"
    ):
        mirror_descent(np.sign, np.array(theta0), step_size=1.0, steps=2)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_mirror_descent_needs_entries(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"theta0 has shape .*; expected at least one entry per row"):
        mirror_descent(np.sign, np.ones(shape), step_size=1.0, steps=2)


def test_a_start_in_single_precision_is_rescaled() -> None:
    theta0 = np.full(3, 0.33334, dtype=np.float32)
    run = mirror_descent(lambda theta: theta, theta0, step_size=1.0, steps=1)
    assert abs(float(np.sum(run.theta)) - 1) < 1e-6


def test_arrays_of_two_libraries_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    with pytest.raises(
        TypeError, match=r"gradient\(theta\) is a torch array and theta a numpy array; expected"
    ):
        projected_sgd(lambda theta: torch.ones(1), np.ones(1), step_size=1.0, steps=2)
