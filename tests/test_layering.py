"""Imports point one way: backends, then refimpl, then verification, then experiments."""

from __future__ import annotations

import ast
import importlib
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT

MAY_IMPORT = {
    "backends": {"backends"},
    "refimpl": {"refimpl", "backends"},
    "verification": {"verification", "refimpl", "backends"},
    "experiments": {"experiments", "verification", "refimpl", "backends"},
}
# The mathematics knows arrays by their namespace alone.
LIBRARIES = {"numpy", "torch", "cupy", "numba", "scipy", "array_api_compat", "array_api_strict"}


def imports(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of every import, wherever in the module it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def asks_for_the_backend(node: ast.AST) -> bool:
    """Whether it compares a backend, or its name, with a string."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    strings = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
    return strings and any(word in ast.unparse(node) for word in ("backend", "active", "library("))


def violations(root: Path) -> list[str]:
    """One line for every import that points the wrong way, and for every question after the backend."""
    found = []
    for folder, allowed in MAY_IMPORT.items():
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            place = path.relative_to(root).as_posix()
            for line, name in imports(tree):
                top, _, rest = name.partition(".")
                target = rest.partition(".")[0]
                if not top:
                    found.append(f"{place}:{line} imports relatively")
                elif top in MAY_IMPORT or top == "tests":
                    found.append(f"{place}:{line} imports {name}, which is not an installed name")
                elif top == "phiball" and target not in allowed:
                    found.append(f"{place}:{line} imports {name}, but {folder} may not")
                elif folder == "refimpl" and top in LIBRARIES:
                    found.append(f"{place}:{line} imports {top}, but refimpl may not")
            if folder == "refimpl":
                found += [
                    f"{place}:{node.lineno} asks which backend is active"
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Compare) and asks_for_the_backend(node)
                ]
    return found


def test_imports_point_one_way() -> None:
    assert violations(ROOT) == []


def test_there_is_something_to_read() -> None:
    for folder in ("backends", "refimpl", "verification"):
        assert len(list((ROOT / folder).glob("*.py"))) >= 2


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("backends/x.py", "from phiball.refimpl import ENTROPIC", "but backends may not"),
        ("backends/x.py", "import phiball.verification.oracles", "but backends may not"),
        ("backends/x.py", "def f():\n    from phiball import refimpl", "but backends may not"),
        (
            "backends/x.py",
            "import importlib\nimportlib.import_module('phiball.refimpl')",
            "but backends may not",
        ),
        ("refimpl/x.py", "from phiball.verification import oracles", "but refimpl may not"),
        ("refimpl/x.py", "from phiball.experiments import main", "but refimpl may not"),
        ("refimpl/deep/x.py", "import phiball.verification", "but refimpl may not"),
        ("verification/x.py", "from phiball.experiments import main", "but verification may not"),
        *(("refimpl/x.py", f"import {name}", f"imports {name}, but refimpl") for name in sorted(LIBRARIES)),
        ("refimpl/x.py", "from numpy import exp", "imports numpy, but refimpl"),
        ("refimpl/x.py", "def f():\n    import torch.nn as nn", "imports torch, but refimpl"),
        ("refimpl/x.py", "from . import divergences", "imports relatively"),
        ("verification/x.py", "from backends import use", "not an installed name"),
        ("experiments/x.py", "import tests.conftest", "not an installed name"),
        ("refimpl/x.py", "if backend == 'torch':\n    pass", "asks which backend"),
        ("refimpl/x.py", "y = 1 if active().name != 'numba' else 2", "asks which backend"),
        (
            "refimpl/x.py",
            "y = library(x) in ('torch', 'cupy') or library(x) == 'numpy'",
            "asks which backend",
        ),
    ],
)
def test_a_planted_violation_is_seen(place: str, code: str, complaint: str, tmp_path: Path) -> None:
    for folder in MAY_IMPORT:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    found = [line for line in violations(tmp_path) if line.startswith(place)]
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize("folder", ["backends", "refimpl"])
def test_all_names_what_is_public(folder: str) -> None:
    package = importlib.import_module(f"phiball.{folder}")
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(package.__all__) == public
    # Constants, then classes, then functions: the order that the linter keeps.
    kinds = [(0 if n.isupper() else 1 if n[0].isupper() else 2, n) for n in package.__all__]
    assert kinds == sorted(kinds)
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_every_package_is_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").is_file()
