"""`phiball bench linear --part evidence`: test errors of robust and plain models on scikit-learn's data sets.

Breast cancer, wine and digits are classification problems, diabetes is a regression. Features are
standardised. Each split trains on a random half of the data. The points of the test half are perturbed in two
ways: by noise, uniform on a sphere, and to the worst point of the Euclidean ball of the same radius, which is
known exactly for linear models. Four models are compared:

- plain: almost no ridge;
- ridge: the ridge is tuned for the score on clean data;
- tuned ridge: the ridge is tuned for the worst-case score at the third test radius;
- robust: the training radius is tuned for the same worst-case score.

Tuning is by cross-validation. Errors are misclassification rates in percent; for diabetes, root mean squared
errors in percent of the standard deviation.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import BenchmarkReport, BenchmarkTable, Row
from phiball.experiments.framework.requirements import require
from phiball.refimpl import Ball
from phiball.refimpl.sklearn import RobustLinearRegression, RobustLogisticRegression, robust_scorer

DATA = {
    "breast cancer": load_breast_cancer,
    "wine": load_wine,
    "digits": load_digits,
    "diabetes": load_diabetes,
}
TEST_RADII = dict.fromkeys(DATA, (0.0, 0.5, 1.0, 1.5)) | {"diabetes": (0.0, 0.25, 0.5, 1.0)}
TUNED = 2  # index of the test radius for which models are tuned, and which tables show
SPLITS = {"breast cancer": 10, "wine": 3, "digits": 1, "diabetes": 10}
TRAINING_RADII, ETA = (0.1, 0.3, 1.0, 3.0, 10.0), 0.03
N_POINTS = 32  # Sobol points for ten classes; up to three classes need none
NOISE_DRAWS = 10
COLOURS = {"plain": "#888888", "ridge": "#1f77b4", "tuned ridge": "#2ca02c", "robust": "#d62728"}


def model_errors(model: Any, X: Any, y: Any, radii: tuple[float, ...]) -> dict[str, list[float]]:
    """Return the errors under noise and at the worst points, for each radius."""
    directions = np.random.default_rng(0).normal(size=(NOISE_DRAWS, *X.shape))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    found: dict[str, list[float]] = {"noise": [], "worst": []}
    for radius in radii:
        predicted = np.stack([model.predict(X + radius * u) for u in directions])
        score = robust_scorer(Ball(2, radius), n_samples=1)(model, X, y)
        if is_classifier(model):
            found["noise"].append(100 * float(np.mean(predicted != y)))
            found["worst"].append(100 * (1 - score))
        else:
            found["noise"].append(100 * float(np.sqrt(np.mean((predicted - y) ** 2))))
            found["worst"].append(100 * float(np.sqrt(-score)))
    return found


def candidate_models(name: str, folds: int) -> dict[str, Any]:
    """Return the models to compare; a tuned model is a grid search."""
    scorer = robust_scorer(Ball(2, TEST_RADII[name][TUNED]), n_samples=1)
    plain: Any
    grid: dict[str, Any]
    if name == "diabetes":
        robust, ridge, plain = RobustLinearRegression(eta=ETA, alpha=1e-2), Ridge(), Ridge(1e-6)
        grid = {"alpha": [0.1, 1.0, 10.0, 100.0, 1000.0]}
    else:
        robust = RobustLogisticRegression(eta=ETA, C=100.0, n_points=N_POINTS, tol=1e-4)
        ridge, plain = LogisticRegression(max_iter=2000), LogisticRegression(C=1e4, max_iter=2000)
        grid = {"C": [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]}
    return {
        "plain": plain,
        "ridge": GridSearchCV(ridge, grid, cv=folds),
        "tuned ridge": GridSearchCV(ridge, grid, cv=folds, scoring=scorer),
        "robust": GridSearchCV(robust, {"radius": TRAINING_RADII}, cv=folds, scoring=scorer),
    }


def split_rows(name: str, folds: int, split: int) -> list[Row]:
    """Return the errors of the four models on one split of a data set."""
    X, y = DATA[name](return_X_y=True)
    y = (y - y.mean()) / y.std() if name == "diabetes" else y
    X = X[:, X.std(axis=0) > 0]
    parts = train_test_split(
        X, y, test_size=0.5, random_state=split, stratify=None if name == "diabetes" else y
    )
    scaler = StandardScaler().fit(parts[0])
    train, test = (np.clip(scaler.transform(part), -10, 10) for part in parts[:2])
    rows = []
    for model, estimator in candidate_models(name, folds).items():
        estimator.fit(train, parts[2])
        best = getattr(estimator, "best_estimator_", estimator)
        chosen = ", ".join(f"{k} {v:g}" for k, v in getattr(estimator, "best_params_", {}).items())
        where = {"data": name, "model": model, "chosen": chosen, "split": split}
        rows.append({**where, **model_errors(best, test, parts[3], TEST_RADII[name])})
    return rows


def interval(values: list[float], sign: str = "") -> tuple[float, float | None, str]:
    """Return the mean, two standard errors (None for one value), and both as text; `sign` is "+" or ""."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, None, f"{mean:{sign}.1f}"
    half = 2 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, half, f"{mean:{sign}.1f} ± {half:.1f}"


