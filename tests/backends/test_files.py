"""Files are replaced in one step by every writer, and only regular files are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from phiball.backends.files import atomic_write, open_regular, write_whole
from phiball.experiments.benchmarks import harness
from phiball.experiments.framework.outputs import write_figures, write_report, write_table
from phiball.experiments.framework.tasks import Table
from phiball.verification.report import errata
from phiball.verification.report.files import circumstances
from phiball.verification.report.files import write_report as write_verification
from tests.support.reports import results
from tests.support.tiny_study import STUDY, Config

ROWS = Table(Config(), ({"name": "a", "total": 1.0},))
ABOUT = circumstances([], seed=0, deep=False, seconds=1.0, provenance={"revision": "", "versions": {}})
RECORD = '{"versions": {}, "seed": 0, "backend": "numpy", "machine": "", "revision": ""}'


def _benchmark(out: Path) -> None:
    report = harness.Report([harness.Table("Title", [{"name": "a"}])])
    harness.write_report(report, "bench", out, {"a": 1})


WRITERS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "table": (lambda out: write_table(ROWS, out), ["table.csv"]),
    "figures": (lambda out: write_figures(STUDY, ROWS, out), ["totals.png", "totals.svg"]),
    "report": (lambda out: write_report(STUDY, ROWS, [], out), ["report.md"]),
    "verification": (
        lambda out: write_verification(results(), out, ABOUT),
        ["claims.json", "claims.md", "claims.html"],
    ),
    "errata": (lambda out: errata.write_errata(out / "ERRATA.md"), ["ERRATA.md"]),
    "benchmark": (_benchmark, ["bench.json", "bench.md"]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writer_that_fails_at_the_end_leaves_the_old_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a writer that succeeds replaces it."""
    write, files = WRITERS[name]
    (tmp_path / "run.json").write_text(RECORD)
    monkeypatch.setattr(errata, "errata", lambda: "the errata")
    for file in files:
        (tmp_path / file).write_text("old")
        os.utime(tmp_path / file, (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _fail)
        with pytest.raises(OSError, match="no space"):
            write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*files, "run.json"])
    assert all((tmp_path / file).read_text() == "old" for file in files)
    write(tmp_path)
    assert all((tmp_path / file).read_bytes() != b"old" for file in files)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*files, "run.json"])


def _fail(*_: object) -> None:
    raise OSError("no space left on device")


def test_error_inside_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "file") as stream:
        stream.write(b"half" * (1 // 0))
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"
    reader, writer = os.pipe()
    write_whole(Path(f"/proc/self/fd/{writer}"), "through a pipe")
    assert os.read(reader, 99) == b"through a pipe"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="file is not a regular file; expected one"), open_regular(file):
        pass
