"""Derivatives of the worst case within a budget, from its optimality conditions.

The notation is that of `derivatives.py`. eta changes so that the divergence stays equal to the budget:

    dvalue = sum_i gamma_i df_i + eta dbudget + eta sum_i phi*(s_i) dq_i
    deta   = (A + eta B) / K,  where
    A      = sum_i r_i d_i (df_i - sum_j a_j df_j),  d_i = s_i - sum_j a_j s_j,  K = sum_i r_i d_i^2
    B      = sum_i (d_i phi*'(s_i) - phi*(s_i)) dq_i - dbudget

dmu and dgamma are as in `derivatives.py`, with this deta. In reverse mode, the cotangents of gamma are
regressed on d, by least squares with weights r.

Tied losses form a level. If phi is linear at two levels, their distance determines eta, and the levels
exchange mass when the budget or p changes: the regression line then passes through the two levels. Where the
budget does not bind, eta stays 0 and the weights stay on the same losses. At a zero budget, eta is infinite,
the weights equal p, and both have no derivative in the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, array_namespace, ignore_float_warnings, is_traced
from phiball.refimpl.inner.derivatives import SolutionTerms, Solved, Triple, directional
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.printing import one_line


@dataclass(frozen=True)
class SolvedBudget:
    """A problem with a budget and its solution: f, p and weights (..., m), the other arrays (...)."""

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
        """The derivatives of value, mu, weights and eta along (df, dbudget, dp); None means zero."""
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            terms = _BudgetTerms(self)
            df = xp.zeros_like(self.f) if df is None else df
            dbudget = xp.zeros_like(self.eta) if dbudget is None else dbudget
            mass = conj = gain = xp.zeros_like(self.f)
            if dp is not None:
                mass, conj, gain = terms.times_dq(dp, terms.density, terms.conj(), terms.g)
            value = _sum(self.weights * df + xp.where(terms.zero_budget, gain, terms.price * conj))
            value = value + directional(self.eta, dbudget)
            d, spent = terms.distance, dbudget + _sum(conj)
            pull = df - _column(terms.mass_shares * df)
            eta = (_sum(d * (terms.r * pull + terms.price * mass)) - self.eta * spent) * terms.inverse_K
            mu = _sum(terms.mu_in_f * df) + terms.mu_in_mass * _sum(mass) + terms.mu_in_eta * eta
            T = mass + terms.r / terms.price * (pull - d * eta[..., None])
            weights = T - terms.mass_shares * _column(T)
            if terms.levels is not None:
                upper, lower, two = terms.levels
                eta2 = _sum((upper - lower) * df) / terms.width[..., 0]
                mu2 = _sum(upper * df) - _sum(upper * terms.s) * eta2
                T = mass + terms.r / terms.price * (df - mu2[..., None] - terms.s * eta2[..., None])
                low, sum_T = _column(lower * terms.s), _column(T)
                up = (spent[..., None] - _column(terms.s * T) + low * sum_T) / terms.width
                weights = xp.where(two, T + upper * up - lower * (sum_T + up), weights)
                eta, mu = xp.where(two[..., 0], eta2, eta), xp.where(two[..., 0], mu2, mu)
            _check_defined(eta, mu, weights)
            return value, mu, weights, eta

    def vjp(
        self,
        value: Array | None,
        mu: Array | None,
        weights: Array | None,
        eta: Array | None,
        wanted: list[bool],
    ) -> Triple:
        """The gradients in f, budget and p, each if `wanted`, for the cotangents of the four fields."""
        if eta is mu is weights is None and not wanted[1] and not wanted[2]:  # Danskin's theorem
            return None if value is None else value[..., None] * self.weights, None, None
        with ignore_float_warnings():
            xp = array_namespace(self.f)
            terms = _BudgetTerms(self)
            conj = terms.conj() if wanted[2] or not (eta is mu is weights is None) else xp.zeros_like(self.f)
            in_f, in_q, in_budget = xp.zeros_like(self.f), xp.zeros_like(self.f), xp.zeros_like(self.eta)
            if value is not None:
                in_f = value[..., None] * self.weights
                in_budget = xp.where(value == 0, value, value * self.eta)
                in_q = value[..., None] * xp.where(terms.zero_budget, terms.g, terms.price * conj)
            if not (eta is mu is weights is None):
                zero = xp.zeros_like(self.eta)
                cotangents = (
                    zero if eta is None else eta,
                    zero if mu is None else mu,
                    xp.zeros_like(self.f) if weights is None else weights,
                )
                more = terms.pull_back(conj, *cotangents)
                if terms.levels is not None:
                    two = terms.levels[2]
                    both = zip(terms.pull_back_2(conj, *cotangents), more, strict=True)
                    more = tuple(xp.where(two if x.ndim == two.ndim else two[..., 0], x, y) for x, y in both)
                in_f, in_budget, in_q = in_f + more[0], in_budget + more[1], in_q + more[2]
                _check_defined(more[0], more[1] if wanted[1] else None, more[2] if wanted[2] else None)
            return in_f, in_budget, terms.in_p(in_q) if wanted[2] else None


class _BudgetTerms(SolutionTerms):
    """The quantities of the formulas at the price eta of the solution.

    - `idle`, `zero_budget` (..., 1): True where the budget does not bind (eta = 0), or is 0 (eta infinite).
    - `price` (..., 1): eta, replaced by a tiny or huge number where it is 0 or infinite.
    - `r`, `distance`, `s` (..., m): r (zero where idle), d and s of the formulas.
    - `width` (..., 1): s at the upper level minus s at the lower level.
    - `inverse_K` (...): 1/K, zero where idle, and NaN where the derivative of eta is undefined.
    """

    def __init__(self, solved: SolvedBudget) -> None:
        f, eta, p = solved.f, solved.eta, solved.p
        xp = array_namespace(f)
        eps = float(xp.finfo(f.dtype).eps)
        self.zero_budget, self.idle = (eta == xp.inf)[..., None], (eta == 0)[..., None]
        size = xp.max(f, axis=-1) - xp.min(f, axis=-1)
        size = xp.where(size > 0, size, xp.ones_like(size))
        near = xp.where(eta == 0, size * eps, xp.where(eta == xp.inf, size / eps, eta))
        mean = xp.sum(solved.weights * f, axis=-1) - near * solved.divergence.slope1
        mu = xp.where(eta == xp.inf, mean, solved.mu)
        super().__init__(Solved(solved.divergence, f, near, p, mu, solved.weights))
        slope1 = xp.full_like(near, -solved.divergence.slope1)
        self.mu_in_eta = xp.where(eta == xp.inf, slope1, self.mu_in_eta)
        self.price, zero = near[..., None], xp.zeros_like(f)
        self.r = xp.where(self.idle, zero, self.curvature)
        self.distance = (self.g - _column(self.mass_shares * self.g)) / self.price
        self.s = ((f - self.top[..., None]) - (mu - self.top)[..., None]) / self.price
        K = _sum(xp.where(self.r > 0, self.r * self.distance**2, zero))
        inverse_K = 1 / xp.where(K > 0, K, xp.ones_like(K))
        inverse_K = xp.where((K > 0) & (eta < xp.inf), inverse_K, xp.full_like(inverse_K, xp.nan))
        self.inverse_K = xp.where(eta == 0, xp.zeros_like(inverse_K), inverse_K)
        if self.levels is not None:
            upper, lower, two = self.levels
            self.levels = upper, lower, two & ~self.idle & ~self.zero_budget
            width = _column((upper - lower) * self.s)
            self.width = xp.where(self.levels[2], width, xp.ones_like(width))

    def pull_back(self, conj: Array, eta: Array, mu: Array, weights: Array) -> tuple[Array, Array, Array]:
        """The gradients in f, budget and q for the cotangents of eta, mu and weights; `conj` is phi*(s)."""
        xp = array_namespace(conj)
        a, d, price = self.mass_shares, self.distance, self.price[..., 0]
        rest = weights - _column(a * weights)
        slope = _sum(xp.where(self.r > 0, self.r * d * rest, xp.zeros_like(d)))
        cotangent = eta + self.mu_in_eta * mu
        # A zero cotangent gives zero, even where the derivative is undefined.
        by_eta = xp.where(cotangent == 0, cotangent, cotangent * self.inverse_K)
        line = xp.where(slope == 0, slope, slope * self.inverse_K)
        in_budget = line - price * by_eta
        line = xp.where(self.zero_budget[..., 0], xp.zeros_like(line), line)  # where the weights equal p
        move = (price * by_eta - line)[..., None]
        push = self.r / self.price * (rest + move * d)
        in_f = mu[..., None] * self.mu_in_f + push - a * _column(push)
        in_q = (rest + move * d + (mu * self.mu_in_mass)[..., None]) * self.density - move * conj
        return in_f, in_budget, in_q

    def pull_back_2(self, conj: Array, eta: Array, mu: Array, weights: Array) -> tuple[Array, Array, Array]:
        """`pull_back` where two levels exchange mass: the regression line passes through both levels."""
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


def _check_defined(*derivatives: Array | None) -> None:
    """Raise if a derivative is NaN; arrays traced by torch or JAX have no values and are not checked."""
    for x in derivatives:
        if x is not None and not is_traced(x) and array_namespace(x).any(array_namespace(x).isnan(x)):
            raise ValueError(
                "eta, mu or weights are not differentiable here: the budget is 0, or phi is linear at the "
                "solution; use a positive budget, or differentiate the value alone"
            )


def _sum(x: Array) -> Array:
    return array_namespace(x).sum(x, axis=-1)


def _column(x: Array) -> Array:
    """The sum over the last axis as a column (..., 1)."""
    return array_namespace(x).sum(x, axis=-1, keepdims=True)
