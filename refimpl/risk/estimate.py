"""The result of `robust_risk`, and its standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phiball.backends import Array, array_namespace, detach, ignore_float_warnings
from phiball.refimpl.distributions.norms import length
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.numerics import total
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import concat

_HEAVY = 0.05  # if the largest weight of a data point exceeds this on average, stderr is unreliable


@dataclass(frozen=True)
class Estimate:
    """An estimate of the robust risk, with its error.

    - `value` (): the mean of `values`. A sampled value is too low on average, for every phi, eta and number
      of samples; its expectation increases to the risk with the number of samples.
    - `values` (N,): the value of the inner problem at each data point.
    - `bias` (): the estimated bias; `value + bias` is the corrected estimate. 0 with quadrature.
    - `stderr` (): the standard error of `value` over the draws, for fixed data points. With quadrature, the
      mean difference of `values` from a coarser rule, which can miss a peak between the nodes.
    - `population_stderr` (): the standard error over draws and data, if the data points are an independent
      sample; infinite for a single data point.
    - `lower_bound`: True if `value` is too low by an unknown amount, and `bias` and `stderr` are unreliable.
      The reason is that single points carry, on average over the data points, more than a twentieth of the
      worst-case distribution: eta is small, phi moves mass to the maximum, or the samples are few. Always
      True with self-normalized weights, where `value` may also be too high.
    - `per_point`: the statistics that `merge` needs; None for estimates that cannot be merged.
    - `eta` (N,): the price of the divergence at each data point; with a budget, the multiplier.
    - `gap` (N,): the duality gap of each inner problem, which bounds the error of its entry of `values` as
      the value on the sampled points.

    >>> import numpy as np
    >>> from phiball import Ball, robust_risk
    >>> risk = robust_risk(lambda x, i: x[:, 0], np.zeros((6, 2)), Ball("l2", 1.0), 1.0, n_samples=50, rng=0)
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
    eta: Array = None
    gap: Array = None
    __repr__ = one_line

    @staticmethod
    def merge(parts: Sequence[Estimate]) -> Estimate:
        """Merge estimates of parts of the data into the estimate of all data points.

        Arguments:
        - `parts`: results of `robust_risk`, in the order of the data points. Compute each with its own `rng`,
          such as rng.keyed("part 1").

        >>> import numpy as np
        >>> from phiball import Ball, Estimate, rng, robust_risk
        >>> x, loss, ball = np.zeros((6, 2)), lambda x, i: x[:, 0], Ball("l2", 1.0)
        >>> parts = [robust_risk(loss, x, ball, 1.0, rng=rng(0).keyed(name)) for name in ("part 1", "part 2")]
        >>> whole = Estimate.merge(parts)
        >>> whole.values.shape, bool(whole.stderr < parts[0].stderr)
        ((12,), True)
        """
        estimates = [part for part in parts if isinstance(part, Estimate)]
        rows = [(part.values, *part.per_point) for part in estimates if part.per_point is not None]
        if not rows or len(rows) < len(parts):
            raise ValueError(
                f"parts is {parts!r}; expected sampled results of robust_risk, with eta or one budget per "
                "data point"
            )
        *columns, self_normalised = zip(*rows, strict=True)
        values, missing, errors, heaviest = (concat(list(column)) for column in columns)
        etas = [part.eta for part in estimates if part.eta is not None]
        gaps = [part.gap for part in estimates if part.gap is not None]
        complete = len(etas) == len(gaps) == len(estimates)
        return summarize(
            (values, missing, errors, heaviest),
            self_normalised=any(self_normalised),
            eta=concat(etas) if complete else None,
            gap=concat(gaps) if complete else None,
        )


def summarize(
    rows: tuple[Array, Array, Array, Array],
    *,
    self_normalised: bool,
    eta: Array | None,
    gap: Array | None,
) -> Estimate:
    """The estimate from `rows`: value, bias, standard error and largest weight of each data point (N,)."""
    values, missing, errors, heaviest = rows
    xp = array_namespace(values)
    return Estimate(
        value=xp.mean(values),
        values=values,
        bias=xp.mean(missing),
        stderr=length(errors, 2) / values.shape[0],
        population_stderr=population_error(values),
        lower_bound=self_normalised or bool(xp.mean(heaviest) > _HEAVY),
        per_point=(missing, errors, heaviest, self_normalised),
        eta=eta,
        gap=gap,
    )


def population_error(values: Array) -> Array:
    """The standard error of the mean of `values` (N,), infinite for N = 1."""
    xp = array_namespace(values)
    fixed = detach(values)
    return _standard_error(fixed) if values.shape[0] > 1 else xp.full_like(fixed[0], xp.inf)


def standard_error(f: Array, mu: Array, eta: Array, c: Divergence, p: Array | None = None) -> Array:
    """The standard error of sum_i p_i eta phi*((f_i - mu)/eta) along the last axis of f, for a centred phi.

    The points are independent, and their weights p sum to one; None means 1/n.
    """
    xp = array_namespace(f)
    n = f.shape[-1]
    if c.family == "indicator":
        eta = xp.ones_like(eta)  # the value does not depend on eta, but a tiny eta would overflow
    with ignore_float_warnings():
        v = eta[..., None] * c.conj((f - mu[..., None]) / eta[..., None])
        if p is None:
            return _standard_error(v)
        deviations = p * (v - xp.sum(p * v, axis=-1, keepdims=True))
        return length(deviations, 2) * (n / (n - 1)) ** 0.5


def _standard_error(v: Array) -> Array:
    """The standard error of the mean of v (..., n), without overflow."""
    n = v.shape[-1]
    deviations = v / 2 - total(v / n, keepdims=True) / 2
    return length(deviations, 2) * (2 / (n * (n - 1)) ** 0.5)
