"""The risk of linear models near the ends of the range of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from phiball.refimpl import Ball, LinearProblem, linear_model_risk


def test_features_whose_squares_overflow() -> None:
    """The value of a model that does not use them is right, and nothing warns."""
    X = np.array([[0.0, 1.0], [1e308, 1.0]])
    risk = linear_model_risk(
        LinearProblem("squared", Ball(2, 0.0)), np.array([0.0, 2.0]), 0.0, X, np.zeros(2)
    )
    assert float(risk.value) == 2.0  # (2 - 0)^2/2


def test_numbers_that_overflow() -> None:
    """A ridge of 0 charges nothing for coefficients whose square overflows; margins that do are refused."""
    huge, labels = np.full(2, 1e308), np.array([-1.0, 1.0])
    problem = LinearProblem(ball=Ball(2, 0.0))
    assert linear_model_risk(problem, huge, 0.0, np.zeros((2, 2)), labels).value == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="a risk or a gradient that is not finite in float64"):
        linear_model_risk(problem, huge, 0.0, np.full((2, 2), 2.0), labels)
