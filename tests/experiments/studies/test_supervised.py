"""The study of supervised learning: losses of its methods, its two stages and its runs."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.datasets.images import load
from phiball.experiments.framework.study_runs import run_study
from phiball.experiments.framework.tasks import Table, TaskDir
from phiball.experiments.studies.supervised.paper_methods import paper_methods
from phiball.experiments.studies.supervised.study import STUDY, Config, trained_network
from tests.support.supervised_tasks import LinearLoss, digits, use_images

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("scipy", reason="scipy: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Config(
    data=("digits",),
    methods=("ERM", "FGM", "SG"),
    chosen=("random-start FGM", "tilted"),
    norms=("linf",),
    seeds=3,
    others=2,
    train=60,
    held_out=20,
    judged=15,
    attacked=30,
    width=2,
    epochs=2,
    batch=16,
    rate=0.002,
    steps=2,
    noise_ratios=(0.5,),
    pgm_ratios=(0.1, 0.2),
)
ATTACKED = ("noise l2 0.5", "noise linf 0.5", "PGM l2 0.1", "PGM l2 0.2", "PGM linf 0.1", "PGM linf 0.2")

# --- Losses of the methods --------------------------------------------------------------------------

DUAL_NORMS = {"l2": 2, "linf": 1}


def test_fgm_and_ifgm_maximise_a_linear_loss() -> None:
    """The largest loss g.x in a ball is the clean loss plus the radius times the dual norm of g."""
    methods = paper_methods(Config(steps=7, step=0.1, rho=0.45))
    for norm, dual in DUAL_NORMS.items():
        for radius in (0.0, 0.1, 0.45):
            names = [f"FGM {norm} {radius:g}", f"IFGM {norm} {radius:g}"] if radius else ["ERM"]
            for name in names:
                loss = LinearLoss()
                value = methods[name].objective(loss, loss.x, rng(0))  # type: ignore[call-arg]
                expected = (loss.x * loss.g).flatten(1).sum(-1) + radius * loss.g.flatten(1).norm(dual, dim=1)
                assert float(value) == pytest.approx(float(expected.mean()), rel=1e-5), name
                assert sum(len(x) for x in loss.at) == 6 * methods[name].evaluations


# --- The two stages ---------------------------------------------------------------------------------


def stage(table: Table, name: str) -> list[dict[str, Any]]:
    return [row for row in table.rows if row["stage"] == name]


def test_invalid_devices_and_data_are_rejected_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits())

    def never(*given: Any) -> Any:
        pytest.fail("a task was computed")

    with pytest.raises(ValueError, match="device is 'nowhere'; expected cpu, or cuda"):
        STUDY.compute(replace(TINY, device="nowhere"), rng(0), never)
    with pytest.raises(ValueError, match="held_out is 100; expected"):
        STUDY.compute(replace(TINY, train=5000, held_out=100), rng(0), never)


@pytest.fixture(scope="module")
def tiny() -> Table:
    with pytest.MonkeyPatch.context() as patch:
        use_images(patch, digits())
        return STUDY.compute(TINY, rng(0))


def score(row: dict[str, Any]) -> float:
    pgm = [fmean([row[f"PGM {norm} 0.1"], row[f"PGM {norm} 0.2"]]) for norm in DUAL_NORMS]
    return fmean([row["clean"], row["noise l2 0.5"], row["noise linf 0.5"], *pgm])


def test_settings_are_chosen_on_held_out_images_and_reported_on_test_images(tiny: Table) -> None:
    images = digits()
    for row in tiny.rows:
        assert all(0 <= row[name] <= 100 for name in ("clean", *ATTACKED))
        assert (row["trained on"], row["tested on"]) == ((40, 15) if row["stage"] == "choose" else (60, 30))
        flat = images.train_x[: row["trained on"]].reshape(row["trained on"], -1) / 16
        assert row["mean l2"] == pytest.approx(np.sqrt((flat**2).sum(1)).mean())
    report = stage(tiny, "report")
    trials = {
        name: [r["trial"] for r in report if r["method"] == name] for name in (r["method"] for r in report)
    }
    many = ["ERM", "FGM linf 0.45", "FGM linf 0.1", "random-start FGM, chosen", "tilted, chosen"]
    assert trials == {**{key: [0, 1, 2] for key in many}, "SG linf 0.45": [0, 1]}
    for family in ("random-start FGM", "tilted"):  # the setting with the lowest score is chosen
        scores = {r["setting"]: score(r) for r in stage(tiny, "choose") if r["method"] == family}
        assert len(set(scores.values())) > 1
        found = {r["setting"] for r in report if r["method"] == f"{family}, chosen"}
        assert found == {min(scores, key=scores.__getitem__)}
    seeds = [{row["seed"] for row in tiny.rows if row["trial"] == trial} for trial in range(3)]
    assert [len(one) for one in seeds] == [1, 1, 1]  # all methods of a trial have the same seed
    assert len(set.union(*seeds)) == 3


# --- Runs -------------------------------------------------------------------------------------------

RUN = replace(TINY, methods=("ERM", "RT-MLMC"), chosen=("tilted",), seeds=2, level=3, train=120)


@pytest.mark.slow
def test_trained_network_has_the_errors_of_its_row(tmp_path: Path) -> None:
    for name in ("sklearn", "matplotlib", "joblib", "threadpoolctl"):
        pytest.importorskip(name, reason=f"{name}: not installed")
    whole = tmp_path / "run"
    _, written = run_study(STUDY, RUN, whole, seed=3)
    assert {file.name for file in written} == {"table.csv", "report.md", "panels-linf.png", "panels-linf.svg"}
    images = load("digits")
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


@pytest.mark.slow
def test_checkpoint_of_another_task_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits())
    names = {"stage": "report", "data": "digits", "method": "ERM", "setting": "ERM"}
    task = {**names, "trial": 0, "seed": 5}
    STUDY.compute_task(TINY, task, rng(0), TaskDir(tmp_path))
    with pytest.raises(ValueError, match=r"another training: rho is 0\.45, not 0\.3"):
        STUDY.compute_task(replace(TINY, rho=0.3), task, rng(0), TaskDir(tmp_path))
    use_images(monkeypatch, digits(seed=4))
    with pytest.raises(ValueError, match=f"data is '{digits().digest}', not '{digits(seed=4).digest}'"):
        STUDY.compute_task(TINY, task, rng(0), TaskDir(tmp_path))
    kept = torch.load(tmp_path / "network.pt", weights_only=True)
    torch.save({**kept, "optimizer": {}}, tmp_path / "network.pt")
    with pytest.raises(ValueError, match="belongs to an unfinished training"):
        trained_network(tmp_path / "network.pt")
