"""The study of recipes: what its methods train with, its two stages, and runs that get more seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.datasets.images import Images
from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised import study as supervised
from phiball.experiments.studies.supervised.recipe import study as recipe
from phiball.experiments.studies.supervised.recipe.methods import (
    CONSTANT,
    FAMILIES,
    RADII,
    REFERENCE,
    methods,
)
from phiball.experiments.studies.supervised.recipe.study import SCALES, STUDY, Config
from phiball.experiments.training.loop import Plan
from phiball.refimpl import Ball, white_noise
from tests.support.supervised_tasks import digits

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Config(
    data=("digits",),
    methods=(CONSTANT, REFERENCE, "ATTA-1"),
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


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Images:
    images = digits()
    for module in (supervised, recipe):
        monkeypatch.setattr(module, "load", lambda name, folder: images)
    return images


def stage(table: Table, name: str) -> list[dict[str, Any]]:
    return [row for row in table.rows if row["stage"] == name]


# --- Parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("rates", (2e-3, 1e-3), "rates is .*; expected increasing numbers"),
        ("rates", (0.0, 1e-3), "rates is 0.0; expected a positive number"),
        ("held_out", 60000, "held_out is 60000; expected less than train"),
        ("warmup", 1.0, "warmup is 1.0; expected at most 0.9"),
        ("norm", "l1", "norm is 'l1'; expected one of l2, linf"),
        ("methods", ("PGD",), "expected a tuple of some of ERM"),
        ("seeds", 1, "seeds is 1; expected a whole number of at least 2"),
    ],
)
def test_a_wrong_parameter_is_refused(name: str, value: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(Config(), **{name: value})


def test_every_method_gets_the_same_effort() -> None:
    for config in SCALES.values():
        tasks = STUDY.tasks(config)
        tried = {(t["data"], t["method"]): [] for t in tasks}  # type: ignore[var-annotated]
        for task in tasks:
            tried[task["data"], task["method"]].append(task["rate"])
        assert {method for _, method in tried} == {*config.methods} - {CONSTANT}
        assert all(rates == list(config.rates) for rates in tried.values())
    assert SCALES["paper"] == Config()
    assert SCALES["paper"].methods == FAMILIES
    assert not any("," in name for name in FAMILIES)  # which divides the names of --methods
    assert set(RADII) == {"digits", *Config().data}


# --- What a batch is trained with -------------------------------------------------------------------


class Slanted:
    """The loss g.x of each image, and the points that it was asked for."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self.x = torch.rand((6, 1, 4, 4), generator=draws)
        self.g = torch.randn((6, 1, 4, 4), generator=draws)
        self.at: list[Any] = []

    def __call__(self, x: Any, i: Any) -> Any:
        self.at.append(x.detach().clone())
        return (x * self.g[i]).flatten(1).sum(-1)


def trained_at(name: str, norm: str = "linf", data: str = "mnist") -> tuple[Slanted, Any, Any]:
    """The loss after one call of a method, and what the objective returned."""
    loss = Slanted()
    method = methods(replace(Config(), norm=norm), data)[name]
    kept = [] if method.first is None else [method.first(loss.x, rng(2))]
    out = method.objective(loss, loss.x, rng(3), *kept)  # type: ignore[call-arg]
    assert sum(len(x) for x in loss.at) == 6 * method.evaluations
    return loss, out, kept


def test_n_fgsm_goes_one_radius_from_noise_of_two_and_is_not_projected() -> None:
    loss, value, _ = trained_at("N-FGSM")
    noisy = white_noise(loss.x, Ball(np.inf, 0.3), rng(3))
    assert torch.equal(loss.at[0], noisy)
    assert torch.allclose(loss.at[1], noisy + 0.15 * loss.g.sign())
    assert float((loss.at[1] - loss.x).abs().max()) > 0.31
    assert float(value) == pytest.approx(float((loss.at[1] * loss.g).flatten(1).sum(-1).mean()), rel=1e-5)


