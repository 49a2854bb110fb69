"""The exact solution of the inner problem, one method a family of divergences.

Everything here works on shifted losses g = f - max f <= 0 and on a centred divergence (phi >= 0),
and returns density ratios x = gamma/p with s, the argument of phi*' at the largest loss:
x_i = phi*'(s + g_i/eta), mu = max f - eta s. No cancellation is left in that form, whatever eta,
the offset of the losses, or the distance of s to a pole.
"""

from __future__ import annotations

from fractions import Fraction

from phiball.backends import Array, array_namespace, device, ignore_float_warnings, kernel
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.numerics import add_up, tolerance, two_sum
from phiball.refimpl.validation import valid_law

_STEPS = 200  # far above what any method here needs; bounds the loop on NaN


@kernel
def solve(f: Array, eta: Array, p: Array | None, d: Divergence) -> tuple[Array, Array, Array, Array]:
    """Maximise sum gamma_i f_i - eta sum p_i phi(gamma_i/p_i) over the simplex.

    f has shape (..., m), eta shape (...); p broadcasts to the shape of f, or is None for the uniform law. The
    types and shapes are valid, and eta. Numbers in p that are not probabilities raise an error, and a loss
    that is not finite makes the value NaN, so that neither need be looked for before.
    Returns the fields of `WorstCase`: (value, mu, weights, gap).
    """
    xp = array_namespace(f)
    law = p = None if p is None else xp.broadcast_to(valid_law("p", p), f.shape)
    p = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    c = centred(d)
    with ignore_float_warnings():
        top, g = shifted(f, p)
        e = eta[..., None]
        if c.family == "indicator":
            x, s = _indicator(g, e, law, c)
        else:
            x, s = _METHODS.get(c.family or "", _any_divergence)(f, g, e, p, c)
        # A ratio of exactly 1 must stay so: eta, if it is large, charges for every rounding of it.
        weights = p * x
        total = xp.sum(weights, axis=-1, keepdims=True)
        weights = xp.where(xp.abs(total - 1) > tolerance(f), weights / total, weights)
        # At a pole and at a finite recession, mu rounded down would make the dual infinite.
        s = s * (1 - tolerance(f)) if c.recession < xp.inf else s
        mu = add_up(add_up(top, -eta * s), -eta * d.slope1)
        primal = primal_shifted(g, weights, eta, p, c)
        gap = dual_shifted(f, top, mu, eta, p, d) - primal
        value = top + primal
        if law is not None:  # where it is zero, the loss has not been used
            value = xp.where(xp.all(xp.isfinite(f), axis=-1), value, xp.full_like(value, xp.nan))
    return value, mu, weights, gap


def shifted(f: Array, p: Array) -> tuple[Array, Array]:
    """(max f over p > 0, f minus it); entries with p = 0 are moved to the maximum."""
    xp = array_namespace(f)
    top = xp.max(xp.where(p > 0, f, xp.full_like(f, -xp.inf)), axis=-1)
    g = f - top[..., None]
    return top, xp.where(p > 0, g, xp.zeros_like(g))


def primal_shifted(g: Array, weights: Array, eta: Array, p: Array, c: Divergence) -> Array:
    """sum gamma_i g_i - eta sum p_i phi(gamma_i/p_i), for a centred phi."""
    xp = array_namespace(g)
    charged = p > 0
    x = xp.where(charged, weights / xp.where(charged, p, xp.ones_like(p)), xp.ones_like(p))
    cost = xp.sum(xp.where(charged, p * c.phi(x), xp.zeros_like(p)), axis=-1)
    return xp.sum(weights * g, axis=-1) - eta * cost


def dual_shifted(f: Array, top: Array, mu: Array, eta: Array, p: Array, d: Divergence) -> Array:
    """mu + eta sum p_i phi*((f_i - mu)/eta) - max f, by way of the centred phi."""
    xp = array_namespace(f)
    c = centred(d)
    # The centred multiplier mu + eta slope1 = high + low, without rounding: when eta is large
    # its digits are all in `high`, and when the losses have a large offset in `low`.
    high, low = two_sum(mu, eta * d.slope1)
    s = ((f - high[..., None]) - low[..., None]) / eta[..., None]
    conj = xp.where(p > 0, p * c.conj(s), xp.zeros_like(p))
    return (high - top) + (low + eta * xp.sum(conj, axis=-1))


