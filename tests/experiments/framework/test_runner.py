"""Runs of studies: rows are kept one by one, a killed run resumes, and other runs are refused."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import rng, use  # noqa: E402
from phiball.experiments.framework import runner  # noqa: E402
from phiball.experiments.framework.compute import compute_row  # noqa: E402
from phiball.experiments.framework.outputs import task_list  # noqa: E402
from phiball.experiments.framework.progress import RunStatus  # noqa: E402
from phiball.experiments.framework.runner import RunFolder, ShardDoneError, run  # noqa: E402
from phiball.experiments.framework.shards import Shard  # noqa: E402
from phiball.experiments.framework.tasks import task_source  # noqa: E402
from tests.support.parallel.clusters import wait_until  # noqa: E402
from tests.support.tiny_study import STUDY, Config, TinyStudy  # noqa: E402

CODE = """
import sys
from phiball.experiments.cli import main, run
run.STUDIES["tiny"] = "tests.support.tiny_study"
main.main()
"""


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command line in a process that leads a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, "run", "tiny", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(out: Path) -> list[Path]:
    return sorted((out / "rows").glob("*.json"))


def table(out: Path) -> bytes:
    return (out / "table.csv").read_bytes()


# --- What a run writes ------------------------------------------------------------------------------


def test_run_writes_table_report_figures_and_provenance(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    seen: list[RunStatus] = []
    with use("strict"):
        found, written = run(STUDY, Config(), out, seed=3, on_start=seen.append)
    assert [path.name for path in written] == ["table.csv", "totals.png", "totals.svg", "report.md"]
    assert all(path.stat().st_size > 0 for path in written)
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
    assert [float(row["total"]) for row in rows] == [row["total"] for row in found.rows]
    for file in [out / "run.json", *finished(out)]:
        record = json.loads(file.read_text())
        assert (record["seed"], record["backend"]) == (3, "strict")
        assert record["versions"]["python"] == sys.version.split()[0]
        assert bool(record["revision"]) == (ROOT / ".git").exists()
    settings = {name: value for name, value in asdict(Config()).items() if name != "place"}
    assert json.loads((out / "run.json").read_text())["config"] == {**settings, "powers": [1.0, 0.5]}
    plain = STUDY.compute(Config(), rng(3))  # without a folder
    assert [row["total"] for row in plain.rows] == [row["total"] for row in found.rows]
    assert len({row["total"] for row in plain.rows}) == 6
    assert [task.label for task in seen[0].tasks][:2] == ["task 0 0", "task 1 1"]
    assert seen[0].poll() == (6, 1.0, {})


def test_task_draws_the_same_whatever_is_beside_it() -> None:
    rows = STUDY.compute(Config(count=5), rng(3)).rows
    for k in (4, 0, 2):
        task = STUDY.tasks(Config(count=9))[k]
        again = STUDY.compute_task(Config(), task, task_source(rng(3), dict(reversed(task.items()))))
        assert again["total"] == rows[k]["total"]


def test_files_of_a_task_travel_both_ways() -> None:
    task = STUDY.tasks(Config())[0]
    record = {**runner.provenance(), "seed": 3}
    content, files = compute_row(STUDY, Config(), task, rng(0), {"checkpoint": b"\x00half"}, record)
    assert files == {"checkpoint": b"\x00half", "note.txt": b"task 0"}
    assert (content["task"], content["seed"]) == (task, 3)


class DeviceStudy(TinyStudy):
    """Each task notes its device, and when it had it."""

    def devices(self, config: Config) -> tuple[str, ...]:
        return "a", "b"

    def on_device(self, config: Config, device: str) -> Config:
        return Config(place=device)

    def compute_task(self, config: Config, *_: Any) -> dict[str, Any]:
        return {"device": config.place}


def test_tasks_take_the_device_that_fewest_use(tmp_path: Path) -> None:
    study = DeviceStudy()
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.open(study, Config())
        (tmp_path / "tasks").mkdir()
        with (tmp_path / "tasks" / ".device-0").open("w") as other:  # as another task does
            runner.lock(other)
            rows = folder.map_tasks(study, Config(), STUDY.tasks(Config(count=2)), rng(0))
            assert [row["device"] for row in rows] == ["b", "b"]
        rows = folder.map_tasks(study, Config(), STUDY.tasks(Config(count=3)), rng(0))
    assert [row["device"] for row in rows] == ["b", "b", "a"]


# --- Resuming ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_run_resumes_and_gives_the_same_table(tmp_path: Path) -> None:
    """On two processes, byte for byte what one process gives that nothing disturbs."""
    config, out = Config(count=9, pause=0.15), tmp_path / "killed"
    run(STUDY, config, tmp_path / "whole", seed=3)
    for kill in range(2):
        process = start("--count", 9, "--pause", 0.15, "--seed", 3, "--jobs", 2, "--out", out)
        wait_until(lambda: process.poll() is not None or len(finished(out)) > 2 * kill, "no row came")  # noqa: B023
        if kill == 0:
            with pytest.raises(ValueError, match=r"another run is using .*; choose another folder \(--out\)"):
                run(STUDY, config, out, seed=3)
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it was not done
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # its workers
        process.communicate()
    kept = {file: file.stat().st_mtime_ns for file in finished(out)}
    assert 3 <= len(kept) < 9
    run(STUDY, config, out, seed=3, jobs=2)
    assert table(out) == table(tmp_path / "whole")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # not computed again


def test_leftovers_of_a_killed_writer_are_ignored(tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path / "whole", seed=3)
    out = tmp_path / "left"
    out.mkdir()
    (out / ".run.json.123").write_text('{"study": "te')
    run(STUDY, Config(count=2, place="attic"), out, seed=3)
    first, second = finished(out)
    (out / "rows" / f".{first.name}.123").write_text(first.read_text()[:40])
    first.unlink()
    run(STUDY, Config(count=2, place="cellar"), out, seed=3)  # a setting that results do not depend on
    assert table(out) == table(tmp_path / "whole")
    assert finished(out) == [first, second]


# --- Folders that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": Config(count=3)}, "count is 2, not 3"),
        ({"config": Config(count=2, powers=(1.0, 0.25))}, r"powers is \[1.0, 0.5\], not \[1.0, 0.25\]"),
        ({"seed": 4}, "seed is 3, not 4"),
        ({"study": "another"}, "study is 'another', not 'tiny'"),
    ],
)
def test_folder_of_another_run_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"study": change.pop("study", "tiny")}))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=rf"holds another run: {words}; expected .*\(--out\)"):
        run(STUDY, **{"config": Config(count=2), "seed": 3, **change}, out=tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_folder_without_a_run_and_bad_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        run(STUDY, Config(count=2), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(ValueError, match="jobs is 0; expected a number of processes"):
        run(STUDY, Config(count=2), tmp_path / "new", jobs=0)
    with pytest.raises(ValueError, match="resume is 'some'; expected one of same, any, none"):
        run(STUDY, Config(count=2), tmp_path / "new", resume="some")


@pytest.mark.parametrize(
    "content", ["", '{"task": {"na', "[1]", '{"task": {}}', '{"task": {}, "row": []}', "other"]
)
def test_damaged_row_is_reported_and_recomputed_when_deleted(content: str, tmp_path: Path) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    whole, (first, damaged) = table(tmp_path), finished(tmp_path)
    damaged.write_text(first.read_text() if content == "other" else content)
    words = (
        "is of another task" if content == "other" else r"is damaged .*; delete it, and it is computed again"
    )
    with pytest.raises(ValueError, match=words) as refused:
        run(STUDY, Config(count=2), tmp_path, seed=3)
    assert str(damaged) in str(refused.value)
    damaged.unlink()
    run(STUDY, Config(count=2), tmp_path, seed=3)
    assert table(tmp_path) == whole


@pytest.mark.parametrize("change", [{"config": []}, {"versions": 1}, {"continued_with": [1]}, {}, None])
def test_damaged_record_of_a_run_is_reported(change: dict[str, Any] | None, tmp_path: Path) -> None:
    file = run(STUDY, Config(count=2), tmp_path)[1][0].with_name("run.json")
    text = json.dumps({**json.loads(file.read_text()), **(change or {})})
    file.write_text(text if change else text[:40])
    if change is None:
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(ValueError, match=r"run\.json cannot be read \(.* \(--resume none\)$"):
        run(STUDY, Config(count=2), tmp_path)
    if change is not None:
        run(STUDY, Config(count=2), tmp_path, resume="none")


@pytest.mark.parametrize("name", ["backend", "versions", "revision"])
def test_run_of_other_origin_is_continued_only_if_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(STUDY, Config(count=2), tmp_path, seed=3)
    first, second = finished(tmp_path)
    second.unlink()
    whole, before, now = table(tmp_path), first.stat().st_mtime_ns, runner.provenance()
    new = {**now["versions"], "numpy": "0.1"} if name == "versions" else "other"
    monkeypatch.setattr(runner, "provenance", lambda: {**now, name: new})
    with pytest.raises(
        ValueError, match=r"holds results of other origin: .*, not .*or --resume none to begin"
    ):
        run(STUDY, Config(count=2), tmp_path, seed=3)
    assert finished(tmp_path) == [first]
    for resume in ("any", "same"):  # one that went on is of both origins
        run(STUDY, Config(count=2), tmp_path, seed=3, resume=resume)
        assert first.stat().st_mtime_ns == before
        assert (tmp_path / "report.md").read_text().count("; continued with python") == 1
    run(STUDY, Config(count=2), tmp_path, seed=3, resume="none")
    assert first.stat().st_mtime_ns != before
    assert "continued with" not in (tmp_path / "report.md").read_text()
    assert table(tmp_path) == whole


# --- Shards -----------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The folders of four shards of one run."""
    folders = [tmp_path / str(k) for k in range(1, 5)]
    for k, folder in enumerate(folders, 1):
        with pytest.raises(ShardDoneError, match=f"shard {k} of 4 has computed its . of 6 tasks"):
            run(STUDY, Config(), folder, seed=3, shard=Shard(k, 4))
    return folders