def _models(rows: list[Row], data: str) -> dict[str, list[Row]]:
    """The rows of a data set, by model."""
    names = dict.fromkeys(row["model"] for row in rows)
    return {name: [r for r in rows if (r["data"], r["model"]) == (data, name)] for name in names}


def evidence_rows(rows: list[Row]) -> list[Row]:
    """Return a row per data set and model: clean errors, and both perturbed errors at the tuned radius."""
    found = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for model, splits in _models(rows, data).items():
            favourite = Counter(r["chosen"] for r in splits).most_common(1)[0][0]
            numbers = {"clean": ("noise", 0), "noise": ("noise", TUNED), "worst": ("worst", TUNED)}
            shown = {key: interval([r[kind][k] for r in splits])[2] for key, (kind, k) in numbers.items()}
            where = {"data": data, "model": model, "most often chosen": favourite}
            found.append({**where, "radius": f"{TEST_RADII[data][TUNED]:g}", **shown, "splits": len(splits)})
    return found


def gains(rows: list[Row]) -> list[str]:
    """Return a line per data set: by how much the robust model's errors are below the tuned ridge's."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        models = _models(rows, data)
        pairs = list(zip(models["tuned ridge"], models["robust"], strict=True))
        mean, half, text = interval([a["worst"][TUNED] - b["worst"][TUNED] for a, b in pairs], "+")
        clean = interval([a["noise"][0] - b["noise"][0] for a, b in pairs], "+")[2]
        known = half is not None and abs(mean) > half
        verdict = "undecided" if not known else "robust is better" if mean > 0 else "robust is worse"
        gain = f"worst-case error lower by {text}, clean error lower by {clean}"
        lines.append(f"{data}, robust against tuned ridge: {verdict}; {gain}")
    return lines


def draw_evidence(rows: list[Row], path: Path) -> None:
    """Draw the mean error against the test radius, at the worst points and under noise (dashed)."""
    figure_of = require("matplotlib.figure", user="the figure of bench linear", extra="bench").Figure
    groups = list(dict.fromkeys(row["data"] for row in rows))
    figure = figure_of(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(groups), squeeze=False)
    for axis, data in zip(axes[0], groups, strict=True):
        for model, splits in _models(rows, data).items():
            worst, noise = (
                [interval([r[kind][k] for r in splits]) for k in range(len(TEST_RADII[data]))]
                for kind in ("worst", "noise")
            )
            bars = [half or 0.0 for _, half, _ in worst]
            style = {"color": COLOURS[model], "label": model, "ms": 3, "capsize": 2}
            axis.errorbar(TEST_RADII[data], [mean for mean, _, _ in worst], bars, fmt="o-", **style)
            axis.plot(TEST_RADII[data], [mean for mean, _, _ in noise], "--", color=COLOURS[model], lw=1)
        axis.set(title=data, xlabel="size of the perturbation", ylim=(0, None))
    axes[0][0].set_ylabel("test error in percent")
    axes[0][0].plot([], [], "k-", lw=1, label="worst point")
    axes[0][0].plot([], [], "k--", lw=1, label="noise")
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=80)


def evidence_report(*, quick: bool = False, update: Update = silent) -> BenchmarkReport:
    """Compare the four models on all data sets."""
    tasks = [(d, k) for d in DATA if not (quick and d == "digits") for k in range(2 if quick else SPLITS[d])]
    rows: list[Row] = []
    for number, (name, split) in enumerate(tasks):
        update(number / len(tasks), f"{name}, split {split + 1}")
        rows += split_rows(name, 2 if quick else 3, split)
    title = "Test errors in percent, means over splits ± two standard errors"
    return BenchmarkReport(
        [BenchmarkTable(title, evidence_rows(rows))],
        gains(rows),
        {"linear_evidence.png": partial(draw_evidence, rows)},
    )
