"""Robust logistic regression that chooses its radius and its eta by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.sklearn.classifiers import RobustLogisticRegression


class RobustLogisticRegressionCV(RobustLogisticRegression):
    """`RobustLogisticRegression` with the `radius` and the `eta` that score best in cross-validation.

    - `radii`, `etas`: what is tried. In each fold the radii are a path: every model starts at the last one.
    - `cv`: folds, as in scikit-learn. `scoring`: a name or a scorer such as `robust_scorer(Ball(2, 0.5))`;
      with plain accuracy the search has no reason to prefer a robust model.

    The other parameters are those of `RobustLogisticRegression`. A fit leaves `radius_`, `eta_`, and
    `scores_`, the mean scores over folds, (etas, radii).
    """

    def __init__(
        self,
        *,
        radii: Sequence[float] = (0.0, 0.03, 0.1, 0.3, 1.0),
        etas: Sequence[float] = (0.1, 1.0),
        cv: Any = None,
        scoring: Any = None,
        C: float = 1.0,
        divergence: str | Divergence = "entropic",
        norm: float = 2,
        feature_scale: Any = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        points: int = 256,
        tol: float = 1e-8,
        max_iter: int = 1000,
    ) -> None:
        super().__init__(
            C=C,
            divergence=divergence,
            norm=norm,
            feature_scale=feature_scale,
            fit_intercept=fit_intercept,
            class_weight=class_weight,
            points=points,
            tol=tol,
            max_iter=max_iter,
        )
        self.radii = radii
        self.etas = etas
        self.cv = cv
        self.scoring = scoring

    def _plain(self, radius: float, eta: float) -> RobustLogisticRegression:
        names = set(RobustLogisticRegression().get_params()) - {"radius", "eta"}
        chosen = {name: value for name, value in vars(self).items() if name in names}
        return RobustLogisticRegression(radius=radius, eta=eta, **chosen)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Choose radius and eta, and fit the model to all of X (n, d) and y (n,)."""
        if not len(self.radii) or not len(self.etas):
            raise ValueError("radii or etas is empty; expected numbers to choose from")
        X, labels, weights = self._read(X, y, sample_weight)
        y = self.classes_[labels]
        scorer = check_scoring(self._plain(0.0, 1.0), scoring=self.scoring)
        radii = sorted(self.radii)
        folds = list(check_cv(self.cv, y, classifier=True).split(X, y))
        scores = np.zeros((len(self.etas), len(radii)))
        for train, test in folds:
            for i, eta in enumerate(self.etas):
                start = None
                for j, radius in enumerate(radii):
                    model = clone(self._plain(radius, eta))
                    rows, numbers, w = model._read(X[train], y[train], weights[train])
                    model._fit_classes(rows, numbers, w, start)
                    model.n_features_in_ = X.shape[1]
                    start = model.solutions_
                    scores[i, j] += scorer(model, X[test], y[test]) / len(folds)
        i, j = divmod(int(np.argmax(scores)), len(radii))
        self.scores_, self.eta_, self.radius_ = scores, self.etas[i], radii[j]
        chosen = self._plain(self.radius_, self.eta_)
        chosen.classes_ = self.classes_
        chosen._fit_classes(X, labels, weights)
        for name in ("coef_", "intercept_", "objective_", "gap_", "error_", "n_iter_", "solutions_"):
            setattr(self, name, getattr(chosen, name))
        return self
