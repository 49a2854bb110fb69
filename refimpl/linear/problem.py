"""The definition of a robust linear model's objective: loss, reference, price, ridge and reweighting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence, as_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.losses import LOSSES, LinearLoss, valid_loss
from phiball.refimpl.validation import valid_number

Hessian = Callable[[Array], Array]


@dataclass(frozen=True, repr=False)
class Reweighting:
    """A worst case over the weights of the examples, with a price or a budget for the divergence.

    - `divergence`: phi or its name; `indicator(alpha)` gives the CVaR of the losses.
    - `eta`: the price of the divergence, positive.
    - `budget`: the largest divergence allowed, nonnegative. Give either `eta` or `budget`.

    >>> Reweighting("chi2", budget=0.1)
    Reweighting(quadratic, budget=0.1)
    """

    divergence: Divergence | str
    eta: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "divergence", as_divergence(self.divergence))
        if (self.eta is None) == (self.budget is None):
            raise ValueError(
                f"eta is {self.eta!r} and budget is {self.budget!r}; expected exactly one of them"
            )
        if self.eta is not None:
            valid_number("eta", self.eta, above=0.0)
        else:
            valid_number("budget", self.budget, least=0.0)

    def __repr__(self) -> str:
        """The arguments, with the divergence's name: short, as it appears in the repr of estimators."""
        given = f"eta={self.eta!r}" if self.budget is None else f"budget={self.budget!r}"
        return f"Reweighting({self.phi.name}, {given})"

    @property
    def phi(self) -> Divergence:
        """The divergence, with its name resolved."""
        return as_divergence(self.divergence)

    @property
    def kinked(self) -> bool:
        """Whether the value has kinks, as a function of the losses."""
        return self.phi.family in ("indicator", "absolute", "hinge")

    def value(self, losses: Array, p: Array, *, rounding: float = 0.0) -> tuple[Array, Array, Hessian | None]:
        """(value, weights, Hessian) of the worst case over weights of losses (n,), with reference p (n,).

        The value is a lower bound; a positive `rounding` smooths its kinks over this width. The Hessian maps
        a matrix D (n, k) to D^T H D, where H is the derivative of the weights in the losses; None if H is 0.
        """
        eta, phi = self.eta, self.phi
        xp = array_namespace(losses)
        one = xp.ones_like(losses)[:, None]
        reference = None if bool(xp.all(p == p[0])) else p  # equal weights have compiled solvers
        if self.kinked and rounding > 0:
            with ignore_float_warnings():
                if phi.family == "indicator":
                    return _smooth_cvar(losses, p, phi.parameter or 1.0, rounding)
                return self._smoothed(losses, p, reference, rounding)
        if eta is None:
            found = worst_case(losses, divergence=phi, budget=self.budget or 0.0, p=reference)
            eta, value = float(found.eta), found.value - found.gap
            fixed = xp.stack([one[:, 0], losses], axis=1)
        else:
            found = worst_case(losses, eta, phi, p=reference)
            value, fixed = found.value, one
        if not 0 < eta < inf:
            return value, found.weights, None
        motion = p * phi.d2conj((losses - found.mu) / eta) / eta
        if not bool(xp.any(motion > 0)):
            return value, found.weights, None
        root = xp.sqrt(motion)[:, None]
        basis = root * fixed

        def hessian(rows: Array) -> Array:
            """The weights move such that their sum, and with a budget the divergence, stay the same."""
            rows = root * rows
            rest = rows - basis @ (xp.linalg.pinv(basis) @ rows)
            return rest.T @ rest

        return value, found.weights, hessian

    def _smoothed(
        self, losses: Array, p: Array, reference: Array | None, width: float
    ) -> tuple[Array, Array, Hessian]:
        """`value` for the absolute value and the hinge, which move mass from small losses to the largest, M.

        With a budget, a given mass t moves: the value is t M + (1 - t) CVaR, of level 1 - t. With a price,
        the mass of losses below M - c moves: the value is E max(losses, M - c).
        """
        xp, rate = array_namespace(losses), 1 - self.phi.slope0
        largest = worst_case(losses, width, ENTROPIC, p=reference)
        top, at_top = largest.value, largest.weights
        if self.eta is None:
            t = min((self.budget or 0.0) / rate, 1.0)
            kept, q, rest = (0.0 * top, 0.0 * p, None) if t == 1 else _smooth_cvar(losses, p, 1 - t, width)
            spread = _centred_square(t / width * at_top, at_top)

            def hessian(rows: Array) -> Array:
                H = spread(rows)
                return H if rest is None else H + (1 - t) * rest(rows)

            return t * top + (1 - t) * kept, t * at_top + (1 - t) * q, hessian
        u = (losses - top + self.eta * rate) / width
        share = 1 / (1 + xp.exp(-u))
        kept = p * share
        moved = 1 - xp.sum(kept)
        value = top - self.eta * rate + width * xp.sum(p * (xp.logaddexp(u, xp.zeros_like(u)) - log(2)))
        motion = (kept * (1 - share) + moved * at_top) / width
        return value, kept + moved * at_top, _centred_square(motion, at_top)


