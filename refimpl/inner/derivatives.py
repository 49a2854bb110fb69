"""Derivatives of the solution of an inner problem, from its optimality conditions.

    gamma_i = q_i phi*'(s_i),  s_i = (f_i - mu)/eta,  sum gamma = 1,  q = p / sum p

Differentiated, with r_i = q_i phi*''(s_i) and a = r / sum r:

    dvalue   = sum gamma_i df_i - sum q_i phi(gamma_i/q_i) deta + eta sum phi*(s_i) dq_i
    dmu      = sum a_i df_i + (mu - sum a_i f_i)/eta deta + eta/(sum r) sum phi*'(s_i) dq_i
    T_i      = r_i/eta (df_i - sum a_j df_j - (f_i - sum a_j f_j)/eta deta) + phi*'(s_i) dq_i
    dgamma_i = T_i - a_i sum T_j

Every product costs O(m) per row, without iterations. The formulas are array operations on the inputs and the
solution, without branches on the data, so that a library can differentiate them again.

Where phi* has a kink, r is zero and a is p restricted to the losses that absorb the mass and rescaled: the
losses at the quantile for the indicator, the largest losses for the absolute value and the hinge.
"""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, array_namespace, ignore_float_warnings, is_abstract
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.inner.solvers import shifted
from phiball.refimpl.numerics import tolerance, two_sum
from phiball.refimpl.printing import one_line

Triple = tuple[Array | None, Array | None, Array | None]


def directional(derivative: Array, direction: Array) -> Array:
    """derivative * direction, and zero where the direction is zero, even if the derivative is infinite.

    JAX transposes this product, so a direction must not be compared: there, zero times infinity is NaN.
    """
    product = derivative * direction
    if is_abstract(direction):
        return product
    return array_namespace(product).where(
        direction == 0, array_namespace(product).zeros_like(product), product
    )


@dataclass(frozen=True)
class Solved:
    """An inner problem and its solution.

    f, p and gamma have shape (..., m), eta and mu (...); p is None for the uniform distribution.
    """

    divergence: Divergence
    f: Array
    eta: Array
    p: Array | None
    mu: Array
    weights: Array
    __repr__ = one_line

    def jvp(self, df: Array | None, deta: Array | None, dp: Array | None) -> tuple[Array, Array, Array]:
        """The derivatives of value, mu and weights along a direction; None means zero."""
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            at = SolutionTerms(self)
            q, r, a, b = at.q, at.curvature, at.takes, at.moves
            e = self.eta[..., None]
            value, mu, T = xp.zeros_like(self.mu), xp.zeros_like(self.mu), xp.zeros_like(q)
            if df is not None:
                value = value + xp.sum(self.weights * df, axis=-1)
                mu = mu + xp.sum(b * df, axis=-1)
                T = T + r / e * (df - xp.sum(a * df, axis=-1, keepdims=True))
            if deta is not None:
                value = value - at.cost() * deta
                mu = mu + at.mu_in_eta * deta
                T = T - r / e * at.distance * deta[..., None]
            if dp is not None:
                density, conj = at.along(dp, at.density, at.conj())
                value = value + self.eta * xp.sum(conj, axis=-1)
                mu = mu + at.softness * xp.sum(density, axis=-1)
                T = T + density
            return value, mu, T - a * xp.sum(T, axis=-1, keepdims=True)

    def vjp(self, value: Array | None, mu: Array | None, weights: Array | None, wanted: list[bool]) -> Triple:
        """The gradients in f, eta and p, where `wanted`, of a weighted sum of value, mu and weights."""
        in_f = None if value is None else value[..., None] * self.weights
        if mu is None and weights is None and not wanted[1] and not wanted[2]:
            return in_f, None, None  # as in training: Danskin's theorem
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            point = ValueTerms(self) if mu is None and weights is None else SolutionTerms(self)
            in_f = xp.zeros_like(self.f) if in_f is None else in_f
            in_eta, in_q = xp.zeros_like(self.mu), xp.zeros_like(self.f)
            if value is not None and wanted[1]:
                in_eta = -value * point.cost()
            if value is not None and wanted[2]:
                in_q = (value * self.eta)[..., None] * point.conj()
            if isinstance(point, SolutionTerms):
                r, a = point.curvature / self.eta[..., None], point.takes
                if mu is not None:
                    in_f = in_f + mu[..., None] * point.moves
                    in_eta = in_eta + mu * point.mu_in_eta
                    in_q = in_q + (mu * point.softness)[..., None] * point.density
                if weights is not None:
                    T = weights - xp.sum(a * weights, axis=-1, keepdims=True)
                    in_f = in_f + r * T - a * xp.sum(r * T, axis=-1, keepdims=True)
                    in_eta = in_eta - xp.sum(r * point.distance * T, axis=-1)
                    in_q = in_q + point.density * T
            return in_f, in_eta, point.in_p(in_q) if wanted[2] else None


