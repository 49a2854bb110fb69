"""How far a run is: what cells say in files, and what is shown of it."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")
rich_console = pytest.importorskip("rich.console", reason="rich: not installed")

from phiball.experiments.framework import progress  # noqa: E402
from phiball.experiments.framework.progress import Board, Desk, Watch, Watched  # noqa: E402
from phiball.experiments.framework.runner import run  # noqa: E402
from tests.support import tiny_study  # noqa: E402
from tests.support.tiny_study import Config  # noqa: E402


def watched(folder: Path, name: str, work: float) -> Watched:
    return Watched(name, folder / f"{name}.json", Desk(folder / "desks" / name), work)


def cells(folder: Path) -> list[Path]:
    return sorted((folder / "cells").glob("*.json"))


def test_a_desk_tells_what_was_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    desk = Desk(tmp_path / "one" / "desk")
    assert desk.heard() is None
    assert not (tmp_path / "one").exists()  # made when something is said
    desk.say(0.25, "loss 2")
    desk.say(0.5, "loss 1")
    assert desk.heard() == (0.5, "loss 1")
    assert [file.name for file in (tmp_path / "one" / "desk").iterdir()] == ["progress.json"]


def test_what_comes_too_soon_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 1e6)
    desk = Desk(tmp_path)
    desk.say(0.25, "first")
    desk.say(0.5, "second")
    assert desk.heard() == (0.25, "first")


def test_a_desk_nowhere_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    desk = Desk()
    desk.say(0.5, "loss 1")
    assert desk.file("network.pt") is None
    assert desk.heard() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"share": null, "text": ""}', '{"text": "x"}'])
def test_a_damaged_note_is_nothing_said(content: str, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert Desk(tmp_path).heard() is None


def test_the_share_counts_work_and_not_cells(tmp_path: Path) -> None:
    cells = [watched(tmp_path, name, work) for name, work in (("a", 1.0), ("b", 6.0), ("c", 3.0))]
    watch = Watch(tuple(cells))
    assert watch.look() == (0, 0.0, {})
    cells[1].desk.say(0.5, "half")
    assert watch.look() == (0, pytest.approx(0.3), {"b": (0.5, "half")})
    cells[1].file.write_text("{}")  # it is done: what it said no longer counts
    cells[2].desk.say(1.0, "attacks")
    assert watch.look() == (1, pytest.approx(0.9), {"c": (1.0, "attacks")})
    for cell in cells:
        cell.file.write_text("{}")
    assert watch.look() == (3, 1.0, {})
    assert Watch(()).look() == (0, 1.0, {})


def test_on_a_terminal_there_is_a_bar_for_the_run_and_for_each_cell_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.02)
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=120)
    board = Board("tiny", console)
    cells = [watched(tmp_path, name, 1.0) for name in ("first", "second")]
    with board.shown():
        board.start(Watch(tuple(cells), "choose"))
        cells[0].desk.say(0.5, "loss 1.250")
        time.sleep(0.3)
        cells[0].file.write_text("{}")
        time.sleep(0.3)
    text = out.getvalue()
    assert "tiny choose" in text
    assert "0 of 2 cells" in text
    assert "1 of 2 cells" in text
    assert "25 %" in text
    assert "loss 1.250" in text
    assert "second" not in text  # it has not begun


def test_elsewhere_there_is_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.02)
    monkeypatch.setattr(progress, "QUIET", 0.05)
    console = rich_console.Console(file=io.StringIO(), force_terminal=False)
    board = Board("tiny", console)
    cells = [watched(tmp_path, name, work) for name, work in (("first", 1.0), ("second", 3.0))]
    with board.shown():
        board.start(Watch(tuple(cells)))
        time.sleep(0.4)  # nothing was done yet, hence nothing is known of the time left
        cells[0].file.write_text("{}")
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny: 0 of 2 cells are there; a line a minute follows"
    waiting = [line for line in lines if line == "tiny: 0 of 2 cells, 0 % of the work"]
    telling = [line for line in lines if line == "tiny: 1 of 2 cells, 25 % of the work, about 0 min left"]
    assert waiting
    assert telling
    assert lines == [lines[0], *waiting, *telling]
    assert console.file.getvalue() == ""


def test_what_a_note_says_is_plain_json(tmp_path: Path) -> None:
    Desk(tmp_path).say(0.5, "loss 1")
    assert json.loads((tmp_path / "progress.json").read_text()) == {"share": 0.5, "text": "loss 1"}


def test_what_does_not_count_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    run(tiny_study, Config(count=2, place="attic"), tmp_path, seed=3)
    cells(tmp_path)[1].unlink()
    run(tiny_study, Config(count=2, place="cellar"), tmp_path, seed=3)
    assert len(cells(tmp_path)) == 2
    assert not any("attic" in file.read_text() for file in [tmp_path / "report.md", *cells(tmp_path)])


def test_a_long_cell_has_a_desk_and_the_run_can_be_watched(tmp_path: Path) -> None:
    seen: list[Watch] = []
    run(tiny_study, Config(count=2), tmp_path, seed=3, on_start=seen.append)
    (watch,) = seen
    assert [cell.label for cell in watch.cells] == ["cell 0 0", "cell 1 1"]
    assert [cell.work for cell in watch.cells] == [1.0, 1.0]
    assert all(cell.desk.heard() == (0.5, "half") for cell in watch.cells)
    assert watch.look() == (2, 1.0, {})
