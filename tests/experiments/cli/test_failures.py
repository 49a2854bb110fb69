"""Full disks, bad folders and files, interrupts: each command reports them in one line, and resumes."""

from __future__ import annotations

import os
import sys
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

for library in ("joblib", "matplotlib", "threadpoolctl", "torch", "sklearn"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import files  # noqa: E402
from phiball.experiments.cli import bench  # noqa: E402
from phiball.experiments.cli import run as cli_run  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from phiball.experiments.framework import outputs  # noqa: E402
from phiball.experiments.robustness import report as robustness  # noqa: E402

FULL = "[Errno 28] No space left on device"
RUN = "run tiny --scale smoke --jobs 1"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setitem(cli_run.STUDIES, "tiny", "tests.support.tiny_study")


def call(command: str, out: Path) -> Any:
    out = out / "page.html" if command.startswith("report") else out
    return CliRunner().invoke(app, [*command.split(), "--out", str(out)])


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command on a model of one line, in a folder of its own."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "tiny_model.py").write_text("def sign(x):\n    return (x[:, 0] > 0).astype('int64')\n")
    x = np.linspace(-1, 1, 12).reshape(6, 2)
    np.savez(home / "test.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return "report tiny_model:sign --data test.npz --norm linf --radii 0,1 --jobs 1"


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be refused by the disk at its end, when its content goes there."""

    def refuse(descriptor: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("command", [RUN, "bench inner", "bench attacks"])
def test_folder_that_cannot_be_made_is_reported_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    result = call(command, tmp_path / "file" / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("phiball: ")
    assert "Not a directory" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "%" not in result.stdout  # no figure, no share of the work


def test_report_after_a_full_disk_is_that_of_an_undisturbed_run(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad folder, then a full disk, then room: the page is that of a run without trouble."""
    (tmp_path / "file").write_text("")
    result = call(report, tmp_path / "file" / "out")
    said = result.stderr.strip()  # rich before 14.3 begins with an empty line
    assert (result.exit_code, len(said.splitlines())) == (1, 1)
    assert "Not a directory" in said
    with monkeypatch.context() as full:
        fill_the_disk(full)
        result = call(report, tmp_path / "full")
    assert result.exit_code == 1
    assert FULL in result.stderr.splitlines()[-1]
    assert [file.name for file in (tmp_path / "full").rglob("*") if file.is_file()] == []
    for folder in ("full", "never full"):
        assert call(report, tmp_path / folder).exit_code == 0
    pages = [(tmp_path / folder / "page.csv").read_text() for folder in ("full", "never full")]
    assert pages[0] == pages[1]
    (part,) = (tmp_path / "full").rglob("*.npz")
    part.write_bytes(part.read_bytes()[:-30])  # damaged, and measured again
    assert call(report, tmp_path / "full").exit_code == 0
    assert (tmp_path / "full" / "page.csv").read_text() == pages[0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "damaged ("),
        (lambda file: (file.unlink(), os.mkfifo(file)), "is not a regular file"),
        (lambda file: file.unlink(), "No such file"),
        (lambda file: np.savez(file, x=np.array([{}], dtype=object), y=np.zeros(1)), "allow_pickle"),
        (lambda file: np.savez(file, x=np.zeros(1)), "has no array 'y'"),
        (lambda file: np.savez_compressed(file, x=np.zeros(1 << 20), y=np.zeros(1)), "it unpacks to"),
    ],
    ids=["its end missing", "a pipe", "not there", "a pickle", "no y", "a bomb"],
)
def test_report_on_a_bad_file_is_one_line(
    damage: Any, words: str, report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_UNPACKED", 1 << 20)
    damage(tmp_path / "home" / "test.npz")
    result = call(report, tmp_path / "out")
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_interrupted_benchmark_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        bench, "import_module", lambda module: SimpleNamespace(run_benchmark=stop, measure=None)
    )
    result = call("bench inner", tmp_path)
    assert (result.exit_code, result.stderr) == (130, "phiball: stopped\n")


def test_interrupted_report_can_be_resumed(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(robustness, "measured", stop)
        result = call(report, tmp_path / "out")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "phiball: stopped; run the same command to resume"
    assert call(report, tmp_path / "out").exit_code == 0


def test_run_on_a_full_disk_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(RUN, tmp_path / "never full").exit_code == 0
    write_row = outputs.write_whole

    def fail_at_the_end(file: Path, text: str) -> Path:
        if file.name == "report.md":
            raise OSError(ENOSPC, "No space left on device")
        return write_row(file, text)

    with monkeypatch.context() as at_first:  # not even the note of the run can be written
        fill_the_disk(at_first)
        result = call(RUN, tmp_path / "full")
        assert (result.exit_code, FULL in result.stderr) == (1, True)
        assert len(result.stderr.splitlines()) == 1
    with monkeypatch.context() as later:  # all rows are there, the report is not
        later.setattr(outputs, "write_whole", fail_at_the_end)
        result = call(RUN, tmp_path / "full")
        assert (result.exit_code, FULL in result.stderr) == (1, True)
        assert not (tmp_path / "full" / "report.md").exists()
    assert call(RUN, tmp_path / "full").exit_code == 0
    tables = [(tmp_path / name / "table.csv").read_text() for name in ("full", "never full")]
    assert tables[0] == tables[1]
