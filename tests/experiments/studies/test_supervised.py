"""The study of supervised learning: losses of its methods, its stages, resumed runs, and its verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.datasets.images import load
from phiball.experiments.framework.runner import run
from phiball.experiments.framework.tasks import Table, TaskDir
from phiball.experiments.studies.supervised.methods import candidates, fixed, readings
from phiball.experiments.studies.supervised.study import STUDY, Config, trained_network
from phiball.experiments.training.methods import Method
from tests.support.supervised_tasks import digits, use_images

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
    width=1,
    epochs=2,
    batch=16,
    rate=0.02,
    steps=2,
    noise_ratios=(0.5,),
    pgm_ratios=(0.1, 0.2),
)
ATTACKED = ("noise l2 0.5", "noise linf 0.5", "PGM l2 0.1", "PGM l2 0.2", "PGM linf 0.1", "PGM linf 0.2")

# --- Losses of the methods --------------------------------------------------------------------------

CONFIG = Config(level=3, steps=7, step=0.1, rho=0.45, eta=2.0, alpha=0.5)
RHO, ETA = 0.45, 0.9
NORMS = {"l2": 2.0, "linf": inf}


class Batch:
    """A batch of a small classifier, and the points that a method evaluates it at."""

    def __init__(self, n: int = 10) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            nn = torch.nn
            self.model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ELU(), nn.Linear(6, 3)).double()
        draws = np.random.default_rng(2)
        self.x, self.y = torch.tensor(draws.random((n, 1, 4, 4))), torch.tensor(draws.integers(0, 3, n))
        self.count = 0
        self.model.register_forward_hook(lambda model, given, found: self._counted(len(found)))
        self.seen: list[tuple[Any, Any]] = []

    def _counted(self, n: int) -> None:
        self.count += n

    def loss(self, x: Any, i: Any) -> Any:
        self.seen.append((x.detach(), i))
        return self.value(x, i)

    def value(self, x: Any, i: Any) -> Any:
        return -self.model(x).log_softmax(-1)[torch.arange(len(x)), self.y[i]]

    def of(self, method: Method, seed: int = 0) -> float:
        self.seen, self.count = [], 0
        return float(method.objective(self.loss, self.x, rng(seed)).detach())

    def slope(self, x: Any) -> Any:
        """The gradient at one point of each image, by differences."""
        found = torch.zeros_like(x)
        every = torch.arange(len(x))
        for row in range(4):
            for column in range(4):
                step = torch.zeros_like(x)
                step[:, 0, row, column] = 1e-6
                rise = self.value(x + step, every) - self.value(x - step, every)
                found[:, 0, row, column] = (rise / 2e-6).detach()
        return found

    def by_image(self) -> list[Any]:
        """Of the last evaluation, the losses of each image's points, in order."""
        x, i = self.seen[-1]
        values = self.value(x, i).detach()
        return [values[i == k].numpy() for k in range(len(self.x))]


def length(b: Any, norm: str) -> Any:
    return torch.linalg.vector_norm(b.flatten(1), NORMS[norm], dim=-1)


def towards(g: Any, norm: str, far: float) -> Any:
    return far * (torch.sign(g) if norm == "linf" else g / length(g, "l2")[:, None, None, None])


def back(b: Any, norm: str, radius: float) -> Any:
    if norm == "linf":
        return b.clip(-radius, radius)
    return b * (radius / length(b, "l2").clip(min=radius))[:, None, None, None]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("radius", "step"), [(0.45, 0.1), (0.1, 2.5 * 0.1 / 7)])
def test_attacked_losses(norm: str, radius: float, step: float) -> None:
    """Plain training, FGM to the border, and IFGM by its steps, with gradients by differences."""
    batch, methods, places = Batch(), fixed(CONFIG), torch.arange(10)
    one = batch.x + towards(batch.slope(batch.x), norm, radius)
    many = batch.x
    for _ in range(7):
        many = batch.x + back(many + towards(batch.slope(many), norm, step) - batch.x, norm, radius)
    for name, x in (("ERM", batch.x), (f"FGM {norm} {radius:g}", one), (f"IFGM {norm} {radius:g}", many)):
        expected = batch.value(x, places).mean().item()
        assert batch.of(methods[name]) == pytest.approx(expected, rel=1e-5)
        assert batch.count == 10 * methods[name].evaluations


