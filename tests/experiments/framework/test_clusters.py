"""Studies, claims and reports give the same results on several processes and on clusters."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.backends import backend  # noqa: E402
from phiball.backends.provenance import check_origin, provenance  # noqa: E402
from phiball.backends.workers import WORKER_DIED, _call, cluster, run_tasks  # noqa: E402
from phiball.experiments.framework.study_runs import run_study  # noqa: E402
from phiball.experiments.robustness import AttackSettings, robustness_report  # noqa: E402
from phiball.experiments.robustness.report_formats import report_csv  # noqa: E402
from tests.support.parallel.clusters import (  # noqa: E402
    ENVIRONMENT,
    LIMIT,
    THREADS,
    dask_cluster,
    is_alive,
    ray_cluster,
    wait_until,
    worker_state,
)
from tests.support.tiny_study import STUDY, Config  # noqa: E402

CODE = """
import sys
from phiball.experiments.cli import main, run
run.STUDIES["tiny"] = "tests.support.tiny_study"
main.main()
"""
CLUSTERS: dict[str, tuple[str, Any]] = {"dask": ("distributed", dask_cluster), "ray": ("ray", ray_cluster)}
COUNT = 4
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc: not on this system")


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")


@pytest.fixture(scope="module", params=["processes", *CLUSTERS])
def engine_options(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Command-line options for two local processes, and for clusters of two workers."""
    if request.param == "processes":
        yield ["--n-jobs", "2"]
        return
    library, start = CLUSTERS[request.param]
    if find_spec(library) is None or sys.platform != "linux":
        pytest.skip(f"{library}: not installed")
    with start(tmp_path_factory.mktemp(request.param)) as address:
        yield ["--engine", request.param, "--address", address]


def start_study(engine_options: list[str], out: Path, place: str) -> subprocess.Popen[str]:
    options = f"--count {COUNT} --seed 3 --out {out}".split()
    return subprocess.Popen(
        [sys.executable, "-c", CODE, "run", "tiny", *engine_options, *options, "--place", place],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@linux
@pytest.mark.slow
def test_ctrl_c_ends_all_processes_of_a_study(engine_options: list[str], tmp_path: Path) -> None:
    """Dask workers, which the command did not start, finish their tasks."""
    pids = tmp_path / "pids"
    pids.mkdir()
    process = start_study(engine_options, tmp_path / "stopped", f"stay:{pids}")
    wait_until(lambda: len(list(pids.iterdir())) == 2 or process.poll() is not None, "no two tasks")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "phiball: stopped"
    if "dask" in engine_options:
        for file in pids.iterdir():
            os.kill(int(file.name), signal.SIGKILL)
        return
    wait_until(lambda: not any(is_alive(int(file.name)) for file in pids.iterdir()), "a task runs")


@linux
@pytest.mark.slow
def test_study_resumes_after_a_killed_worker(engine_options: list[str], tmp_path: Path) -> None:
    process = start_study(engine_options, tmp_path / "out", f"kill:{tmp_path}")
    _, err = process.communicate(timeout=LIMIT)
    assert (tmp_path / "killed").exists(), err
    if "dask" not in engine_options:  # Dask retries the task on another worker
        assert process.returncode == 1
        assert f"phiball: {WORKER_DIED}" in err
        process = start_study(engine_options, tmp_path / "out", f"kill:{tmp_path}")
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    run_study(STUDY, Config(count=COUNT), tmp_path / "one", seed=3)
    assert (tmp_path / "out" / "table.csv").read_bytes() == (tmp_path / "one" / "table.csv").read_bytes()
    notes = [file.read_text() for file in sorted((tmp_path / "out" / "tasks").glob("*/note.txt"))]
    assert notes == [f"task {k}" for k in range(COUNT)]  # files written by tasks are sent back


@pytest.mark.slow
def test_claims_have_the_same_results_as_in_one_process(engine_options: list[str], tmp_path: Path) -> None:
    found = []
    for place in (["--n-jobs", "1"], engine_options):
        words = ["verify", "--claim", "Algorithm 2", "--out", str(tmp_path), *place]
        # New processes are needed because Hypothesis draws constants from imported modules.
        subprocess.run([sys.executable, "-c", CODE, *words], cwd=ROOT, env=ENVIRONMENT, check=True)
        claims = json.loads((tmp_path / "claims.json").read_text())["claims"]
        found.append([{k: v for k, v in claim.items() if k != "seconds"} for claim in claims])
    assert len(found[0]) >= 2
    assert found[0] == found[1]


@pytest.mark.slow
def test_reports_have_the_same_results_as_in_one_process(engine_options: list[str], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))

    def report(n_jobs: int | None, folder: Path) -> str:
        settings = AttackSettings(n_noise=2, n_samples=4, n_queries=5, chunk=15)
        options: Any = {"norm": "l2", "radii": [0.5], "settings": settings, "rng": 0}
        models = {"one": lambda z: z, "two": lambda z: -z}
        data = x, np.argmax(x, axis=1)
        return report_csv(robustness_report(models, data, n_jobs=n_jobs, cache=folder, **options).summary)

    here = report(None, tmp_path / "here")
    with cluster(*engine_options[1::2]) if "--engine" in engine_options else backend("numpy"):
        assert report(-1, tmp_path / "there") == here
    assert len(list((tmp_path / "there").iterdir())) == 6


@pytest.mark.slow
def test_threads_are_limited_only_in_worker_processes() -> None:
    before = [os.environ.get(name) for name in THREADS], signal.getsignal(signal.SIGINT)
    states = dict(run_tasks(worker_state, [(os.getpid(),)] * 3, n_jobs=2, n_threads=3))
    assert states == dict.fromkeys(range(3), (False, ["3", "3", "3"]))
    assert ([os.environ.get(name) for name in THREADS], signal.getsignal(signal.SIGINT)) == before
    assert dict(run_tasks(worker_state, [(os.getpid(),)], n_jobs=1))[0][0]  # n_jobs=1 uses this process
    with pytest.raises(ValueError, match="invalid literal"):
        list(run_tasks(int, [("1",), ("one",)], n_jobs=2))


def test_invalid_or_unreachable_clusters_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, address, words in [
        ("slurm", "", "engine is 'slurm'; expected"),
        ("ray", "", "address is ''; expected"),
        ("processes", "tcp://a:1", "expected none for processes on this machine"),
    ]:
        with pytest.raises(ValueError, match=words), cluster(engine, address):
            pass
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nothing listens on this port
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for engine, library in (("dask", "distributed"), ("ray", "ray")):
            monkeypatch.setitem(sys.modules, library, SimpleNamespace())
            with (
                pytest.raises(ConnectionError, match=f"no {engine} cluster answers"),
                cluster(engine, address),
            ):
                pass
            monkeypatch.setitem(sys.modules, library, None)
            with pytest.raises(ImportError, match=rf"phiball\[{engine}\]"), cluster(engine, address):
                pass


def test_cluster_worker_with_other_versions_raises() -> None:
    record = provenance()
    other = {**record, "versions": {**record["versions"], "numpy": "0.1"}}
    with pytest.raises(ValueError, match=r"a cluster worker differs from the run: numpy is .*, not '0\.1'"):
        _call(other, True, int, ("1",), 0)
    assert _call(record, True, int, ("1",), 5) == (5, 1)
    # Unknown revisions are not compared.
    check_origin({**record, "revision": None}, {**record, "revision": "abc"})