def test_atta_moves_the_perturbation_that_it_kept() -> None:
    loss, (value, kept), (first,) = trained_at("ATTA-1")
    assert torch.allclose(loss.x + first, white_noise(loss.x, Ball(np.inf, 0.15), rng(2)))
    assert torch.allclose(loss.at[0], loss.x + first)
    want = (first + 0.15 * loss.g.sign()).clamp(-0.15, 0.15)
    assert torch.allclose(kept, want, atol=1e-6)
    assert torch.allclose(loss.at[1], loss.x + want, atol=1e-6)
    assert float(value) == pytest.approx(float((loss.at[1] * loss.g).flatten(1).sum(-1).mean()), rel=1e-5)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_other_methods(norm: str) -> None:
    """Where gradients are taken, and how far points lie from the images."""
    size, p = {"l2": (1.5, 2), "linf": (0.15, np.inf)}[norm]
    far = {
        "ERM": 0.0, REFERENCE: size, CONSTANT: size, "tilted": size, "random-start tilted": size,
        "wide tilted": 2 * size, "IFGM": size,
    }  # fmt: skip
    for name, most in far.items():
        loss, _, _ = trained_at(name, norm)
        lengths = torch.linalg.vector_norm((loss.at[-1] - loss.x).flatten(1), ord=p, dim=1)
        assert float(lengths.max()) <= most * 1.0001 + 1e-7, name
        assert float(lengths.max()) >= 0.6 * most, name
        assert torch.equal(loss.at[0], loss.x) == (name in ("ERM", "tilted", "wide tilted", "IFGM")), name
    paper = methods(replace(Config(), norm=norm), "mnist")["RT-MLMC"]
    assert paper.evaluations == pytest.approx(4.0, abs=0.1)


# --- The two stages ---------------------------------------------------------------------------------


def test_the_rate_is_chosen_on_held_out_images_and_the_rest_is_the_same(made_up: Images) -> None:
    table = STUDY.compute(TINY, rng(0))
    chosen, reported = stage(table, "choose"), stage(table, "report")
    assert [(r["method"], r["rate"]) for r in chosen] == [
        (m, rate) for m in (REFERENCE, "ATTA-1") for rate in TINY.rates
    ]
    assert all((r["trained on"], r["tested on"]) == (40, 15) for r in chosen)
    assert all((r["trained on"], r["tested on"]) == (60, 30) for r in reported)
    for row in reported:
        rivals = [r for r in chosen if r["method"] == row["method"]]
        errors = [fmean([r["PGM l2"], r["PGM linf"]]) for r in rivals]
        want = rivals[int(np.argmin(errors))]["rate"] if rivals else 1e-3
        assert row["rate"] == want
        assert all(0 <= row["clean"] <= row[name] <= 100 for name in ATTACKED)
    assert len({r["seed"] for r in reported}) == 2
    assert {r["trial"]: r["seed"] for r in reported}[0] == chosen[0]["seed"]
    assert len({fmean([r["PGM l2"], r["PGM linf"]]) for r in chosen}) > 1  # so that there is a choice


def test_the_plan_of_each_method(made_up: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have the recipe but for the one that is there to show what it does."""
    plans: list[Any] = []

    def train(*given: Any, **more: Any) -> list[float]:
        plans.append((given[4], more["kept_points"] is None))
        return [1.0, 0.5]

    monkeypatch.setattr(recipe, "train", train)
    for method, rate in ((REFERENCE, 0.01), ("ATTA-1", 0.02), (CONSTANT, 1e-3)):
        task = {"stage": "report", "data": "digits", "method": method, "rate": rate, "trial": 0, "seed": 5}
        STUDY.compute_task(TINY, task, rng(0))
    assert plans == [
        (Plan(2, 16, 0.01, 0.1), True),
        (Plan(2, 16, 0.02, 0.1), False),
        (Plan(2, 16, 1e-3, None), True),
    ]


@pytest.mark.slow
def test_seeds_are_added_to_a_run(made_up: Images, tmp_path: Path) -> None:
    """The rows of fewer seeds stay as they are, and those of more are those of a run of its own."""
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    few = replace(TINY, methods=(REFERENCE, "ATTA-1"), rates=(1e-2,))
    two, _ = run(STUDY, few, tmp_path / "run", jobs=1)
    written = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "rows").iterdir()}
    three, files = run(STUDY, replace(few, seeds=3), tmp_path / "run", jobs=1)
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "rows").iterdir()}
    assert written.items() <= kept.items()
    assert len(kept) == len(written) + 2
    assert three.rows[: len(two.rows)] == two.rows
    alone = STUDY.compute(replace(few, seeds=3), rng(0))
    assert json.loads(json.dumps(alone.rows)) == json.loads(json.dumps(three.rows))
    assert {"recipe.png", "rates.png", "report.md", "table.csv"} <= {file.name for file in files}