def entropic(f: Any) -> float:
    return ETA * log(np.mean(np.exp(f / ETA)))


def quadratic(f: Any) -> float:
    """The best of all sets of points that may have weight, where the optimum is an equation."""
    n, found = len(f), -inf
    for k in range(1, n + 1):
        top = np.sort(f)[-k:]
        weight = 1 / k + (top - top.mean()) / (ETA * n)
        if weight.min() >= 0:
            value = weight @ top - ETA * (np.sum((n * weight) ** 2) / n - 1) / 2
            found = max(found, float(value))
    return found


SAMPLED: dict[str, Callable[[Any], float]] = {
    "noise x4": lambda f: float(np.mean(f)),
    "SG": entropic,
    "quadratic": quadratic,
    "CVaR": lambda f: float(np.mean(np.sort(f)[2:])),  # the upper half of four
}


@pytest.mark.parametrize("family", SAMPLED)
def test_sampled_losses(family: str) -> None:
    batch = Batch()
    found = batch.of(fixed(CONFIG)[f"{family} linf 0.45"])
    points, i = batch.seen[-1]
    assert np.bincount(i).tolist() == [4] * 10
    far = (points - batch.x[i]).abs()
    assert 0.44 < far.max() <= RHO
    assert far.mean() == pytest.approx(RHO / 2, abs=0.03)
    assert found == pytest.approx(np.mean([SAMPLED[family](f) for f in batch.by_image()]), abs=1e-5)


