"""Exact solvers of the inner problem, one for each family of divergences.

All computations are in double precision. They use the shifted losses g = f - max f <= 0, where the maximum is
over losses of positive probability, and the centred divergence, for which phi >= 0. Each method takes f, g,
p (..., m) and eta (..., 1). It returns the density ratios x = gamma/p (..., m), and drop = max f - mu (...),
where mu is the multiplier of the centred problem, so that x_i = phi*'((drop + g_i)/eta). This form avoids
cancellation for every eta, every offset of the losses and every distance to a pole of phi*.

Below, E is the expectation under p: E x = sum_i p_i x_i.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings, iterate, kernel
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.numerics import add_up, cast_up, to_double, tolerance, total, two_sum
from phiball.refimpl.validation import check_finite, double_distribution, holds

Solution = tuple[Array, ...]  # (value, mu, weights, gap), and eta where the problem has a budget
_MAX_STEPS = 200  # more than any method needs; the limit ends loops if values are NaN


@kernel
def solve(f: Array, eta: Array, p: Array | None, d: Divergence, check: bool = False) -> Solution:
    """Maximise sum_i gamma_i f_i - eta sum_i p_i phi(gamma_i/p_i) over gamma in the simplex.

    f has shape (..., m) and eta (...); p broadcasts to f, or is None for the uniform distribution. Types,
    shapes and eta must be valid; a p that is not a distribution raises an error. A loss that is not finite
    makes the value NaN, or raises an error if `check`. Returns (value, mu, weights, gap) as in `WorstCase`.
    """
    xp = array_namespace(f)
    losses, dtype, c = f, f.dtype, centred(d)
    distribution = p = None if p is None else xp.broadcast_to(double_distribution("p", p), f.shape)
    f, eta = to_double(f), to_double(eta)
    p = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    with ignore_float_warnings():
        top, g = shifted(f, p)
        if c.family == "indicator":
            eta = xp.ones_like(eta)  # the solution does not depend on eta, but a tiny eta would overflow
            x, drop = _indicator(g, distribution, c)
        else:
            x, drop = _METHODS.get(c.family or "", _any_divergence)(f, g, eta[..., None], p, c)
        # Where a huge eta makes all ratios 1 up to rounding, use 1: eta would multiply the rounding errors.
        near = min(1.0, c.curvature1, -c.slope0, c.recession) * float(xp.finfo(f.dtype).eps)
        all_ones = -xp.min(g, axis=-1) < near * eta
        x = xp.where(all_ones[..., None], xp.ones_like(x), x)
        drop = xp.where(all_ones, -total(p * g), drop)
        weights = p * x
        mass = total(weights, keepdims=True)
        # If phi has a kink at 1, normalizing must not change ratios of exactly 1.
        slack = 0.0 if 0 < c.curvature1 < xp.inf else tolerance(f)
        normalize = (xp.abs(mass - 1) > slack) & ~all_ones[..., None]
        weights = xp.where(normalize, weights / mass, weights)
        if c.family == "indicator":  # mu is exactly the quantile: a smaller mu would increase the gap
            mu = xp.max(xp.where((g <= -drop[..., None]) & (p > 0), f, xp.full_like(f, -xp.inf)), axis=-1)
        else:
            mu = _round_mu(top, drop, eta, d, f.dtype)
        primal = primal_shifted(g, weights, eta, p, c)
        gap = dual_shifted(f, top, mu, eta, p, d) - primal
        value = top + primal
        if distribution is not None:  # losses of probability zero must be finite too
            value = xp.where(xp.all(xp.isfinite(f), axis=-1), value, xp.full_like(value, xp.nan))
        if c.family != "indicator":
            mu = _round_mu(top, drop, eta, d, dtype)
        value, mu, weights, gap = (xp.astype(v, dtype, copy=False) for v in (value, mu, weights, gap))
    if check:
        check_finite_field(value, losses, d)
        check_finite_field(gap, losses, d)
        check_finite_field(mu, losses, d, "mu overflows {}: rescale the losses or decrease eta")
    return value, mu, weights, gap


@kernel
def solve_ragged(
    f: Array, offsets: Array, eta: Array, p: Array | None, d: Divergence, check: bool = False
) -> Solution:
    """Apply `solve` to rows of different lengths: f is flat, and row r is f[offsets[r] : offsets[r + 1]]."""
    return solve_by_length(lambda f, eta, p: solve(f, eta, p, d, check), f, offsets, eta, p)


def solve_by_length(
    solver: Callable[[Array, Array, Array | None], Solution],
    f: Array,
    offsets: Array,
    setting: Array,
    p: Array | None,
) -> Solution:
    """Solve the rows of a flat f with one call of `solver` per length; `setting` (rows,): eta or budget."""
    xp = array_namespace(f)
    starts = offsets[:-1]
    lengths = offsets[1:] - starts
    rows, entries, solutions = [], [], []
    for length in map(int, xp.unique_values(lengths)):
        (row,) = xp.nonzero(lengths == length)
        entry = xp.take(starts, row)[:, None] + xp.arange(length, device=device(f))
        flat = xp.reshape(entry, (-1,))
        f_rows, p_rows = (None if x is None else xp.reshape(xp.take(x, flat), entry.shape) for x in (f, p))
        solutions.append(solver(f_rows, xp.take(setting, row), p_rows))
        rows.append(row)
        entries.append(flat)
    row_order, entry_order = xp.argsort(xp.concat(rows)), xp.argsort(xp.concat(entries))

    def merge(fields: tuple[Array, ...]) -> Array:
        """Join one field of all solutions: (rows,) in the order of the rows, or flat in the order of f."""
        if fields[0].ndim == 1:
            return xp.take(xp.concat(list(fields)), row_order)
        return xp.take(xp.concat([xp.reshape(x, (-1,)) for x in fields]), entry_order)

    return tuple(map(merge, zip(*solutions, strict=True)))


def check_finite_field(x: Array, losses: Array, d: Divergence, message: str = "") -> None:
    """Raise unless the field `x` of a solution is finite.

    If the losses are not finite, the error is about them. Otherwise it is `message`, whose placeholder {}
    becomes the dtype; the default message is about losses / eta.
    """
    xp = array_namespace(x)
    if not holds(xp.isfinite(x)):
        check_finite("losses", losses)
        message = message or "losses / eta overflows {}: rescale the losses or increase eta"
        hint = ", or test the divergence with check_divergence" if d.family is None else ""
        raise ValueError(message.format(losses.dtype) + hint)


def _round_mu(top: Array, drop: Array, eta: Array, d: Divergence, dtype: Any) -> Array:
    """mu = max f - drop - eta slope1 in `dtype`, rounded up where rounding down would spoil the dual value.

    Below the exact mu, the dual value is infinite if the recession slope is finite, and huge if eta is below
    the rounding error of mu. Elsewhere mu is rounded to nearest, which gives a smaller gap.
    """
    xp = array_namespace(top)
    finite_domain = d.recession < xp.inf
    drop = drop * (1 - tolerance(top)) if finite_domain else drop
    mu = (top - drop) - eta * d.slope1
    up = cast_up(add_up(add_up(top, -drop), -eta * d.slope1), dtype)
    fine = 64 * float(xp.finfo(dtype).eps) * xp.abs(mu) < eta
    return up if finite_domain else xp.where(fine, xp.astype(mu, dtype, copy=False), up)


def shifted(f: Array, p: Array) -> tuple[Array, Array]:
    """(top, g): top (...) is the largest f_i with p_i > 0, and g = f - top (..., m), 0 where p_i = 0."""
    xp = array_namespace(f)
    top = xp.max(xp.where(p > 0, f, xp.full_like(f, -xp.inf)), axis=-1)
    g = f - top[..., None]
    return top, xp.where(p > 0, g, xp.zeros_like(g))


def primal_shifted(g: Array, weights: Array, eta: Array, p: Array, c: Divergence) -> Array:
    """sum_i gamma_i g_i - eta sum_i p_i phi(gamma_i/p_i), for gamma = `weights` and a centred phi."""
    xp = array_namespace(g)
    charged = p > 0
    x = xp.where(charged, weights / xp.where(charged, p, xp.ones_like(p)), xp.ones_like(p))
    cost = total(xp.where(charged, p * c.phi(x), xp.zeros_like(p)))
    return total(weights * g) - eta * cost


def dual_shifted(f: Array, top: Array, mu: Array, eta: Array, p: Array, d: Divergence) -> Array:
    """mu + eta sum_i p_i phi*((f_i - mu)/eta) - max f, computed with the centred phi; `top` is max f."""
    xp = array_namespace(f)
    c = centred(d)
    # mu + eta slope1, the multiplier of the centred problem, is high + low exactly.
    high, low = two_sum(mu, eta * d.slope1)
    s = ((f - high[..., None]) - low[..., None]) / eta[..., None]
    conj = xp.where(p > 0, p * c.conj(s), xp.zeros_like(p))
    return (high - top) + (low + eta * total(conj))


def _entropic(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Example 2: x = exp(u + s) with u = g/eta and s = -log E exp(u)."""
    xp = array_namespace(g)
    u = g / eta
    excess = total(p * xp.expm1(u))  # E exp(u) - 1, accurate for a large eta
    mean = total(p * xp.exp(u))
    s = -xp.where(excess > -0.5, xp.log1p(excess), xp.log(mean))
    return xp.exp(u + s[..., None]), eta[..., 0] * s


