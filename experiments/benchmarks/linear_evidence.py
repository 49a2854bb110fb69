"""`phiball bench linear --evidence`: does robustness pay on data that comes with scikit-learn?

Breast cancer, wine and digits are classified, diabetes is a regression. Features are standardised. Half of
the data, drawn anew for every split, trains; the rest is moved by noise, uniform on the sphere of a radius,
and to the worst point of the Euclidean ball of that radius, which is exact for linear models. Four models are
compared: plain (hardly any ridge), ridge (its strength chosen by cross-validation, by the plain score), tuned
ridge (by the worst-case score at the third size) and robust (its radius, by the same worst-case score).
Errors are percentages of wrong labels; for diabetes they are root mean squared errors, in percent of the
standard deviation. They are means over the splits, with two standard errors; gains are differences within a
split.
"""

from __future__ import annotations

import warnings
from collections import Counter
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

from phiball.backends.progress import Progress
from phiball.experiments.benchmarks.inner.problems import thread_limit
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Ball
from phiball.refimpl.sklearn import RobustLinearRegression, RobustLogisticRegression, robust_scorer

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
POINTS = 32  # of Sobol, for ten classes; three need none
SPLITS = {"breast cancer": 10, "wine": 3, "digits": 1, "diabetes": 10}
DRAWS = 10


@dataclass(frozen=True)
class Row:
    """The errors of one model on one split of a data set, at each size of the perturbation."""

    data: str
    split: int
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
        robust, ridge = (
            RobustLogisticRegression(eta=ETA, C=100.0, points=POINTS, tol=1e-4),
            LogisticRegression(),
        )
        plain, grid = LogisticRegression(C=1e4, max_iter=2000), {"C": [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]}
        ridge.set_params(max_iter=2000)
    return {
        "plain": plain,
        "ridge": GridSearchCV(ridge, grid, cv=folds),
        "tuned ridge": GridSearchCV(ridge, grid, cv=folds, scoring=scorer),
        "robust": GridSearchCV(robust, {"radius": RADII}, cv=folds, scoring=scorer),
    }


def rows(name: str, folds: int, number: int) -> list[Row]:
    """Return the errors of the four models on one split of a data set."""
    X, y = DATA[name](return_X_y=True)
    y = (y - y.mean()) / y.std() if name == "diabetes" else y
    X = X[:, X.std(axis=0) > 0]
    classes = None if name == "diabetes" else y
    split = train_test_split(X, y, test_size=0.5, random_state=number, stratify=classes)
    scaler = StandardScaler().fit(split[0])
    train, test = (np.clip(scaler.transform(part), -10, 10) for part in split[:2])
    found = []
    for model, estimator in candidates(name, folds).items():
        estimator.fit(train, split[2])
        best = getattr(estimator, "best_estimator_", estimator)
        chosen = ", ".join(f"{k} {v:g}" for k, v in getattr(estimator, "best_params_", {}).items())
        sizes = SIZES[name]
        found.append(Row(name, number, model, chosen or "-", sizes, *errors(best, test, split[3], sizes)))
    return found


def mean(values: list[float]) -> tuple[float, float]:
    """Return the mean, and two standard errors of it; nan for one value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), 2 * spread / len(values) ** 0.5


def interval(middle: float, half: float, sign: str = "") -> str:
    """Return both numbers, or the first alone where there is one split."""
    return f"{middle:{sign}.1f}" + ("" if half != half else f" ± {half:.1f}")


def grouped(measured: list[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return the rows by data set and model, in the order of the splits."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for r in measured:
        groups.setdefault(r.data, {}).setdefault(r.model, []).append(r)
    return groups


def table(measured: list[Row]) -> ReportTable:
    """Return the table: clean, and at the middle size under noise and at the worst points."""
    cells = []
    for data, models in grouped(measured).items():
        for model, splits in models.items():
            numbers = (
                [r.noise[0] for r in splits],
                [r.noise[2] for r in splits],
                [r.worst[2] for r in splits],
            )
            shown = (interval(*mean(values)) for values in numbers)
            most = Counter(r.chosen for r in splits).most_common(1)[0][0]
            cells.append((data, model, most, str(len(splits)), f"{splits[0].sizes[2]:g}", *shown))
    headings = ("data", "model", "most often", "splits", "size", "clean", "noise", "worst")
    return ReportTable("Test errors in percent, clean and moved by the size", headings, cells, left=3)


def findings(measured: list[Row]) -> list[str]:
    """Return a line per data set: what robustness gains on the tuned ridge, split by split."""
    lines = []
    for data, models in grouped(measured).items():
        pairs = list(zip(models["tuned ridge"], models["robust"], strict=True))
        gain = mean([a.worst[2] - b.worst[2] for a, b in pairs])
        noisy = mean([a.noise[2] - b.noise[2] for a, b in pairs])
        clean = mean([a.noise[0] - b.noise[0] for a, b in pairs])
        known = gain[1] == gain[1] and abs(gain[0]) > gain[1]
        pays = "is undecided" if not known else "pays" if gain[0] > 0 else "does not pay"
        worst, moved, still = (interval(*pair, sign="+") for pair in (gain, noisy, clean))
        lines.append(
            f"{data}: robustness {pays} against the tuned ridge in the worst case of size "
            f"{pairs[0][1].sizes[2]:g}, by {worst} points; {moved} under noise, {still} on clean data"
        )
    return lines


def draw(measured: list[Row], path: Path) -> None:
    """Write the figure: mean error against size, at the worst points and under noise (dashed)."""
    plt = import_module("matplotlib.pyplot")
    groups = grouped(measured)
    figure, axes = plt.subplots(1, len(groups), figsize=(11, 3.4), layout="constrained", squeeze=False)
    colours = {"plain": "#888888", "ridge": "#1f77b4", "tuned ridge": "#2ca02c", "robust": "#d62728"}
    for axis, (data, models) in zip(axes[0], groups.items(), strict=True):
        for model, splits in models.items():
            sizes = splits[0].sizes
            worst = [mean([r.worst[k] for r in splits]) for k in range(len(sizes))]
            noise = [mean([r.noise[k] for r in splits])[0] for k in range(len(sizes))]
            centre, bars = [m for m, _ in worst], [0.0 if e != e else e for _, e in worst]
            axis.errorbar(sizes, centre, bars, fmt="o-", color=colours[model], label=model, ms=3, capsize=2)
            axis.plot(sizes, noise, "--", color=colours[model], lw=1)
        axis.set_title(data)
        axis.set_xlabel("size of the perturbation")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("test error in percent")
    axes[0][0].plot([], [], "k-", lw=1, label="worst point")
    axes[0][0].plot([], [], "k--", lw=1, label="noise")
    axes[0][0].legend(fontsize=7)
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
        tasks = [(name, k) for name in names for k in range(2 if quick else SPLITS[name])]
        for k, (name, number) in enumerate(tasks):
            progress.update(k / len(tasks), name)
            measured += rows(name, 2 if quick else 3, number)
    page, lines = table(measured), findings(measured)
    console.print(page.table())
    print_lines(console, lines)
    record = {"rows": [asdict(r) for r in measured], **run_details(quick=quick)}
    write_results(console, out, "linear_evidence", record, title="Linear models", facts=lines, tables=[page])
    if out is not None:
        draw(measured, out / "linear_evidence.png")
