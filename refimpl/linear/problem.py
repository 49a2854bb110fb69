"""What a linear model is asked to withstand: the loss, the ball, the price, and the ridge."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence, as_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.losses import LinearLoss, valid_loss
from phiball.refimpl.validation import valid_number


@dataclass(frozen=True, repr=False)
class Reweighting:
    """A worst case over the weights of the examples, by a price or within a budget.

    - `divergence`: phi, for example `QUADRATIC` or "quadratic"; `indicator(alpha)` gives the CVaR of the
      losses. The names are entropic, quadratic, absolute and hinge.
    - `eta`: the price of the divergence, positive; or
    - `budget`: how large the divergence may be, not negative. One of the two is given.

    >>> from phiball.refimpl import QUADRATIC
    >>> from phiball.linear import Reweighting
    >>> Reweighting(QUADRATIC, budget=0.1)
    Reweighting(quadratic, budget=0.1)
    """

    divergence: Divergence | str
    eta: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "divergence", as_divergence(self.divergence))
        if (self.eta is None) == (self.budget is None):
            raise ValueError(f"eta is {self.eta!r} and budget is {self.budget!r}; expected one of them")
        if self.eta is not None:
            valid_number("eta", self.eta, above=0.0)
        else:
            valid_number("budget", self.budget, least=0.0)

    def __repr__(self) -> str:
        """Its arguments, with the divergence by its name: estimators show it inside their own."""
        given = f"eta={self.eta!r}" if self.budget is None else f"budget={self.budget!r}"
        return f"Reweighting({self.divergence.name}, {given})"

    def value(self, losses: Array, p: Array, *, rounding: float = 0.0) -> tuple[Array, Array, Array | None]:
        """(value, weights, motion): the worst mean of the losses (n,) from the distribution p (n,), from below.

        `motion` says how the weights move: diag(motion) - motion motion^T/sum is their derivative. It is None
        where they do not. `rounding` adds this much of (x - 1)^2/2 to the divergence of a CVaR.
        """
        eta, phi = self.eta, self.divergence
        xp = array_namespace(losses)
        distribution = None if bool(xp.all(p == p[0])) else p  # equal weights have compiled solvers
        if eta is None:
            within = worst_case(losses, None, phi, budget=self.budget or 0.0, p=distribution)
            eta, mu, weights = float(within.eta), within.mu, within.weights
            value = within.value - within.gap
        else:
            if rounding > 0 and phi.family == "indicator":
                eta, phi = rounding, _rounded_indicator(phi)
            priced = worst_case(losses, eta, phi, p=distribution)
            mu, weights, value = priced.mu, priced.weights, priced.value
        if not 0 < eta < inf:
            return value, weights, None
        motion = p * phi.d2conj((losses - mu) / eta) / eta
        return value, weights, motion if bool(xp.sum(motion) > 0) else None


def _rounded_indicator(phi: Divergence) -> Divergence:
    """(x - 1)^2/2 on [0, 1/alpha], and infinite beyond."""
    assert phi.parameter is not None
    top = 1 / phi.parameter

    def ratio(s: Array) -> Array:
        return array_namespace(s).clip(1 + s, 0.0, top)

    def conj(s: Array) -> Array:
        x = ratio(s)
        return s * x - (x - 1) ** 2 / 2

    def cost(x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(phi.phi(x) == 0, (x - 1) ** 2 / 2, phi.phi(x))

    def bend(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.astype((s > -1) & (s < top - 1), s.dtype)

    return Divergence(f"rounded {phi.name}", cost, conj, ratio, bend, -1.0, 0.0, inf, 1.0)


@dataclass(frozen=True)
class LinearProblem:
    r"""The objective of a robust linear model, a convex function of its coefficients and intercept.

    $$F(\theta, c) = \sum_i w_i R\big(\ell(\theta \cdot (x_i + b) + c, y_i)\big)
    + \frac{\lambda}{2} |\theta|^2, \qquad b \text{ uniform on the ball}$$

    R is the value of `worst_case` for the distribution of b. For a Euclidean ball that distribution enters through one variable
    t, and everything is computed without sampling (see refimpl/linear/gauss_rules.py).

    - `loss`: the name of a loss (logistic, squared, absolute, hinge, smoothed hinge, quantile, huber,
      poisson, multinomial) or a `LinearLoss`. Labels are -1 and 1 for logistic and hinge losses, and the
      numbers of the classes for multinomial.
    - `ball`: where an example may move, such as Ball(2, 0.5); with norms other than 2, and for
      multinomial, b runs through a fixed set of scrambled Sobol points, which needs scipy.
    - `eta`: the price of the divergence. 0 gives the adversarial loss, max over the ball, and inf the
      average over the ball, both without a divergence.
    - `divergence`: phi, for example `ENTROPIC`.
    - `ridge`: lambda, not negative. The intercept is not charged.
    - `feature_scale`: how far each feature moves, as multiples of the radius, (d,); 0 holds a feature where it is.
    - `intercept`: whether there is one.
    - `reweighting`: a worst case over the weights of the examples on top, or None.

    >>> import numpy as np
    >>> from phiball.refimpl import Ball
    >>> from phiball.linear import LinearProblem, fit_linear_model
    >>> x, y = np.array([[-2.0], [-1.0], [1.0], [3.0]]), np.array([-1.0, 1.0, -1.0, 1.0])
    >>> problem = LinearProblem("logistic", Ball(2, 0.5), eta=0.1, ridge=0.1)
    >>> model = fit_linear_model(problem, x, y)
    >>> print(model.coef.round(4), model.intercept.round(4), bool(model.gap < 1e-9))
    [0.3213] -0.0758 True
    """

    loss: LinearLoss | str = "logistic"
    ball: Ball = Ball(2, 0.0)  # noqa: RUF009  a frozen value
    eta: float = 1.0
    divergence: Divergence | str = ENTROPIC
    ridge: float = 0.0
    feature_scale: Array | None = None
    intercept: bool = True
    reweighting: Reweighting | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", valid_loss(self.loss))
        if not isinstance(self.ball, Ball) or self.ball.clip is not None:
            raise TypeError(f"ball is {self.ball!r}; expected a Ball without clip, such as Ball(2, 0.5)")
        if self.ball.feature_scale is not None:
            raise ValueError(f"ball is {self.ball!r}; expected the sizes as the problem's own feature_scale=")
        valid_number("eta", self.eta, least=0.0, infinite=True)
        object.__setattr__(self, "divergence", as_divergence(self.divergence))
        valid_number("ridge", self.ridge, least=0.0)
        if self.reweighting is not None and not isinstance(self.reweighting, Reweighting):
            raise TypeError(f"reweighting is {self.reweighting!r}; expected a Reweighting, or None")

    def radii(self, X: Array) -> Array:
        """The radius of each feature (d,): `feature_scale` times that of the ball, or an error."""
        xp = array_namespace(X)
        d = X.shape[1]
        if self.feature_scale is None:
            return xp.full((d,), self.ball.radius, dtype=X.dtype, device=device(X))
        scale = xp.asarray(self.feature_scale, dtype=X.dtype, device=device(X))
        if tuple(scale.shape) != (d,) or not bool(xp.all((scale >= 0) & (scale < inf))):
            raise ValueError(
                f"feature_scale is {self.feature_scale!r}; expected {d} finite numbers that are not negative"
            )
        return scale * self.ball.radius
