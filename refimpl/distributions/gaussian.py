"""Gaussian reference distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phiball.backends import Array, array_namespace, as_rng, ignore_float_warnings
from phiball.refimpl.distributions.norms import check_overflow, flat, split
from phiball.refimpl.distributions.tilting import log_ratio, valid_tilt
from phiball.refimpl.validation import all_finite, valid_count, valid_number


@dataclass(frozen=True)
class Gaussian:
    """The normal distribution around each data point.

    Arguments:
    - `std`: the standard deviation of every coordinate, a nonnegative number.

    A `Gaussian` can replace a `Ball` in risks and estimators. With the entropic divergence, the risk is then
    the dual of Sinkhorn distributionally robust optimization, as the paper remarks in Section 3.

    >>> import numpy as np
    >>> from phiball import Gaussian
    >>> Gaussian(0.1).sample(np.zeros((3, 4)), 8, rng=0).shape
    (3, 8, 4)
    """

    std: float

    def __post_init__(self) -> None:
        """Validate the standard deviation."""
        object.__setattr__(self, "std", valid_number("std", self.std, least=0.0))

    def sample(self, x: Array, n_samples: int, *, rng: Any = None, event_ndim: int = 1) -> Array:
        """Draw `n_samples` normal points around each x.

        x has shape batch + event, where event is the last `event_ndim` axes; returns points of shape
        batch + (n_samples,) + event.
        """
        batch, event = split(x, event_ndim, "x")
        shape = (*batch, valid_count("n_samples", n_samples), *event)
        xp = array_namespace(x)
        self._check_centres(x)
        points = as_rng(rng).normal(shape, like=x)
        points *= self.std
        points += xp.expand_dims(x, axis=len(batch))
        return points

    def sample_tilted(
        self, x: Array, s: Array, n_samples: int, *, rng: Any = None, event_ndim: int = 1
    ) -> tuple[Array, Array]:
        """Draw `n_samples` points x + b around each x, b normal with its density tilted by exp(s.b).

        s.b is the inner product. x + b is normal with mean x + std^2 s. Arguments and return values are as in
        `Ball.sample_tilted`. Raises ValueError if std^2 |s|^2 overflows.
        """
        batch, event = split(x, event_ndim, "x")
        n = valid_count("n_samples", n_samples)
        rng = as_rng(rng)
        self._check_centres(x)
        s, top = valid_tilt(s, x)
        s = flat(s, event_ndim, "s")
        xp = array_namespace(x)
        with ignore_float_warnings():
            b = rng.normal((*batch, n, s.shape[-1]), like=x)
            b *= self.std
            b += self.std * (self.std * s[..., None, :])
            log_w = log_ratio(self.log_mgf(xp.astype(s, xp.float64, copy=False)), s, b)
        if not all_finite(log_w):
            raise ValueError(f"s has entries up to {top:g}; std^2 |s|^2 overflows {s.dtype}")
        return xp.expand_dims(x, axis=len(batch)) + xp.reshape(b, (*batch, n, *event)), log_w

    def log_mgf(self, s: Array, *, event_ndim: int = 1) -> Array:
        """log E exp(s.b) = std^2 |s|^2/2 for each s, where b is normal with mean 0.

        Returns shape batch for s of shape batch + event.

        >>> import numpy as np
        >>> from phiball import Gaussian
        >>> float(Gaussian(0.5).log_mgf(np.asarray([3.0, 4.0])))
        3.125
        """
        v = flat(s, event_ndim, "s")
        xp = array_namespace(s)
        check_overflow("std", self.std, self.std, v[..., :0])
        with ignore_float_warnings():  # overflow gives inf
            v = self.std * v
            return xp.sum(v * v, axis=-1) / 2

    def _check_centres(self, x: Array) -> None:
        if not all_finite(x):
            raise ValueError("x contains NaN or infinity; expected finite numbers")
        check_overflow("std", self.std, 40 * self.std, x)  # no drawn number exceeds 40 std
