"""Training resumes from checkpoints and rejects damaged or foreign files."""

import copy
import pickle
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, rng
from phiball.experiments.training.loop import Checkpoint, Schedule, read_checkpoint, train_network

torch = pytest.importorskip("torch", reason="torch: not installed")
from tests.support.stopped_training import (  # noqa: E402
    DESCRIPTION,
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_resumed_training_ends_with_the_same_weights(name: str, tmp_path: Path) -> None:
    uninterrupted = Training(name, None).run().result()
    for step in range(1, STEPS + 1):
        interrupted = Training(name, tmp_path / f"{step}.pt")
        interrupted.run_until(step)
        assert interrupted.path is not None
        assert interrupted.path.exists() == (step > 1)
        steps: list[int] = []
        interrupted.run(lambda done, total, loss, steps=steps: steps.append(done))  # type: ignore[misc]
        assert steps == list(range(step, STEPS + 1))  # finished steps are not repeated
        assert interrupted.result() == uninterrupted


def test_weights_agree_with_a_plain_training_loop() -> None:
    plain_model, (x, y) = model(), images()
    orders = rng(11).spawn(2)[0].spawn(2)
    optimizer = torch.optim.Adam(plain_model.parameters(), lr=0.01)
    curve = []
    for epoch in range(2):
        order = orders[epoch].permutation(22, like=np.empty(0))
        assert sorted(order) == list(range(22))
        epoch_losses = []
        for batch in (order[:8], order[8:16], order[16:]):
            optimizer.zero_grad()
            log_p = plain_model(x[batch]).log_softmax(-1)
            loss = -log_p[range(len(batch)), y[batch]].mean()
            loss.backward()
            optimizer.step()
            epoch_losses.append(loss.item())
        curve.append(sum(epoch_losses) / 3)
    training = Training("plain", None).run()
    assert training.curve == pytest.approx(curve, rel=1e-6)
    for ours, theirs in zip(training.model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert weights(training.model) != weights(model())


def test_learning_rate_increases_linearly_and_decays_along_a_cosine() -> None:
    warmup = 0.35
    plan, rates = Schedule(epochs=5, batch=8, rate=0.02, warmup=warmup), []
    given = torch.optim.Adam.step

    def step(self: Any) -> Any:
        rates.extend(group["lr"] for group in self.param_groups)
        return given(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        train_network(model(), plain, images(), plan, rng(0))
    assert len(rates) == 15
    first = warmup * 15
    rising = int(first)
    assert np.allclose(rates[:rising], [0.02 * (k + 1) / first for k in range(rising)])
    # Positions on the cosine: 0 at the peak, 1 one step after the last.
    places = (np.arange(rising, 15) + 1 - first) / (16 - first)
    assert np.allclose(rates[rising:], 0.01 * (1 + np.cos(np.pi * places)))


def test_final_checkpoint_holds_only_the_network(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "network.pt"
    training = Training("RT-MLMC random", file)
    training.run_until(STEPS)
    half = file.stat().st_size
    assert {"optimizer", "rng"} <= read_checkpoint(file).keys()
    training.run()
    checkpoint = read_checkpoint(file)
    assert checkpoint.keys() == {"about", "step", "curve", "losses", "model"}
    assert (checkpoint["step"], checkpoint["losses"], checkpoint["curve"]) == (STEPS, [], training.curve)
    assert [value.tolist() for value in checkpoint["model"].values()] == weights(training.model)
    assert file.stat().st_size < half / 2
    assert [path.name for path in file.parent.iterdir()] == ["network.pt"]


def test_failed_write_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "network.pt"
    training = Training("RT-MLMC stratified", file)
    training.run_until(3)
    before = file.read_bytes()

    def half(content: Any, stream: Any) -> None:
        stream.write(b"PK half of it")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        training.run()
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert training.run().result() == Training("RT-MLMC stratified", None).run().result()


def test_nonfinite_loss_raises_and_keeps_the_last_finite_checkpoint(tmp_path: Path) -> None:
    x, y = images()
    calls: list[int] = []

    def objective(loss: Any, x: Any, source: Rng) -> Any:
        calls.append(1)
        return plain(loss, x, source) * (nan if len(calls) == 3 else 1)

    checkpoint_path = tmp_path / "network.pt"
    with pytest.raises(ValueError, match="the training loss is nan at step 3"):
        train_network(
            model(),
            objective,
            (x, y),
            PLAN,
            rng(0),
            checkpoint=Checkpoint(checkpoint_path, DESCRIPTION, save_every=0),
        )
    checkpoint = read_checkpoint(checkpoint_path)
    assert checkpoint["step"] == 2  # the last step with a finite loss
    assert all(value.isfinite().all() for value in checkpoint["model"].values())


# --- Rejected checkpoints ----------------------------------------------------------------------------


def assert_rejected(file: Path, match: str, **changed: Any) -> None:
    """Assert that training with this file raises and changes neither the file nor the model."""
    before, fresh = file.read_bytes(), model()
    plan, about = changed.get("plan", PLAN), changed.get("about", DESCRIPTION)
    with pytest.raises(ValueError, match=match) as error:
        train_network(fresh, plain, images(), plan, rng(11), checkpoint=Checkpoint(file, about))
    assert str(file) in str(error.value)
    assert "delete it to train from the start" in str(error.value)
    assert file.read_bytes() == before
    assert weights(fresh) == weights(model())


@pytest.mark.parametrize("finished", [False, True])
def test_checkpoint_of_another_training_is_rejected(finished: bool, tmp_path: Path) -> None:
    training = Training("plain", tmp_path / "network.pt")
    training.run() if finished else training.run_until(4)
    for name, value, match in (
        ("seed", 8, "another training: seed is 7, not 8; delete"),
        ("objective", {"rho": 0.3}, "objective is {'rho': 0.45}, not {'rho': 0.3};"),
        ("more", 1, "more is None, not 1;"),
    ):
        assert_rejected(tmp_path / "network.pt", match, about={**DESCRIPTION, name: value})
    assert_rejected(
        tmp_path / "network.pt", "plan is .*'rate': 0.01.*, not .*'rate': 0.02", plan=Schedule(2, 8, 0.02)
    )


@pytest.fixture
def checkpoint_file(tmp_path: Path) -> Path:
    Training("RT-MLMC random", tmp_path / "network.pt").run_until(4)
    return tmp_path / "network.pt"


def test_damaged_checkpoints_are_rejected(checkpoint_file: Path) -> None:
    content = bytearray(checkpoint_file.read_bytes())
    checkpoint = read_checkpoint(checkpoint_file)
    for damaged in (content[: len(content) // 2], content[:-1], b"", b"a text\n", b"\x80\x02."):
        checkpoint_file.write_bytes(damaged)
        assert_rejected(checkpoint_file, "is damaged or not a checkpoint")
    for tensor in (*checkpoint["model"].values(), checkpoint["optimizer"]["state"][1]["exp_avg"]):
        at = bytes(content).index(tensor.numpy().tobytes())
        wrong = copy.copy(content)
        wrong[at + 1] ^= 1
        checkpoint_file.write_bytes(wrong)
        assert_rejected(checkpoint_file, "is damaged or not a checkpoint")


def test_foreign_files_are_rejected(checkpoint_file: Path) -> None:
    checkpoint = read_checkpoint(checkpoint_file)
    partial = [
        {k: v for k, v in checkpoint.items() if k != name} for name in ("about", "model", "step", "curve")
    ]
    for content in (model().state_dict(), [1, 2], torch.zeros(3), {}, *partial):
        torch.save(content, checkpoint_file)
        assert_rejected(checkpoint_file, "is not a checkpoint of this program")
    with pytest.raises(FileNotFoundError):
        read_checkpoint(checkpoint_file.with_name("none.pt"))


class MaliciousObject:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_reading_a_checkpoint_runs_no_code(checkpoint_file: Path) -> None:
    mark = checkpoint_file.with_name("mark")
    pickle.loads(pickle.dumps(MaliciousObject(mark)))
    assert mark.exists()  # unpickling does run it
    checkpoint = read_checkpoint(checkpoint_file)
    for save in (torch.save, pickle.dump):
        mark.unlink(missing_ok=True)
        with checkpoint_file.open("wb") as stream:
            save({**checkpoint, "losses": [MaliciousObject(mark)]}, stream)
        assert_rejected(checkpoint_file, "is damaged or not a checkpoint")
        assert not mark.exists()
