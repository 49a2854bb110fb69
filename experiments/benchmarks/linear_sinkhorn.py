"""`phiball bench linear --part sinkhorn`: exact optima of a published benchmark of Sinkhorn DRO.

Wang, Gao and Xie (arXiv:2109.11926) compare five stochastic gradient methods on a regression of three data
sets (repository WalterBabyRudin/SDRO_code). The folder `sdro` of the data has the sets, in svmlight form, and
their logs: the objective at iterates, and the number of samples used until then. The loss is the squared
error, the features include a constant that is perturbed like the others, and there is neither intercept nor
ridge.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file

from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import BenchmarkReport, BenchmarkTable, Row
from phiball.experiments.datasets.images import VARIABLE
from phiball.refimpl.linear import LinearModel, LinearProblem, fit_linear_model

LAMBDA, EPSILON = 1000.0, 0.1
STATED = {"housing": 77.13727245800334, "mg": 0.10024837244612644, "mpg": 113.62537979145378}
"""The optimal values that the authors' scripts state, found by stochastic gradient descent."""
METHODS = ("SG", "MLMC", "RTMLMC", "RUMLMC", "RRMLMC")
GAP = 1e-9  # relative


def sinkhorn_folder(data_dir: Path | None) -> Path:
    """Return the folder `sdro` of `data_dir`, or else of PHIBALL_DATA."""
    base = data_dir or os.environ.get(VARIABLE)
    folder = None if base is None else Path(base).expanduser() / "sdro"
    if folder is None or not folder.is_dir():
        raise FileNotFoundError(
            f"{folder or 'sdro'} is not a folder: set --data-dir or {VARIABLE} to a folder that contains "
            "sdro/, the data and logs of github.com/WalterBabyRudin/SDRO_code"
        )
    return folder


def fit_set(path: Path) -> tuple[float, LinearModel]:
    """Return the minimum of the authors' objective on a data set, and the model.

    Their loss is twice ours. The entropic risk of 2 f for the price eta is twice that of f for eta/2.
    """
    X, y = load_svmlight_file(str(path))
    X = np.hstack([np.ones((len(y), 1)), X.toarray()])
    problem = LinearProblem.sinkhorn("squared", lam=LAMBDA / 2, epsilon=EPSILON, intercept=False)
    model = fit_linear_model(problem, X, y, tol=1e-8)
    return 2 * model.value, model


def logged(folder: Path, method: str, name: str) -> tuple[float, int]:
    """Return the best value that a method logged, and its number of samples; for ties, those of the last.

    The first value of some logs repeats the last one, with zero samples.
    """
    files = [folder / f"{kind}_{method}_{name}.npy" for kind in ("obj", "cost")]
    values, samples = (np.load(file, allow_pickle=False) for file in files)
    best = np.flatnonzero(values == np.nanmin(values))[-1]
    return float(values[best]), int(samples[best])


def sinkhorn_report(*, data_dir: Path | None = None, update: Update = silent) -> BenchmarkReport:
    """Fit the three data sets, and compare with the stated optima and with the logs."""
    folder = sinkhorn_folder(data_dir)
    rows: list[Row] = []
    lines = []
    for done, (name, stated) in enumerate(STATED.items()):
        update(done / len(STATED), name)
        value, model = fit_set(folder / f"{name}.txt")
        gap = 2 * model.gap / value
        verdict = "" if gap <= GAP else f" ABOVE {GAP:g}"
        lines.append(
            f"{name}: {value:.6f} after {model.iterations} iterations, relative gap {gap:.0e}{verdict}; the "
            f"authors state {stated:.6f}"
        )
        others: dict[str, tuple[float, Any]] = {"ours": (value, None), "stated optimum": (stated, None)}
        others |= {method: logged(folder, method, name) for method in METHODS}
        for method, (reached, samples) in others.items():
            row = {"data": name, "method": method, "value": f"{reached:.6f}"}  # all digits, not three
            rows.append({**row, "% above ours": 100 * (reached / value - 1), "samples": samples})
    title = f"Sinkhorn DRO, squared error, lambda = {LAMBDA:g}, epsilon = {EPSILON:g}"
    note = "the best value in the log of each method, and the number of samples used until then"
    return BenchmarkReport([BenchmarkTable(title, rows, note)], lines)
