"""`phiball bench linear --part sinkhorn`: exact optima of a published benchmark of Sinkhorn DRO.

Wang, Gao and Xie (arXiv:2109.11926) compare five stochastic gradient methods on a regression of three data
sets (repository WalterBabyRudin/SDRO_code). The folder `sdro` of the data has the sets, in svmlight form, and
their logs: the objective at iterates, and the number of samples used until then. The loss is the squared
error, the features include a constant that is perturbed like the others, and there is neither intercept nor
ridge. Our SG and RT-MLMC run with the batches, step sizes and numbers of steps of the authors' scripts.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from sklearn.datasets import load_svmlight_file

from phiball.backends import rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import BenchmarkReport, BenchmarkTable, Clock, Row, time_per_call
from phiball.experiments.datasets.images import VARIABLE
from phiball.experiments.framework.requirements import require
from phiball.refimpl import RTMLMC, SG, Ball, Gaussian, RegularizedLoss
from phiball.refimpl.linear import LinearModel, LinearProblem, fit_linear_model
from phiball.refimpl.optimize import onto_ball, projected_sgd

LAMBDA, EPSILON = 1000.0, 0.1
STATED = {"housing": 77.13727245800334, "mg": 0.10024837244612644, "mpg": 113.62537979145378}
"""The optimal values that the authors' scripts state, found by stochastic gradient descent."""
METHODS = ("SG", "MLMC", "RTMLMC", "RUMLMC", "RRMLMC")
GAP = 1e-9  # relative
POINTS = 16  # perturbed points per example of their SG, and 2^4 in ours
OURS: dict[str, tuple[SG | RTMLMC, float]] = {"ours, SG": (SG(4), 5e-3), "ours, RT-MLMC": (RTMLMC(3), 1e-2)}
"""The estimators, and the step size of the first epoch, which decays with the root of the epoch."""
Curve: TypeAlias = tuple[Any, Any]  # values, and the numbers of samples


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


def load_set(path: Path) -> tuple[Any, Any]:
    """Return the features, with a leading column of ones, and the targets."""
    X, y = load_svmlight_file(str(path))
    return np.hstack([np.ones((len(y), 1)), X.toarray()]), y


def fit_set(X: Any, y: Any) -> tuple[float, LinearModel]:
    """Return the minimum of the authors' objective on a data set, and the model.

    Their loss is twice ours. The entropic risk of 2 f for the price eta is twice that of f for eta/2.
    """
    problem = LinearProblem.sinkhorn("squared", lam=LAMBDA / 2, epsilon=EPSILON, intercept=False)
    model = fit_linear_model(problem, X, y, tol=1e-8)
    return 2 * model.value, model


def objective(theta: Any, X: Any, y: Any) -> float:
    """The authors' objective in closed form, computed independently of the fit."""
    rest = 1 - 2 * theta @ theta / LAMBDA
    return float(np.mean((X @ theta - y) ** 2) / rest - LAMBDA * EPSILON / 2 * np.log(rest))


