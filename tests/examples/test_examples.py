"""Every example runs by itself, as its first lines say, and prints what it is about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

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


def test_every_example_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.py\)", page)) == {file.stem for file in FOLDER.glob("*.py")}
