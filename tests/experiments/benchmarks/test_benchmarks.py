"""Each benchmark runs with its smallest settings and gives known results."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phiball.backends import backend, rng
from phiball.experiments.benchmarks import inner_problems, inner_threads, inner_versions
from phiball.experiments.benchmarks.harness import BenchmarkReport, Row, Timing, thread_limit
from tests.support.parallel.clusters import is_alive, wait_until
from tests.support.paths import ROOT

for package in ("torch", "sklearn", "scipy", "matplotlib"):
    pytest.importorskip(package, reason=f"{package}: not installed")

from scipy.optimize import minimize  # noqa: E402
from sklearn.datasets import dump_svmlight_file  # noqa: E402

from phiball.experiments.benchmarks import (  # noqa: E402
    attack_errors,
    certificates,
    estimator_noise,
    inner_speed,
    linear,
    linear_evidence,
    linear_peers,
    linear_sinkhorn,
    sampling,
    scaling,
    training_cost,
    training_quality,
)
from phiball.experiments.training.small_classifiers import small_classifier  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def table(report: BenchmarkReport, number: int = 0, *columns: str) -> list[Row]:
    """The rows of a table, which must have these columns."""
    rows = list(report.tables[number].rows)
    assert all({*columns} <= row.keys() == rows[0].keys() for row in rows)
    return rows


def test_only_inaccurate_inner_solvers_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_solver = inner_problems._sort_sparsemax
    monkeypatch.setattr(inner_problems, "_sort_sparsemax", lambda f: exact_solver(f) + 1e-6)
    with backend("numpy"):
        report = inner_speed.solver_report(((2, 16),), clock=time.process_time, quick=True)
    rows = table(report, 0, "problem", "solver", "shape", "error", "accurate", "x np.max", "rounds")
    assert {row["problem"] for row in rows} == set(inner_problems.DIVERGENCES)
    assert all(row["x np.max"] > 0 for row in rows)
    words = {(row["problem"], row["solver"]): row["accurate"] for row in rows}
    assert words.pop(("quadratic", "NumPy sort")) == "NO"
    assert set(words.values()) == {"yes"}
    assert "INACCURATE: quadratic: NumPy sort" in report.findings
    bars = table(report, 1, "time of", "relative to", "verdict", "at most")
    assert {"hinge, uniform", "entropic, p per row"} <= {row["time of"] for row in bars}


def test_verdict_compares_the_ratio_of_times_with_its_bar() -> None:
    times = {"phiball, uniform": 10.0, "phiball, one p": 18.0, "phiball, p per row": 19.0, "entmax": 9.0}
    timed = {("quadratic", name): Timing(spent, (spent, spent)) for name, spent in times.items()}
    words = {row["time of"]: row["verdict"] for row in inner_speed.bar_rows(timed, (1, 2))}
    assert words["quadratic, one p"] == "within"
    assert words["quadratic, p per row"] == words["quadratic, uniform"] == "ABOVE"


def test_comparison_of_a_version_with_itself_gives_a_ratio_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_versions, "PROBLEMS", ("QUADRATIC",))
    monkeypatch.setattr(inner_versions, "SHAPES", ((256, 64),))
    monkeypatch.setattr(inner_versions, "BACKEND", "numpy")  # no compilation
    [row] = table(
        inner_speed.bench_inner(clock=time.process_time, quick=True, against=ROOT), 0, "verdict", "x other"
    )
    assert row["this, x np.max"] > 1
    assert row["other, x np.max"] > 1
    assert 0.3 < row["x other"] < 3


def test_version_to_compare_with_must_be_a_working_clone(tmp_path: Path) -> None:
    for words in ("expected a clone of phiball", "failed to solve an inner problem"):
        with pytest.raises(ValueError, match=words):
            inner_speed.bench_inner(clock=time.process_time, quick=True, against=tmp_path)
        (tmp_path / "__init__.py").write_text("")


def test_both_routes_of_jax_are_timed() -> None:
    (table,) = inner_speed.bench_inner(clock=time.process_time, quick=True, jax=True).tables
    assert [row["route"] for row in table.rows] == 2 * ["callback to the kernel", "reference compiled by XLA"]
    assert all(row["x kernel"] > 0 for row in table.rows)


def test_threads_are_timed_on_an_idle_and_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_threads, "SHAPES", ((4, 8),))
    monkeypatch.setenv("PHIBALL_THREADS", "3")
    with backend("numpy"):
        report = inner_threads.busy_report(quick=True)
    rows = table(report, 0, "problem", "shape", "verdict", "default", "two threads")
    assert [row["machine"] for row in rows] == ["as it is", "busy"]
    assert all(row["default"] > 0 for row in rows)
    assert os.environ["PHIBALL_THREADS"] == "3"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_busy_processes_end_with_their_parent() -> None:
    code = (
        "import time; from phiball.experiments.benchmarks.inner_threads import busy_cores\n"
        "with busy_cores(2) as pids: print(*pids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        parent.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)), "a process is still running")


def test_sampled_points_are_timed_and_lie_in_the_ball() -> None:
    rows = sampling.cost_rows(seconds=0.0, clock=time.process_time, dimensions=(10,), coordinates=1 << 12)
    assert {row["points"] for row in rows} == set(sampling.BARS)
    assert all(row["inside"] == "yes" and row["x numbers"] > 0 for row in rows)


def test_antithetic_points_reduce_the_noise_of_smooth_functions_only() -> None:
    ratios = sampling.noise_ratios("l2", 2, 32, 512)
    assert ratios["loss", "plain"] == pytest.approx(1.0, abs=0.2)
    assert ratios["loss", "antithetic"] < 0.8
    assert ratios["square", "antithetic"] == pytest.approx(2**0.5, abs=0.3)
    assert ratios["loss", "Sobol"] < 0.5


def test_memory_of_sampling_grows_linearly() -> None:
    paths = [p for p in scaling.paths() if p.name.startswith("Ball")]
    assert [p.quantity for p in paths] == ["time", "memory"]
    rows = table(scaling.bench_scaling(clock=time.process_time, quick=True, only=paths), 0, "exponent", "±")
    assert rows[1]["exponent"] == pytest.approx(1.0, abs=0.1)
    assert rows[0]["exponent"] > 0.2


def test_evaluations_of_a_training_step_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_cost, "MEMORY", False)
    monkeypatch.setattr(training_cost, "BATCH", 8)
    report = training_cost.cost_report(width=2, quick=True, seed=0, clock=time.process_time, seconds=0.0)
    rows = table(report, 0, "method", "verdict", "x ERM", "evaluations", "peak")
    paper = {row["method"]: row["evaluations"] for row in rows}
    expected = {"ERM": 1, "FGM": 2, "IFGM, 15 steps": 16, "SG(2)": 4, "tilted l2, SG(0)": 2}
    assert {name: paper[name] for name in expected} == expected
    assert 2 < paper["RTMLMC(7)"] < 8
    assert all(row["x ERM"] > 0 for row in rows)


def test_bias_of_estimators_decreases_with_the_number_of_points() -> None:
    problem = training_quality.linear_problem()
    rows = [training_quality.quality_row(problem, "SG", k, 100, rng(0)) for k in (0, 4)]
    # Estimates are too low on average, less so with more points.
    assert rows[0]["bias"] < rows[1]["bias"] - 4 * rows[1]["±"] < 0
    assert [row["cost"] for row in rows] == [1, 16]
    multilevel = training_quality.quality_row(problem, "RT-MLMC random", 4, 200, rng(0))
    assert abs(multilevel["bias"] - rows[1]["bias"]) < 5 * multilevel["±"]
    row = {"cost": 2.0, "gradient noise": 3.0}
    assert training_quality.averaging_cost(row, 1.0, 0.6, 4.0) == pytest.approx(2 * 25 / 0.64)
    assert training_quality.averaging_cost(row, 1.0, 1.0, 0.0) == inf
    levels, choice = training_quality.quality_tables(work=1, seed=0, levels=(0, 2))
    assert (len(levels.rows), len(choice.rows)) == (6, 3)


def test_tilted_points_are_less_noisy_than_uniform_points() -> None:
    levels = {"tilted": 6, "uniform": 6}
    scale = estimator_noise.Scale(radii=1, ratios=(2.0,), levels=(0, 2), replications=8, long=levels, runs=8)
    rows = estimator_noise.estimator_rows(small_classifier(epochs=1), scale)
    assert {row["points"] for row in rows} == set(estimator_noise.PROPOSALS)
    found = {(row["points"], row["n"]): row for row in rows if row["where"].startswith("l2")}
    assert found["uniform", 4]["evaluations"] == 4
    assert found["tilted", 1]["evaluations"] == 2
    assert found["tilted", 1]["sd"] < found["uniform", 1]["sd"]


def test_reference_value_is_valid_only_if_long_runs_agree_and_no_estimate_is_higher() -> None:
    low, tilted, high = (estimator_noise.Mean(4, value, 0.1, np.ones(3), 0.01, 8.0) for value in (1, 2, 3))
    assert estimator_noise.reference_of(tilted, tilted, [low])[1]
    assert not estimator_noise.reference_of(tilted, low, [])[1]
    assert not estimator_noise.reference_of(tilted, tilted, [high])[1]


def test_attacks_find_more_errors_than_noise_and_stay_inside() -> None:
    victim = partial(attack_errors.train_victim, 0, epochs=3, test_images=100)
    with backend("torch"):
        rows = attack_errors.error_rows(
            [victim], attack_errors.DIGITS_BALLS[:1], attack_errors.digits_attacks
        )
    means = attack_errors.attack_rows(rows)
    errors = {row["attack"]: row["l2 0.25"] for row in means}
    assert rows[0]["clean"] <= errors["white noise"] + 2 < errors["PGM, last iterate"]
    assert errors["PGM, last iterate"] <= errors["PGM, best of 4 runs"] + 1
    assert {row["inside"] for row in means} == {"yes"}


def test_attacks_of_libraries_are_compared_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that leaves the images unchanged, one that leaves the ball, and one that fails for tables."""

    class AutoAttack:
        def __init__(self, model: Any, **options: Any) -> None:
            self.apgd = self.apgd_targeted = self.square = SimpleNamespace()

        def run_standard_evaluation(self, x: Any, y: Any, batch_size: int) -> Any:
            if x.ndim == 2:
                raise IndexError("index -3 is out of bounds")
            return x, y

    far = lambda module, victim, ball, seed: victim.x + 2 * ball.radius  # noqa: E731
    monkeypatch.setattr(attack_errors, "TOOLS", {"far": ("numpy", far)})
    monkeypatch.setattr(attack_errors, "SAME_RUNS", {"apgd": "apgd-ce", "apgd, restarts": "square"})
    monkeypatch.setattr(attack_errors, "TARGETS", 2)
    monkeypatch.setattr(attack_errors, "LONG_STEPS", 5)
    monkeypatch.setitem(sys.modules, "pyautoattack", SimpleNamespace(AutoAttack=AutoAttack))
    bench = partial(attack_errors.bench_attacks, clock=time.process_time, quick=True)
    report = bench(part="autoattack")
    assert [row["inside"] for row in report.tables[0].rows] == 4 * ["yes"]
    ours, _, theirs, _ = (row["linf 0.15"] for row in report.tables[0].rows)
    assert ours > theirs == report.tables[0].rows[0]["clean"]
    assert report.tables[1].rows[2]["l2 0.5"] == "IndexError"
    report = bench(part="tools")
    assert [row["inside"] for row in report.tables[0].rows] == ["", "NO"]
    rows = [
        {"network": "n", "ball": "b", "attack": name, "error": e} for name, e in (("a", 10.0), ("b", 10.6))
    ]
    assert attack_errors.compare_errors(rows, [("a", "b")]) == ["BELOW: a, minus b: -0.6 to -0.6 points"]
    assert attack_errors.compare_errors(rows, [("b", "a")]) == ["b, minus a: +0.6 to +0.6 points"]
    with pytest.raises(ValueError, match="expected one of digits, autoattack, tools"):
        bench(part="all")


