"""`make test-versions`: the quick tests with the lowest and the newest versions that pyproject.toml allows.

For every Python that the machine has, uv chooses the versions and an environment of their own gets them.
torch is the exception: its usual builds bring gigabytes for GPUs, so only a build for CPUs is taken, by
pip, which may know a place that has one. Where there is none the tests of torch are not run, and a line
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from itertools import chain
from pathlib import Path

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOWEST_PYTHON = tuple(map(int, re.findall(r"\d+", PROJECT["requires-python"])))
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
WITHOUT = ("torch", "cupy-cuda12x")  # not chosen by uv
TORCH_NEEDS = ("filelock>=3.13", "fsspec>=2024.1", "networkx>=3", "sympy>=1.13.3")
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.versions", description=__doc__)
    parser.add_argument("--python", action="append", help="such as 3.12 (all that there are)")
    parser.add_argument("--versions", choices=RESOLUTIONS, action="append", help="one of the two (both)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "versions", help="folder of environments"
    )
    parser.add_argument("tests", nargs="*", help="options and paths for pytest (the quick tests)")
    return parser.parse_args()


def run(*command: object, **more: object) -> subprocess.CompletedProcess[str]:
    """A command of the repository's folder, with nothing of another environment."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    pyenv = Path(env.get("PYENV_ROOT", "~/.pyenv")).expanduser()  # uv looks at the PATH alone
    env["PATH"] = os.pathsep.join([env["PATH"], *map(str, sorted(pyenv.glob("versions/*/bin")))])
    return subprocess.run([str(word) for word in command], cwd=ROOT, env=env, text=True, **more)  # type: ignore[call-overload,no-any-return]


def make_uv(folder: Path) -> Path:
    """uv, in an environment of its own."""
    if not (folder / "bin" / "uv").exists():
        venv.create(folder, with_pip=True, clear=True)
        run(folder / "bin" / "python", *PIP, "uv", check=True)
    return folder / "bin" / "uv"


def pythons(uv: Path) -> list[str]:
    """The Pythons of this machine that are new enough, the newest patch of each: 3.11.7, 3.12.1."""
    listing = run(uv, "python", "list", "--only-installed", "--output-format", "json", capture_output=True)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for python in json.loads(listing.stdout):
        version = tuple(python["version_parts"][part] for part in ("major", "minor", "patch"))
        stable = python["implementation"] == "cpython" and python["variant"] == "default"
        if stable and version >= LOWEST_PYTHON:
            found[version[:2]] = max(version, found.get(version[:2], version))
    return [".".join(map(str, version)) for _, version in sorted(found.items())]


def bound(name: str) -> str:
    """The lowest version of a package that pyproject.toml allows."""
    texts = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    return next(m[1] for text in texts if (m := re.match(rf"{re.escape(name)}>=([\d.]+)", text)))


def make_environment(uv: Path, python: str, versions: str, folder: Path) -> tuple[Path, str]:
    """An environment with these versions; its Python, and what there is to say about torch."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(uv, "venv", "--quiet", "--clear", "--seed", "--python", python, folder, check=True)
    here = folder / "bin" / "python"
    torch = install_torch(here, versions)
    overrides, needs, chosen = (folder / f"{name}.txt" for name in ("overrides", "needs", "versions"))
    overrides.write_text("".join(f"{name} ; python_version < '0'\n" for name in WITHOUT), encoding="utf-8")
    needs.write_text("".join(f"{text}\n" for text in TORCH_NEEDS if torch), encoding="utf-8")
    choose = [uv, "pip", "compile", "--quiet", "--resolution", RESOLUTIONS[versions], "--python", here]
    # No package is built here: a version without a wheel for this Python is not one of its versions.
    choose += ["--only-binary", ":all:", "--override", overrides, "--extra", "dev", "-o", chosen]
    run(*choose, ROOT / "pyproject.toml", needs, check=True, stdout=subprocess.DEVNULL)
    run(uv, "pip", "install", "--quiet", "--python", here, "-r", chosen, check=True)
    run(here, *PIP, "--no-deps", "--no-build-isolation", "-e", ".", check=True)
    return here, torch or "without torch: no build for CPUs is to be had"


def install_torch(here: Path, versions: str) -> str:
    """A build of torch for CPUs, whose versions end in +cpu: what is said of it, nothing if there is none."""
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned, "constraints.txt pins torch"
    lowest, newest = f"{bound('torch')}.0", pinned[1]
    for version in [lowest, newest] if versions == "lowest" else [newest]:
        if not run(here, *PIP, "--no-deps", f"torch=={version}+cpu", capture_output=True).returncode:
            missed = f", {lowest} is not to be had" if versions == "lowest" and version != lowest else ""
            return f"torch {version} for CPUs{missed}"
    return ""


def main() -> int:
    """Run the command; 1 if a test fails anywhere."""
    arguments = options()
    uv = make_uv(arguments.out / "uv")
    failed = []
    found = pythons(uv)
    chosen = [p for p in found if p.startswith(tuple(arguments.python or [""]))]
    if not chosen:
        sys.exit(f"--python is {arguments.python}; the machine has {found}")
    for python in chosen:
        for versions in arguments.versions or RESOLUTIONS:
            name = f"Python {python}, {versions} versions"
            folder = arguments.out / f"{python}-{versions}"
            here, torch = make_environment(uv, python, versions, folder)
            print(f"\n== {name}; {torch}; the others: {folder / 'versions.txt'}", flush=True)
            # An old version may warn of a newer one of another package; that is not ours to mend.
            lenient = ["-o", "filterwarnings="] if versions == "lowest" else []
            if run(here, "-m", "pytest", "--fast", "-q", *lenient, *arguments.tests).returncode:
                failed.append(name)
    print("\n" + ("failed: " + "; ".join(failed) if failed else "all pass"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
