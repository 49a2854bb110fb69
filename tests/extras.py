"""Install each extra alone, and use what it promises: `make extras EXTRAS="torch jax"`."""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOLVE = "import phiball\nassert phiball.worst_case({}, eta=0.5, divergence='chi2').value == 0.75\n"
REPORT = """
import numpy as np, phiball
data = np.eye(2), np.arange(2)
report = phiball.robustness_report({"linear": lambda x: x}, data, norm="linf", radii=[0, 0.1], rng=0)
report.save("report.html")
"""
# What a user of the extra may do without installing anything else.
PROMISES = {
    "torch": """
import phiball, torch
loss = phiball.RobustLoss(radius=0.1, norm="linf", rng=0)
loss(torch.nn.Linear(2, 2), torch.eye(2), torch.arange(2)).backward()
""",
    "jax": "import jax.numpy as jnp\n" + SOLVE.format("jnp.asarray([0.0, 1.0])"),
    "sklearn": """
import numpy as np
from phiball.sklearn import RobustLinearRegression
from sklearn.model_selection import cross_val_score
x = np.arange(20.0)[:, None]
assert cross_val_score(RobustLinearRegression(radius=0.1, eta=1.0), x, x[:, 0]).min() > 0.9
""",
    "onnx": "import onnxruntime\n",
    "cupy": "import cupy\n",
    "verify": "import phiball.verification\n",
    "experiments": REPORT,
    "bench": "import entmax\n",
    "dask": "import distributed, joblib._dask\n" + REPORT,
    "ray": "import ray.util.joblib.ray_backend\n" + REPORT,
    "loops": "import accelerate, equinox, lightning, optax, sklearn, torch, transformers\n",
    "mutants": "",
    "docs": "import myst_parser, pydata_sphinx_theme, sphinx_design, sphinx_gallery\n",
}
COMMANDS = {
    "verify": "phiball verify --claim A1",
    "experiments": "phiball run pricing --list-tasks",
    "bench": "phiball bench inner --help",
    "dask": "phiball run pricing --list-tasks",
    "ray": "phiball run pricing --list-tasks",
    "mutants": "cosmic-ray --help",
    "docs": "sphinx-build --version",
}


def check(extra: str, folder: Path) -> None:
    """Install the extra into a new environment in `folder`, and use it."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    python, constraints = str(programs / "python"), str(ROOT / "constraints.txt")
    code = "import numpy as np\n" + SOLVE.format("np.array([0.0, 1.0])") + PROMISES[extra]
    commands = [
        [python, "-m", "pip", "install", "--quiet", "-c", constraints, f"{ROOT}[{extra}]"],
        [python, "-W", "ignore", "-c", code],
    ]
    if extra in COMMANDS:
        program, *arguments = COMMANDS[extra].split()
        commands.append([str(programs / program), *arguments])
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    assert {*PROMISES, "dev"} == {*METADATA["optional-dependencies"]}
    for extra in sys.argv[1:] or PROMISES:
        with TemporaryDirectory() as folder:
            check(extra, Path(folder))
        print(f"{extra}: installs alone, and works", flush=True)
