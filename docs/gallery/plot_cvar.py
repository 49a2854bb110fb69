"""
CVaR over the examples
======================

One example in ten belongs to a second group, with another slope. The CVaR of level alpha is the mean of the
largest losses, of total weight alpha; it is a worst case over the weights of the examples. As alpha
decreases, the loss of the second group decreases, and the loss of the first group increases.
"""

import matplotlib.pyplot as plt
import numpy as np

from phiball import indicator
from phiball.linear import Reweighting
from phiball.sklearn import RobustLinearRegression

draw = np.random.default_rng(0)
x, second = draw.uniform(-1, 1, 200), np.arange(200) < 20
y = np.where(second, -1.0, 2.0) * x + draw.normal(0, 0.2, 200)
X, alphas = x[:, None], [1.0, 0.5, 0.3, 0.2, 0.1]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.scatter(x[~second], y[~second], s=8, color="grey", label="first group")
left.scatter(x[second], y[second], s=16, color="black", marker="x", label="second group")
losses = []
for alpha in alphas:
    reweighting = Reweighting(indicator(alpha), eta=1.0)
    model = RobustLinearRegression(radius=0.0, alpha=0.01, reweighting=reweighting).fit(X, y)
    loss = (model.predict(X) - y) ** 2 / 2
    losses.append((loss[~second].mean(), loss[second].mean(), np.sort(loss)[-20:].mean()))
    left.plot([-1, 1], model.predict([[-1], [1]]), label=f"alpha = {alpha}")
for values, name in zip(
    zip(*losses, strict=True), ("first group", "second group", "largest 10 %"), strict=True
):
    right.plot(alphas, values, marker="o", label=name)
left.set(xlabel="x", ylabel="y", xticks=[-1, 0, 1], ylim=(-2.5, 5))
right.set(xlabel="alpha", ylabel="mean loss", yscale="log")
left.legend(fontsize=8, ncols=2, loc="upper left")
right.legend()
