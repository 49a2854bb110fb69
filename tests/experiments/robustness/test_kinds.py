"""Robustness reports on features that must not move, on half precision, and on what models do wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: not installed")

from phiball.experiments.robustness import robustness_report  # noqa: E402
from phiball.experiments.robustness.files import to_html  # noqa: E402

SIZES = [1.0, 2.0, 0.0]
QUICK: dict[str, Any] = {
    "norms": ["l2"],
    "radii": [0, 0.4],
    "draws": 2,
    "samples": 4,
    "steps": 20,
    "queries": 10,
}


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(60, 3))
    return x, (x[:, 0] + x[:, 2] > 0).astype(np.int64)


def linear(dtype: Any) -> Any:
    """Scores (0, x.(1, 0.5, 3))."""
    layer = torch.nn.Linear(3, 2, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.5, 3.0]]))
    return layer


def test_a_feature_of_size_0_never_moves() -> None:
    """The error under attack is that of margins below the radius times the length of the sized slope."""
    x, y = data()
    report = robustness_report(linear(torch.float64), (x, y), scale=SIZES, **QUICK)
    row = report.summary["models"]["model"]["norms"]["l2"][-1]
    margin = (x @ [1.0, 0.5, 3.0]) * (2 * y - 1)
    assert row["measures"]["worst"]["error"] == np.mean(margin < 0.4 * np.sqrt(2))
    assert "Features move by their sizes, [1.0, 2.0, 0.0]; those of size 0 stay." in to_html(report.summary)
    assert {entry["feature"]: entry["moved"] for entry in row["moved"]}["x2"] == 0


def test_a_network_in_half_precision_is_measured() -> None:
    x, y = data()
    found = [
        robustness_report(linear(dtype), (x, y), **QUICK).summary["models"]["model"]["norms"]["l2"][-1]
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    ]
    errors = [row["measures"]["worst"]["error"] for row in found]
    assert np.ptp(errors) <= 2 / 60


def test_labels_without_scores_are_flagged() -> None:
    x, y = data()
    report = robustness_report(lambda z: (z[:, 0] > 0).astype(int), (x, y), **QUICK)
    assert any("gives labels and no scores" in warning for warning in report.summary["warnings"])


@pytest.mark.parametrize("shift", [1, -1])
def test_a_label_without_a_score_is_refused(shift: int) -> None:
    x, y = data()
    with pytest.raises(
        ValueError, match=r"y has the label (2|-1); expected whole numbers from 0 to 1, as model"
    ):
        robustness_report({"net": linear(torch.float64)}, (x, y + shift), **QUICK)


def test_an_error_of_a_model_names_it() -> None:
    def broken(z: Any) -> Any:
        raise RuntimeError("out of paper")

    with pytest.raises(ValueError, match="model 'mine' failed with RuntimeError: out of paper") as caught:
        robustness_report({"mine": broken}, data(), **QUICK)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_radius_and_one_eta_may_be_numbers() -> None:
    report = robustness_report(linear(torch.float64), data(), **{**QUICK, "radii": 0.3}, etas=0.5)
    assert report.summary["radii"] == [0.3]


def test_models_need_names_and_labels_and_radii_are_numbers() -> None:
    model, (x, y) = linear(torch.float64), data()
    with pytest.raises(ValueError, match="models is a list; expected a model, or a dict of them by name"):
        robustness_report([model, model], (x, y), **QUICK)
    with pytest.raises(TypeError, match="radii is '0:1'; expected a number"):
        robustness_report(model, (x, y), radii="0:1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"y has labels like .*'1'.*; expected the numbers of the scores"):
        robustness_report(model, (x, np.full(len(y), "1")), **QUICK)
