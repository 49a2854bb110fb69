"""`phiball bench linear`: robust linear models, compared with scikit-learn, skwdro and dro.

The unit of time is a fit of scikit-learn's `LogisticRegression` (C = 1) on the standardised breast cancer
data. Each solution is evaluated under three objectives, computed independently of the fits:

- our entropic risk on a Euclidean ball, with a ridge;
- the worst mean loss if examples move by at most RADIUS in root mean square (a Wasserstein ball), which
  skwdro smooths and samples;
- the worst mean loss over reweightings of the examples with KL divergence at most KL, which dro minimizes.

The data are separable, so the infimum of dro's objective is 0 and not attained. Our fit of that objective is
therefore timed twice: to its end, and until its value is as low as dro's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

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
)
from phiball.experiments.benchmarks.linear_evidence import evidence_report
from phiball.experiments.benchmarks.linear_peers import cancer, peers_report, wasserstein_risk
from phiball.experiments.benchmarks.linear_sinkhorn import sinkhorn_report
from phiball.refimpl import ENTROPIC, QUADRATIC, Ball, Divergence, cressie_read, indicator
from phiball.refimpl.linear import LinearProblem, Reweighting, fit_linear_model, linear_model_risk

PARTS = ("models", "evidence", "sinkhorn", "peers")
RADIUS, ETA, KL = 0.5, 0.1, 0.1  # KL: the divergence budget of the reweighted models
GRADIENT_TOL = 1e-5  # at which a fit stops
BAR_SKLEARN, BAR_PEERS = 20.0, 20.0  # at most so many times slower, and at least so many times faster
ENTROPIC_BALL, REWEIGHTED = "ours, entropic", "ours, KL over the examples"
NO_RIDGE, UNTIL_DRO = "ours, the same without a ridge", "ours, without a ridge, as low as dro"
Fit: TypeAlias = Callable[[], tuple[Any, float]]  # coefficients and intercept


def ball_problem(divergence: Divergence, n: int) -> LinearProblem:
    """A robust problem on a Euclidean ball for n examples, with the ridge of scikit-learn at C = 1."""
    return LinearProblem("logistic", Ball(2, RADIUS), ETA, divergence, ridge=1 / n)


def our_problems(n: int) -> dict[str, LinearProblem]:
    """The problems that phiball solves, by the name of their row."""
    reweighting = Reweighting(ENTROPIC, budget=KL)
    return {
        ENTROPIC_BALL: ball_problem(ENTROPIC, n),
        "ours, quadratic": ball_problem(QUADRATIC, n),
        "ours, CVaR 0.3": ball_problem(indicator(0.3), n),
        "ours, Cressie-Read 3": ball_problem(cressie_read(3), n),
        "ours, Hellinger": ball_problem(cressie_read(0.5), n),
        REWEIGHTED: LinearProblem("logistic", ridge=1 / n, reweighting=reweighting),
        NO_RIDGE: LinearProblem("logistic", reweighting=reweighting),
    }


def _skwdro(module: Any, X: Any, y: Any) -> tuple[Any, float]:
    """Wasserstein DRO with the logistic loss and default settings, at the same radius."""
    model = module.LogisticRegression(rho=RADIUS, l2_reg=1 / len(y)).fit(X, y)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def _dro(module: Any, X: Any, y: Any) -> tuple[Any, float]:
    """KL-DRO with the logistic loss: the divergence over the examples is at most KL."""
    found = module.KLDRO(input_dim=X.shape[1], model_type="logistic", eps=KL).fit(X, y)
    return np.ravel(found["theta"]), float(np.ravel(found.get("b", 0.0))[0])


PEERS: dict[str, tuple[str, Callable[..., Any], str]] = {  # module, fit, and our closest model
    "skwdro LogisticRegression": ("skwdro.linear_models", _skwdro, ENTROPIC_BALL),
    "dro KLDRO": ("dro.linear_model.kl_dro", _dro, REWEIGHTED),
}


def reweighted_risk(coef: Any, intercept: float, X: Any, y: Any) -> float:
    """Return the worst mean logistic loss over reweightings with divergence at most KL, by its dual."""
    losses = np.logaddexp(0.0, -y * (X @ coef + intercept))

    def dual(log_price: float) -> float:
        price = np.exp(log_price)
        return float(price * (KL + logsumexp(losses / price) - np.log(len(y))))

    centre = np.log(np.ptp(losses) + 1e-12)
    return float(minimize_scalar(dual, bounds=(centre - 12, centre + 6), method="bounded").fun)


def model_rows(
    *, seconds: float, rounds: int, clock: Clock, peers: bool, update: Update = silent
) -> list[Row]:
    """Time and evaluate scikit-learn's model, ours and, with `peers`, other installed packages."""
    X, y = cancer()
    problems = our_problems(len(y))

    def plain() -> tuple[Any, float]:
        model = LogisticRegression(C=1.0, tol=1e-6, max_iter=1000).fit(X, y)
        return model.coef_[0], float(model.intercept_[0])

    def fit(problem: LinearProblem, **options: Any) -> tuple[Any, float]:
        found = fit_linear_model(problem, X, y, **options)
        return found.coef, float(found.intercept)

    fits: dict[str, Fit] = {"scikit-learn": plain}
    fits |= {name: partial(fit, problem) for name, problem in problems.items()}
    for name, (module, make, _) in PEERS.items() if peers else ():
        library = optional_module(module)
        if library is not None:
            fits[name] = partial(make, library, X, y)
    if "dro KLDRO" in fits:
        target = reweighted_risk(*fits["dro KLDRO"](), X, y)
        max_iter = 1
        while reweighted_risk(*fit(problems[NO_RIDGE], max_iter=max_iter), X, y) > target:
            max_iter += 1
        fits[UNTIL_DRO] = partial(fit, problems[NO_RIDGE], max_iter=max_iter)
    players = [Contestant(name, run) for name, run in fits.items()]
    times = compare(plain, players, seconds=seconds, rounds=rounds, clock=clock, update=update)
    rows = []
    for name, run in fits.items():
        coef, intercept = run()
        coef = np.asarray(coef, dtype=np.float64)
        ours = float(linear_model_risk(problems[ENTROPIC_BALL], coef, intercept, X, y).value)
        certified = fit_linear_model(problems[name], X, y).gradient if name in problems else None
        values = {"ball, entropic": ours, "Wasserstein": wasserstein_risk(coef, intercept, X, y, RADIUS)}
        values["KL"] = reweighted_risk(coef, intercept, X, y)
        rows.append({"model": name, **times[name].columns("scikit-learn"), **values, "gradient": certified})
    return rows


