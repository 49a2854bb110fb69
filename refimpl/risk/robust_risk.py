"""The robust risk of a data set.

    E_z [ sup over gamma << nu_z of  E_gamma[f] - eta E_nu_z[phi(dgamma/dnu_z)] ],   nu_z uniform on B_rho(z)

This is Eq. (dual:WDRO:phi:reg) of the paper's Section 2 by Theorem 1, with each nu_z replaced by a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from phiball.backends import Array, Rng, array_namespace, detach, ignore_float_warnings, is_array_api_obj
from phiball.refimpl.distributions.norms import length
from phiball.refimpl.inner.divergences import Divergence, centred, valid_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.numerics import total
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.batches import Data, blocks, is_stream
from phiball.refimpl.sampling.precision import gradient_in_single, in_single
from phiball.refimpl.sampling.proposals import Uniform
from phiball.refimpl.sampling.streaming import (
    CHUNK,
    each_eta,
    evaluated,
    in_rows,
    joined,
    tiled,
    valid_data,
    valid_sampling,
)
from phiball.refimpl.sampling.weights import softmax
from phiball.refimpl.types import Distribution, Loss, PreparedProposal, Proposal
from phiball.refimpl.validation import valid_count

_HEAVY = 0.05  # of a worst case on one sampled point: the normal distribution of the error needs many that share it


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
    - `per_point`: what `merge` needs of each data point.

    >>> import numpy as np
    >>> from phiball import ENTROPIC, Ball, rng, robust_risk
    >>> z, how = np.zeros((6, 2)), {"samples": 50, "rng": rng(0)}
    >>> risk = robust_risk(lambda x, i: x[:, 0], z, Ball(2, 1.0), 1.0, ENTROPIC, **how)
    >>> risk.lower_bound, risk.values.shape
    (False, (6,))
    """

    value: Array
    values: Array
    bias: Array
    stderr: Array
    population_stderr: Array
    lower_bound: bool
    per_point: tuple[Array, Array, Array, bool] | None = field(default=None, repr=False, compare=False)
    __repr__ = one_line

    @staticmethod
    def merge(parts: Sequence[Estimate]) -> Estimate:
        """The estimate of all data points, from those of parts of them: as from all their losses at once.

        Arguments:
        - `parts`: estimates of `robust_risk`, in the order of the data points. Each needs a source of random
          numbers of its own, such as rng.keyed("part 1").

        >>> import numpy as np
        >>> from phiball import ENTROPIC, Ball, Estimate, robust_risk, rng
        >>> how = {"ball": Ball(2, 1.0), "eta": 1.0, "divergence": ENTROPIC, "samples": 50}
        >>> z, loss = np.zeros((6, 2)), lambda x, i: x[:, 0]
        >>> parts = [robust_risk(loss, z, rng=rng(0).keyed(name), **how) for name in ("part 1", "part 2")]
        >>> whole = Estimate.merge(parts)
        >>> whole.values.shape, bool(whole.stderr < parts[0].stderr)
        ((12,), True)
        """
        made = [part for part in parts if isinstance(part, Estimate)]
        rows = [(part.values, *part.per_point) for part in made if part.per_point is not None]
        if not rows or len(rows) < len(parts):
            raise ValueError(f"parts is {parts!r}; expected estimates that robust_risk has returned")
        *columns, self_normalised = zip(*rows, strict=True)
        values, missing, errors, heaviest = (joined(list(column)) for column in columns)
        return _estimate(values, missing, errors, heaviest, any(self_normalised))


