"""`phiball run`: options made of a study's fields, and messages of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

for library in ("joblib", "matplotlib", "threadpoolctl"):
    pytest.importorskip(library, reason=f"{library}: not installed")

from phiball.experiments.cli import run as cli_run  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from tests.support.paths import ROOT  # noqa: E402


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_BACKEND", "numpy")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setitem(cli_run.STUDIES, "tiny", "tests.support.tiny_study")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def test_the_studies_are_listed_with_an_example() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert "A tiny study." in result.output
    assert "phiball run" in result.output.partition("Example:")[2]
    assert all(name in result.output for name in cli_run.STUDIES)


def test_help_shows_each_option_with_the_value_of_the_paper() -> None:
    result = call("tiny", "--help")
    assert result.exit_code == 0
    assert "Example: phiball run tiny" in result.output
    for words in (
        "--count VALUE Tasks. [paper: 6; small: 3; smoke: 2]",
        "--pause VALUE Seconds per task. [paper: 0.0]",
        "--powers VALUE,... Powers of the draws. [paper: 1.0,0.5]",
        "--reading VALUE How it is read. One of plain, fancy. [paper: plain]",
    ):
        assert words in " ".join(result.output.split())


def test_options_change_a_scale(tmp_path: Path) -> None:
    result = call(
        "tiny", "--scale", "smoke", "--powers", "2,3.5", "--seed", 5, "--jobs", 1, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    note = json.loads((tmp_path / "run.json").read_text())
    assert note["config"] == {"count": 2, "pause": 0.0, "powers": [2.0, 3.5], "reading": "plain"}
    assert note["seed"] == 5
    assert "There are [2] tasks." in result.output
    assert f"wrote {tmp_path / 'table.csv'}" in result.output


def test_the_folder_is_named_after_study_and_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("tiny", "--scale", "smoke", "--jobs", 1).exit_code == 0
    assert (tmp_path / "results" / "tiny" / "smoke" / "table.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "many"], "--count is 'many'; expected a whole number"),
        (["--count", "1e2"], "--count is '1e2'; expected a whole number"),
        (["--count", "0"], "--count is 0; expected a whole number of at least 1"),
        (["--pause", ""], "--pause is ''; expected a number"),
        (["--powers", "1,,2"], "--powers is '1,,2'; expected a number, or more with commas"),
        (["--reading", "odd"], "--reading is 'odd'; expected one of plain, fancy"),
        (["--scale", "huge"], "--scale is 'huge'; expected one of smoke, small, paper"),
        (["--seed", "-1"], "--seed is -1; expected a whole number of at least 0"),
        (["--jobs", "-1"], "--jobs is -1; expected a whole number of at least 0"),
        (["--seed", "x"], "--seed is 'x'; expected a whole number"),
        (["--amount", "3"], "unrecognized arguments: --amount 3"),
        (["--coun", "3"], "unrecognized arguments: --coun 3"),
        (["three"], "unrecognized arguments: three"),
    ],
)
def test_a_bad_value_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = call("tiny", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == f"phiball: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_one_line(tmp_path: Path) -> None:
    arguments = ("tiny", "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert call(*arguments).exit_code == 0
    result = call(*arguments, "--seed", 1)
    assert result.exit_code == 1
    assert "holds another run: seed is 0, not 1" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("tiny", "--out", tmp_path / "file")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("missing", ["joblib", "matplotlib", "tests.support.tiny_study"])
def test_the_missing_extra_is_named_before_the_work(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = call("tiny", "--scale", "smoke", "--count", 3, "--jobs", 1, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == (
        f"phiball: a study needs {missing}, which is not installed: pip install 'phiball[experiments]'\n"
    )
    assert not (tmp_path / "out").exists()
    assert call("--help").exit_code == 0


def test_an_unknown_study_is_refused() -> None:
    result = call("nothing")
    assert result.exit_code == 2
    assert "nothing" in result.output


@pytest.mark.slow
def test_the_command_line_loads_no_study() -> None:
    code = """
import sys
import phiball.experiments.cli
from phiball.experiments.cli.run import STUDIES
print([name for name in (*STUDIES.values(), "matplotlib", "joblib", "gymnasium") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_a_table_too_wide_for_the_terminal_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    result = call("tiny", "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 0
    assert "Totals: a table too wide for this terminal, in report.md" in " ".join(result.output.split())
    assert "## Totals" in (tmp_path / "report.md").read_text()


def test_a_list_may_begin_with_a_negative_number(tmp_path: Path) -> None:
    result = call("tiny", "--scale", "smoke", "--powers", "-.5,3", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run.json").read_text())["config"]["powers"] == [-0.5, 3.0]


def test_words_of_a_list_may_have_spaces_around_them(tmp_path: Path) -> None:
    result = call("tiny", "--scale", "smoke", "--powers", "2, 3", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run.json").read_text())["config"]["powers"] == [2.0, 3.0]
