"""Imports point one way, between the packages and inside each; folders and files stay small."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import pytest

from tests.support.layering import LIBRARIES, MOST_MODULES, PACKAGES, violations
from tests.support.paths import ROOT


@cache
def repository() -> dict[str, str]:
    """The text of every module, by its path."""
    files = [
        ROOT / "__init__.py",
        *(file for folder in (*PACKAGES, "tests") for file in (ROOT / folder).rglob("*.py")),
    ]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(files)}


@cache
def standing() -> list[str]:
    """What breaks a rule now."""
    return violations(repository())


@pytest.mark.slow
def test_every_rule_is_kept() -> None:
    assert len(repository()) > 300
    assert not standing(), "\n".join(standing())


PLANTED = [
    ("backends/x.py", "from phiball.refimpl import ENTROPIC", "but backends may not"),
    ("backends/x.py", "import phiball.verification.oracles.inner", "but backends may not"),
    ("backends/x.py", "def f():\n    from phiball import refimpl", "but backends may not"),
    ("backends/x.py", "from phiball.backends.numba.solve import solve", "but backends may not"),
    ("backends/x.py", "import numba", "backends.selection alone loads"),
    ("backends/x.py", "import phiball", "imports phiball, but backends may not"),
    ("backends/x.py", "from importlib import import_module\nimport_module('phiball.refimpl')", "in a string"),
    ("backends/numba/x.py", "from phiball.backends.random import rng", "but backends.numba may not"),
    ("refimpl/x.py", "x = 1", "is in no group"),
    ("refimpl/inner/x.py", "from phiball.verification.oracles import inner", "but refimpl.inner may not"),
    ("refimpl/inner/x.py", "from phiball.experiments.cli import main", "but refimpl.inner may not"),
    (
        "refimpl/inner/x.py",
        "from phiball.refimpl import ENTROPIC",
        "imports refimpl, but refimpl.inner may not",
    ),
    ("refimpl/inner/x.py", "from phiball.refimpl.laws.balls import Ball", "but refimpl.inner may not"),
    ("refimpl/inner/x.py", "from phiball.backends.numba.solve import solve", "but refimpl.inner may not"),
    ("refimpl/laws/x.py", "from phiball.refimpl.sampling import streaming", "but refimpl.laws may not"),
    ("refimpl/sampling/x.py", "import phiball.refimpl.risk.density", "but refimpl.sampling may not"),
    ("refimpl/risk/x.py", "from phiball.refimpl.training import sgd", "but refimpl.risk may not"),
    ("refimpl/training/x.py", "from phiball.refimpl.theory import ramp", "but refimpl.training may not"),
    ("refimpl/theory/x.py", "from phiball.refimpl.qlearning import grid", "but refimpl.theory may not"),
    ("refimpl/qlearning/x.py", "from phiball.refimpl import causal", "but refimpl.qlearning may not"),
    ("refimpl/qlearning/x.py", "from phiball.refimpl import attacks", "but refimpl.qlearning may not"),
    *(("refimpl/inner/x.py", f"import {name}", f"imports {name}, but refimpl") for name in sorted(LIBRARIES)),
    ("refimpl/inner/x.py", "from numpy import exp", "imports numpy, but refimpl"),
    ("refimpl/inner/x.py", "def f():\n    import torch.nn as nn", "imports torch, but refimpl"),
    ("refimpl/inner/x.py", "from . import divergences", "imports relatively"),
    ("refimpl/inner/x.py", "if backend == 'torch':\n    pass", "asks which backend"),
    ("refimpl/inner/x.py", "y = 1 if active().name != 'numba' else 2", "asks which backend"),
    ("refimpl/inner/x.py", "y = library(x) in ('torch',) or library(x) == 'numpy'", "asks which backend"),
    ("verification/x.py", "x = 1", "is in no group"),
    ("verification/oracles/x.py", "import phiball.backends", "but verification.oracles may not"),
    ("verification/instances/x.py", "from backends import use", "not an installed name"),
    ("verification/instances/x.py", "from phiball.experiments.cli import main", "but verification.instances"),
    *(
        (
            "verification/framework/x.py",
            f"from phiball.verification.{name}",
            "but verification.framework may not",
        )
        for name in ("instances import laws", "oracles import inner", "report import html")
    ),
    (
        "verification/framework/x.py",
        "import phiball.verification.solver_check.report",
        "verification.framework",
    ),
    (
        "verification/instances/x.py",
        "import phiball.verification.report.html",
        "verification.instances may not",
    ),
    *(
        (f"{place}/x.py", f"from phiball.verification.claims.{name} import f", "imports verification.claims.")
        for place, name in (
            ("verification/framework", "section2.duality"),
            ("verification/instances", "section2.duality"),
            ("verification/claims/section2", "section2.duality"),
            ("verification/claims/section3", "section2.duality"),
            ("verification/solver_check", "section2.duality"),
            ("experiments/studies/pricing", "section6.pricing"),
        )
    ),
    (
        "verification/claims/beyond/x.py",
        "import phiball.verification.report.html",
        "verification.claims may not",
    ),
    ("verification/report/x.py", "import phiball.verification.oracles.inner", "verification.report may not"),
    ("experiments/x.py", "x = 1", "is in no group"),
    ("experiments/cli/x.py", "import tests.conftest", "not an installed name"),
    ("experiments/framework/x.py", "from phiball.experiments.datasets import idx", "framework may not"),
    ("experiments/datasets/x.py", "from phiball.experiments.training import loop", "datasets may not"),
    ("experiments/training/x.py", "from phiball.experiments.benchmarks import settings", "training may not"),
    (
        "experiments/training/x.py",
        "from phiball.experiments.studies.pricing import model",
        "training may not",
    ),
    ("experiments/training/x.py", "import phiball.experiments.cli.main", "experiments.training may not"),
    (
        "experiments/studies/pricing/x.py",
        "import phiball.experiments.benchmarks.third_party",
        "pricing may not",
    ),
    (
        "experiments/studies/pricing/x.py",
        "import phiball.experiments.studies.cartpole.study",
        "pricing may not",
    ),
    ("experiments/studies/pricing/x.py", "import phiball.backends.numba.primitives", "pricing may not"),
    ("experiments/benchmarks/x.py", "import phiball.experiments.studies.pricing.model", "benchmarks may not"),
    ("experiments/benchmarks/x.py", "import phiball.experiments.benchmarks.attacks", "from the benchmark"),
    (
        "experiments/benchmarks/x.py",
        "LATE = {'a': 'phiball.experiments.benchmarks.third_party'}",
        "in a string",
    ),
    ("tests/refimpl/test_x.py", "from tests.conftest import Arrays", "in tests.support alone"),
    ("tests/refimpl/test_x.py", "from tests.refimpl.test_attacks import ATTACKS", "in tests.support alone"),
    ("refimpl/inner/x.py", "\n" * 401, "has 401 lines"),
]


def complaints(planted: dict[str, str]) -> list[str]:
    """What the planted files add to the violations."""
    return [line for line in violations(repository() | planted) if line not in standing()]


@pytest.mark.parametrize(("place", "code", "complaint"), PLANTED)
def test_a_planted_violation_is_seen(place: str, code: str, complaint: str) -> None:
    (line,) = complaints({place: code})
    assert line.startswith(place)
    assert complaint in line


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("backends/numba/x.py", "import numba\nfrom phiball.backends.arrays import Array"),
        ("refimpl/types.py", "from phiball.refimpl.inner.divergences import Divergence"),
        ("refimpl/sklearn/x.py", "import numpy\nfrom phiball.refimpl.linear.fit import fit_linear_model"),
        ("refimpl/theory/x.py", "from phiball.refimpl.risk import density\nfrom phiball.backends import rng"),
        (
            "verification/claims/beyond/x.py",
            "import phiball.verification.instances.laws\nimport phiball.refimpl",
        ),
        ("experiments/studies/pricing/x.py", "import phiball.experiments.studies.pricing.model"),
        ("experiments/benchmarks/x.py", "import phiball.experiments.benchmarks.third_party"),
        ("experiments/cli/x.py", "NAMES = ['phiball.experiments.benchmarks.attacks']"),
        (
            "tests/refimpl/test_x.py",
            "from tests.support.paths import ROOT\nimport phiball.experiments.cli.main",
        ),
    ],
)
def test_what_is_allowed_is_not_reported(place: str, code: str) -> None:
    assert complaints({place: code}) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from phiball.refimpl.inner import y", "from phiball.refimpl.inner.x import f"),
        ("def f():\n    from phiball.refimpl.inner import y", "import phiball.refimpl.inner.x"),
        (
            "if TYPE_CHECKING:\n    from phiball.refimpl.inner.y import g",
            "import phiball.refimpl.inner.x as x",
        ),
    ],
)
def test_a_planted_cycle_is_seen(first: str, second: str) -> None:
    (line,) = complaints({"refimpl/inner/x.py": first, "refimpl/inner/y.py": second})
    assert line.startswith("cycle of imports: ")
    assert "refimpl.inner.x" in line


def test_a_cycle_through_a_string_is_seen() -> None:
    late, back = "A = 'phiball.experiments.cli.y'", "from phiball.experiments.cli import x"
    lines = complaints({"experiments/cli/x.py": late, "experiments/cli/y.py": back})
    assert any(line.startswith("cycle of imports: ") for line in lines)


def test_a_crowded_folder_is_seen() -> None:
    (line,) = complaints({f"refimpl/inner/x{n}.py": "" for n in range(MOST_MODULES)})
    assert line.startswith("refimpl/inner holds ")


@pytest.mark.parametrize("folder", ["backends", "refimpl"])
def test_all_names_what_is_public(folder: str) -> None:
    package = importlib.import_module(f"phiball.{folder}")
    loaded = {name for name, value in vars(package).items() if not isinstance(value, ModuleType)}
    public = package._MODULES if folder == "refimpl" else {n for n in loaded if not n.startswith("_")}
    assert set(package.__all__) == set(public)
    # Constants, then classes, then functions: the order that the linter keeps.
    kinds = [(0 if n.isupper() else 1 if n[0].isupper() else 2, n) for n in package.__all__]
    assert kinds == sorted(kinds)
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_package_is_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").is_file()
