"""`phiball bench linear --part peers`: the robust linear models of several packages on the same data.

Features are standardised, and there is no ridge. Models differ in what the adversary may do, so each solution
is evaluated under all objectives, independently of the fits:

- Sinkhorn: examples are perturbed by a Gaussian of variance EPSILON, and the adversary pays LAMBDA * EPSILON
  times the relative entropy (Sinkhorn DRO in its price form);
- ball: every example moves by at most RADIUS;
- W2: examples move by at most RADIUS in root mean square (a Wasserstein ball of order 2);
- W1: they move by at most RADIUS on average (order 1); infinite for the squared error.

The second table compares the adversarial models (eta = 0) with the algorithms of Ribeiro, Schön, Zachariah
and Bach (arXiv:2410.12677), written here from their mathematics: iteratively reweighted ridge regression, and
an accelerated projected gradient method. They have no certificate; each is timed until its value is at most
ours plus our gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import scale

from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    NOT_INSTALLED,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    Row,
    compare,
    optional_module,
    part_of,
    time_per_call,
)
from phiball.experiments.benchmarks.linear_sinkhorn import STATED, load_set, sinkhorn_folder
from phiball.refimpl import Ball
from phiball.refimpl.linear import LinearProblem, fit_linear_model, linear_model_risk

LAMBDA, EPSILON, RADIUS, RIDGE = 10.0, 0.01, 0.1, 1e-3  # the ridge is for eta = 0, where a gap needs it
SLOW = 2.0  # seconds, above which a call is not repeated
LONG = 3000  # iterations of the rivals, to find their optimum
EXACT, BALL = "ours, Sinkhorn", "ours, ball"
Solution: TypeAlias = tuple[Any, float, float | None]  # coefficients, intercept and reported value


def cancer() -> tuple[Any, Any]:
    """Return the standardised features and the labels, -1 or 1, of the breast cancer data."""
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), 2.0 * y - 1


def diabetes() -> tuple[Any, Any]:
    """Return the standardised features and targets of the diabetes data."""
    X, y = load_diabetes(return_X_y=True)
    return scale(X), scale(y)


# --- Objectives -------------------------------------------------------------------------------------------


def sinkhorn_problem(loss: str) -> LinearProblem:
    """Our problem; the squared error is twice our loss, so its risk for lambda is twice ours for lambda/2."""
    return LinearProblem.sinkhorn(loss, lam=LAMBDA / _factor(loss), epsilon=EPSILON)


def _factor(loss: str) -> int:
    """The loss of this benchmark divided by ours."""
    return 2 if loss == "squared" else 1


def wasserstein_risk(coef: Any, intercept: float, X: Any, y: Any, radius: float) -> float:
    """Return the worst mean logistic loss if examples move by at most `radius` in root mean square.

    By duality it is the minimum over the price c of
    c radius^2 + mean_i max_s (log(1 + exp(|theta| s - m_i)) - c s^2), where m_i is the margin of example i.
    """
    slope, margins = float(np.linalg.norm(coef)), y * (X @ coef + intercept)

    def dual(log_price: float) -> float:
        price = np.exp(log_price)
        s = np.linspace(0.0, slope / (2 * price), 400)  # the loss grows at most by |theta| s
        gains = np.logaddexp(0.0, slope * s - margins[:, None]) - price * s * s
        best = s[np.argmax(gains, axis=1)]
        for _ in range(3):  # Newton's method, from the best point of the grid
            p = expit(slope * best - margins)
            curvature = 2 * price - slope * slope * p * (1 - p)
            step = np.where(curvature > 0, slope * p - 2 * price * best, 0.0) / curvature
            best = np.clip(best + step, 0.0, s[-1])
        refined = np.logaddexp(0.0, slope * best - margins) - price * best * best
        return float(price * radius**2 + np.mean(np.maximum(refined, gains.max(axis=1))))

    if slope == 0 or radius == 0:
        return float(np.mean(np.logaddexp(0.0, -margins)))
    centre = np.log(slope / (2 * radius))
    return float(minimize_scalar(dual, bounds=(centre - 12, centre + 4), method="bounded").fun)


def risks(loss: str, coef: Any, intercept: float, X: Any, y: Any) -> dict[str, float]:
    """Return the risk of a model under each objective; for the squared error, W2 is in closed form."""
    infinite = loss == "squared" and 2 * np.sum(coef**2) >= LAMBDA
    problem = sinkhorn_problem(loss)
    exact = inf if infinite else float(linear_model_risk(problem, coef, intercept, X, y).value)
    shift, outputs = RADIUS * float(np.linalg.norm(coef)), X @ coef + intercept
    found: dict[str, Any]
    if loss == "squared":
        errors = np.abs(y - outputs)
        found = {"ball": np.mean((errors + shift) ** 2), "W2": (np.mean(errors**2) ** 0.5 + shift) ** 2}
    else:
        found = {
            "ball": np.mean(np.logaddexp(0.0, shift - y * outputs)),
            "W2": wasserstein_risk(coef, intercept, X, y, RADIUS),
            "W1": np.mean(np.logaddexp(0.0, -y * outputs)) + shift,
        }
    return {"Sinkhorn": _factor(loss) * exact, **{name: float(value) for name, value in found.items()}}


def quadrature_risk(loss: str, coef: Any, intercept: float, X: Any, y: Any) -> float:
    """Return the Sinkhorn risk by Gauss-Hermite quadrature, computed independently of `linear_model_risk`."""
    price, (nodes, weights) = LAMBDA * EPSILON, np.polynomial.hermite_e.hermegauss(100)
    outputs = (X @ coef + intercept)[:, None] + EPSILON**0.5 * np.linalg.norm(coef) * nodes
    target = y[:, None]
    losses = (outputs - target) ** 2 if loss == "squared" else np.logaddexp(0.0, -target * outputs)
    return float(price * np.mean(logsumexp(losses / price, axis=1, b=weights / weights.sum())))


# --- Models -----------------------------------------------------------------------------------------------


def _sklearn(loss: str, X: Any, y: Any) -> Solution:
    model = (Ridge(1.0) if loss == "squared" else LogisticRegression(C=1.0, tol=1e-6)).fit(X, y)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]), None


def _ours(problem: LinearProblem, loss: str, X: Any, y: Any) -> Solution:
    model = fit_linear_model(problem, X, y)
    return model.coef, float(model.intercept), _factor(loss) * model.value


def _dro_sinkhorn(module: Any, loss: str, X: Any, y: Any) -> Solution:
    """Sinkhorn DRO by stochastic gradients, with default settings; labels are 0 and 1."""
    squared = loss == "squared"
    with module.torch.random.fork_rng():
        module.torch.manual_seed(0)
        model = module.SinkhornLinearDRO(
            X.shape[1], "ols" if squared else "logistic", reg_param=EPSILON, lambda_param=LAMBDA
        )
        found = model.fit(X, y if squared else (y + 1) / 2)
    return found["theta"], float(np.ravel(found["bias"])[0]), model.robust_obj


def _dro_wasserstein(module: Any, loss: str, X: Any, y: Any) -> Solution:
    """W2 for the squared error, whose `eps` is the square of the radius, and W1 for the logistic loss."""
    squared = loss == "squared"
    model = module.WassersteinDRO(X.shape[1], "ols" if squared else "logistic")
    model.update({"p": 2, "eps": RADIUS**2 if squared else RADIUS})
    found = model.fit(X, y)
    reported = model.robust_obj**2 if squared else model.robust_obj
    return np.asarray(found["theta"]), float(found["b"]), reported


def _skwdro(solver: str, module: Any, loss: str, X: Any, y: Any) -> Solution:
    """With solver="dedicated" as `_dro_wasserstein`; "entropic_torch" samples a smoothed W2."""
    kind = module.LinearRegression if loss == "squared" else module.LogisticRegression
    model = kind(rho=RADIUS, solver=solver).fit(X, y)
    reported = getattr(model, "robust_loss_", getattr(model, "result_", None))
    value = None if reported is None else float(reported)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]), value


PEERS: dict[str, tuple[str, Callable[..., Solution]]] = {
    "dro SinkhornLinearDRO": ("dro.linear_model.sinkhorn_dro", _dro_sinkhorn),
    "dro WassersteinDRO": ("dro.linear_model.wasserstein_dro", _dro_wasserstein),
    "skwdro, dedicated": ("skwdro.linear_models", partial(_skwdro, "dedicated")),
    "skwdro, entropic": ("skwdro.linear_models", partial(_skwdro, "entropic_torch")),
}


def timed(run: Callable[[], Solution], seconds: float, clock: Clock) -> tuple[Solution, float]:
    """Return the solution, and the time of a call after a warm-up, or of the first call if it is long."""
    start = clock()
    solution = run()
    first = clock() - start
    return solution, first if first > SLOW else time_per_call(run, seconds, clock, False)


def peer_rows(
    data: str, loss: str, X: Any, y: Any, *, peers: bool, seconds: float, clock: Clock, update: Update
) -> tuple[list[Row], list[str]]:
    """Time and evaluate the models of each package on a data set; return rows and findings."""
    fits: dict[str, Callable[[], Solution]] = {"scikit-learn": partial(_sklearn, loss, X, y)}
    problems = {EXACT: sinkhorn_problem(loss), BALL: LinearProblem(loss, Ball(2, RADIUS), 0.0)}
    fits |= {name: partial(_ours, problem, loss, X, y) for name, problem in problems.items()}
    for name, (module, make) in PEERS.items() if peers else ():
        library = optional_module(module)
        if library is not None:
            fits[name] = partial(make, library, loss, X, y)
    solutions: dict[str, Solution] = {}
    ratios: dict[str, float] = {}
    for place, (name, fit) in enumerate(fits.items()):
        update(place / len(fits), f"{data}: {name}")
        (_, before), (solutions[name], spent), (_, after) = (
            timed(run, seconds, clock) for run in (fits["scikit-learn"], fit, fits["scikit-learn"])
        )
        ratios[name] = 2 * spent / (before + after)
    found = {name: risks(loss, coef, intercept, X, y) for name, (coef, intercept, _) in solutions.items()}
    rows: list[Row] = []
    for name, (_, _, reported) in solutions.items():
        values = {"reported": reported, **found[name], "W1": found[name].get("W1")}
        shown = {key: None if value is None else f"{value:.6f}" for key, value in values.items()}
        rows.append({"data": data, "model": name, "x scikit-learn": ratios[name], **shown})
    lines = []
    for objective in found[EXACT]:
        best = min(found, key=lambda name: found[name][objective])
        ours = min((EXACT, BALL), key=lambda name: found[name][objective])
        excess = 100 * (found[ours][objective] / found[best][objective] - 1)
        behind = "" if ours == best else f"; {ours} is {excess:.2g} % higher"
        lines.append(f"{data}, lowest {objective}: {best}{behind}")
    coef, intercept, _ = solutions[EXACT]
    exact, other = found[EXACT]["Sinkhorn"], quadrature_risk(loss, coef, intercept, X, y)
    lines.append(f"{data}, Sinkhorn risk of {EXACT}: quadrature differs by {abs(other / exact - 1):.0e}")
    return rows, lines


# --- Adversarial training (eta = 0) -----------------------------------------------------------------------


def dual_norm(theta: Any, norm: float) -> float:
    """The factor of the radius by which an adversary in this norm, 2 or inf, changes an output."""
    return float(np.sum(np.abs(theta)) if norm == inf else np.linalg.norm(theta))


def adversarial_value(loss: str, theta: Any, X: Any, y: Any, norm: float) -> float:
    """The objective at eta = 0, without an intercept, in our units."""
    shift, outputs = RADIUS * dual_norm(theta, norm), X @ theta
    squared = loss == "squared"
    losses = (np.abs(y - outputs) + shift) ** 2 / 2 if squared else np.logaddexp(0.0, shift - y * outputs)
    return float(np.mean(losses) + RIDGE / 2 * theta @ theta)


def reweighted_ridge(X: Any, y: Any, norm: float) -> Iterator[Any]:
    """Iterates for the squared error, by (sum_j a_j)^2 = min over w in the simplex of sum_j a_j^2/w_j."""
    n, d = X.shape
    weights, penalty = np.ones(n), np.full(d, RIDGE)
    while True:
        gram = (X.T * weights) @ X / n
        gram[np.diag_indices(d)] += penalty + RIDGE
        theta = np.linalg.solve(gram, (X.T * weights) @ y / n)
        yield theta
        errors = np.maximum(np.abs(y - X @ theta), 1e-12)
        parts = np.maximum(np.abs(theta) if norm == inf else dual_norm(theta, 2), 1e-12)
        totals = errors + RADIUS * dual_norm(theta, norm)
        weights, penalty = totals / errors, RADIUS * np.mean(totals) / parts


def onto_cone(point: Any, norm: float) -> Any:
    """Project (theta, t) onto the cone where t is at least the dual norm of theta."""
    theta, t = point[:-1], point[-1]
    if norm == 2:
        size = np.linalg.norm(theta)
        if size <= t:
            return point
        height = max((size + t) / 2, 0.0)
        return np.append(theta * (height / size), height)
    sizes = np.sort(np.abs(theta))[::-1]
    cut = max(np.max((np.cumsum(sizes) - t) / np.arange(2, len(sizes) + 2)), 0.0)  # soft threshold
    return np.append(np.sign(theta) * np.maximum(np.abs(theta) - cut, 0.0), max(t + cut, 0.0))


def accelerated_gradient(X: Any, y: Any, norm: float) -> Iterator[Any]:
    """Iterates for the logistic loss, smooth in theta and t >= dual norm; Nesterov's method with restarts."""
    n, d = X.shape
    rows = np.hstack([y[:, None] * X, np.full((n, 1), -RADIUS)])
    ridge = np.append(np.full(d, RIDGE), 0.0)
    step = 1 / (np.linalg.norm(rows, 2) ** 2 / (4 * n) + RIDGE)
    last, ahead, k = np.zeros(d + 1), np.zeros(d + 1), 1.0
    while True:
        slope = ridge * ahead - rows.T @ expit(-(rows @ ahead)) / n
        new = onto_cone(ahead - step * slope, norm)
        yield new[:-1]
        k = 1.0 if slope @ (new - last) > 0 else k
        following = (1 + (1 + 4 * k * k) ** 0.5) / 2
        last, ahead, k = new, new + (k - 1) / following * (new - last), following


