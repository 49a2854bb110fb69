"""`phiball run`: options of a study, shards and one-line errors."""

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


def test_help_lists_studies_and_options_with_values_per_scale() -> None:
    listed = call("--help").output
    assert "A tiny study." in listed
    assert all(name in listed for name in cli_run.STUDIES)
    words = " ".join(call("tiny", "--help").output.split())
    assert "--count VALUE Tasks. [paper: 6; small: 3; smoke: 2]" in words
    assert "--powers VALUE,... Powers of the draws. [paper: 1.0,0.5]" in words
    assert "--reading VALUE How it is read. One of plain, fancy. [paper: plain]" in words


def test_options_override_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "12")  # tables are not truncated on a narrow terminal
    result = call("tiny", "--scale", "smoke", "--powers", "-.5, 3", "--seed", 5, "--n-jobs", 1)
    assert result.exit_code == 0, result.output
    out = Path("results/tiny/smoke")
    record = json.loads((out / "run.json").read_text())
    assert record["config"] == {"count": 2, "pause": 0.0, "powers": [-0.5, 3.0], "reading": "plain"}
    assert record["seed"] == 5
    assert "│ task 0 │" in result.output
    assert "There are [2] tasks." in result.output
    assert f"wrote {out / 'table.csv'}" in result.output
    result = call("tiny", "--scale", "smoke", "--n-jobs", 1, "--seed", 1)
    assert result.exit_code == 1
    assert "contains another run: " in result.stderr
    assert call("tiny", "--scale", "smoke", "--n-jobs", 1, "--seed", 1, "--resume", "none").exit_code == 0


def test_shards_are_listed_computed_and_merged(tmp_path: Path) -> None:
    options = ("tiny", "--count", 3, "--n-jobs", 1)
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
        ("--count many", "--count is 'many'; expected a whole number"),
        ("--count 0", "--count is 0; expected"),
        ("--powers 1,,2", "--powers is '1,,2'; expected"),
        ("--reading odd", "--reading is 'odd'; expected"),
        ("--scale huge", "--scale is 'huge'; expected"),
        ("--resume any", "--resume is 'any'; expected"),
        ("--shard 3", "--shard is '3'; expected"),
        ("--shard 5/4", "--shard is '5/4'; expected"),
        ("--engine dask", "--address is ''; expected"),
        ("three", "--merge and the shard folders must be given together"),
        ("--merge", "--merge and the shard folders must be given together"),
        ("--amount 3", "No such option: --amount"),
    ],
)
def test_invalid_value_gives_a_one_line_error(arguments: str, message: str, tmp_path: Path) -> None:
    result = call("tiny", *arguments.split(), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"phiball: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_missing_package_is_reported_before_tasks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call("tiny", "--scale", "smoke", "--n-jobs", 1, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "needs matplotlib, which is not installed: pip install 'phiball[" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_command_line_imports_no_study() -> None:
    code = """
import sys
import phiball.experiments.cli.app
from phiball.experiments.cli.run import STUDIES
print([name for name in (*STUDIES.values(), "matplotlib", "joblib", "gymnasium") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
