"""Training on two ranks under torchrun agrees with one process and resumes after a rank dies."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.parallel.torchrun import GLOO_AT_EXIT, environment, torchrun
from tests.support.paths import ROOT

torch = pytest.importorskip("torch", reason="torch: not installed")
for library in ("joblib", "matplotlib", "sklearn"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.experiments.training.ranks import Ranks  # noqa: E402
from tests.support.parallel import torchrun_training as worker  # noqa: E402
from tests.support.stopped_training import Training, weights  # noqa: E402

LIMIT = 480  # seconds; on two free cores a run takes about fifteen
STUDY = {
    "data": "digits", "methods": "ERM,SG", "chosen": "none", "norms": "linf", "seeds": 2, "others": 2,
    "train": 60, "held-out": 20, "judged": 15, "attacked": 30, "width": 1, "epochs": 3, "batch": 16,
    "steps": 2, "noise-ratios": "0.5", "pgm-ratios": "0.1",
}  # fmt: skip
two_ranks = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch: built without gloo",
)


def run_on_two_ranks(logs: Path, *command: str, tries: int = 3) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*torchrun(logs), *command],
        env=environment(PYTHONPATH=str(ROOT), PHIBALL_BACKEND="numpy"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if tries > 1 and GLOO_AT_EXIT in done.stderr:
        return run_on_two_ranks(logs, *command, tries=tries - 1)
    return done


def train_on_two_ranks(folder: Path) -> list[Any]:
    """Return the output of each of the two ranks."""
    folder.mkdir(exist_ok=True)
    done = run_on_two_ranks(folder / "logs", worker.__file__, str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@two_ranks
def test_training_resumes_after_a_rank_dies_and_agrees_with_one_process(tmp_path: Path) -> None:
    uninterrupted, killed = train_on_two_ranks(tmp_path / "uninterrupted"), tmp_path / "killed"
    assert uninterrupted[0] == uninterrupted[1]
    killed.mkdir()
    died = run_on_two_ranks(killed / "logs", worker.__file__, str(killed), "die", tries=1)
    assert died.returncode != 0
    assert not list(killed.glob("*.json"))
    assert (killed / "plain.pt").exists()
    assert train_on_two_ranks(killed) == uninterrupted
    # Without random points, two ranks train like one process, even if the last batch has one image.
    training = Training("plain", None, worker.PLAN).run()
    curve, found = uninterrupted[0]["plain"]
    np.testing.assert_allclose(curve, training.curve, rtol=1e-5)
    for two, one in zip(found, weights(training.model), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-5)
    # One process rejects a checkpoint of two ranks.
    with pytest.raises(ValueError, match="ranks"):
        Training("plain", tmp_path / "uninterrupted" / "plain.pt", worker.PLAN).run()


@pytest.mark.slow
@two_ranks
def test_image_study_on_two_ranks_resumes_with_the_same_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [word for name, value in STUDY.items() for word in (f"--{name}", str(value))]
    command = ["-m", "phiball.experiments.cli.main", "run", "supervised", *options, "--out", str(out)]

    def table() -> bytes:
        done = run_on_two_ranks(tmp_path / "logs", *command)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("wrote ") == 1  # only the first rank writes
        return (out / "table.csv").read_bytes()

    first = table()
    assert json.loads((out / "run.json").read_text())["config"]["ranks"] == 2
    kept, *others = sorted(out.glob("rows/*.json"))
    before = kept.stat().st_mtime_ns
    for row in others:
        row.unlink()
    (out / "table.csv").unlink()
    assert table() == first
    assert kept.stat().st_mtime_ns == before


def test_weighted_means_over_ranks_average_to_the_mean_of_the_batch() -> None:
    values = torch.arange(7.0) ** 2
    for n in (1, 2, 5, 7):
        for count in (1, 2, 3, 8):
            parts = [Ranks(rank, count).part(torch.arange(n)) for rank in range(count)]
            means = [factor * float(values[part].mean()) for part, factor in parts]
            assert np.mean(means) == pytest.approx(float(values[:n].mean()), rel=1e-6)
