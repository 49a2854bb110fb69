"""The robust risk of a data set, and the unregularised adversarial risk beside it.

    E_z [ sup over gamma << nu_z of  E_gamma[f] - eta E_nu_z[phi(dgamma/dnu_z)] ],   nu_z uniform on B_rho(z)

This is Eq. (dual:WDRO:phi:reg) of the paper's Section 2 by Theorem 1, with each nu_z replaced by a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phiball.backends import Array, Rng, array_namespace, detach, device, ignore_float_warnings
from phiball.refimpl.inner.divergences import Divergence, centred, valid_divergence
from phiball.refimpl.inner.half import single
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.laws.norms import length
from phiball.refimpl.numerics import total
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.estimators import normalised
from phiball.refimpl.sampling.half_points import in_single, rounded
from phiball.refimpl.sampling.proposals import Uniform, input_gradients
from phiball.refimpl.sampling.streaming import (
    CHUNK,
    each_eta,
    evaluated,
    in_rows,
    indices,
    tiled,
    tiles,
    valid_data,
    valid_sampling,
)
from phiball.refimpl.types import Gradient, Law, Loss, Proposal
from phiball.refimpl.validation import check_same_array_type, valid_array, valid_count

_HEAVY = 0.05  # of a worst case on one sampled point: the normal law of the error needs many that share it


@dataclass(frozen=True)
class Estimate:
    """An estimate of the robust risk from a sample of each ball, and what is known of its error.

    - `value` (): the mean of `values`. It is low on average, whatever phi, eta and the sample size are: its
      expectation increases to the risk with the sample size.
    - `values` (N,): the value of the inner problem at each data point.
    - `bias` (): an estimate of how far `value` is low on average. `value + bias` is the corrected estimate.
    - `stderr` (): the standard error of `value` over the draws, for these data points.
    - `population_stderr` (): the standard error over draws and data, where the data points are themselves a
      sample of independent points; infinite for a single one.
    - `lower_bound`: True if `bias` and `stderr` are not to be trusted, because single sampled points carry
      more than a twentieth of their worst cases. This happens for a small eta, for a phi that moves mass to
      the maximum, and for few samples. `value` is then low by an unknown amount. With self-normalised
      weights it is always True, and `value` may be too high as well.
    """

    value: Array
    values: Array
    bias: Array
    stderr: Array
    population_stderr: Array
    lower_bound: bool
    __repr__ = one_line


def robust_risk(
    loss: Loss,
    z: Array,
    ball: Law,
    eta: float | Array,
    divergence: Divergence,
    *,
    samples: int,
    rng: Rng,
    chunk: int = CHUNK,
    proposal: Proposal | None = None,
    input_gradient: Gradient | None = None,
) -> Estimate:
    r"""Estimate the robust risk of a data set, from a sample of the ball around each data point.

    $$\mathbb{E}_z \Big[ \inf_\mu \mu + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f - \mu)/\eta)] \Big]$$

    Arguments:
    - `loss`: a function loss(x, i) of points x (k,) + event that come from the data points i (k,), which
      returns losses (k,).
    - `z` (N,) + event: the data points.
    - `ball`: a `Ball`, or another law with its `sample`; a `Gaussian` gives the dual of Sinkhorn DRO.
    - `eta`: a positive number, or an array (N,).
    - `divergence`: phi, for example `ENTROPIC`.
    - `samples`: the number of points drawn around each z, at least 2. Each is evaluated once.
    - `rng`: from `phiball.backends.rng`.
    - `chunk`: the largest number of points per call of the loss. What is drawn does not depend on it.
    - `proposal`: None draws from the ball itself. `Tilted()` draws towards larger losses and corrects with
      weights: for `ENTROPIC` it cuts bias and noise where the loss is close to linear in the ball, most of
      all in high dimension and for a small eta. With `Uniform(antithetic=True)` and `Uniform(qmc=True)`,
      `stderr` comes out too large, as it takes the points to be independent.
    - `input_gradient`: for `Tilted()`, a function gradient(x, i) of the gradients of the losses in x; None
      derives it from torch losses.

    Returns an estimate with `value`, `bias`, `stderr` and more, which carries no graph: to train a model, see
    `RegularizedLoss`.

    The inner problem on the sample is solved exactly, by `worst_case`. For a smooth phi* its value has the
    influence function eta phi*((f - mu)/eta) at the optimal mu, whose spread gives `stderr`. The value on n
    points is low by at most G/(n+1) if f has a G-Lipschitz inverse distribution function (claim D12), and
    by O(1/n) for a smooth phi. `bias` is the value on n points minus the mean value on their two halves.

    Reference: Eq. (dual:WDRO:phi:reg) and Theorem 1 of Section 2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, Ball, robust_risk
    >>> z = np.full((1, 1), 0.5)
    >>> risk = robust_risk(lambda x, i: x[:, 0], z, Ball(2, 0.5), 1.0, ENTROPIC, samples=4000, rng=rng(0))
    >>> exact = np.log(np.e - 1)
    >>> bool(abs(risk.value + risk.bias - exact) < 4 * risk.stderr), risk.lower_bound
    (True, False)
    """
    z, loss, input_gradient = in_single(z, loss, input_gradient)
    z = valid_data(z)
    xp = array_namespace(z)
    valid_sampling(ball, rng)
    valid_divergence(divergence)
    n = valid_count("samples", samples, 2)
    valid_count("chunk", chunk, 1)
    how = Uniform() if proposal is None else proposal
    if isinstance(how, type) or not callable(getattr(how, "prepare", None)):
        raise TypeError(f"proposal is {proposal!r}; expected Uniform(), Tilted() or None")
    how.valid_for(ball, divergence)
    if getattr(how, "kappa", None) is not None:
        raise ValueError(
            f"proposal is {how!r}, which sets eta by itself; expected kappa=None for a risk at eta"
        )
    prepared = how.prepare(ball, z, each_eta(eta, z), input_gradients(loss, input_gradient), rng, chunk)
    every_eta: Array = prepared.eta
    c = centred(divergence)  # the same value, and a mu that keeps its digits when eta is large
    parts: list[tuple[Array, ...]] = []
    done = 0

    def draw(index: Array, m: int) -> tuple[Array, Array]:
        x, log_w = prepared.draw(index, m, rng)
        return x, xp.zeros(x.shape[:2], dtype=x.dtype, device=x.device) if log_w is None else log_w

    points = tiled(z, indices(z), n, draw)
    pieces = evaluated(loss, points, chunk)
    for f, log_w in in_rows(((f, log_w) for _, _, f, log_w in pieces), n):
        e = xp.astype(every_eta[done : done + f.shape[0]], f.dtype, copy=False)
        done += f.shape[0]
        log_w = xp.astype(log_w, f.dtype, copy=False)
        if how.self_normalised:
            parts.append(_row_statistics(f, e, c, log_w))
        else:
            parts.append(_row_statistics(f + e[:, None] * log_w, e, c, None))
    values, missing, errors, heaviest = (xp.concat(list(column)) for column in zip(*parts, strict=True))
    N = z.shape[0]
    fixed = detach(values)
    over_z = _standard_error(fixed) if N > 1 else xp.full_like(fixed[0], xp.inf)
    return Estimate(
        value=xp.mean(values),
        values=values,
        bias=xp.mean(missing),
        stderr=length(errors, 2) / N,
        population_stderr=over_z,
        lower_bound=how.self_normalised or bool(xp.mean(heaviest) > _HEAVY),
    )


def _row_statistics(
    f: Array, eta: Array, c: Divergence, log_p: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Of each row: the value, how much it is low, its standard error, and the largest weight.

    The points of a row have reference weights proportional to exp(log_p); None makes them equal.
    """
    xp = array_namespace(f)
    n = f.shape[-1]
    h = n // 2

    def law(part: slice) -> Array | None:
        return None if log_p is None else normalised(log_p[:, part])

    out = worst_case(f, eta, c, p=law(slice(n)))
    fixed = detach(f)
    first, second = (worst_case(fixed[:, k], eta, c, p=law(k)).value for k in (slice(h), slice(h, n)))
    missing = detach(out.value) - (h * first + (n - h) * second) / n
    if log_p is None:
        missing = xp.where(missing > 0, missing, xp.zeros_like(missing))  # negative by rounding alone
    error = standard_error(fixed, detach(out.mu), eta, c, law(slice(n)))
    return out.value, missing, error, xp.max(detach(out.weights), axis=-1)


