"""`robustness_report`: errors in closed form, kinds of models, resumed runs and the page."""

import csv
import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import product
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from joblib.externals.loky import get_reusable_executor
from typer.testing import CliRunner

from phiball.experiments.cli.app import app
from phiball.experiments.datasets.images import load
from phiball.experiments.robustness import (
    AttackSettings,
    RobustnessReport,
    attack_suite,
    certificates,
    evaluation,
    robustness_report,
)
from phiball.experiments.robustness.attack_suite import ThreatModel
from phiball.experiments.robustness.models import as_model, dump_model, restore_model
from phiball.experiments.robustness.report_formats import report_html
from phiball.experiments.training.small_classifiers import train_layers
from phiball.refimpl import Gaussian
from phiball.refimpl.certify import SmoothedClassifier
from phiball.refimpl.linear import LinearModel
from tests.support.browser import Browser, find_browser

RADII = (0.0, 0.3, 0.9)
DUAL = {"l2": 2, "linf": 1}
SLOPE = np.array([1.0, -0.4, 0.2, 0.0])


def data(n: int = 60, d: int = 4) -> tuple[Any, Any]:
    source = np.random.default_rng(0)
    x = source.normal(size=(n, d))
    return x, (x[:, 0] + 0.3 * source.normal(size=n) > 0).astype(np.int64)


def linear(slope: Any) -> torch.nn.Module:
    """A classifier of two classes, with scores 0 and slope.x + 0.1."""
    layer = torch.nn.Linear(len(slope), 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.stack([torch.zeros(len(slope)), torch.tensor(slope)]))
        layer.bias.copy_(torch.tensor([0.0, 0.1]))
    return layer


def report_on(models: Any, points: Any, **options: Any) -> RobustnessReport:
    """A report with few attack steps; options are those of `robustness_report` and `AttackSettings`."""
    effort = {"etas": (1.0,), "n_noise": 2, "n_samples": 4, "steps": 5, "n_queries": 10}
    effort |= {name: options.pop(name) for name in AttackSettings.__dataclass_fields__ if name in options}
    return robustness_report(
        models, points, settings=AttackSettings(**effort), **{"radii": RADII, "rng": 0, **options}
    )


