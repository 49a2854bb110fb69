"""Certified radii from phi-divergences between shifted noise distributions.

A perturbation of x shifts the distribution of x + noise, and a divergence bounds the change of expectations
(Dvijotham et al., "A framework for robustness certification of smoothed classifiers using f-divergences").
The expected loss at a perturbed x is at most the worst case of the losses at x + noise, whose budget is the
divergence of the shift. For votes, the losses are 0 and 1 with probabilities p and 1 - p.
"""

from __future__ import annotations

from math import erf, expm1, inf, log
from statistics import NormalDist
from typing import Any

from phiball.backends import Array, active, array_namespace
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.validation import valid_number

_GRID = 100  # radii tried at a time
_ROUNDS = 8  # the first tries powers of 2, and each of the others narrows the radius by a factor of _GRID
_ROUNDING = 1 + 1e-12  # of the computed divergences


def check_noise(noise: Any, *, any_noise: bool = False) -> None:
    """Raise unless the noise is Gaussian, uniform on a cube or, with `any_noise`, an object of your own."""
    cube = isinstance(noise, Ball) and noise.norm == inf and noise.clip is None and noise.radius > 0
    other = any_noise and hasattr(noise, "shift_divergence")
    if not cube and not other and not (isinstance(noise, Gaussian) and noise.std > 0):
        raise ValueError(
            f"noise is {noise!r}; expected a Gaussian with positive std, or a Ball of norm inf with positive "
            "radius and without clip; with a divergence, also an object with methods `sample` and "
            "`shift_divergence`"
        )


def shift_divergence(noise: Any, radius: float, divergence: str | Divergence) -> float:
    """The largest divergence between the noise and the same noise shifted by a vector of at most `radius`.

    Arguments:
    - `noise`: a `Gaussian`, with shifts in l2; a Ball("linf", a), with shifts in l1; or an object of your own
      with a method `sample`, as that of `Gaussian`, and shift_divergence(radius, divergence).
    - `radius`: the length of the shift.
    - `divergence`: for a `Gaussian`, a divergence of the library; for a `Ball`, any.

    >>> from phiball import Gaussian
    >>> print(shift_divergence(Gaussian(0.5), 1.0, "kl"))  # (radius/std)^2/2
    2.0
    """
    d = as_divergence(divergence)
    check_noise(noise, any_noise=True)
    if valid_number("radius", radius, least=0.0) == 0:
        return 0.0
    if not isinstance(noise, Gaussian | Ball):
        return valid_number("shift_divergence", noise.shift_divergence(radius, d), least=0.0, infinite=True)
    if isinstance(noise, Ball):
        # The densities are equal on the overlap. The rest has density ratio 0, or infinity.
        xp = active().namespace
        at_0 = float(d.phi(xp.zeros((1,), dtype=xp.float64))[0])
        return min(radius / (2 * noise.radius), 1.0) * (at_0 + d.recession)
    t, k = radius / noise.std, d.parameter
    if d.family == "entropic" or (d.family == "cressie_read" and k == 0):
        return t * t / 2
    if d.family in ("quadratic", "cressie_read"):
        order = 2.0 if k is None else k
        factor = order * (order - 1)
        exponent = factor * t * t / 2
        return inf if exponent > 700 else expm1(exponent) / factor
    if d.family in ("absolute", "hinge"):
        return (1 - d.slope0) * erf(t / 8**0.5)
    if d.family == "hockey_stick" and k is not None:
        cdf = NormalDist().cdf
        return max(cdf(t / 2 - log(k) / t) - k * cdf(-t / 2 - log(k) / t), 0.0)
    if d.family == "indicator":
        return inf  # the ratio of the densities is unbounded
    raise ValueError(f"divergence is {d.name!r}; expected one of the library, or uniform noise")


def divergence_radius(p: float, noise: Any, divergence: str | Divergence) -> float:
    """The radius within which a divergence certifies a class of probability p at x.

    Arguments:
    - `p`: the probability of the class, a number from 0 to 1; the radius is 0 unless it exceeds 1/2.
    - `noise`, `divergence`: as in `shift_divergence`.

    No divergence gives more than `certified_radius(p, noise)`. For Gaussian noise, `hockey_stick(beta)` with
    beta = exp(quantile(p)^2/2) attains it; "kl" and "chi2" give std sqrt(-log(4 p (1 - p))).

    >>> from phiball import Gaussian, hockey_stick
    >>> print(round(divergence_radius(0.99, Gaussian(1.0), "kl"), 3))
    1.797
    >>> print(round(divergence_radius(0.99, Gaussian(1.0), hockey_stick(14.967)), 3))
    2.326
    """
    if not 0 <= valid_number("p", p) <= 1:
        raise ValueError(f"p is {p!r}; expected a probability")
    p = min(p, 1 - 1e-15)  # with p = 1, mass without reference probability would be missed
    xp = active().namespace
    losses, reference = (xp.asarray(pair, dtype=xp.float64) for pair in ([0.0, 1.0], [p, 1 - p]))
    return losses_radius(losses, reference, noise, divergence)


def losses_radius(losses: Array, p: Array, noise: Any, divergence: str | Divergence) -> float:
    """The radius within which the expected loss is below 1/2, for losses (n,) with probabilities p at x."""
    xp = array_namespace(losses, p)
    check_noise(noise, any_noise=True)
    if xp.sum(losses * p) >= 0.5:
        return 0.0
    radii = [0.0, *(2.0**k for k in range(-20, _GRID - 20))]
    for _ in range(_ROUNDS):
        budgets = [_ROUNDING * shift_divergence(noise, r, divergence) for r in radii]
        solution = worst_case(
            xp.broadcast_to(losses, (len(radii), losses.shape[0])),
            budget=xp.asarray([min(budget, 1e300) for budget in budgets], dtype=xp.float64),
            divergence=divergence,
            p=p,
        )
        worst = solution.value + xp.abs(solution.gap)
        safe = [k for k in range(_GRID) if float(worst[k]) <= 0.5 - 1e-14 and budgets[k] < inf]
        if not safe:
            return 0.0
        low, high = radii[safe[-1]], radii[safe[-1] + 1]
        radii = [low + (high - low) * k / _GRID for k in range(_GRID + 1)]
    return low
