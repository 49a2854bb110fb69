"""Derivatives of the worst case within a budget, from its optimality conditions.

The formulas of `derivatives.py` hold at the price eta, which changes so that the divergence stays at budget:

    dvalue = sum gamma_i df_i + eta dbudget + eta sum phi*(s_i) dq_i
    deta   = (sum r_i d_i (df_i - sum a_j df_j) + eta (sum (d_i phi*'(s_i) - phi*(s_i)) dq_i - dbudget)) / K

with d_i = s_i - sum a_j s_j and K = sum r_i d_i^2. The derivatives of mu and the weights are those at this
price. In reverse mode, the change of eta and mu is a regression of the factors of the weights on d.

Where phi is linear at two levels of losses, the distance between them determines eta, and they exchange mass
as the budget or p changes: the regression is then the line through the two. Where the budget does not bind,
eta stays zero and the weights stay on the same losses. At a zero budget eta is infinite and the weights equal
p; neither has a derivative in the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, array_namespace, ignore_float_warnings, is_traced
from phiball.refimpl.inner.derivatives import SolutionTerms, Solved, Triple, directional
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.printing import one_line


@dataclass(frozen=True)
class SolvedBudget:
    """A problem with a budget and its solution; f, p and gamma have shape (..., m), the others (...)."""

    divergence: Divergence
    f: Array
    budget: Array
    p: Array | None
    mu: Array
    weights: Array
    eta: Array
    __repr__ = one_line

    def jvp(
        self, df: Array | None, dbudget: Array | None, dp: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """The derivatives of value, mu, weights and eta along a direction; None means zero."""
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            at = _Binding(self)
            df = xp.zeros_like(self.f) if df is None else df
            dbudget = xp.zeros_like(self.eta) if dbudget is None else dbudget
            mass = conj = level = xp.zeros_like(self.f)
            if dp is not None:
                mass, conj, level = at.along(dp, at.density, at.conj(), at.g)
            value = _sum(self.weights * df + xp.where(at.free, level, at.price * conj))
            value = value + directional(self.eta, dbudget)
            d, spent = at.distance, dbudget + _sum(conj)
            pull = df - _column(at.takes * df)
            eta = (_sum(d * (at.r * pull + at.price * mass)) - self.eta * spent) * at.ease
            mu = _sum(at.moves * df) + at.softness * _sum(mass) + at.mu_in_eta * eta
            T = mass + at.r / at.price * (pull - d * eta[..., None])
            weights = T - at.takes * _column(T)
            if at.levels is not None:
                upper, lower, two = at.levels
                eta2 = _sum((upper - lower) * df) / at.width[..., 0]
                mu2 = _sum(upper * df) - _sum(upper * at.s) * eta2
                T = mass + at.r / at.price * (df - mu2[..., None] - at.s * eta2[..., None])
                low, sum_T = _column(lower * at.s), _column(T)
                up = (spent[..., None] - _column(at.s * T) + low * sum_T) / at.width
                weights = xp.where(two, T + upper * up - lower * (sum_T + up), weights)
                eta, mu = xp.where(two[..., 0], eta2, eta), xp.where(two[..., 0], mu2, mu)
            _refuse(eta, mu, weights)
            return value, mu, weights, eta

    def vjp(
        self,
        value: Array | None,
        mu: Array | None,
        weights: Array | None,
        eta: Array | None,
        wanted: list[bool],
    ) -> Triple:
        """The gradients in f, budget and p, where `wanted`, of a weighted sum of the four fields."""
        if eta is mu is weights is None and not wanted[1] and not wanted[2]:  # Danskin's theorem
            return None if value is None else value[..., None] * self.weights, None, None
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            at = _Binding(self)
            conj = at.conj() if wanted[2] or not (eta is mu is weights is None) else xp.zeros_like(self.f)
            in_f, in_q, in_budget = xp.zeros_like(self.f), xp.zeros_like(self.f), xp.zeros_like(self.eta)
            if value is not None:
                in_f = value[..., None] * self.weights
                in_budget = xp.where(value == 0, value, value * self.eta)
                in_q = value[..., None] * xp.where(at.free, at.g, at.price * conj)
            if not (eta is mu is weights is None):
                zero = xp.zeros_like(self.eta)
                factors = (
                    zero if eta is None else eta,
                    zero if mu is None else mu,
                    xp.zeros_like(self.f) if weights is None else weights,
                )
                more = at.binding(conj, *factors)
                if at.levels is not None:
                    two = at.levels[2]
                    both = zip(at.two_levels(conj, *factors), more, strict=True)
                    more = tuple(xp.where(two if x.ndim == two.ndim else two[..., 0], x, y) for x, y in both)
                in_f, in_budget, in_q = in_f + more[0], in_budget + more[1], in_q + more[2]
                _refuse(more[0], more[1] if wanted[1] else None, more[2] if wanted[2] else None)
            return in_f, in_budget, at.in_p(in_q) if wanted[2] else None


class _Binding(SolutionTerms):
    """The solution at its price, and its response to a change of the price; columns have shape (..., 1).

    - `idle`, `free`: columns, whether the budget is not binding, or zero; `price`: eta, or a finite
      positive number near it.
    - `r`: the curvature, zero where idle; `distance`: d; `s`: (f - mu)/eta; `width`: s of the upper level
      minus s of the lower.
    - `ease`: 1/K, zero where idle, and NaN where the change of eta is undefined.
    """

    def __init__(self, solved: SolvedBudget) -> None:
        f, eta, p = solved.f, solved.eta, solved.p
        xp = array_namespace(f)
        eps = float(xp.finfo(f.dtype).eps)
        self.free, self.idle = (eta == xp.inf)[..., None], (eta == 0)[..., None]
        size = xp.max(f, axis=-1) - xp.min(f, axis=-1)
        size = xp.where(size > 0, size, xp.ones_like(size))
        near = xp.where(eta == 0, size * eps, xp.where(eta == xp.inf, size / eps, eta))
        mean = xp.sum(solved.weights * f, axis=-1) - near * solved.divergence.slope1
        mu = xp.where(eta == xp.inf, mean, solved.mu)
        super().__init__(Solved(solved.divergence, f, near, p, mu, solved.weights))
        slope1 = xp.full_like(near, -solved.divergence.slope1)
        self.mu_in_eta = xp.where(eta == xp.inf, slope1, self.mu_in_eta)
        self.price, none = near[..., None], xp.zeros_like(f)
        self.r = xp.where(self.idle, none, self.curvature)
        self.distance = (self.g - _column(self.takes * self.g)) / self.price
        self.s = ((f - self.top[..., None]) - (mu - self.top)[..., None]) / self.price
        stiffness = _sum(xp.where(self.r > 0, self.r * self.distance**2, none))
        bends = stiffness > 0
        ease = 1 / xp.where(bends, stiffness, xp.ones_like(stiffness))
        ease = xp.where(bends & (eta < xp.inf), ease, xp.full_like(ease, xp.nan))
        self.ease = xp.where(eta == 0, xp.zeros_like(ease), ease)
        if self.levels is not None:
            upper, lower, two = self.levels
            self.levels = upper, lower, two & ~self.idle & ~self.free
            width = _column((upper - lower) * self.s)
            self.width = xp.where(self.levels[2], width, xp.ones_like(width))

    def binding(self, conj: Array, eta: Array, mu: Array, weights: Array) -> tuple[Array, Array, Array]:
        """The gradients in f, budget and q for factors of eta, mu and weights, by regression."""
        xp = array_namespace(conj)
        a, d, price = self.takes, self.distance, self.price[..., 0]
        rest = weights - _column(a * weights)
        slope = _sum(xp.where(self.r > 0, self.r * d * rest, xp.zeros_like(d)))
        factor = eta + self.mu_in_eta * mu
        # Zero times an undefined derivative is zero.
        by_eta = xp.where(factor == 0, factor, factor * self.ease)
        line = xp.where(slope == 0, slope, slope * self.ease)
        in_budget = line - price * by_eta
        line = xp.where(self.free[..., 0], xp.zeros_like(line), line)  # weights equal to p do not depend on f
        move = (price * by_eta - line)[..., None]
        push = self.r / self.price * (rest + move * d)
        in_f = mu[..., None] * self.moves + push - a * _column(push)
        in_q = (rest + move * d + (mu * self.softness)[..., None]) * self.density - move * conj
        return in_f, in_budget, in_q

    def two_levels(self, conj: Array, eta: Array, mu: Array, weights: Array) -> tuple[Array, Array, Array]:
        """The gradients where two levels exchange mass, by the line through them."""
        assert self.levels is not None
        upper, lower, _ = self.levels
        high, low = _column(upper * self.s), _column(lower * self.s)
        line = (_column(upper * weights) - _column(lower * weights)) / self.width
        rest = weights - _column(lower * weights) - line * (self.s - low)
        push = self.r / self.price * rest
        by_mu = mu[..., None] - _column(push)
        by_eta = eta[..., None] - _column(push * self.s)
        in_f = push + by_mu * upper + (by_eta - high * by_mu) * (upper - lower) / self.width
        return in_f, line[..., 0], rest * self.density + line * conj


def _refuse(*derivatives: Array | None) -> None:
    """Raise if a derivative is undefined; not inside a traced function, whose numbers are unknown."""
    for x in derivatives:
        if x is not None and not is_traced(x) and array_namespace(x).any(array_namespace(x).isnan(x)):
            raise ValueError(
                "eta, mu or weights are not differentiable here: the budget is 0, or phi is linear at the "
                "solution; use a positive budget, or differentiate the value alone"
            )


def _sum(x: Array) -> Array:
    return array_namespace(x).sum(x, axis=-1)


def _column(x: Array) -> Array:
    return array_namespace(x).sum(x, axis=-1, keepdims=True)
