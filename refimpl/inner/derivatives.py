"""Derivatives of the solution of an inner problem, from its optimality conditions.

    gamma_i = q_i phi*'(s_i),  s_i = (f_i - mu)/eta,  sum_i gamma_i = 1,  q = p / (sum_j p_j)

f are the losses, and gamma is the worst-case distribution. With r_i = q_i phi*''(s_i) and a = r/(sum_j r_j),
the derivatives along a direction (df, deta, dq) are

    dvalue   = sum_i gamma_i df_i - deta sum_i q_i phi(gamma_i/q_i) + eta sum_i phi*(s_i) dq_i
    dmu      = sum_i a_i df_i + deta (mu - sum_i a_i f_i)/eta + eta/(sum_i r_i) sum_i phi*'(s_i) dq_i
    dgamma_i = T_i - a_i sum_j T_j
    T_i      = r_i/eta (df_i - sum_j a_j df_j - deta (f_i - sum_j a_j f_j)/eta) + phi*'(s_i) dq_i

The formulas cost O(m) per row of m losses. They have no branches on the data, so that torch can differentiate
them again.

If phi* is piecewise linear, r is zero, and a is q restricted to the losses that gain or lose mass, and
normalized: the losses at the quantile for the indicator, the largest losses for the absolute value and the
hinge.
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

    Inside JAX's transformations, infinity times zero stays NaN: JAX transposes this product, and cannot
    transpose a comparison with the direction.
    """
    product = derivative * direction
    if is_abstract(direction):
        return product
    return array_namespace(product).where(
        direction == 0, array_namespace(product).zeros_like(product), product
    )


@dataclass(frozen=True)
class Solved:
    """An inner problem and its solution: f, weights and p (..., m), eta and mu (...); p None is uniform."""

    divergence: Divergence
    f: Array
    eta: Array
    p: Array | None
    mu: Array
    weights: Array
    __repr__ = one_line

    def jvp(self, df: Array | None, deta: Array | None, dp: Array | None) -> tuple[Array, Array, Array]:
        """The derivatives of value, mu and weights along the direction (df, deta, dp); None means zero."""
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            terms = SolutionTerms(self)
            q, r, a, b = terms.q, terms.curvature, terms.mass_shares, terms.mu_in_f
            e = self.eta[..., None]
            value, mu, T = xp.zeros_like(self.mu), xp.zeros_like(self.mu), xp.zeros_like(q)
            if df is not None:
                value = value + xp.sum(self.weights * df, axis=-1)
                mu = mu + xp.sum(b * df, axis=-1)
                T = T + r / e * (df - xp.sum(a * df, axis=-1, keepdims=True))
            if deta is not None:
                value = value - terms.cost() * deta
                mu = mu + terms.mu_in_eta * deta
                T = T - r / e * terms.distance * deta[..., None]
            if dp is not None:
                density, conj = terms.times_dq(dp, terms.density, terms.conj())
                value = value + self.eta * xp.sum(conj, axis=-1)
                mu = mu + terms.mu_in_mass * xp.sum(density, axis=-1)
                T = T + density
            return value, mu, T - a * xp.sum(T, axis=-1, keepdims=True)

    def vjp(self, value: Array | None, mu: Array | None, weights: Array | None, wanted: list[bool]) -> Triple:
        """The gradients in f, eta and p, each if `wanted`, for the cotangents of value, mu and weights."""
        in_f = None if value is None else value[..., None] * self.weights
        if mu is None and weights is None and not wanted[1] and not wanted[2]:
            return in_f, None, None  # Danskin's theorem; the case of training
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            terms = ValueTerms(self) if mu is None and weights is None else SolutionTerms(self)
            in_f = xp.zeros_like(self.f) if in_f is None else in_f
            in_eta, in_q = xp.zeros_like(self.mu), xp.zeros_like(self.f)
            if value is not None and wanted[1]:
                in_eta = -value * terms.cost()
            if value is not None and wanted[2]:
                in_q = (value * self.eta)[..., None] * terms.conj()
            if isinstance(terms, SolutionTerms):
                r, a = terms.curvature / self.eta[..., None], terms.mass_shares
                if mu is not None:
                    in_f = in_f + mu[..., None] * terms.mu_in_f
                    in_eta = in_eta + mu * terms.mu_in_eta
                    in_q = in_q + (mu * terms.mu_in_mass)[..., None] * terms.density
                if weights is not None:
                    T = weights - xp.sum(a * weights, axis=-1, keepdims=True)
                    in_f = in_f + r * T - a * xp.sum(r * T, axis=-1, keepdims=True)
                    in_eta = in_eta - xp.sum(r * terms.distance * T, axis=-1)
                    in_q = in_q + terms.density * T
            return in_f, in_eta, terms.in_p(in_q) if wanted[2] else None


