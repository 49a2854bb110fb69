"""The benchmark of attacks: what it compares, how it counts, and what it says without torchattacks."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app
from phiball.refimpl import Ball

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

from phiball.experiments.benchmarks import attacks as bench  # noqa: E402
from phiball.experiments.training.pretrained import Classifier  # noqa: E402
from tests.support.progress import Watched  # noqa: E402


@pytest.fixture(scope="module")
def victim() -> Classifier:
    return bench.train(0, epochs=2, test_images=60)


@pytest.mark.slow
def test_training_repeats_itself_and_moves_no_other_generator(victim: Classifier) -> None:
    torch.manual_seed(5)
    again = bench.train(0, epochs=2, test_images=60)
    after = torch.rand(1)
    assert all(
        torch.equal(a, b) for a, b in zip(victim.model.parameters(), again.model.parameters(), strict=True)
    )
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert not victim.model.training
    assert victim.x.shape == (60, 1, 8, 8)
    assert float(torch.min(victim.x)) == 0
    assert float(torch.max(victim.x)) == 1
    assert victim.errors(victim.x) < 30  # two epochs are enough to beat chance, 54


@pytest.mark.slow
@pytest.mark.parametrize("norm", [2.0, inf])
def test_every_attack_stays_inside_and_the_strong_ones_find_errors(norm: float, victim: Classifier) -> None:
    ball = Ball(norm, {2.0: 1.0, inf: 0.2}[norm], bench.BOX)
    errors = {}
    for name, attack in bench.attacks(victim).items():
        x = attack(ball, 0)
        assert bool(torch.all(ball.contains(x, victim.x, event_ndim=3)))
        assert float(torch.min(x)) >= 0
        assert float(torch.max(x)) <= 1
        errors[name] = victim.errors(x)
    assert errors["white noise"] < errors["FGM"] <= errors["IFGM"] + 2  # two images of sixty for luck
    i = torch.arange(60)
    best = bench.attacks(victim)["PGM, best iterate"](ball, 0)
    last = bench.attacks(victim)[bench.OURS](ball, 0)
    assert torch.all(victim.loss(best, i) >= victim.loss(last, i))


@pytest.mark.parametrize(("norm", "name"), [(2.0, "PGDL2"), (inf, "PGD")])
def test_torchattacks_gets_the_settings_of_pgm(
    norm: float, name: str, victim: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def attack(kind: str) -> Any:
        def make(model: Any, **settings: Any) -> Any:
            calls.append((kind, model, settings))
            return lambda x, y: x + torch.rand(1)

        return make

    fake = SimpleNamespace(PGD=attack("PGD"), PGDL2=attack("PGDL2"))
    monkeypatch.setattr(bench, "optional_module", {"torchattacks": fake}.get)
    run = bench.attacks(victim)[bench.THEIRS]
    first = run(Ball(norm, 0.6, bench.BOX), 0)
    assert torch.equal(first, run(Ball(norm, 0.6, bench.BOX), 0))  # seeded
    assert not torch.equal(first, run(Ball(norm, 0.6, bench.BOX), 1))
    settings = {"eps": 0.6, "alpha": pytest.approx(0.1), "steps": 15, "random_start": True}
    assert calls == [(name, victim.model, settings)] * 3


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
        verdict = bench.verdict(compared)
        assert verdict.startswith(
            "PGM finds at least as many errors as torchattacks, within two standard errors (all radii: "
        )
        assert verdict.endswith("behind by more than that: none")
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
    verdict = bench.verdict(compared)
    assert verdict.startswith("PGM finds at least as many errors")
    assert verdict.endswith("behind by more than that: l2 0.25: -1.00 +- 0.10 %")


def test_nothing_to_compare_without_torchattacks_or_with_one_seed() -> None:
    assert bench.compare([row for row in measured([0.1, 0.2], [0.1, 0.2]) if row.attack == bench.OURS]) == []
    assert bench.compare(measured([0.1], [0.2])) == []


@pytest.mark.slow
def test_the_whole_bench_without_torchattacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, watched = bench.rows, Watched(monkeypatch)
    monkeypatch.setattr(bench, "optional_module", lambda name: None)
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(
        bench, "rows", lambda seeds, **options: small(seeds, epochs=1, test_images=30, **options)
    )
    monkeypatch.setattr(bench, "ratio", lambda work, unit, seconds: (work(), 2.0)[1])
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, ["bench", "attacks", "--quick", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert "torchattacks cannot be imported: pip install --no-deps torchattacks" in result.output
    assert "wrote" in result.output
    watched.check()
    assert (tmp_path / "attacks.md").read_text(encoding="utf-8").count("| PGM, last iterate |") == 2
    record = json.loads((tmp_path / "attacks.json").read_text())
    assert record["compared"] == []
    assert len(record["rows"]) == 2 * (1 + 2 * 2 * 7)  # seeds, clean, norms, radii, attacks
    assert len(record["times"]) == 2 * 7
    assert all(0 <= row["error"] <= 1 for row in record["rows"])
