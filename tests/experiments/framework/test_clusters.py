"""Studies on real clusters and in shards: the table of one process, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.paths import ROOT

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import rng  # noqa: E402
from phiball.backends.child import in_worker  # noqa: E402
from phiball.backends.engines import Engine  # noqa: E402
from phiball.backends.provenance import check_origin, provenance  # noqa: E402
from phiball.backends.scratch import scratch_folder  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from phiball.experiments.framework.compute import compute_row  # noqa: E402
from phiball.experiments.framework.runner import run  # noqa: E402
from phiball.experiments.framework.shards import Shard, ShardDoneError, task_list  # noqa: E402
from phiball.experiments.framework.tasks import task_source  # noqa: E402
from phiball.experiments.robustness import robustness_report  # noqa: E402
from phiball.experiments.robustness.files import to_csv  # noqa: E402
from tests.support import worker_tasks  # noqa: E402
from tests.support.parallel.clusters import ENVIRONMENT, LIMIT, Cluster, dask_cluster, ray_cluster, wait_until  # noqa: E402
from tests.support.parallel.killed_study import KilledStudy  # noqa: E402
from tests.support.tiny_study import STUDY, Config  # noqa: E402

CODE = """
import sys
from phiball.experiments.cli import run as cli_run
from phiball.experiments.cli.app import app
cli_run.STUDIES["killed"] = "tests.support.parallel.killed_study"
app(["run", "killed", *sys.argv[1:]], prog_name="phiball")
"""
CLUSTERS: dict[str, tuple[str, Any]] = {"dask": ("distributed", dask_cluster), "ray": ("ray", ray_cluster)}
COUNT = 4


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    library, start = CLUSTERS[request.param]
    if find_spec(library) is None or sys.platform != "linux":
        pytest.skip(f"{library}: not installed")
    with start(tmp_path_factory.mktemp(request.param)) as running:
        yield running


def start_study(cluster: Cluster, out: Path, place: str) -> subprocess.Popen[str]:
    where = ("--engine", cluster.engine, "--address", cluster.address, "--out", str(out))
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *where, "--count", str(COUNT), "--seed", "3", "--place", place],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def table(out: Path) -> bytes:
    return (out / "table.csv").read_bytes()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_table_of_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What tasks leave comes back too. Before, Ctrl-C has stopped a run, and every process of its tasks."""
    pids = tmp_path / "pids"
    pids.mkdir()
    process = start_study(cluster, tmp_path / "out", f"stay:{pids}")
    wait_until(
        lambda: len(list(pids.iterdir())) == 2 or process.poll() is not None, "two tasks did not start"
    )
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "phiball: stopped; run the same command to resume"
    wait_until(lambda: not any(alive(int(file.name)) for file in pids.iterdir()), "a task runs on")

    process = start_study(cluster, tmp_path / "out", f"{cluster.worker}:{pids}")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert (pids / "killed").exists()
    run(STUDY, Config(count=COUNT), tmp_path / "one", seed=3)
    assert table(tmp_path / "out") == table(tmp_path / "one")
    notes = [file.read_text() for file in sorted((tmp_path / "out" / "tasks").glob("*/note.txt"))]
    assert notes == [f"task {k}" for k in range(COUNT)]


