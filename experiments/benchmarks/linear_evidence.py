"""`phiball bench linear --evidence`: does robustness pay on data that comes with scikit-learn?

Breast cancer, wine and digits are classified, diabetes is a regression. Features are standardised. Half of
the data trains; the rest is moved by noise, uniform on the sphere of a radius, and to the worst point of the
Euclidean ball of that radius, which is exact for linear models. Four models are compared: plain (hardly any
ridge), ridge (its strength chosen by cross-validation, by the plain score), tuned ridge (by the worst-case
score at the third size) and robust (its radius, by the same worst-case score). Errors are percentages of
wrong labels; for diabetes they are root mean squared errors, in percent of the standard deviation.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from phiball.experiments.benchmarks.inner.problems import thread_limit
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Ball
from phiball.refimpl.sklearn import RobustLinearRegression, RobustLogisticRegression, robust_scorer
from phiball.verification.framework.progress import Progress

DATA = {
    "breast cancer": load_breast_cancer,
    "wine": load_wine,
    "digits": load_digits,
    "diabetes": load_diabetes,
}
SIZES = {
    "breast cancer": (0.0, 0.5, 1.0, 1.5),
    "wine": (0.0, 0.5, 1.0, 1.5),
    "digits": (0.0, 0.5, 1.0, 1.5),
    "diabetes": (0.0, 0.25, 0.5, 1.0),
}
Errors: TypeAlias = tuple[float, ...]
RADII, ETA = (0.1, 0.3, 1.0, 3.0, 10.0), 0.03
DRAWS = 20


@dataclass(frozen=True)
class Row:
    """The errors of one model on one data set, at each size of the perturbation."""

    data: str
    model: str
    chosen: str
    sizes: tuple[float, ...]
    noise: tuple[float, ...]
    worst: tuple[float, ...]


def errors(
    model: Any, X: Any, y: Any, sizes: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the errors under noise and at the worst points, per size."""
    source = np.random.default_rng(0)
    directions = source.normal(size=(DRAWS, *X.shape))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    noise, worst = [], []
    for size in sizes:
        found = np.stack([model.predict(X + size * u) for u in directions])
        score = robust_scorer(Ball(2, size), samples=1)(model, X, y)
        if is_classifier(model):
            noise.append(100 * float(np.mean(found != y)))
            worst.append(100 * (1 - score))
        else:
            noise.append(100 * float(np.sqrt(np.mean((found - y) ** 2))))
            worst.append(100 * float(np.sqrt(-score)))
    return tuple(noise), tuple(worst)


def candidates(name: str, folds: int) -> dict[str, Any]:
    """Return the models that are compared, those with settings as searches."""
    scorer = robust_scorer(Ball(2, SIZES[name][2]), samples=1)
    if name == "diabetes":
        robust, ridge = RobustLinearRegression(eta=ETA, alpha=1e-2), Ridge()
        plain: Any = Ridge(1e-6)
        grid: dict[str, Any] = {"alpha": [0.1, 1.0, 10.0, 100.0, 1000.0]}
    else:
        robust, ridge = RobustLogisticRegression(eta=ETA, C=100.0, points=16, tol=1e-4), LogisticRegression()
        plain, grid = LogisticRegression(C=1e4, max_iter=2000), {"C": [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]}
        ridge.set_params(max_iter=2000)
    return {
        "plain": plain,
        "ridge": GridSearchCV(ridge, grid, cv=folds),
        "tuned ridge": GridSearchCV(ridge, grid, cv=folds, scoring=scorer),
        "robust": GridSearchCV(robust, {"radius": RADII}, cv=folds, scoring=scorer),
    }


def rows(name: str, folds: int) -> list[Row]:
    """Return the errors of the four models on one data set."""
    X, y = DATA[name](return_X_y=True)
    y = (y - y.mean()) / y.std() if name == "diabetes" else y
    X = X[:, X.std(axis=0) > 0]
    split = train_test_split(X, y, test_size=0.5, random_state=0, stratify=None if name == "diabetes" else y)
    scaler = StandardScaler().fit(split[0])
    train, test = (np.clip(scaler.transform(part), -10, 10) for part in split[:2])
    found = []
    for model, estimator in candidates(name, folds).items():
        estimator.fit(train, split[2])
        best = getattr(estimator, "best_estimator_", estimator)
        chosen = ", ".join(f"{k} {v:g}" for k, v in getattr(estimator, "best_params_", {}).items())
        found.append(Row(name, model, chosen or "-", SIZES[name], *errors(best, test, split[3], SIZES[name])))
    return found


def table(measured: list[Row]) -> ReportTable:
    """Return the table: clean, and at the middle size under noise and at the worst points."""
    cells = []
    for r in measured:
        numbers = (f"{r.noise[0]:.1f}", f"{r.sizes[2]:g}", f"{r.noise[2]:.1f}", f"{r.worst[2]:.1f}")
        cells.append((r.data, r.model, r.chosen, *numbers))
    headings = ("data", "model", "chosen", "clean", "size", "noise", "worst")
    return ReportTable("Test errors in percent, clean and moved by the size", headings, cells, left=3)


def findings(measured: list[Row]) -> list[str]:
    """Return a line per data set: what robustness gains in the worst case, and what it costs without one."""
    lines = []
    for name in dict.fromkeys(r.data for r in measured):
        *others, robust = (r for r in measured if r.data == name)
        gain = min(r.worst[2] for r in others) - robust.worst[2]
        noisy = min(r.noise[2] for r in others) - robust.noise[2]
        cost = robust.noise[0] - min(r.noise[0] for r in others)
        pays = "pays" if gain > 0 else "does not pay"
        lines.append(
            f"{name}: {pays} in the worst case of size {robust.sizes[2]:g}, by {gain:+.1f} points against "
            f"the best of the others; {noisy:+.1f} under noise of that size; costs {cost:+.1f} on clean data"
        )
    return lines


def draw(measured: list[Row], path: Path) -> None:
    """Write the figure: error against size, under noise (dashed) and at the worst points."""
    plt = import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
    colours = {"plain": "#888888", "ridge": "#1f77b4", "tuned ridge": "#2ca02c", "robust": "#d62728"}
    for axis, name in zip(axes, DATA, strict=True):
        for r in (r for r in measured if r.data == name):
            axis.plot(r.sizes, r.worst, "o-", color=colours[r.model], label=f"{r.model}, worst", ms=3)
            axis.plot(r.sizes, r.noise, "--", color=colours[r.model], label=f"{r.model}, noise", lw=1)
        axis.set_title(name)
        axis.set_xlabel("size of the perturbation")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("test error in percent")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(quick: bool = False, out: Path | None = None) -> None:
    """Print the table and the findings, and write them with the figure to the folder `out`, if named."""
    console = open_console(out, 110)
    import_module("matplotlib").use("Agg")
    measured: list[Row] = []
    names = [name for name in DATA if not (quick and name == "digits")]
    with (
        Progress("bench linear", console) as progress,
        thread_limit(1),
        threadpool_limits(1),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for k, name in enumerate(names):
            progress.update(k / len(names), name)
            measured += rows(name, 2 if quick else 4)
    page, lines = table(measured), findings(measured)
    console.print(page.table())
    print_lines(console, lines)
    record = {"rows": [asdict(r) for r in measured], **run_details(quick=quick)}
    write_results(console, out, "linear_evidence", record, title="Linear models", facts=lines, tables=[page])
    if out is not None:
        draw(measured, out / "linear_evidence.png")
