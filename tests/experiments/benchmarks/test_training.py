"""The bench of training: what it counts and compares, its exact risks, and what it writes."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

torch = pytest.importorskip("torch", reason="torch: not installed")
special = pytest.importorskip("scipy.special", reason="scipy: not installed")

from phiball.experiments.benchmarks import exact_problems as known  # noqa: E402
from phiball.experiments.benchmarks import third_party as peers  # noqa: E402
from phiball.experiments.benchmarks import training_cost as cost  # noqa: E402
from phiball.experiments.benchmarks import training_methods as ways  # noqa: E402
from phiball.experiments.benchmarks import training_quality as quality  # noqa: E402

Z = 4.75  # one in a million


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_module", lambda name: None)


# --- The command ----------------------------------------------------------------------------------


def test_options_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    fake = ModuleType("phiball.experiments.benchmarks.training")
    fake.main = given.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "phiball.experiments.benchmarks.training", fake)
    options = ["--threads", "2", "--width", "8", "--full", "--part", "cost", "--seed", "3"]
    result = CliRunner().invoke(app, ["bench", "training", *options, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert given == {
        "threads": 2, "width": 8, "quick": False, "full": True, "part": "cost", "seed": 3, "out": tmp_path,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--part", "both"], "part is 'both'; expected one of all, cost, quality"),
        (["--quick", "--full"], "quick and full are both given; expected one of them, or none"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "training", *options])
    assert result.exit_code == 1
    assert result.stderr == f"phiball: {said}\n"


def test_torch_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    result = CliRunner().invoke(app, ["bench", "training", "--part", "cost"])
    assert result.exit_code == 1
    assert "the bench of training needs torch, which is not installed" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("_alone")
def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, estimated = cost.rows, quality.rows
    monkeypatch.setattr(cost, "rows", lambda **how: measured(**{**how, "seconds": 0.0, "memory": False}))
    monkeypatch.setattr(known, "problems", lambda: [known.logistic(4), known.linear(4, 3)])
    monkeypatch.setattr(
        quality, "rows", lambda tasks, **how: estimated(tasks, levels=(0, 2), **{**how, "work": 1})
    )
    monkeypatch.setattr(ways, "STEPS", 2)
    options = ["--quick", "--width", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", "training", *options])
    assert result.exit_code == 0, result.output
    for name in ("torchattacks", "skwdro", "dro"):
        assert f"{name} cannot be imported: pip install --no-deps {name}" in result.output
    assert "plain steps an evaluation" in result.output
    assert "fast network: a training step takes" in result.output
    assert "Evaluations, in batches of 64, for a gradient error" in result.output
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert (record["seed"], record["threads"], record["width"]) == (0, 1, 1)
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
    assert page.count("\n## ") == 1 + 2 * 4 + 1
    assert "change the objective F^L" in page


# --- Cost -----------------------------------------------------------------------------------------


@pytest.fixture
def task() -> ways.Task:
    return ways.task(1, 0)


def gradient(task: ways.Task) -> Any:
    return torch.cat([p.grad.flatten() for p in task.model.parameters()])


@pytest.mark.usefixtures("_alone")
def test_evaluations_are_what_they_should_be(task: ways.Task) -> None:
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
    before = [p.detach().clone() for p in task.model.parameters()]
    for name, method in ways.methods(task).items():
        task.seen.clear()
        task.step(method.gradient)
        assert torch.all(torch.isfinite(gradient(task)))
        assert torch.any(gradient(task) != 0)
        if method.varies:
            random.add(name)
            # A tilted step takes the gradients in the data points first.
            assert sum(task.seen) >= cost.BATCH * (2 if "tilted" in name else 1)
        else:
            assert sum(task.seen) == cost.BATCH * expected.pop(name), name
        if "chunk" in name:
            assert max(task.seen) <= int(name.split()[-1])
            assert max(task.seen) == sum(task.seen) or len(task.seen) > 1
    assert expected == {}
    assert random == {
        "tilted l2, RT-MLMC, L = 7",
        "fast network: RT-MLMC, L = 7, random",
        *(f"RT-MLMC, L = 7, {how}" for how in ("random", "stratified", "chunk 64", "chunk 256")),
    }
    # The optimizer's rate is zero: every method meets the same network.
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("name", "norm", "radius"), [("linf", torch.inf, 0.3), ("l2", 2, 0.45)])
def test_tilted_points_lie_in_the_ball_of_their_row(
    name: str, norm: float, radius: float, task: ways.Task
) -> None:
    met = []
    task.model.register_forward_pre_hook(lambda module, x: met.append(x[0].detach()))
    task.step(ways.methods(task, quick=True)[f"tilted {name}, SG(0)"].gradient)
    far = torch.linalg.vector_norm((met[-1] - task.x).flatten(1), norm, dim=1)
    # In 784 dimensions the farthest of 64 points lies within 2 % of the border.
    assert 0.98 * radius < float(far.max()) < radius * (1 + 1e-5)


@pytest.mark.usefixtures("_alone")
def test_full_and_quick_levels(task: ways.Task) -> None:
    full, quick = ways.methods(task, full=True), ways.methods(task, quick=True)
    assert "SG, L = 7" in full
    assert "SG, L = 7, chunk 64" in full
    assert "SG, L = 3" not in quick
    assert "SG, L = 2, chunk 256" in quick


@pytest.mark.usefixtures("_alone")
def test_chunks_leave_the_same_gradient(task: ways.Task) -> None:
    found = []
    for name in ("SG, L = 2", "SG, L = 2, chunk 64"):
        task.step(ways.methods(task, quick=True)[name].gradient)  # made anew: the same draws
        found.append(gradient(task))
    # float32 sums of 256 terms, in another order
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("name", ["ERM", "IFGM, 15 steps", "RT-MLMC, L = 7, random"])
def test_the_fast_network_leaves_the_same_gradient_in_the_same_place(name: str, task: ways.Task) -> None:
    plain_images = []
    task.model.register_forward_pre_hook(lambda module, x: plain_images.append(len(x[0])))
    found = []
    for form in ("", ways.FAST):
        plain_images.clear()
        task.step(ways.methods(task, quick=True)[form + name].gradient)  # made anew: the same draws
        assert bool(plain_images) == (form == "")
        found.append(gradient(task))
    # float32: an iterate of IFGM carries the rounding of those before it
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("_alone")
def test_time_over_a_clock_that_counts_images(task: ways.Task) -> None:
    """Where an image costs one second, the time of a method is its evaluations, by mean and by median."""
    total = [0]
    task.model.register_forward_pre_hook(lambda module, x: total.__setitem__(0, total[0] + len(x[0])))
    # The clock sees the plain network alone.
    skipped = ("IFGM", ways.FAST)
    some = {n: m for n, m in ways.methods(task, quick=True).items() if not n.startswith(skipped)}
    found = cost.measure(task, some, 0.0, clock=lambda: float(total[0]))
    assert list(found) == list(some)
    for ratio, evaluations, steps in found.values():
        assert ratio == pytest.approx(evaluations)
        assert steps == 2
    assert found["RT-MLMC, L = 7, random"][1] > 1
    assert found["SG, L = 2"][:2] == (4.0, 4.0)


@pytest.mark.parametrize(("varies", "ratio"), [(False, 1.0), (True, 2.2)])
def test_means_for_what_varies_and_medians_for_the_rest(varies: bool, ratio: float, task: ways.Task) -> None:
    now = [0.0]

    def plain() -> None:
        now[0] += 1.0

    costs = iter([1000.0, 1.0, 7.0, 1.0, 1.0, 1.0])  # the first is the warm-up

    def other() -> None:
        now[0] += next(costs)

    both = {"ERM": ways.Method(plain), "other": ways.Method(other, varies)}
    found = cost.measure(task, both, 10.5, clock=lambda: now[0])
    assert found["other"] == (ratio, 0.0, 5)
    assert found["ERM"][0] == 1.0


@pytest.mark.skipif("forkserver" not in get_all_start_methods(), reason="no getrusage on this system")
def test_memory_is_bounded_by_the_chunk() -> None:
    """1024 images of width 8 in one graph, and in pieces of 64: more than half of it is saved."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "phiball.experiments.benchmarks.training_cost"])
    found = {}
    for name in ("SG, L = 4", "SG, L = 4, chunk 64"):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found[name] = pool.submit(cost.peak, name, 8, False, False, 0, 1).result()
    # What must be kept for the backward pass: the images, and the outputs of the first layer and its ELU.
    graph = 1024 * 4 * (784 + 2 * 8 * 14 * 14) / 2**20
    assert found["SG, L = 4"] > graph
    assert found["SG, L = 4, chunk 64"] < found["SG, L = 4"] / 2


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
        "SG, L = 2: 1.100 plain steps an evaluation, within 1.10",
        "RT-MLMC, L = 7, random: 1.125 plain steps an evaluation, ABOVE 1.10",
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


