"""Progress of a run: what tasks report in files, and what is shown of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

rich_console = pytest.importorskip("rich.console", reason="rich: not installed")

from phiball.experiments.framework import tasks as task_module  # noqa: E402
from phiball.experiments.framework.progress import RunProgress, RunStatus, TaskStatus  # noqa: E402
from phiball.experiments.framework.tasks import TaskDir  # noqa: E402


def status(folder: Path, name: str, work: float) -> TaskStatus:
    return TaskStatus(name, folder / f"{name}.json", TaskDir(folder / "tasks" / name), work)


def test_task_dir_keeps_the_last_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "PAUSE", 0.0)
    task_dir = TaskDir(tmp_path / "one" / "task_dir")
    assert task_dir.read_progress() is None
    assert not (tmp_path / "one").exists()  # made with the first report
    task_dir.report_progress(0.25, "loss 2")
    task_dir.report_progress(0.5, "loss 1")
    assert task_dir.read_progress() == (0.5, "loss 1")
    (file,) = (tmp_path / "one" / "task_dir").iterdir()
    assert json.loads(file.read_text()) == {"share": 0.5, "text": "loss 1"}
    monkeypatch.setattr(task_module, "PAUSE", 1e6)
    task_dir.report_progress(0.75, "too soon")
    assert task_dir.read_progress() == (0.5, "loss 1")
    for content in ("", "{", "[]", '{"share": null, "text": ""}', '{"text": "x"}'):
        file.write_text(content)
        assert task_dir.read_progress() is None


def test_task_dir_without_a_folder_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TaskDir().report_progress(0.5, "loss 1")
    assert TaskDir().file("network.pt") is None
    assert TaskDir().read_progress() is None
    assert list(tmp_path.iterdir()) == []


def test_share_counts_work_and_the_display_names_what_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [status(tmp_path, name, work) for name, work in (("a", 1.0), ("b", 6.0), ("c", 3.0))]
    run_status = RunStatus(tuple(tasks), "choose")
    assert run_status.poll() == (0, 0.0, {})
    tasks[0].row_file.write_text("{}")
    with RunProgress("tiny", rich_console.Console(file=io.StringIO(), force_terminal=False)) as display:
        display.start(run_status)
        assert capsys.readouterr().err.startswith("tiny choose: 1 of 3 tasks are done")
        tasks[1].task_dir.report_progress(0.5, "half")
        assert run_status.poll() == (1, pytest.approx(0.4), {"b": (0.5, "half")})
        display.refresh()
        assert (display.share, display.text) == (pytest.approx(0.4), "1 of 3 tasks; b: half")
        tasks[1].row_file.write_text("{}")  # its last report no longer counts
        display.refresh()
        assert (display.share, display.text) == (pytest.approx(0.7), "2 of 3 tasks")
        assert display.left() != ""
    tasks[2].row_file.write_text("{}")
    assert run_status.poll() == (3, 1.0, {})
    assert RunStatus(()).poll() == (0, 1.0, {})
