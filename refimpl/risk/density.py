"""The worst-case distribution of Theorem 1 (II): density, atoms and samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, as_rng, detach, device, ignore_float_warnings
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence, as_divergence, centred
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.numerics import tolerance
from phiball.refimpl.printing import one_line
from phiball.refimpl.risk.adversarial_risk import highest
from phiball.refimpl.sampling.streaming import (
    CHUNK,
    check_reference,
    each_eta,
    evaluate_chunks,
    indices,
    regroup_rows,
    sample_tiles,
    valid_data,
)
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count


@dataclass(frozen=True)
class Density:
    """The density and the atoms of the worst-case distribution.

    - `density` (K,): the density at each of the requested points.
    - `atoms` (N,) + event: the sampled maximizer of the loss around each data point.
    - `masses` (N,): the mass of each atom; zero unless phi has a finite recession slope.

    The density integrates to one minus the sum of the masses.
    """

    density: Array
    atoms: Array
    masses: Array
    __repr__ = one_line


def worst_case_density(
    loss: Loss,
    x: Array,
    reference: Ball,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    at: Array,
    n_samples: int = 100,
    rng: Any = None,
    chunk: int = CHUNK,
) -> Density:
    r"""Evaluate the density of the worst-case distribution at given points.

    $$\frac{\mathbb{E}_z[\zeta_z(x)\, 1\{x \in B_\rho(z)\}]}{\mathrm{vol}(B_\rho)}, \qquad
    \zeta_z = (\phi^*)'\Big(\frac{f - \mu_z}{\eta}\Big)$$

    Arguments:
    - `at` (K,) + event: the points at which the density is evaluated.
    - `reference`: a `Ball` of positive radius, without clip and feature_scale.
    - `n_samples`: the number of points per ball from which mu_z is computed.
    - The other arguments are as in `robust_risk`.

    Returns a `Density`. If phi has a finite recession slope (absolute value, hinge, Cressie-Read with k < 1),
    part of the mass may be an atom at the maximizer of f; Examples 4 and 5 omit this atom (claim E4c). For
    the indicator, points whose loss is exactly the quantile share the remaining mass (claim E1).

    Reference: Theorem 1 (II), Eq. (condition:zeta:mu).

    >>> import numpy as np
    >>> from phiball import Ball, worst_case_density
    >>> x, at = np.full((1, 1), 0.5), np.array([[0.3], [0.9]])
    >>> found = worst_case_density(
    ...     lambda x, i: x[:, 0], x, Ball("l2", 0.5), 0.2, "tv", at=at, n_samples=4000, rng=0
    ... )
    >>> print(found.density, np.round(found.masses, 1), np.round(found.atoms, 2))
    [0. 1.] [0.6] [[1.]]
    """
    x = valid_data(x)
    xp = array_namespace(x)
    at = _valid_at(at, x)
    if (
        not isinstance(reference, Ball)
        or reference.radius == 0
        or not (reference.clip is reference.feature_scale is None)
    ):
        raise ValueError(
            f"reference is {reference!r}; expected a Ball of positive radius, without clip or feature_scale"
        )
    phi, rng = as_divergence(divergence), as_rng(rng)
    n = valid_count("n_samples", n_samples, 1)
    valid_count("chunk", chunk, 1)
    eta = each_eta(eta, x)
    c = centred(phi)
    total = xp.zeros(at.shape[0], dtype=x.dtype, device=device(x))
    atoms, masses = [], []
    done = 0
    pieces = evaluate_chunks(loss, sample_tiles(x, indices(x), reference, n, rng), chunk)
    for points, losses in regroup_rows(((points, f) for points, _, f in pieces), n):
        f = detach(losses)
        e = xp.astype(eta[done : done + f.shape[0]], f.dtype, copy=False)
        solved = _solve(f, e, c)
        atoms.append(highest(points, f)[0])
        masses.append(solved.mass)
        for row in range(f.shape[0]):
            zeta = _zeta_at(loss, at, x, done + row, reference, _row(solved, row), chunk, c)
            total = total + xp.astype(zeta, x.dtype, copy=False)
        done += f.shape[0]
    N = x.shape[0]
    with ignore_float_warnings():  # a density in many dimensions may overflow to inf
        density = xp.exp(xp.log(total / N) - reference.log_volume(prod(x.shape[1:])))
    return Density(density, xp.concat(atoms), xp.concat(masses) / N)


class _Solved(NamedTuple):
    """Solutions for the losses f (g, n) of g data points; eta, mu and `mass` have shape (g,).

    zeta (g, n) is the density of the worst case relative to the reference, without the atom of mass `mass`.
    """

    f: Array
    eta: Array
    mu: Array
    zeta: Array
    mass: Array


def _row(solved: _Solved, row: int) -> _Solved:
    return _Solved(*(a[row, ...] for a in solved))


def _solve(f: Array, eta: Array, c: Divergence) -> _Solved:
    """Solve the inner problem of each row, and separate the atom at the largest loss."""
    xp = array_namespace(f)
    n = f.shape[-1]
    out = worst_case(f, eta, c)
    mu, zeta, mass = out.mu, out.weights * n, xp.zeros_like(out.mu)
    if c.recession < xp.inf:
        top = xp.max(f, axis=-1, keepdims=True)
        with ignore_float_warnings():
            edge = c.dconj(c.recession + (f - top) / eta[:, None])  # the density at the smallest possible mu
        finite = xp.isfinite(edge)  # edge is infinite at the largest loss if phi*' has a pole there
        edge = xp.where(finite, edge, xp.zeros_like(edge))
        remaining = 1 - xp.mean(edge, axis=-1)
        edge = xp.where(finite, edge, xp.max(edge, axis=-1, keepdims=True))
        atom = remaining > tolerance(f)
        mass = xp.where(atom, remaining, mass)
        mu = xp.where(atom, top[:, 0] - eta * c.recession, mu)
        zeta = xp.where(atom[:, None], edge, zeta)
    return _Solved(f, eta, mu, zeta, mass)


def _zeta_at(
    loss: Loss, at: Array, x: Array, row: int, ball: Ball, solved: _Solved, chunk: int, c: Divergence
) -> Array:
    """zeta_z (K,) at the points `at` for the data point z = x[row]; zero outside its ball."""
    xp = array_namespace(at)
    inside = ball.contains(at, x[row, ...], event_ndim=x.ndim - 1)
    chosen = xp.nonzero(inside)[0]
    if chosen.shape[0] == 0:
        return xp.zeros(at.shape[0], dtype=solved.f.dtype, device=device(at))
    points = xp.take(at, chosen, axis=0)
    i = xp.full(chosen.shape[0], row, dtype=xp.int64, device=device(at))
    f = detach(xp.concat([f for _, _, f in evaluate_chunks(loss, [(points, i)], chunk)]))
    if not 0 < c.curvature1 < xp.inf:
        # If mu is the smallest sampled loss, phi*' jumps there: treat smaller losses like this loss.
        lowest = xp.min(solved.f)
        f = xp.where(f > lowest, f, lowest)
    with ignore_float_warnings():
        zeta = c.dconj((f - solved.mu) / solved.eta)
    if c.recession < xp.inf:
        largest = xp.max(solved.zeta)
        zeta = xp.where(zeta < largest, zeta, largest)
    # At a jump of phi*', zeta is ambiguous: a point tied with a sampled point takes the zeta of that point.
    order = xp.argsort(solved.f, stable=True)
    ranked, ratios = xp.take(solved.f, order), xp.take(solved.zeta, order)
    first, last = xp.searchsorted(ranked, f, side="left"), xp.searchsorted(ranked, f, side="right")
    tied = last > first
    zeta = xp.where(tied, xp.take(ratios, xp.where(tied, first, xp.zeros_like(first))), zeta)
    place = xp.cumulative_sum(xp.astype(inside, xp.int64)) - 1
    all_zeta = xp.take(zeta, xp.where(inside, place, xp.zeros_like(place)))
    return xp.where(inside, all_zeta, xp.zeros_like(all_zeta))


def _valid_at(at: Array, x: Array) -> Array:
    xp = array_namespace(x)
    check_array("at", at)
    check_same_array_type("at", at, x, other="x")
    if tuple(at.shape[1:]) != tuple(x.shape[1:]) or at.ndim != x.ndim:
        raise ValueError(
            f"at has shape {tuple(at.shape)}; expected (K,) + event, where the points of x have shape "
            f"{tuple(x.shape[1:])}"
        )
    return xp.astype(detach(at), x.dtype, copy=False)


@dataclass(frozen=True)
class WorstCaseSample:
    """Independent points of the worst-case distribution.

    - `points` (size,) + event: the points.
    - `index` (size,): the data point that each point belongs to.
    """

    points: Array
    index: Array
    __repr__ = one_line


def worst_case_sample(
    loss: Loss,
    x: Array,
    reference: Distribution,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    size: int,
    n_samples: int = 100,
    rng: Any = None,
    chunk: int = CHUNK,
) -> WorstCaseSample:
    """Draw `size` independent points from the worst-case distribution, by resampling.

    Arguments:
    - `size`: the number of points to draw.
    - `n_samples`: the number of candidates per point.
    - The other arguments are as in `robust_risk`.

    Returns a `WorstCaseSample`. Each point is drawn as follows: draw a data point uniformly, draw `n_samples`
    candidates from its reference distribution, solve the inner problem on their losses, and draw one
    candidate with the worst-case probabilities. This evaluates size * n_samples losses. For a smooth phi, the
    distribution of the points has an error of O(1/n_samples).

    Reference: Theorem 1 (II).

    >>> import numpy as np
    >>> from phiball import Ball, worst_case_sample
    >>> loss, x = lambda x, i: x[:, 0], np.full((1, 1), 0.5)
    >>> draws = worst_case_sample(loss, x, Ball("l2", 0.5), 0.125, "chi2", size=500, n_samples=500, rng=0)
    >>> bool(np.min(draws.points) > 0.45), draws.points.shape  # losses up to mu = 1/2 have no mass
    (True, (500, 1))
    """
    x = valid_data(x)
    xp = array_namespace(x)
    check_reference(reference)
    phi, rng = as_divergence(divergence), as_rng(rng)
    valid_count("size", size, 1)
    valid_count("n_samples", n_samples, 1)
    valid_count("chunk", chunk, 1)
    eta = each_eta(eta, x)
    index = rng.integers(x.shape[0], (size,), like=x)
    u = rng.uniform((size,), like=xp.astype(x[:0, ...], xp.float64))
    drawn = []
    done = 0
    pieces = evaluate_chunks(
        loss, sample_tiles(xp.take(x, index, axis=0), index, reference, n_samples, rng), chunk
    )
    for candidates, losses in regroup_rows(((points, f) for points, _, f in pieces), n_samples):
        g = losses.shape[0]
        part = slice(done, done + g)
        weights = worst_case(detach(losses), xp.take(eta, index[part]), phi).weights
        drawn.append(_pick(candidates, weights, u[part]))
        done += g
    return WorstCaseSample(xp.concat(drawn), index)


def _pick(points: Array, weights: Array, u: Array) -> Array:
    """Pick a point from each row of points (g, n) + event, with probabilities `weights` (g, n).

    u (g,) are uniform random numbers.
    """
    xp = array_namespace(points)
    g, n = weights.shape
    cumulative = xp.cumulative_sum(xp.astype(weights, xp.float64, copy=False), axis=-1)
    passed = cumulative > u[:, None] * cumulative[:, -1:]
    # If no point passes because of rounding, take the last point with a positive weight.
    number = xp.arange(n, dtype=xp.int64, device=device(points))
    last = xp.max(xp.where(weights > 0, number, xp.zeros_like(number)), axis=-1)
    first = xp.sum(xp.astype(~passed, xp.int64), axis=-1)
    chosen = xp.where(first < last, first, last)
    position = xp.arange(g, dtype=xp.int64, device=device(points)) * n + chosen
    return xp.take(xp.reshape(points, (g * n, *points.shape[2:])), position, axis=0)