@pytest.mark.parametrize("allocation", ["stratified", "random"])
@pytest.mark.parametrize("norm", NORMS)
def test_rtmlmc_telescopes(allocation: str, norm: str) -> None:
    batch = Batch(40)
    found = batch.of(fixed(replace(CONFIG, allocation=allocation))[f"RT-MLMC {norm} 0.45"])
    points, i = batch.seen[-1]
    assert 0.38 < length(points - batch.x[i], norm).max() <= RHO + 1e-12
    total, levels = 0.0, set()
    for f in batch.by_image():
        level = len(f).bit_length() - 1
        levels.add(level)
        below = 0.0 if level == 0 else (entropic(f[: len(f) // 2]) + entropic(f[len(f) // 2 :])) / 2
        total += (entropic(f) - below) * (2 - 2**-3) * 2**level
    assert levels == {0, 1, 2, 3}
    assert found == pytest.approx(total / 40, rel=1e-6)


def test_every_candidate_perturbs_by_the_radius_of_its_name() -> None:
    for name, method in candidates(Config(level=3)).items():
        norm, radius = name.removeprefix(method.family).replace(",", "").split()[:2]
        batch = Batch(30)
        batch.of(method)
        points, i = batch.seen[-1]
        far = length(points - batch.x[i], norm)
        assert 0.6 * float(radius) < far.max() <= float(radius) * (1 + 1e-9), name
    assert candidates(Config(chosen=("none",))) == {}


def test_readings_need_all_of_their_methods() -> None:
    names = [r.name for r in readings(Config())]
    assert names == [f"{norm}, {name}" for norm in NORMS for name in ("rho", "literal", "step")]
    literal = readings(Config(norms=("linf",)))[1]
    assert (literal.ours, literal.baselines) == (
        "RT-MLMC linf 0.45",
        ("ERM", "FGM linf 0.1", "IFGM linf 0.45"),
    )
    assert readings(Config(methods=("ERM", "FGM", "RT-MLMC"))) == []


# --- The two stages ---------------------------------------------------------------------------------


def stage(table: Table, name: str) -> list[dict[str, Any]]:
    return [row for row in table.rows if row["stage"] == name]


def task(stage: str = "report", setting: str = "ERM", seed: int = 5) -> dict[str, Any]:
    names = {"stage": stage, "data": "digits", "method": setting, "setting": setting}
    return {**names, "trial": 0, "seed": seed}


def test_invalid_options() -> None:
    for name, value, match in (
        ("train", 0, "train is 0; expected a whole number"),
        ("seeds", 1, "seeds is 1; expected a whole number of at least 2"),
        ("alpha", 1.5, "alpha is 1.5; expected at most 1"),
        ("pgm_ratios", (0.2, 0.1), "pgm_ratios is .*; expected increasing numbers"),
        ("held_out", 60000, "held_out is 60000; expected less than train, 60000"),
        ("methods", ("other",), "methods is .*; expected some of .*IFGM"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(Config(), **{name: value})  # type: ignore[arg-type]


def test_unusable_device_and_data_are_refused_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits())

    def never(*given: Any) -> Any:
        pytest.fail("a task was computed")

    with pytest.raises(ValueError, match="device is 'nowhere'; expected cpu, or cuda"):
        STUDY.compute(replace(TINY, device="nowhere"), rng(0), never)
    with pytest.raises(ValueError, match="held_out is 100; expected less than the 100 training images"):
        STUDY.compute(replace(TINY, train=5000, held_out=100), rng(0), never)


@pytest.fixture(scope="module")
def tiny() -> Table:
    with pytest.MonkeyPatch.context() as patch:
        use_images(patch, digits())
        return STUDY.compute(TINY, rng(0))


def test_rows(tiny: Table) -> None:
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
    seeds = [{row["seed"] for row in tiny.rows if row["trial"] == trial} for trial in range(3)]
    assert [len(one) for one in seeds] == [1, 1, 1]  # the methods of a trial share its seed
    assert len(set.union(*seeds)) == 3


def test_setting_with_the_lowest_score_on_held_out_images_is_chosen(tiny: Table) -> None:
    def score(row: dict[str, Any]) -> float:
        pgm = [fmean([row[f"PGM {norm} 0.1"], row[f"PGM {norm} 0.2"]]) for norm in NORMS]
        return fmean([row["clean"], row["noise l2 0.5"], row["noise linf 0.5"], *pgm])

    for family in ("random-start FGM", "tilted"):
        scores = {r["setting"]: score(r) for r in stage(tiny, "choose") if r["method"] == family}
        assert len(set(scores.values())) > 1
        found = {r["setting"] for r in stage(tiny, "report") if r["method"] == f"{family}, chosen"}
        assert found == {min(scores, key=scores.__getitem__)}


@pytest.mark.slow
def test_test_images_have_no_part_in_the_choice(tiny: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits(test=9))
    other = STUDY.compute(TINY, rng(0))
    for name in ("setting", "curve"):
        assert [row[name] for row in other.rows] == [row[name] for row in tiny.rows]
    clean = [[row["clean"] for row in stage(table, "report")] for table in (other, tiny)]
    assert clean[0] != clean[1]


# --- Runs -------------------------------------------------------------------------------------------

RUN = replace(TINY, methods=("ERM", "RT-MLMC"), chosen=("tilted",), seeds=2, level=3, train=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sklearn", "matplotlib", "joblib", "threadpoolctl"):
        pytest.importorskip(name, reason=f"{name}: not installed")
    out = tmp_path_factory.mktemp("whole") / "run"
    _, written = run(STUDY, RUN, out, seed=3)
    assert {file.name for file in written} == {"table.csv", "report.md", "panels-linf.png", "panels-linf.svg"}
    return out


@pytest.mark.slow
def test_trained_network_has_the_errors_of_its_row(whole: Path) -> None:
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
def test_checkpoint_of_another_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_images(monkeypatch, digits())
    STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))
    for config, one, match in (
        (TINY, task(setting="FGM linf 0.1"), "setting is 'ERM', not 'FGM linf 0.1'"),
        (TINY, task(seed=6), "seed is 5, not 6"),
        (replace(TINY, rho=0.3), task(), "rho is 0.45, not 0.3"),
        (replace(TINY, train=61), task(), r"images is \[60, 1, 8, 8\], not \[61, 1, 8, 8\]"),
    ):
        with pytest.raises(ValueError, match=f"checkpoint of another training: .*{match}"):
            STUDY.compute_task(config, one, rng(0), TaskDir(tmp_path))
    use_images(monkeypatch, digits(seed=4))
    with pytest.raises(ValueError, match=f"data is '{digits().digest}', not '{digits(seed=4).digest}'"):
        STUDY.compute_task(TINY, task(), rng(0), TaskDir(tmp_path))
    kept = torch.load(tmp_path / "network.pt", weights_only=True)
    torch.save({**kept, "optimizer": {}}, tmp_path / "network.pt")
    with pytest.raises(ValueError, match="is of a training that has not ended"):
        trained_network(tmp_path / "network.pt")
