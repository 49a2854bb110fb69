"""Runs of studies: kept task by task, resumed after any death, refused in one line where they cannot be."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.paths import ROOT

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import rng, use  # noqa: E402
from phiball.experiments.cli import run as cli_run  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from phiball.experiments.framework import runner  # noqa: E402
from phiball.experiments.framework.runner import RunFolder, run  # noqa: E402
from tests.support.tiny_study import STUDY, Config, DeadlyStudy  # noqa: E402

CODE = """
import sys
from phiball.experiments.cli import run as cli_run
from phiball.experiments.cli.app import app
cli_run.STUDIES["tiny"] = "tests.support.tiny_study"
app(["run", "tiny", *sys.argv[1:]], prog_name="phiball")
"""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setitem(cli_run.STUDIES, "tiny", "tests.support.tiny_study")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command line in a process of its own, that leads a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(out: Path) -> list[Path]:
    return sorted((out / "rows").glob("*.json"))


def wait_for_rows(process: subprocess.Popen[str], out: Path, count: int) -> None:
    while process.poll() is None and len(finished(out)) < count:
        time.sleep(0.01)


def end_group(process: subprocess.Popen[str]) -> None:
    """End the workers that a killed process has left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.communicate()


# --- What a run writes ------------------------------------------------------------------------------