RIVALS = {"squared": reweighted_ridge, "logistic": accelerated_gradient}


def adversarial_row(
    data: str, loss: str, X: Any, y: Any, norm: float, *, seconds: float, clock: Clock
) -> Row:
    """Compare our fit at eta = 0 with the rival, at its optimum and in time."""
    problem = LinearProblem(loss, Ball(norm, RADIUS), 0.0, ridge=RIDGE, intercept=False)
    model = fit_linear_model(problem, X, y)
    ours = adversarial_value(loss, model.coef, X, y, norm)
    iterates = islice(RIVALS[loss](X, y, norm), LONG)
    values = np.asarray([adversarial_value(loss, theta, X, y, norm) for theta in iterates])
    reached = values <= ours + model.gap
    count = int(np.argmax(reached)) + 1 if reached.any() else LONG

    def rival() -> None:
        for _ in islice(RIVALS[loss](X, y, norm), count):
            pass

    player = Contestant("rival", rival)
    fit = partial(fit_linear_model, problem, X, y)
    times = compare(fit, [player], seconds=seconds, rounds=3, clock=clock)["rival"].columns("ours")
    where = {"data": data, "norm": f"l{norm:g}", "rival": RIVALS[loss].__name__.replace("_", " ")}
    difference = float(values.min()) - ours
    optimum = {"value": f"{ours:.9f}", "gap": model.gap, "rival's minus ours": difference}
    same = "yes" if abs(difference) <= model.gap and reached.any() else "NO"
    return {**where, **optimum, "within the gap": same, "iterations": count, **times}