def _centred_square(motion: Array, centre: Array) -> Hessian:
    """The Hessian diag(motion) of the losses minus their mean under `centre`."""

    def hessian(rows: Array) -> Array:
        rest = rows - centre @ rows
        return rest.T @ (motion[:, None] * rest)

    return hessian


def _smooth_cvar(losses: Array, p: Array, alpha: float, width: float) -> tuple[Array, Array, Hessian | None]:
    """`Reweighting.value` of the CVaR with the divergence E[a log x + (1 - a) log((1-a)/(1-alpha))]/alpha.

    Here x is the density ratio, and a = alpha x.
    """
    if alpha == 1:
        return p @ losses, p, None
    keep = 1 - alpha

    def cost(x: Array) -> Array:
        xp = array_namespace(x)
        rest = xp.clip(1 - alpha * x, 0.0, None)
        logs = (xp.log(xp.where(v > 0, v, xp.ones_like(v))) for v in (x, rest / keep))
        return x * next(logs) + rest / alpha * next(logs)

    def ratio(s: Array) -> Array:
        return 1 / (alpha + keep * array_namespace(s).exp(-s))

    def conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.logaddexp(s + log(alpha), xp.full_like(s, log(keep))) / alpha

    def bend(s: Array) -> Array:
        return ratio(s) * (1 - alpha * ratio(s))

    phi = Divergence("smooth CVaR", cost, conj, ratio, bend, -inf, 0.0, inf, 1 / keep)
    found = worst_case(losses, width, phi, p=p)
    motion = p * bend((losses - found.mu) / width) / width
    total = array_namespace(losses).sum(motion)
    return found.value, found.weights, _centred_square(motion, motion / total) if total > 0 else None