def test_a_run_writes_its_table_report_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    table, written = run(STUDY, Config(), out, seed=3)
    names = ["table.csv", "totals.png", "totals.svg", "report.md"]
    assert [path.name for path in written] == names
    assert all(path.stat().st_size > 0 for path in written)
    assert len(finished(out)) == 6
    report = (out / "report.md").read_text(encoding="utf-8")
    for words in (
        "# A tiny study.",
        "![totals](totals.png)",
        "## Totals",
        "[6] tasks",
        "Seed 3;",
        "pause 0.0",
    ):
        assert words in report
    with (out / "table.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["name", "k", "total", "product", "only here"]  # no lists
    assert [row["only here"] for row in rows] == ["", "nan", "", "", "", ""]
    assert [float(row["total"]) for row in rows] == [row["total"] for row in table.rows]


def test_every_row_says_where_it_comes_from(tmp_path: Path) -> None:
    with use("strict"):
        run(STUDY, Config(count=2), tmp_path, seed=7)
    for file in [tmp_path / "run.json", *finished(tmp_path)]:
        note = json.loads(file.read_text())
        assert note["seed"] == 7
        assert note["backend"] == "strict"
        assert note["versions"]["python"] == sys.version.split()[0]
        assert {"phiball", "numpy"} <= note["versions"].keys()
        assert note["machine"]
        inside = (ROOT / ".git").exists()
        assert bool(note["revision"]) == inside
    settings = {name: value for name, value in asdict(Config(count=2)).items() if name != "place"}
    assert json.loads((tmp_path / "run.json").read_text())["config"] == {**settings, "powers": [1.0, 0.5]}


def test_the_folder_changes_nothing(tmp_path: Path) -> None:
    """A run in a folder finds what a run without one does."""
    table, _ = run(STUDY, Config(count=2), tmp_path, seed=3)
    plain = STUDY.compute(Config(count=2), rng(3))
    assert [row["total"] for row in table.rows] == [row["total"] for row in plain.rows]
    other = STUDY.compute(Config(count=2), rng(4))
    assert table.rows[0]["total"] != other.rows[0]["total"]
    assert table.rows[0]["total"] != table.rows[1]["total"]


# --- Death and what comes after ---------------------------------------------------------------------


@pytest.mark.slow
def test_killed_again_and_again_a_run_gives_the_same_table(tmp_path: Path) -> None:
    """With two jobs, and byte by byte what one job that nothing disturbs gives."""
    config = Config(count=9, pause=0.15)
    run(STUDY, config, tmp_path / "whole", seed=3)
    out = tmp_path / "killed"
    moments = random.Random(0)
    for kill in range(3):
        process = start("--count", 9, "--pause", 0.15, "--seed", 3, "--jobs", 2, "--out", out)
        wait_for_rows(process, out, 1 + 2 * kill)
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it was not done
        end_group(process)
    kept = {file: file.stat().st_mtime_ns for file in finished(out)}
    assert 5 <= len(kept) < 9
    run(STUDY, config, out, seed=3, jobs=2)
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # not computed again
    assert len(finished(out)) == 9


@pytest.mark.slow
def test_what_a_killed_writer_leaves_is_ignored(tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path / "whole", seed=3)
    out = tmp_path / "left"
    out.mkdir()
    (out / ".run.json.123").write_text('{"study": "te')
    run(STUDY, Config(count=2), out, seed=3)
    first, second = finished(out)
    half = out / "rows" / f".{first.name}.123"
    half.write_text(first.read_text()[:40])
    first.unlink()
    (out / "table.csv").write_text("")
    run(STUDY, Config(count=2), out, seed=3)
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()
    assert finished(out) == [first, second]


def test_a_run_that_died_before_its_first_row_goes_on(tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    for file in finished(tmp_path):
        file.unlink()
    (tmp_path / "rows").rmdir()
    run(STUDY, Config(count=2), tmp_path, seed=3)
    assert len(finished(tmp_path)) == 2


@pytest.mark.slow
def test_interrupted_by_the_keyboard_it_says_how_to_go_on(tmp_path: Path) -> None:
    process = start("--count", 40, "--pause", 0.1, "--jobs", 2, "--out", tmp_path)
    wait_for_rows(process, tmp_path, 8)  # by then both workers have begun, and left Ctrl-C to their parent
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert err.splitlines()[-1] == "phiball: stopped; run the same command to resume"
    assert "Traceback" not in err
    assert 1 <= len(finished(tmp_path)) < 40


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    """Only the first process is killed, as `kill -9` and a scheduler do it: the tasks begun are not ended."""
    pause = 3.0
    process = start("--count", 8, "--pause", pause, "--jobs", 2, "--out", tmp_path)
    wait_for_rows(process, tmp_path, 2)
    process.kill()
    process.wait()
    count = len(finished(tmp_path))
    time.sleep(2 * pause)
    after = len(finished(tmp_path))
    end_group(process)
    assert after == count < 8


@pytest.mark.slow
def test_a_task_that_kills_its_process_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    config = Config(count=4, pause=0.1)
    with pytest.raises(
        ChildProcessError, match=r"1 of 4 tasks failed: the first, .*'task 1'.* died with EXIT"
    ):
        run(DeadlyStudy(), config, tmp_path, seed=3, jobs=2)
    assert len(finished(tmp_path)) == 3
    run(STUDY, config, tmp_path, seed=3)
    assert len(finished(tmp_path)) == 4


@pytest.mark.slow
def test_two_runs_do_not_work_in_one_folder(tmp_path: Path) -> None:
    process = start("--count", 400, "--pause", 0.05, "--jobs", 1, "--out", tmp_path)
    wait_for_rows(process, tmp_path, 1)
    result = call("tiny", "--count", 400, "--pause", 0.05, "--jobs", 1, "--out", tmp_path)
    process.kill()
    end_group(process)
    assert result.exit_code == 1
    assert result.stderr == (
        f"phiball: another run is at work in {tmp_path}; expected to be alone, or another folder (--out)\n"
    )


# --- What does not belong together ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": Config(count=3)}, "count is 2, not 3"),
        ({"config": Config(count=2, powers=(1.0, 0.25))}, "powers is [1.0, 0.5], not [1.0, 0.25]"),
        ({"seed": 4}, "seed is 3, not 4"),
    ],
)
def test_a_folder_of_another_run_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="holds another run") as refused:
        run(STUDY, **{"config": Config(count=2), "seed": 3, **change}, out=tmp_path)
    assert words in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "(--out)" in str(refused.value)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path)
    note = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**note, "study": "another"}))
    with pytest.raises(ValueError, match="study is 'another', not 'tiny'"):
        run(STUDY, Config(count=2), tmp_path)


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        run(STUDY, Config(count=2), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


NESTED = b"[" * 100_000
DAMAGED_ROWS = [b"", b'{"task": {"na', b"[1]", b'{"task": {}}', b"\xff\xfe", NESTED]
DAMAGED_ROWS += [b'{"task": {}, "row": %s}' % row for row in (b"{}", b"[]", b"null", b"[1]")]


@pytest.mark.parametrize("content", DAMAGED_ROWS, ids=lambda content: content[:30].decode(errors="replace"))
def test_a_damaged_row_is_reported_and_mended_by_deleting_it(content: bytes, tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    table = (tmp_path / "table.csv").read_bytes()
    damaged = finished(tmp_path)[1]
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged .*; delete it, and it is computed again") as refused:
        run(STUDY, Config(count=2), tmp_path, seed=3)
    assert str(damaged) in str(refused.value)
    damaged.unlink()
    run(STUDY, Config(count=2), tmp_path, seed=3)
    assert (tmp_path / "table.csv").read_bytes() == table


def test_a_row_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path)
    first, second = finished(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match="is of another task"):
        run(STUDY, Config(count=2), tmp_path)


DAMAGED_NOTES = {name: {name: []} for name in ("config", "seed", "versions", "backend", "machine")}
DAMAGED_NOTES |= {"a list": {"continued_with": [1]}, "a number": {"continued_with": 1}, "half": {}}


@pytest.mark.parametrize("damage", [*DAMAGED_NOTES, "nested", "a pipe"])
def test_a_damaged_note_is_reported(damage: str, tmp_path: Path) -> None:
    folder, file = RunFolder(tmp_path), tmp_path / "run.json"
    folder.open(STUDY, Config())
    if damage == "a pipe":
        file.unlink()
        os.mkfifo(file)
    elif damage == "nested":
        file.write_bytes(NESTED)
    else:
        text = json.dumps({**json.loads(file.read_text()), **DAMAGED_NOTES[damage]})
        file.write_text(text[:40] if damage == "half" else text)
    with pytest.raises(
        ValueError, match=r"run\.json is (damaged \(|not a regular file).* \(--resume none\)$"
    ):
        folder.open(STUDY, Config())
    if damage != "a pipe":
        folder.open(STUDY, Config(), "none")
        folder.open(STUDY, Config())


NOW = runner.provenance()
CHANGES = {
    "backend": ({"backend": "cupy"}, "backend is 'numpy', not 'cupy'"),
    "version": ({"versions": {**NOW["versions"], "numpy": "0.1"}}, "numpy is '[0-9.]+', not '0.1'"),
    "revision": ({"revision": "0123"}, "revision is .*, not '0123'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_of_other_origin_is_refused(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (new, difference) = RunFolder(tmp_path), CHANGES[change]
    monkeypatch.setattr(runner, "provenance", lambda: {**NOW, "backend": "numpy"})
    folder.open(STUDY, Config())
    before = (tmp_path / "run.json").read_bytes()
    monkeypatch.setattr(runner, "provenance", lambda: {**NOW, "backend": "numpy", **new})
    remedy = "expected the same, or --resume any to go on all the same, or --resume none to begin anew"
    with pytest.raises(ValueError, match=f"holds results of other origin: {difference}; {remedy}"):
        folder.open(STUDY, Config())
    assert (tmp_path / "run.json").read_bytes() == before
    folder.open(STUDY, Config(), "any")
    folder.open(STUDY, Config())  # one that went on is of both origins
    with pytest.raises(ValueError, match="holds another run: count is 6, not 2"):
        folder.open(STUDY, Config(count=2), "any")


@pytest.mark.slow
def test_a_run_goes_on_with_another_backend_or_begins_anew_if_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("tiny", "--count", 2, "--seed", 3, "--jobs", 1, "--out", tmp_path)
    assert call(*options).exit_code == 0
    table, (first, second) = (tmp_path / "table.csv").read_bytes(), finished(tmp_path)
    second.unlink()
    before = first.stat().st_mtime_ns
    monkeypatch.setenv("PHIBALL_BACKEND", "numba")
    result = call(*options)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"phiball: {tmp_path} holds results of other origin: ")
    assert finished(tmp_path) == [first]
    assert call(*options, "--resume", "any").exit_code == 0
    assert first.stat().st_mtime_ns == before
    assert (tmp_path / "report.md").read_text().count("; continued with python") == 1
    assert (tmp_path / "table.csv").read_bytes() == table
    assert call(*options, "--resume", "none").exit_code == 0
    assert first.stat().st_mtime_ns != before
    assert "continued with" not in (tmp_path / "report.md").read_text()
    assert (tmp_path / "table.csv").read_bytes() == table
    assert "one of same, any, none" in call(*options, "--resume", "some").stderr


def test_jobs_must_be_a_number_of_processes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs is 0; expected a whole number of at least 1"):
        run(STUDY, Config(count=2), tmp_path, jobs=0)