def descend(
    X: Any, y: Any, estimator: SG | RTMLMC, first_step: float, batch: int, steps: int
) -> tuple[list[Any], list[int]]:
    """Run projected SGD from 0; return the iterates, and the number of samples used before each."""
    loss = RegularizedLoss(Gaussian(EPSILON**0.5), LAMBDA * EPSILON, estimator=estimator)
    epoch = -(-len(y) // batch)
    points, shuffler, order = rng(0), np.random.default_rng(0), np.arange(0)
    iterates: list[Any] = []
    samples = [0]

    def gradient(theta: Any) -> Any:
        nonlocal order
        done = len(iterates) % epoch
        if done == 0:
            order = shuffler.permutation(len(y))
        rows = order[done * batch : (done + 1) * batch]
        iterates.append(theta)
        samples.append(samples[-1])

        def errors(theta: Any, x: Any, i: Any) -> Any:
            return x @ theta - y[rows][i]

        def losses(theta: Any, x: Any, i: Any) -> Any:
            samples[-1] += len(x)
            return errors(theta, x, i) ** 2

        return loss.gradient(
            theta, losses, lambda t, x, i: 2 * errors(t, x, i)[:, None] * x, X[rows], rng=points
        )

    project = onto_ball(Ball(2, 0.95 * (LAMBDA / 2) ** 0.5))  # inside which the objective is finite
    run = projected_sgd(
        gradient,
        np.zeros(X.shape[1]),
        step_size=lambda t: first_step / max(1, (t - 1) // epoch) ** 0.5,
        steps=steps + 1,
        project=project,
    )
    return [*iterates, run.last], samples


def our_curve(X: Any, y: Any, method: str, batch: int, steps: int) -> Curve:
    """Return the objective at the iterates of our method, and the number of samples used until then."""
    iterates, samples = descend(X, y, *OURS[method], batch, steps)
    return np.asarray([objective(theta, X, y) for theta in iterates]), np.asarray(samples)


def logged_curve(folder: Path, method: str, name: str) -> Curve:
    """Return the logged values and numbers of samples.

    The first value of some logs repeats the last one, with zero samples.
    """
    files = [folder / f"{kind}_{method}_{name}.npy" for kind in ("obj", "cost")]
    values, samples = (np.load(file, allow_pickle=False) for file in files)
    return values, samples


def best_of(curve: Curve) -> tuple[float, int]:
    """Return the lowest value, and its number of samples; for ties, those of the last."""
    values, samples = curve
    best = np.flatnonzero(values == np.nanmin(values))[-1]
    return float(values[best]), int(samples[best])


def time_ratio(X: Any, y: Any, batch: int, *, clock: Clock, quick: bool) -> tuple[float, float, float]:
    """Return the seconds that a fit and a sample of our SG take, and the ratio, which is timed in turn."""
    sgd = partial(descend, X, y, *OURS["ours, SG"], batch, 5 if quick else 50)
    samples, seconds = sgd()[1][-1], 0.01 if quick else 0.2
    rounds = []
    for _ in range(3 if quick else 15):
        fit, run = (time_per_call(work, seconds, clock, False) for work in (partial(fit_set, X, y), sgd))
        rounds.append((fit, run / samples, fit / run * samples))
    first, second, ratio = (median(column) for column in zip(*rounds, strict=True))
    return first, second, ratio


def draw_errors(
    curves: dict[str, dict[str, Curve]], fits: dict[str, tuple[float, float]], path: Path
) -> None:
    """Draw errors against the number of samples; `fits` has fits, and times of fits in samples."""
    figure_of = require("matplotlib.figure", user="the figure of bench linear", extra="bench").Figure
    figure = figure_of(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (name, methods) in zip(axes, curves.items(), strict=True):
        value, cost = fits[name]
        for method, (values, samples) in methods.items():
            shown = np.unique(np.geomspace(1, len(values) - 1, 200).astype(int))
            shown = shown[samples[shown] > 0]
            width = 1.8 if method.startswith("ours") else 0.8
            axis.loglog(samples[shown], values[shown] - value, label=method, lw=width)
        axis.axhline(STATED[name] - value, color="k", ls=":", lw=1, label="stated optimum")
        axis.axvline(cost, color="k", ls="--", lw=1, label="time of the exact fit")
        axis.set(title=name, xlabel="samples")
    axes[0].set_ylabel("objective minus minimum")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.savefig(path, dpi=80)


def sinkhorn_report(
    *, clock: Clock, quick: bool = False, data_dir: Path | None = None, update: Update = silent
) -> BenchmarkReport:
    """Fit the three data sets, and compare with the stated optima, with the logs and with our own SGD."""
    folder = sinkhorn_folder(data_dir)
    rows: list[Row] = []
    lines = []
    curves: dict[str, dict[str, Curve]] = {}
    fits: dict[str, tuple[float, float]] = {}
    for done, (name, stated) in enumerate(STATED.items()):
        update(done / len(STATED), name)
        X, y = load_set(folder / f"{name}.txt")
        value, model = fit_set(X, y)
        gap = 2 * model.gap / value
        verdict = "" if gap <= GAP else f" ABOVE {GAP:g}"
        lines.append(
            f"{name}: {value:.6f} after {model.iterations} iterations, relative gap {gap:.0e}{verdict}; the "
            f"authors state {stated:.6f}"
        )
        curves[name] = {method: logged_curve(folder, method, name) for method in METHODS}
        samples = curves[name]["SG"][1]
        batch, steps = int(samples[1]) // POINTS, len(samples) - 1
        fit, sample, ratio = time_ratio(X, y, batch, clock=clock, quick=quick)
        fits[name] = value, ratio
        lines.append(
            f"{name}: a fit takes {1e3 * fit:.2f} ms, 1,000 samples of our SG {1e6 * sample:.2f} ms; a fit "
            f"takes as long as {ratio:,.0f} samples"
        )
        for method in OURS:
            curves[name][method] = our_curve(X, y, method, batch, min(steps, 20) if quick else steps)
        others: dict[str, tuple[float, Any]] = {
            "ours, exact": (value, None),
            "stated optimum": (stated, None),
        }
        others |= {method: best_of(curve) for method, curve in curves[name].items()}
        for method, (reached, used) in others.items():
            row = {"data": name, "method": method, "value": f"{reached:.6f}"}  # all digits, not three
            rows.append({**row, "% above ours": 100 * (reached / value - 1), "samples": used})
    title = f"Sinkhorn DRO, squared error, lambda = {LAMBDA:g}, epsilon = {EPSILON:g}"
    note = "the best value of each method over its iterates, and the number of samples used until then"
    figure = {"linear_sinkhorn.png": partial(draw_errors, curves, fits)}
    return BenchmarkReport([BenchmarkTable(title, rows, note)], lines, figure)