def peers_report(
    *, clock: Clock, quick: bool = False, data_dir: Path | None = None, update: Update = silent
) -> BenchmarkReport:
    """Compare the models of phiball, dro and skwdro, and the algorithms for eta = 0."""
    sets = {"breast cancer": ("logistic", *cancer()), "diabetes": ("squared", *diabetes())}
    seconds = 0.02 if quick else 0.3
    adversarial = [
        adversarial_row(name, *data, norm, seconds=seconds, clock=clock)
        for name, data in sets.items()
        for norm in (2, inf)
    ]
    lines = (
        []
        if quick
        else [
            NOT_INSTALLED.format(name)
            for name in dict.fromkeys(module.partition(".")[0] for module, _ in PEERS.values())
            if optional_module(name) is None
        ]
    )
    if not quick:
        try:
            folder = sinkhorn_folder(data_dir)
            for name in STATED:
                X, y = load_set(folder / f"{name}.txt")
                sets[name] = "squared", scale(X[:, 1:]), scale(y)
        except FileNotFoundError as error:
            lines.append(f"left out {', '.join(STATED)}: {error}")
    rows: list[Row] = []
    for number, (name, data) in enumerate(sets.items()):
        progress = part_of(update, number / len(sets), (number + 1) / len(sets))
        more, findings = peer_rows(
            name, *data, peers=not quick, update=progress, seconds=seconds, clock=clock
        )
        rows += more
        lines += findings
    title = (
        f"Radius {RADIUS:g}, lambda {LAMBDA:g}, epsilon {EPSILON:g}: times, and the risks of each solution"
    )
    note = (
        "reported: by the package, for its own objective, which is sampled for SinkhornLinearDRO and entropic"
    )
    second = f"Adversarial training (eta = 0), radius {RADIUS:g}, ridge {RIDGE:g}"
    until = "x ours: the rival's time until its value is at most ours plus our gap, relative to our fit"
    tables = [BenchmarkTable(title, rows, note), BenchmarkTable(second, adversarial, until)]
    return BenchmarkReport(tables, lines)
