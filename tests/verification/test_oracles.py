"""The oracles are independent of the library and agree with values computed by hand."""

import ast
import sys
from pathlib import Path

import pytest

from phiball.verification import oracles
from phiball.verification.oracles import definitions
from phiball.verification.oracles.exact_solver import solve_exactly

ORACLES = {file.stem: file for file in Path(oracles.__path__[0]).glob("[!_]*.py")}


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_oracles_import_nothing_of_the_library(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(ORACLES[name].read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = node.module or ""
            if not module.startswith("phiball.verification.oracles"):  # an oracle may use another oracle
                imported.add(module.partition(".")[0])
    third_party = imported - sys.stdlib_module_names
    assert third_party <= {"mpmath", "numpy", "scipy", "cvxpy"}


@pytest.mark.parametrize(
    ("family", "parameter", "eta", "value"),
    [
        ("entropic", None, 1.0, 0.620114506958),
        ("quadratic", None, 1.0, 5 / 8),
        ("quadratic", None, 0.5, 3 / 4),
        ("quadratic", None, 0.25, 7 / 8),
        ("absolute", None, 0.2, 4 / 5),
        ("hinge", None, 0.2, 9 / 10),
        ("indicator", 0.75, 1.0, 2 / 3),
    ],
)
def test_oracles_agree_with_values_computed_by_hand(
    family: str, parameter: float | None, eta: float, value: float
) -> None:
    f = (0.0, 1.0)
    answer = solve_exactly(f, eta, family, parameter)
    dual_minimum_ = definitions.dual_minimum(f, eta, family, parameter)
    primal = definitions.primal_objective(f, answer.weights, eta, family, parameter)
    cone = definitions.conic(f, eta, family, parameter, (0.5, 0.5))
    # The expected values have twelve digits.
    for result in (float(answer.value), float(dual_minimum_), float(primal)):
        assert result == pytest.approx(value, abs=1e-12)
    assert cone == pytest.approx(value, abs=1e-6)  # the accuracy of the conic solver