def _entropic(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Example 2: x = exp(u)/E exp(u), s = -log E exp(u), with u = g/eta."""
    xp = array_namespace(g)
    u = g / eta
    excess = xp.sum(p * xp.expm1(u), axis=-1)  # of E exp(u) over 1, for a large eta leaves u tiny
    mean = xp.sum(p * xp.exp(u), axis=-1)
    s = -xp.where(excess > -0.5, xp.log1p(excess), xp.log(mean))
    return xp.exp(u + s[..., None]), s


def _quadratic(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Example 3, centred: x = (1 + (g - c)/eta)_+ with E x = 1, by Newton on the active set.

    E x - 1 is convex and piecewise linear in c, so Newton's method from its left ends exactly.
    """
    xp = array_namespace(g)
    zero = xp.zeros_like(g)
    at_top = xp.sum(xp.where(g == 0, p, zero), axis=-1, keepdims=True)
    everything, nothing_else = xp.sum(p * g, axis=-1, keepdims=True), eta * (1 - 1 / at_top)
    c = xp.where(everything > nothing_else, everything, nothing_else)  # both lie left of the root
    for _ in range(_STEPS):
        idle = g <= c - eta
        mass_idle = xp.sum(xp.where(idle, p, zero), axis=-1, keepdims=True)
        mass = xp.sum(xp.where(idle, zero, p), axis=-1, keepdims=True)
        moment = xp.sum(xp.where(idle, zero, p * g), axis=-1, keepdims=True)
        new = (moment - eta * mass_idle) / mass
        if not xp.any(new > c):
            break
        c = xp.where(new > c, new, c)
    x = 1 + (g - c) / eta
    return xp.where(x > 0, x, zero), -(c / eta)[..., 0]


def _cressie_read(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    assert d.parameter is not None
    if d.parameter == 2:
        return _quadratic(f, g, eta, p, d)
    return (_power_between if 1 < d.parameter < 2 else _power)(f, g, eta, p, d)


def _power(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Cressie-Read, k < 1 or k > 2: x_i^(k-1) = v^(k-1) + (k-1)(f_i - f_j)/eta, v the ratio at j.

    j is the largest loss for k < 1, and for k > 2 the smallest one that has weight, so that both
    terms are positive and no digit is lost, neither next to the pole nor where a ratio reaches zero
    with infinite slope. E x is concave in v, respectively convex: Newton's steps are monotone.
    """
    assert d.parameter is not None
    a = d.parameter - 1
    xp = array_namespace(g)
    mass = xp.sum(p, axis=-1, keepdims=True)  # 1, but for rounding
    if a < 0:
        u, v = g / eta, xp.ones_like(g[..., :1])
    else:
        u = (f - _lowest_active(f, eta, p, a)) / eta
        v = mass / xp.sum(xp.where(u >= 0, p, xp.zeros_like(p)), axis=-1, keepdims=True)
    idle = (a * u < 0) | (p == 0)
    log_c = xp.log(xp.where(idle, xp.zeros_like(u), a * u))

    def log_ratio(v: Array) -> Array:
        return xp.where(idle, -xp.inf, xp.logaddexp(a * xp.log(v) + 0 * u, log_c) / a)

    tol = tolerance(g)
    for _ in range(_STEPS):
        log_x = log_ratio(v)
        total = xp.sum(p * xp.exp(log_x), axis=-1, keepdims=True)
        steep = xp.where(u == 0, xp.zeros_like(u), (1 - a) * (log_x - xp.log(v)))
        slope = xp.sum(xp.where(idle, xp.zeros_like(u), p * xp.exp(steep)), axis=-1, keepdims=True)
        new = v + (mass - total) / slope
        new = xp.where(new < 0, xp.zeros_like(new), new)
        # The sum is as good as its rounding allows, or the step is: what a flat slope magnifies is rounding.
        met = (xp.abs(mass - total) <= 2 * tol) | (xp.abs(new - v) <= tol * v)
        v = new
        if xp.all(met):
            break
    log_x = log_ratio(v)
    return xp.exp(log_x), xp.expm1(a * xp.max(log_x, axis=-1)) / a


def _lowest_active(f: Array, eta: Array, p: Array, a: float) -> Array:
    """The smallest loss f_j with weight: E (a (f - f_j)/eta)_+^(1/a) < 1. Bisection on its rank."""
    xp = array_namespace(f)
    ranked = xp.sort(xp.where(p > 0, f, xp.min(f, axis=-1, keepdims=True)), axis=-1, descending=True)
    low = xp.zeros(ranked[..., :1].shape, dtype=xp.int64, device=device(f))  # the largest always has
    high = low + f.shape[-1]
    while xp.any(high - low > 1):
        middle = (low + high) // 2
        above = f - xp.take_along_axis(ranked, middle, axis=-1)
        above = xp.where((above > 0) & (p > 0), above, xp.zeros_like(above))
        total = xp.sum(p * (a * above / eta) ** (1 / a), axis=-1, keepdims=True)
        low, high = xp.where(total < 1, middle, low), xp.where(total < 1, high, middle)
    return xp.take_along_axis(ranked, low, axis=-1)


def _power_between(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Cressie-Read, 1 < k < 2: x_i = X (1 + (k-1) u_i X^(1-k))_+^(1/(k-1)), X the ratio at the top.

    E x is convex in X, and linear for k = 1: Newton overshoots once, then descends.
    """
    assert d.parameter is not None
    a = d.parameter - 1
    xp = array_namespace(g)
    u = g / eta
    highest = 1 / xp.sum(xp.where(g == 0, p, xp.zeros_like(p)), axis=-1, keepdims=True)

    def ratio(X: Array) -> tuple[Array, Array]:
        z = a * u * X**-a
        active = z > -1
        power = xp.exp(xp.log1p(xp.where(active, z, xp.zeros_like(z))) / a)
        return xp.where(active, X * power, 0.0), xp.where(active, power / (1 + z), 0.0)

    X, mass = xp.ones_like(highest), xp.sum(p, axis=-1, keepdims=True)  # 1, but for rounding
    tol = tolerance(g)
    for _ in range(_STEPS):
        x, slope = ratio(X)
        total = xp.sum(p * x, axis=-1, keepdims=True)
        new = X + (mass - total) / xp.sum(p * slope, axis=-1, keepdims=True)
        new = xp.where(new < highest, new, highest)
        met = (xp.abs(mass - total) <= 2 * tol) | (xp.abs(new - X) <= tol * X)
        X = new
        if xp.all(met):
            break
    return ratio(X)[0], (xp.expm1(a * xp.log(X)) / a)[..., 0]


def _indicator(g: Array, eta: Array, p: Array | None, d: Divergence) -> tuple[Array, Array]:
    """Example 1 with atoms: x = 1/alpha above the quantile q, and the rest of the mass on g = q.

    Under the uniform law masses are counts and alpha m is kept in two parts, so that nothing is
    lost in the difference between them, however many points there are.
    """
    assert d.parameter is not None
    xp = array_namespace(g)
    if p is None:
        p, exact = xp.ones_like(g), Fraction(d.parameter) * g.shape[-1]
        full = float(exact)
        rest = float(exact - Fraction(full))
    else:
        full, rest = d.parameter, 0.0
    order = xp.argsort(g, axis=-1, descending=True)
    ranked = xp.take_along_axis(g, order, axis=-1)
    mass = xp.cumulative_sum(xp.take_along_axis(p, order, axis=-1), axis=-1)
    # The quantile: the first ranked loss where the mass reaches alpha, or the last if rounding forbids it.
    reached = mass >= full * (1 - tolerance(g))
    q = xp.max(xp.where(reached, ranked, xp.min(g, axis=-1, keepdims=True)), axis=-1, keepdims=True)
    zero = xp.zeros_like(g)
    above = xp.sum(xp.where(g > q, p, zero), axis=-1, keepdims=True)
    tied = xp.sum(xp.where(g == q, p, zero), axis=-1, keepdims=True)
    share = xp.clip(((full - above) + rest) / tied, 0.0, 1.0)
    x = xp.where(g > q, xp.ones_like(g), xp.where(g == q, share, zero)) / d.parameter
    return x, -(q / eta)[..., 0]


def _kinked(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Examples 4 and 5, corrected: x = 1 above max f - width, and the mass below moves to the top."""
    xp = array_namespace(g)
    width = eta * (1 - d.slope0)  # 2 eta for the absolute value, eta for the hinge
    zero = xp.zeros_like(g)
    kept = g > -width
    left = xp.sum(xp.where(kept, zero, p), axis=-1, keepdims=True)
    at_top = xp.sum(xp.where(g == 0, p, zero), axis=-1, keepdims=True)
    x = xp.where(kept, xp.ones_like(g), zero) + xp.where(g == 0, left / at_top, zero)
    # mu may lie anywhere in [max f - eta, max(max f - eta, min f - eta slope0)]. The middle of
    # f, or its minimum for the hinge, keeps off the end of the domain of phi* where it can.
    low = xp.min(g, axis=-1) / (1 - d.slope0)
    return x, xp.where(-low < eta[..., 0], -low / eta[..., 0], xp.ones_like(low))


def _any_divergence(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Safeguarded Newton in s on E phi*'(s + u) = 1, for a divergence known by its functions.

    Where the density jumps across one (a kink of phi*), the two one-sided densities are mixed;
    where it stays below one up to the recession, the mass that is left goes to the top.
    """
    xp = array_namespace(g)
    u = g / eta
    tol = tolerance(g)
    mass = xp.sum(p, axis=-1, keepdims=True)  # 1, but for rounding

    def density(s: Array) -> tuple[Array, Array]:
        x = d.dconj(s + u)
        return x, xp.sum(xp.where(p > 0, p * x, xp.zeros_like(x)), axis=-1, keepdims=True)

    low = xp.zeros_like(u[..., :1])
    high = -xp.min(u, axis=-1, keepdims=True)  # the bracket of the corrected Algorithm 2
    high = high + tol * (1 + high)  # where phi*' may jump, the lowest loss must lie beyond the jump
    if d.recession < xp.inf:
        high = xp.where(high > d.recession, xp.full_like(high, d.recession), high)
    s = low
    for _ in range(4 * _STEPS):
        _, total = density(s)
        low = xp.where(total <= mass, s, low)
        high = xp.where(total >= mass, s, high)
        bend = xp.sum(xp.where(p > 0, p * d.d2conj(s + u), xp.zeros_like(u)), axis=-1, keepdims=True)
        new = s + (mass - total) / bend
        middle = low + (high - low) / 2
        inside = (new > low) & (new < high)
        new = xp.where(inside, new, middle)
        met = xp.abs(total - mass) <= 2 * tol
        stuck = (middle <= low) | (middle >= high)
        if xp.all(met | stuck):
            break
        s = xp.where(met, s, new)
    x, total = density(s)
    x_low, total_low = density(low)
    x_high, total_high = density(high)
    # Kink: total_low < 1 < total_high at neighbouring s. Mix, unless the upper end is infinite.
    share = (mass - total_low) / (total_high - total_low)
    mixed = x_low + share * (x_high - x_low)
    at_top = xp.sum(xp.where(g == 0, p, xp.zeros_like(p)), axis=-1, keepdims=True)
    atom = x_low + xp.where(g == 0, (mass - total_low) / at_top, xp.zeros_like(g))
    jump = xp.where((total_high >= mass) & (total_high < xp.inf), mixed, atom)
    met = xp.abs(total - mass) <= 2 * tol
    return xp.where(met, x, jump), xp.where(met, s, low)[..., 0]


_METHODS = {
    "entropic": _entropic,
    "cressie_read": _cressie_read,
    "absolute": _kinked,
    "hinge": _kinked,
}
