"""Scrambled Sobol points, gamma quantiles and binomial bounds. They need scipy, an optional dependency."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, array_namespace, device, to_numpy

_BITS = 30  # binary digits of a Sobol coordinate


def _scipy() -> Any:
    try:
        import scipy.special
        import scipy.stats
    except ImportError as error:
        raise ImportError("scipy is not installed: pip install 'phiball[verify]'") from error
    return scipy


def scrambled_sobol(shape: tuple[int, ...], generator: Any) -> Any:
    """Scrambled Sobol points in (0, 1)^d; `shape` is (..., n, d): one set of n points per batch entry."""
    *batch, n, d = shape
    engine = _scipy().stats.qmc.Sobol
    if not 1 <= d <= engine.MAXDIM:
        raise ValueError(
            f"the points have {d} coordinates; expected 1 to {engine.MAXDIM}, the limit for Sobol points"
        )
    # scipy scrambles the Sobol points once, for all sets. Each set has its own digital shift, which makes
    # every point uniform. The digits beyond _BITS are independent random numbers.
    size = 1 << max(0, n - 1).bit_length()
    # Pass scipy a new generator: it would spawn from `generator`, and saved states do not record spawns.
    seed = int(generator.integers(1 << 63))
    points = engine(d, scramble=True, bits=_BITS, rng=np.random.default_rng(seed)).random(size)[:n]
    digits = (points * (1 << _BITS)).astype(np.uint32)
    shift = generator.integers(1 << _BITS, size=(prod(batch), 1, d), dtype=np.uint32)
    low = 1 - generator.random((prod(batch), n, d))
    return (((digits ^ shift) + low) / (1 << _BITS)).reshape(shape).clip(2.0**-60, 1 - 2.0**-53)


def gamma_quantile(concentration: float, u: Array) -> Array:
    """The quantile function of the gamma distribution with scale one. It needs scipy.

    Arguments:
    - `concentration`: the shape parameter, positive.
    - `u`: probabilities in (0, 1), an array of any shape.

    Returns a float64 array of the shape of `u`.

    >>> import numpy as np
    >>> np.round(gamma_quantile(1.0, np.array([0.5])), 6)  # log 2
    array([0.693147])
    """
    xp = array_namespace(u)
    quantile = _scipy().special.gammaincinv(concentration, to_numpy(u).astype(np.float64))
    return xp.asarray(quantile, dtype=xp.float64, device=device(u))


def binomial_lower_bound(successes: int, n: int, failure_probability: float) -> float:
    """The Clopper-Pearson lower bound on a probability, given the successes in n trials. It needs scipy.

    The bound exceeds the true probability with at most the given failure probability.

    >>> round(binomial_lower_bound(100, 100, 0.001), 6)  # 0.001^(1/100)
    0.933254
    """
    if successes == 0:
        return 0.0
    bound = _scipy().special.betaincinv(successes, n - successes + 1, failure_probability)
    return max(0.0, float(bound) - 1e-12)  # covers the error of betaincinv
