"""Training under torchrun: the model of one process, and the same weights after a rank has died."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.parallel.torchrun import environment, torchrun
from tests.support.paths import ROOT

torch = pytest.importorskip("torch", reason="torch: not installed")

from phiball.experiments.training.ranks import Ranks  # noqa: E402
from tests.support.parallel import torchrun_training as worker  # noqa: E402
from tests.support.stopped_training import Training, weights  # noqa: E402

LIMIT = 240  # seconds; it takes some fifteen on two free cores


def train(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    """Both trainings, on two ranks."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [*torchrun(folder / "logs"), worker.__file__, str(folder), *how],
        env=environment(PYTHONPATH=str(ROOT)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def trained(folder: Path) -> list[Any]:
    """What the two ranks wrote."""
    done = train(folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch: built without gloo",
)
def test_a_rank_that_dies_changes_nothing(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    assert whole[0] == whole[1]
    assert train(tmp_path / "killed", "die").returncode != 0
    assert not list((tmp_path / "killed").glob("*.json"))
    assert (tmp_path / "killed" / "plain.pt").exists()
    assert trained(tmp_path / "killed") == whole
    # Without draws the two ranks do what one process does, though the last batches have a single image.
    training = Training("plain", None, worker.PLAN).go()
    curve, found = whole[0]["plain"]
    np.testing.assert_allclose(curve, training.curve, rtol=1e-5)
    for two, one in zip(found, weights(training.model), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-5)
    # Two ranks are not one: a checkpoint says how many there were.
    with pytest.raises(ValueError, match="ranks"):
        Training("plain", tmp_path / "whole" / "plain.pt", worker.PLAN).go()


def test_parts_of_a_batch_have_its_mean() -> None:
    values = torch.arange(7.0) ** 2
    for n in (1, 2, 5, 7):
        for count in (1, 2, 3, 8):
            parts = [Ranks(rank, count).part(torch.arange(n)) for rank in range(count)]
            means = [factor * float(values[part].mean()) for part, factor in parts]
            assert np.mean(means) == pytest.approx(float(values[:n].mean()), rel=1e-6)
