"""The robust risk of a data set.

    E_z [ sup over gamma << nu_z of  E_gamma[f] - eta E_nu_z[phi(dgamma/dnu_z)] ],   nu_z uniform on B_rho(z)

By Theorem 1 this is Eq. (dual:WDRO:phi:reg) of Section 2. Each nu_z is replaced by a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, device, is_array_api_obj
from phiball.refimpl.inner.divergences import Divergence, as_divergence, centred
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.risk.budget_risk import budget_estimate
from phiball.refimpl.risk.estimate import Estimate, standard_error, summarize
from phiball.refimpl.risk.quadrature import Quadrature, integrate
from phiball.refimpl.sampling.batches import Data, StreamLoss, blocks, is_stream
from phiball.refimpl.sampling.precision import half_gradient_to_single, half_to_single
from phiball.refimpl.sampling.proposals import Uniform
from phiball.refimpl.sampling.streaming import (
    CHUNK,
    check_reference,
    concat,
    draw_tiles,
    each_eta,
    evaluate_chunks,
    regroup_rows,
    valid_data,
)
from phiball.refimpl.sampling.weights import softmax
from phiball.refimpl.types import Distribution, Loss, PreparedProposal, Proposal
from phiball.refimpl.validation import valid_count

_UNIFORM = Uniform()


def robust_risk(
    loss: Loss,
    x: Array | Data,
    reference: Distribution,
    eta: float | Array | None = None,
    divergence: str | Divergence = "entropic",
    *,
    budget: float | Array | None = None,
    n_samples: int = 100,
    method: Proposal | Quadrature | str = _UNIFORM,
    rng: Any = None,
    chunk: int = CHUNK,
) -> Estimate:
    r"""Estimate the robust risk of a data set, at a price eta or within a budget for the divergence.

    $$\mathbb{E}_z \Big[ \inf_\mu \mu + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f - \mu)/\eta)] \Big]
    \qquad \text{or} \qquad
    \max_\gamma \mathbb{E}_z \mathbb{E}_{\gamma_z}[f] \ \text{ with } \
    \mathbb{E}_z \mathbb{E}_{\nu_z}\Big[\phi\Big(\frac{d\gamma_z}{d\nu_z}\Big)\Big] \le r$$

    Arguments:
    - `loss`: a `pointwise_loss`, or a function loss(x, i) that returns the losses (k,) of points x (k,) +
      event, which belong to the data points i (k,).
    - `x`: the data points (N,) + event, or an iterator of batches, which is read once. For batches (x, y), as
      from a DataLoader, use `pointwise_loss(model)` without labels.
    - `reference`: a `Ball`, or another distribution with a `sample` method; a `Gaussian` gives the dual of
      Sinkhorn DRO.
    - `eta`: a positive number, or an array (N,) unless x is an iterator. Pass either `eta` or `budget`.
    - `divergence`: phi or its name, such as "kl" or "chi2".
    - `budget`: r, a nonnegative bound on the mean divergence, or an array (N,) with one bound per data point.
      All N * n_samples losses are then in memory.
    - `n_samples`: the number of points sampled around each data point, at least 2.
    - `method`: `Uniform()` draws from the reference distribution; `Tilted()` draws points with larger losses
      more often, and reweights them; "quadrature" or `phiball.risk.Quadrature()` integrates in one or two
      dimensions. With antithetic or quasi-random points, `stderr` is too large.
    - `rng`: a seed, a NumPy or torch generator, an `Rng`, or None for fresh entropy.
    - `chunk`: the largest number of points per call of the loss. It does not change the draws.

    Returns an `Estimate` without a graph. The problem on the n sampled points of a data point is solved
    exactly. Its value is too low by at most G/(n+1) on average, if the inverse distribution function of f is
    G-Lipschitz (claim D12). `bias` is the value on n points minus the mean of the values on the two halves of
    the points. By duality, the risk
    within a budget is the minimum over eta > 0 of eta r + R_eta, where R_eta is the risk at the price eta.

    Reference: Eq. (dual:WDRO:phi:reg), Theorem 1 and the remark on Bayesian DRO of Section 2.

    >>> import numpy as np
    >>> from phiball import Ball, robust_risk
    >>> loss, x, ball = lambda x, i: x[:, 0], np.full((1, 1), 0.5), Ball("l2", 0.5)
    >>> risk = robust_risk(loss, x, ball, eta=1.0, n_samples=4000, rng=0)
    >>> bool(abs(risk.value + risk.bias - np.log(np.e - 1)) < 4 * risk.stderr), risk.lower_bound
    (True, False)
    >>> risk = robust_risk(loss, x, ball, budget=0.02, divergence="chi2", n_samples=4000, rng=0)
    >>> print(round(float(risk.value), 2), bool(risk.gap < 1e-12))  # 1/2 + sqrt(2 r Var f)
    0.56 True
    """
    if (eta is None) == (budget is None):
        raise TypeError(f"expected exactly one of eta and budget, got {'neither' if eta is None else 'both'}")
    phi, rng = as_divergence(divergence), as_rng(rng)
    check_reference(reference)
    n = valid_count("n_samples", n_samples, 2)
    valid_count("chunk", chunk, 1)
    if isinstance(method, (str, Quadrature)):
        if method != "quadrature" and not isinstance(method, Quadrature):
            raise ValueError(f"method is {method!r}; expected 'quadrature', Uniform() or Tilted()")
        if eta is None:
            raise ValueError("budget and method='quadrature' cannot be combined; expected eta, or Uniform()")
        panels = method.panels if isinstance(method, Quadrature) else Quadrature().panels
        x, loss = half_to_single(x, loss)
        return integrate(loss, valid_data(x), reference, eta, phi, panels, chunk)
    _check_method(method, reference, phi, stream=is_stream(x))
    c = centred(phi)  # has the same value, and a mu that is accurate for large eta
    sampled = partial(_sample_rows, loss, x, reference, n=n, method=method, rng=rng, chunk=chunk)
    if budget is not None:
        if is_stream(x):
            raise TypeError(
                "budget needs all data in memory; expected an array x, or eta for data in batches"
            )
        if not isinstance(method, Uniform):
            raise ValueError(f"method is {method!r}; expected Uniform() with a budget")
        return budget_estimate(concat([f for f, _, _ in sampled(eta=1.0)]), budget, c)
    if is_stream(x) and is_array_api_obj(eta):
        raise ValueError(
            f"eta has shape {tuple(getattr(eta, 'shape', ()))}; expected a number for data in batches"
        )
    parts: list[tuple[Array, ...]] = []
    for f, log_w, e in sampled(eta=eta):
        if method.self_normalised:
            parts.append((*_row_statistics(f, e, c, log_w), e))
        else:
            parts.append((*_row_statistics(f + e[:, None] * log_w, e, c, None), e))
    values, missing, errors, heaviest, gaps, etas = (
        concat(list(column)) for column in zip(*parts, strict=True)
    )
    rows = values, missing, errors, heaviest
    return summarize(rows, self_normalised=method.self_normalised, eta=etas, gap=gaps)


def _check_method(method: Proposal, reference: Distribution, divergence: Divergence, *, stream: bool) -> None:
    """Raise unless `method` can draw from the reference, and from batches if `stream`."""
    if isinstance(method, type) or not callable(getattr(method, "prepare", None)):
        raise TypeError(f"method is {method!r}; expected Uniform(), Tilted() or 'quadrature'")
    method.check(reference, divergence)
    if getattr(method, "kappa", None) is not None:
        raise ValueError(f"method is {method!r}, which sets its own eta; expected kappa=None")
    if stream and int(getattr(method, "retilt", 0)) > 0:
        raise ValueError(f"method is {method!r}; expected retilt=0 for data in batches")


def _sample_rows(
    loss: Loss,
    x: Array | Data,
    reference: Distribution,
    *,
    eta: float | Array | None,
    n: int,
    method: Proposal,
    rng: Rng,
    chunk: int,
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield (f, log_w, eta) for k data points at a time: losses (k, n), log weights (k, n) and eta (k,)."""
    full_loss = loss
    if is_stream(x):
        full_loss = StreamLoss(loss)
    else:
        method = half_gradient_to_single(method, x)
        x, full_loss = half_to_single(x, loss)
    pending_eta: list[Array] = []  # of the data points that are sampled but not evaluated yet

    def sampled_pieces() -> Iterator[tuple[Array, ...]]:
        for block in blocks(x, reference, n, chunk, loss=loss, evaluate=not isinstance(method, Uniform)):
            if isinstance(full_loss, StreamLoss):
                full_loss.add(block)
            e = each_eta(eta, block.x)
            prepared = method.prepare(reference, block.x, block.i, e, full_loss, rng, chunk)
            pending_eta.append(prepared.eta)
            yield from draw_tiles(block.x, block.i, n, partial(_draw, prepared, rng))

    pieces = evaluate_chunks(full_loss, sampled_pieces(), chunk)
    for f, log_w in regroup_rows(((f, log_w) for _, _, f, log_w in pieces), n):
        xp = array_namespace(f)
        etas = concat(pending_eta)
        pending_eta[:] = [etas[f.shape[0] :]]
        e = xp.astype(etas[: f.shape[0]], f.dtype, copy=False)
        yield f, xp.astype(log_w, f.dtype, copy=False), e


def _draw(prepared: PreparedProposal, rng: Rng, index: Array, m: int) -> tuple[Array, Array]:
    """Draw m points (k, m) + event for the k data points `index`, with log weights (k, m); zeros for None."""
    points, log_w = prepared.draw(index, m, rng)
    xp = array_namespace(points)
    zeros = xp.zeros(points.shape[:2], dtype=points.dtype, device=device(points))
    return points, zeros if log_w is None else log_w


def _row_statistics(
    f: Array, eta: Array, c: Divergence, log_p: Array | None
) -> tuple[Array, Array, Array, Array, Array]:
    """(value, bias, standard error, largest weight, gap) of each row of losses f (k, n), each of shape (k,).

    The reference weights are proportional to exp(log_p) (k, n), or equal if log_p is None.
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
        missing = xp.where(missing > 0, missing, xp.zeros_like(missing))  # negative only by rounding errors
    error = standard_error(fixed, detach(out.mu), eta, c, distribution(slice(n)))
    return out.value, missing, error, xp.max(detach(out.weights), axis=-1), out.gap