def test_peers_get_our_settings(task: ways.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def pgd(model: Any, **settings: Any) -> Any:
        given["torchattacks"] = settings
        return lambda x, y: x + 0.0

    def robustify(loss: Any, transform: Any, rho: Any, x: Any, y: Any, **settings: Any) -> Any:
        given["skwdro"] = (float(rho), tuple(x.shape), tuple(y.shape), settings)

        def dual(x: Any, y: Any) -> Any:  # 2 samples a point, in the layout that skwdro has
            each = loss(x.expand(2, *x.shape), y.expand(2, *y.shape))
            assert each.shape == (2, cost.BATCH, 1)
            return each.mean()

        return dual

    class Sinkhorn:
        def __init__(self, *sizes: int, **settings: Any) -> None:
            given["dro"] = settings

        def _rtmlmc_criterion(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.model(x), y)  # type: ignore[attr-defined]

    fakes = {
        "torchattacks": SimpleNamespace(PGDL2=pgd),
        "skwdro.torch": SimpleNamespace(robustify=robustify),
        "dro.neural_model.sinkhorn_nn": SimpleNamespace(SinkhornNNDRO=Sinkhorn),
    }
    monkeypatch.setattr(peers, "_module", fakes.get)
    found = peers.peers(task, ways.BALL, 15, 7, 0)
    assert [varies for _, varies in found.values()] == [False, False, True]
    for run, _ in found.values():
        task.step(run)
        assert torch.any(gradient(task) != 0)
    assert given["torchattacks"] == {"eps": 0.45, "alpha": pytest.approx(0.075), "steps": 15}
    assert given["skwdro"] == (pytest.approx(0.45), (64, 784), (64, 1), {"n_samples": 20})
    assert given["dro"]["k_sample_max"] == 8  # levels 0, ..., 7
    assert given["dro"]["optimization_type"] == "RTMLMC"
    assert peers.missing() == []