def test_crossings_of_certified_margins_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "KINDS", ("linear", "tied"))
    with backend("torch"):
        rows = certificates.soundness_rows(1, points=20)
        assert [row["crossings"] for row in rows] == [0, 0]
        assert all(row["crossings in doubles"] > 0 and row["cases"] == 180 for row in rows)
        exact = certificates.certified_margins
        monkeypatch.setattr(certificates, "certified_margins", lambda *a, **kw: exact(*a, **kw) + 1e-4)
        assert certificates.soundness_rows(1, points=20)[0]["crossings"] > 0


def test_certified_errors_are_above_attacked_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHIBALL_DATA", raising=False)
    monkeypatch.setattr(certificates, "NETWORKS", ("CNN",))
    monkeypatch.setattr(certificates, "BALLS", {"linf": (0.05,)})
    size = certificates.Size(train=1000, test=50, crown=50, epochs=3, ibp_epochs=10, seeds=1, seconds=0.0)
    data = certificates.images()
    with backend("torch"):
        rows = certificates.tightness_rows(data, size) + certificates.training_rows(data, size)
        costs = certificates.cost_rows(data, certificates.QUICK, time.process_time)
    for row in rows:
        assert row["clean"] <= row["attacked"] <= row["crown-ibp"] <= row["interval"]
    assert all(row["attacked"] <= row["crown"] <= row["interval"] for row in rows if "crown" in row)
    assert rows[-1]["interval"] < min(row["interval"] for row in rows if "training" in row)
    assert [row["method"] for row in costs] == list(certificates.METHODS)