class ValueTerms:
    """Quantities for the derivatives of the value: q, and phi and phi* of the centred divergence."""

    def __init__(self, solved: Solved) -> None:
        f, p = solved.f, solved.p
        xp = array_namespace(f)
        self.solved, self.c = solved, centred(solved.divergence)
        self.total = xp.ones_like(f[..., :1]) if p is None else xp.sum(p, axis=-1, keepdims=True)
        self.q = xp.full_like(f, 1 / f.shape[-1]) if p is None else p / self.total
        self.live = (self.q > 0) & (solved.weights > 0)
        # The ratio gamma/q, and 1 where it is zero: functions of it must not be evaluated at a pole.
        one = xp.ones_like(f)
        self.ratio = xp.where(self.live, solved.weights / xp.where(self.live, self.q, one), one)

    def argument(self) -> Array:
        """The argument (f - mu)/eta of the centred phi*; large terms cancel before they are rounded."""
        solved = self.solved
        high, low = two_sum(solved.mu, solved.eta * solved.divergence.slope1)
        return ((solved.f - high[..., None]) - low[..., None]) / solved.eta[..., None]

    def cost(self) -> Array:
        """sum q_i phi(gamma_i/q_i), minus the derivative of the value in eta."""
        xp = array_namespace(self.q)
        phi = xp.where(self.live, self.c.phi(self.ratio), self.c.phi(xp.zeros_like(self.q)))
        return xp.sum(xp.where(self.q > 0, self.q * phi, xp.zeros_like(phi)), axis=-1)

    def conj(self) -> Array:
        """phi*(s_i), up to a constant, which the rescaling of p removes."""
        return self.c.conj(self.argument())

    def along(self, dp: Array, *factors: Array) -> list[Array]:
        """Each factor times dq, the change of q along dp."""
        xp = array_namespace(dp)
        dq = (dp - self.q * xp.sum(dp, axis=-1, keepdims=True)) / self.total
        return [directional(factor, dq) for factor in factors]

    def in_p(self, in_q: Array) -> Array:
        """The gradient in p, which is rescaled to q, of a function with the gradient `in_q` in q."""
        xp = array_namespace(in_q)
        q = self.q
        mean = xp.sum(xp.where(q > 0, q * in_q, xp.zeros_like(q)), axis=-1, keepdims=True)
        return (in_q - mean) / self.total