def robust_risk(
    loss: Loss,
    x: Array | Data,
    reference: Distribution,
    eta: float | Array,
    divergence: Divergence,
    *,
    n_samples: int,
    rng: Rng,
    labels: bool = False,
    chunk: int = CHUNK,
    proposal: Proposal | None = None,
) -> Estimate:
    r"""Estimate the robust risk of a data set, from a sample of the ball around each data point.

    $$\mathbb{E}_z \Big[ \inf_\mu \mu + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f - \mu)/\eta)] \Big]$$

    Arguments:
    - `loss`: a function loss(x, i) of points x (k,) + event that come from the data points i (k,), which
      returns losses (k,).
    - `x` (N,) + event: the data points, or an iterator of batches of them, which is read once.
    - `reference`: a `Ball`, or another distribution with a `sample`; a `Gaussian` gives the dual of Sinkhorn DRO.
    - `eta`: a positive number, or an array (N,), but not for batches.
    - `divergence`: phi, for example `ENTROPIC`.
    - `n_samples`: the number of points drawn around each z, at least 2. Each is evaluated once.
    - `rng`: from `phiball.backends.rng`.
    - `labels`: True if the batches are pairs (z, y), as those of a DataLoader: then the loss is loss(x, y),
      with the label of each x.
    - `chunk`: the largest number of points per call of the loss. What is drawn does not depend on it.
    - `proposal`: None draws from the ball itself, `Tilted()` towards larger losses, with weights. With
      antithetic or quasi-random points `stderr` comes out too large.

    Returns an `Estimate` without a graph. The inner problem on the sample is solved exactly; its value on n
    points is low by at most G/(n+1) if f has a G-Lipschitz inverse distribution function (claim D12). `bias`
    is the value on n points minus the mean value on their two halves.

    Reference: Eq. (dual:WDRO:phi:reg) and Theorem 1 of Section 2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, Ball, robust_risk
    >>> z = np.full((1, 1), 0.5)
    >>> risk = robust_risk(lambda x, i: x[:, 0], z, Ball(2, 0.5), 1.0, ENTROPIC, n_samples=4000, rng=rng(0))
    >>> bool(abs(risk.value + risk.bias - np.log(np.e - 1)) < 4 * risk.stderr), risk.lower_bound
    (True, False)
    """
    stream = is_stream(x)
    how = Uniform() if proposal is None else proposal
    if not stream:
        how = gradient_in_single(how, x)
        x, loss = in_single(x, loss)
        valid_data(x)
    valid_sampling(reference, rng)
    valid_divergence(divergence)
    n = valid_count("n_samples", n_samples, 2)
    valid_count("chunk", chunk, 1)
    if isinstance(how, type) or not callable(getattr(how, "prepare", None)):
        raise TypeError(f"proposal is {proposal!r}; expected Uniform(), Tilted() or None")
    how.check(reference, divergence)
    if getattr(how, "kappa", None) is not None:
        raise ValueError(
            f"proposal is {how!r}, which sets eta by itself; expected kappa=None for a risk at eta"
        )
    if stream and is_array_api_obj(eta):
        raise ValueError(
            f"eta has shape {tuple(getattr(eta, 'shape', ()))}; expected a number for data in batches"
        )
    if stream and int(getattr(how, "retilt", 0)) > 0:
        raise ValueError(f"proposal is {how!r}; expected retilt=0 for data in batches")
    c = centred(divergence)  # the same value, and a mu that keeps its digits when eta is large
    parts: list[tuple[Array, ...]] = []
    etas: list[Array] = []  # of the data points that are drawn, and not yet solved

    def drawn() -> Iterator[tuple[Array, ...]]:
        for block in blocks(x, reference, n, chunk, labels=labels, evaluate=not isinstance(how, Uniform)):
            prepared = how.prepare(reference, block.z, block.i, each_eta(eta, block.z), loss, rng, chunk)
            etas.append(prepared.eta)
            yield from tiled(block.z, block.i, n, partial(_draw, prepared, rng))

    pieces = evaluated(loss, drawn(), chunk)
    for f, log_w in in_rows(((f, log_w) for _, _, f, log_w in pieces), n):
        xp = array_namespace(f)
        waiting = joined(etas)
        e = xp.astype(waiting[: f.shape[0]], f.dtype, copy=False)
        etas[:] = [waiting[f.shape[0] :]]
        log_w = xp.astype(log_w, f.dtype, copy=False)
        if how.self_normalised:
            parts.append(_row_statistics(f, e, c, log_w))
        else:
            parts.append(_row_statistics(f + e[:, None] * log_w, e, c, None))
    values, missing, errors, heaviest = (joined(list(column)) for column in zip(*parts, strict=True))
    return _estimate(values, missing, errors, heaviest, how.self_normalised)


def _draw(prepared: PreparedProposal, rng: Rng, index: Array, m: int) -> tuple[Array, Array]:
    x, log_w = prepared.draw(index, m, rng)
    xp = array_namespace(x)
    return x, xp.zeros(x.shape[:2], dtype=x.dtype, device=x.device) if log_w is None else log_w


def _estimate(
    values: Array, missing: Array, errors: Array, heaviest: Array, self_normalised: bool
) -> Estimate:
    """The estimate from what is known of each data point."""
    xp = array_namespace(values)
    N = values.shape[0]
    fixed = detach(values)
    over_z = _standard_error(fixed) if N > 1 else xp.full_like(fixed[0], xp.inf)
    return Estimate(
        value=xp.mean(values),
        values=values,
        bias=xp.mean(missing),
        stderr=length(errors, 2) / N,
        population_stderr=over_z,
        lower_bound=self_normalised or bool(xp.mean(heaviest) > _HEAVY),
        per_point=(missing, errors, heaviest, self_normalised),
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

    def distribution(part: slice) -> Array | None:
        return None if log_p is None else softmax(log_p[:, part])

    out = worst_case(f, eta, c, p=distribution(slice(n)))
    fixed = detach(f)
    first, second = (
        worst_case(fixed[:, k], eta, c, p=distribution(k)).value for k in (slice(h), slice(h, n))
    )
    missing = detach(out.value) - (h / n * first + (n - h) / n * second)
    if log_p is None:
        missing = xp.where(missing > 0, missing, xp.zeros_like(missing))  # negative by rounding alone
    error = standard_error(fixed, detach(out.mu), eta, c, distribution(slice(n)))
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
