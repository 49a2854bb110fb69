"""
Sinkhorn regression
===================

Linear regression on the diabetes data with Sinkhorn distributionally robust optimization: the adversary may
transport the features, at the price lambda. As lambda decreases, the three largest coefficients shrink.
Every fit has a certificate: its objective is within the gap of the minimum.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from phiball.linear import LinearProblem, fit_linear_model

X, y = load_diabetes(return_X_y=True, as_frame=True)
names, X, y = list(X.columns), scale(X.to_numpy()), scale(y.to_numpy())
lams = np.logspace(-0.5, 2.5, 20)
models = [fit_linear_model(LinearProblem.sinkhorn("squared", lam=lam, epsilon=0.1), X, y) for lam in lams]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(lams, [model.coef for model in models], label=names)
left.set(xlabel="lambda", ylabel="coefficient", xscale="log", ylim=(-0.15, 0.4))
left.legend(fontsize=7, ncols=5, loc="upper left")
right.plot(lams, [model.value for model in models], label="objective")
right.plot(lams, [model.gap for model in models], label="gap")
right.set(xlabel="lambda", ylabel="objective, gap", xscale="log", yscale="log")
right.legend()