def linear_findings(rows: list[Row]) -> list[str]:
    """Return a line per bar, and a line for each model of ours that another model beats at its objective."""
    by_name = {row["model"]: row for row in rows}
    lines = []
    for name, row in by_name.items():
        if name.startswith("ours") and name != UNTIL_DRO:
            ratio = row["x scikit-learn"]
            verdict = "within" if ratio <= BAR_SKLEARN else "ABOVE"
            lines.append(f"{name}: {ratio:.1f} times as long as scikit-learn, {verdict} {BAR_SKLEARN:g}")
            if row["gradient"] > GRADIENT_TOL:
                lines.append(f"{name}: INACCURATE, gradient {row['gradient']:.0e}")
    for name, column in ((ENTROPIC_BALL, "ball, entropic"), (NO_RIDGE, "KL")):
        best = min(by_name.values(), key=lambda row: row[column])
        if best["model"] != name and best[column] < by_name[name][column] - 1e-6:
            lines.append(f"{name}: INACCURATE, {best['model']} has a lower value under {column}")
    for name, (module, _, nearest) in PEERS.items():
        if name in by_name:
            faster = by_name[name]["x scikit-learn"] / by_name[nearest]["x scikit-learn"]
            verdict = "at least" if faster >= BAR_PEERS else "BELOW"
            lines.append(f"{name}: {nearest} is {faster:.0f} times faster, {verdict} {BAR_PEERS:g}")
        elif optional_module(module) is None:
            lines.append(NOT_INSTALLED.format(module.partition(".")[0]))
    return lines


def bench_linear(
    *,
    clock: Clock,
    quick: bool = False,
    part: str = "models",
    data_dir: Path | None = None,
    update: Update = silent,
) -> BenchmarkReport:
    """Time and evaluate the models; the other parts have a module each."""
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)}")
    if part == "sinkhorn":
        return sinkhorn_report(clock=clock, quick=quick, data_dir=data_dir, update=update)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries warn
        if part == "evidence":
            return evidence_report(quick=quick, update=update)
        if part == "peers":
            return peers_report(clock=clock, quick=quick, data_dir=data_dir, update=update)
        seconds, rounds = (0.05, 3) if quick else (0.5, 5)
        rows = model_rows(seconds=seconds, rounds=rounds, clock=clock, peers=not quick, update=update)
    title = f"Breast cancer, l2 radius {RADIUS}, eta {ETA}: times and objectives"
    note = "gradient: of the model's objective at the end of its fit; the infimum of the column KL is 0"
    return BenchmarkReport([BenchmarkTable(title, rows, note)], linear_findings(rows))