def test_linear_benchmark_flags_inaccurate_solutions() -> None:
    with thread_limit(1):
        report = linear.bench_linear(clock=time.process_time, quick=True)
    rows = table(report, 0, "model", "x scikit-learn", "ball, entropic", "Wasserstein", "KL", "gradient")
    assert not any("INACCURATE" in line for line in report.findings)
    rows[1]["ball, entropic"] += 1.0  # an inaccurate solution
    assert any("INACCURATE" in line for line in linear.linear_findings(rows))
    # For a linear loss, the Wasserstein risk is the mean plus |theta| times the radius.
    X, theta = np.asarray([[-50.0, 1.0], [-70.0, 2.0]]), np.asarray([3.0, 4.0])
    assert linear_peers.wasserstein_risk(theta, 0.0, X, np.ones(2), 0.5) == pytest.approx(
        np.mean(-X @ theta) + 2.5
    )
    X, y = linear_peers.cancer()
    problem = linear.our_problems(len(y))[linear.NO_RIDGE]
    theta = np.linspace(-0.3, 0.2, 30)
    library = linear.linear_model_risk(problem, theta, 0.0, X, y).value
    assert linear.reweighted_risk(theta, 0.0, X, y) == pytest.approx(library, rel=1e-6)


def test_sinkhorn_benchmark_fits_the_published_objective(tmp_path: Path) -> None:
    folder = tmp_path / "sdro"
    folder.mkdir()
    source = np.random.default_rng(0)
    for name in linear_sinkhorn.STATED:
        X = source.normal(size=(40, 2))
        y = 20 * X[:, 0] + source.normal(size=40)
        dump_svmlight_file(X, y, str(folder / f"{name}.txt"), zero_based=False)
        for method in linear_sinkhorn.METHODS:
            np.save(folder / f"obj_{method}_{name}.npy", [500.0, 600.0, 500.0])
            np.save(folder / f"cost_{method}_{name}.npy", [0, 320, 640])
    features = np.hstack([np.ones((40, 1)), X])

    def objective(theta: Any) -> float:
        """The objective by quadrature, for lambda = 1000 and epsilon = 0.1."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        errors = (features @ theta - y)[:, None] + np.sqrt(0.1 * theta @ theta) * nodes
        scaled = np.exp(errors**2 / 100) @ weights / weights.sum()
        return float(100 * np.mean(np.log(scaled)))

    assert np.allclose(linear_sinkhorn.load_set(folder / "mpg.txt")[0], features)
    value, model = linear_sinkhorn.fit_set(features, y)
    assert value == pytest.approx(objective(model.coef), rel=1e-12)
    assert linear_sinkhorn.objective(model.coef, features, y) == pytest.approx(value, rel=1e-12)
    best = minimize(objective, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-11})
    assert value == pytest.approx(best.fun, rel=1e-9)
    assert 2 * model.gap < 1e-9 * value
    for method in linear_sinkhorn.OURS:
        values, samples = linear_sinkhorn.our_curve(features, y, method, 2, 1500)
        assert value < values[-1] < value + 0.01 * values[0]
        expected = 1500 * 2 * linear_sinkhorn.OURS[method][0].evaluations
        assert samples[-1] == pytest.approx(expected, rel=0.1)
    report = linear.bench_linear(clock=time.process_time, quick=True, part="sinkhorn", data_dir=tmp_path)
    rows = report.tables[0].rows
    assert [row["samples"] for row in rows if row["method"] == "RRMLMC"] == [640, 640, 640]
    assert not any("ABOVE" in line for line in report.findings)
    assert report.figures
    report.figures["linear_sinkhorn.png"](tmp_path / "errors.png")
    assert (tmp_path / "errors.png").exists()
    with pytest.raises(FileNotFoundError, match="set --data-dir or PHIBALL_DATA"):
        linear.bench_linear(clock=lambda: 0.0, part="sinkhorn", data_dir=tmp_path / "none")


def test_peers_are_evaluated_under_exact_objectives() -> None:
    source = np.random.default_rng(0)
    X, coef = source.normal(size=(30, 3)), np.asarray([1.0, -0.5, 0.25])
    outputs = X @ coef + 0.3
    radius = linear_peers.RADIUS
    price = linear_peers.LAMBDA * linear_peers.EPSILON
    for loss, y in (
        ("squared", outputs + 0.3 * source.normal(size=30)),
        ("logistic", np.sign(source.normal(size=30))),
    ):
        found = linear_peers.risks(loss, coef, 0.3, X, y)
        quadrature = linear_peers.quadrature_risk(loss, coef, 0.3, X, y)
        assert found["Sinkhorn"] == pytest.approx(quadrature, rel=1e-9)
        moved = (X + linear_peers.EPSILON**0.5 * source.normal(size=(100_000, 1, 3))) @ coef + 0.3
        losses = (moved - y) ** 2 if loss == "squared" else np.logaddexp(0, -y * moved)
        assert quadrature == pytest.approx(price * np.mean(np.log(np.exp(losses / price).mean(0))), rel=0.01)
        # Perturbations that attain the worst case on the ball, and a lower bound on that of the W2 ball.
        errors = outputs - y
        unit = coef / np.linalg.norm(coef)
        steps = radius * (np.sign(errors) if loss == "squared" else -y)
        attained = (X + steps[:, None] * unit) @ coef + 0.3
        losses = (attained - y) ** 2 if loss == "squared" else np.logaddexp(0, -y * attained)
        assert found["ball"] == pytest.approx(losses.mean(), rel=1e-12)
        if loss == "squared":
            wide = X + (radius * errors / np.mean(errors**2) ** 0.5)[:, None] * unit
            assert found["W2"] == pytest.approx(np.mean((wide @ coef + 0.3 - y) ** 2), rel=1e-12)
            assert linear_peers.risks(loss, 3 * coef, 0.3, X, y)["Sinkhorn"] == inf
        else:
            assert found["ball"] < found["W2"] < found["W1"]
    with thread_limit(1):
        report = linear.bench_linear(clock=time.process_time, quick=True, part="peers")
    table(report, 0, "model", "reported", "Sinkhorn", "ball", "W2", "W1")
    assert [row["within the gap"] for row in table(report, 1, "x ours", "iterations")] == 4 * ["yes"]
    assert "diabetes, lowest Sinkhorn: ours, Sinkhorn" in report.findings


@pytest.mark.parametrize("norm", [2, inf])
def test_adversarial_rivals_reach_our_optimum(norm: float) -> None:
    source = np.random.default_rng(0)
    X = source.normal(size=(40, 4))
    for loss, y in (
        ("squared", X[:, 0] + source.normal(size=40)),
        ("logistic", np.sign(source.normal(size=40))),
    ):
        row = linear_peers.adversarial_row("", loss, X, y, norm, seconds=0.0, clock=time.process_time)
        assert row["within the gap"] == "yes"
        assert row["iterations"] < linear_peers.LONG
    for _ in range(20):
        point = 2 * source.normal(size=5)
        nearest = linear_peers.onto_cone(point, norm)
        assert linear_peers.dual_norm(nearest[:-1], norm) <= nearest[-1] + 1e-12
        assert abs(nearest @ (point - nearest)) < 1e-12
        inside = source.normal(size=(200, 4))
        heights = [linear_peers.dual_norm(row, norm) for row in inside]
        assert np.all(np.column_stack([inside, heights]) @ (point - nearest) < 1e-12)


def test_linear_evidence_compares_four_models(tmp_path: Path) -> None:
    rows = [row for split in (0, 1) for row in linear_evidence.split_rows("diabetes", 2, split)]
    assert all(row["worst"] == sorted(row["worst"]) for row in rows)  # errors increase with the perturbation
    assert all(row["worst"][2] > row["noise"][2] for row in rows)
    assert len(linear_evidence.evidence_rows(rows)) == 4
    linear_evidence.draw_evidence(rows, tmp_path / "evidence.png")
    assert (tmp_path / "evidence.png").exists()
