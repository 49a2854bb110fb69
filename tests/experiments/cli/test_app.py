"""The command line: output, files and one-line errors."""

import json
import os
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from phiball.experiments.cli import bench
from phiball.experiments.cli import main as entry
from phiball.experiments.cli.app import app
from phiball.verification.framework import suite
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.report import record


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("COLUMNS", "200")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def assert_fails(code: int, message: str, *arguments: object) -> None:
    """Assert that a command fails with a one-line message on stderr."""
    result = call(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stderr.strip().startswith("phiball: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_bare_command_shows_help_and_version_is_printed() -> None:
    assert "Commands:\n  verify" in call().output
    assert call("--version").output.startswith("phiball 0.")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("verify --claim nonsense", "claim is 'nonsense'"),
        ("verify --seed -1", "'--seed'"),
        ("verify --engine slurm", "engine is 'slurm'; expected"),
        ("verify --sead 1", "--sead"),
        ("bench inner --busy --against x", "--busy and --against"),
        ("report", "models"),
        ("nothing", "'nothing'"),
    ],
)
def test_invalid_option_gives_a_one_line_error(command: str, message: str) -> None:
    assert_fails(2, message, *command.split())


def test_invalid_environment_variable_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "abc")
    assert_fails(1, "PHIBALL_THREADS is 'abc'", "verify", "--claim", "C7")
    monkeypatch.setenv("PHIBALL_BACKEND", "abacus")
    assert_fails(1, "PHIBALL_BACKEND is 'abacus'", "backends")


def test_missing_package_error_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["phiball"])
    monkeypatch.setattr(entry, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 1
    assert "needs typer, which is not installed: pip install 'phiball[verify]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("attacks", "estimators", "training"):
        assert_fails(1, "needs torch, which is not installed: pip install 'phiball[bench]'", "bench", name)
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.delitem(sys.modules, "phiball.backends.workers")
    assert_fails(1, "needs joblib, which is not installed: pip install 'phiball[", "run", "worst-case")


def test_interrupted_command_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "import_module", interrupt)
    assert_fails(130, "phiball: stopped", "bench", "inner")


@pytest.mark.slow
def test_backends_command_marks_the_active_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = [line for line in call("backends").output.splitlines() if "yes" in line]
    assert f"numpy {np.__version__}" in line
    monkeypatch.setattr("phiball.experiments.cli.app.packages_distributions", dict)
    assert "not installed: pip install 'phiball[torch]'" in call("backends").output


@pytest.mark.slow
def test_verify_prints_verdicts_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("verify", "--claim", "C7", "--seed", 5)
    assert result.exit_code == 0, result.output
    assert "holds as corrected" in result.output
    assert "All verdicts as recorded" in result.output
    for name in ("claims.json", "claims.md", "claims.html"):
        assert f"results/verify/seed-5/selected/{name}" in result.output
    assert json.loads(Path("results/verify/seed-5/selected/claims.json").read_text())["seed"] == 5


def test_verify_keeps_the_reports_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.HOLDS)
    def true() -> Evidence:
        """Is true."""
        return Evidence(0.0, 0.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "all_claims", lambda: [true])
    for more in ([], ["--seed", 1], ["--seed", 1, "--deep"], ["--claim", "Z1"]):
        assert call("verify", *more).exit_code == 0
    found = {path.parent.relative_to("results/verify").as_posix() for path in Path("results").rglob("*.html")}
    assert found == {".", "seed-1", "seed-1/deep", "selected"}


def test_verify_fails_if_a_verdict_differs_and_deep_checks_more_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.REFUTED, examples=7, n=st.integers())
    def true(n: int) -> Evidence:
        """Is true."""
        return Evidence(0.0, 0.0)

    monkeypatch.setattr(suite, "all_claims", lambda: [true])
    for more, count in (([], 7), (["--deep"], 70)):
        result = call("verify", "--out", tmp_path, *more)
        assert result.exit_code == 1
        assert "NOT as recorded: Z1 true" in result.output
        assert json.loads((tmp_path / "claims.json").read_text())["claims"][0]["examples"] == count


def test_verify_list_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = call("verify", "--list", "--section", "3").output.splitlines()
    assert [line.split()[0] for line in lines] == [one.id for one in suite.find_claims(section=3)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["verify --claim C7", "run worst-case", "bench inner", "bench attacks"])
def test_impossible_output_folder_is_reported_before_the_work(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_fails(1, "Not a directory", *command.split(), "--out", tmp_path / "file" / "out")


def test_verify_reports_full_disk_and_damaged_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_is_full(descriptor: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    verify = "verify", "--claim", "C7", "--out"
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", disk_is_full)
        assert_fails(1, "[Errno 28] No space left on device", *verify, tmp_path / "full")
    assert list((tmp_path / "full").iterdir()) == []
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    (tmp_path / "record.json").write_text("{")
    assert_fails(1, f"{tmp_path / 'record.json'} is damaged", *verify, tmp_path / "out")


@pytest.mark.slow
def test_results_do_not_depend_on_processes_and_threads(tmp_path: Path) -> None:
    found = []
    for jobs, threads in (("1", "1"), ("2", "3")):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PHIBALL_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads), "PHIBALL_BACKEND": "numba"}
        message = ["run", "worst-case", "--scale", "smoke", "--n-jobs", jobs, "--out", str(tmp_path / jobs)]
        subprocess.run([sys.executable, "-m", entry.__name__, *message], env=environment, check=True)
        found.append((tmp_path / jobs / "table.csv").read_text())
    assert found[0] == found[1]


# --- report -----------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The command `report` for a one-line model, run in a temporary folder."""
    for library in ("joblib", "matplotlib", "threadpoolctl", "torch", "sklearn"):
        pytest.importorskip(library, reason=f"{library}: not installed")
    (tmp_path / "tiny_model.py").write_text("def sign(x):\n    return (x[:, 0] > 0).astype('int64')\n")
    x = np.linspace(-1, 1, 12).reshape(6, 2)
    np.savez(tmp_path / "test.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return ["report", "tiny_model:sign", "--data", "test.npz", "--radii", "0,1", "--n-jobs", "1", "--out"]


def test_report_recomputes_a_damaged_batch(report: list[object], tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    assert call(*report, page).exit_code == 0
    before = page.with_suffix(".csv").read_text()
    (batch,) = page.parent.rglob("*.npz")
    batch.write_bytes(batch.read_bytes()[:-30])
    assert call(*report, page).exit_code == 0
    assert page.with_suffix(".csv").read_text() == before


def test_report_on_an_invalid_file_gives_a_one_line_error(report: list[object], tmp_path: Path) -> None:
    data, out = tmp_path / "test.npz", tmp_path / "page.html"
    data.write_bytes(data.read_bytes()[:-9])
    assert_fails(1, "damaged (", *report, out)
    np.savez(data, x=np.zeros(1))
    assert_fails(1, "has no array 'y'", *report, out)
    data.unlink()
    assert_fails(1, "No such file", *report, out)


def test_report_on_invalid_radii_or_files_says_what_to_do(report: list[object], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert_fails(1, "expected one list, or one per norm: linf=0:1:5", *report, out, "--radii", "0:1:5")
    report[5] = "l2=0:1:5"
    assert_fails(1, "expected the same", *report, out, "--norm", "linf")
    report[1] = "model.ts"
    assert_fails(1, "torch.export.save", *report, out)
