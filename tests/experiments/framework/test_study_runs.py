"""`run_study`: outputs, resuming, invalid folders and shards."""

import csv
import json
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

for library in ("joblib", "matplotlib", "threadpoolctl", "rich"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import backend, rng, workers  # noqa: E402
from phiball.experiments.cli.run import STUDIES, load_study  # noqa: E402
from phiball.experiments.framework import study_runs  # noqa: E402
from phiball.experiments.framework.compute import compute_row  # noqa: E402
from phiball.experiments.framework.outputs import task_list  # noqa: E402
from phiball.experiments.framework.shards import Shard  # noqa: E402
from phiball.experiments.framework.study import SCALES  # noqa: E402
from phiball.experiments.framework.study_runs import RunFolder, ShardDoneError, run_study  # noqa: E402
from phiball.experiments.framework.tasks import task_rng  # noqa: E402
from tests.support.tiny_study import STUDY, Config, TinyStudy  # noqa: E402


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")


def row_files(out: Path) -> list[Path]:
    return sorted((out / "rows").glob("*.json"))


def table(out: Path) -> bytes:
    return (out / "table.csv").read_bytes()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_all_scales_and_distinct_tasks(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert set(study.scales) == set(SCALES)
    for config in study.scales.values():
        tasks = study.tasks(config)
        assert all(study.work(config, task) > 0 for task in tasks)
        assert len({study.label(task) for task in tasks}) == len(tasks)


# --- Outputs -----------------------------------------------------------------------------------------


def test_run_writes_table_report_figures_and_provenance(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    with backend("strict"):
        found, written = run_study(STUDY, Config(), out, seed=3)
    assert [path.name for path in written] == ["table.csv", "totals.png", "totals.svg", "report.md"]
    report = (out / "report.md").read_text(encoding="utf-8")
    for words in (
        "![totals](totals.png)",
        "## Totals",
        "[6] tasks",
        "Seed 3;",
        "backend strict",
        "pause 0.0",
    ):
        assert words in report
    with (out / "table.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["name", "k", "total", "product", "only here"]  # lists are left out
    assert [row["only here"] for row in rows] == ["", "nan", "", "", "", ""]
    assert [float(row["total"]) for row in rows] == [row["total"] for row in found.rows]
    for file in [out / "run.json", *row_files(out)]:
        record = json.loads(file.read_text())
        assert (record["seed"], record["backend"]) == (3, "strict")
    plain = STUDY.compute(Config(), rng(3))  # without a folder
    assert [row["total"] for row in plain.rows] == [row["total"] for row in found.rows]


def test_random_numbers_of_a_task_do_not_depend_on_other_tasks() -> None:
    rows = STUDY.compute(Config(count=5), rng(3)).rows
    for k in (4, 0, 2):
        task = STUDY.tasks(Config(count=9))[k]
        again = STUDY.compute_task(Config(), task, task_rng(rng(3), dict(reversed(task.items()))))
        assert again["total"] == rows[k]["total"]


def test_files_of_a_task_are_sent_to_a_worker_and_back() -> None:
    task = STUDY.tasks(Config())[0]
    record = {**study_runs.provenance(), "seed": 3}
    content, files = compute_row(STUDY, Config(), task, rng(0), {"checkpoint": b"\x00half"}, record)
    assert files == {"checkpoint": b"\x00half", "note.txt": b"task 0"}
    assert (content["task"], content["seed"]) == (task, 3)


class DeviceStudy(TinyStudy):
    """Each task returns its device."""

    def devices(self, config: Config) -> tuple[str, ...]:
        return "a", "b"

    def on_device(self, config: Config, device: str) -> Config:
        return Config(place=device)

    def compute_task(self, config: Config, *_: Any) -> dict[str, Any]:
        return {"device": config.place}


def test_task_uses_the_device_with_the_fewest_tasks(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(DeviceStudy(), Config())
    (tmp_path / "tasks").mkdir()
    with (tmp_path / "tasks" / ".device-0").open("w") as other:  # locked by another task
        study_runs.lock(other)
        rows = folder.map_tasks(DeviceStudy(), Config(), STUDY.tasks(Config(count=2)), rng(0))
        assert [row["device"] for row in rows] == ["b", "b"]
    rows = folder.map_tasks(DeviceStudy(), Config(), STUDY.tasks(Config(count=3)), rng(0))
    assert [row["device"] for row in rows] == ["b", "b", "a"]


def test_progress_counts_finished_tasks_and_missing_work(tmp_path: Path) -> None:
    reports: list[tuple[float, str]] = []
    run_study(STUDY, Config(count=3), tmp_path, update=lambda *report: reports.append(report))
    assert [text for _, text in reports] == [f"{k} of 3 tasks" for k in range(4)]
    assert [share for share, _ in reports] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    row_files(tmp_path)[1].unlink()
    reports.clear()
    run_study(STUDY, Config(count=3), tmp_path, update=lambda *report: reports.append(report))
    assert reports == [(0.0, "2 of 3 tasks"), (1.0, "3 of 3 tasks")]


# --- Resuming, and refused folders -------------------------------------------------------------------


def test_resumed_run_computes_only_missing_rows(tmp_path: Path) -> None:
    run_study(STUDY, Config(count=2), tmp_path / "whole", seed=3)
    out = tmp_path / "left"
    out.mkdir()
    (out / ".run.json.123").write_text('{"study": "te')  # left by a killed process
    run_study(STUDY, Config(count=2, place="attic"), out, seed=3)
    first, second = row_files(out)
    before = second.stat().st_mtime_ns
    (out / "rows" / f".{first.name}.123").write_text(first.read_text()[:40])
    first.unlink()
    run_study(STUDY, Config(count=2, place="cellar"), out, seed=3)  # place does not affect results
    assert table(out) == table(tmp_path / "whole")
    assert second.stat().st_mtime_ns == before
    run_study(STUDY, Config(count=2), out, seed=3, resume=False)
    assert second.stat().st_mtime_ns != before
    assert table(out) == table(tmp_path / "whole")


def test_rows_that_cannot_be_deleted_are_refused(tmp_path: Path) -> None:
    """Old rows would enter the table of the new run, and files behind a link belong to another folder."""
    out, away = tmp_path / "run", tmp_path / "away"
    run_study(STUDY, Config(count=2), out, seed=3)
    (out / "rows").rename(away)
    (out / "rows").symlink_to(away)
    with pytest.raises(ValueError, match="rows is a symbolic link; expected a folder of this run"):
        run_study(STUDY, Config(count=2), out, seed=4, resume=False)
    assert len(list(away.glob("*.json"))) == 2
    (out / "rows").unlink()
    (out / "rows" / "0000.json").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"0000\.json cannot be deleted"):
        run_study(STUDY, Config(count=2), out, seed=4, resume=False)


def test_processes_without_shared_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(workers, "Lock", full)
    assert list(workers.run_tasks(abs, [(-1,)], n_jobs=1)) == [(0, 1)]
    with pytest.raises(OSError, match="/dev/shm is full or read-only"):
        list(workers.run_tasks(abs, [(-1,)], n_jobs=2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": Config(count=3)}, "count is 2, not 3"),
        ({"seed": 4}, "seed is 3, not 4"),
        ({"study": "another"}, "study is 'another', not 'tiny'"),
        ({"backend": "torch"}, "backend is 'torch', not 'numpy'"),
        ({"revision": "other"}, "revision is 'other', not "),
        ({"versions": {**study_runs.provenance()["versions"], "numpy": "0.1"}}, "numpy is '0.1', not "),
    ],
)
def test_folder_of_another_run_raises(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    run_study(STUDY, Config(count=2), tmp_path, seed=3)
    asked = {"config": Config(count=2), "seed": 3, **change}
    record = json.loads((tmp_path / "run.json").read_text())
    recorded = {key: value for key, value in change.items() if key not in ("config", "seed")}
    (tmp_path / "run.json").write_text(json.dumps(record | recorded))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=rf"contains another run: {words}.* \(--out\), or --resume none"):
        run_study(STUDY, asked["config"], tmp_path, seed=asked["seed"])
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_invalid_n_jobs_foreign_folders_and_damaged_rows_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_jobs is 0; expected"):
        run_study(STUDY, Config(count=2), tmp_path, n_jobs=0)
    folder = RunFolder(tmp_path / "used")
    with folder.locked(), pytest.raises(ValueError, match=r"another run is using .* folder \(--out\)"):
        run_study(STUDY, Config(count=2), folder.path)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not empty and contains no run"):
        run_study(STUDY, Config(count=2), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"letter.txt", "used"}
    run_study(STUDY, Config(count=2), tmp_path / "run")
    first, second = row_files(tmp_path / "run")
    for content, words in (('{"task": {"na', "is damaged"), (first.read_text(), "belongs to another task")):
        second.write_text(content)
        with pytest.raises(ValueError, match=rf"{second.name} {words}"):
            run_study(STUDY, Config(count=2), tmp_path / "run")


# --- Shards -----------------------------------------------------------------------------------------


def test_shards_merge_into_the_table_of_one_run(tmp_path: Path) -> None:
    shards = [tmp_path / str(k) for k in range(1, 5)]
    for k, folder in enumerate(shards, 1):
        with pytest.raises(ShardDoneError, match=f"shard {k} of 4 has computed . of 6 tasks"):
            run_study(STUDY, Config(), folder, seed=3, shard=Shard(k, 4))

    def merge(*folders: Path) -> None:
        run_study(STUDY, Config(), tmp_path / "all", seed=3, merge=folders)

    run_study(STUDY, Config(), tmp_path / "one", seed=3)
    with pytest.raises(ValueError, match=r"2 of 6 tasks are missing, the first is task 0"):
        merge(*shards[1:])
    merge(*shards[::-1])
    assert table(tmp_path / "all") == table(tmp_path / "one")
    # A shard that has all rows after merging writes the table.
    run_study(STUDY, Config(), shards[0], seed=3, shard=Shard(1, 4), merge=shards[1:])
    assert table(shards[0]) == table(tmp_path / "one")
    run_study(STUDY, Config(), tmp_path / "other", seed=4)
    with pytest.raises(ValueError, match="other contains another run: seed is 4, not 3"):
        merge(tmp_path / "other")
    with pytest.raises(ValueError, match="which contains no run"):
        merge(tmp_path / "nowhere")
    row = row_files(shards[2])[0]
    content = json.loads(row.read_text())
    content["row"]["total"] += 1e-9
    row.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="differ; expected the same row"):
        merge(shards[2])


def test_every_task_is_in_exactly_one_shard_and_shards_are_balanced(tmp_path: Path) -> None:
    works = [float(1 + (7 * k) % 13) for k in range(40)]
    for n in (1, 3, 8, 50):
        parts = [Shard(k, n).choose(works) for k in range(1, n + 1)]
        assert sorted(k for part in parts for k in part) == list(range(40))
        loads = [sum(works[k] for k in part) for part in parts]
        assert max(loads) - min(loads) <= max(works)
    before = task_list(STUDY, Config(count=4), tmp_path)
    assert [row[1:] for row in before.rows] == [("25.0 %", "")] * 4 + [("100.0 %", "")]
    run_study(STUDY, Config(count=2, pause=1.0), tmp_path)
    after = task_list(STUDY, Config(count=4), tmp_path, Shard(1, 2))
    assert after.rows[-1][:2] == ("2 of 4 tasks", "50.0 %")
    assert int(after.rows[-1][2].removesuffix(" s")) >= 2