@dataclass(frozen=True)
class LinearProblem:
    r"""The objective of a robust linear model, convex in its coefficients theta and intercept c.

    $$F(\theta, c) = \sum_i w_i R\big(\ell(\theta \cdot (x_i + b) + c, y_i)\big)
    + \frac{\lambda}{2} |\theta|^2, \qquad b \text{ uniform on a ball, or Gaussian}$$

    R is the value of `worst_case` with the distribution of b as reference. On a Euclidean ball and for a
    Gaussian it depends only on the distribution of theta.b, and is computed without sampling (see
    refimpl/linear/margins.py).

    - `loss`: the name of a loss (logistic, squared, absolute, hinge, smoothed hinge, quantile, huber,
      poisson, multinomial) or a `LinearLoss`. Labels are -1 and 1 for logistic and hinge losses, and class
      numbers for multinomial.
    - `reference`: the perturbations of an example, such as Ball(2, 0.5) or Gaussian(0.5). In norms other than
      2, and for the multinomial loss with many classes or few features, b takes scrambled Sobol points, which
      need scipy.
    - `eta`: the price of the divergence. 0 gives the adversarial loss, the maximum over the ball (of the
      multinomial loss only in norm 1), and inf the average; neither uses the divergence.
    - `divergence`: phi or its name.
    - `ridge`: lambda, nonnegative. The intercept is not penalized.
    - `feature_scale` (d,): how far each feature moves, in multiples of the radius or standard deviation; 0
      fixes a feature.
    - `intercept`: whether to fit an intercept.
    - `reweighting`: a `Reweighting`, for a worst case over the weights of the examples, or None.
    - `budget`: the largest divergence allowed, averaged over the examples, or None. The price that belongs to
      it is found; `eta` is then only a first guess.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.linear import LinearProblem, fit_linear_model
    >>> x, y = np.array([[-2.0], [-1.0], [1.0], [3.0]]), np.array([-1.0, 1.0, -1.0, 1.0])
    >>> problem = LinearProblem("logistic", Ball(2, 0.5), eta=0.1, ridge=0.1)
    >>> model = fit_linear_model(problem, x, y)
    >>> print(model.coef.round(4), model.intercept.round(4), bool(model.gap < 1e-9))
    [0.3213] -0.0758 True
    """

    loss: LinearLoss | str = "logistic"
    reference: Ball | Gaussian = Ball(2, 0.0)  # noqa: RUF009  a frozen value
    eta: float = 1.0
    divergence: Divergence | str = ENTROPIC
    ridge: float = 0.0
    feature_scale: Array | None = None
    intercept: bool = True
    reweighting: Reweighting | None = None
    budget: float | None = None

    @classmethod
    def sinkhorn(
        cls,
        loss: LinearLoss | str,
        *,
        epsilon: float,
        lam: float | None = None,
        budget: float | None = None,
        **options: Any,
    ) -> LinearProblem:
        """Sinkhorn distributionally robust optimization, of Wang, Gao and Xie, with cost |x - z|^2/2.

        The reference is normal with variance epsilon, the divergence entropic, and eta = lam epsilon. Give
        the multiplier `lam`, or the `budget` of the radius form: docs/guides/linear.md. `options` are more
        arguments of `LinearProblem`.

        >>> LinearProblem.sinkhorn("squared", lam=1000.0, epsilon=0.25).eta
        250.0
        """
        valid_number("epsilon", epsilon, above=0.0)
        if (lam is None) == (budget is None):
            raise ValueError(f"lam is {lam!r} and budget is {budget!r}; expected exactly one of them")
        eta = 1.0 if lam is None else valid_number("lam", lam, above=0.0) * epsilon
        return cls(loss, Gaussian(sqrt(epsilon)), eta, ENTROPIC, budget=budget, **options)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", valid_loss(self.loss))
        reference = self.reference
        if not isinstance(reference, (Ball, Gaussian)) or getattr(reference, "clip", None) is not None:
            raise TypeError(f"reference is {reference!r}; expected a Ball without clip, or a Gaussian")
        if isinstance(reference, Ball) and reference.feature_scale is not None:
            raise ValueError(f"reference is {reference!r}; expected feature_scale= of the problem instead")
        valid_number("eta", self.eta, least=0.0, infinite=True)
        object.__setattr__(self, "divergence", as_divergence(self.divergence))
        if isinstance(reference, Gaussian) and reference.std > 0 and self.eta < inf:
            self._check_gaussian()
        valid_number("ridge", self.ridge, least=0.0)
        if self.reweighting is not None and not isinstance(self.reweighting, Reweighting):
            raise TypeError(f"reweighting is {self.reweighting!r}; expected a Reweighting, or None")
        if self.budget is not None:
            valid_number("budget", self.budget, above=0.0)
            valid_number("eta", self.eta, above=0.0)
            if self.reweighting is not None:
                raise ValueError("budget and reweighting are both given; expected at most one of them")

    @property
    def phi(self) -> Divergence:
        """The divergence, with its name resolved."""
        return as_divergence(self.divergence)

    def _check_gaussian(self) -> None:
        """Raise if the risk under a Gaussian is infinite for all coefficients except 0."""
        if self.eta == 0:
            raise ValueError("eta is 0; expected a positive eta: no loss has a maximum under a Gaussian")
        if self.phi.recession < inf:
            raise ValueError(
                f"divergence is {self.phi.name}, whose risk under a Gaussian is infinite; expected one that "
                "grows faster than linearly, such as entropic or chi2"
            )
        if self.loss == LOSSES["poisson"] and self.phi.family == "entropic":
            raise ValueError(
                "loss is poisson, whose entropic risk under a Gaussian is infinite for every eta; expected "
                "another divergence, such as chi2"
            )

    @property
    def norm(self) -> float:
        """The norm of the ball, or 2 for a Gaussian."""
        return self.reference.norm if isinstance(self.reference, Ball) else 2.0

    @property
    def radius(self) -> float:
        """The radius of the ball, or the standard deviation of the Gaussian."""
        return self.reference.radius if isinstance(self.reference, Ball) else self.reference.std

    def radii(self, X: Array) -> Array:
        """The radius or standard deviation of each feature (d,), with `feature_scale`, which it validates."""
        xp = array_namespace(X)
        d = X.shape[1]
        if self.feature_scale is None:
            return xp.full((d,), self.radius, dtype=X.dtype, device=device(X))
        scale = xp.asarray(self.feature_scale, dtype=X.dtype, device=device(X))
        if tuple(scale.shape) != (d,) or not bool(xp.all((scale >= 0) & (scale < inf))):
            raise ValueError(
                f"feature_scale is {self.feature_scale!r}; expected {d} finite, nonnegative numbers"
            )
        return scale * self.radius
