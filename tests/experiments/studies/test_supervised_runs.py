"""Runs of the study of supervised learning: in parallel, killed and resumed; and the networks they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import TaskDir
from phiball.experiments.studies.supervised import study as supervised
from phiball.experiments.studies.supervised.study import STUDY, trained_network
from phiball.experiments.training import loop as training
from tests.support.paths import ROOT
from tests.support.supervised_tasks import TINY, digits, task

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
RUN = replace(TINY, methods=("ERM", "RT-MLMC"), chosen=("tilted",), seeds=2, level=3, train=120)
CODE = """
import sys, time
from pathlib import Path
from phiball.experiments.studies.supervised.study import STUDY
from phiball.experiments.training import loop as training
from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import TaskDir
from tests.experiments.studies.test_supervised_runs import RUN
training.train.__kwdefaults__["save_every"] = 0
TaskDir.report_progress = lambda self, share, text: time.sleep(0.02)
run(STUDY, RUN, Path(sys.argv[1]), seed=3)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sklearn", "matplotlib", "joblib", "threadpoolctl"):
        pytest.importorskip(name, reason=f"{name}: not installed")
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STUDY, "draw", lambda table: {})  # it takes long, and has tests of its own
        _, written = run(STUDY, RUN, out, seed=3)
    assert {file.name for file in written} == {"table.csv", "report.md"}
    return out


def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what has tests of its own."""
    for name, empty in (("draw", {}), ("tables", []), ("findings", [])):
        monkeypatch.setattr(STUDY, name, lambda table, empty=empty: empty)


def test_two_jobs_give_the_table_of_one(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn(monkeypatch)
    run(STUDY, RUN, tmp_path / "two", seed=3, jobs=2)
    assert (tmp_path / "two" / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()


def test_a_run_that_is_killed_in_a_training_goes_on_from_there(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE
    )
    try:
        while len(begun := sorted((tmp_path / "tasks").glob("*/network.pt"))) < 3 and process.poll() is None:
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        told = process.communicate()[1]
    assert len(begun) == 3, told
    steps: list[int] = []

    def read(file: Path, about: Any = None) -> Any:
        kept = found(file, about)
        steps.append(kept["step"])
        return kept

    found = training.read
    monkeypatch.setattr(training, "read", read)
    undrawn(monkeypatch)
    run(STUDY, RUN, tmp_path, seed=3)
    assert len(steps) == 1  # of the third task alone: the two before it are done
    assert 0 < steps[0] < 14  # 100 images in steps of 16, twice
    assert (tmp_path / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()


def test_a_network_is_found_again(whole: Path) -> None:
    images = supervised.load("digits")
    files = sorted((whole / "rows").glob("*.json"))
    errors = set()
    for file in files:
        row = json.loads(file.read_text(encoding="utf-8"))["row"]
        choose = "choose" in file.name
        x, y = (
            (images.train_x[100:115], images.train_y[100:115])
            if choose
            else (images.test_x[:30], images.test_y[:30])
        )
        model = trained_network(whole / "tasks" / file.stem / "network.pt")
        guess = model(torch.tensor(x[:, None] / 16, dtype=torch.float32)).argmax(-1).numpy()
        assert row["clean"] == pytest.approx(100 * np.mean(guess != y))
        errors.add(row["clean"])
    assert len(files) > 8
    assert len(errors) > 2


def test_a_folder_of_another_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "load", lambda name, folder: digits())
    STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))
    for config, one, match in (
        (TINY, task(setting="FGM linf 0.1"), "setting is 'ERM', not 'FGM linf 0.1'"),
        (TINY, task(seed=6), "seed is 5, not 6"),
        (replace(TINY, width=2), task(), "width is 1, not 2"),
        (replace(TINY, rho=0.3), task(), "objective is .*'rho': 0.45"),
        (replace(TINY, epochs=3), task(), "plan is .*'epochs': 2"),
        (replace(TINY, train=61), task(), r"images is \[60, 1, 8, 8\], not \[61, 1, 8, 8\]"),
    ):
        with pytest.raises(ValueError, match=f"checkpoint of another training: .*{match}"):
            STUDY.compute_task(config, one, rng(0), TaskDir(tmp_path))


def test_a_folder_of_other_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "load", lambda name, folder: digits())
    STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))
    monkeypatch.setattr(supervised, "load", lambda name, folder: digits(seed=4))
    with pytest.raises(ValueError, match=f"data is '{digits().digest}', not '{digits(seed=4).digest}'"):
        STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))


def test_mnist(tmp_path: Path) -> None:
    folder = os.environ.get("PHIBALL_DATA", "")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("PHIBALL_DATA: names no folder with mnist/")
    config = replace(TINY, data=("mnist",), train=200, attacked=20, width=4, epochs=1, level=7)
    config = replace(config, methods=("RT-MLMC",))
    one = {**task(setting="RT-MLMC linf 0.45"), "data": "mnist"}
    row = STUDY.compute_task(config, one, rng(0), TaskDir(tmp_path))
    assert (row["trained on"], row["tested on"]) == (200, 20)
    assert row["mean linf"] == pytest.approx(1, abs=0.01)
    assert 8 < row["mean l2"] < 10
    images = supervised.load("mnist")
    x = torch.tensor(images.test_x[:20, None] / 255, dtype=torch.float32)
    guess = trained_network(tmp_path / "network.pt")(x).argmax(-1).numpy()
    assert row["clean"] == pytest.approx(100 * np.mean(guess != images.test_y[:20]))


def test_a_network_whose_training_has_not_ended_is_refused(tmp_path: Path) -> None:
    STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))
    file = tmp_path / "network.pt"
    assert not trained_network(str(file)).training
    kept = torch.load(file, weights_only=True)
    torch.save({**kept, "optimizer": {}}, file)
    with pytest.raises(ValueError, match="is of a training that has not ended"):
        trained_network(file)
