"""Every name that the mathematics takes from a namespace exists in CuPy's and in the standard."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


def taken(root: Path) -> dict[str, str]:
    """name -> the first place that takes it, for every xp.name and array_namespace(...).name."""
    uses: dict[str, str] = {}
    for path in sorted((root / "refimpl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute):
                continue
            source = node.value
            called = isinstance(source, ast.Call) and ast.unparse(source.func) == "array_namespace"
            if called or (isinstance(source, ast.Name) and source.id == "xp"):
                uses.setdefault(node.attr, f"{path.name}:{node.lineno}")
    return uses


def absent(root: Path, namespace: Any) -> dict[str, str]:
    return {name: place for name, place in taken(root).items() if not hasattr(namespace, name)}


def cupy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns on import where it finds no CUDA
        return pytest.importorskip(
            "array_api_compat.cupy", reason="cupy: not installed", exc_type=ImportError
        )


def strict() -> Any:
    return pytest.importorskip("array_api_strict", reason="array-api-strict: not installed")


@pytest.mark.parametrize("namespace", [cupy, strict])
def test_every_name_exists(namespace: Any) -> None:
    assert absent(ROOT, namespace()) == {}


def test_audit_sees_the_names_in_use() -> None:
    names = taken(ROOT)
    assert {"where", "sum", "exp", "log1p", "full_like", "finfo", "take_along_axis"} <= set(names)


@pytest.mark.parametrize("name", ["no_such_function", "logsumexp", "partition", "nanmax"])
def test_names_outside_the_standard_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "refimpl").mkdir()
    (tmp_path / "refimpl" / "x.py").write_text(f"y = xp.{name}(x)")
    assert absent(tmp_path, strict()) == {name: "x.py:1"}
    (tmp_path / "refimpl" / "x.py").write_text(f"def f(x): return array_namespace(x).{name}(x)")
    assert absent(tmp_path, strict()) == {name: "x.py:1"}
