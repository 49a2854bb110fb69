"""The study of settings: objectives of its methods, its two stages and additional seeds."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.framework.study_runs import run_study
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.settings.method_grid import DEFAULT, REFERENCE, method_grid
from phiball.experiments.studies.settings.report import tables
from phiball.experiments.studies.settings.study import STUDY, Config
from phiball.refimpl import Ball, white_noise
from tests.support.supervised_tasks import LinearLoss, digits, use_images

torch = pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("scipy", reason="scipy: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Config(
    data=("digits",),
    methods=(DEFAULT, REFERENCE, "ATTA-1", "CVaR"),
    seeds=2,
    rates=(1e-3, 1e-2, 0.1),
    train=60,
    held_out=20,
    judged=15,
    attacked=30,
    width=1,
    epochs=2,
    batch=16,
    steps=2,
    apgd_steps=2,
)
ATTACKED = ("PGM l2", "PGM linf", "APGD l2", "APGD linf")


def stage(table: Table, name: str) -> list[dict[str, Any]]:
    return [row for row in table.rows if row["stage"] == name]


# --- Objectives -------------------------------------------------------------------------------------


def call_method(name: str) -> tuple[LinearLoss, Any, Any]:
    """Call a method once; return the loss with its records, the result and the initial state."""
    (method,) = method_grid((name,), "mnist", "linf").values()
    loss = LinearLoss()
    kept = [] if method.initial_state is None else [method.initial_state(loss.x, rng(2))]
    out = method.objective(loss, loss.x, rng(3), *kept)  # type: ignore[call-arg]
    assert sum(len(x) for x in loss.at) == 6 * method.evaluations
    return loss, out, kept


def test_n_fgsm_takes_one_step_from_wider_noise_without_projection() -> None:
    loss, value, _ = call_method("N-FGSM")
    noisy = white_noise(loss.x, Ball(np.inf, 0.3), rng=rng(3))
    assert torch.equal(loss.at[0], noisy)
    assert torch.allclose(loss.at[1], noisy + 0.15 * loss.g.sign())
    assert float((loss.at[1] - loss.x).abs().max()) > 0.31
    assert float(value) == pytest.approx(float((loss.at[1] * loss.g).flatten(1).sum(-1).mean()), rel=1e-5)


def test_atta_updates_its_stored_perturbation() -> None:
    loss, (value, kept), (first,) = call_method("ATTA-1")
    assert torch.allclose(loss.x + first, white_noise(loss.x, Ball(np.inf, 0.15), rng=rng(2)))
    assert torch.allclose(loss.at[0], loss.x + first)
    expected = (first + 0.15 * loss.g.sign()).clamp(-0.15, 0.15)
    assert torch.allclose(kept, expected, atol=1e-6)
    assert torch.allclose(loss.at[1], loss.x + expected, atol=1e-6)
    assert float(value) == pytest.approx(float((loss.at[1] * loss.g).flatten(1).sum(-1).mean()), rel=1e-5)


# --- The two stages ---------------------------------------------------------------------------------


def test_setting_and_rate_are_chosen_on_held_out_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits())
    table = STUDY.compute(TINY, rng(0))
    chosen, reported = stage(table, "choose"), stage(table, "report")
    assert len(chosen) == (1 + 1 + 1 + 2) * 3  # CVaR has two settings
    assert all((r["trained on"], r["tested on"]) == (40, 15) for r in chosen)
    assert all((r["trained on"], r["tested on"]) == (60, 30) for r in reported)
    for row in reported:
        rivals = [r for r in chosen if r["method"] == row["method"]]
        errors = [fmean([r["PGM l2"], r["PGM linf"]]) for r in rivals]
        own = {"setting": row["setting"], "rate": row["rate"]}.items()
        (best,) = [error for r, error in zip(rivals, errors, strict=True) if own <= r.items()]
        assert best == min(errors)
        assert all(0 <= row["clean"] <= row[name] <= 100 for name in ATTACKED)
    assert len({r["seed"] for r in reported}) == 2
    (differences,) = [shown for shown in tables(table) if shown.title.startswith("Differences from")]
    for line in differences.rows:
        ours, theirs = ([r["clean"] for r in reported if r["method"] == m] for m in (line[0], REFERENCE))
        assert line[1].startswith(f"{np.mean(np.subtract(ours, theirs)):+.1f}")


@pytest.mark.slow
def test_seeds_can_be_added_to_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing rows are kept, and the result equals a single run with all seeds."""
    use_images(monkeypatch, digits())
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    few = replace(TINY, methods=(REFERENCE, "ATTA-1"), rates=(1e-2,))
    two, _ = run_study(STUDY, few, tmp_path / "run", n_jobs=1)
    written = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "rows").iterdir()}
    three, files = run_study(STUDY, replace(few, seeds=3), tmp_path / "run", n_jobs=1)
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "rows").iterdir()}
    assert written.items() <= kept.items()
    assert len(kept) == len(written) + 2
    assert three.rows[: len(two.rows)] == two.rows
    alone = STUDY.compute(replace(few, seeds=3), rng(0))
    assert json.loads(json.dumps(alone.rows)) == json.loads(json.dumps(three.rows))
    assert {"methods-linf.png", "report.md", "table.csv"} <= {file.name for file in files}
