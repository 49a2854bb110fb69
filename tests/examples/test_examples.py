"""Every example runs and prints its results."""

import json
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.parallel.torchrun import GLOO_AT_EXIT, environment, torchrun
from tests.support.paths import ROOT

pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("sklearn", reason="scikit-learn: not installed")

FOLDER = ROOT / "examples"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
NEEDS = {
    "lightning_module": ["lightning", "jinja2"],
    "hugging_face_trainer": ["transformers", "accelerate"],
    "jax_optax": ["jax", "optax"],
    "jax_equinox": ["jax", "optax", "equinox"],
}
LIMIT = 600  # seconds; all examples take about half a minute on a free core
ERRORS = re.compile(
    r"^(\w+) +(?:squared )?error +([\d.]+)(?: ± [\d.]+)?(?: %)?, under attack +([\d.]+)", re.MULTILINE
)
UPPER = re.compile(r"at most +([\d.]+) %")  # certified errors
# Several examples run in one process, because importing torch takes longest.
RUNNER = """
import contextlib, io, json, runpy, sys
outputs = {}
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        runpy.run_path(path, run_name="__main__")
    outputs[path] = stdout.getvalue()
print(json.dumps(outputs))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [[name for name in NAMES if name not in (*NEEDS, "data_parallel")], *([name] for name in NEEDS)],
    ids=["torch and scikit-learn", *NEEDS],
)
def test_examples_run_and_robust_training_has_smaller_attacked_errors(names: list[str]) -> None:
    for package in NEEDS.get(names[0], []):
        if find_spec(package) is None:
            pytest.skip(f"{package}: not installed; the extra loops installs it")
    program = [sys.executable, "-c", RUNNER, *(str(FOLDER / f"{name}.py") for name in names)]
    done = subprocess.run(
        program, env=environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    for path, output in json.loads(done.stdout.splitlines()[-1]).items():
        name, errors = Path(path).stem, {k: (float(a), float(b)) for k, a, b in ERRORS.findall(output)}
        plain, robust = ("Trainer", "RobustTrainer") if "Trainer" in errors else ("plain", "robust")
        if plain in errors:
            assert errors[robust][1] < errors[plain][1], output
        expected = {
            "batch_norm_dropout": {"both", "perturbed", "data"} <= set(errors),
            "gradient_accumulation": "clean error" in output,
            "certified_training": {"plain", "robust", "certified"} <= set(errors)
            and all(
                b <= c for (_, b), c in zip(errors.values(), map(float, UPPER.findall(output)), strict=True)
            )
            and errors["certified"][1] < 50,
            "torch_compile": "clean error" in output,
            "jax_equinox": "robust" in errors,
            "mixed_precision": output.count("error") == 3,
            "lightning_module": "from the checkpoint: RobustLoss" in output
            and "epoch 20: RobustnessReport(" in output,
        }
        assert expected.get(name, plain in errors), f"{name}: {output}"


@pytest.mark.slow
def test_killed_distributed_example_resumes_to_the_same_result(tmp_path: Path) -> None:
    text = (FOLDER / "data_parallel.py").read_text(encoding="utf-8")
    assert "EPOCHS = 10\n" in text
    longer = tmp_path / "longer.py"  # runs long enough to be killed
    longer.write_text(text.replace("EPOCHS = 10\n", "EPOCHS = 40\n"), encoding="utf-8")
    program, settings = str(longer), environment()

    def run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=LIMIT)

    def finished(*command: str) -> str:
        done = run(command)
        if GLOO_AT_EXIT in done.stderr:
            done = run(command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    two = finished(*torchrun(tmp_path / "logs"), program, str(tmp_path / "two.pt"))
    assert "2 processes" in two
    assert "equal weights: True" in two
    uninterrupted = finished(sys.executable, program, str(tmp_path / "uninterrupted.pt"))
    checkpoint = tmp_path / "killed.pt"
    with subprocess.Popen([sys.executable, program, str(checkpoint)], env=settings) as killed:
        deadline = time.monotonic() + LIMIT
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        killed.kill()
    assert killed.returncode != 0
    assert finished(sys.executable, program, str(checkpoint)) == uninterrupted


def test_every_example_is_listed_and_shows_its_command() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((\w+)\.py\)", page)) == NAMES
    for name in NAMES:
        assert f"python examples/{name}.py" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
