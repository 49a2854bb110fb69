"""Model selection: cross-validated robust logistic regression, and a `refit` for `GridSearchCV`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from warnings import warn

import numpy as np
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight

from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.problem import Reweighting
from phiball.refimpl.sklearn.base import store_parameters
from phiball.refimpl.sklearn.classifiers import RobustLogisticRegression
from phiball.refimpl.validation import valid_number


def best_within(max_cost: float, *, plain: str = "plain", robust: str = "robust") -> BestWithin:
    """A `refit` for `GridSearchCV`: the best robust score among settings with a good plain score.

    With a large ball, the best robust score alone would select a model that almost ignores the features. Here
    the plain score must be within `max_cost` of the best plain score. Ties go to the first setting. `plain`
    and `robust` are the names of the two scores in `scoring`; `search.score` gives the robust one.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.preprocessing import scale
    >>> from phiball import Ball
    >>> from phiball.sklearn import RobustLogisticRegression, best_within, robust_scorer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> scores = {"plain": "accuracy", "robust": robust_scorer(Ball(2, 1.0))}
    >>> model, grid = RobustLogisticRegression(C=10.0, tol=1e-4), {"radius": [0.0, 1.0, 3.0, 30.0]}
    >>> search = GridSearchCV(model, grid, scoring=scores, refit=best_within(0.03), cv=3).fit(scale(X), y)
    >>> search.best_params_
    {'radius': 3.0}
    """
    return BestWithin(max_cost, plain, robust)


@dataclass(frozen=True, eq=False)
class BestWithin:
    """The `refit` that `best_within` returns: a function from the results of a search to an index.

    It equals the name of the robust score, by which `search.score` finds this score in `search.scorer_`.
    """

    max_cost: float
    plain: str = "plain"
    robust: str = "robust"

    def __post_init__(self) -> None:
        valid_number("max_cost", self.max_cost, least=0.0)

    def __eq__(self, other: object) -> bool:
        return other == self.robust if isinstance(other, str) else repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.robust)

    def __call__(self, results: dict[str, Any]) -> int:
        """The index of the chosen setting."""
        usual, moved = (results.get(f"mean_test_{name}") for name in (self.plain, self.robust))
        if usual is None or moved is None:
            raise ValueError(
                f"the search lacks the scores {self.plain!r} and {self.robust!r}; expected "
                f"scoring={{{self.plain!r}: 'accuracy', {self.robust!r}: robust_scorer(...)}}"
            )
        return _best(np.asarray(usual), np.asarray(moved), self.max_cost)


def _best(plain: Any, robust: Any, max_cost: float) -> int:
    """The first index of the best robust score, among plain scores within `max_cost` of the best."""
    near = plain >= np.nanmax(plain) - max_cost - 1e-12
    return int(np.nanargmax(np.where(near, robust, -np.inf)))


def _valid_choices(name: str, values: Any, *, infinite: bool = False) -> list[float]:
    """`values` as a list; raises ValueError unless it is a sequence of valid numbers."""
    if isinstance(values, str) or not hasattr(values, "__len__") or np.ndim(values) != 1 or not len(values):
        raise ValueError(f"{name} is {values!r}; expected numbers to choose from, such as (0.1, 1.0)")
    for value in values:
        valid_number(f"an entry of {name}", value, least=0.0, infinite=infinite)
    return list(values)


class RobustLogisticRegressionCV(RobustLogisticRegression):
    """`RobustLogisticRegression` with `radius` and `eta` chosen by cross-validation.

    - `radii`, `etas`: the values to try. A fit starts from the solution with the previous radius.
    - `cv`: folds, as in scikit-learn.
    - `scoring`: a name or a scorer such as `robust_scorer(Ball(2, 0.5))`. Plain accuracy would not favour
      robust models.
    - `max_cost`: by how much plain accuracy may be below the best, such as 0.02; None for no limit. It needs
      a `scoring` other than accuracy.

    `fit` warns if the chosen model predicts only one class: the ball is then too large for the data. Other
    parameters are those of `RobustLogisticRegression`. Additional fitted attributes are `radius_`, `eta_`,
    and the mean scores and accuracies over folds, `scores_` and `plain_scores_`, both (etas, radii).

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.sklearn import RobustLogisticRegressionCV, robust_scorer
    >>> X = np.linspace(-2, 2, 20)[:, None]
    >>> scoring = robust_scorer(Ball(2, 0.5))
    >>> model = RobustLogisticRegressionCV(radii=(0, 0.5), etas=(1.0,), cv=2, scoring=scoring)
    >>> model.fit(X, X[:, 0] > 0).scores_.shape
    (1, 2)
    """

    radii: Sequence[float]
    etas: Sequence[float]
    cv: Any
    scoring: Any
    max_cost: float | None

    def __init__(
        self,
        *,
        radii: Sequence[float] = (0.0, 0.03, 0.1, 0.3, 1.0),
        etas: Sequence[float] = (0.1, 1.0),
        cv: Any = None,
        scoring: Any = None,
        max_cost: float | None = None,
        C: float = 1.0,
        divergence: str | Divergence = "entropic",
        norm: str | float = 2,
        reference: str = "ball",
        feature_scale: Any = None,
        reweighting: Reweighting | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        n_points: int = 256,
        tol: float = 1e-8,
        max_iter: int = 1000,
    ) -> None:
        store_parameters(self, locals())

    def _estimator(self, radius: float, eta: float) -> RobustLogisticRegression:
        names = set(RobustLogisticRegression().get_params()) - {"radius", "eta"}
        chosen = {name: value for name, value in vars(self).items() if name in names}
        return RobustLogisticRegression(radius=radius, eta=eta, **chosen)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Choose radius and eta, and fit the model to all of X (n, d) and y (n,)."""
        radii = sorted(_valid_choices("radii", self.radii))
        etas = _valid_choices("etas", self.etas, infinite=True)
        if self.max_cost is not None:
            valid_number("max_cost", self.max_cost, least=0.0)
            if self.scoring in (None, "accuracy"):
                raise ValueError(
                    f"max_cost is {self.max_cost!r} and scoring is {self.scoring!r}; expected a score other "
                    "than accuracy, such as scoring=robust_scorer(Ball(2, 0.5))"
                )
        given = X
        X, labels, _ = self._validate(X, y, sample_weight)
        table = given if hasattr(given, "columns") else X
        y = self.classes_[labels]
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)  # without class weights
        scorer = check_scoring(self._estimator(0.0, 1.0), scoring=self.scoring)
        folds = list(check_cv(self.cv, y, classifier=True).split(X, y))
        scores, plain = np.zeros((2, len(etas), len(radii)))
        for train, test in folds:
            # Index the data frame itself, because feature_scale may refer to its column names.
            left_out = _safe_indexing(table, test)
            for i, eta in enumerate(etas):
                start = None
                for j, radius in enumerate(radii):
                    model = self._estimator(radius, eta)
                    read = model._validate(_safe_indexing(table, train), y[train], weights[train])
                    model._fit_classes(*read, start)
                    model._warn_if_inexact(model.solutions_)
                    start = model.solutions_
                    scores[i, j] += scorer(model, left_out, y[test]) / len(folds)
                    plain[i, j] += model.score(left_out, y[test]) / len(folds)
        cost = np.inf if self.max_cost is None else self.max_cost
        i, j = divmod(_best(plain.ravel(), scores.ravel(), cost), len(radii))
        self.scores_, self.plain_scores_, self.eta_, self.radius_ = scores, plain, etas[i], radii[j]
        chosen = self._estimator(self.radius_, self.eta_)
        chosen._fit_classes(*chosen._validate(table, y, weights))
        chosen._warn_if_inexact(chosen.solutions_)
        self._warn_if_unscaled(X, radii[-1])
        for name in ("coef_", "intercept_", "objective_", "gap_", "error_", "n_iter_", "solutions_"):
            setattr(self, name, getattr(chosen, name))
        if len(np.unique(chosen.predict(table))) == 1:
            warn(
                f"the best model, of radius {self.radius_:g}, predicts one class: the ball of the scorer may "
                "be too large for these data; reduce its radius, or set max_cost",
                stacklevel=2,
            )
        return self
