"""The image study under torchrun: two processes train each network together, and a killed run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.parallel.clusters import ENVIRONMENT, LIMIT, wait_until
from tests.support.parallel.torchrun import SETTINGS, torchrun
from tests.support.paths import ROOT

torch = pytest.importorskip("torch", reason="torch: not installed")
for library in ("joblib", "matplotlib", "sklearn"):
    pytest.importorskip(library, reason=f"{library}: not installed")

STUDY = {
    "data": "digits", "methods": "ERM,SG", "chosen": "none", "norms": "linf", "seeds": 2, "others": 2,
    "train": 60, "held-out": 20, "judged": 15, "attacked": 30, "width": 1, "epochs": 10, "batch": 16,
    "steps": 2, "noise-ratios": "0.5", "pgm-ratios": "0.1",
}  # fmt: skip


def start(out: Path) -> subprocess.Popen[str]:
    options = [word for name, value in STUDY.items() for word in (f"--{name}", str(value))]
    command = ["-m", "phiball.experiments.cli.main", "run", "supervised", *options, "--out", str(out)]
    return subprocess.Popen(
        [*torchrun(out.parent / "logs"), *command],
        cwd=ROOT,
        env={**ENVIRONMENT, **SETTINGS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(out: Path) -> bytes:
    """The table of the run, in the end."""
    process = start(out)
    said, _ = process.communicate(timeout=5 * LIMIT)
    assert process.returncode == 0, said
    assert said.count("wrote ") == 1  # by the first process alone
    return (out / "table.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available())
    or sys.platform != "linux",
    reason="torch: built without gloo, or no /proc",
)
def test_a_killed_run_ends_with_the_table_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = finish(tmp_path / "whole")
    process = start(tmp_path / "killed")
    wait_until(
        lambda: bool(list(tmp_path.glob("killed/rows/*.json"))) or process.poll() is not None, "no row came"
    )
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ranks[0]), signal.SIGKILL)  # torchrun ends the other
    process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert not (tmp_path / "killed" / "table.csv").exists()
    assert finish(tmp_path / "killed") == whole
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["config"]["ranks"] == 2
