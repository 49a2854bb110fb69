"""The installed package has one import name, imports lazily and is typed and complete."""

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import phiball
from phiball import QUADRATIC, Ball, backends, refimpl, worst_case
from tests.support.paths import ROOT

PACKAGES = ("backends", "refimpl", "verification", "experiments")
OPTIONAL = ["torch", "jax", "scipy", "sklearn", "cupy", "mpmath", "hypothesis", "typer", "rich", "joblib"]
HEAVY = ["torch", "scipy", "numba", "cupy", "mpmath", "hypothesis", "array_api_strict"]


def run_fresh(code: str, folder: Path, *options: str) -> str:
    """The output of a new interpreter that runs `code` in `folder`."""
    dropped = ("PHIBALL", "PYTHON", "COV")
    environment = {k: v for k, v in os.environ.items() if k == "PYTHONPATH" or not k.startswith(dropped)}
    command = [sys.executable, *options, "-c", code]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


# --- Names ------------------------------------------------------------------------------------------


def test_top_level_exports_the_names_of_refimpl_and_rng() -> None:
    names: dict[str, Any] = {}
    exec("from phiball import *", names)
    for name in refimpl.__all__:
        assert names[name] is getattr(refimpl, name), name
    assert names["rng"] is backends.rng
    assert {*names} - {"__builtins__"} <= set(dir(phiball))
    assert f'\nversion = "{phiball.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"\nversion: {phiball.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", [backends, refimpl])
def test_all_lists_every_public_name(package: Any) -> None:
    names = [name for name in dir(package) if not name.startswith("_")]
    public = {name for name in names if not isinstance(getattr(package, name), ModuleType)}
    assert set(package.__all__) == public
    assert len(set(package.__all__)) == len(package.__all__)


def test_namespaces_are_the_folders_of_refimpl() -> None:
    for name in phiball._NAMESPACES:
        assert import_module(f"phiball.{name}") is import_module(f"phiball.refimpl.{name}")
    fit = import_module("phiball.linear.fit")  # the same module, not a second copy
    assert fit is import_module("phiball.refimpl.linear.fit")
    assert fit.__spec__.name == "phiball.refimpl.linear.fit"
    with pytest.raises(ModuleNotFoundError, match=r"linear\.oops"):
        import_module("phiball.linear.oops")


def test_functions_and_results_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(worst_case)) is worst_case
    assert pickle.loads(pickle.dumps((QUADRATIC, Ball(2, 0.5)))) == (QUADRATIC, Ball(2, 0.5))


def test_misspelled_name_gets_a_suggestion() -> None:
    module: Any = phiball
    with pytest.raises(AttributeError, match=r"no attribute 'robustrisk'; did you mean 'robust_risk'\?$"):
        _ = module.robustrisk
    with pytest.raises(AttributeError, match=r"^module 'phiball' has no attribute 'xyzzy'$"):
        _ = module.xyzzy


@pytest.mark.slow
def test_mypy_knows_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy: not installed")
    lines = "import phiball", "reveal_type(phiball.worst_case)", "reveal_type(phiball.rng(0))", "phiball.oops"
    (tmp_path / "user.py").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "phiball").symlink_to(ROOT)
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(ROOT / ".mypy_cache"), "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "-> phiball.refimpl.inner.worst_case.WorstCase" in run.stdout
    assert '"phiball.backends.random.Rng"' in run.stdout
    assert [line for line in run.stdout.splitlines() if "error:" in line] == [
        'user.py:4: error: Module has no attribute "oops"  [attr-defined]'
    ]


# --- Imports ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_import_is_lazy_and_silent(tmp_path: Path) -> None:
    loaded = "print(*[m for m in ('numpy', 'phiball.refimpl', 'phiball.backends') if m in sys.modules])"
    assert run_fresh(f"import sys, phiball\nphiball.__version__\n{loaded}", tmp_path, "-W", "error") == "\n"
    shown = run_fresh(f"import sys, phiball\nphiball.rng\n{loaded}", tmp_path, "-W", "error")
    assert shown == "numpy phiball.backends\n"
    everything = "import phiball.refimpl, phiball.backends, phiball.verification"
    assert run_fresh(everything, tmp_path, "-W", "error") == ""


