"""Training that is killed and goes on: the same weights, and the files that it leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, rng
from phiball.experiments.training import loop as training
from phiball.experiments.training.loop import Plan, read, train

torch = pytest.importorskip("torch", reason="torch: not installed")
from tests.support.paths import ROOT  # noqa: E402
from tests.support.stopped_training import (  # noqa: E402
    ABOUT,
    OBJECTIVES,
    PLAN,
    STEPS,
    Training,
    images,
    model,
    plain,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


# --- Killed and resumed -----------------------------------------------------------------------------


@every_objective
def test_stopped_at_any_step_it_ends_as_if_it_had_not(name: str, tmp_path: Path) -> None:
    undisturbed = Training(name, None).go().left()
    for step in range(1, STEPS + 1):
        again = Training(name, tmp_path / f"{step}.pt")
        again.until(step)
        assert again.keep is not None
        assert again.keep.exists() == (step > 1)
        steps: list[int] = []
        again.go(lambda done, total, loss, steps=steps: steps.append(done))  # type: ignore[misc]
        assert steps == list(range(step, STEPS + 1))  # what was kept is not done again
        assert again.left() == undisturbed


@every_objective
def test_stopped_after_every_step_it_ends_as_if_it_had_not(name: str, tmp_path: Path) -> None:
    again = Training(name, tmp_path / "network.pt")
    for step in range(2, STEPS + 1):
        again.until(step)
        assert read(tmp_path / "network.pt")["step"] == step - 1
    assert again.go().left() == Training(name, None).go().left()


LONG = Plan(epochs=6, batch=8, rate=0.01)
KILLED = ("RT-MLMC stratified", "tilted l2")


def _load_libraries() -> None:
    """Load what every child would have to, short of a backward pass: torch allows none before a fork."""
    OBJECTIVES["RT-MLMC stratified"](lambda x, i: x.sum((1, 2, 3)), images()[0], rng(0))
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()


def killed_at_random(folder: Path) -> None:
    """Train in child processes that get SIGKILL, until one is done; print the steps that were kept."""
    torch.set_num_threads(1)
    _load_libraries()
    moments = random.Random(0)
    for number, name in enumerate(KILLED):
        file, steps = folder / f"{number}.pt", [0]
        while steps[-1] < 18:
            receiver, sender = os.pipe()
            child = os.fork()
            if child == 0:
                Training(name, file, LONG).go(lambda *step: os.write(sender, b".") and None)  # noqa: B023
                os._exit(0)
            os.close(sender)
            for _ in range(moments.randrange(2, 6)):
                os.read(receiver, 1)  # one per step; at once if there are no more
            time.sleep(moments.uniform(0, 0.004))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(receiver)
            steps.append(read(file)["step"])
        print(*steps)


@pytest.mark.slow
def test_sigkill_at_random_moments_changes_nothing(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.experiments.training.test_checkpoints import *; "
    code += "killed_at_random(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    for number, (name, line) in enumerate(zip(KILLED, done.stdout.splitlines(), strict=True)):
        steps = [int(step) for step in line.split()]
        assert steps == sorted(steps)
        assert steps[-1] == 18
        assert len(set(steps)) >= 4  # it was killed on its way
        undisturbed = Training(name, None, LONG).go()
        kept = read(tmp_path / f"{number}.pt")
        assert kept["curve"] == undisturbed.curve
        assert [value.tolist() for value in kept["model"].values()] == weights(undisturbed.model)


def test_the_weights_are_those_of_a_plain_loop() -> None:
    by_hand, (x, y) = model(), images()
    orders = rng(11).spawn(2)[0].spawn(2)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    curve = []
    for epoch in range(2):
        order = orders[epoch].permutation(22, like=np.empty(0))
        assert sorted(order) == list(range(22))
        epoch_losses = []
        for batch in (order[:8], order[8:16], order[16:]):
            optimizer.zero_grad()
            log_p = by_hand(x[batch]).log_softmax(-1)
            loss = -log_p[range(len(batch)), y[batch]].mean()
            loss.backward()
            optimizer.step()
            epoch_losses.append(loss.item())
        curve.append(sum(epoch_losses) / 3)
    it = Training("plain", None).go()
    assert it.curve == pytest.approx(curve, rel=1e-6)
    for ours, theirs in zip(it.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert weights(it.model) != weights(model())


def test_the_order_can_be_set() -> None:
    """The epochs that `shuffle` is asked for, the images in its order, and a source that is left alone."""
    x, y = images()
    epochs: list[int] = []
    batches: list[Any] = []
    draws: list[float] = []

    def shuffle(epoch: int) -> Any:
        epochs.append(epoch)
        return torch.arange(22).roll(epoch)

    def objective(loss: Any, x: Any, source: Rng) -> Any:
        batches.append(x)
        draws.append(float(source.uniform((), like=np.empty(0))))
        return plain(loss, x, source)

    train(model(), objective, x, y, PLAN, rng(5), shuffle=shuffle)
    assert epochs == [0, 1]
    assert torch.equal(torch.cat(batches), torch.cat([x, x.roll(1, 0)]))
    source = rng(5)
    assert draws == [float(source.uniform((), like=np.empty(0))) for _ in range(STEPS)]


def test_what_is_kept_of_an_image_comes_back_to_it() -> None:
    x, y = images()
    kept, seen = torch.zeros(22), []

    def objective(loss: Any, x: Any, source: Rng, rows: Any) -> Any:
        seen.append(rows.clone())
        return plain(loss, x, source), rows + x.sum((1, 2, 3))

    train(model(), objective, x, y, PLAN, rng(5), shuffle=lambda epoch: torch.arange(22), kept_points=kept)
    sums = x.sum((1, 2, 3))
    assert torch.equal(torch.cat(seen), torch.cat([torch.zeros(22), sums]))  # of each epoch
    assert torch.equal(kept, sums + sums)


@pytest.mark.parametrize("warmup", [None, 0.0, 0.1, 0.35])
def test_the_rate_rises_evenly_and_falls_along_a_cosine(warmup: float | None) -> None:
    """As Adam is given it, step by step; and the settings of a plan without it are those of before."""
    plan, rates = Plan(epochs=5, batch=8, rate=0.02, warmup=warmup), []
    given = torch.optim.Adam.step

    def step(self: Any) -> Any:
        rates.extend(group["lr"] for group in self.param_groups)
        return given(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        train(model(), plain, *images(), plan, rng(0))
    assert len(rates) == 15
    if warmup is None:
        assert rates == [0.02] * 15
        assert plan.settings() == {"epochs": 5, "batch": 8, "rate": 0.02}
        return
    assert plan.settings()["warmup"] == warmup
    first, (top, peak) = warmup * 15, max((rate, k) for k, rate in enumerate(rates))
    rising = int(first)
    assert np.allclose(rates[:rising], [0.02 * (k + 1) / first for k in range(rising)])
    falling = np.array(rates[rising:])
    places = (np.arange(rising, 15) + 1 - first) / (16 - first)  # from the peak to the step after the last
    assert np.allclose(falling, 0.01 * (1 + np.cos(np.pi * places)))
    assert peak in (rising - 1, rising)
    assert 0 < rates[-1] < 0.05 * top <= 0.001


def test_every_step_is_reported_with_the_mean_loss_of_its_epoch() -> None:
    values: list[float] = []
    steps: list[tuple[int, int, float]] = []
    x, y = images()

    def objective(loss: Any, x: Any, source: Rng) -> Any:
        value = plain(loss, x, source)
        values.append(value.item())
        return value

    curve = train(
        model(), objective, x, y, PLAN, rng(0), about=ABOUT, on_step=lambda *step: steps.append(step)
    )
    assert [step[:2] for step in steps] == [(k, STEPS) for k in range(1, STEPS + 1)]
    means = [np.mean(values[first : k + 1]) for first in (0, 3) for k in range(first, first + 3)]
    np.testing.assert_allclose([step[2] for step in steps], means)
    np.testing.assert_allclose(curve, [means[2], means[5]])


# --- What is written --------------------------------------------------------------------------------


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "save", lambda *arguments: pytest.fail("it saves"))
    Training("plain", None).go()
    assert list(tmp_path.iterdir()) == []


def test_it_is_written_every_so_often_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    steps: list[int] = []
    monkeypatch.setattr(training, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(training, "write", lambda file, content: steps.append(content["step"]))
    x, y = images()
    train(model(), plain, x, y, PLAN, rng(0), about=ABOUT, checkpoint=tmp_path / "n.pt", save_every=2.5)
    assert steps == [3, 6]  # the clock advances a second per reading, and is read once per step
    steps.clear()
    train(model(), plain, x, y, PLAN, rng(0), about=ABOUT, checkpoint=tmp_path / "n.pt", save_every=inf)
    assert steps == [6]


def test_the_last_file_is_the_network_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "network.pt"
    it = Training("RT-MLMC random", file)
    it.until(STEPS)
    half = file.stat().st_size
    assert {"optimizer", "rng"} <= read(file).keys()
    it.go()
    kept = read(file)
    assert kept.keys() == {"about", "step", "curve", "seen", "model"}
    assert (kept["step"], kept["seen"], kept["curve"]) == (STEPS, [], it.curve)
    assert [value.tolist() for value in kept["model"].values()] == weights(it.model)
    assert file.stat().st_size < half / 2
    assert [path.name for path in file.parent.iterdir()] == ["network.pt"]


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    it = Training("plain", tmp_path / "network.pt").go()
    curve, end = it.curve, weights(it.model)
    it.objective = lambda loss, x, source: pytest.fail("it trains again")
    it.go(lambda done, total, loss: pytest.fail("it trains again"))
    assert (it.curve, weights(it.model)) == (curve, end)


def test_a_write_that_fails_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "network.pt"
    it = Training("RT-MLMC stratified", file)
    it.until(3)
    before = file.read_bytes()

    def half(content: Any, stream: Any) -> None:
        stream.write(b"PK half of it")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        it.go()
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert it.go().left() == Training("RT-MLMC stratified", None).go().left()


def test_numbers_of_numpy_are_kept_and_found_again(tmp_path: Path) -> None:
    x, y = images()
    about = {"seed": np.int64(7), "objective": {"rho": np.float64(0.45), "ratios": (1, np.float32(0.5))}}
    plan = Plan(np.int64(2), np.int64(8), np.float64(0.01))  # type: ignore[arg-type]

    def go(model: Any, keep: Path | None, stop: int = 99) -> list[float]:
        def at(done: int, total: int, loss: float) -> None:
            if done == stop:
                raise KeyboardInterrupt

        return train(model, plain, x, y, plan, rng(0), about=about, checkpoint=keep, save_every=0, on_step=at)

    with pytest.raises(KeyboardInterrupt):
        go(model(), tmp_path / "n.pt", 4)
    again, undisturbed = model(), model()
    assert go(again, tmp_path / "n.pt") == go(undisturbed, None)
    assert weights(again) == weights(undisturbed)
    assert read(tmp_path / "n.pt")["about"]["objective"] == {"rho": 0.45, "ratios": [1, 0.5]}


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_loss_that_is_no_number_is_an_error(bad: float, tmp_path: Path) -> None:
    x, y = images()
    calls: list[int] = []

    def objective(loss: Any, x: Any, source: Rng) -> Any:
        calls.append(1)
        return plain(loss, x, source) * (bad if len(calls) == 3 else 1)

    keep = tmp_path / "network.pt"
    with pytest.raises(ValueError, match=f"the training loss is {bad} at step 3; a smaller rate may help"):
        train(model(), objective, x, y, PLAN, rng(0), about=ABOUT, checkpoint=keep, save_every=0)
    kept = read(keep)
    assert kept["step"] == 2  # of the last good step
    assert all(value.isfinite().all() for value in kept["model"].values())
