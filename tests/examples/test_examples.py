"""Every example runs by itself, as its first lines say, and prints what it is about."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.parallel.torchrun import environment, torchrun
from tests.support.paths import ROOT

pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

FOLDER = ROOT / "examples"
NEEDS = {"lightning_module": ["lightning", "jinja2"], "hugging_face_trainer": ["transformers", "accelerate"]}
LIMIT = 600  # seconds; each takes well under a minute on a free core
ERRORS = re.compile(
    r"^(\w+) +(?:squared )?error +([\d.]+)(?: ± [\d.]+)?(?: %)?, under attack +([\d.]+)", re.MULTILINE
)


def run(name: str) -> str:
    """What an example prints."""
    for package in NEEDS.get(name, []):
        if find_spec(package) is None:
            pytest.skip(f"{package}: not installed; the extra loops brings it")
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    program = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(program, env=settings, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py")))
def test_every_example_runs(name: str) -> None:
    output = run(name)
    assert f"python examples/{name}.py" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    errors = {kind: (float(clean), float(attacked)) for kind, clean, attacked in ERRORS.findall(output)}
    plain, robust = ("Trainer", "RobustTrainer") if "Trainer" in errors else ("plain", "robust")
    if plain in errors:  # the line that changes makes the model withstand more
        assert errors[robust][1] < errors[plain][1], output
    said = {
        "batch_norm_dropout": {"both", "perturbed", "data"} <= set(errors),
        "distributed": "equal weights: True" in output,
        "gradient_accumulation": "clean error" in output,
        "compiled": "clean error" in output,
        "mixed_precision": output.count("error") == 3,
        "lightning_module": "from the checkpoint: RobustLoss" in output and "epoch 20: Report(" in output,
    }
    assert said.get(name, plain in errors), output


@pytest.mark.slow
def test_a_killed_run_under_torchrun_goes_on(tmp_path: Path) -> None:
    """A rank is killed in the middle; the same command ends with the weights of an unbroken run."""

    def start(checkpoint: Path) -> subprocess.Popen[str]:
        program = [*torchrun(tmp_path / "logs"), str(FOLDER / "distributed.py"), str(checkpoint)]
        return subprocess.Popen(
            program, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    unbroken, _ = start(tmp_path / "unbroken.pt").communicate(timeout=LIMIT)
    assert "2 processes" in unbroken
    broken = start(tmp_path / "broken.pt")
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "broken.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(ranks_of(broken.pid)[-1], signal.SIGKILL)
    said, _ = broken.communicate(timeout=LIMIT)
    assert broken.returncode != 0
    assert "processes" not in said
    again, _ = start(tmp_path / "broken.pt").communicate(timeout=LIMIT)
    assert again == unbroken


def ranks_of(pid: int) -> list[int]:
    """The processes that one has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("no list of processes on this system")
    return [int(child) for child in children.read_text().split()]


def test_every_example_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.py\)", page)) == {file.stem for file in FOLDER.glob("*.py")}