class MaskedGradients(torch.nn.Module):
    """A network with piecewise constant outputs, whose gradient is zero almost everywhere."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        return torch.round(4 * self.inside(torch.round(8 * x) / 8 + 0 * x)) / 4


def test_errors_of_linear_classifiers_are_exact() -> None:
    x, y = data()
    numbers = dict.fromkeys(("value", "gap", "gradient", "error", "eta"), 0.0)
    fitted = LinearModel(SLOPE, np.asarray(0.1), n_nodes=1, iterations=1, converged=True, **numbers)
    models = {"layer": linear(SLOPE).eval(), "fitted": fitted}
    found = report_on(models, (x, y), chunk=25, norm=list(DUAL)).summary["models"]
    margin = (2 * y - 1) * (x @ SLOPE + 0.1)
    for (norm, q), model in product(DUAL.items(), found.values()):
        for level in model["norms"][norm]:
            largest_change = level["radius"] * np.linalg.norm(SLOPE, q)
            loss = np.mean(np.logaddexp(0.0, largest_change - margin))
            for attack in ("fgm", "pgm", "apgd", "worst"):
                assert level["measures"][attack]["error"] == np.mean(margin < largest_change)
            assert level["certified"] == np.mean(margin < largest_change)
            assert level["measures"]["worst"]["loss"] == pytest.approx(loss, rel=1e-6)


def test_scikit_learn_estimator_has_the_errors_of_the_same_torch_model() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = data()
    names = np.array(["no", "yes"])[y]
    estimator = linear_model.LogisticRegression().fit(x, names)
    layer = linear(estimator.coef_[0])
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, estimator.intercept_[0]]))
    theirs = report_on(estimator, (x, names)).summary["models"]["model"]
    ours = report_on(layer.eval(), (x, y)).summary["models"]["model"]
    for norm in DUAL:
        for a, b in zip(theirs["norms"][norm], ours["norms"][norm], strict=True):
            assert a["measures"]["pgm"]["error"] == b["measures"]["pgm"]["error"]
            assert (a["first_order"] or 0) == pytest.approx(b["first_order"] or 0, rel=1e-9)
            assert list(a["by"]["class"]) == ["no", "yes"]


def test_errors_are_those_of_predict_even_if_other_scores_are_larger() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    linear_model, svm = import_module("sklearn.linear_model"), import_module("sklearn.svm")
    x, y = data()
    three = np.digitize(x[:, 0], [-0.4, 0.4])
    threshold = selection.FixedThresholdClassifier(linear_model.LogisticRegression(), threshold=0.2)
    for model, labels in (
        (threshold, y),
        (svm.SVC(kernel="linear", C=0.01, decision_function_shape="ovo"), three),  # scores of pairs
    ):
        summary = report_on(model.fit(x, labels), (x, labels), norm="l2").summary
        error = summary["models"]["model"]["clean"]["error"]
        assert error == pytest.approx(1 - model.score(x, labels)) != 0
        assert any("labels" in text for text in summary["warnings"])


def test_loss_of_a_linear_regressor_is_its_largest_squared_error() -> None:
    x, _ = data()
    y = x @ SLOPE + 0.2
    layer = torch.nn.Linear(4, 1).double().eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(SLOPE)[None] * 1.5)
        layer.bias.zero_()
    report = report_on(layer, (x, y), norm="l2")
    residual = np.abs(x @ (1.5 * SLOPE) - y)
    for level in report.summary["models"]["model"]["norms"]["l2"]:
        largest = np.mean((residual + level["radius"] * 1.5 * np.linalg.norm(SLOPE)) ** 2)
        assert level["measures"]["worst"]["loss"] == pytest.approx(largest, rel=1e-9)
    assert "squared error" in report_html(report.summary)


def test_only_masked_gradients_are_flagged() -> None:
    x, y = data()
    honest = linear(SLOPE).eval()
    models = {"honest": honest, "masked": MaskedGradients(honest).eval()}
    warnings = report_on(models, (x, y), norm="linf", n_queries=60, n_noise=8).summary["warnings"]
    assert any(text.startswith("masked, linf") and "masked" in text for text in warnings)
    assert not any(text.startswith("honest") for text in warnings)


def test_interrupted_report_resumes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    model = linear(SLOPE).eval()
    measure, calls = evaluation.measure_batch, []

    def killed_at_the_third(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(evaluation, "measure_batch", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        report_on(model, (x, y), chunk=20, cache=tmp_path)
    resumed = report_on(model, (x, y), chunk=20, cache=tmp_path)
    assert len(calls) == 4  # only the missing third batch is computed
    assert resumed.summary["models"] == report_on(model, (x, y), chunk=20).summary["models"]
    report_on(model, (x + 1, y), chunk=60, cache=tmp_path)  # other data are not in the cache
    assert len(calls) == 8


@pytest.mark.slow
def test_report_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """The models are a module, a lambda and a file; the cache does not depend on n_jobs either."""
    x, y = data()
    exported = linear(np.array([0.5, 1.0, 0.0, 0.0])).eval()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(exported, (torch.tensor(x),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    models = {
        "layer": linear(SLOPE).train(),
        "function": lambda z: np.stack([0 * z[:, 0], z[:, 0]], 1),
        "file": tmp_path / "model.pt2",
    }
    tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    loader = torch.utils.data.DataLoader(tensors, batch_size=20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = report_on(models, loader).summary["models"]
    finally:
        torch.set_num_threads(threads)
    assert report_on(models, loader, n_jobs=2, cache=tmp_path / "cache").summary["models"] == here
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 9
    files[4].unlink()
    times = {file: file.stat().st_mtime_ns for file in files if file.exists()}
    assert report_on(models, loader, n_jobs=1, cache=tmp_path / "cache").summary["models"] == here
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert sorted((tmp_path / "cache").iterdir()) == files


def test_model_that_cannot_be_pickled_or_kills_its_worker_raises() -> None:
    with pytest.raises(TypeError, match=r"model 'locked' cannot be sent to another process"):
        report_on({"locked": partial(np.multiply, Lock())}, data(), n_jobs=2)
    here = os.getpid()
    died = {"deadly": lambda z: z[:, :2] if os.getpid() == here else os._exit(3)}
    with pytest.raises(ChildProcessError, match="a worker process died"):
        report_on(died, data(), n_jobs=2)


def test_fragile_radius_is_the_distance_to_the_boundary() -> None:
    x, y = data()
    models = report_on(linear(SLOPE).eval(), (x, y), chunk=7, radii=[0.0, 0.6, 1.2]).summary["models"][
        "model"
    ]
    margin = (2 * y - 1) * (x @ SLOPE + 0.1)
    for norm, q in DUAL.items():
        distance = margin / np.linalg.norm(SLOPE, q)
        nearest = np.argsort(np.where(distance > 0, distance, np.inf))[:8]
        found = models["fragile"][norm]
        assert [point["index"] for point in found] == nearest.tolist()
        # The distance between two radii, 0.6, is bisected ten times.
        radii = [point["radius"] for point in found]
        assert radii == pytest.approx(distance[nearest], abs=0.6 / 2**10 + 1e-12)
        assert all(a >= b - 1e-12 for a, b in zip(radii, distance[nearest], strict=True))


def test_onnx_file_with_external_weights_has_the_results_of_the_same_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = data(20)
    slope = np.array([[0.0, 1.0], [0.0, -0.4], [0.0, 0.2], [0.0, 0.0]])
    values, vector = onnx.helper, onnx.helper.make_tensor_value_info
    double = onnx.TensorProto.DOUBLE
    graph = values.make_graph(
        [values.make_node("MatMul", ["x", "w"], ["scores"])],
        "scores",
        [vector("x", double, ["n", 4])],
        [vector("scores", double, ["n", 2])],
        [onnx.numpy_helper.from_array(slope, "w")],
    )
    model = values.make_model(graph, opset_imports=[values.make_opsetid("", 13)], ir_version=8)
    external: Any = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 0}
    onnx.save_model(model, tmp_path / "model.onnx", **external)
    monkeypatch.chdir(tmp_path)
    loaded = report_on("model.onnx", (x, y), norm="linf").summary["models"]["model"]
    restored = restore_model(dump_model(as_model("model", "model.onnx", "classifier")))
    assert np.array_equal(restored(x), x @ slope)
    plain = report_on(lambda z: z @ slope, (x, y), norm="linf").summary["models"]["model"]
    for a, b in zip(loaded["norms"]["linf"], plain["norms"]["linf"], strict=True):
        assert a["measures"]["worst"]["error"] == b["measures"]["worst"]["error"]
        assert a["measures"]["worst"]["loss"] == pytest.approx(b["measures"]["worst"]["loss"], rel=1e-12)


def test_models_are_compared_and_errors_are_given_by_group() -> None:
    x, y = data()
    models = {"a": linear(np.array([1.0, 0, 0, 0])).eval(), "b": linear(np.array([1.0, 2, 0, 0])).eval()}
    report = report_on(models, (x, y, np.arange(60) % 2))
    row = next(r for r in report.summary["comparisons"] if r["norm"] == "l2" and r["radius"] == 0.3)
    errors = [report.summary["models"][name]["norms"]["l2"][1]["measures"]["worst"]["error"] for name in "ab"]
    assert row["difference"] == pytest.approx(errors[1] - errors[0])
    assert row["low"] < row["difference"] < row["high"]
    by = report.summary["models"]["a"]["norms"]["l2"][1]["by"]["group"]
    assert (by["0"] + by["1"]) / 2 == pytest.approx(errors[0])
    assert repr(report).startswith("RobustnessReport(a: error ")


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    model = linear(np.ones(4)).eval()
    for change, message in (
        ({"norm": "l3"}, "norm is 'l3'; expected 'l1', 'l2', 'linf'"),
        ({"norm": [2, 3]}, r"norm is \[2, 3\]; expected 'l1', 'l2', 'linf'"),
        ({"radii": [0.0]}, "expected at least one positive number"),
        ({"norm": "l2", "radii": {"linf": [0.1]}}, "norm is 'l2' and radii has the norms"),
        ({"attacks": ["cw"]}, "attacks contains 'cw'; expected"),
        ({"n_jobs": 0}, "n_jobs is 0; expected"),
        ({"rng": None, "cache": tmp_path}, "cache is given and rng is None; expected a seed"),
    ):
        with pytest.raises(ValueError, match=message):
            report_on(model, data(), **change)
    with pytest.raises(ValueError, match=r"expected \.pt2 or \.onnx"):  # pickled models could run any code
        report_on(str(tmp_path / "model.pkl"), data())
    with pytest.raises(ValueError, match=r"TorchScript file or a pickle; expected .* torch\.export\.save"):
        report_on(tmp_path / "model.pt", data())
    x, y = data()
    with pytest.raises(ValueError, match="data has 60 points and 2 groups; expected one per point"):
        report_on(model, (x, y, [1, 2]))
    with pytest.raises(ValueError, match="y has the label 2; expected"):
        report_on(model, (x, y + 1))


def test_cache_distinguishes_models_with_equal_clean_outputs(tmp_path: Path) -> None:
    x, y = np.array([[-1.0], [-0.9], [0.9], [1.0]]), np.array([0, 0, 1, 1])

    def threshold(at: float) -> Any:
        return lambda x: np.eye(2)[(x[:, 0] > at).astype(int)]

    options: Any = {"norm": "linf", "radii": [1.0], "cache": tmp_path}
    first, second = (report_on({"model": threshold(at)}, (x, y), **options) for at in (-0.8, 0.8))
    assert first.summary["models"] != second.summary["models"]
    assert len(list(tmp_path.iterdir())) == 2


def test_training_mode_of_every_module_is_restored() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).train()
    network[1].eval()  # frozen
    modes = [part.training for part in network.modules()]
    report_on({"model": network}, (np.zeros((4, 2)), np.zeros(4, dtype=int)))
    assert [part.training for part in network.modules()] == modes


def test_nearly_equal_radii_and_etas_are_distinguished(tmp_path: Path) -> None:
    """Numbers that agree to eleven digits stay distinct in the report, its files and the cache."""
    x = np.linspace(-1.0, 1.0, 8)[:, None]
    radii, etas, calls = [0.3, 0.3 + 1e-12], (1.0, 1.0 + 1e-12), []

    def model(x: Any) -> Any:
        calls.append(len(x))
        return np.concatenate([-x, x], axis=1)

    options: Any = {"norm": "linf", "radii": radii, "etas": etas, "cache": tmp_path}
    first = report_on(model, (x, (x[:, 0] > 0).astype(int)), **options)
    calls.clear()
    again = report_on(model, (x, (x[:, 0] > 0).astype(int)), **options)
    assert len(calls) == 9  # only the outputs that identify the model in the cache are computed
    assert again.summary == first.summary
    levels = json.loads(first.save(tmp_path / "report.json").read_text())["models"]["model"]["norms"]["linf"]
    assert [level["radius"] for level in levels] == radii
    assert [[risk["eta"] for risk in level["risks"]] for level in levels] == [list(etas)] * 2
    values = [level["measures"]["noise"]["loss"] for level in levels]
    values += [risk["value"] for level in levels for risk in level["risks"]]
    assert len(set(values)) == 6  # the random points differ
    rows = csv.DictReader(StringIO(first.save(tmp_path / "report.csv").read_text()))
    risks = {(float(row["radius"]), float(row["eta"])) for row in rows if row["measure"] == "risk"}
    assert risks == {(radius, eta) for radius in radii for eta in etas}


def test_rng_determines_the_random_numbers() -> None:
    source = np.random.default_rng(0)
    reports = [
        report_on(linear(SLOPE), data(20), rng=rng).summary for rng in (3, 3, None, None, source, source)
    ]
    noise = [report["models"]["model"]["norms"]["l2"][-1]["measures"]["noise"]["loss"] for report in reports]
    assert noise[0] == noise[1]
    assert len(set(noise)) == 5
    entropy = int(re.findall(r"\d+", reports[2]["rng"])[0])
    assert report_on(linear(SLOPE), data(20), rng=entropy).summary == reports[2]


def test_data_name_the_features_and_the_classes() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data()
    report = report_on(linear(SLOPE).eval(), (pandas.DataFrame(x, columns=list("abcd")), y), norm="l2")
    changes = report.summary["models"]["model"]["fragile"]["l2"][0]["changes"]
    assert {change["feature"] for change in changes} == set("abcd")
    named = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    named.classes = ["cat", "dog"]
    loader = torch.utils.data.DataLoader(named, batch_size=60)
    levels = report_on(linear(SLOPE).eval(), loader, norm="l2").summary["models"]["model"]["norms"]["l2"]
    assert list(levels[0]["by"]["class"]) == ["cat", "dog"]


def test_feature_of_scale_zero_is_not_perturbed() -> None:
    x, y = data()
    slope, scales = np.array([1.0, 0.5, 0.2, 3.0]), [1.0, 2.0, 1.0, 0.0]
    report = report_on(linear(slope).eval(), (x, y), feature_scale=scales, norm="l2", steps=20)
    row = report.summary["models"]["model"]["norms"]["l2"][-1]
    margin = (2 * y - 1) * (x @ slope + 0.1)
    largest_change = RADII[-1] * np.linalg.norm(slope * scales)
    assert row["measures"]["worst"]["error"] == np.mean(margin < largest_change)
    for point in report.summary["models"]["model"]["fragile"]["l2"]:
        assert {entry["feature"]: entry["change"] for entry in point["changes"]}["x3"] == 0


def test_command_writes_a_self_contained_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(30)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    (tmp_path / "two_models.py").write_text(
        "import numpy as np\ndef first(x):\n    return np.stack([0 * x[:, 0], x[:, 0]], 1)\n"
        "def make():\n    return first\n"
    )
    monkeypatch.chdir(tmp_path)
    get_reusable_executor().shutdown()  # its workers run in another working directory
    words = ["report", "two_models:first", "two_models:make()", "--data", "test.npz", "--radii", "linf=0:1:3"]
    run = CliRunner().invoke(app, [*words, "--out", "out/page.html"])
    assert run.exit_code == 0, run.output
    assert "At linf 1 the error rises" in run.output
    assert "wrote out/page.html, out/page.json, out/page.csv" in run.output
    summary = json.loads((tmp_path / "out/page.json").read_text())
    levels = summary["models"]["make"]["norms"]["linf"]
    errors = [[100 * m["error"] for m in level["measures"].values()] for level in levels]
    rows = list(csv.DictReader(StringIO((tmp_path / "out/page.csv").read_text())))
    assert {row["measure"] for row in rows} >= {"noise", "search", "worst", "risk"}
    assert {row["eta"] for row in rows} == {"", "0.1", "1.0"}
    html = (tmp_path / "out/page.html").read_text()
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", html)
    assert "url(" not in html.replace("url(#", "")
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed")
    with Browser(browser, tmp_path / "profile") as page:
        for width in (1000, 420):
            page.show(tmp_path / "out/page.html", width=width, dark=width < 600)
            cells = page.evaluate(
                "[...document.querySelectorAll('table[data-model=make] tbody tr')]"
                ".map(row => [...row.cells].slice(1).map(cell => Number(cell.textContent)))"
            )
            assert cells == [[round(error, 1) for error in level] for level in errors]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []


def test_progress_changes_no_result_and_only_progress_needs_rich() -> None:
    quiet, shown = (report_on(linear([1.0, 0.5, 0.0, 0.0]), data(), progress=on) for on in (False, True))
    assert quiet.summary == shown.summary
    code = (
        "import sys; sys.modules['hypothesis'] = sys.modules['rich'] = None\n"
        "import numpy as np; from phiball import robustness_report\n"
        "x = np.array([[0.2], [1.0]]); model = lambda x: np.concatenate([-x, x], axis=1)\n"
        "print(robustness_report(model, (x, np.array([1, 1])), norm='linf', radii=[0, 0.5]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "At linf 0.5 the error rises from 0 to 50 % (sampled, optimistic)." in run.stdout


def test_one_logit_is_a_classifier_of_two_classes() -> None:
    """One logit gives the errors of two scores, for integer labels and for whole numbers of float dtype."""
    x, y = data()
    two = linear(SLOPE)
    one = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        one.weight[:], one.bias[:] = two.weight[1:] - two.weight[:1], two.bias[1:] - two.bias[:1]
    flat = torch.nn.Sequential(one, torch.nn.Flatten(0))

    def worst(model: Any, labels: Any, **options: Any) -> Any:
        found = report_on(model, (torch.tensor(x), labels), norm="linf", **options).summary["models"]["model"]
        return [level["measures"]["worst"]["error"] for level in found["norms"]["linf"]]

    expected = worst(two, torch.tensor(y))
    assert 0 < expected[0] < expected[-1] < 1
    for model, dtype in ((one, torch.int64), (flat, torch.uint8), (flat, torch.int32), (two, torch.bool)):
        assert worst(model, torch.tensor(y).to(dtype)) == pytest.approx(expected)
    bytes_ = torch.tensor(x), torch.tensor(y).to(torch.uint8)
    levels = report_on(one, bytes_, norm="linf").summary["models"]["model"]["norms"]["linf"]
    assert [level["certified"] for level in levels] == pytest.approx(expected)
    as_classes = {"kind": "classifier"}
    assert worst(flat, torch.tensor(y).double(), **as_classes) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"y has the label [01]\.5; expected the indices"):
        worst(two, torch.tensor(y) + 0.5, **as_classes)
    with pytest.raises(ValueError, match="integer dtype for a classifier"):
        worst(two, torch.tensor(y).double())
    with pytest.raises(ValueError, match="that are not labels; expected labels, or logits"):
        worst(lambda x: np.asarray(x) @ SLOPE, torch.tensor(y))


def test_torchattacks_runs_only_on_supported_models_and_data(monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = torch.zeros(2, 1, 4, 4), torch.zeros(2, 4)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    model = as_model("network", network, "classifier")
    function = as_model("function", lambda x: x, "classifier")
    free, box = (ThreatModel({"l2": (1.0,), "linf": (1.0,)}, clip) for clip in (None, (0.0, 1.0)))
    monkeypatch.setattr(attack_suite, "has_torchattacks", lambda: True)
    for expected, (name, of, x, norm, threat) in (
        (True, ("fab", model, images, "linf", box)),
        (False, ("fab", model, images, "linf", free)),
        (False, ("square", model, table, "linf", box)),
        (True, ("square", model, images, "linf", box)),
        (False, ("square", model, images, "l2", box)),  # it divides by rows // 5, here 0
        (False, ("fab", model, images, "l1", box)),
        (False, ("fab", function, images, "linf", box)),
    ):
        assert attack_suite.is_applicable(name, of, x, norm, threat) is expected


@pytest.mark.slow
def test_worst_error_agrees_with_autoattack() -> None:
    """The errors may differ by two of 60 images."""
    torchattacks = pytest.importorskip("torchattacks")
    digits = load("digits")
    tested, labels = (part[:60] for part in digits.tensors("test"))

    def layers(nn: Any) -> list[Any]:
        return [nn.Conv2d(1, 8, 3, stride=2), nn.ELU(), nn.Flatten(), nn.Linear(72, 10)]

    model = train_layers(layers, *digits.tensors("train"), epochs=4, seed=0).eval()
    for norm, radius, name in (("l2", 0.5, "L2"), ("linf", 0.06, "Linf")):
        state = torch.random.get_rng_state()
        settings = AttackSettings(etas=(), n_queries=200)
        options: Any = {"norm": norm, "radii": [radius], "clip": (0.0, 1.0), "rng": 0}
        report = robustness_report(model, (tested, labels), settings=settings, **options)
        assert torch.equal(torch.random.get_rng_state(), state)
        measures = report.summary["models"]["model"]["norms"][norm][-1]["measures"]
        assert set(attack_suite.TORCHATTACKS) < set(measures)
        with torch.random.fork_rng(devices=[]):
            attack = torchattacks.AutoAttack(model, norm=name, eps=radius, n_classes=10, seed=0)
            attacked = attack(tested, labels)
        theirs = np.mean((model(attacked).argmax(-1) != labels).numpy())
        assert abs(measures["worst"]["error"] - theirs) <= 2 / 60


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_affine_pipeline_is_attacked_exactly(n_jobs: int | None) -> None:
    datasets, pipeline = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.pipeline")
    linear, preprocessing = import_module("sklearn.linear_model"), import_module("sklearn.preprocessing")
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x = preprocessing.StandardScaler().fit_transform(x)
    model = pipeline.make_pipeline(preprocessing.MinMaxScaler(), linear.LogisticRegression(C=100.0)).fit(x, y)
    coef = model[-1].coef_[0] * model[0].scale_  # in the units of x
    margin = np.where(y == 1, 1, -1) * model.decision_function(x) / np.linalg.norm(coef)
    found = report_on({"model": model}, (x, y), norm="l2", radii=[0, 0.1, 0.2], n_jobs=n_jobs).summary
    rows = found["models"]["model"]["norms"]["l2"]
    for row in rows:
        assert row["measures"]["worst"]["error"] == pytest.approx(np.mean(margin <= row["radius"]), abs=2e-3)
        assert row["certified"] == row["measures"]["worst"]["error"]
    clipped = pipeline.make_pipeline(preprocessing.MinMaxScaler(clip=True), linear.LogisticRegression())
    found_clipped = report_on(clipped.fit(x, y), (x[:30], y[:30]), norm="l2", radii=[0.001]).summary
    assert found_clipped["models"]["model"]["norms"]["l2"][0]["certified"] is None  # not affine everywhere
    images = datasets.load_digits()
    many = linear.LogisticRegression().fit(images.data / 16, images.target)
    digits = report_on(many, (images.data[:200] / 16, images.target[:200]), radii=[0.1]).summary
    for levels in digits["models"]["model"]["norms"].values():
        assert levels[0]["measures"]["worst"]["error"] == levels[0]["certified"] > 0
    assert rows[2]["measures"]["worst"]["error"] > 1.5 * rows[2]["measures"]["sampling"]["error"] > 0
    assert not any("optimistic" in text for text in found["warnings"])


class Abs(torch.nn.Module):
    """The score |x_0| - |x_1| of class 1 and 0 of class 0, as a ReLU network; or with a tanh in between."""

    def __init__(self, *, tanh: bool = False) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 4).double(), torch.nn.Linear(4, 2).double()
        self.between = torch.nn.Tanh() if tanh else torch.nn.ReLU()
        with torch.no_grad():
            self.first.weight[:] = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
            self.last.weight[:] = torch.tensor([[0.0, 0, 0, 0], [1, 1, -1, -1]])
            self.first.bias.zero_(), self.last.bias.zero_()

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x)))


@pytest.mark.parametrize("certificate", [None, "interval"])
def test_worst_error_of_a_network_is_between_its_attacked_and_certified_errors(certificate: Any) -> None:
    x = np.random.default_rng(1).normal(size=(60, 2))
    size = np.abs(x)
    y = (size[:, 0] > size[:, 1]).astype(np.uint8)
    radii = {"linf": [0.0, 0.1, 0.4], "l2": [0.2], "l1": [0.0, 0.3]}
    model = report_on(Abs().eval(), (x, y), radii=radii, certificate=certificate).summary["models"]["model"]
    assert model["certificates"] == dict.fromkeys(radii, certificate or "crown")
    distance = np.abs(size[:, 0] - size[:, 1]) / 2  # to the boundary in linf
    undecided = 0.0
    for norm, levels in model["norms"].items():
        for level in levels:
            factor = {"linf": 1.0, "l2": 2**0.5, "l1": 2.0}[norm]
            exact = float(np.mean(distance * factor < level["radius"]))
            attacked = level["measures"]["worst"]["error"]
            assert attacked <= exact <= level["certified"]
            assert level["undecided"] == pytest.approx(level["certified"] - attacked)
            undecided += level["undecided"]
    assert undecided > 0


@pytest.mark.parametrize("ensemble", [False, True])
def test_calibrated_pipelines_and_transformed_targets_have_gradients(ensemble: bool) -> None:
    linear_model, pipeline = pytest.importorskip("sklearn.linear_model"), import_module("sklearn.pipeline")
    preprocessing = import_module("sklearn.preprocessing")
    x, y = data()
    x[:, 3] *= 1e5  # in these units, the probabilities at the points of finite differences are 0 or 1
    made = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.RidgeClassifier())
    calibrated = (
        import_module("sklearn.calibration").CalibratedClassifierCV(made, ensemble=ensemble).fit(x, y)
    )
    model = report_on(calibrated, (x, y), norm="linf", steps=20).summary["models"]["model"]
    levels = model["norms"]["linf"]
    corners = np.array(list(product([-1, 1], repeat=x.shape[1])))
    for level in levels:
        moved = (x[:, None, :] + level["radius"] * corners).reshape(-1, x.shape[1])
        wrong = (calibrated.predict(moved).reshape(len(x), -1) != y[:, None]).any(axis=1)
        assert np.mean(wrong) <= level["measures"]["worst"]["error"] <= level["certified"]
        assert level["certified"] <= np.mean(wrong) + (0.05 if ensemble else 0)
    target = x @ SLOPE
    regressor = (
        import_module("sklearn.compose")
        .TransformedTargetRegressor(linear_model.Ridge(), transformer=preprocessing.StandardScaler())
        .fit(x, target)
    )
    found = report_on(regressor, (x, target), norm="l2").summary["models"]["model"]
    coef = np.array([regressor.predict(row[None])[0] for row in np.eye(4)]) - regressor.predict(
        np.zeros((1, 4))
    )
    for level in found["norms"]["l2"]:
        change = level["radius"] * np.linalg.norm(coef)
        largest = np.mean((np.abs(regressor.predict(x) - target) + change) ** 2)
        assert level["measures"]["worst"]["loss"] == pytest.approx(largest, rel=1e-6)
        assert level["certified"] is None


def test_smoothed_classifier_is_certified_in_its_norm(tmp_path: Path) -> None:
    x, y = data(12)
    smoothed = SmoothedClassifier(linear(SLOPE).eval(), Gaussian(0.5), n_samples=60, failure_probability=0.01)
    options: Any = {"chunk": 5, "cache": tmp_path, "radii": [0, 0.2, 0.4]}
    report = report_on(smoothed, (x, y), **options)
    model = report.summary["models"]["model"]
    radii = smoothed.radii(torch.tensor(x), torch.tensor(y)).radius.numpy()
    for level in model["norms"]["l2"]:
        assert level["certified"] == np.mean(radii <= level["radius"])
        assert level["measures"]["worst"]["error"] <= level["certified"]
    assert [level["certified"] for level in model["norms"]["linf"]] == [None] * 3
    assert "holds with probability 0.99" in model["certificates"]["l2"]
    assert "(estimated from sampled votes; " in repr(report)
    files = sorted(tmp_path.iterdir())
    files[1].unlink()
    times = [file.stat().st_mtime_ns for file in (files[0], files[2])]
    assert report_on(smoothed, (x, y), **options).summary["models"] == report.summary["models"]
    assert [file.stat().st_mtime_ns for file in (files[0], files[2])] == times
    sampled = SmoothedClassifier(lambda x: x @ SLOPE, smoothed.noise, n_samples=20)
    label = "estimated from sampled votes; sampled, optimistic"
    assert report_on(sampled, (x, y), radii=[0.1]).summary["models"]["model"]["attacked"] == label
    doubled = report_on(smoothed, (x, y), radii=[0.1, 0.2], norm="l2", feature_scale=[2.0, 0, 0, 0]).summary
    found = [level["certified"] for level in doubled["models"]["model"]["norms"]["l2"]]
    assert found == [level["certified"] for level in model["norms"]["l2"][1:]]


def test_models_without_a_certificate_give_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(20, 2)
    models = {"tanh": Abs(tanh=True).eval(), "function": lambda x: np.stack([0 * x[:, 0], x[:, 0]], 1)}
    report = report_on({**models, "net": Abs().eval()}, (x, y), norm="l2", n_queries=3)
    found = report.summary["models"]
    assert "'between' is Tanh()" in found["tanh"]["certificates"]["l2"]
    assert "neither a torch module nor linear" in found["function"]["certificates"]["l2"]
    assert found["tanh"]["norms"]["l2"][-1]["certified"] is None
    assert found["function"]["attacks"] == ["search"]
    html, text = report_html(report.summary), str(report)
    for shown in (html, text, repr(report)):
        assert "sampled, optimistic" in shown
    assert "no certificate: layer &#39;between&#39; is Tanh()" in html
    assert "<td>apgd</td>" in html
    only = report_html(report_on(models["function"], (x, y), norm="l2").summary)
    assert "<td>search</td>" in only
    assert "gd</td>" not in only  # no attack that did not run is described
    monkeypatch.setattr(certificates, "certified_margins", lambda net, x, *_, **__: torch.ones(len(x), 2))
    (warning,) = report_on(Abs().eval(), (x, y), norm="l2").summary["warnings"]
    assert "certified points" in warning


def test_radii_by_norm_and_default_radii() -> None:
    x, y = data()
    radii = {"linf": [0.1], "l1": [0, 2.0]}
    summary = report_on(linear(SLOPE).eval(), (x, y), radii=radii).summary
    assert summary["radii"] == {"linf": (0.1,), "l1": (0.0, 2.0)}
    scale = [2.0, 1.0, 1.0, 0.0]
    found = report_on(
        linear(SLOPE).eval(), (x, y), radii=None, norm=["linf", "l1"], feature_scale=scale
    ).summary
    step = 0.01 * np.median(np.ptp(x[:, :3], axis=0) / [2, 1, 1])
    assert found["radii"]["linf"] == pytest.approx(step * np.arange(5), rel=0.05)
    assert found["radii"]["l1"] == pytest.approx(3 * step * np.arange(5), rel=0.05)
    clipped = report_on(linear(SLOPE).eval(), (0 * x, y), radii=None, norm="linf", clip=(-1, 1)).summary
    assert clipped["radii"]["linf"] == (0, 0.02, 0.04, 0.06, 0.08)
    with pytest.raises(ValueError, match="all features are constant"):
        report_on(linear(SLOPE).eval(), (0 * x, y), radii=None)


def test_exported_program_is_attacked_by_torchattacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Square:
        """Like the attacks of torchattacks, this puts the model into evaluation mode."""

        def __init__(self, model: Any, **_: Any) -> None:
            self.model = model

        def __call__(self, x: Any, y: Any) -> Any:
            assert next(self.model.parameters()).device == x.device
            self.model.eval()
            return x + 1

    monkeypatch.setitem(sys.modules, "torchattacks", SimpleNamespace(Square=Square))
    monkeypatch.setattr(attack_suite, "has_torchattacks", lambda: True)
    x, y = torch.linspace(0, 1, 24).reshape(6, 1, 2, 2), torch.arange(6) % 2
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    options: Any = {"norm": "linf", "radii": [0.1], "clip": (0, 1), "attacks": ("square",)}
    for model in (tmp_path / "model.pt2", program.module()):
        found = report_on(model, (x, y), **options).summary
        assert found["models"]["model"]["attacks"] == ["square"]
        assert not any("training mode" in text for text in found["warnings"])


def test_command_keeps_models_with_equal_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(8)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    text = "import numpy as np\n\ndef model(z):\n    return np.stack([0 * z[:, 0], z[:, 0]], 1)\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}_of_equal_names.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    models = ["one_of_equal_names:model", "two_of_equal_names:model"]
    options = ["--data", "data.npz", "--norm", "l2", "--radii", "0.1,0.2", "--n-jobs", "1"]
    run = CliRunner().invoke(app, ["report", *models, *options])
    assert run.exit_code == 0, run.output
    assert list(json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["models"]) == models
    twice = CliRunner().invoke(app, ["report", models[0], models[0], *options])
    assert twice.exit_code != 0
    assert "expected each of them once" in " ".join(twice.output.split())
