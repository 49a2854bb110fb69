"""The command line: what it prints, where it writes, and its errors of one line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from phiball.experiments.cli import main as entry
from phiball.experiments.cli.app import app
from phiball.verification.framework import runner
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.report import record

FULL = "[Errno 28] No space left on device"


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("COLUMNS", "200")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """The exit status of the entry point."""
    monkeypatch.setattr(sys, "argv", ["phiball", *arguments])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    return stopped.value.code


@pytest.mark.parametrize(
    "command", [["verify"], ["report"], ["backends"], ["run"], ["bench"], ["bench", "inner"]]
)
def test_help_has_an_example(command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert f"phiball {' '.join(command)}" in result.output.partition("Example:")[2]


def test_bare_command_shows_help_and_version_is_printed() -> None:
    assert "Commands:\n  verify" in call().output
    assert call("--version").output.startswith("phiball 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["verify", "--claim", "nonsense"],
            "claim is 'nonsense', which no id, name, label or statement contains",
        ),
        (["verify", "--section", "99"], "section is 99; there are claims on 2, 3"),
        (["verify", "--seed", "-1"], "Invalid value for '--seed'"),
        (["verify", "--engine", "slurm"], "engine is 'slurm'; expected one of processes, dask, ray"),
        (["verify", "--sead", "1"], "No such option: --sead"),
        (["report"], "Missing argument 'models"),
        (["nothing"], "No such command 'nothing'"),
    ],
)
def test_bad_option_is_one_line(arguments: list[str], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.lower().startswith(f"phiball: {words}".lower())
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["verify", "backends"])
def test_bad_environment_is_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "abacus")
    result = call(command)
    assert result.exit_code == 1
    assert result.stderr.startswith("phiball: the environment variable PHIBALL_BACKEND is 'abacus'; the back")
    assert len(result.stderr.splitlines()) == 1
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("PHIBALL_THREADS", "abc")
    assert "PHIBALL_THREADS is 'abc'" in call("verify", "--claim", "C7").stderr


# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verify_prints_verdicts_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("verify", "--claim", "C7", "--seed", 5)
    assert result.exit_code == 0, result.output
    assert "holds as corrected" in result.output
    assert "The paper: 1 statement (1 claim): 1 imprecise\n\nAll verdicts as recorded" in result.output
    # A selection does not replace the full report.
    assert [path.name for path in Path("results/verify").iterdir()] == ["selected"]
    for name in ("claims.json", "claims.md", "claims.html"):
        assert f"results/verify/selected/{name}" in result.output
    assert json.loads(Path("results/verify/selected/claims.json").read_text())["seed"] == 5


def test_verify_deep_searches_ten_times_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.HOLDS, examples=7, n=st.integers())
    def true(n: int) -> Evidence:
        """Is true."""
        return Evidence(0.0, 0.0)

    monkeypatch.setattr(runner, "all_claims", lambda: [true])
    counts = []
    for more in ([], ["--deep"]):
        call("verify", "--out", tmp_path, *more)
        counts.append(json.loads((tmp_path / "claims.json").read_text())["claims"][0]["examples"])
    assert counts == [7, 70]


def test_verify_fails_when_a_verdict_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.HOLDS)
    def wrong() -> Evidence:
        """Is wrong."""
        return Evidence(1.0, 0.0)

    monkeypatch.setattr(runner, "all_claims", lambda: [wrong])
    result = call("verify", "--out", tmp_path)
    assert result.exit_code == 1
    assert "DIFFERS: the recorded verdict is holds" in result.output
    assert "NOT as recorded: Z1 wrong" in result.output
    assert (tmp_path / "claims.md").exists()


def test_verify_lists_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = call("verify", "--list", "--section", "3").output.splitlines()
    assert [line.split()[0] for line in lines] == [one.id for one in runner.find(section=3)]
    assert list(tmp_path.iterdir()) == []


def test_verify_reports_bad_folders_and_files_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(out: Path) -> str:
        result = call("verify", "--claim", "C7", "--out", out)
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1
        return str(result.stderr)

    (tmp_path / "file").write_text("")
    assert "Not a directory" in verify(tmp_path / "file" / "out")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _disk_is_full)
        assert verify(tmp_path / "full") == f"phiball: {FULL}\n"
    assert list((tmp_path / "full").iterdir()) == []
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    for content in ("{", "[3]", '[{"seed": 1}]'):
        (tmp_path / "record.json").write_text(content)
        assert verify(tmp_path / "out").startswith(f"phiball: {tmp_path / 'record.json'} is damaged")
        assert list((tmp_path / "out").iterdir()) == []  # before the work


def _disk_is_full(descriptor: int) -> None:
    raise OSError(ENOSPC, "No space left on device")


# --- backends -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_backends_names_the_active_one_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(
            "phiball.experiments.cli.app.find_spec", lambda n: None if n == "torch" else find_spec(n)
        )
        output = call("backends").output
    assert "not installed: pip install 'phiball[torch]'" in output
    (line,) = [line for line in output.splitlines() if "yes" in line]
    assert " numpy " in line
    assert "PHIBALL_BACKEND says so" in line
    monkeypatch.delenv("PHIBALL_BACKEND")
    (line,) = [line for line in call("backends").output.splitlines() if "yes" in line]
    assert " numba " in line
    assert "default" in line


# --- the entry point ------------------------------------------------------------------------------


def test_entry_point_runs_or_names_the_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "verify", "--list") == 0
    assert "Theorem 1 (I)" in capsys.readouterr().out
    monkeypatch.setattr(entry, "find_spec", lambda name: None)
    assert main(monkeypatch) == 1
    assert capsys.readouterr().err == (
        "phiball: the command line needs typer, which is not installed: pip install 'phiball[verify]'\n"
    )


def test_ctrl_c_while_packages_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(**how: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phiball.experiments.cli.app.app", interrupt)
    assert main(monkeypatch) == 130
    assert capsys.readouterr().err == "phiball: stopped\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full: not on this system")
@pytest.mark.parametrize("command", ["--version", "verify --list", "run --help"])
def test_output_that_cannot_be_printed_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    code = main(monkeypatch, *command.split())
    with suppress(OSError):  # the unwritten rest
        full.close()
    assert code == 1
    assert capsys.readouterr().err == f"phiball: {FULL}\n"


# --- determinism ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run worst-case --scale smoke", "verify --claim pricing"])
def test_results_do_not_depend_on_processes_and_threads(command: str, tmp_path: Path) -> None:
    """Bit for bit, except for times."""
    found = []
    for jobs, threads in ((1, 1), (2, 3)):
        out = tmp_path / str(jobs)
        code = "from phiball.experiments.cli.main import main; main()"
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PHIBALL_THREADS")
        words = [*command.split(), "--seed", "5", "--jobs", str(jobs), "--out", str(out)]
        environment = {**os.environ, **dict.fromkeys(names, str(threads)), "PHIBALL_BACKEND": "numba"}
        subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, check=True)
        if command.startswith("run"):
            found.append((out / "table.csv").read_text())
        else:
            claims = json.loads((out / "claims.json").read_text(encoding="utf-8"))["claims"]
            found.append(json.dumps([{**one, "seconds": 0} for one in claims]))
    assert found[0] == found[1]
