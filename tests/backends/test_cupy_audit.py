"""Every name that refimpl uses from an array namespace exists in CuPy and in the standard."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


def names_used(root: Path) -> dict[str, str]:
    """Map each name in xp.name and array_namespace(...).name to its first use."""
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


def names_missing(root: Path, namespace: Any) -> dict[str, str]:
    return {name: place for name, place in names_used(root).items() if not hasattr(namespace, name)}


@pytest.mark.filterwarnings("ignore")  # CuPy warns on import if it finds no CUDA
@pytest.mark.parametrize(
    ("library", "module"), [("cupy", "array_api_compat.cupy"), ("array-api-strict", "array_api_strict")]
)
def test_every_used_name_exists_in_the_namespace(library: str, module: str) -> None:
    namespace = pytest.importorskip(module, reason=f"{library}: not installed", exc_type=ImportError)
    assert names_missing(ROOT, namespace) == {}
    assert {"where", "sum", "exp", "log1p", "full_like", "finfo"} <= names_used(ROOT).keys()


def test_audit_finds_names_outside_the_standard(tmp_path: Path) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict: not installed")
    (tmp_path / "refimpl").mkdir()
    for code in ("y = xp.logsumexp(x)", "def f(x): return array_namespace(x).logsumexp(x)"):
        (tmp_path / "refimpl" / "x.py").write_text(code)
        assert names_missing(tmp_path, strict) == {"logsumexp": "x.py:1"}
