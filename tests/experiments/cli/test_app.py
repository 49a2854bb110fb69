"""The command line: what it prints, where it writes, and how it fails."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from phiball.experiments.cli import main as entry
from phiball.experiments.cli.app import app
from phiball.verification.framework import runner
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict

COMMANDS = (
    ["verify"],
    ["backends"],
    ["run"],
    ["bench"],
    *(["bench", name] for name in ("inner", "scaling", "attacks", "sampling", "estimators")),
    *(["bench", name] for name in ("training", "linear")),
)


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("COLUMNS", "200")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert f"phiball {' '.join(command)}" in result.output.partition("Example:")[2]


def test_bare_command_shows_help() -> None:
    result = call()
    assert "verify" in result.output
    assert "backends" in result.output


# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verify_prints_the_verdict_and_says_what_it_wrote(tmp_path: Path) -> None:
    result = call("verify", "--claim", "C7", "--out", str(tmp_path / "report"))
    assert result.exit_code == 0, result.output
    assert "holds as corrected" in result.output
    assert (
        "The paper: 1 statement (1 claim): 1 imprecise\n\nAll verdicts as recorded (backend numpy"
        in result.output
    )
    for name in ("claims.json", "claims.md"):
        assert str(tmp_path / "report" / name) in result.output
        assert (tmp_path / "report" / name).exists()


@pytest.mark.slow
def test_verify_takes_the_seed(tmp_path: Path) -> None:
    assert call("verify", "--claim", "C7", "--seed", "5", "--out", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "claims.json").read_text())["seed"] == 5
    assert call("verify", "--claim", "C7", "--seed", "-1", "--out", str(tmp_path)).exit_code == 2


def test_verify_deep_searches_ten_times_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.HOLDS, examples=7, n=st.integers())
    def true(n: int) -> Evidence:
        """Is true."""
        return Evidence(0.0, 0.0)

    monkeypatch.setattr(runner, "all_claims", lambda: [true])
    counts = []
    for more in ([], ["--deep"]):
        call("verify", "--out", str(tmp_path), *more)
        counts.append(json.loads((tmp_path / "claims.json").read_text())["claims"][0]["examples"])
    assert counts == [7, 70]


def test_verify_fails_when_a_verdict_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claim("Lemma 0", id="Z1", section=2, verdict=Verdict.HOLDS)
    def wrong() -> Evidence:
        """Is wrong."""
        return Evidence(1.0, 0.0)

    monkeypatch.setattr(runner, "all_claims", lambda: [wrong])
    result = call("verify", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "DIFFERS: the recorded verdict is holds" in result.output
    assert "NOT as recorded: Z1 wrong" in result.output
    assert (tmp_path / "claims.md").exists()


def test_verify_lists_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("verify", "--list", "--section", "3")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == [one.id for one in runner.find(section=3)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--claim", "nonsense"],
            "claim is 'nonsense', which no id, name, label or statement contains",
        ),
        (["--section", "99"], "section is 99; there are claims on 2, 3"),
    ],
)
def test_verify_names_what_it_does_not_know(arguments: list[str], words: str) -> None:
    result = call("verify", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_verify_tells_of_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("verify", "--claim", "C7", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert str(tmp_path / "file") in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["verify"], ["backends"]])
def test_unknown_backend_is_one_line(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "abacus")
    result = call(*command)
    assert result.exit_code == 1
    assert result.stderr == (
        "phiball: the environment variable PHIBALL_BACKEND is 'abacus'; "
        "the backends are numpy, numba, torch, cupy, strict\n"
    )


# --- backends -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_backends_says_which_is_active_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("backends")
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if "yes" in line]
    assert " numpy " in line
    assert "PHIBALL_BACKEND says so" in line
    monkeypatch.delenv("PHIBALL_BACKEND")
    (line,) = [line for line in call("backends").output.splitlines() if "yes" in line]
    assert " numba " in line
    assert "default" in line


@pytest.mark.slow
def test_backends_says_how_to_install_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "phiball.experiments.cli.app.find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    assert "not installed: pip install 'phiball[torch]'" in call("backends").output


# --- bench ----------------------------------------------------------------------------------------


def test_bench_inner_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_more(**options: Any) -> None:
        raise ImportError("entmax is not installed:\n pip install 'phiball[bench]'")

    fake = ModuleType("phiball.experiments.benchmarks.inner")
    fake.measure = needs_more  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "phiball.experiments.benchmarks.inner", fake)
    result = call("bench", "inner")
    assert result.exit_code == 1
    assert result.stderr == "phiball: entmax is not installed: pip install 'phiball[bench]'\n"


# --- the entry point ------------------------------------------------------------------------------


def test_entry_point_names_the_extra_where_typer_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == (
        "phiball: the command line needs typer, which is not installed: pip install 'phiball[verify]'\n"
    )


def test_entry_point_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["phiball", "verify", "--list"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 0
    assert "Theorem 1 (I)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_selection_does_not_replace_the_full_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["verify", "--claim", "C7"])
    assert result.exit_code == 0
    assert [path.name for path in Path("results/verify").iterdir()] == ["selected"]


def test_number_of_threads_is_read_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "abc")
    result = CliRunner().invoke(app, ["verify", "--claim", "C7"])
    assert result.exit_code == 1
    assert "PHIBALL_THREADS is 'abc'" in result.output


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.startswith("phiball 0.")
