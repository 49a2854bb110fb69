"""The mutation tester: what it plants, how it runs, and that its list of survivors is current."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.mutants.faults import faults
from tests.support.mutants.forks import Copy, Job, run_jobs
from tests.support.mutants.judges import FEWEST_CASES, MOST_CASES, some_cases
from tests.support.paths import ROOT

SOURCE = '''
"""A module of 1 line."""
from typing import overload

LIMIT: "int | None" = 3
Pair = float | None


class Box:
    def __repr__(self) -> str:
        return "box" + str(1)

    def grow(self, x: float, by: float = 0.5) -> float:
        """Grow by 1."""
        if not x > 0 or x is None:
            raise ValueError(f"x is {x + 1}; expected more")
        check(x)
        while True:
            break
        self.size += xp.max(x, axis=-1, copy=False)
        return -(x * by)
'''
PLANTED = """
LIMIT: "int | None" = 4
def grow(self, x: float, by: float = 1.0) -> float:
if x > 0 or x is None:
if not (not x > 0 or x is None):
if not x >= 0 or x is None:
if not x > 1 or x is None:
if not x > 0 and x is None:
if not x > 0 or x is not None:
pass
while not (True):
while False:
continue
self.size -= xp.max(x, axis=-1, copy=False)
self.size += xp.min(x, axis=-1, copy=False)
self.size += xp.max(x, copy=False)
self.size += xp.max(x, axis=1, copy=False)
self.size += xp.max(x, axis=-2, copy=False)
return (x * by)
return None
return -(x / by)
"""


def test_faults_change_what_runs_and_nothing_else() -> None:
    """No docstring, annotation, message or `__repr__` is changed, and every fault is one statement's."""
    found = faults("x.py", SOURCE.encode())
    assert [fault.change[1] for fault in found] == PLANTED.split("\n")[1:-1]
    for fault in found:
        compile(fault.mutated, "x.py", "exec")
        assert fault.mutated != fault.source
    assert {(fault.place.scope, fault.place.runs) for fault in found} == {("", False), ("Box.grow", True)}
    checks = {fault.change[1] for fault in found if fault.place.check}
    assert checks == {line for line in PLANTED.split("\n") if line.startswith("if") or line == "pass"}


def test_cases_of_a_test_have_every_value_before_two_backends() -> None:
    def case(name: str, **params: object) -> SimpleNamespace:
        return SimpleNamespace(name=name, callspec=SimpleNamespace(params=params))

    places = ("numpy-float64", "numba-float64", "torch-float64", "strict-float64")
    few = [case(f"t[{place}-{d}]", arrays=place, d=d) for d in range(9) for place in places]
    assert sorted(item.callspec.params["d"] for item in some_cases("t", few)) == list(range(9))
    assert len(some_cases("t", few[:8])) == FEWEST_CASES  # two values, four backends
    many = [case(f"t[numpy-float64-{d}]", arrays="numpy-float64", d=d) for d in range(99)]
    assert len(some_cases("t", many)) == MOST_CASES
    assert len(some_cases("t", [SimpleNamespace(name="t")])) == 1


def test_a_job_that_dies_or_hangs_is_reported(tmp_path: Path) -> None:
    """Its processes end, and the others go on."""

    def work(copy: Copy) -> str:
        return (copy.tree / "x.py").read_text()

    def hang(copy: Copy) -> None:
        while True:
            pass

    copies = [Copy(tmp_path / name) for name in "ab"]
    for copy in copies:
        copy.tree.mkdir(parents=True)
    jobs = [
        Job("hangs", hang, 0.2),
        Job("raises", lambda copy: 1 / 0, 9.0),
        Job("reads", work, 9.0, before=lambda copy: copy.write("x.py", b"1 < 2")),
    ]
    answers = {job.name: answer for job, answer in run_jobs(jobs, copies)}
    assert answers == {"hangs": None, "raises": None, "reads": "1 < 2"}


@pytest.mark.parametrize("table", ["left_out", "survivor"])
def test_the_list_of_survivors_is_current(table: str) -> None:
    """Each entry names a fault that the code still has, once, and says why it is left."""
    text = (ROOT / "tests/support/mutants/survivors.toml").read_text()
    entries = tomllib.loads(text).get(table, [])
    found = {
        module: faults(module, (ROOT / module).read_bytes()) for module in {e["module"] for e in entries}
    }
    for entry in entries:
        planted = found[entry["module"]]
        assert len(entry["why"]) > 9, entry
        if table == "left_out":
            assert any(fault.place.scope.startswith(entry["scope"]) for fault in planted), entry
        else:
            assert any(fault.change == (entry["was"], entry["becomes"]) for fault in planted), entry
    assert len({tuple(sorted(entry.items())) for entry in entries}) == len(entries)