@pytest.mark.slow
def test_claims_and_reports_have_the_numbers_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    def invoke(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return result

    where = ("--engine", cluster.engine, "--address", cluster.address)
    found = []
    for place in ((), where):
        invoke("verify", "--claim", "Algorithm 2", "--out", str(tmp_path), *(place or ("--jobs", "1")))
        claims = json.loads((tmp_path / "claims.json").read_text())["claims"]
        found.append([{k: v for k, v in claim.items() if k != "seconds"} for claim in claims])
    assert len(found[0]) == 3
    assert found[0] == found[1]

    x = np.random.default_rng(0).normal(size=(40, 2))
    tables = []
    for jobs, engine in ((1, None), (None, Engine(cluster.engine, cluster.address))):
        report = robustness_report(
            {"one": lambda z: z, "two": lambda z: -z}, (x, np.argmax(x, axis=1)), norms=["l2"], radii=[0.5],
            draws=2, samples=4, queries=5, batch=15, jobs=jobs, engine=engine, cache=tmp_path / str(jobs),
        )  # fmt: skip
        tables.append(to_csv(report.summary))
    assert tables[0] == tables[1]
    assert len(list((tmp_path / "None").iterdir())) == 6  # what is found comes back, and is kept here


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


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
    with pytest.raises(ValueError, match=r"2 of 6 tasks are in none of the folders: the first is .*task 0"):
        run(STUDY, Config(), tmp_path / "all", seed=3, merge=shards[1:])
    assert not (tmp_path / "all").exists()
    run(STUDY, Config(), tmp_path / "all", seed=3, merge=shards[::-1])
    assert table(tmp_path / "all") == table(tmp_path / "one")
    run(STUDY, Config(), tmp_path / "all", seed=3, merge=shards[:2])  # what is there already is compared
    with pytest.raises(ValueError, match="seed is 3, not 4"):
        run(STUDY, Config(), tmp_path / "all", seed=4, merge=shards)
    assert table(tmp_path / "all") == table(tmp_path / "one")  # only a folder that is new is removed
    run(STUDY, Config(), shards[0], seed=3, shard=Shard(1, 4), merge=shards[1:])  # a shard that has all
    assert table(shards[0]) == table(tmp_path / "one")


def test_what_does_not_belong_together_is_not_merged(shards: list[Path], tmp_path: Path) -> None:
    def merge(*folders: Path, seed: int = 3, **more: Any) -> None:
        run(STUDY, Config(), tmp_path / "all", seed=seed, merge=folders, **more)

    run(STUDY, Config(), tmp_path / "other", seed=4)
    with pytest.raises(
        ValueError, match="other holds another run: seed is 4, not 3; expected a merge with the"
    ):
        merge(tmp_path / "other")
    assert not (tmp_path / "all").exists()
    with pytest.raises(ValueError, match="which holds no run"):
        merge(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the folder of the run itself"):
        merge(tmp_path / "all")
    note = shards[1] / "run.json"
    kept = note.read_text()
    note.write_text(kept.replace('"backend": "numpy"', '"backend": "torch"'))
    with pytest.raises(ValueError, match="2 holds results of other origin: backend is 'torch', not 'numpy'"):
        merge(*shards)
    merge(*shards, resume="any")
    assert "continued_with" in (tmp_path / "all" / "run.json").read_text()
    note.write_text(kept)
    row = next((shards[2] / "rows").iterdir())
    content = json.loads(row.read_text())
    content["row"]["total"] += 1e-9
    row.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="differ; expected the same row"):
        merge(shards[2], resume="any")


def test_every_task_is_in_one_shard_and_no_shard_has_much_more_to_do() -> None:
    works = [float(1 + (7 * k) % 13) for k in range(40)]
    for n in (1, 3, 8, 50):
        parts = [Shard(k, n).choose(works) for k in range(1, n + 1)]
        assert sorted(k for part in parts for k in part) == list(range(40))
        loads = [sum(works[k] for k in part) for part in parts]
        assert max(loads) - min(loads) <= max(works)
    for text in ("0/4", "5/4", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(ValueError, match=r"shard is .* expected k/n"):
            Shard.parse(text)


def test_a_task_draws_the_same_whatever_is_beside_it() -> None:
    """Any subset and order of tasks gives the rows of all."""
    rows = STUDY.compute(Config(count=5), rng(3)).rows
    for k in (4, 0, 2):
        task = STUDY.tasks(Config(count=9))[k]
        again = STUDY.compute_task(Config(), task, task_source(rng(3), dict(reversed(task.items()))))
        assert again["total"] == rows[k]["total"]
    assert len({row["total"] for row in rows}) == 5


def test_the_list_of_tasks_estimates_their_time(tmp_path: Path) -> None:
    before = task_list(STUDY, Config(count=4), tmp_path)
    assert [row[1:] for row in before.rows] == [("25.0 %", "")] * 4 + [("100.0 %", "")]
    run(STUDY, Config(count=4, pause=1.0), tmp_path, jobs=4)
    after = task_list(STUDY, Config(count=4), tmp_path, Shard(1, 2))
    assert after.rows[-1][0] == "2 of 4 tasks"
    assert int(after.rows[-1][2].removesuffix(" s")) >= 2


# --- Engines ----------------------------------------------------------------------------------------


def test_engines_refuse_what_they_cannot_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, address, words in [
        ("slurm", "", "engine is 'slurm'; expected one of processes, dask, ray"),
        ("dask", "", "address is ''; expected that of the cluster"),
        ("processes", "tcp://a:1", "expected none for processes on this machine"),
        ("dask", "127.0.0.1", "address is '127.0.0.1'; expected one such as tcp://HOST:8786"),
        ("dask", "http://127.0.0.1:8786", "expected one such as tcp://HOST:8786"),
        ("ray", "tcp://127.0.0.1:6379", "expected one such as HOST:6379, or auto"),
    ]:
        with pytest.raises(ValueError, match=words):
            Engine(name, address)
    with pytest.raises(ValueError, match="jobs is -1"):
        Engine(jobs=-1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        for name, module, kind in (("dask", "distributed", "Dask scheduler"), ("ray", "ray", "Ray cluster")):
            monkeypatch.setitem(sys.modules, module, SimpleNamespace())
            nowhere = Engine(name, f"127.0.0.1:{free.getsockname()[1]}")
            with pytest.raises(ConnectionError, match=f"where no {kind} answers"):
                run(STUDY, Config(), tmp_path / "out", engine=nowhere)
            assert not (tmp_path / "out").exists()
    for name, module in (("dask", "distributed"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"needs {module}, which is not .*phiball\[{name}\]"):
            next(Engine(name, "somewhere:1").run(worker_tasks.divide, [(1, 2)]))


def test_a_worker_with_other_versions_is_refused() -> None:
    record = {**provenance(), "seed": 3}
    other = {**record, "versions": {**record["versions"], "numpy": "0.1"}}
    with pytest.raises(ValueError, match=r"a worker of the cluster differs: numpy is .*, not '0\.1'"):
        in_worker(other, worker_tasks.divide, (1, 2))
    assert in_worker(record, worker_tasks.divide, (1, 2)) == 0.5
    check_origin({**record, "revision": None}, {**record, "revision": "abc"})  # not known, so not compared
    with pytest.raises(ValueError, match="revision is 'abc', not 'def'"):
        check_origin({**record, "revision": "def"}, {**record, "revision": "abc"})


def test_files_of_a_task_travel_both_ways(tmp_path: Path) -> None:
    record = {**provenance(), "seed": 3}
    config = Config(place=f"self:{tmp_path}")
    task = STUDY.tasks(config)[0]
    content, files = compute_row(KilledStudy(), config, task, rng(0), {"checkpoint": b"\x00half"}, record)
    assert files == {"checkpoint": b"\x00half", "note.txt": b"task 0"}
    assert content["task"] == task


@pytest.mark.slow
def test_tasks_are_spread_over_devices() -> None:
    """Two that run at the same time have different ones."""
    outcomes: dict[int, Any] = {}
    for _, ended in Engine(jobs=2).run(worker_tasks.where, [(0.3,)] * 6, places=("a", "b")):
        outcomes |= ended
    assert {place for place, _, _ in outcomes.values()} == {"a", "b"}
    for (one, began, over), (other, start, end) in combinations(outcomes.values(), 2):
        assert one != other or over <= start or end <= began
    with pytest.raises(ValueError, match="expected one for a cluster, whose workers have their own"):
        Engine("dask", "somewhere:1").run(worker_tasks.where, [(0.5,)], places=("a", "b"))


@pytest.mark.slow
def test_a_child_is_killed_when_it_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phiball.backends.child import call_in_child
    from phiball.backends.processes import Lost

    places, tmp_path = tmp_path / "places", tmp_path / "pids"
    places.mkdir()
    tmp_path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    wanted: Callable[[], bool] = lambda: not list(tmp_path.iterdir())  # noqa: E731
    outcome = call_in_child(worker_tasks.leave_pid_and_sleep, (tmp_path,), 1, wanted)
    assert isinstance(outcome, Lost)
    assert not alive(int(next(tmp_path.iterdir()).name))
    assert call_in_child(worker_tasks.divide, (1, 4), 1, lambda: True) == 0.25
    with pytest.raises(ZeroDivisionError):
        call_in_child(worker_tasks.divide, (1, 0), 1, lambda: True)
    died = call_in_child(os._exit, (3,), 1, lambda: True)
    assert died == Lost("the process died with EXIT(3)")
    assert not list(places.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of this kind on Windows")
def test_a_folder_that_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os; from phiball.backends.scratch import scratch_folder as f\nwith f():\n    os._exit(1)"
    subprocess.run([sys.executable, "-c", code], env={**ENVIRONMENT, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    other = tmp_path / "phiball-pricing"  # the folder of a run, which has a lock too
    other.mkdir()
    (other / ".lock").touch()
    with scratch_folder() as first, scratch_folder() as second:
        assert not left.exists()
        assert set(tmp_path.iterdir()) == {first, second, other}
    assert list(tmp_path.iterdir()) == [other]
