"""The repr of every result is one line."""

from dataclasses import fields, is_dataclass
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest

import phiball.refimpl
from phiball.refimpl import QUADRATIC, worst_case
from tests.support.arrays import Arrays


def test_repr_shows_numbers_and_shapes_of_arrays(doubles: Arrays) -> None:
    solution = worst_case(doubles.asarray([0.0, 1.0]), 0.5, QUADRATIC)
    assert repr(solution) == "WorstCase(value=0.75, mu=0, weights of shape (2,), gap=0, eta=0.5)"
    solution = worst_case(doubles.asarray(np.zeros((3, 2, 5))), 0.5, QUADRATIC)
    shapes = "value of shape (3, 2), mu of shape (3, 2), weights of shape (3, 2, 5), gap of shape (3, 2), "
    shapes += "eta of shape (3, 2)"
    assert repr(solution) == f"WorstCase({shapes})"


def test_repr_of_tensors_that_require_grad_or_hold_no_data() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    losses = torch.tensor([0.0, 1.0], requires_grad=True)
    assert repr(worst_case(losses, 0.5, QUADRATIC)).startswith("WorstCase(value=0.75, mu=0, ")
    rule = import_module("phiball.refimpl.risk.quadrature").QuadratureRule
    empty = torch.empty((), device="meta")
    assert repr(rule(empty, empty, empty)) == (
        "QuadratureRule(points of shape (), weights of shape (), coarse of shape ())"
    )


def test_every_dataclass_with_arrays_has_the_one_line_repr() -> None:
    modules = [
        import_module(found.name) for found in walk_packages(phiball.refimpl.__path__, "phiball.refimpl.")
    ]
    classes = {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and is_dataclass(value) and not name.startswith("_")
    }
    one_line = import_module("phiball.refimpl.printing").one_line
    assert len(classes) > 25
    for cls in classes:
        if cls.__repr__ is not one_line:
            assert "Array" not in {str(field.type) for field in fields(cls)}, cls
