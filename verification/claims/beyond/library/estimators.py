"""Beyond the paper: estimators with the interface of scikit-learn, where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import inf
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, softmax, xlogy

from phiball.backends import rng
from phiball.refimpl import QUADRATIC, Ball, LinearProblem, Reweighting, fit_linear_model, quantile_loss
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.oracles import levels
from phiball.verification.oracles import linear as oracle

RHO, ETA = 0.3, 0.25
X = np.array(
    [[1.0, 0.2], [-0.3, 1.5], [0.4, -0.8], [2.0, 0.1], [-1.2, -0.5], [0.7, 0.9], [-0.6, 0.3], [0.1, -1.7]]
)
W = np.array([1.0, 2.0, 1.0, 0.5, 1.0, 3.0, 0.25, 1.0])
NUMBERS = np.array([0.8, -0.2, 1.5, 2.2, -1.0, 0.1, 0.3, 0.5])
COUNTS = np.array([2.0, 0.0, 1.0, 4.0, 0.0, 1.0, 1.0, 3.0])
WORDS = np.array(["yes", "no", "yes", "yes", "no", "no", "yes", "no"])
THREE = np.array([5, 7, 9, 5, 7, 9, 5, 7])


def _sklearn() -> Any:
    if find_spec("sklearn") is None:
        return None
    from phiball.refimpl import sklearn

    return sklearn


@claim(
    "Estimators of scikit-learn",
    id="U26-sklearn",
    part_of="U26",
    verdict=Verdict.HOLDS,
    formula=r"\frac{1}{\sum w} \left(\sum_i w_i R_i(\theta, c) + \frac{1}{2 C} |\theta|^2\right), \quad "
    r"\frac{1}{\sum w} \left(\sum_i w_i R_i(\theta, c) + \frac{\alpha}{2} |\theta|^2\right)",
    assumptions="eight examples in the plane, with weights; the scores of affine models and of others; "
    "without scikit-learn nothing but the formula of the ridge is checked",
)
def estimators_minimise_what_they_say(
    library: Callable[[], Any] = _sklearn,
) -> Iterator[Evidence]:
    """Estimators minimise the objective of their parameters, and predict and score by what they found."""
    centred = X - W @ X / W.sum()
    gram = centred.T @ (W[:, None] * centred) + 0.7 * np.eye(2)
    ridge = np.linalg.solve(gram, centred.T @ (W * NUMBERS))
    yield Evidence(float(np.abs(gram @ ridge - centred.T @ (W * NUMBERS)).max()), 1e-12, "the ridge")
    made = library()
    if made is None:
        return
    found = made.RobustLinearRegression(radius=0.0, alpha=0.7).fit(X, NUMBERS, sample_weight=W)
    yield Evidence(float(np.abs(found.coef_ - ridge).max()), 1e-7, "radius 0: the coefficients of ridge")
    yield from _regressors(made)
    yield from _classifiers(made)
    yield from _parameters(made)
    yield from _scores(made)
    if find_spec("torch") is not None and find_spec("skorch") is not None:
        yield from _networks()


def _minimum(
    loss: str, y: Any, ridge: float, weights: Any, eta: float = ETA
) -> tuple[Callable[[Any], float], Any]:
    """(F, its minimiser)."""
    p = weights / weights.sum()

    def value(v: Any) -> float:
        losses, law = oracle.moved_losses(loss, v[:2], v[2], X, y, [RHO, RHO])
        return float(p @ oracle.entropic(losses, law, eta) + ridge / 2 * v[:2] @ v[:2])

    return value, minimize(value, np.zeros(3), options={"gtol": 1e-8}).x


def _regressors(made: Any) -> Iterator[Evidence]:
    for model, loss, y, ridge in (
        (made.RobustLinearRegression, "squared", NUMBERS, 0.7 / W.sum()),
        (made.RobustPoissonRegressor, "poisson", COUNTS, 0.7),
    ):
        value, best = _minimum(loss, y, ridge, W)
        found = model(radius=RHO, eta=ETA, alpha=0.7).fit(X, y, sample_weight=W)
        at = np.append(found.coef_, found.intercept_)
        yield Evidence(float(np.abs(at - best).max()), 1e-5, f"{loss}: the coefficients")
        yield Evidence(abs(found.objective_ - value(at)), 1e-8, f"{loss}: the objective")
        yield Evidence(max(-found.gap_, found.gap_ - 1e-6), 1e-9, f"{loss}: the gap")
        line = X @ best[:2] + best[2]
        off = found.predict(X) - (np.exp(line) if loss == "poisson" else line)
        yield Evidence(float(np.abs(off).max()), 1e-4, f"{loss}: the predictions")
    mean = float(W @ COUNTS / W.sum())
    deviance = [W @ (xlogy(COUNTS, COUNTS / m) - COUNTS + m) for m in (found.predict(X), mean)]
    score = found.score(X, COUNTS, sample_weight=W)
    yield Evidence(abs(score - (1 - deviance[0] / deviance[1])), 1e-12, "poisson: the score")
    quantile = made.RobustQuantileRegressor(quantile=0.8, radius=0.0, alpha=0.01).fit(X, NUMBERS)
    e = NUMBERS - X @ quantile.coef_ - quantile.intercept_
    exact = np.maximum(0.8 * e, -0.2 * e).mean() + 0.005 * quantile.coef_ @ quantile.coef_
    yield Evidence(abs(quantile.objective_ - exact), 1e-12, "quantile: the objective")
    yield Evidence(quantile.gap_, 1e-4, "quantile: the gap")


def _classifiers(made: Any) -> Iterator[Evidence]:
    y = np.where(WORDS == "yes", 1.0, -1.0)
    weights = W * np.where(WORDS == "yes", 2.0, 1.0)
    value, best = _minimum("logistic", y, 1 / (3 * weights.sum()), weights)
    found = made.RobustLogisticRegression(radius=RHO, eta=ETA, C=3.0, class_weight={"yes": 2.0, "no": 1.0})
    found.fit(X, WORDS, sample_weight=W)
    at = np.append(found.coef_, found.intercept_)
    yield Evidence(float(np.abs(at - best).max()), 1e-5, "logistic: the coefficients")
    yield Evidence(abs(found.objective_ - value(at)), 1e-8, "logistic: the objective")
    scores = X @ at[:2] + at[2]
    yield Evidence(float(np.abs(found.decision_function(X) - scores).max()), 1e-12, "logistic: scores")
    yield Evidence(
        float((found.predict(X) != np.where(scores > 0, "yes", "no")).sum()), 0.0, "logistic: classes"
    )
    share = np.stack([expit(-scores), expit(scores)], axis=1)
    yield Evidence(float(np.abs(found.predict_proba(X) - share).max()), 1e-12, "logistic: probabilities")
    logs = found.predict_log_proba(X)
    yield Evidence(float(np.abs(np.exp(logs) - share).max()), 1e-12, "logistic: their logarithms")
    many = made.RobustLogisticRegression(radius=0.0, C=2.0).fit(X, THREE)
    labels = np.searchsorted([5, 7, 9], THREE)
    shares = softmax(X @ many.coef_.T + many.intercept_, axis=1)
    exact = -np.log(shares[np.arange(8), labels]).mean() + (many.coef_**2).sum() / 32
    yield Evidence(abs(many.objective_ - exact), 1e-10, "three classes: the objective")
    slope = (shares - np.eye(3)[labels]).T @ X / 8 + many.coef_ / 16
    yield Evidence(float(np.abs(slope).max()), 1e-6, "three classes: the gradient")
    off = np.abs(many.predict_proba(X) - shares).max()
    yield Evidence(float(off), 1e-12, "three classes: probabilities")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where kinks stop it early, it says so, and the gap says how early
        machine = made.RobustSVC(radius=0.0, C=2.0).fit(X, THREE)
    scores = X @ machine.coef_.T + machine.intercept_
    signs = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    exact = np.maximum(0, 1 - signs * scores).mean(axis=0).sum() + (machine.coef_**2).sum() / 32
    yield Evidence(abs(machine.objective_ - exact), 1e-12, "support vectors: the objective")
    yield Evidence(machine.gap_, 0.1, "support vectors: the gap")
    chosen = np.array([5, 7, 9])[scores.argmax(axis=1)]
    yield Evidence(float((machine.predict(X) != chosen).sum()), 0.0, "support vectors: classes")
    yield from _search(made)


def _parameters(made: Any) -> Iterator[Evidence]:
    """Every parameter reaches the fit: that of the library itself, with the same ones, is found again."""
    outer = Reweighting(QUADRATIC, eta=2.0)
    own = {"radius": 0.2, "eta": 0.4, "divergence": "quadratic", "norm": inf, "feature_scale": (1.0, 0.5)}
    own |= {"reweighting": outer, "fit_intercept": False, "points": 32, "tol": 1e-3, "max_iter": 3}
    labels = np.where(WORDS == "yes", 1.0, -1.0)
    for model, loss, y, own_y, ridge in (
        (made.RobustLinearRegression(alpha=2.0, **own), "squared", NUMBERS, NUMBERS, 2 / 8),
        (made.RobustPoissonRegressor(alpha=2.0, **own), "poisson", COUNTS, COUNTS, 2.0),
        (
            made.RobustQuantileRegressor(alpha=2.0, quantile=0.8, **own),
            quantile_loss(0.8),
            NUMBERS,
            NUMBERS,
            2.0,
        ),
        (made.RobustLogisticRegression(C=0.5, **own), "logistic", labels, WORDS, 2 / 8),
        (made.RobustSVC(C=0.5, **own), "hinge", labels, WORDS, 2 / 8),
    ):
        problem = LinearProblem(
            loss,
            Ball(inf, 0.2),
            0.4,
            QUADRATIC,
            ridge=ridge,
            scale=(1.0, 0.5),
            intercept=False,
            reweighting=outer,
        )
        how: dict[str, Any] = {"tolerance": 1e-3, "points": 32, "max_iterations": 3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, own_y)
            plain = fit_linear_model(problem, X, y, **how)
        name = type(model).__name__
        yield Evidence(
            float(np.abs(np.ravel(model.coef_) - plain.coef).max()), 1e-14, f"{name}: the coefficients"
        )
        left = (
            abs(model.objective_ - plain.value)
            + abs(model.gap_ - plain.gap)
            + abs(model.error_ - plain.error)
        )
        yield Evidence(left + abs(model.n_iter_ - plain.iterations), 1e-14, f"{name}: what it leaves")


def _networks() -> Iterator[Evidence]:
    """Networks of one linear layer, by one step of gradient descent on all examples."""
    import torch

    from phiball.refimpl.sklearn.networks import RobustClassifier, RobustRegressor

    start = np.array([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]])

    def layer(outputs: int) -> Any:
        made = torch.nn.Linear(2, outputs).double()
        with torch.no_grad():
            made.weight.copy_(torch.tensor(start[:outputs]))
            made.bias.zero_()
        return made

    how: dict[str, Any] = {"lr": 0.5, "max_epochs": 1, "batch_size": -1, "train_split": None, "verbose": 0}
    labels = np.searchsorted([5, 7, 9], THREE)
    found = RobustClassifier(layer(3), radius=0.0, **how).fit(X, labels)
    slope = (softmax(X @ start.T, axis=1) - np.eye(3)[labels]).T @ X / len(X)
    off = np.abs(found.module_.weight.detach().numpy() - (start - 0.5 * slope)).max()
    yield Evidence(float(off), 1e-12, "network, three classes: a step without perturbations")
    best = (X @ (start - 0.5 * slope).T + found.module_.bias.detach().numpy()).argmax(axis=1)
    yield Evidence(float((found.predict(X) != best).sum()), 0.0, "network, three classes: predictions")
    # The mean of (e + s theta.b)^2 over the disc is e^2 + r^2 |s theta|^2/4; a large eta takes the mean.
    for scale in (None, [2.0, 0.0]):
        made = RobustRegressor(
            layer(1), radius=0.5, eta=1e6, level=12, feature_scale=scale, **{**how, "lr": 0.0}
        )
        made.fit(X, NUMBERS)
        e, sized = NUMBERS - X @ start[0], start[0] * (1.0 if scale is None else np.array(scale))
        # With a size of 0 the disc is an interval, on which the mean of b^2 is r^2/3.
        spread = 0.25 * float(sized @ sized) / (4 if scale is None else 3)
        note = "network, squares" if scale is None else "network, squares, with sizes"
        off = abs(made.history[-1, "train_loss"] - (float(np.mean(e * e)) + spread))
        yield Evidence(off, 0.1 * spread, f"{note}: the loss under perturbations")
        yield Evidence(float(made.predict(X).shape != NUMBERS.shape), 0.0, f"{note}: the shape")
        yield Evidence(float(np.abs(made.predict(X) - X @ start[0]).max()), 1e-12, f"{note}: predictions")
    noisy = torch.nn.Sequential(layer(1), torch.nn.Dropout(0.9))  # which attacks must not see
    made = RobustRegressor(noisy, radius=0.0, **{**how, "lr": 0.0}).fit(X, NUMBERS)
    worst = made.attack(X, NUMBERS, Ball(2, 0.3)) - X
    gain = worst @ start[0] * -np.sign(e) - 0.3 * np.linalg.norm(start[0])
    off = max(float(gain.max()), -float(gain.min()) - 0.01)  # a few steps come close to the end of the ball
    yield Evidence(off, 1e-9, "network, squares: an attack along the slope")


def _search(made: Any) -> Iterator[Evidence]:
    """Folds by hand: which radius and eta score best on the half that was left out."""
    score = made.robust_scorer(Ball(2, 0.5))
    folds = [(np.arange(8)[np.arange(8) % 2 != k], np.arange(8)[np.arange(8) % 2 == k]) for k in (0, 1)]
    own = {"C": 0.5, "divergence": "quadratic", "norm": inf, "feature_scale": (1.0, 0.5), "points": 32}
    own |= {"reweighting": Reweighting(QUADRATIC, eta=2.0), "fit_intercept": False, "tol": 1e-9}
    own |= {"class_weight": {"yes": 2.0, "no": 1.0}, "max_iter": 900}
    fitted, table = dict(own), np.zeros((2, 3))
    for i, eta in enumerate((0.1, 2.0)):
        for j, radius in enumerate((0.0, 0.4, 1.0)):
            for train, test in folds:
                model = made.RobustLogisticRegression(radius=radius, eta=eta, **own)
                model.fit(X[train], WORDS[train])
                table[i, j] += score(model, X[test], WORDS[test]) / 2
    own |= {"radii": (1.0, 0.0, 0.4), "etas": (0.1, 2.0), "cv": folds, "scoring": score, "max_cost": 1.0}
    search = made.RobustLogisticRegressionCV(**own).fit(X, WORDS)
    lost = sum(value is not own[name] for name, value in search.get_params(deep=False).items())
    yield Evidence(float(lost), 0.0, "search: parameters that are not those given")
    yield Evidence(float(np.abs(search.scores_ - table).max()), 1e-12, "search: the scores")
    i, j = divmod(int(table.argmax()), 3)
    eta, radius = (0.1, 2.0)[i], (0.0, 0.4, 1.0)[j]
    off = abs(search.eta_ - eta) + abs(search.radius_ - radius)
    yield Evidence(off, 0.0, "search: the best of them")
    best = made.RobustLogisticRegression(radius=radius, eta=eta, **fitted).fit(X, WORDS)
    yield Evidence(float(np.abs(search.coef_ - best.coef_).max()), 1e-6, "search: the fit")


def _scores(made: Any) -> Iterator[Evidence]:
    """The worst point of an affine model in closed form; of others, the worst of what is sampled."""
    ball, seed = Ball(1, 0.6), 3
    line = made.RobustLinearRegression(radius=0.0).fit(X, NUMBERS)
    reach = 0.6 * np.abs(line.coef_).max()
    worst = -np.mean((np.abs(line.predict(X) - NUMBERS) + reach) ** 2)
    yield Evidence(abs(made.robust_scorer(ball)(line, X, NUMBERS) - worst), 1e-7, "scores: squares")
    two = made.RobustLogisticRegression(radius=0.0).fit(X, WORDS)
    margin = np.where(WORDS == "yes", 1, -1) * two.decision_function(X)
    right = margin > 0.6 * np.abs(two.coef_).max()
    yield Evidence(abs(made.robust_scorer(ball)(two, X, WORDS) - right.mean()), 1e-12, "scores: two classes")
    many = made.RobustLogisticRegression(radius=0.0, C=50.0).fit(X, THREE)
    labels = np.searchsorted([5, 7, 9], THREE)
    lead = [
        min(
            (many.coef_[k] - many.coef_[j]) @ x + many.intercept_[k] - many.intercept_[j]
            - 0.6 * np.abs(many.coef_[k] - many.coef_[j]).max()
            for j in range(3)
            if j != k
        )
        for x, k in zip(X, labels, strict=True)
    ]  # fmt: skip
    yield Evidence(
        abs(made.robust_scorer(ball)(many, X, THREE) - np.mean(np.array(lead) > 0)), 1e-12, "scores: three"
    )
    points = ball.sample(X, 16, rng(seed))
    for model, y, f in (
        (line, NUMBERS, (points @ line.coef_ + line.intercept_ - NUMBERS[:, None]) ** 2 / 2),
        (
            two,
            WORDS,
            np.logaddexp(
                0, -np.where(WORDS == "yes", 1, -1)[:, None] * (points @ two.coef_[0] + two.intercept_[0])
            ),
        ),
    ):
        score = made.robust_scorer(ball, eta=0.5, divergence="quadratic", samples=16, seed=seed)
        exact = levels.solve(f, 0.5, "quadratic")[0]
        yield Evidence(abs(score(model, X, y) + exact.mean()), 1e-12, "scores: the robust risk")
        off = abs(score(model, X, y, sample_weight=W) + float(np.average(exact, weights=W)))
        yield Evidence(off, 1e-12, "scores: the robust risk, with weights")
    counts = made.RobustPoissonRegressor(radius=0.0).fit(X, COUNTS)
    z, reach = X @ counts.coef_ + counts.intercept_, 0.6 * np.abs(counts.coef_).max()
    ends = [2 * (np.exp(v) - COUNTS * v + xlogy(COUNTS, COUNTS) - COUNTS) for v in (z - reach, z + reach)]
    score = made.robust_scorer(ball)(counts, X, COUNTS)
    yield Evidence(abs(score + np.mean(np.maximum(*ends))), 1e-7, "scores: the deviance")
    tail = made.RobustQuantileRegressor(quantile=0.8, radius=0.0, alpha=0.1).fit(X, NUMBERS)
    z, reach = X @ tail.coef_ + tail.intercept_, 0.6 * np.abs(tail.coef_).max()
    ends = [np.maximum(0.8 * (NUMBERS - v), 0.2 * (v - NUMBERS)) for v in (z - reach, z + reach)]
    score = made.robust_scorer(ball)(tail, X, NUMBERS)
    yield Evidence(abs(score + np.mean(np.maximum(*ends))), 1e-7, "scores: the pinball loss")
    machine = made.RobustSVC(radius=0.0, tol=1e-4).fit(X, WORDS)
    length, labels = 0.3 * float(np.linalg.norm(machine.coef_)), np.where(WORDS == "yes", 1.0, -1.0)
    risks = [
        oracle.example_risk("hinge", float(m), length, y, 2, 0.5, "entropic")
        for m, y in zip(machine.decision_function(X), labels, strict=True)
    ]
    score = made.robust_scorer(Ball(2, 0.3), eta=0.5)(machine, X, WORDS)
    yield Evidence(abs(score + np.mean(risks)), 1e-7, "scores: the risk of the hinge loss")
    yield from _sampled_scores(made, ball, points, seed)


def _sampled_scores(made: Any, ball: Ball, points: Any, seed: int) -> Iterator[Evidence]:
    """Of a model that is not affine: the worst of the points that are drawn."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    curve = make_pipeline(PolynomialFeatures(2), Ridge()).fit(X, NUMBERS)
    found = curve.predict(points.reshape(-1, 2)).reshape(points.shape[:2])
    sampled = -np.mean(((found - NUMBERS[:, None]) ** 2).max(axis=1))
    score = made.robust_scorer(ball, samples=16, seed=seed)(curve, X, NUMBERS)
    yield Evidence(abs(score - sampled), 1e-12, "scores: the worst that was sampled")
    from sklearn.neighbors import KNeighborsClassifier

    near = KNeighborsClassifier(1).fit(X, WORDS)
    nearest = ((points[:, :, None, :] - X) ** 2).sum(axis=-1).argmin(axis=-1)
    right = (WORDS[nearest] == WORDS[:, None]).all(axis=1)
    score = made.robust_scorer(ball, samples=16, seed=seed)(near, X, WORDS)
    yield Evidence(abs(score - right.mean()), 1e-12, "scores: the nearest neighbour")


@estimators_minimise_what_they_say.mutant("half of the radius")
def _() -> Any:
    made = _sklearn()

    class Library:
        def __getattr__(self, name: str) -> Any:
            value = getattr(made, name)
            if not name.startswith("Robust"):
                return value
            return lambda radius=0.0, **rest: (
                value(radius=radius / 2, **rest) if "CV" not in name else value(**rest)
            )

    return Library()
