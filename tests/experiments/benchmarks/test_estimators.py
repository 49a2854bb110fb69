"""The benchmark of estimators: a linear loss of known risk, what counts as a reference, and the output."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from math import hypot, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from phiball.backends import rng
from phiball.experiments.cli.app import app

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

from phiball.experiments.benchmarks import estimators as bench  # noqa: E402
from phiball.experiments.benchmarks import reference_values  # noqa: E402
from phiball.experiments.datasets.images import VARIABLE  # noqa: E402
from phiball.experiments.training.pretrained import Classifier, pretrained  # noqa: E402
from phiball.refimpl import Ball, Tilted, Uniform  # noqa: E402
from tests.support.idx_files import packed  # noqa: E402
from tests.support.progress import Watched  # noqa: E402

Z = 4.75  # one in a million
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


# --- A linear loss --------------------------------------------------------------------------------

THETA = np.asarray([1.0, -2.0, 0.5, 1.5])
POINTS = np.linspace(-1, 1, 32).reshape(8, 4)
RADIUS, ETA = 0.5, 0.4


class Linear(Classifier):
    """theta.x, in double precision: its entropic risk in a cube is known."""

    def loss(self, x: Any, i: Any) -> Any:
        return self.model(x)[:, 0]


@pytest.fixture
def linear() -> Linear:
    model = torch.nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        model.weight[:] = torch.tensor(THETA)
    return Linear("linear", model, torch.tensor(POINTS), torch.zeros(8))


A = RADIUS * np.abs(THETA) / ETA
RISK = float(np.mean(POINTS @ THETA) + ETA * np.sum(np.log(np.sinh(A) / A)))
SLOPE = np.mean(POINTS, axis=0) + RADIUS * np.sign(THETA) * (1 / np.tanh(A) - 1 / A)
SPREAD = RADIUS * float(np.linalg.norm(THETA)) / sqrt(3 * 8)  # of the mean loss at one uniform point each


@pytest.mark.slow
def test_one_uniform_point_is_the_mean_of_the_losses(linear: Linear) -> None:
    estimate = reference_values.estimate(linear, Ball(inf, RADIUS), ETA, Uniform(), 0, 400, rng(0))
    assert (estimate.count, estimate.evaluations) == (400, 1)
    assert abs(estimate.value - np.mean(POINTS @ THETA)) < Z * SPREAD / 20
    # A standard deviation from 400 draws has a relative error of at most 1/sqrt(2 * 399).
    assert abs(estimate.value_sd / SPREAD - 1) < Z / sqrt(2 * 399)
    assert estimate.value_error == pytest.approx(estimate.value_sd / 20)
    # The gradient is the mean of the points, each coordinate with the spread of a cube's.
    spread = RADIUS / sqrt(3 * 8)
    assert np.all(np.abs(estimate.gradient - np.mean(POINTS, axis=0)) < Z * spread / 20)
    assert abs(estimate.gradient_sd / (2 * spread) - 1) < Z / sqrt(2 * 399)
    assert estimate.gradient_error == pytest.approx(estimate.gradient_sd / 20)
    assert linear.model.weight.grad is None


@pytest.mark.parametrize("retilt", [0, 1])
@pytest.mark.parametrize("level", [0, 3])
def test_tilted_points_give_the_risk_of_a_linear_loss_at_once(
    linear: Linear, level: int, retilt: int
) -> None:
    estimate = reference_values.estimate(
        linear, Ball(inf, RADIUS), ETA, Tilted(retilt=retilt), level, 100, rng(0)
    )
    assert estimate.evaluations == 2**level + 1 + retilt
    assert estimate.value == pytest.approx(RISK, abs=1e-13)  # sums of a few numbers of size 1
    assert estimate.value_sd < 1e-13
    # No coordinate of a tilted point spreads more than a uniform one.
    error = RADIUS / sqrt(3 * 8 * 100 * 2**level)
    assert np.all(np.abs(estimate.gradient - SLOPE) < Z * error)
    assert 0 < estimate.gradient_sd < 2 * error * 10 * (1 + Z / sqrt(2 * 99))


SHORT = bench.Scale(
    radii=1, ratios=(0.8,), levels=(0, 2), replications=200, long={"tilted": 6, "uniform": 12}, runs=4
)


@pytest.mark.slow
def test_the_table_of_a_linear_loss(linear: Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RADII", {2.0: (), inf: (RADIUS, 9.0)})
    rows = list(bench.rows(linear, SHORT))
    assert [(row.proposal, row.n, row.evaluations) for row in rows] == [
        ("uniform", 1, 1), ("uniform", 4, 4), ("antithetic", 4, 4),
        ("tilted", 1, 2), ("tilted", 4, 5), ("retilted", 1, 3), ("retilted", 4, 6),
    ]  # fmt: skip
    assert {row.where for row in rows} == {"linf 0.5, eta 0.8 radius"}
    length = float(np.linalg.norm(SLOPE))
    for row in rows:
        assert row.known
        assert abs(row.reference - RISK) < Z * row.reference_error
        assert row.reference_error < 0.01
        assert row.bias is not None
        assert row.gradient_bias is not None
        if row.proposal.endswith("tilted"):
            assert abs(row.bias) < Z * row.bias_error
            assert bench._bias(row).startswith("< ")
        assert row.gradient_distance is not None
        assert row.gradient_distance > row.gradient_sd
    first = rows[0]
    assert first.bias is not None
    assert abs(first.bias - (np.mean(POINTS @ THETA) - RISK)) < Z * first.bias_error
    assert first.bias < -0.2
    assert bench._bias(first).startswith("-0.")
    # The gradient of one uniform point lacks what the tilt adds.
    lack = float(np.linalg.norm(SLOPE - np.mean(POINTS, axis=0))) / length
    assert first.gradient_bias is not None
    assert abs(first.gradient_bias - lack) < Z * first.gradient_bias_error
    assert first.gradient_distance == pytest.approx(hypot(lack, first.gradient_sd), rel=0.1)
    (table,) = bench.tables(rows)
    assert table.title.startswith("linf 0.5, eta 0.8 radius: risk 0.")
    assert bench.summary(rows).headings == (
        "ball", "uniform 1", "uniform 4", "antithetic 4", "tilted 1", "tilted 4", "retilted 1", "retilted 4",
    )  # fmt: skip


# --- What counts as a reference -------------------------------------------------------------------


def mean(value: float, *slope: float, error: float = 0.01, count: int = 4) -> reference_values.Mean:
    gradient = np.asarray(slope or (1.0, 0.0))
    return reference_values.Mean(count, value, error * sqrt(count), gradient, error * sqrt(count), 1.0)


BOTH = hypot(0.01, 0.01)


def test_references_agree_within_four_errors() -> None:
    truth = reference_values.judge(mean(1.0), mean(1.0 - 3.9 * BOTH), [mean(0.5), mean(1.0 + 3 * 0.01)])
    assert truth.known
    assert (truth.value, truth.value_error) == (1.0, pytest.approx(BOTH))
    assert truth.gradient_error == pytest.approx(BOTH)
    assert truth.length == 1.0


@pytest.mark.parametrize(
    ("uniform", "other"),
    [
        (mean(1.0 - 4.1 * BOTH), mean(0.5)),
        (mean(1.0, 1.0, 4.1 * BOTH), mean(0.5)),
        (mean(1.0, error=0.1), mean(0.5)),
        (mean(1.0), mean(1.0 + 4.1 * hypot(BOTH, 0.01))),
    ],
    ids=["values differ", "gradients differ", "too noisy", "an estimate above"],
)
def test_what_speaks_against_a_reference(
    uniform: reference_values.Mean, other: reference_values.Mean
) -> None:
    assert not reference_values.judge(mean(1.0), uniform, [mean(0.9), other]).known


def test_a_third_of_the_last_change_is_left_of_the_bias(
    linear: Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = []

    def fake(classifier: Any, ball: Any, eta: Any, proposal: Any, level: int, count: int, source: Any) -> Any:
        levels.append((level, count))
        return mean(1.0, 1.0, 0.0, error=0.03) if level == 10 else mean(0.88, 1.0, 0.3)

    monkeypatch.setattr(reference_values, "estimate", fake)
    estimate = reference_values.long_run(linear, Ball(2, 1.0), 1.0, Uniform(), 10, 4, rng(0))
    assert levels == [(8, 4), (10, 4)]
    assert (estimate.value, list(estimate.gradient)) == (1.0, [1.0, 0.0])
    assert estimate.value_error == pytest.approx(hypot(0.03, 0.04))
    assert estimate.gradient_error == pytest.approx(hypot(0.03, 0.1))


def judged(value: float, *slope: float, known: bool = True, top: float = 1.0) -> bench.Row:
    truth = replace(reference_values.judge(mean(1.0), mean(1.0), []), known=known)
    return bench.row(("l2", 1.0, 0.2), "tilted", 4, mean(value, *slope), truth, mean(top))


ERROR = hypot(BOTH, 0.01)  # of a bias


def test_a_bias_is_reported_only_beyond_three_errors() -> None:
    assert bench._bias(judged(1.0 - 2.9 * ERROR)) == "< 0.052"
    assert bench._bias(judged(1.0 + 2.9 * ERROR)) == "< 0.052"
    assert bench._bias(judged(0.9)) == "-0.1"
    assert bench._gradient_bias(judged(1.0, 1.0, 2.9 * ERROR)) == "< 5.2"
    # What noise adds to the length of the difference is taken off.
    assert bench._gradient_bias(judged(1.0, 1.0, 3.1 * ERROR)) == f"{100 * ERROR * sqrt(3.1**2 - 1):.2g}"


def test_nothing_is_reported_of_a_bias_without_a_reference() -> None:
    row = judged(0.5, known=False)
    assert (row.bias, row.gradient_bias, row.gradient_distance) == (None, None, None)
    # The highest estimate is low on average: 0.5 is too low by as much, less four errors of both.
    assert row.bias_at_most == pytest.approx(-0.5 + 4 * BOTH)
    assert bench._bias(row) == "<= -0.44"
    assert bench._gradient_bias(row) == "?"
    assert bench._bias(judged(1.0 - 3.9 * BOTH, known=False)) == "?"
    (table,) = bench.tables([row])
    assert "no reliable reference" in table.title
    assert table.rows == [("tilted", "4", "1", "<= -0.44", "0.02", "?", "2")]
    assert bench.summary([row]).rows == [("l2 1, eta 0.2 radius", "?")]


# --- The network ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_network_is_trained_and_repeats_itself() -> None:
    from sklearn.datasets import load_digits

    torch.manual_seed(5)
    classifier = pretrained(1)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert (classifier.name, tuple(classifier.x.shape)) == ("digits", (32, 64))
    assert torch.equal(classifier.x, torch.tensor(load_digits().data[1197:1229] / 16, dtype=torch.float32))
    assert torch.equal(classifier.y, torch.tensor(load_digits().target[1197:1229]))
    same, other = pretrained(1), pretrained(2, epochs=1)
    with torch.no_grad():
        assert (
            float(torch.mean((torch.argmax(classifier.model(classifier.x), -1) == classifier.y).double()))
            > 0.8
        )
        assert torch.equal(same.model(classifier.x), classifier.model(classifier.x))
        assert not torch.equal(other.model(classifier.x), classifier.model(classifier.x))
        expected = -torch.log_softmax(classifier.model(classifier.x), -1)[torch.arange(32), classifier.y]
        losses = classifier.loss(classifier.x, torch.arange(32))
    torch.testing.assert_close(losses, expected)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name, count in (("train", 70), ("t10k", 40)):
        pixels = draw.integers(0, 256, (count, 28, 28))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(packed(pixels)))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(packed(np.arange(count) % 10)))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return folder


def test_mnist_is_read_from_the_folder_that_the_variable_names(mnist: Path) -> None:
    classifier = pretrained(epochs=1)
    assert (classifier.name, tuple(classifier.x.shape)) == ("mnist", (32, 784))
    assert classifier.y.tolist() == [k % 10 for k in range(32)]
    draw = np.random.default_rng(0)
    draw.integers(0, 256, (70, 28, 28))
    pixels = draw.integers(0, 256, (40, 28, 28))[:32].reshape(32, 784)
    assert torch.equal(classifier.x, torch.tensor(pixels / 255, dtype=torch.float32))


@pytest.mark.parametrize("fault", ["missing", "short", "other kind", "empty"])
def test_a_wrong_file_of_mnist_is_one_line(mnist: Path, fault: str) -> None:
    path = mnist / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(path.read_bytes())
    path.unlink()
    if fault != "missing":
        wrong = {"short": content[:-1], "other kind": b"\0\0\x0b" + content[3:], "empty": b""}[fault]
        path.write_bytes(gzip.compress(wrong))
    result = CliRunner().invoke(app, ["bench", "estimators", "--quick"])
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    if fault != "missing":
        assert "is not a file of bytes in the IDX format" in result.stderr


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_quick_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bench, "QUICK", replace(bench.QUICK, replications=3, long={"tilted": 3, "uniform": 4}, runs=2)
    )
    watched = Watched(monkeypatch)
    result = CliRunner().invoke(
        app, ["bench", "estimators", "--quick", "--seed", "1", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    watched.check()
    assert "wrote" in result.output
    record = json.loads((tmp_path / "estimators.json").read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert (record["seed"], record["threads"], record["data"], record["images"]) == (1, 1, "digits", 32)
    assert len(record["rows"]) == 2 * 2 * 7  # norms, etas, estimators
    assert {row["known"] for row in record["rows"]} <= {True, False}
    for row in record["rows"]:
        assert (row["bias"] is None) == (row["gradient_bias"] is None) == (not row["known"])
        extra = {"tilted": 1, "retilted": 2}.get(row["proposal"], 0)
        assert row["evaluations"] == row["n"] + extra
        assert row["value_sd"] > 0
        assert row["gradient_sd"] > 0
    # One tilted point at eta = 0.02 radius is above one uniform point, on the network too.
    values = {(r["norm"], r["ratio"], r["proposal"], r["n"]): r["value"] for r in record["rows"]}
    for norm in ("l2", "linf"):
        assert values[norm, 0.02, "tilted", 1] > values[norm, 0.02, "uniform", 1] + 0.1
    page = (tmp_path / "estimators.md").read_text(encoding="utf-8")
    assert page.count("\n## ") == 2 * 2 + 1
    assert page.count(bench.NOTE) == page.count(bench.SUMMARY) == 1


def test_the_full_scale_is_larger_than_the_quick_one() -> None:
    full = bench.Scale()
    assert (full.levels, full.radii, full.ratios) == ((0, 2, 4, 6), 2, (0.02, 0.2, 2.0))
    assert full.replications > bench.QUICK.replications
    assert all(full.long[how] > level for how, level in bench.QUICK.long.items())
