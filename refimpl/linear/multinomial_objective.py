"""The objective F of multinomial logistic regression: predictions are vectors W x + c, one entry per class.

On a Euclidean ball or for a Gaussian, and for C classes, W b varies in C - 1 dimensions (see subspace.py),
and the quadrature points lie there. For a fixed subspace Q of the features, points fixed in Q give a convex
risk F_Q(W). F(W) is the maximum of F_Q(W) over Q, attained at the span of the rows of W. So F_Q, with Q from
the solution, is a convex lower bound of F that the certificate can use. On balls of other norms, and with few
features, b takes a fixed set of scrambled Sobol points. The loss is convex in b: its maximum (eta = 0) is at
a vertex of the ball in norm 1; in other norms, finding it is a nonconvex problem.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.inner.divergences import ENTROPIC
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.linear.linear_objective import Evaluation, infinite_evaluation, sobol_points
from phiball.refimpl.linear.margins import growth
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.subspace import Spread, subspace_rule

if TYPE_CHECKING:
    from phiball.refimpl.linear.risk import LinearData

_CHUNK = 1 << 18  # number of predictions computed at a time
_REACH = 15.0  # standard deviations that 64 nodes cover


class MultinomialObjective:
    """F for data X (n, d), class numbers y (n,) and weights w (n,), like `LinearObjective`."""

    newton = False
    max_nodes = 64  # a product rule squares the number

    def __init__(
        self,
        problem: LinearProblem,
        data: LinearData,
        n_nodes: int,
        n_points: int,
        seed: int,
        rounding: float,
    ) -> None:
        X, moving = data.X, data.moving
        if problem.eta == 0 and moving > 1 and problem.norm != 1:
            raise ValueError(
                f"eta is 0; expected a positive eta for the multinomial loss in norm {problem.norm:g}: its "
                "maximum is a nonconvex problem, except in norm 1; or fit one logistic model per class"
            )
        self.xp = xp = array_namespace(X)
        self.problem, self.X, self.w, self.rounding = problem, X, data.w, rounding
        self.ridge, self.radii, self.classes = problem.ridge * data.penalty, problem.radii(X), data.outputs
        numbers = xp.arange(self.classes, dtype=X.dtype, device=device(X))
        self.hot = xp.astype(data.y[:, None] == numbers, X.dtype)
        gaussian = isinstance(problem.reference, Gaussian) and moving > 0
        self.reduced = gaussian or (problem.norm == 2 and moving >= self.classes and problem.eta > 0)
        self.sobol: Array | None = None
        self.p: Array | None = None
        self.variance, self.limited, self.infinite = 0.0, False, ""  # `infinite` as in LinearObjective
        if self.reduced:
            dimension = inf if gaussian else moving
            self.v, self.p = subspace_rule(self.classes, dimension, n_nodes, n_points, seed, X)
            self.variance = 1.0 if gaussian else 1 / (moving + 2)
            # Beyond the nodes, the density must not grow as fast as exp(D v), where D is the largest slope.
            self.limited = gaussian and self.p is not None and growth(problem.phi, problem.eta, self.w) == inf
        elif problem.eta == 0 and moving:  # a convex loss is largest at a vertex of the l1 ball
            corners = self.radii * xp.eye(X.shape[1], dtype=X.dtype, device=device(X))
            self.sobol = xp.concat([corners, -corners])
        else:
            self.sobol = sobol_points(problem, self.radii, n_points, seed)

    @cached_property
    def inverse_matrix(self) -> Array:
        """The inverse of Böhning's bound of the Hessian for all W: half the Hessian of least squares."""
        xp, X, d = self.xp, self.X, self.X.shape[1]
        made: dict[str, Any] = {"dtype": X.dtype, "device": device(X)}
        Z = xp.concat([X, xp.ones((X.shape[0], 1), **made)], axis=1) if self.problem.intercept else X
        H, eye = Z.T @ (self.w[:, None] * Z) / 2, xp.eye(Z.shape[1], **made)
        moment = self.variance * self.radii**2 * eye[:d, :d]
        if self.sobol is not None:
            moment = self.sobol.T @ self.sobol / self.sobol.shape[0]
        H = H + eye[:, :d] @ (moment / 2 + self.ridge * eye[:d, :d]) @ eye[:d, :]
        return xp.linalg.inv(H + (1e-12 * xp.max(xp.abs(H)) + 1e-14) * eye)

    def convexity(self) -> Array:
        """A vector q (C d,) such that F(W, c) - sum_j q_j W_j^2/2 is convex: the ridge."""
        return self.xp.concat([self.ridge] * self.classes)

    @property
    def adaptive(self) -> bool:
        """Whether the value depends on `n_nodes`."""
        return self.p is not None

    @property
    def sampled(self) -> bool:
        """Whether the value depends on `seed`."""
        points = self.sobol if self.sobol is not None else self.v
        return self.p is None and points.shape[0] > 1 and self.problem.eta > 0

    def at_rest(self, params: Array) -> MultinomialObjective:
        """A convex lower bound of F that equals F at `params`: F_Q, with Q from `params`."""
        if not self.reduced:
            return self
        still = copy(self)
        W, _ = self.split(params)
        still.reduced = False
        still.sobol = self.v @ Spread(W * self.radii).directions() * self.radii
        return still

    def split(self, params: Array) -> tuple[Array, Array | None]:
        """Split the parameter vector into W (C, d) and c (C,) or None."""
        C, d = self.classes, self.X.shape[1]
        W = self.xp.reshape(params[: C * d], (C, d))
        return W, params[C * d :] if self.problem.intercept else None

    def inverse(self, g: Array, damping: float = 0.0) -> Array:
        """Apply the inverse of Böhning's matrix to g, divided by 1 + damping."""
        xp = self.xp
        W, c = self.split(g)
        if c is None:
            return xp.reshape(W @ self.inverse_matrix, (-1,)) / (1 + damping)
        G = xp.concat([W, c[:, None]], axis=1) @ self.inverse_matrix / (1 + damping)
        return xp.concat([xp.reshape(G[:, :-1], (-1,)), G[:, -1]])

    def _chunk(self, part: slice, m: Array, offsets: Array) -> tuple[Array, Array]:
        """(values (k,), gamma times the gradient in the predictions (k, J, C)) of the examples in `part`."""
        xp, eta, phi = self.xp, self.problem.eta, self.problem.phi
        logits = m[part, :][:, None, :] + offsets[None, :, :]
        top = xp.max(logits, axis=2, keepdims=True)
        e = xp.exp(logits - top)
        total = xp.sum(e, axis=2, keepdims=True)
        hot = self.hot[part, :][:, None, :]
        f = xp.log(total[..., 0]) + top[..., 0] - xp.sum(logits * hot, axis=2)
        if eta == inf or f.shape[1] == 1:
            gamma = xp.full_like(f, 1 / f.shape[1]) if self.p is None else xp.broadcast_to(self.p, f.shape)
            value = xp.sum(gamma * f, axis=1)
        elif eta == 0 and self.rounding == 0:
            value = xp.max(f, axis=1)
            gamma = xp.astype(f == value[:, None], f.dtype)
            gamma = gamma / xp.sum(gamma, axis=1, keepdims=True)
        else:
            eta, phi = (eta, phi) if eta > 0 else (self.rounding, ENTROPIC)
            solution = worst_case(f, eta, phi, p=self.p, check=False)
            value, gamma = solution.value, solution.weights
        return value, gamma[..., None] * (e / total - hot)

    def __call__(self, params: Array) -> Evaluation:
        """F and its gradient at `params`: the rows of W, then the intercepts."""
        xp, X, problem = self.xp, self.X, self.problem
        W, c = self.split(params)
        m = X @ W.T
        m = m if c is None else m + c
        spread = Spread(W * self.radii) if self.reduced else None
        offsets = self.v @ spread.matrix if spread is not None else self.sobol @ W.T
        n = X.shape[0]
        if self.limited and spread is not None and sqrt(2) * float(spread.values[-1]) > _REACH * problem.eta:
            self.infinite = f"the worst case may be more than {_REACH:g} standard deviations away"
            return infinite_evaluation(params, self.w)
        rows = max(1, _CHUNK // (offsets.shape[0] * self.classes))
        parts = [slice(i, min(i + rows, n)) for i in range(0, n, rows)]
        w, total, values = self.w, None, None
        if problem.reweighting is not None:  # the weights need all values first
            values = xp.concat([self._chunk(part, m, offsets)[0] for part in parts])
            total, w, _ = problem.reweighting.value(values, self.w, rounding=self.rounding)
        seen, G, shift = [], xp.zeros_like(W), xp.zeros_like(offsets)
        slope = xp.zeros((self.classes,), dtype=X.dtype, device=device(X))
        for part in parts:
            value, pull = self._chunk(part, m, offsets)
            seen.append(value)
            a = xp.sum(pull, axis=1) * w[part][:, None]
            G = G + a.T @ X[part, :]
            slope = slope + xp.sum(a, axis=0)
            shift = shift + xp.tensordot(w[part], pull, axes=1)
        values = xp.concat(seen)
        total = xp.sum(w * values) if total is None else total
        if spread is not None:
            G = G + spread.gradient(shift.T @ self.v) * self.radii + self.ridge * W
        else:
            G = G + shift.T @ self.sobol + self.ridge * W
        gradient = xp.reshape(G, (-1,))
        gradient = gradient if c is None else xp.concat([gradient, slope])
        ridge = float(xp.sum(self.ridge * W * W)) / 2 if problem.ridge > 0 else 0.0
        bend = 0.1 + (1 / self.rounding if self.rounding > 0 else 0.0)
        return Evaluation(float(total) + ridge, gradient, values, w, bend, self.inverse)
