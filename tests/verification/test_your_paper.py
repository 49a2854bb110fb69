"""The example of docs/guides/your_paper.md, with claims on another paper, runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phiball.verification.framework.suite import load_folder
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/guides/your_paper.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`cvar/(\w+\.py)`\n.*?^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "cvar"
    home.mkdir()
    for name, code in FILES.items():
        (home / name).write_text(code, encoding="utf-8")
    return home


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, without modules imported by other tests."""
    start = "from phiball.experiments.cli.main import main; main()"
    command = [sys.executable, "-c", start, "verify", "--claims", folder.name]
    return subprocess.run([*command, *options], cwd=folder.parent, capture_output=True, text=True)


@pytest.mark.slow
def test_example_of_the_page_runs_and_its_report_mentions_only_its_paper(folder: Path) -> None:
    done = verify(folder, "--mutants", "--record", "--n-jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Mutants: 3 of 3 are rejected" in done.stdout
    out = folder.parent / "results/verify/cvar"
    data = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in data["claims"]] == ["holds", "holds", "holds as corrected"]
    assert [item["item"] for item in data["items"]] == ["Theorem 1", "Corollary 2"]
    assert data["claims"][0]["oracles"] == ["worst_mean oracles.py:4"]
    page, text = ((out / name).read_text(encoding="utf-8") for name in ("claims.html", "claims.md"))
    assert "<h1>Conditional value-at-risk, checked by execution</h1>" in page
    assert "phiball verify --claims cvar --claim V1" in page
    assert "On record: 1 run of all 3 claims" in page
    assert r"\mathbb{E} f \le \mathrm{CVaR}" in text  # the corrected formula
    for shown in (page, text, json.dumps(data), done.stdout):
        assert not re.search("Wang|2408.09672|Strong Duality|arXiv|SHA-256", shown)


@pytest.mark.slow
def test_surviving_mutant_fails_the_run(folder: Path) -> None:
    with (folder / "theorem.py").open("a", encoding="utf-8") as file:
        file.write('\n\n@between_mean_and_maximum.mutant("none")\ndef _(losses, alpha):\n')
        file.write("    return cvar(losses, alpha)\n")
    done = verify(folder, "--claim", "V3", "--mutants")
    assert done.returncode == 1
    assert "mutants: 1 of 2 rejected; NOT rejected: none" in done.stdout


def test_invalid_claims_folder_raises(folder: Path) -> None:
    (folder / "json.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"json.py has the name of another module; rename it"):
        load_folder(folder)
    with pytest.raises(ValueError, match=r"but its files .* define no claim"):
        load_folder(folder.parent)
