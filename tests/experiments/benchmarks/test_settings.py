"""The benchmark of settings: what it trains with, and that the test set takes no part in the choice."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.backends import rng
from phiball.experiments.cli.app import app

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

from phiball.experiments.benchmarks import settings as bench  # noqa: E402
from phiball.experiments.benchmarks import settings_grid as grid  # noqa: E402
from phiball.experiments.training.methods import Method  # noqa: E402
from tests.support.progress import Watched  # noqa: E402

ALL = (0, 1, 2, 3)
SHORT = bench.Scale(epochs=2, steps=3)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> bench.Data:
    return bench.load()


def small(data: bench.Data) -> bench.Data:
    """A few images of each part."""
    return bench.Data(*((x[:60], y[:60]) for x, y in (data.train, data.held_out, data.test)))


def test_the_parts_are_disjoint_and_all_of_the_digits(data: bench.Data) -> None:
    from sklearn.datasets import load_digits

    parts = [data.train, data.held_out, data.test]
    assert [len(x) for x, _ in parts] == [897, 300, 600]
    images = torch.cat([x for x, _ in parts])
    assert torch.equal(images, torch.tensor(load_digits().data / 16, dtype=torch.float32))
    assert torch.equal(torch.cat([y for _, y in parts]), torch.tensor(load_digits().target))


def every_method() -> list[Method]:
    ball = bench.Ball(2, 4.0)
    return [
        *grid.baselines(ALL, 4),
        *grid.tilted(ALL),
        *grid.balls_and_etas(ALL, 4),
        *grid.estimators(ball, (0, 1, 2, 3, 4)),
        *grid.divergences(ball, 4),
    ]


def test_no_two_settings_have_one_name() -> None:
    names = [(m.family, m.setting) for m in every_method()]
    assert len(set(names)) == len(names) == 1 + 2 * 4 * 5 + 2 * 4 * 6 + 2 * 4 * 3 + (1 + 4 * 3 + 2 * 3) + 6


class Counting:
    """A loss that is a fixed function of x, and counts the points that it is given."""

    def __init__(self) -> None:
        self.count = 0
        self.far: dict[float, float] = {2.0: 0.0, inf: 0.0}

    def __call__(self, x: Any, i: Any) -> Any:
        self.count += len(x)
        moved = (x - 0.5).detach()
        for norm in self.far:
            self.far[norm] = max(self.far[norm], float(torch.linalg.vector_norm(moved, norm, dim=1).max()))
        return torch.sum(x * torch.linspace(-1, 1, 64), -1)


def test_cost_and_ball_are_what_the_table_says() -> None:
    for method in every_method():
        loss, x = Counting(), torch.full((256, 64), 0.5)
        method.objective(loss, x, rng(0))
        if "RT-MLMC" in method.family:
            # Costs 2^l with P(l) = 2^-l/(2 - 2^-7): variance 2^8 - 1 over 2 - 2^-7, less 4.0157^2, about 112.
            assert method.evaluations == pytest.approx(8 / (2 - 2**-7)), method
            assert abs(loss.count / 256 - method.evaluations) < 4.75 * (112 / 256) ** 0.5, method
        else:
            assert loss.count == 256 * method.evaluations, method
        if method.family != "ERM":
            radius = float(method.setting.split()[1].rstrip(","))
            norm = inf if "linf" in method.family else 2.0
            # Of 256 points the farthest of a ball in 64 dimensions lies within 2 % of its border.
            assert 0.98 * radius < loss.far[norm] < radius * (1 + 1e-5), method


def test_eta_is_a_multiple_of_the_radius_and_moves_the_value() -> None:
    """Between the mean of the losses and their largest, and the higher the smaller eta is."""
    x = torch.full((64, 64), 0.5)
    values = {
        m.setting: float(m.objective(Counting(), x, rng(0)))
        for m in grid.balls_and_etas((2,), 4)
        if m.family == "entropic SG(4) l2"
    }
    assert list(values) == ["radius 4, eta 0.08", "radius 4, eta 0.8", "radius 4, eta 8"]
    plain = next(m for m in grid.baselines((2,), 4) if m.family == "noise x16 l2")
    mean = float(plain.objective(Counting(), x, rng(0)))
    assert mean < values["radius 4, eta 8"] < values["radius 4, eta 0.8"] < values["radius 4, eta 0.08"]


@pytest.mark.parametrize("norm", [2.0, inf], ids=["l2", "linf"])
def test_tilted_points_go_along_the_gradient_as_far_as_they_should(norm: float) -> None:
    """For a linear loss: in l2 a ratio of Bessel functions, in linf coth a - 1/a for each coordinate."""
    special = pytest.importorskip("scipy.special", reason="scipy: not installed")
    g, x = torch.linspace(-1, 1, 64), torch.full((1024, 64), 0.5)
    size = float(g.norm() if norm == 2 else g.abs().sum())  # the dual norm
    shares = []
    for method in grid.tilted((1,)):
        if method.family.split()[-1] != grid.NORMS[norm]:
            continue
        gone: list[float] = []

        def loss(x: Any, i: Any, gone: list[float] = gone) -> Any:
            gone.append(float(((x.detach() - 0.5) @ g).mean()))
            return x @ g

        method.objective(loss, x, rng(0))
        assert len(gone) == 2
        assert abs(gone[0]) < 1e-5  # the gradient is taken at the data points themselves
        radius, (how, strength) = grid.TILTED_RADII[norm][1], method.setting.split(", ")[1].split()
        eta = float(strength) if how == "eta" else radius * size / (64 * float(strength))
        if norm == 2:
            t = radius * size / eta
            share, spread = float(special.ive(33, t) / special.ive(32, t)), 66**-0.5
        else:
            a = radius * g.abs() / eta
            share = float((g.abs() * (1 / torch.tanh(a) - 1 / a)).sum()) / size
            spread = float(g.norm()) / (3**0.5 * size)
        # No tilt spreads the points more than the uniform law does; 1e-5 is for single precision.
        assert abs(gone[1] / (radius * size) - share) < 4.75 * spread / 32 + 1e-5, method
        shares.append(share)
    by_eta, by_kappa = shares[:3], shares[3:]
    assert by_eta == sorted(by_eta, reverse=True)
    expected = (0.1, 0.27, 0.61) if norm == 2 else (0.04, 0.13, 0.39)
    assert by_kappa == pytest.approx(expected, abs=0.005)  # as rounded where the radii are explained


def test_measuring_repeats_itself_and_moves_no_other_generator(data: bench.Data) -> None:
    method = next(m for m in grid.balls_and_etas((1,), 2))
    torch.manual_seed(5)
    first = bench.measure(method, small(data), 0, SHORT)
    after = torch.rand(1)
    assert bench.measure(method, small(data), 0, SHORT) == first
    assert bench.measure(method, small(data), 1, SHORT) != first
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert [row.part for row in first] == ["held out", "test"]


def test_training_learns_and_attacks_find_errors(data: bench.Data) -> None:
    """Five epochs of plain training: few errors on clean images, more under noise, most under attack."""
    plain = next(grid.baselines(ALL, 4))
    for row in bench.measure(plain, data, 0, bench.Scale(epochs=5)):
        assert row.clean < row.noise < row.pgm_l2 < row.pgm_linf
        assert row.clean < 20
        assert row.pgm_l2 > 30


def row(family: str, setting: str, seed: int, part: str, error: float) -> bench.Row:
    return bench.Row(family, setting, 1.0, seed, part, error, 50.0, error + 1, error + 2)


def test_the_choice_is_made_on_the_held_out_images() -> None:
    """Setting b has the least error there, and is chosen although a is better on the test images."""
    measured = [
        row("F", setting, seed, part, error + seed)
        for seed in (0, 1, 2)
        for setting, part, error in [
            ("a", "held out", 20.0),
            ("a", "test", 1.0),
            ("b", "held out", 10.0),
            ("b", "test", 30.0),
        ]
    ] + [row("G", "only", seed, part, 40.0 + seed) for seed in (0, 1, 2) for part in ("held out", "test")]
    first, second = bench.chosen(measured)
    assert (first.family, first.setting, first.part) == ("F", "b", "test")
    assert (second.family, second.setting, second.part) == ("G", "only", "test")
    assert first.mean == {"clean": 31.0, "noise": 50.0, "pgm_l2": 32.0, "pgm_linf": 33.0}
    assert first.stderr["clean"] == pytest.approx(stdev([30, 31, 32]) / 3**0.5)
    assert first.stderr["noise"] == 0
    assert first.score == 32  # white noise takes no part
    assert bench.table("Chosen", [first]).rows == [
        ("F", "b", "1", "31.0 ± 0.6", "50.0 ± 0.0", "32.0 ± 0.6", "33.0 ± 0.6")
    ]


def test_estimators_are_compared_at_the_best_ball(data: bench.Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out errors that favour one radius, with test errors that favour another."""
    trained = []

    def measure(method: Method, data: bench.Data, seed: int, scale: bench.Scale) -> list[bench.Row]:
        trained.append(method)
        good = "radius 0.8," in method.setting and "linf" in method.family
        return [
            row(method.family, method.setting, seed, "held out", 1.0 if good else 30.0),
            row(method.family, method.setting, seed, "test", 30.0 if good else 1.0),
        ]

    monkeypatch.setattr(bench, "measure", measure)
    rows = list(bench.study(data, bench.Scale(seeds=1)))
    assert len(rows) == 2 * len(trained) == 2 * len(every_method())
    later = [m for m in trained if m.family.startswith(("estimator", "divergence"))]
    assert len(later) == 25
    assert all(m.setting.startswith("radius 0.8") for m in later)