class ValueTerms:
    """The quantities in the derivatives of the value.

    - `c`: the centred divergence.
    - `total` (..., 1): the sum of p.
    - `q`, `live`, `ratio` (..., m): q, the mask of positive weights gamma, and gamma/q (1 outside the mask).
    """

    def __init__(self, solved: Solved) -> None:
        f, p = solved.f, solved.p
        xp = array_namespace(f)
        self.solved, self.c = solved, centred(solved.divergence)
        self.total = xp.ones_like(f[..., :1]) if p is None else xp.sum(p, axis=-1, keepdims=True)
        self.q = xp.full_like(f, 1 / f.shape[-1]) if p is None else p / self.total
        self.live = (self.q > 0) & (solved.weights > 0)
        # 1 where gamma is zero, so that no function is evaluated at a pole.
        one = xp.ones_like(f)
        self.ratio = xp.where(self.live, solved.weights / xp.where(self.live, self.q, one), one)

    def argument(self) -> Array:
        """The argument (f - mu)/eta - slope1 of the centred phi*, without rounding mu + eta slope1."""
        solved = self.solved
        high, low = two_sum(solved.mu, solved.eta * solved.divergence.slope1)
        return ((solved.f - high[..., None]) - low[..., None]) / solved.eta[..., None]

    def cost(self) -> Array:
        """The divergence sum_i q_i phi(gamma_i/q_i), which is -dvalue/deta."""
        xp = array_namespace(self.q)
        phi = xp.where(self.live, self.c.phi(self.ratio), self.c.phi(xp.zeros_like(self.q)))
        return xp.sum(xp.where(self.q > 0, self.q * phi, xp.zeros_like(phi)), axis=-1)

    def conj(self) -> Array:
        """phi*(s_i) up to a constant, which has no effect because the dq_i sum to zero."""
        return self.c.conj(self.argument())

    def times_dq(self, dp: Array, *factors: Array) -> list[Array]:
        """Each factor times dq, the derivative of q along dp."""
        xp = array_namespace(dp)
        dq = (dp - self.q * xp.sum(dp, axis=-1, keepdims=True)) / self.total
        return [directional(factor, dq) for factor in factors]

    def in_p(self, in_q: Array) -> Array:
        """The gradient in p of a function of q = p / (sum_j p_j), from its gradient `in_q` in q."""
        xp = array_namespace(in_q)
        q = self.q
        mean = xp.sum(xp.where(q > 0, q * in_q, xp.zeros_like(q)), axis=-1, keepdims=True)
        return (in_q - mean) / self.total


