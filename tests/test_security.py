"""Nothing from outside is unpickled or run, and archives are read in memory: what the source says of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

PACKAGES = ("backends", "refimpl", "verification", "experiments", "docs")
# What a worker of a cluster hands to its own child, in a folder that only its user can read.
KNOWN = {("backends/child.py", "pickle.loads")}
# A model that a process hands to its own workers.
KNOWN |= {("experiments/robustness/models.py", "pickle.loads")}
PICKLES = ("pickle", "joblib", "dill", "cloudpickle", "marshal")
NEVER = {f"{module}.{name}" for module in PICKLES for name in ("load", "loads", "Unpickler")}
NEVER |= {"eval", "exec", "os.system", "yaml.load", "shelve.open"}
SAFE = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
UNPACKING = ("extractall", "extract", "unpack_archive")


def complaints(source: str) -> Iterator[str]:
    """The calls of a module that could run what a file holds, or write where an archive says."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in SAFE:
            argument, value = SAFE[name]
            given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            if given.get(argument) is not value:
                yield name
        elif name in NEVER or name.rpartition(".")[2] in UNPACKING:
            yield name
        elif any(k.arg == "shell" for k in node.keywords):
            yield f"{name} with shell"


def test_no_file_is_run() -> None:
    found = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            found |= {(place, name) for name in complaints(file.read_text(encoding="utf-8"))}
    assert found == KNOWN


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(stream)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file)",
        "np.load(file, allow_pickle=True)",
        "archive.extractall(folder)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_what_is_noticed(line: str) -> None:
    assert list(complaints(f"def f():\n    return {line}\n"))
