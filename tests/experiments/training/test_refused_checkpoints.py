"""Checkpoints that are refused: of another training, damaged, of something else, or made to run code."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from phiball.backends import rng
from phiball.experiments.training.loop import Plan, read, train

torch = pytest.importorskip("torch", reason="torch: not installed")
from tests.support.stopped_training import ABOUT, PLAN, Training, images, model, plain, weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def refused(file: Path, match: str, **changed: Any) -> None:
    """See that training with this file raises, and leaves the file and the model as they are."""
    before, fresh = file.read_bytes(), model()
    plan, about = changed.get("plan", PLAN), changed.get("about", ABOUT)
    with pytest.raises(ValueError, match=match) as error:
        train(fresh, plain, *images(), plan, rng(11), about=about, checkpoint=file)
    assert str(file) in str(error.value)
    assert "delete it, and training begins anew" in str(error.value)
    assert file.read_bytes() == before
    assert weights(fresh) == weights(model())


@pytest.mark.parametrize("finished", [False, True])
def test_checkpoint_of_another_training_is_refused(finished: bool, tmp_path: Path) -> None:
    it = Training("plain", tmp_path / "network.pt")
    it.go() if finished else it.until(4)
    for name, value, match in (
        ("seed", 8, "another training: seed is 7, not 8; delete"),
        ("objective", {"rho": 0.3}, "objective is {'rho': 0.45}, not {'rho': 0.3};"),
        ("more", 1, "more is None, not 1;"),
    ):
        refused(tmp_path / "network.pt", match, about={**ABOUT, name: value})
    refused(tmp_path / "network.pt", "plan is .*'rate': 0.01.*, not .*'rate': 0.02", plan=Plan(2, 8, 0.02))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    Training("RT-MLMC random", tmp_path / "network.pt").until(4)
    return tmp_path / "network.pt"


def test_damaged_files_are_refused(good: Path) -> None:
    complete = good.read_bytes()
    for content in (
        complete[: len(complete) // 2],
        complete[:-1],
        b"",
        b"a text\n",
        b"\x80\x02.",
        b"PK\x03\x04",
    ):
        good.write_bytes(content)
        refused(good, "is damaged, or no checkpoint")


def test_changed_weight_is_detected(good: Path) -> None:
    content = bytearray(good.read_bytes())
    kept = read(good)
    for tensor in (*kept["model"].values(), kept["optimizer"]["state"][1]["exp_avg"]):
        at = bytes(content).index(tensor.numpy().tobytes())
        wrong = copy.copy(content)
        wrong[at + 1] ^= 1
        good.write_bytes(wrong)
        refused(good, "is damaged, or no checkpoint")


def test_other_files_are_refused(good: Path) -> None:
    kept = read(good)
    without = [{k: v for k, v in kept.items() if k != name} for name in ("about", "model", "step", "curve")]
    for content in (model().state_dict(), [1, 2], torch.zeros(3), {}, *without):
        torch.save(content, good)
        refused(good, "is not a checkpoint of this program")
    with pytest.raises(FileNotFoundError):
        read(good.with_name("none.pt"))


class Evil:
    """What makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_reading_runs_no_code(good: Path) -> None:
    mark = good.with_name("mark")
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()  # so it would
    kept = read(good)
    for hide in (
        lambda evil: evil,
        lambda evil: {**kept, "model": evil},
        lambda evil: {**kept, "seen": [evil]},
    ):
        for save in (torch.save, pickle.dump):
            mark.unlink(missing_ok=True)
            with good.open("wb") as stream:
                save(hide(Evil(mark)), stream)
            refused(good, "is damaged, or no checkpoint")
            assert not mark.exists()
    torch.save({**kept, "seen": [Evil(mark)]}, good)
    torch.load(good, weights_only=False)
    assert mark.exists()  # the file did hold it