@pytest.mark.slow
def test_solving_loads_no_optional_library(tmp_path: Path) -> None:
    """A user's folders named like phiball's packages are not imported."""
    for folder in PACKAGES:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise RuntimeError('the wrong folder')")
    code = f"""
import sys, json, numpy, phiball
with phiball.backends.backend("numpy"):
    value = float(phiball.worst_case(numpy.array([0.0, 1.0]), 0.5, phiball.QUADRATIC).value)
print(json.dumps([value, [name for name in {HEAVY} if name in sys.modules]]))
"""
    assert json.loads(run_fresh(code, tmp_path)) == [0.75, []]


# --- The wheel --------------------------------------------------------------------------------------


def test_every_folder_is_listed_as_a_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)
    assert set(listed) == {".".join(("phiball", *f.relative_to(ROOT).parts)) for f in folders} | {"phiball"}


@pytest.mark.slow
def test_wheel_is_complete_and_works(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="setuptools: not installed")
    ignored = (".git", "__pycache__", ".*_cache", "build", "*.egg-info", "results", ".venv", "site")
    shutil.copytree(ROOT, tmp_path / "phiball", ignore=shutil.ignore_patterns(*ignored))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    command += ["--wheel-dir", str(tmp_path), str(tmp_path / "phiball")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (file,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(file).namelist())
    inside = {name.split("/")[1] for name in names if name.startswith("phiball/")}
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"phiball"}
    assert inside == {"__init__.py", "py.typed", *PACKAGES}
    kinds = (".py", ".j2", ".css", ".typed")
    files = [f for package in PACKAGES for f in (ROOT / package).rglob("*") if f.suffix in kinds]
    assert {f"phiball/{f.relative_to(ROOT).as_posix()}" for f in files} <= names
    assert {f"phiball/{package}/py.typed" for package in PACKAGES} <= names
    zipfile.ZipFile(file).extractall(tmp_path / "site")
    # -S excludes site-packages, which may contain an editable install; the path of NumPy is added.
    core = ("numpy", "numba", "llvmlite", "array_api_compat")
    paths = [tmp_path / "site", *{Path(str(import_module(name).__file__)).parents[1] for name in core}]
    code = f"""
import json, sys
sys.path[:0] = {[str(path) for path in paths]}
for name in {OPTIONAL}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import numpy as np
import phiball
solution = phiball.worst_case(np.array([0.0, 0.5, 1.0]), eta=0.2, divergence="chi2")
numbers = [float(solution.value), *solution.weights.tolist()]
print(json.dumps([phiball.refimpl.__file__, phiball.__version__, numbers]))
"""
    place, version, numbers = json.loads(run_fresh(code, tmp_path, "-S"))
    assert place.startswith(str(tmp_path / "site"))
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    # By hand: phi'(t) = t - 1, so the densities of the last two points differ by 0.5 / eta, and sum to 3.
    assert numbers == pytest.approx([193 / 240, 0, 1 / 12, 11 / 12], abs=1e-12)


# --- Security ---------------------------------------------------------------------------------------

PICKLES = ("pickle", "joblib", "dill", "cloudpickle", "marshal")
FORBIDDEN = {f"{module}.{name}" for module in PICKLES for name in ("load", "loads", "Unpickler")}
FORBIDDEN |= {"eval", "exec", "os.system", "yaml.load", "shelve.open"}
REQUIRED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
UNPACKING = ("extractall", "extract", "unpack_archive")
# This module passes a model from a process to its own workers.
ALLOWED = {("experiments/robustness/models.py", "pickle.loads")}


def unsafe_calls(source: str) -> Iterator[str]:
    """Yield calls that could execute a file's content or write to paths given by an archive."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in REQUIRED:
            argument, value = REQUIRED[name]
            given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            if given.get(argument) is not value:
                yield name
        elif name in FORBIDDEN or name.rpartition(".")[2] in UNPACKING:
            yield name
        elif any(k.arg == "shell" for k in node.keywords):
            yield f"{name} with shell"


def test_library_makes_no_unsafe_calls() -> None:
    files = [file for package in (*PACKAGES, "docs") for file in (ROOT / package).rglob("*.py")]
    found = {
        (file.relative_to(ROOT).as_posix(), name)
        for file in files
        for name in unsafe_calls(file.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "call", ["pickle.load(s)", "torch.load(f)", "np.load(f, allow_pickle=True)", "a.extractall(d)", "eval(t)"]
)
def test_unsafe_call_is_found(call: str) -> None:
    assert list(unsafe_calls(f"def f():\n    return {call}\n"))
