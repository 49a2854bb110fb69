"""Scrambled Sobol points, and gamma quantiles. Both need scipy, an optional dependency."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, array_namespace, device, to_numpy

_BITS = 30


def _scipy() -> Any:
    try:
        import scipy.special
        import scipy.stats
    except ImportError as error:
        raise ImportError(
            "quasi-random points need scipy, which is not installed: pip install 'phiball[verify]'"
        ) from error
    return scipy


def scrambled_sobol(shape: tuple[int, ...], generator: Any) -> Any:
    """Points in (0, 1)^d, shape (..., n, d): a scrambled Sobol set with a random shift per batch entry."""
    *batch, n, d = shape
    engine = _scipy().stats.qmc.Sobol
    if not 1 <= d <= engine.MAXDIM:
        raise ValueError(
            f"the points have {d} coordinates; expected 1 to {engine.MAXDIM}, the limit for Sobol points"
        )
    # A linear scramble of the set, and a digital shift for each batch entry: every point is uniform, and the
    # entries are independent given the scramble. The lowest bits are random.
    size = 1 << max(0, n - 1).bit_length()
    # Draw a seed: scipy would spawn from a generator, which the saved state does not record.
    seed = int(generator.integers(1 << 63))
    points = engine(d, scramble=True, bits=_BITS, rng=np.random.default_rng(seed)).random(size)[:n]
    digits = (points * (1 << _BITS)).astype(np.uint32)
    shift = generator.integers(1 << _BITS, size=(prod(batch), 1, d), dtype=np.uint32)
    low = 1 - generator.random((prod(batch), n, d))
    return (((digits ^ shift) + low) / (1 << _BITS)).reshape(shape).clip(2.0**-60, 1 - 2.0**-53)


def gamma_quantile(concentration: float, u: Array) -> Array:
    """The quantile function of the Gamma(concentration) distribution of scale one, in double precision.

    Arguments:
    - `concentration`: the shape parameter, positive.
    - `u`: probabilities in (0, 1), an array of any shape.

    Returns an array of the shape of `u`, in float64. It needs scipy.

    >>> import numpy as np
    >>> np.round(gamma_quantile(1.0, np.array([0.5])), 6)  # log 2
    array([0.693147])
    """
    xp = array_namespace(u)
    quantile = _scipy().special.gammaincinv(concentration, to_numpy(u).astype(np.float64))
    return xp.asarray(quantile, dtype=xp.float64, device=device(u))
