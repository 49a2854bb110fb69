"""Full disks and folders that cannot be made: each command says so in one line, and leaves nothing broken."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

for library in ("joblib", "matplotlib", "threadpoolctl", "torch", "sklearn"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.experiments.cli import main as entry  # noqa: E402
from phiball.experiments.cli import run as cli_run  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from phiball.experiments.framework import outputs  # noqa: E402

BENCHMARKS = (
    "inner",
    "scaling",
    "endurance",
    "attacks",
    "sampling",
    "linear",
    "estimators",
    "training",
    "settings",
)
FULL = "[Errno 28] No space left on device"
RUN = "run tiny --scale smoke --jobs 1"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setitem(cli_run.STUDIES, "tiny", "tests.support.tiny_study")


def call(command: str, out: Path) -> Any:
    return CliRunner().invoke(app, [*command.split(), "--out", str(out)])


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be refused by the disk at its end, when its content goes there."""

    def refuse(descriptor: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("command", ["verify --claim C7", RUN, *(f"bench {name}" for name in BENCHMARKS)])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    result = call(command, tmp_path / "file" / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("phiball: [Errno 20] Not a directory")
    assert len(result.stderr.splitlines()) == 1
    assert "%" not in result.stdout  # no figure, no share of the work


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full: not on this system")
@pytest.mark.parametrize(
    "command", ["--version", "backends", "verify --list", "verify --help", "bench --help", "run --help"]
)
def test_output_that_cannot_be_printed_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["phiball", *command.split()])
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    with suppress(OSError):  # what is left in it
        full.close()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == f"phiball: {FULL}\n"


def test_verify_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_disk(monkeypatch)
    result = call("verify --claim C7 --jobs 1", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"phiball: {FULL}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