def standard_error(f: Array, mu: Array, eta: Array, c: Divergence, p: Array | None = None) -> Array:
    """That of sum_i p_i eta phi*((f_i - mu)/eta) along the last axis, for a centred phi.

    p holds the weights of independent points, with sum one; None means 1/n.
    """
    xp = array_namespace(f)
    n = f.shape[-1]
    if c.family == "indicator":
        eta = xp.ones_like(eta)  # nothing depends on it, and nothing overflows if it is tiny
    with ignore_float_warnings():
        v = eta[..., None] * c.conj((f - mu[..., None]) / eta[..., None])
        if p is None:
            return _standard_error(v)
        off = p * (v - xp.sum(p * v, axis=-1, keepdims=True))
        return length(off, 2) * (n / (n - 1)) ** 0.5


def _standard_error(v: Array) -> Array:
    """That of the mean of v (..., n), without overflow."""
    n = v.shape[-1]
    off = v / 2 - total(v / n, keepdims=True) / 2
    return length(off, 2) * (2 / (n * (n - 1)) ** 0.5)


@dataclass(frozen=True)
class AdversarialRisk:
    """The largest losses found around each data point: a lower bound on the adversarial risk.

    - `value` (): the mean of `values`.
    - `values` (N,): the larger of `sampled` and `attacked`.
    - `points` (N,) + event: where that loss is attained.
    - `sampled` (N,): the largest loss among the sampled points.
    - `attacked` (N,): the loss at the attack's point; minus infinity without an attack.
    """

    value: Array
    values: Array
    points: Array
    sampled: Array
    attacked: Array
    __repr__ = one_line


