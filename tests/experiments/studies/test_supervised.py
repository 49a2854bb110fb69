"""The study of supervised learning: its parameters, its two stages, and runs that are killed."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.datasets.images import Images
from phiball.experiments.framework.tasks import Table, TaskDir
from phiball.experiments.studies.supervised import study as supervised
from phiball.experiments.studies.supervised.study import SCALES, STUDY, Config
from phiball.experiments.training import loop as training
from tests.support.supervised_tasks import ATTACKED, TINY, digits, task

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Images:
    images = digits()
    monkeypatch.setattr(supervised, "load", lambda name, folder: images)
    return images


def stage(table: Table, name: str) -> list[dict[str, Any]]:
    return [row for row in table.rows if row["stage"] == name]


# --- Parameters -------------------------------------------------------------------------------------

COUNTS = ("train", "held_out", "judged", "attacked", "width", "epochs", "batch", "steps", "threads")
WRONG: list[tuple[str, Any, str]] = [
    *((name, value, f"{name} is {value}; expected a whole number") for name in COUNTS for value in (0, 1.5)),
    *((name, 1, f"{name} is 1; expected a whole number of at least 2") for name in ("seeds", "others")),
    ("level", -1, "level is -1; expected a whole number of at least 0"),
    ("level", 13, "level is 13; expected at most 12"),
    *(
        (name, value, f"{name} is {value}; expected a positive number")
        for name in ("rate", "rho", "step", "eta")
        for value in (0.0, -1.0, float("nan"), float("inf"))
    ),
    ("alpha", 0.0, "alpha is 0.0; expected a positive number"),
    ("alpha", 1.5, "alpha is 1.5; expected at most 1"),
    *(
        (name, value, f"{name} is .*; expected {expected}")
        for name in ("noise_ratios", "pgm_ratios")
        for value, expected in (
            ((), "a tuple of numbers"),
            (0.5, "a tuple of numbers"),
            ((0.2, 0.1), "increasing numbers"),
            ((0.1, 0.1), "increasing numbers"),
        )
    ),
    ("noise_ratios", (0.0, 0.1), "noise_ratios is 0.0; expected a positive number"),
    ("pgm_ratios", (-0.1, 0.1), "pgm_ratios is -0.1; expected a positive number"),
    ("held_out", 60000, "held_out is 60000; expected less than train, 60000"),
    ("train", 5000, "held_out is 5000; expected less than train, 5000"),
    *(
        (name, value, rf"{name} is .*; expected a tuple of some of .*{word}")
        for name, word in (("data", "kmnist"), ("methods", "IFGM"), ("chosen", "none"), ("norms", "linf"))
        for value in ((), ("other",), (word, word), word, 3, (["list"],))
    ),
    ("allocation", "other", "allocation is 'other'; expected one of stratified, random"),
    ("allocation", ("random",), r"allocation is \('random',\); expected one of stratified, random"),
]


@pytest.mark.parametrize(
    ("name", "value", "match"), WRONG, ids=[f"{k}-{n}" for k, (n, *_) in enumerate(WRONG)]
)
def test_a_wrong_parameter_is_refused(name: str, value: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(Config(), **{name: value})


def test_the_settings_of_the_paper() -> None:
    paper = SCALES["paper"]
    assert paper == Config()
    assert paper.data == ("mnist", "fashion-mnist", "kmnist")
    assert (paper.epochs, paper.rate, paper.rho, paper.step, paper.steps) == (30, 1e-3, 0.45, 0.1, 15)
    assert (paper.eta, paper.level, paper.width, paper.train, paper.attacked) == (2.0, 7, 64, 60000, 10000)
    assert SCALES["smoke"].data == ("digits",)
    assert {*SCALES} == {"smoke", "small", "paper"}


@pytest.mark.parametrize("device", ["cuda", "meta", "nowhere", "", 1.5])
def test_a_device_that_is_not_there_is_refused_before_the_work(device: Any, made_up: Images) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("torch: this machine has a GPU")

    def never(*given: Any) -> Any:
        pytest.fail("it began to work")

    with pytest.raises(ValueError, match=f"device is {device!r}; expected cpu, or cuda"):
        STUDY.compute(replace(TINY, device=device), rng(0), never)


def test_fewer_images_than_asked_for(made_up: Images) -> None:
    with pytest.raises(
        ValueError, match="held_out is 100; expected less than the 100 training images of digits"
    ):
        STUDY.compute(replace(TINY, train=5000, held_out=100), rng(0))
    config = replace(TINY, train=5000, attacked=5000, judged=500)
    for name, images, tested in (("choose", 80, 20), ("report", 100, 50)):
        setting = "FGM linf 0.1" if name == "report" else "random-start FGM linf 0.1"
        row = STUDY.compute_task(config, task(name, setting), rng(0))
        assert (row["trained on"], row["tested on"]) == (images, tested)


# --- The two stages ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervised, "load", lambda name, folder: digits())
        return STUDY.compute(TINY, rng(0))


@pytest.mark.slow
def test_rows(tiny: Table) -> None:
    assert tiny.config is TINY
    where = ["stage", "data", "method", "setting", "trial", "seed"]
    what = ["mean l2", "mean linf", "trained on", "tested on", "images", "curve"]
    images = digits()
    for row in tiny.rows:
        assert list(row) == [*where, "evaluations", "clean", *ATTACKED, *what]
        assert all(0 <= row[name] <= 100 for name in ("clean", *ATTACKED))
        assert len(row["curve"]) == TINY.epochs
        assert row["images"] == images.digest
        assert (row["trained on"], row["tested on"]) == ((40, 15) if row["stage"] == "choose" else (60, 30))
        flat = images.train_x[: row["trained on"]].reshape(row["trained on"], -1) / 16
        assert row["mean l2"] == pytest.approx(np.sqrt((flat**2).sum(1)).mean())
        assert row["mean linf"] == pytest.approx(flat.max(1).mean())
    json.dumps(tiny.rows)


def test_methods_and_trials(tiny: Table) -> None:
    report = stage(tiny, "report")
    trials = {
        name: [r["trial"] for r in report if r["method"] == name] for name in (r["method"] for r in report)
    }
    many, few = [0, 1, 2], [0, 1]
    assert trials == {
        "ERM": many,
        "FGM linf 0.45": many,
        "FGM linf 0.1": many,
        "SG linf 0.45": few,
        "random-start FGM, chosen": many,
        "tilted, chosen": many,
    }
    assert all(row["setting"] == row["method"] for row in report if "chosen" not in row["method"])
    assert {row["trial"] for row in stage(tiny, "choose")} == {0}
    assert {row["method"] for row in stage(tiny, "choose")} == {"random-start FGM", "tilted"}


def test_methods_of_a_trial_share_its_seed(tiny: Table) -> None:
    seeds = [{row["seed"] for row in tiny.rows if row["trial"] == trial} for trial in range(3)]
    assert [len(one) for one in seeds] == [1, 1, 1]
    assert len(set.union(*seeds)) == 3


def by_hand(row: dict[str, Any]) -> float:
    l2, linf = (
        fmean([row["PGM l2 0.1"], row["PGM l2 0.2"]]),
        fmean([row["PGM linf 0.1"], row["PGM linf 0.2"]]),
    )
    return fmean([row["clean"], row["noise l2 0.5"], row["noise linf 0.5"], l2, linf])


def test_the_setting_with_the_least_score_on_held_out_images_is_chosen(tiny: Table) -> None:
    for family in ("random-start FGM", "tilted"):
        scores = {r["setting"]: by_hand(r) for r in stage(tiny, "choose") if r["method"] == family}
        assert len(set(scores.values())) > 1
        found = {r["setting"] for r in stage(tiny, "report") if r["method"] == f"{family}, chosen"}
        assert found == {min(scores, key=scores.__getitem__)}


@pytest.mark.slow
def test_test_images_have_no_part_in_the_choice(tiny: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "load", lambda name, folder: digits(test=9))
    other = STUDY.compute(TINY, rng(0))

    def seen(table: Table, name: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "images"} for row in stage(table, name)]

    assert seen(other, "choose") == seen(tiny, "choose")
    report = seen(other, "report")
    assert [r["setting"] for r in report] == [r["setting"] for r in seen(tiny, "report")]
    assert [r["curve"] for r in report] == [r["curve"] for r in seen(tiny, "report")]
    assert [r["clean"] for r in report] != [r["clean"] for r in seen(tiny, "report")]


@pytest.mark.slow
def test_what_networks_are_trained_and_judged_by(made_up: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    judged: list[Any] = []
    begun: list[Any] = []

    def train(model: Any, objective: Any, x: Any, y: Any, plan: Any, source: Any, **more: Any) -> Any:
        trained.append((x.numpy().copy(), y.numpy().copy()))
        begun.append(([v.tolist() for v in model.state_dict().values()], source.state()["entropy"]))
        passed: list[Any] = []
        hook = model.register_forward_hook(
            lambda model, given, found: passed.append(given[0].detach().numpy())
        )
        curve = training.train(model, objective, x, y, plan, source, **more)
        hook.remove()
        if more["about"]["setting"] == "ERM":  # all of them each epoch, and nothing else
            rows = np.sort(np.concatenate(passed).reshape(-1, 64), axis=0)
            np.testing.assert_array_equal(rows, np.sort(np.repeat(x.numpy().reshape(-1, 64), 2, 0), axis=0))
        return curve

    def errors(model: Any, x: Any, y: Any, scale: Any, *more: Any, **rest: Any) -> Any:
        judged.append((x.numpy().copy(), y.numpy().copy(), scale))
        return found(model, x, y, scale, *more, **rest)

    found = supervised.errors
    monkeypatch.setattr(supervised, "train", train)
    monkeypatch.setattr(supervised, "errors", errors)
    rows = STUDY.compute(replace(TINY, chosen=("tilted",), seeds=2), rng(0)).rows
    train_x, test_x = made_up.train_x[:, None] / 16, made_up.test_x[:, None] / 16
    for row, (x, y), (at_x, at_y, scale), begin in zip(rows, trained, judged, begun, strict=True):
        choose = row["stage"] == "choose"
        np.testing.assert_array_equal(x, train_x[:40] if choose else train_x[:60])
        np.testing.assert_array_equal(y, made_up.train_y[: len(x)])
        np.testing.assert_array_equal(at_x, train_x[40:55] if choose else test_x[:30])
        np.testing.assert_array_equal(at_y, made_up.train_y[40:55] if choose else made_up.test_y[:30])
        assert scale == {"l2": row["mean l2"], "linf": row["mean linf"]}
        # The methods of one trial begin alike.
        assert all((begin == b) == (row["trial"] == r["trial"]) for b, r in zip(begun, rows, strict=True))


def test_a_chosen_setting_is_that_of_its_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, data=("mnist", "kmnist"), seeds=2, methods=("ERM",), chosen=("tilted",))
    best = {"mnist": "tilted linf 0.3, eta 0.006", "kmnist": "tilted l2 3, kappa 1"}
    monkeypatch.setattr(supervised, "load", lambda name, folder: digits())

    def map_tasks(study: Any, config: Config, tasks: list[Any], rng: Any) -> list[Any]:
        rows = [dict.fromkeys(("clean", *ATTACKED), 50.0) | task for task in tasks]
        for row in rows:
            row["PGM linf 0.2"] -= row["setting"] == best[row["data"]]
        return rows

    report = stage(STUDY.compute(config, rng(0), map_tasks), "report")
    found = {(r["data"], r["setting"]) for r in report if r["method"] == "tilted, chosen"}
    assert found == set(best.items())


def test_no_choice(made_up: Images) -> None:
    config = replace(TINY, chosen=("none",), methods=("ERM",), data=("digits",))
    table = STUDY.compute(config, rng(0), lambda study, config, tasks, rng: list(tasks))
    assert [row["method"] for row in table.rows] == ["ERM"] * 3


def test_threads_are_those_asked_for_and_given_back(made_up: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        TaskDir, "report_progress", lambda self, share, text: seen.append(torch.get_num_threads())
    )
    STUDY.compute_task(replace(TINY, threads=2), task(), rng(0))
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1
    with pytest.raises(KeyError):
        STUDY.compute_task(replace(TINY, threads=2), task(setting="none"), rng(0))
    assert torch.get_num_threads() == 1


def test_progress_goes_from_nothing_to_all(made_up: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, str]] = []
    monkeypatch.setattr(TaskDir, "report_progress", lambda self, share, text: told.append((share, text)))
    STUDY.compute_task(TINY, task(), rng(0))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == pytest.approx(1)
    assert [text[:4] for _, text in told] == ["loss"] * 8 + ["atta"] * 6
    assert STUDY.work(TINY, task(setting="FGM linf 0.1")) > STUDY.work(TINY, task()) > 0
