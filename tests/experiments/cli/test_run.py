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


def test_studies_are_listed_with_an_example() -> None:
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


def test_options_change_a_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("tiny", "--scale", "smoke", "--powers", "-.5, 3", "--seed", 5, "--jobs", 1)
    assert result.exit_code == 0, result.output
    out = Path("results/tiny/smoke")
    record = json.loads((out / "run.json").read_text())
    assert record["config"] == {"count": 2, "pause": 0.0, "powers": [-0.5, 3.0], "reading": "plain"}
    assert record["seed"] == 5
    assert "There are [2] tasks." in result.output
    assert f"wrote {out / 'table.csv'}" in result.output
    result = call("tiny", "--scale", "smoke", "--jobs", 1, "--seed", 1)
    assert result.exit_code == 1
    assert "holds another run: " in result.stderr


def test_shards_are_listed_computed_and_merged(tmp_path: Path) -> None:
    options = ("tiny", "--count", 3, "--jobs", 1)
    assert "33.3 %" in call(*options, "--list-tasks").output
    for k in (1, 2):
        result = call(*options, "--shard", f"{k}/2", "--out", tmp_path / str(k))
        assert (result.exit_code, result.output.count(f"shard {k} of 2 has computed")) == (0, 1)
    merged = call(*options, "--merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "all")
    assert merged.exit_code == 0, merged.output
    assert call(*options, "--out", tmp_path / "one").exit_code == 0
    assert (tmp_path / "all" / "table.csv").read_text() == (tmp_path / "one" / "table.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "many"], "--count is 'many'; expected a whole number"),
        (["--count", "0"], "--count is 0; expected a whole number of at least 1"),
        (["--pause", ""], "--pause is ''; expected a number"),
        (["--powers", "1,,2"], "--powers is '1,,2'; expected a number, or more with commas"),
        (["--reading", "odd"], "--reading is 'odd'; expected one of plain, fancy"),
        (["--scale", "huge"], "--scale is 'huge'; expected one of smoke, small, paper"),
        (["--seed", "-1"], "--seed is -1; expected a whole number of at least 0"),
        (["--shard", "3"], "--shard is '3'; expected k/n with k from 1 to n, such as 2/4"),
        (["--engine", "dask"], "--address is ''; expected that of the dask cluster"),
        (["three"], "--merge and the folders of shards go together; expected both or neither"),
        (["--merge"], "--merge and the folders of shards go together; expected both or neither"),
        (["--amount", "3"], "No such option: --amount"),
    ],
)
def test_bad_value_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = call("tiny", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"phiball: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["joblib", "matplotlib", "tests.support.tiny_study"])
def test_missing_extra_is_named_before_the_work(
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


@pytest.mark.slow
def test_command_line_loads_no_study() -> None:
    code = """
import sys
import phiball.experiments.cli
from phiball.experiments.cli.run import STUDIES
print([name for name in (*STUDIES.values(), "matplotlib", "joblib", "gymnasium") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_table_too_wide_for_the_terminal_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    result = call("tiny", "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 0
    assert "Totals: a table too wide for this terminal, in report.md" in " ".join(result.output.split())
    assert "## Totals" in (tmp_path / "report.md").read_text()
