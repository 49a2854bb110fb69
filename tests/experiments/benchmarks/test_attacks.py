"""The bench of attacks: what it compares, how it counts, and what it says without torchattacks."""

from __future__ import annotations

import json
import sys
from math import inf
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app
from phiball.refimpl import Ball

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

from phiball.experiments.benchmarks import attacks as bench  # noqa: E402


@pytest.fixture(scope="module")
def task() -> bench.Task:
    return bench.train(0, epochs=2, images=60)


def test_options_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    fake = ModuleType("phiball.experiments.benchmarks.attacks")
    fake.main = given.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "phiball.experiments.benchmarks.attacks", fake)
    result = CliRunner().invoke(
        app, ["bench", "attacks", "--threads", "2", "--quick", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert given == {"threads": 2, "quick": True, "out": tmp_path}


@pytest.mark.parametrize(("module", "package"), [("torch", "torch"), ("sklearn.datasets", "scikit-learn")])
def test_what_is_missing_is_one_line(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    result = CliRunner().invoke(app, ["bench", "attacks", "--quick"])
    assert result.exit_code == 1
    assert result.stderr == (
        f"phiball: the bench of attacks needs {package}, which is not installed: "
        "pip install 'phiball[bench]'\n"
    )


def test_training_repeats_itself_and_moves_no_other_generator(task: bench.Task) -> None:
    torch.manual_seed(5)
    again = bench.train(0, epochs=2, images=60)
    after = torch.rand(1)
    assert all(
        torch.equal(a, b) for a, b in zip(task.model.parameters(), again.model.parameters(), strict=True)
    )
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert not task.model.training
    assert task.x.shape == (60, 1, 8, 8)
    assert float(torch.min(task.x)) == 0
    assert float(torch.max(task.x)) == 1
    assert task.errors(task.x) < 30  # two epochs are enough to beat chance, 54


@pytest.mark.parametrize("norm", [2.0, inf])
def test_every_attack_stays_inside_and_the_strong_ones_find_errors(norm: float, task: bench.Task) -> None:
    ball = Ball(norm, {2.0: 1.0, inf: 0.2}[norm], bench.BOX)
    found = {}
    for name, attack in bench.attacks(task).items():
        x = attack(ball, 0)
        assert bool(torch.all(ball.contains(x, task.x, event_ndim=3)))
        assert float(torch.min(x)) >= 0
        assert float(torch.max(x)) <= 1
        found[name] = task.errors(x)
    assert found["white noise"] < found["FGM"] <= found["IFGM"] + 2  # two images of sixty for luck
    i = torch.arange(60)
    best = bench.attacks(task)["PGM, best iterate"](ball, 0)
    last = bench.attacks(task)[bench.OURS](ball, 0)
    assert torch.all(task.loss(best, i) >= task.loss(last, i))


@pytest.mark.parametrize(("norm", "name"), [(2.0, "PGDL2"), (inf, "PGD")])
def test_torchattacks_gets_the_settings_of_pgm(
    norm: float, name: str, task: bench.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def attack(kind: str) -> Any:
        def make(model: Any, **settings: Any) -> Any:
            calls.append((kind, model, settings))
            return lambda x, y: x + torch.rand(1)

        return make

    fake = SimpleNamespace(PGD=attack("PGD"), PGDL2=attack("PGDL2"))
    monkeypatch.setattr(bench, "_peer", lambda: fake)
    run = bench.attacks(task)[bench.THEIRS]
    first = run(Ball(norm, 0.6, bench.BOX), 0)
    assert torch.equal(first, run(Ball(norm, 0.6, bench.BOX), 0))  # seeded
    assert not torch.equal(first, run(Ball(norm, 0.6, bench.BOX), 1))
    settings = {"eps": 0.6, "alpha": pytest.approx(0.1), "steps": 15, "random_start": True}
    assert calls == [(name, task.model, settings)] * 3


def measured(ours: list[float], theirs: list[float]) -> list[bench.Row]:
    return [
        bench.Row("l2", radius, name, seed, error + radius)
        for radius in (0.25, 0.5)
        for name, errors in ((bench.OURS, ours), (bench.THEIRS, theirs))
        for seed, error in enumerate(errors)
    ]


def test_differences_are_taken_within_a_seed() -> None:
    """Networks that differ by 0.3 hide no differences of 0.01, 0.02 and 0.03."""
    compared = bench.compare(measured([0.11, 0.42, 0.73], [0.1, 0.4, 0.7]))
    assert [c.where for c in compared] == ["l2 0.25", "l2 0.5", "all radii"]
    for c in compared:
        assert c.difference == pytest.approx(0.02)
        assert c.stderr == pytest.approx(0.01 / 3**0.5)
    assert str(compared[0]) == "l2 0.25: +2.00 +- 0.58 %"


def test_verdict() -> None:
    ahead = bench.compare(measured([0.11, 0.42, 0.73], [0.1, 0.4, 0.7]))
    level = bench.compare(measured([0.1, 0.39, 0.71], [0.1, 0.4, 0.7]))
    same = bench.compare(measured([0.1, 0.4], [0.1, 0.4]))
    for compared in (ahead, level, same):
        said = bench.verdict(compared)
        assert said.startswith(
            "PGM finds at least as many errors as torchattacks, within two standard errors (all radii: "
        )
        assert said.endswith("behind by more than that: none")
    behind = bench.compare(measured([0.1, 0.4, 0.7], [0.11, 0.42, 0.73]))
    assert bench.verdict(behind) == (
        "PGM finds fewer errors than torchattacks, by more than two standard errors (all radii: -2.00 +- "
        "0.58 %); single radii of 2 at which it is behind by more than that: "
        "l2 0.25: -2.00 +- 0.58 %, l2 0.5: -2.00 +- 0.58 %"
    )


def test_a_single_radius_is_not_hidden_by_the_others() -> None:
    compared = [
        bench.Comparison("l2 0.25", -0.01, 0.001),
        bench.Comparison("l2 0.5", 0.01, 0.001),
        bench.Comparison("all radii", 0.0, 0.001),
    ]
    said = bench.verdict(compared)
    assert said.startswith("PGM finds at least as many errors")
    assert said.endswith("behind by more than that: l2 0.25: -1.00 +- 0.10 %")


def test_nothing_to_compare_without_torchattacks_or_with_one_seed() -> None:
    assert bench.compare([row for row in measured([0.1, 0.2], [0.1, 0.2]) if row.attack == bench.OURS]) == []
    assert bench.compare(measured([0.1], [0.2])) == []


def test_the_whole_bench_without_torchattacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = bench.rows
    monkeypatch.setattr(bench, "_peer", lambda: None)
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(bench, "rows", lambda seeds, radii: small(seeds, epochs=1, images=30, radii=radii))
    monkeypatch.setattr(bench, "ratio", lambda work, unit, seconds: (work(), 2.0)[1])
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, ["bench", "attacks", "--quick", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert "torchattacks is not installed: pip install --no-deps torchattacks" in result.output
    assert "wrote" in result.output
    record = json.loads((tmp_path / "attacks.json").read_text())
    assert record["compared"] == []
    assert len(record["rows"]) == 2 * (1 + 2 * 2 * 7)  # seeds, clean, norms, radii, attacks
    assert len(record["times"]) == 2 * 7
    assert all(0 <= row["error"] <= 1 for row in record["rows"])
