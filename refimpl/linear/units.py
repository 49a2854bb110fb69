"""Units in which the features, predictions and losses of a fit have size 1.

With more features than examples, a model may be fitted in the space that the examples span, of dimension at
most n. On a Euclidean ball or for a Gaussian, the risk depends on theta through X theta and |theta|, and it
increases with |theta|: a part of theta that is orthogonal to the examples only increases F.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.linear.losses import LOSSES, Jet, LinearLoss
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.risk import LinearData

_FEW = 100  # up to so many features, a fit in fewer dimensions saves no time
_CONSTANT = 1e-12  # a spread below this share of the largest entry is rounding


class Units:
    """Units for a problem on data: z = prediction z', F = loss F', and x = mean + basis (center + scale x').

    - `problem`, `data`: the problem and the data in these units.
    - `loss`: the unit of the losses and of F.
    """

    def __init__(self, problem: LinearProblem, data: LinearData) -> None:
        xp, X, w = array_namespace(data.X), data.X, data.w
        given: Array = 1.0
        if problem.feature_scale is not None:
            given = xp.asarray(problem.feature_scale, dtype=X.dtype, device=device(X))
        self.basis: Array | None = None
        if _is_reducible(problem, data):
            self.mean, self.basis, X = data.row_space
            if problem.feature_scale is not None:
                given = given[: X.shape[1]]
                problem = replace(problem, feature_scale=given)
        top = xp.max(xp.abs(X), axis=0)
        safe = xp.where(top > 0, top, xp.ones_like(top))
        Z, radii = X / safe, problem.radii(X)
        mean = w @ Z if problem.intercept else xp.zeros_like(top)
        spread = xp.sqrt(w @ (Z - mean) ** 2)
        radii = xp.where(radii > 0, radii, safe)  # of features that are constant
        self.scale = xp.where(spread > _CONSTANT, spread * safe, radii)
        self.center = mean * safe
        self.prediction, self.loss = _sizes(problem, data)
        loss, outer = problem.loss, problem.reweighting
        self.data = data.standardized(X, self.center, self.scale)
        if loss == LOSSES["squared"]:  # stays the squared loss, of which some risks have a closed form
            self.loss = self.prediction**2
            self.data.y = data.y / self.prediction
        elif isinstance(loss, LinearLoss):
            loss = _scaled_loss(loss, self.prediction, self.loss)
        if outer is not None and outer.eta is not None:
            outer = replace(outer, eta=_price(outer.eta, self.loss))
        self.problem = replace(
            problem,
            loss=loss,
            eta=_price(problem.eta, self.loss),
            ridge=problem.ridge * (self.prediction * self.prediction / self.loss),
            feature_scale=given / self.scale,
            reweighting=outer,
        )

    def to_units(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """Coefficients (..., d) and intercepts (...) in these units."""
        if self.basis is not None:
            coef, intercept = coef @ self.basis, intercept + coef @ self.mean
        return coef * (self.scale / self.prediction), (intercept + coef @ self.center) / self.prediction

    def from_units(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """Coefficients (..., d) and intercepts (...) in the units of the data."""
        coef = coef * (self.prediction / self.scale)
        intercept = self.prediction * intercept - coef @ self.center
        if self.basis is not None:
            coef = coef @ self.basis.T
            intercept = intercept - coef @ self.mean
        return coef, intercept


def _is_reducible(problem: LinearProblem, data: LinearData) -> bool:
    """Whether there are many features, more than examples, and F depends on theta as described above."""
    n, d = data.X.shape
    if (
        d <= max(n, _FEW)
        or data.moving not in (0, d)
        or (data.moving > 0 and problem.norm != 2)
        or data.outputs > d
    ):
        return False
    radii = problem.radii(data.X)
    return bool(array_namespace(radii).all(radii == radii[0]))


def _price(eta: float, loss: float) -> float:
    """eta / loss, which stays positive, zero or infinite."""
    return eta if eta in (0.0, inf) else min(max(eta / loss, 1e-300), 1e300)


def _sizes(problem: LinearProblem, data: LinearData) -> tuple[float, float]:
    """The size of the predictions, and by how much the losses grow over this distance from the labels."""
    xp, y, loss = array_namespace(data.y), data.y, problem.loss
    if not isinstance(loss, LinearLoss) or loss.monotone:
        return 1.0, 1.0
    if loss.name == "poisson":
        mean = float(data.w @ y)
        size, middle = 1.0, xp.full_like(y, log(mean) if mean > 0 else 0.0)
    else:
        size, middle = _spread(y, data.w, problem.intercept), y
    with ignore_float_warnings():
        ends = loss.jet(middle + size, y)[0] + loss.jet(middle - size, y)[0] - 2 * loss.jet(middle, y)[0]
        growth = float(data.w @ ends)
    return size, growth if 0 < growth < inf else 1.0


def _spread(y: Array, w: Array, intercept: bool) -> float:
    """The median distance of the labels from their median, or from 0 without an intercept.

    If it is 0, it is their mean distance, their largest absolute value or 1.
    """
    xp = array_namespace(y)
    distance = xp.abs(y - _median(y, w) if intercept else y)
    top = float(xp.max(xp.abs(y)))
    sizes = _median(distance, w), float(w @ distance), top
    return next((size for size in sizes if size > _CONSTANT * top), 1.0)


def _median(v: Array, w: Array) -> float:
    """The median of v (n,) with weights w (n,) that sum to one."""
    xp = array_namespace(v)
    order = xp.argsort(v)
    below = xp.cumulative_sum(xp.take(w, order)) < 0.5 - _CONSTANT
    return float(v[order[int(xp.sum(xp.astype(below, xp.int64)))]])


def _scaled_loss(loss: LinearLoss, prediction: float, unit: float) -> LinearLoss:
    """loss(prediction z, y) / unit as a function of z and y."""
    if (prediction, unit) == (1.0, 1.0):
        return loss
    kinks, smoothed = loss.kinks, loss.smoothed

    def jet(z: Array, y: Array) -> Jet:
        value, slope, bend = loss.jet(prediction * z, y)
        return value / unit, slope * (prediction / unit), bend * (prediction * (prediction / unit))

    return replace(
        loss,
        jet=jet,
        kinks=None if kinks is None else lambda y: tuple(kink / prediction for kink in kinks(y)),
        smoothed=None
        if smoothed is None
        else lambda width: _scaled_loss(smoothed(unit * width), prediction, unit),
    )
