"""The contract of a study: required members, and defaults of the others."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

pytest.importorskip("rich", reason="rich: not installed")

from phiball.backends import rng
from phiball.experiments.cli.run import STUDIES, load_study
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.study import SCALES, Study
from tests.support.tiny_study import STUDY, Config, TinyStudy


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_keeps_the_contract(name: str) -> None:
    study = load_study(name)
    assert Study in type(study).__mro__
    assert study.name == name
    assert set(study.scales) == set(SCALES)
    for config in study.scales.values():
        assert is_dataclass(config)
        assert all({"help", "choices", "affects_results"} <= item.metadata.keys() for item in fields(config))
        tasks = study.tasks(config)
        assert all(study.work(config, task) > 0 for task in tasks)
        assert len({study.label(task) for task in tasks}) == len(tasks)
        assert study.threads(config) >= 1


@pytest.mark.parametrize("member", ["tasks", "compute_task", "draw", "tables", "findings"])
def test_study_without_a_required_member_is_rejected(member: str) -> None:
    members = {name: value for name, value in vars(TinyStudy).items() if name in Study.__abstractmethods__}
    assert members.pop(member)
    with pytest.raises(TypeError, match=member):
        type("Incomplete", (Study,), members)()


def test_map_tasks_replaces_the_serial_runner() -> None:
    def map_tasks(study: Study[Any], config: Any, tasks: list[Any], source: Any) -> list[Any]:
        assert study is STUDY
        return [{"total": task["k"]} for task in tasks]

    table = STUDY.compute(Config(count=3), rng(0), map_tasks)
    assert [row["total"] for row in table.rows] == [0, 1, 2]


def test_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(
        ImportError, match=r"^a test needs thing, which is not installed: .*phiball\[verify\]'$"
    ):
        require("no_such_module", user="a test", extra="verify", package="thing")
    assert require("json", user="a test", extra="verify").dumps(1) == "1"