def adversarial_risk(
    loss: Loss,
    z: Array,
    ball: Ball,
    *,
    samples: int,
    rng: Rng,
    attack: Callable[[Array], Array] | None = None,
    chunk: int = CHUNK,
) -> AdversarialRisk:
    r"""Bound the unregularised risk $\mathbb{E}_z [\sup_{x \in B_\rho(z)} f(x)]$ from below, by search.

    Arguments:
    - `samples`: the number of random points tried in each ball, at least 1.
    - `attack`: a function attack(z) that returns points of the shape of z inside the balls, which are tried
      too; None for none.
    - The others are those of `robust_risk`. The points of one data point are held in memory at a time.

    Returns the larger loss for each data point, the points where it is attained, and their mean. It is a
    lower bound: neither sampling nor a local search proves that there is no larger loss. Nothing carries a
    graph.

    Reference: Eq. (formula:adv) of Section 1.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Ball, adversarial_risk
    >>> z, ball = np.zeros((2, 3)), Ball(float("inf"), 0.5)
    >>> risk = adversarial_risk(
    ...     lambda x, i: x[:, 0], z, ball, samples=10, rng=rng(0), attack=lambda z: z + 0.5
    ... )
    >>> float(risk.value), bool(np.all(risk.sampled < 0.5))
    (0.5, True)
    """
    data = z
    z, loss = in_single(z, loss)
    z = valid_data(z)
    xp = array_namespace(z)
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    valid_sampling(ball, rng)
    n = valid_count("samples", samples, 1)
    valid_count("chunk", chunk, 1)
    i = indices(z)
    tops: list[tuple[Array, Array]] = []
    pieces = evaluated(loss, tiles(z, i, ball, n, rng), chunk)
    for x, f in in_rows(((x, f) for x, _, f in pieces), n):
        tops.append(highest(x, f))
    points, sampled = (xp.concat(list(column)) for column in zip(*tops, strict=True))
    attacked = xp.full_like(detach(sampled), -xp.inf)
    values = sampled
    if attack is not None:
        candidates = _attacked(attack, z, ball, like=data)
        attacked = xp.concat([f for _, _, f in evaluated(loss, [(candidates, i)], chunk)])
        better = attacked > sampled
        values = xp.where(better, attacked, sampled)
        points = xp.where(xp.reshape(better, (-1,) + (1,) * (z.ndim - 1)), candidates, points)
    if not xp.all(xp.isfinite(values)) or xp.any(xp.isnan(attacked)):
        raise ValueError("loss(x, i) contains NaN or infinity; expected finite numbers")
    return AdversarialRisk(xp.mean(values), values, rounded(points, data), sampled, attacked)


def highest(x: Array, f: Array) -> tuple[Array, Array]:
    """The first point with the largest loss in each row, and that loss: x (g, n) + event, f (g, n)."""
    xp = array_namespace(f)
    g, n = f.shape
    top = xp.argmax(detach(f), axis=-1, keepdims=True)
    place = xp.arange(g, dtype=top.dtype, device=device(f)) * n + top[:, 0]
    points = xp.take(xp.reshape(x, (g * n, *x.shape[2:])), place, axis=0)
    return points, xp.take_along_axis(f, top, axis=-1)[:, 0]


def _attacked(attack: Callable[[Array], Array], z: Array, ball: Ball, *, like: Array) -> Array:
    """The points of the attack on z, which it gets in the precision of `like`."""
    xp = array_namespace(z)
    if not callable(attack):
        raise TypeError(f"attack is {attack!r}; expected a function attack(z), or None")
    z = rounded(z, like)
    x = attack(z)
    valid_array("attack(z)", single(x))
    check_same_array_type("attack(z)", x, z, other="z")
    if tuple(x.shape) != tuple(z.shape):
        raise ValueError(f"attack(z) has shape {tuple(x.shape)}; expected that of z, {tuple(z.shape)}")
    x = xp.astype(detach(x), z.dtype, copy=False)
    if not xp.all(xp.isfinite(x)):
        raise ValueError("attack(z) contains NaN or infinity; expected finite numbers")
    if not xp.all(ball.contains(x, z, event_ndim=z.ndim - 1)):
        worst = float(xp.max(ball.length(single(x) - single(z), event_ndim=z.ndim - 1)))
        raise ValueError(f"attack(z) moves a point by {worst!r}; expected at most the radius {ball.radius!r}")
    if ball.clip is not None and not xp.all((x >= ball.clip[0]) & (x <= ball.clip[1])):
        raise ValueError(
            f"attack(z) leaves the box clip = {ball.clip} of the ball; expected points inside it"
        )
    return single(x)
