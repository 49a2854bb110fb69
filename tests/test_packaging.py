"""What is installed: one import name, typed, without the tests, and light to import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.layering import PACKAGES
from tests.support.paths import ROOT

HEAVY = ["torch", "scipy", "numba", "cupy", "mpmath", "hypothesis", "array_api_strict"]


def fresh(code: str, folder: Path, *options: str) -> str:
    """What a fresh interpreter prints that runs `code` in `folder`."""
    stripped = ("PHIBALL", "PYTHON", "COV")  # but for the path, on which phiball itself may be
    environment = {k: v for k, v in os.environ.items() if k == "PYTHONPATH" or not k.startswith(stripped)}
    run = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_the_import_is_light_and_not_confused_by_folders(tmp_path: Path) -> None:
    """A user's project may have folders of the same names as ours."""
    for folder in PACKAGES:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise RuntimeError('the wrong folder')")
    code = f"""
import sys, json, numpy
import phiball.refimpl, phiball.backends
f = numpy.array([0.0, 1.0])
with phiball.backends.use("numpy"):
    value = float(phiball.worst_case(f, 0.5, phiball.QUADRATIC).value)
print(json.dumps([value, [name for name in {HEAVY} if name in sys.modules]]))
"""
    assert json.loads(fresh(code, tmp_path)) == [0.75, []]


def test_the_check_of_lightness_can_fail(tmp_path: Path) -> None:
    code = f"import sys, mpmath; print([name for name in {HEAVY} if name in sys.modules])"
    assert "mpmath" in fresh(code, tmp_path)


@pytest.mark.slow
def test_the_import_is_silent(tmp_path: Path) -> None:
    code = "import phiball.refimpl, phiball.backends, phiball.verification"
    assert fresh(code, tmp_path, "-W", "error") == ""


def test_every_folder_of_modules_is_a_package_of_the_project() -> None:
    """A new folder that nobody lists would be missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)
    names = {".".join(("phiball", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(listed) == names | {"phiball"}
    assert listed == sorted(listed)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, since a build leaves folders behind in its source."""
    pytest.importorskip("setuptools", reason="setuptools: not installed")
    source, out = tmp_path_factory.mktemp("source") / "phiball", tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns(
        ".git", "__pycache__", ".*_cache", "build", "*.egg-info", "results", ".venv"
    )
    shutil.copytree(ROOT, source, ignore=unwanted)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    run = subprocess.run(
        [*command, "--wheel-dir", str(out), str(source)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.mark.slow
def test_phiball_is_the_only_import_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"phiball"}
    inside = {name.split("/")[1] for name in names if name.startswith("phiball/")}
    assert inside == {"__init__.py", "py.typed", *PACKAGES}


def test_the_wheel_has_every_module_and_template_and_no_test(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*")]
    wanted = {
        f"phiball/{file.relative_to(ROOT).as_posix()}"
        for file in files
        if file.suffix in (".py", ".j2", ".css") or file.name == "py.typed"
    }
    assert len(wanted) > 200
    assert {f"phiball/{package}/py.typed" for package in PACKAGES} <= wanted
    assert wanted - names == set()
    assert not [name for name in names if "test" in name.lower()]


@pytest.mark.slow
def test_the_wheel_works_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    # -S leaves out site-packages and with it an editable install; NumPy is found by its path.
    needed = sorted(
        {str(Path(str(m.__file__)).parents[1]) for m in (__import__("numpy"), __import__("array_api_compat"))}
    )
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path / "site")!r}]
sys.path += {needed}
import phiball.refimpl as r
print(r.__file__, r is sys.modules["phiball"].refimpl)
"""
    path, same = fresh(code, tmp_path, "-S").split()
    assert str(tmp_path / "site") in path
    assert same == "True"
