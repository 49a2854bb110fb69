"""How far a run is: what tasks say in files, and what is shown of it."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")
rich_console = pytest.importorskip("rich.console", reason="rich: not installed")

from phiball.experiments.framework import progress  # noqa: E402
from phiball.experiments.framework import tasks as task_module  # noqa: E402
from phiball.experiments.framework.progress import ProgressDisplay, RunStatus, TaskStatus  # noqa: E402
from phiball.experiments.framework.runner import run  # noqa: E402
from phiball.experiments.framework.tasks import TaskDir  # noqa: E402
from tests.support.tiny_study import STUDY, Config  # noqa: E402


def status(folder: Path, name: str, work: float) -> TaskStatus:
    return TaskStatus(name, folder / f"{name}.json", TaskDir(folder / "tasks" / name), work)


def rows(folder: Path) -> list[Path]:
    return sorted((folder / "rows").glob("*.json"))


def test_a_task_dir_keeps_the_last_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "PAUSE", 0.0)
    task_dir = TaskDir(tmp_path / "one" / "task_dir")
    assert task_dir.read_progress() is None
    assert not (tmp_path / "one").exists()  # made when something is said
    task_dir.report_progress(0.25, "loss 2")
    task_dir.report_progress(0.5, "loss 1")
    assert task_dir.read_progress() == (0.5, "loss 1")
    assert [file.name for file in (tmp_path / "one" / "task_dir").iterdir()] == ["progress.json"]


def test_what_comes_too_soon_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "PAUSE", 1e6)
    task_dir = TaskDir(tmp_path)
    task_dir.report_progress(0.25, "first")
    task_dir.report_progress(0.5, "second")
    assert task_dir.read_progress() == (0.25, "first")


def test_a_desk_nowhere_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task_dir = TaskDir()
    task_dir.report_progress(0.5, "loss 1")
    assert task_dir.file("network.pt") is None
    assert task_dir.read_progress() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"share": null, "text": ""}', '{"text": "x"}'])
def test_a_damaged_note_is_nothing_said(content: str, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert TaskDir(tmp_path).read_progress() is None


def test_the_share_counts_work_and_not_cells(tmp_path: Path) -> None:
    tasks = [status(tmp_path, name, work) for name, work in (("a", 1.0), ("b", 6.0), ("c", 3.0))]
    run_status = RunStatus(tuple(tasks))
    assert run_status.poll() == (0, 0.0, {})
    tasks[1].task_dir.report_progress(0.5, "half")
    assert run_status.poll() == (0, pytest.approx(0.3), {"b": (0.5, "half")})
    tasks[1].row_file.write_text("{}")  # it is done: what it said no longer counts
    tasks[2].task_dir.report_progress(1.0, "attacks")
    assert run_status.poll() == (1, pytest.approx(0.9), {"c": (1.0, "attacks")})
    for task in tasks:
        task.row_file.write_text("{}")
    assert run_status.poll() == (3, 1.0, {})
    assert RunStatus(()).poll() == (0, 1.0, {})


def test_on_a_terminal_there_is_a_bar_for_the_run_and_for_each_cell_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.02)
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=120)
    display = ProgressDisplay("tiny", console)
    tasks = [status(tmp_path, name, 1.0) for name in ("first", "second")]
    with display.shown():
        display.start(RunStatus(tuple(tasks), "choose"))
        tasks[0].task_dir.report_progress(0.5, "loss 1.250")
        time.sleep(0.3)
        tasks[0].row_file.write_text("{}")
        time.sleep(0.3)
    text = out.getvalue()
    assert "tiny choose" in text
    assert "0 of 2 tasks" in text
    assert "1 of 2 tasks" in text
    assert "25 %" in text
    assert "loss 1.250" in text
    assert "second" not in text  # it has not begun


def test_elsewhere_there_is_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.02)
    monkeypatch.setattr(progress, "LINE_PAUSE", 0.05)
    console = rich_console.Console(file=io.StringIO(), force_terminal=False)
    display = ProgressDisplay("tiny", console)
    tasks = [status(tmp_path, name, work) for name, work in (("first", 1.0), ("second", 3.0))]
    with display.shown():
        display.start(RunStatus(tuple(tasks)))
        time.sleep(0.4)  # nothing was done yet, hence nothing is known of the time left
        tasks[0].row_file.write_text("{}")
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny: 0 of 2 tasks are done; a line follows every minute"
    waiting = [line for line in lines if line == "tiny: 0 of 2 tasks, 0 % of the work"]
    telling = [
        line
        for line in lines
        if re.fullmatch("tiny: 1 of 2 tasks, 25 % of the work, about [1-9] s left", line)
    ]
    assert waiting
    assert telling
    assert lines == [lines[0], *waiting, *telling]
    assert console.file.getvalue().strip() == ""  # rich before 14.3 ends with an empty line


def test_what_a_note_says_is_plain_json(tmp_path: Path) -> None:
    TaskDir(tmp_path).report_progress(0.5, "loss 1")
    assert json.loads((tmp_path / "progress.json").read_text()) == {"share": 0.5, "text": "loss 1"}


def test_what_does_not_count_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    run(STUDY, Config(count=2, place="attic"), tmp_path, seed=3)
    rows(tmp_path)[1].unlink()
    run(STUDY, Config(count=2, place="cellar"), tmp_path, seed=3)
    assert len(rows(tmp_path)) == 2
    assert not any("attic" in file.read_text() for file in [tmp_path / "report.md", *rows(tmp_path)])


def test_a_long_cell_has_a_desk_and_the_run_can_be_status(tmp_path: Path) -> None:
    seen: list[RunStatus] = []
    run(STUDY, Config(count=2), tmp_path, seed=3, on_start=seen.append)
    (run_status,) = seen
    assert [task.label for task in run_status.tasks] == ["task 0 0", "task 1 1"]
    assert [task.work for task in run_status.tasks] == [1.0, 1.0]
    assert all(task.task_dir.read_progress() == (0.5, "half") for task in run_status.tasks)
    assert run_status.poll() == (2, 1.0, {})
