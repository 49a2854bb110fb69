"""The objective F of models with a scalar prediction theta.x + c, and its derivatives.

On a Euclidean ball of radius rho, theta.b = r t with r = rho |theta| and t as in margins.py. For a Gaussian
with standard deviation sigma, r = T sigma |theta|, where t is truncated at T standard deviations. The risk of
an example is a function R(m, r) of m = theta.x + c and r. It is convex, and nondecreasing in r because the
distribution of t is symmetric. So F is convex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isinf, log1p, nan
from typing import TYPE_CHECKING, Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings, rng
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.linear.dual_norm import Reach, dual_reach
from phiball.refimpl.linear.example_risks import ExampleRisks, example_risks
from phiball.refimpl.linear.losses import LOSSES, LinearLoss
from phiball.refimpl.linear.margins import BallMargin, GaussianMargin, Margin, truncation
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.quadrature_rules import QuadratureRules
from phiball.refimpl.linear.tail_quadrature import TailQuadrature, has_tails
from phiball.refimpl.printing import one_line

if TYPE_CHECKING:
    from phiball.refimpl.linear.risk import LinearData

_CHUNK = 1 << 16  # number of losses computed at a time, so that they fit into the processor's cache
_FLAT = 20.0  # truncation of a Gaussian beyond which its density may underflow


@dataclass(frozen=True)
class Evaluation:
    """The objective and its derivatives at a vector of coefficients and intercepts.

    - `value`: F, including the ridge.
    - `gradient` (P,): the gradient of F.
    - `values` (n,), `weights` (n,): the risk of each example, and its weight in F.
    - `curvature`: the second derivative of F in an intercept, or its order of magnitude.
    - `inverse`: inverse(g, damping) solves H x = g, where H is the Hessian or an approximation, with
      `damping` times its size added to the diagonal.
    """

    value: float
    gradient: Array
    values: Array
    weights: Array
    curvature: float
    inverse: Callable[..., Array]
    __repr__ = one_line


def infinite_evaluation(params: Array, weights: Array) -> Evaluation:
    """The evaluation at parameters whose risk is infinite, which a line search rejects."""
    xp = array_namespace(params)
    nothing = xp.full_like(params, nan)
    return Evaluation(inf, nothing, xp.full_like(weights, inf), weights, nan, lambda g, damping=0.0: nothing)


class LinearObjective:
    """F for the data, on `n_nodes` nodes or, where they are needed, `n_points` Sobol points with `seed`.

    A positive `rounding` smooths kinks, of the loss, the maximum (eta = 0) and the reweighting of examples,
    over that width; the result is a lower bound.
    """

    max_nodes = 512

    def __init__(
        self,
        problem: LinearProblem,
        data: LinearData,
        n_nodes: int,
        n_points: int,
        seed: int,
        rounding: float,
    ) -> None:
        assert isinstance(problem.loss, LinearLoss)
        X, moving = data.X, data.moving
        self.xp = xp = array_namespace(X)
        self.problem, self.X, self.y, self.w = problem, X, data.y, data.w
        self.ridge = problem.ridge * data.penalty
        self.rounding = rounding
        rounded = rounding > 0 and problem.loss.smoothed is not None
        self.loss = problem.loss.smoothed(rounding) if rounded else problem.loss  # type: ignore[misc]
        self.radii = problem.radii(X)
        # The distribution of theta.b is known in norm 2 or if one feature moves; eta = 0 needs only its
        # range.
        known = problem.norm == 2 or moving <= 1 or problem.eta == 0
        self.sobol: Array | None = None if known else sobol_points(problem, self.radii, n_points, seed)
        self.gaussian = isinstance(problem.reference, Gaussian) and moving > 0
        # The entropic risk of the squared loss under a Gaussian has a closed form.
        entropic = problem.phi.family == "entropic" and problem.eta < inf
        self.closed = self.gaussian and entropic and problem.loss == LOSSES["squared"]
        integrates = moving > 0 and problem.eta > 0 and self.sobol is None and not self.closed
        self.n_nodes = n_nodes
        margin = GaussianMargin() if self.gaussian else BallMargin(moving)
        self.rules = self._make_rules(margin) if integrates else None
        # The unit of damping. The size of H would not do: H is 0 if no example is near a kink of the loss.
        with ignore_float_warnings():
            self.size = float(xp.max(self.w @ X**2)) + float(problem.intercept)
        self.infinite = ""  # why the last risk was infinite
        self.levels: Array | None = None  # from TailQuadrature: a start for the next evaluation

    def _make_rules(self, margin: Margin) -> QuadratureRules | TailQuadrature:
        problem = self.problem
        make = TailQuadrature if has_tails(problem.phi) and problem.eta < inf else QuadratureRules
        return make(self.loss, problem.phi, problem.eta, margin, self.n_nodes, self.X)

    def _truncate(self, m: Array, r: float) -> float:
        """The truncation T of a Gaussian for predictions of standard deviation r; updates the rules.

        It is inf if the risk is infinite; `infinite` is then the reason.
        """
        problem = self.problem
        if r == 0 or self.closed:
            if r * r < problem.eta:
                return 1.0
            self.infinite = f"the risk of these coefficients is finite only for eta > {r * r:.6g}"
            return inf
        T = truncation(self.loss, problem.phi, problem.eta, m, r, self.y)
        if isinf(T):
            self.infinite = "the risk is infinite, or its worst case more than 600 standard deviations away"
            return inf
        flat = problem.phi.family == "entropic" and problem.eta < inf and T > _FLAT
        margin = GaussianMargin(T, flat)
        if self.rules is not None and self.rules.margin != margin:
            self.rules = self._make_rules(margin)
        return T

    def convexity(self) -> Array:
        """A vector q (d,) such that F(theta, c) - sum_j q_j theta_j^2/2 is convex: the ridge, or more.

        In closed form, the part -eta/2 log(1 - r^2/eta) - r^2/2 of a risk is convex and increasing in r.
        """
        return self.ridge + self.radii**2 if self.closed else self.ridge

    @property
    def adaptive(self) -> bool:
        """Whether the value depends on `n_nodes`."""
        return self.rules is not None

    @property
    def sampled(self) -> bool:
        """Whether the value depends on `seed`."""
        return self.sobol is not None and self.sobol.shape[0] > 1

    def at_rest(self, params: Array) -> LinearObjective:
        """A convex lower bound of F that equals F at `params`: F itself, which is convex."""
        return self

    @property
    def newton(self) -> bool:
        """Whether `inverse` inverts the exact Hessian."""
        return not isinstance(self.rules, TailQuadrature) or self.rules.newton

    def reach(self, theta: Array) -> Reach:
        """The r such that theta.b ranges over [-r, r], with its derivatives in theta."""
        adversarial = self.problem.eta == 0
        norm, width = (self.problem.norm, self.rounding) if adversarial else (2.0, 0.0)
        r, v, h, k = dual_reach(norm, self.radii * theta, width)
        return Reach(r, self.radii * v, self.radii**2 * h, k)

    def _risks(self, part: slice, m: Array, r: float, offsets: Array | None) -> tuple[Array, ExampleRisks]:
        """(t, risks) of the examples in `part`; with Sobol points, `offsets` = theta.b replaces r t."""
        xp, problem = self.xp, self.problem
        y, m = self.y[part], m[part]
        made: dict[str, Any] = {"dtype": m.dtype, "device": device(m)}
        log_ratio = None
        if offsets is not None:
            t, p = offsets, xp.full_like(offsets, 1 / offsets.shape[0])
        elif r == 0:
            t, p = xp.zeros((1,), **made), xp.ones((1,), **made)
        elif self.rules is None and self.loss.monotone:
            ends = (self.loss.jet(m + s * r, y)[0] for s in (1.0, -1.0))
            t = xp.where(next(ends) >= next(ends), xp.ones_like(m), -xp.ones_like(m))[:, None]
            p = xp.ones_like(t)
        elif self.rules is None:  # a convex loss is largest at an end
            t, p = xp.asarray([-1.0, 1.0], **made), xp.asarray([0.5, 0.5], **made)
        else:
            assert isinstance(self.rules, QuadratureRules)
            t, p = self.rules(m, r, y)
            margin = self.rules.margin
            if isinstance(margin, GaussianMargin) and margin.flat:
                log_ratio = margin.log_ratio(t, p)
        z = m[:, None] + (t if offsets is not None else r * t)
        how: dict[str, Any] = {"rounding": self.rounding, "log_ratio": log_ratio}
        return t, example_risks(self.loss, z, y, p, problem.eta, problem.phi, **how)

    def _closed_form(self, m: Array, r: float, y: Array) -> dict[str, Array]:
        """The sums of `_sums` for R = e^2 A/2 - eta/2 log(1/A), where e = m - y and 1/A = 1 - r^2/eta."""
        eta, e = self.problem.eta, m - y
        A, s, one = 1 / (1 - r * r / eta), r / eta, self.xp.ones_like(e)
        square = e * e * A * A / eta
        return {
            "value": e * e * A / 2 - eta / 2 * log1p(-r * r / eta),
            "a": A * e,
            "b": r * (square + A),
            "mm": A * one,
            "mr": 2 * s * A * A * e,
            "rr": square * (1 + 4 * r * s * A) + A * (1 + 2 * r * s * A),
        }

    def _chunks(self, offsets: Array | None) -> Iterator[slice]:
        width = self.rules.width() if self.rules is not None else 2
        rows = max(1, _CHUNK // (width if offsets is None else offsets.shape[0]))
        for start in range(0, self.X.shape[0], rows):
            yield slice(start, min(start + rows, self.X.shape[0]))

    def __call__(self, params: Array) -> Evaluation:
        """F and its derivatives at `params`, (d + 1,) with an intercept and (d,) without."""
        xp, problem, X = self.xp, self.problem, self.X
        d = X.shape[1]
        theta = params[:d]
        m = X @ theta
        if problem.intercept:
            m = m + params[d]
        offsets = None if self.sobol is None else self.sobol @ theta
        zero = xp.zeros_like(theta)
        r, v, h, k = Reach(0.0, zero, zero, 0.0) if offsets is not None else self.reach(theta)
        if self.gaussian:
            T = self._truncate(m, r)
            if isinf(T):
                return infinite_evaluation(params, self.w)
            r, v, h, k = T * r, T * v, T * h, k / T
        sums: dict[str, list[Array]] = {}
        levels = []
        for part in self._chunks(offsets):
            if self.closed:
                found = self._closed_form(m[part], r, self.y[part])
            elif isinstance(self.rules, TailQuadrature) and r > 0:
                start = None if self.levels is None else self.levels[part]
                found, level = self.rules(m[part], r, self.y[part], start)
                levels.append(level)
            else:
                found = self._sums(*self._risks(part, m, r, offsets))
            for name, x in found.items():
                sums.setdefault(name, []).append(x)
        self.levels = xp.concat(levels) if levels else self.levels
        row = {name: xp.concat(x) for name, x in sums.items()}
        w, total, outer = self.w, xp.sum(self.w * row["value"]), None
        if problem.reweighting is not None:
            total, w, outer = problem.reweighting.value(row["value"], self.w, rounding=self.rounding)
        push = w @ row["b"]
        gradient = X.T @ (w * row["a"]) + self.ridge * theta + (push if offsets is not None else push * v)
        if problem.intercept:
            gradient = xp.concat([gradient, xp.reshape(xp.sum(w * row["a"]), (1,))])
        curvature = float(xp.sum(w * row["mm"]))

        def inverse(g: Array, damping: float = 0.0) -> Array:
            if offsets is not None:
                H, edge = self._hessian_on_points(w, m, offsets)
            else:
                H, edge = self._hessian_on_line(w, row, Reach(r, v, h, k), float(push))
            made: dict[str, Any] = {"dtype": X.dtype, "device": device(X)}
            if problem.intercept:
                last = xp.concat([edge, xp.asarray([curvature], **made)])
                H = xp.concat([xp.concat([H, edge[:, None]], axis=1), last[None, :]])
            if outer is not None:  # add the derivatives of the worst-case weights of the examples
                b = row["b"] if offsets is not None else row["b"][:, None] * v
                rows = row["a"][:, None] * X + b
                rows = xp.concat([rows, row["a"][:, None]], axis=1) if problem.intercept else rows
                H = H + outer(rows)
            # Add the ridge, and a small multiple of the largest entry, as H may be singular.
            charged = xp.concat([self.ridge, xp.zeros_like(params[d:])])
            largest = xp.max(xp.abs(H))
            diagonal = charged + (1e-15 * largest + damping * (largest + self.size) + 1e-14)
            return xp.linalg.solve(H + diagonal * xp.eye(H.shape[0], **made), g)

        value = float(total)
        if problem.ridge > 0:  # without a ridge the square may overflow
            value += float(self.ridge @ theta**2) / 2
        bend = curvature
        if outer is not None:
            bend += float(outer(row["a"][:, None])[0, 0])
        return Evaluation(value, gradient, row["value"], w, bend, inverse)

    def _sums(self, t: Array, risks: ExampleRisks) -> dict[str, Array]:
        """Derivatives of the risk of each example: `a` in m, `b` in r, and the second ones `mm`, `mr`, `rr`.

        With Sobol points, `b` (k, d) is the derivative in theta through theta.b, and `mr` and `rr` are left
        out.
        """
        xp, pull, bend, turn = self.xp, risks.pull, risks.bend, risks.turn
        out = {"value": risks.value, "a": xp.sum(pull, axis=1), "mm": xp.sum(bend, axis=1)}
        if turn is not None:
            turned = xp.sum(turn, axis=1)
            out["mm"] = out["mm"] - turned**2
        if self.sobol is not None:
            out["b"] = pull @ self.sobol
            return out
        bend_t = bend * t
        out["b"], out["mr"], out["rr"] = (xp.sum(x * t, axis=1) for x in (pull, bend, bend_t))
        if turn is not None:
            across = xp.sum(turn * t, axis=1)
            out["mr"], out["rr"] = out["mr"] - turned * across, out["rr"] - across**2
        return out

    def _hessian_on_line(
        self, w: Array, row: dict[str, Array], reach: Reach, push: float
    ) -> tuple[Array, Array]:
        """The Hessian in theta (d, d) of F without the ridge, and its column (d,) for the intercept."""
        xp, X = self.xp, self.X
        r, v, bend, k = reach
        h, mixed = w * row["mm"], w * row["mr"]
        eye = xp.eye(X.shape[1], dtype=X.dtype, device=device(X))
        cross = (X.T @ mixed)[:, None] * v
        turn = float(xp.sum(w * row["rr"]))
        push = max(push, 0.0)
        H = X.T @ (h[:, None] * X) + cross + cross.T
        H = H + (turn - push * k) * (v[:, None] * v) + push * bend * eye
        if r == 0 and self.closed:  # the closed form is smooth in r^2
            H = H + turn * self.radii**2 * eye
        return H, X.T @ h + float(xp.sum(mixed)) * v

    def _hessian_on_points(self, w: Array, m: Array, offsets: Array) -> tuple[Array, Array]:
        """The same with Sobol points: the features of example i at node j are x_i + b_j."""
        xp, B = self.xp, self.sobol
        assert B is not None
        H: Array = 0.0
        edge: Array = 0.0
        column: Array = 0.0
        for part in self._chunks(offsets):
            _, risks = self._risks(part, m, 0.0, offsets)
            X, bend = self.X[part, :], w[part][:, None] * risks.bend
            h = xp.sum(bend, axis=1)
            cross = X.T @ (bend @ B)
            H = H + X.T @ (h[:, None] * X) + cross + cross.T
            edge = edge + X.T @ h + xp.sum(bend, axis=0) @ B
            column = column + xp.sum(bend, axis=0)
            if risks.turn is not None:
                turned = xp.sum(risks.turn, axis=1)
                U = turned[:, None] * X + risks.turn @ B
                H = H - U.T @ (w[part][:, None] * U)
                edge = edge - U.T @ (w[part] * turned)
        return H + B.T @ (column[:, None] * B), edge


def sobol_points(problem: LinearProblem, radii: Array, n_points: int, seed: int) -> Array:
    """Perturbations b (J, d) in the ball with `radii` (d,): scrambled Sobol points and their opposites."""
    xp = array_namespace(radii)
    made: dict[str, Any] = {"dtype": radii.dtype, "device": device(radii)}
    moving = [j for j in range(radii.shape[0]) if float(radii[j]) > 0]
    if not moving:
        return xp.zeros((1, radii.shape[0]), **made)
    ball = Ball(problem.norm, 1.0)
    b = ball.sample(xp.zeros((len(moving),), **made), n_points, rng=rng(seed), antithetic=True, qmc=True)
    rows = [[float(radii[j]) if k == j else 0.0 for k in range(radii.shape[0])] for j in moving]
    return b @ xp.asarray(rows, **made)
