"""The normal distribution of the perturbation, in place of a ball."""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, Rng, array_namespace, ignore_float_warnings
from phiball.refimpl.distributions.norms import check_overflow, flat, split
from phiball.refimpl.distributions.tilting import log_ratio, valid_tilt
from phiball.refimpl.validation import all_finite, valid_count, valid_number, valid_rng


@dataclass(frozen=True)
class Gaussian:
    """The normal distribution around each data point.

    Arguments:
    - `std`: the standard deviation in every coordinate, a number that is not negative.

    It takes the place of a `Ball` in risks and estimators. With the entropic divergence that gives the dual
    of Sinkhorn distributionally robust optimisation, as the paper remarks in Section 3.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Gaussian
    >>> Gaussian(0.1).sample(np.zeros((3, 4)), 8, rng(0)).shape
    (3, 8, 4)
    """

    std: float

    def __post_init__(self) -> None:
        """Validate the scale."""
        object.__setattr__(self, "std", valid_number("std", self.std, least=0.0))

    def sample(self, z: Array, n: int, rng: Rng, *, event_ndim: int = 1) -> Array:
        """Draw `n` points of the normal distribution around each z, batch + event: shape batch + (n,) + event."""
        batch, event = split(z, event_ndim, "z")
        shape = (*batch, valid_count("n", n), *event)
        xp = array_namespace(z)
        self._check_centres(z)
        x = valid_rng(rng).normal(shape, like=z)
        x *= self.std
        x += xp.expand_dims(z, axis=len(batch))
        return x

    def sample_tilted(
        self, z: Array, s: Array, n: int, rng: Rng, *, event_ndim: int = 1
    ) -> tuple[Array, Array]:
        """Draw `n` points around each z from the normal density times exp(s.b), b being the perturbation.

        That is the normal distribution around z + scale^2 s. Arguments and results are those of `Ball.sample_tilted`.
        Raises ValueError if scale^2 |s|^2 overflows: no point maximises s.b under the normal distribution.
        """
        batch, event = split(z, event_ndim, "z")
        n = valid_count("n", n)
        valid_rng(rng)
        self._check_centres(z)
        s, top = valid_tilt(s, z)
        s = flat(s, event_ndim, "s")
        xp = array_namespace(z)
        with ignore_float_warnings():
            b = rng.normal((*batch, n, s.shape[-1]), like=z)
            b *= self.std
            b += self.std * (self.std * s[..., None, :])
            log_w = log_ratio(self.log_mgf(xp.astype(s, xp.float64, copy=False)), s, b)
        if not all_finite(log_w):
            raise ValueError(
                f"s has entries up to {top:g}; expected a tilt whose scale^2 |s|^2 is within the range of "
                f"{s.dtype}"
            )
        return xp.expand_dims(z, axis=len(batch)) + xp.reshape(b, (*batch, n, *event)), log_w

    def log_mgf(self, s: Array, *, event_ndim: int = 1) -> Array:
        """The log of E exp(s.b) for b normal around 0, scale^2 |s|^2/2, of each s, batch + event.

        >>> import numpy as np
        >>> from phiball.refimpl import Gaussian
        >>> float(Gaussian(0.5).log_mgf(np.asarray([3.0, 4.0])))
        3.125
        """
        v = flat(s, event_ndim, "s")
        xp = array_namespace(s)
        check_overflow("std", self.std, self.std, v[..., :0])
        with ignore_float_warnings():  # it is infinite where it overflows
            v = self.std * v
            return xp.sum(v * v, axis=-1) / 2

    def _check_centres(self, z: Array) -> None:
        if not all_finite(z):
            raise ValueError("z contains NaN or infinity; expected finite numbers")
        check_overflow("std", self.std, 40 * self.std, z)  # no normal number is that large
