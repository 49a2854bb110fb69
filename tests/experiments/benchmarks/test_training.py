"""The benchmark of training: what it counts and compares, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.backends import rng
from phiball.experiments.cli.app import app

torch = pytest.importorskip("torch", reason="torch: not installed")
special = pytest.importorskip("scipy.special", reason="scipy: not installed")

from phiball.experiments.benchmarks import exact_problems, third_party  # noqa: E402
from phiball.experiments.benchmarks import training_cost as cost  # noqa: E402
from phiball.experiments.benchmarks import training_quality as quality  # noqa: E402
from phiball.experiments.benchmarks import training_stages as stages  # noqa: E402
from phiball.experiments.benchmarks import training_steps as steps  # noqa: E402
from phiball.experiments.benchmarks.own_process import AVAILABLE, in_own_process  # noqa: E402
from tests.support.progress import Watched  # noqa: E402

Z = 4.75  # one in a million


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third_party, "optional_module", lambda name: None)


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part", "both"], "part is 'both'; expected one of all, stages, cost, quality"),
        (["--quick", "--full"], "quick and full are both given; expected one of them, or none"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "training", *options])
    assert result.exit_code == 1
    assert result.stderr == f"phiball: {message}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, estimated = cost.rows, quality.rows
    monkeypatch.setattr(cost, "rows", lambda **how: measured(**{**how, "seconds": 0.0, "memory": False}))
    problems = [exact_problems.logistic(4), exact_problems.linear(4, 3)]
    monkeypatch.setattr(exact_problems, "problems", lambda: problems)
    monkeypatch.setattr(
        quality, "rows", lambda known, **how: estimated(known, levels=(0, 2), **{**how, "work": 1})
    )
    monkeypatch.setattr(steps, "STEPS", 2)
    staged = stages.rows
    monkeypatch.setattr(stages, "rows", lambda **how: staged(**{**how, "seconds": 0.0, "width": 1}))
    options = ["--quick", "--width", "1", "--out", str(tmp_path)]
    watched = Watched(monkeypatch)
    result = CliRunner().invoke(app, ["bench", "training", *options])
    assert result.exit_code == 0, result.output
    watched.check(10)
    for name in ("torchattacks", "skwdro", "dro"):
        assert f"{name} cannot be imported: pip install --no-deps {name}" in result.output
    assert "The stages of a training step" in result.output
    assert "plain steps per evaluation" in result.output
    assert "fast network: a training step takes" in result.output
    assert "Evaluations, in batches of 64, for a gradient error" in result.output
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert (record["seed"], record["threads"], record["width"]) == (0, 1, 1)
    assert len(record["stages"]) == 3 * 6  # networks, methods
    assert [row["bar"] is None for row in record["stages"]] == [True] + [False] * 5 + [True] + [False] * 5 + [
        True
    ] * 6
    assert len(record["cost"]) == 23
    assert all(row["ratio"] > 0 and row["steps"] == 2 and row["peak"] is None for row in record["cost"])
    assert len(record["quality"]) == 2 * 4 * 3 * 2  # problems, points, estimators, levels
    for row in record["quality"]:
        assert row["replications"] == 16
        assert row["mse_cost"] > 0
        # The mean of squares is the square of the mean and the variance.
        square = row["bias"] ** 2 + row["noise"] ** 2 * 15 / 16
        assert row["mse_cost"] == pytest.approx(square * row["evaluations"])
    page = (tmp_path / "training.md").read_text()
    assert page.count("\n## ") == 1 + 1 + 2 * 4 + 1
    assert "changes the objective F^L" in page


# --- Cost -----------------------------------------------------------------------------------------


@pytest.fixture
def work() -> steps.Workload:
    return steps.workload(1, 0)


def gradient(work: steps.Workload) -> Any:
    return torch.cat([p.grad.flatten() for p in work.model.parameters()])


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_evaluations_are_what_they_should_be(work: steps.Workload) -> None:
    expected = {
        "ERM": 1, "plain noise": 1, "FGM": 2, "random-start FGM": 2, "IFGM, 15 steps": 16,
        "tilted linf, SG(0)": 2, "tilted l2, SG(0)": 2, "tilted l2, SG(2)": 5,
        "tilted l2, SG(0), retilt 1": 3, "SG, L = 0": 1, "SG, L = 1": 2,
        "SG, L = 2": 4, "SG, L = 3": 8, "SG, L = 4": 16, "SG, L = 2, chunk 256": 4, "SG, L = 3, chunk 256": 8,
        "SG, L = 4, chunk 64": 16, "SG, L = 4, chunk 256": 16, "SG, L = 4, chunk 1024": 16,
        "ERM on 4 x the images": 4, "ERM on 16 x the images": 16,
        "fast network: ERM": 1, "fast network: IFGM, 15 steps": 16,
    }  # fmt: skip
    random = set()
    before = [p.detach().clone() for p in work.model.parameters()]
    for name, method in steps.training_steps(work).items():
        work.seen.clear()
        work.step(method.gradient)
        assert torch.all(torch.isfinite(gradient(work)))
        assert torch.any(gradient(work) != 0)
        if method.varies:
            random.add(name)
            # A tilted step takes the gradients in the data points first.
            assert sum(work.seen) >= cost.BATCH * (2 if "tilted" in name else 1)
        else:
            assert sum(work.seen) == cost.BATCH * expected.pop(name), name
        if "chunk" in name:
            assert max(work.seen) <= int(name.split()[-1])
            assert max(work.seen) == sum(work.seen) or len(work.seen) > 1
    assert expected == {}
    assert random == {
        "tilted l2, RT-MLMC, L = 7",
        "fast network: RT-MLMC, L = 7, random",
        *(f"RT-MLMC, L = 7, {how}" for how in ("random", "stratified", "chunk 64", "chunk 256")),
    }
    # The optimizer's rate is zero: every method meets the same network.
    assert all(torch.equal(a, b) for a, b in zip(before, work.model.parameters(), strict=True))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("name", "norm", "radius"), [("linf", torch.inf, 0.3), ("l2", 2, 0.45)])
def test_tilted_points_lie_in_the_ball_of_their_row(
    name: str, norm: float, radius: float, work: steps.Workload
) -> None:
    met = []
    work.model.register_forward_pre_hook(lambda module, x: met.append(x[0].detach()))
    work.step(steps.training_steps(work, quick=True)[f"tilted {name}, SG(0)"].gradient)
    far = torch.linalg.vector_norm((met[-1] - work.x).flatten(1), norm, dim=1)
    # In 784 dimensions the farthest of 64 points lies within 2 % of the border.
    assert 0.98 * radius < float(far.max()) < radius * (1 + 1e-5)


@pytest.mark.usefixtures("_alone")
def test_full_and_quick_levels(work: steps.Workload) -> None:
    full, quick = steps.training_steps(work, full=True), steps.training_steps(work, quick=True)
    assert "SG, L = 7" in full
    assert "SG, L = 7, chunk 64" in full
    assert "SG, L = 3" not in quick
    assert "SG, L = 2, chunk 256" in quick


@pytest.mark.usefixtures("_alone")
def test_chunks_leave_the_same_gradient(work: steps.Workload) -> None:
    gradients = []
    for name in ("SG, L = 2", "SG, L = 2, chunk 64"):
        work.step(steps.training_steps(work, quick=True)[name].gradient)  # made anew: the same draws
        gradients.append(gradient(work))
    # float32 sums of 256 terms, in another order
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("name", ["ERM", "IFGM, 15 steps", "RT-MLMC, L = 7, random"])
def test_the_fast_network_leaves_the_same_gradient_in_the_same_place(name: str, work: steps.Workload) -> None:
    plain_images = []
    work.model.register_forward_pre_hook(lambda module, x: plain_images.append(len(x[0])))
    gradients = []
    for form in ("", steps.FAST):
        plain_images.clear()
        work.step(steps.training_steps(work, quick=True)[form + name].gradient)  # made anew: the same draws
        assert bool(plain_images) == (form == "")
        gradients.append(gradient(work))
    # float32: an iterate of IFGM carries the rounding of those before it
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_time_over_a_clock_that_counts_images(work: steps.Workload) -> None:
    """Where an image costs one second, the time of a method is its evaluations, by mean and by median."""
    total = [0]
    work.model.register_forward_pre_hook(lambda module, x: total.__setitem__(0, total[0] + len(x[0])))
    # The clock sees the plain network alone.
    skipped = ("IFGM", steps.FAST)
    some = {n: m for n, m in steps.training_steps(work, quick=True).items() if not n.startswith(skipped)}
    measured = cost.measure(work, some, 0.0, clock=lambda: float(total[0]))
    assert list(measured) == list(some)
    for ratio, evaluations, count in measured.values():
        assert ratio == pytest.approx(evaluations)
        assert count == 2
    assert measured["RT-MLMC, L = 7, random"][1] > 1
    assert measured["SG, L = 2"][:2] == (4.0, 4.0)


@pytest.mark.parametrize(("varies", "ratio"), [(False, 1.0), (True, 2.2)])
def test_means_for_what_varies_and_medians_for_the_rest(
    varies: bool, ratio: float, work: steps.Workload
) -> None:
    now = [0.0]

    def plain() -> None:
        now[0] += 1.0

    costs = iter([1000.0, 1.0, 7.0, 1.0, 1.0, 1.0])  # the first is the warm-up

    def other() -> None:
        now[0] += next(costs)

    both = {"ERM": steps.TrainingStep(plain), "other": steps.TrainingStep(other, varies)}
    measured = cost.measure(work, both, 10.5, clock=lambda: now[0])
    assert measured["other"] == (ratio, 0.0, 5)
    assert measured["ERM"][0] == 1.0


@pytest.mark.skipif(not AVAILABLE, reason="no forkserver on this system")
def test_memory_is_bounded_by_the_chunk() -> None:
    """1024 images of width 8 in one graph, and in pieces of 64: more than half of it is saved."""
    peaks = {
        name: in_own_process(cost.peak, name, 8, False, False, 0, 1)
        for name in ("SG, L = 4", "SG, L = 4, chunk 64")
    }
    # What must be kept for the backward pass: the images, and the outputs of the first layer and its ELU.
    graph = 1024 * 4 * (784 + 2 * 8 * 14 * 14) / 2**20
    assert peaks["SG, L = 4"] > graph
    assert peaks["SG, L = 4, chunk 64"] < peaks["SG, L = 4"] / 2


@pytest.mark.parametrize(("sizes", "batch"), stages.DENSE.items())
def test_stages_of_a_step(sizes: tuple[int, ...], batch: int) -> None:
    """A clock that ticks at every look shows the order of the stages; each leaves its gradient."""
    work, now = stages.dense(sizes, batch, 0), [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    plain = stages.plain_step(work, tick)
    assert plain == {"drawing": 0.0, "forward": 1.0, "solving": 1.0, "backward": 1.0, "optimizer": 2.0}
    before = [p.detach().clone() for p in work.model.parameters()]
    for name, objective in stages.objectives().items():
        work.optimizer.zero_grad()
        times = stages.objective_step(work, objective, rng(0), tick)
        drawing = 3.0 if "tilted" in name else 1.0  # the loss is called once more, to aim
        assert times == {**dict.fromkeys(stages.STAGES, 1.0), "drawing": drawing, "optimizer": 2.0}
        assert torch.any(gradient(work) != 0)
    assert all(torch.equal(a, b) for a, b in zip(before, work.model.parameters(), strict=True))


def test_blocks_of_steps_are_timed_between_plain_ones() -> None:
    now = [0.0]

    def taking(seconds: float) -> stages.Step:
        def step() -> stages.Times:
            now[0] += seconds
            return dict.fromkeys(stages.STAGES, seconds / 5)

        return step

    steps_of = {"ERM": taking(0.001), "other": taking(0.0025)}
    found = stages.measure(steps_of["ERM"], steps_of, 0.1, clock=lambda: now[0])
    for name, ratio in (("ERM", 1.0), ("other", 2.5)):
        assert len(found[name]) >= 3
        for spent, times in found[name]:
            assert spent == pytest.approx(ratio)
            assert times == pytest.approx(dict.fromkeys(stages.STAGES, ratio / 5))
    rows = [
        stages.Row("64-128-10", "SG(0)", 1.81, 1.8, dict.fromkeys(stages.STAGES, 0.36), 3),
        stages.Row("64-128-10", "SG(2)", 2.5, 2.5, dict.fromkeys(stages.STAGES, 0.5), 3),
        stages.Row("64-128-10", "ERM", 1.0, None, dict.fromkeys(stages.STAGES, 0.2), 3),
    ]
    assert stages.verdicts(rows) == [
        "64-128-10, SG(0): 1.81 plain steps, ABOVE 1.8",
        "64-128-10, SG(2): 2.50 plain steps, within 2.5",
    ]
    assert stages.table(rows, 1).rows[2] == ("64-128-10", "ERM", "1.00", "", *["0.20"] * 5)


def row(method: str, ratio: float, evaluations: float) -> cost.Row:
    return cost.Row(method, ratio, evaluations, 5, 12.3)


def test_verdicts() -> None:
    lines = cost.verdicts(
        [
            row("ERM", 1.0, 1.0),
            row("SG, L = 2", 4.4, 4.0),
            row("SG, L = 2, chunk 64", 9.0, 4.0),
            row("RT-MLMC, L = 7, random", 4.5, 4.0),
            row("FGM", 9.0, 2.0),
            row("tilted l2, SG(0)", 2.3, 2.0),
            row("tilted linf, SG(0)", 2.31, 2.0),
            row("tilted l2, SG(2)", 9.0, 5.0),
            row("tilted l2, SG(0), retilt 1", 9.0, 3.0),
        ]
    )
    assert lines == [
        "SG, L = 2: 1.100 plain steps per evaluation, within 1.10",
        "RT-MLMC, L = 7, random: 1.125 plain steps per evaluation, ABOVE 1.10",
        "tilted l2, SG(0): 2.30 plain steps, within 2.30",
        "tilted linf, SG(0): 2.31 plain steps, ABOVE 2.30",
    ]


def test_the_last_verdict_is_of_the_fast_network() -> None:
    """A training step of 0.6 plain ones; 15 input gradients take 7.5 plain steps, where they took 15."""
    rows = [row("ERM", 1.0, 1.0), row("IFGM, 15 steps", 16.0, 16.0), row("fast network: ERM", 0.6, 1.0)]
    assert cost.verdicts(rows) == []
    assert cost.verdicts([*rows, row("fast network: IFGM, 15 steps", 8.1, 16.0)]) == [
        "fast network: a training step takes 0.60 of the plain network's time, an input gradient 0.50"
    ]


def test_third_parties_get_our_settings(work: steps.Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of: dict[str, Any] = {}

    def pgd(model: Any, **settings: Any) -> Any:
        settings_of["torchattacks"] = settings
        return lambda x, y: x + 0.0

    def robustify(loss: Any, transform: Any, rho: Any, x: Any, y: Any, **settings: Any) -> Any:
        settings_of["skwdro"] = (float(rho), tuple(x.shape), tuple(y.shape), settings)

        def dual(x: Any, y: Any) -> Any:  # 2 samples per point, in the layout that skwdro has
            losses = loss(x.expand(2, *x.shape), y.expand(2, *y.shape))
            assert losses.shape == (2, cost.BATCH, 1)
            return losses.mean()

        return dual

    class Sinkhorn:
        def __init__(self, *sizes: int, **settings: Any) -> None:
            settings_of["dro"] = settings

        def _rtmlmc_criterion(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.model(x), y)  # type: ignore[attr-defined]

    fakes = {
        "torchattacks": SimpleNamespace(PGDL2=pgd),
        "skwdro.torch": SimpleNamespace(robustify=robustify),
        "dro.neural_model.sinkhorn_nn": SimpleNamespace(SinkhornNNDRO=Sinkhorn),
    }
    monkeypatch.setattr(third_party, "optional_module", fakes.get)
    named = third_party.third_party_steps(work, steps.BALL, 15, 7, 0)
    assert [varies for _, varies in named.values()] == [False, False, True]
    for run, _ in named.values():
        work.step(run)
        assert torch.any(gradient(work) != 0)
    assert settings_of["torchattacks"] == {"eps": 0.45, "alpha": pytest.approx(0.075), "steps": 15}
    assert settings_of["skwdro"] == (pytest.approx(0.45), (64, 784), (64, 1), {"n_samples": 20})
    assert settings_of["dro"]["k_sample_max"] == 8  # levels 0, ..., 7
    assert settings_of["dro"]["optimization_type"] == "RTMLMC"
    assert third_party.missing() == []
