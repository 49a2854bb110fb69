"""Robust models with the interface of scikit-learn (extra `sklearn`).

Linear models are fitted by `phiball.linear.fit_linear_model`, without sampling. `radius` is how far each
example may move, in the units of the features: standardise these first, or pass `feature_scale`. Sparse input
is rejected, because perturbed rows are dense.

>>> from sklearn.datasets import load_breast_cancer
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> from phiball.sklearn import RobustLogisticRegression
>>> X, y = load_breast_cancer(return_X_y=True)
>>> model = make_pipeline(StandardScaler(), RobustLogisticRegression(radius=0.5)).fit(X, y)
>>> print(round(model.score(X, y), 3), bool(model[-1].gap_ < 1e-8))
0.988 True

`RobustClassifier` and `RobustRegressor`, torch networks with the same interface, are in
`phiball.sklearn.networks`, which also needs the extra `torch`.
"""

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError(
        "phiball.sklearn needs scikit-learn, which is not installed: pip install 'phiball[sklearn]', "
        "or '.[sklearn]' in a clone",
        name="sklearn",
    )

from phiball.refimpl.sklearn.classifiers import RobustLogisticRegression, RobustSVC
from phiball.refimpl.sklearn.model_selection import BestWithin, RobustLogisticRegressionCV, best_within
from phiball.refimpl.sklearn.regressors import (
    RobustLinearRegression,
    RobustPoissonRegressor,
    RobustQuantileRegressor,
)
from phiball.refimpl.sklearn.scoring import RobustScorer, robust_scorer

__all__ = [
    "BestWithin",
    "RobustLinearRegression",
    "RobustLogisticRegression",
    "RobustLogisticRegressionCV",
    "RobustPoissonRegressor",
    "RobustQuantileRegressor",
    "RobustSVC",
    "RobustScorer",
    "best_within",
    "robust_scorer",
]