class SolutionTerms(ValueTerms):
    """The quantities in the derivatives of mu and the weights.

    - `density`, `curvature` (..., m): phi*'(s_i), and r.
    - `mass_shares` (..., m): a, the share of each loss in a change of mass elsewhere.
    - `distance` (..., m): (f_i - sum_j a_j f_j)/eta, zero where r_i = 0.
    - `mu_in_f` (..., m), `mu_in_eta` (...): the derivatives of mu; the first is a if mu is unique.
    - `mu_in_mass` (...): eta/(sum_i r_i), zero if phi* is piecewise linear.
    - `levels`: None, or (upper, lower, mask). Where the mask holds, two levels of losses can exchange mass at
      the same price; `upper` and `lower` are q restricted to these levels and normalized.
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
            log_curvature = (2 - self.c.parameter) * xp.log(self.ratio)
            live_logs = xp.where(self.live, log_curvature, xp.full_like(zero, -xp.inf))
            peak = xp.max(live_logs, axis=-1, keepdims=True)
            self._smooth(xp.where(self.live, self.q * xp.exp(log_curvature - peak), zero), xp.exp(peak))
        elif self.c.family == "indicator":
            lowest = self._lowest_live()
            self._kinked(lowest, lowest)
        elif self.c.family in ("absolute", "hinge"):
            # mu is the largest loss minus eta; if mu is not unique, it lies between the extreme losses.
            largest, share = self._restrict(charged & (self.g == 0)), 1 / (1 - self.c.slope0)
            low = xp.min(self.g, axis=-1, keepdims=True)
            between = (1 - share) * largest + share * self._restrict(charged & (self.g == low))
            inside = -share * low < solved.eta[..., None]
            self._kinked(largest, xp.where(inside, between, largest))
            self.levels = largest, self._lowest_live(), low < 0
        else:
            self._any_divergence()
        from_mean = self.g - xp.sum(self.mass_shares * self.g, axis=-1, keepdims=True)
        self.distance = xp.where(self.curvature > 0, from_mean, zero) / solved.eta[..., None]
        self.mu_in_eta = ((solved.mu - self.top) - xp.sum(self.mu_in_f * self.g, axis=-1)) / solved.eta

    def _smooth(self, r: Array, scale: Array | float = 1.0) -> None:
        """Set the quantities for a smooth phi*, with curvature r * scale."""
        xp = array_namespace(r)
        total = xp.sum(r, axis=-1, keepdims=True)
        self.curvature, self.mass_shares = r * scale, r / total
        self.mu_in_f = self.mass_shares
        self.mu_in_mass = self.solved.eta * (1 / (total * scale))[..., 0]

    def _kinked(self, shares: Array, mu_in_f: Array) -> None:
        """Set the quantities for a piecewise linear phi*."""
        xp = array_namespace(shares)
        self.curvature, self.mass_shares, self.mu_in_f = xp.zeros_like(shares), shares, mu_in_f
        self.mu_in_mass = xp.zeros_like(self.solved.eta)

    def _any_divergence(self) -> None:
        """Set the quantities for a divergence without a family, whose kinks are found from the solution.

        If the weight of a loss differs from q_i phi*'(s_i), s_i is at a jump of phi*' or at the end of the
        domain of phi*. The loss is held there: mu moves with the loss, and the loss absorbs changes of mass.
        """
        solved, charged = self.solved, self.q > 0
        xp = array_namespace(self.q)
        zero, tol = xp.zeros_like(self.q), 8 * tolerance(self.q)
        s, e, mu = self.argument(), solved.eta[..., None], solved.mu[..., None]
        r = xp.where(charged, self.q * self.c.d2conj(s), zero)
        rounding = tol * (1 + xp.abs(s) + (xp.abs(solved.f) + xp.abs(mu)) / e)
        difference = xp.abs(solved.weights - xp.where(charged, self.q * self.c.dconj(s), zero))
        held = charged & (difference > rounding * r + tol * (solved.weights + self.q))
        r = xp.where(held, zero, r)
        total = xp.sum(r, axis=-1, keepdims=True)
        any_held, curved = xp.any(held, axis=-1, keepdims=True), total > 0
        safe = xp.where(curved, total, xp.ones_like(total))
        at_held = self._restrict(held)
        self.curvature = r
        self.mass_shares = xp.where(any_held, at_held, xp.where(curved, r / safe, self._lowest_live()))
        at_top = self._restrict(charged & (self.g == 0))
        self.mu_in_f = xp.where(any_held, at_held, xp.where(curved, r / safe, at_top))
        highest = xp.max(xp.where(held, self.g, xp.full_like(zero, -xp.inf)), axis=-1, keepdims=True)
        lowest = xp.min(xp.where(held, self.g, xp.full_like(zero, xp.inf)), axis=-1, keepdims=True)
        upper, lower = self._restrict(held & (self.g == highest)), self._restrict(held & (self.g == lowest))
        self.levels = upper, lower, any_held & (lowest < highest)
        free = curved & ~any_held
        self.mu_in_mass = solved.eta * xp.where(free, 1 / safe, xp.zeros_like(total))[..., 0]

    def _restrict(self, mask: Array) -> Array:
        """q restricted to a mask and normalized; zero if the mask is empty."""
        xp = array_namespace(self.q)
        part = xp.where(mask, self.q, xp.zeros_like(self.q))
        total = xp.sum(part, axis=-1, keepdims=True)
        return part / xp.where(total > 0, total, xp.ones_like(total))

    def _lowest_live(self) -> Array:
        """q restricted to the smallest losses with positive weight, and normalized."""
        xp = array_namespace(self.g)
        lowest = xp.min(xp.where(self.live, self.g, xp.zeros_like(self.g)), axis=-1, keepdims=True)
        return self._restrict(self.live & (self.g == lowest))