def test_shards_merge_into_the_table_of_one_run(shards: list[Path], tmp_path: Path) -> None:
    run(STUDY, Config(), tmp_path / "one", seed=3)
    with pytest.raises(ValueError, match=r"2 of 6 tasks are in none of the folders, .* task 0"):
        run(STUDY, Config(), tmp_path / "all", seed=3, merge=shards[1:])
    run(STUDY, Config(), tmp_path / "all", seed=3, merge=shards[::-1])
    assert table(tmp_path / "all") == table(tmp_path / "one")
    run(STUDY, Config(), shards[0], seed=3, shard=Shard(1, 4), merge=shards[1:])  # a shard that has all
    assert table(shards[0]) == table(tmp_path / "one")


def test_merge_refuses_folders_that_do_not_belong_together(shards: list[Path], tmp_path: Path) -> None:
    def merge(*folders: Path, **more: Any) -> None:
        run(STUDY, Config(), tmp_path / "all", seed=3, merge=folders, **more)

    run(STUDY, Config(), tmp_path / "other", seed=4)
    with pytest.raises(ValueError, match="other holds another run: seed is 4, not 3; expected a merge with"):
        merge(tmp_path / "other")
    with pytest.raises(ValueError, match="which holds no run"):
        merge(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the folder of the run itself"):
        merge(tmp_path / "all")
    record = shards[1] / "run.json"
    record.write_text(record.read_text().replace('"backend": "numpy"', '"backend": "torch"'))
    with pytest.raises(ValueError, match="2 holds results of other origin: backend is 'torch', not 'numpy'"):
        merge(*shards)
    merge(*shards, resume="any")
    row = next((shards[2] / "rows").iterdir())
    content = json.loads(row.read_text())
    content["row"]["total"] += 1e-9
    row.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="differ; expected the same row"):
        merge(shards[2], resume="any")


def test_every_task_is_in_one_shard_and_loads_are_balanced(tmp_path: Path) -> None:
    works = [float(1 + (7 * k) % 13) for k in range(40)]
    for n in (1, 3, 8, 50):
        parts = [Shard(k, n).choose(works) for k in range(1, n + 1)]
        assert sorted(k for part in parts for k in part) == list(range(40))
        loads = [sum(works[k] for k in part) for part in parts]
        assert max(loads) - min(loads) <= max(works)
    for text in ("0/4", "5/4", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(ValueError, match=r"shard is .* expected k/n"):
            Shard.parse(text)
    before = task_list(STUDY, Config(count=4), tmp_path)
    assert [row[1:] for row in before.rows] == [("25.0 %", "")] * 4 + [("100.0 %", "")]
    run(STUDY, Config(count=2, pause=1.0), tmp_path)
    after = task_list(STUDY, Config(count=4), tmp_path, Shard(1, 2))
    assert after.rows[-1][:2] == ("2 of 4 tasks", "50.0 %")
    assert int(after.rows[-1][2].removesuffix(" s")) >= 2