class SolutionTerms(ValueTerms):
    """Quantities for the derivatives of mu and the weights.

    - `density`: phi*'(s_i); `curvature`: r; `distance`: (f_i - sum a_j f_j)/eta.
    - `takes`: a, how the losses share the mass that others lose.
    - `moves`: the derivative of mu in f, which is a if mu is unique.
    - `mu_in_eta`, and `softness`: the derivative of mu in eta, and eta/(sum r).
    - `levels`: None, or (t, l, mask): where the mask holds, phi is linear at the losses of two levels, which
      can exchange mass at a fixed price; t and l are q on the upper and on the lower level, rescaled.
    """

    levels: tuple[Array, Array, Array] | None = None

    def __init__(self, solved: Solved) -> None:
        super().__init__(solved)
        xp = array_namespace(self.q)
        zero = xp.zeros_like(self.q)
        charged = self.q > 0
        self.density = xp.where(self.live, self.ratio, zero)
        if solved.p is not None:
            self.density = xp.where(charged, self.density, self.c.dconj(self.argument()))
        self.top, self.g = shifted(solved.f, self.q)
        if self.c.family == "entropic":
            self._smooth(solved.weights)
        elif self.c.family == "cressie_read":
            assert self.c.parameter is not None
            log_bend = (2 - self.c.parameter) * xp.log(self.ratio)
            peak = xp.max(xp.where(self.live, log_bend, xp.full_like(zero, -xp.inf)), axis=-1, keepdims=True)
            self._smooth(xp.where(self.live, self.q * xp.exp(log_bend - peak), zero), xp.exp(peak))
        elif self.c.family == "indicator":
            self._kinked(self._lowest_live(), None)
        elif self.c.family in ("absolute", "hinge"):
            # mu is the largest loss minus eta, or, where it is not unique, between the extreme losses.
            largest, share = self._share(charged & (self.g == 0)), 1 / (1 - self.c.slope0)
            low = xp.min(self.g, axis=-1, keepdims=True)
            between = (1 - share) * largest + share * self._share(charged & (self.g == low))
            inside = -share * low < solved.eta[..., None]
            self._kinked(largest, xp.where(inside, between, largest))
            self.levels = largest, self._lowest_live(), low < 0
        else:
            self._any_divergence()
        near = self.g - xp.sum(self.takes * self.g, axis=-1, keepdims=True)
        self.distance = xp.where(self.curvature > 0, near, zero) / solved.eta[..., None]
        self.mu_in_eta = ((solved.mu - self.top) - xp.sum(self.moves * self.g, axis=-1)) / solved.eta

    def _smooth(self, r: Array, scale: Array | float = 1.0) -> None:
        xp = array_namespace(r)
        total = xp.sum(r, axis=-1, keepdims=True)
        self.curvature, self.takes = r * scale, r / total
        self.moves = self.takes
        self.softness = self.solved.eta * (1 / (total * scale))[..., 0]

    def _kinked(self, takes: Array, moves: Array | None) -> None:
        xp = array_namespace(takes)
        self.curvature, self.takes, self.moves = (
            xp.zeros_like(takes),
            takes,
            takes if moves is None else moves,
        )
        self.softness = xp.zeros_like(self.solved.eta)

    def _any_divergence(self) -> None:
        """A divergence given by its functions, whose kinks are found from the solution.

        A loss whose weight differs from q phi*' is at a jump of phi*' or at the end of its domain: mu moves
        with it, and it absorbs the mass.
        """
        solved, charged = self.solved, self.q > 0
        xp = array_namespace(self.q)
        zero, tol = xp.zeros_like(self.q), 8 * tolerance(self.q)
        s, e, mu = self.argument(), solved.eta[..., None], solved.mu[..., None]
        r = xp.where(charged, self.q * self.c.d2conj(s), zero)
        blur = tol * (1 + xp.abs(s) + (xp.abs(solved.f) + xp.abs(mu)) / e)
        missed = xp.abs(solved.weights - xp.where(charged, self.q * self.c.dconj(s), zero))
        held = charged & (missed > blur * r + tol * (solved.weights + self.q))
        r = xp.where(held, zero, r)
        total = xp.sum(r, axis=-1, keepdims=True)
        any_held, bent = xp.any(held, axis=-1, keepdims=True), total > 0
        safe = xp.where(bent, total, xp.ones_like(total))
        at_held = self._share(held)
        self.curvature = r
        self.takes = xp.where(any_held, at_held, xp.where(bent, r / safe, self._lowest_live()))
        self.moves = xp.where(
            any_held, at_held, xp.where(bent, r / safe, self._share(charged & (self.g == 0)))
        )
        highest = xp.max(xp.where(held, self.g, xp.full_like(zero, -xp.inf)), axis=-1, keepdims=True)
        lowest = xp.min(xp.where(held, self.g, xp.full_like(zero, xp.inf)), axis=-1, keepdims=True)
        upper, lower = self._share(held & (self.g == highest)), self._share(held & (self.g == lowest))
        self.levels = upper, lower, any_held & (lowest < highest)
        free = bent & ~any_held
        self.softness = solved.eta * xp.where(free, 1 / safe, xp.zeros_like(total))[..., 0]

    def _share(self, mask: Array) -> Array:
        """q restricted to a mask and rescaled; zero if the mask is empty."""
        xp = array_namespace(self.q)
        part = xp.where(mask, self.q, xp.zeros_like(self.q))
        total = xp.sum(part, axis=-1, keepdims=True)
        return part / xp.where(total > 0, total, xp.ones_like(total))

    def _lowest_live(self) -> Array:
        """q restricted to the smallest loss with weight, and rescaled."""
        xp = array_namespace(self.g)
        lowest = xp.min(xp.where(self.live, self.g, xp.zeros_like(self.g)), axis=-1, keepdims=True)
        return self._share(self.live & (self.g == lowest))