@pytest.mark.slow
def test_the_whole_quick_bench(tmp_path: Path, data: bench.Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "load", lambda: small(data))
    monkeypatch.setattr(
        bench, "pgm", lambda gradient, x, ball, **rest: x + ball.steepest(gradient(x, torch.arange(len(x))))
    )
    watched = Watched(monkeypatch)
    result = CliRunner().invoke(app, ["bench", "settings", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    watched.check()
    assert "wrote" in result.output
    record = json.loads((tmp_path / "settings.json").read_text())
    settings = {(r["family"], r["setting"]) for r in record}
    assert len(settings) == 1 + 2 * 5 + 2 * 6 + 2 * 3 + (1 + 3 + 2 * 3) + 6
    assert len(record) == len(settings) * 2 * bench.QUICK.seeds
    assert all(0 <= r[name] <= 100 for r in record for name in bench.ERRORS)
    title, chosen, complete = (tmp_path / "settings.md").read_text(encoding="utf-8").split("\n## ")
    assert title.strip() == "# Which settings"
    families = {family for family, _ in settings}
    assert chosen.startswith(
        "Chosen by the mean of clean and PGM errors above: errors in % of 60 test images"
    )
    assert complete.startswith("All settings: errors in % of 60 held-out images, 2 seeds")
    assert chosen.count("\n| ") == 2 + len(families)
    assert complete.count("\n| ") == 2 + len(settings)


def test_the_full_scale_is_larger_than_the_quick_one() -> None:
    assert (
        replace(bench.QUICK, seeds=3, epochs=20, steps=15, radii=ALL, levels=(0, 1, 2, 3, 4)) == bench.Scale()
    )