def _quadratic(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Example 3, centred: x = (1 + (g - c)/eta)_+ with E x = 1, by Newton on the active set.

    E x - 1 is convex and piecewise linear in c, so Newton's method from the left is exact after finitely many
    steps. c is stored as w = c - lowest, where `lowest` is the smallest g with positive weight.
    """
    xp = array_namespace(g)
    zero = xp.zeros_like(g)
    at_top = total(xp.where(g == 0, p, zero), keepdims=True)
    # c_all is the root if all losses have positive weight, c_top if only the largest have. In general, both
    # are at most the root.
    c_all, c_top = total(p * g, keepdims=True), eta * (1 - 1 / at_top)
    c = xp.where(c_all > c_top, c_all, c_top)
    lowest = xp.min(xp.where(g > c - eta, g, zero), axis=-1, keepdims=True)

    def distance(lowest: Array) -> Array:
        idle, h = g < lowest, g - lowest
        mass_idle = total(xp.where(idle, p, zero), keepdims=True)
        mass = total(xp.where(idle, zero, p), keepdims=True)
        return (total(xp.where(idle, zero, p * h), keepdims=True) - eta * mass_idle) / mass

    def step(lowest: Array) -> tuple[tuple[Array], Array]:
        inside = (g - lowest) - distance(lowest) > -eta
        new = xp.min(xp.where(inside, g, zero), axis=-1, keepdims=True)
        return (xp.where(new > lowest, new, lowest),), ~(new > lowest)

    (lowest,) = iterate(step, (lowest,), _MAX_STEPS)
    idle, h, w = g < lowest, g - lowest, distance(lowest)
    x = 1 + (h - w) / eta
    return xp.where(idle | (x < 0), zero, x), -(lowest + w)[..., 0]


def _cressie_read(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Choose the method for the order k = d.parameter."""
    assert d.parameter is not None
    if d.parameter == 2:
        return _quadratic(f, g, eta, p, d)
    return (_power_1_to_2 if 1 < d.parameter < 2 else _power)(f, g, eta, p, d)


def _power(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Cressie-Read, k < 1 or k > 2: x_i^(k-1) = v^(k-1) + (k-1)(f_i - f_j)/eta, where v = x_j.

    f_j is the largest loss for k < 1, and the smallest loss with positive weight for k > 2: both terms are
    then nonnegative and do not cancel. E x is concave in v for k < 1 and convex for k > 2, so that Newton's
    method converges monotonically.
    """
    assert d.parameter is not None
    a = d.parameter - 1
    xp = array_namespace(g)
    mass = total(p, keepdims=True)  # 1 up to rounding
    if a < 0:
        u, v = g / eta, xp.ones_like(g[..., :1])
    else:
        u = (f - _lowest_active(f, eta, p, a)) / eta
        v = mass / total(xp.where(u >= 0, p, xp.zeros_like(p)), keepdims=True)
    idle = (a * u < 0) | (p == 0)
    log_au = xp.log(xp.where(idle, xp.zeros_like(u), a * u))

    def log_ratio(v: Array) -> Array:
        return xp.where(idle, -xp.inf, xp.logaddexp(a * xp.log(v) + 0 * u, log_au) / a)

    tol = tolerance(g)

    def step(v: Array) -> tuple[tuple[Array], Array]:
        log_x = log_ratio(v)
        mean = total(p * xp.exp(log_x), keepdims=True)
        log_slope = xp.where(u == 0, xp.zeros_like(u), (1 - a) * (log_x - xp.log(v)))  # log of dx/dv
        slope = total(xp.where(idle, xp.zeros_like(u), p * xp.exp(log_slope)), keepdims=True)
        new = v + (mass - mean) / slope
        new = xp.where(new < 0, xp.zeros_like(new), new)
        # Stop when E x - 1 or the step is at rounding level. Where E x is flat in v, only E x - 1 gets there.
        met = ~(xp.abs(mass - mean) > 2 * tol) | ~(xp.abs(new - v) > tol * v)  # `~(a > b)` is true for NaN
        return (new,), met

    (v,) = iterate(step, (v,), _MAX_STEPS)
    log_x = log_ratio(v)
    return xp.exp(log_x), eta[..., 0] * (xp.expm1(a * xp.max(log_x, axis=-1)) / a)


def _lowest_active(f: Array, eta: Array, p: Array, a: float) -> Array:
    """The smallest loss with positive weight, by bisection over the ranks; a = k - 1.

    This is the smallest f_j with E (a (f - f_j)/eta)_+^(1/a) < 1.
    """
    xp = array_namespace(f)
    ranked = xp.flip(xp.sort(xp.where(p > 0, f, xp.min(f, axis=-1, keepdims=True)), axis=-1), axis=-1)
    low = xp.zeros(ranked[..., :1].shape, dtype=xp.int64, device=device(f))  # the rank of the largest loss
    high = low + f.shape[-1]
    for _ in range(f.shape[-1].bit_length()):  # halves high - low until it is 1
        middle = (low + high) // 2
        above = f - xp.take_along_axis(ranked, middle, axis=-1)
        above = xp.where((above > 0) & (p > 0), above, xp.zeros_like(above))
        has_weight = total(p * (a * above / eta) ** (1 / a), keepdims=True) < 1
        low, high = xp.where(has_weight, middle, low), xp.where(has_weight, high, middle)
    return xp.take_along_axis(ranked, low, axis=-1)


def _power_1_to_2(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Cressie-Read, 1 < k < 2: x_i = X (1 + (k-1) u_i X^(1-k))_+^(1/(k-1)).

    u is g/eta, and X is the density ratio at the largest loss. E x is convex in X: Newton's method overshoots
    once, and then decreases to the root.
    """
    assert d.parameter is not None
    a = d.parameter - 1
    xp = array_namespace(g)
    u = g / eta
    highest = 1 / total(xp.where(g == 0, p, xp.zeros_like(p)), keepdims=True)

    def ratio(X: Array) -> tuple[Array, Array]:
        """(x, dx/dX)."""
        z = a * u * X**-a
        active = z > -1
        power = xp.exp(xp.log1p(xp.where(active, z, xp.zeros_like(z))) / a)
        return xp.where(active, X * power, 0.0), xp.where(active, power / (1 + z), 0.0)

    mass = total(p, keepdims=True)  # 1 up to rounding
    tol = tolerance(g)

    def step(X: Array, low: Array) -> tuple[tuple[Array, Array], Array]:
        x, slope = ratio(X)
        mean = total(p * x, keepdims=True)
        new = X + (mass - mean) / total(p * slope, keepdims=True)
        # Far to the right of the root a step may be mostly rounding error: bisect if it passes `low`.
        low = xp.where(mean <= mass, X, low)
        new = xp.where(new > low, xp.where(new < highest, new, highest), xp.sqrt(low) * xp.sqrt(X))
        met = ~(xp.abs(mass - mean) > 2 * tol) | ~(xp.abs(new - X) > tol * X)  # `~(a > b)` is true for NaN
        return (new, low), met

    X, _ = iterate(step, (xp.ones_like(highest), xp.ones_like(highest)), _MAX_STEPS)
    x, _ = ratio(X)
    # If the largest loss has very little mass, no floating-point X makes E x equal to 1 up to rounding. So
    # one more Newton step changes x itself, with the slope phi*'' = x^(2-k).
    slope = x ** (1 - a)
    x = x + slope * ((mass - total(p * x, keepdims=True)) / total(p * slope, keepdims=True))
    return xp.where(x > 0, x, xp.zeros_like(x)), (eta * (xp.expm1(a * xp.log(X)) / a))[..., 0]


def _indicator(g: Array, p: Array | None, d: Divergence) -> tuple[Array, Array]:
    """Example 1, corrected: x = 1/alpha above the quantile q, and the rest of the mass on losses g = q.

    For the uniform distribution (p is None), masses are counts of losses, and are compared with alpha m. This
    number is stored as full + rest, two floating-point numbers, so that no digit is lost for large m.
    """
    assert d.parameter is not None
    xp = array_namespace(g)
    if p is None:
        p, exact = xp.ones_like(g), Fraction(d.parameter) * g.shape[-1]
        full = float(exact)
        rest = float(exact - Fraction(full))
    else:
        full, rest = d.parameter, 0.0
    order = xp.argsort(-g, axis=-1, stable=True)
    ranked = xp.take_along_axis(g, order, axis=-1)
    mass = xp.cumulative_sum(xp.take_along_axis(p, order, axis=-1), axis=-1)
    # In decreasing order, the quantile is the first loss where the mass reaches alpha, or the last loss.
    least, slack = xp.min(g, axis=-1, keepdims=True), full * tolerance(g)
    q = xp.max(xp.where(mass >= full - slack, ranked, least), axis=-1, keepdims=True)
    zero = xp.zeros_like(g)

    def masses(q: Array) -> tuple[Array, Array]:
        above = total(xp.where(g > q, p, zero), keepdims=True)
        return above, total(xp.where(g == q, p, zero), keepdims=True)

    def step(q: Array) -> tuple[tuple[Array], Array]:
        above, tied = masses(q)
        up, down = above > full + slack, (above + tied < full - slack) & (q > least)
        higher = xp.min(xp.where(g > q, g, zero), axis=-1, keepdims=True)
        lower = xp.max(xp.where(g < q, g, least), axis=-1, keepdims=True)
        return (xp.where(up, higher, xp.where(down, lower, q)),), ~(up | down)

    (q,) = iterate(step, (q,), _MAX_STEPS)  # rounding of the cumulative sum may put q a few losses off
    above, tied = masses(q)
    share = xp.clip(((full - above) + rest) / tied, 0.0, 1.0)
    x = xp.where(g > q, xp.ones_like(g), xp.where(g == q, share, zero)) / d.parameter
    return x, -q[..., 0]


def _kinked(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Examples 4 and 5, corrected: x = 1 if f > max f - width; the rest moves to the largest losses."""
    xp = array_namespace(g)
    width = eta * (1 - d.slope0)  # 2 eta for the absolute value, eta for the hinge
    zero = xp.zeros_like(g)
    kept = g > -width
    moved = total(xp.where(kept, zero, p), keepdims=True)
    at_top = total(xp.where(g == 0, p, zero), keepdims=True)
    x = xp.where(kept, xp.ones_like(g), zero) + xp.where(g == 0, moved / at_top, zero)
    # Every mu in [max f - eta, max(max f - eta, min f - eta slope0)] is optimal. If eta is large, choose the
    # midrange of the losses (their minimum for the hinge), away from the end of the domain of phi*.
    low = xp.min(g, axis=-1) / (1 - d.slope0)
    return x, xp.where(-low < eta[..., 0], -low, eta[..., 0])


def _any_divergence(f: Array, g: Array, eta: Array, p: Array, d: Divergence) -> tuple[Array, Array]:
    """Solve E phi*'(s + u) = 1 for s, with u = g/eta, by a safeguarded Newton's method; for any divergence.

    If E phi*' jumps across 1 (phi* has a kink), the densities on both sides of the jump are mixed. If E phi*'
    stays below 1 up to the recession slope, the missing mass goes to the largest losses.
    """
    xp = array_namespace(g)
    u = g / eta
    tol = tolerance(g)
    mass = total(p, keepdims=True)  # 1 up to rounding

    def density(s: Array) -> tuple[Array, Array]:
        """The density at s, and its mean."""
        x = d.dconj(s + u)
        return x, total(xp.where(p > 0, p * x, xp.zeros_like(x)), keepdims=True)

    low = xp.zeros_like(u[..., :1])
    high = -xp.min(u, axis=-1, keepdims=True)  # the bracket of the corrected Algorithm 2
    high = high + tol * (1 + high)  # if phi*' jumps at slope1, the bracket must include the jump
    if d.recession < xp.inf:
        high = xp.where(high > d.recession, xp.full_like(high, d.recession), high)

    def step(s: Array, low: Array, high: Array) -> tuple[tuple[Array, ...], Array]:
        _, mean = density(s)
        low = xp.where(mean <= mass, s, low)
        high = xp.where(mean >= mass, s, high)
        slope = total(xp.where(p > 0, p * d.d2conj(s + u), xp.zeros_like(u)), keepdims=True)
        new = s + (mass - mean) / slope
        middle = low + (high - low) / 2
        inside = (new > low) & (new < high)
        new = xp.where(inside, new, middle)
        met = xp.abs(mean - mass) <= 2 * tol
        stuck = (middle <= low) | (middle >= high) | ~xp.isfinite(middle)
        return (xp.where(met | stuck, s, new), low, high), met | stuck

    s, low, high = iterate(step, (low, low, high), 4 * _MAX_STEPS)
    x, mean = density(s)
    x_low, mean_low = density(low)
    x_high, mean_high = density(high)
    # At a kink, mean_low < 1 < mean_high: mix both densities, unless the upper one is infinite.
    share = (mass - mean_low) / (mean_high - mean_low)
    mixed = x_low + share * (x_high - x_low)
    at_top = total(xp.where(g == 0, p, xp.zeros_like(p)), keepdims=True)
    atom = x_low + xp.where(g == 0, (mass - mean_low) / at_top, xp.zeros_like(g))
    jump = xp.where((mean_high >= mass) & (mean_high < xp.inf), mixed, atom)
    met = xp.abs(mean - mass) <= 2 * tol
    return xp.where(met, x, jump), (eta * xp.where(met, s, low))[..., 0]


_METHODS = {
    "entropic": _entropic,
    "cressie_read": _cressie_read,
    "absolute": _kinked,
    "hinge": _kinked,
}
