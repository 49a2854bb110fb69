"""
Sinkhorn regression
===================

Linear regression on the diabetes data that is robust in the sense of Sinkhorn: the adversary may transport
the features, and the multiplier lambda is the price of transport. As lambda decreases, the coefficients shrink.
Every fit has a certificate: the objective is within the gap of its minimum.
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
left.set(xlabel="lambda", ylabel="coefficient", xscale="log")
left.legend(fontsize=7, ncols=2)
right.plot(lams, [model.value for model in models], label="objective")
right.plot(lams, [model.gap for model in models], label="bound on its error (gap)")
right.set(xlabel="lambda", ylabel="objective, gap", xscale="log", yscale="log")
right.legend()
