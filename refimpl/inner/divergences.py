"""Divergences phi and their conjugates: Section 2 of the paper, with its Examples 1 to 5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf, isnan, nan

from phiball.backends import Array, array_namespace
from phiball.refimpl.inner.constants import derive_constants
from phiball.refimpl.validation import valid_number

Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Divergence:
    r"""A convex function $\phi$ on $[0, \infty)$ with $\phi(1) = 0$, its conjugate and its constants.

    Arguments: a name, shown in messages, and four elementwise functions of an array.
    - `phi`: $\phi(x)$, infinite where $x < 0$.
    - `conj`: the conjugate $\phi^*(s) = \sup_{x \ge 0} (s x - \phi(x))$.
    - `dconj`: the derivative of the conjugate, which is the maximizer $x$; zero for $s$ below `slope0`.
    - `d2conj`: the second derivative of the conjugate.

    The functions must keep the dtype, and accept arrays of the library of the losses (to support every
    library, use `phiball.backends.array_namespace`). Make them accurate near $x = 1$ and $s$ = `slope1`, for
    example with `expm1` and `log1p`: a large eta magnifies their error there. `check_divergence` tests a
    divergence.

    Four constants are derived from the functions unless you give them:
    - `slope0`: $\phi'(0^+)$.
    - `slope1`: a subgradient of $\phi$ at 1; 0 if 0 is a subgradient.
    - `recession`: $\lim_{t \to \infty} \phi(t)/t$.
    - `curvature1`: $\phi''(1)$.

    `family` and `parameter` select the solver of a built-in divergence; omit them for your own.

    Reference: Section 2 of the paper.

    >>> import numpy as np
    >>> pearson = Divergence(
    ...     "pearson",
    ...     phi=lambda x: np.where(x < 0, x.dtype.type(np.inf), (x - 1) ** 2),
    ...     conj=lambda s: np.maximum(s, -2) * (1 + np.maximum(s, -2) / 4),
    ...     dconj=lambda s: np.maximum(1 + s / 2, 0),
    ...     d2conj=lambda s: np.where(s > -2, s.dtype.type(0.5), s.dtype.type(0)),
    ... )
    >>> pearson.slope0, pearson.slope1, pearson.recession, pearson.curvature1
    (-2.0, 0.0, inf, 2.0)
    """

    name: str
    phi: Function = field(compare=False, repr=False)
    conj: Function = field(compare=False, repr=False)
    dconj: Function = field(compare=False, repr=False)
    d2conj: Function = field(compare=False, repr=False)
    slope0: float = nan
    slope1: float = nan
    recession: float = nan
    curvature1: float = nan
    family: str | None = field(default=None, repr=False)
    parameter: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name is {self.name!r}; expected a string")
        for function in ("phi", "conj", "dconj", "d2conj"):
            if not callable(getattr(self, function)):
                raise TypeError(f"{function} is {getattr(self, function)!r}; expected a function of an array")
        constants = ("slope0", "slope1", "recession", "curvature1")
        if any(isnan(getattr(self, constant)) for constant in constants):
            derived = derive_constants(self.conj, self.dconj, self.d2conj)
            for constant, value in zip(constants, derived, strict=True):
                if isnan(getattr(self, constant)):
                    object.__setattr__(self, constant, value)


def _infinite_below_0(value: Array, x: Array) -> Array:
    xp = array_namespace(x)
    return xp.where(x < 0, xp.full_like(x, inf), value)


def _full(x: Array, value: float) -> Array:
    return array_namespace(x).full_like(x, value)


def _entropic_phi(x: Array) -> Array:
    xp = array_namespace(x)
    safe = xp.where(x > 0, x, xp.ones_like(x))
    # log(x) is accurate near 1: the only error is the rounding of x - 1.
    return _infinite_below_0(xp.where(x > 0, safe * xp.log(safe) - (safe - 1), _full(x, 1.0)), x)


def _entropic_conj(s: Array) -> Array:
    return array_namespace(s).expm1(s)


def _exp(s: Array) -> Array:
    return array_namespace(s).exp(s)


ENTROPIC = Divergence(
    "entropic",
    phi=_entropic_phi,
    conj=_entropic_conj,
    dconj=_exp,
    d2conj=_exp,
    slope0=-inf,
    slope1=0.0,
    recession=inf,
    curvature1=1.0,
    family="entropic",
)
r"""The entropic divergence $\phi(x) = x \log x - x + 1$, also known as Kullback-Leibler (Example 2).

The risk is the log-sum-exp $\eta \log \mathbb{E} e^{f/\eta}$, and the worst case is a softmax.

>>> ENTROPIC.slope1, ENTROPIC.recession, ENTROPIC.curvature1
(0.0, inf, 1.0)
"""


def _positive_part(s: Array) -> Array:
    return array_namespace(s).where(s > 0, s, _full(s, 0.0))


def _step(s: Array) -> Array:
    return array_namespace(s).where(s > 0, _full(s, 1.0), _full(s, 0.0))


def _quadratic_phi(x: Array) -> Array:
    return _infinite_below_0((x - 1) * (x + 1) / 2, x)


def _quadratic_conj(s: Array) -> Array:
    return _positive_part(s) ** 2 / 2 + 0.5


QUADRATIC = Divergence(
    "quadratic",
    phi=_quadratic_phi,
    conj=_quadratic_conj,
    dconj=_positive_part,
    d2conj=_step,
    slope0=0.0,
    slope1=1.0,
    recession=inf,
    curvature1=1.0,
    family="quadratic",
)
r"""The quadratic divergence $\phi(x) = (x^2 - 1)/2$, also known as chi-square (Example 3).

The worst case is a sparsemax: losses below a threshold get no weight.

>>> QUADRATIC.slope1, QUADRATIC.recession, QUADRATIC.curvature1
(1.0, inf, 1.0)
"""


def _absolute_phi(x: Array) -> Array:
    return _infinite_below_0(array_namespace(x).abs(x - 1), x)


def _hinge_phi(x: Array) -> Array:
    return _infinite_below_0(_positive_part(x - 1), x)


def _clipped_conj(s: Array, *, slope0: float) -> Array:
    xp = array_namespace(s)
    return xp.where(s > 1, _full(s, inf), xp.where(s > slope0, s, _full(s, slope0)))


def _clipped_dconj(s: Array, *, slope0: float) -> Array:
    xp = array_namespace(s)
    return xp.where(s > 1, _full(s, inf), _step(s - slope0))


def _zero(s: Array) -> Array:
    return array_namespace(s).zeros_like(s)


ABSOLUTE = Divergence(
    "absolute",
    phi=_absolute_phi,
    conj=partial(_clipped_conj, slope0=-1.0),
    dconj=partial(_clipped_dconj, slope0=-1.0),
    d2conj=_zero,
    slope0=-1.0,
    slope1=0.0,
    recession=1.0,
    curvature1=inf,
    family="absolute",
)
r"""The absolute divergence $\phi(x) = |x - 1|$, also known as total variation (Example 4).

It has a kink, and part of the mass may move to the largest loss.

>>> ABSOLUTE.slope0, ABSOLUTE.recession
(-1.0, 1.0)
"""

HINGE = Divergence(
    "hinge",
    phi=_hinge_phi,
    conj=partial(_clipped_conj, slope0=0.0),
    dconj=partial(_clipped_dconj, slope0=0.0),
    d2conj=_zero,
    slope0=0.0,
    slope1=0.0,
    recession=1.0,
    curvature1=inf,
    family="hinge",
)
r"""The hinge divergence $\phi(x) = \max(x - 1, 0)$ (Example 5).

It has a kink, and part of the mass may move to the largest loss.

>>> HINGE.slope0, HINGE.recession
(0.0, 1.0)
"""


def _indicator_phi(x: Array, *, alpha: float) -> Array:
    xp = array_namespace(x)
    # The factor allows for the rounding of x = gamma/p where it equals 1/alpha.
    edge = (1 / alpha) * (1 + 16 * float(xp.finfo(x.dtype).eps))
    return xp.where((x >= 0) & (x <= edge), _full(x, 0.0), _full(x, inf))


def _indicator_conj(s: Array, *, alpha: float) -> Array:
    return _positive_part(s) / alpha


def _indicator_dconj(s: Array, *, alpha: float) -> Array:
    return _step(s) / alpha


def indicator(alpha: float) -> Divergence:
    r"""The divergence that is 0 on $[0, 1/\alpha]$ and infinite beyond (Example 1).

    Arguments:
    - `alpha`: the level of the CVaR, in (0, 1].

    The risk is the average value at risk (CVaR): the mean of the largest losses, of total probability alpha.
    It does not depend on eta. Losses tied at the quantile share the remaining mass; in the paper each has
    the density $1/\alpha$, so that the total mass exceeds one (4/3 for $f = (0, 1)$ and $\alpha = 3/4$).

    >>> indicator(0.25).parameter
    0.25
    """
    alpha = valid_number("alpha", alpha)
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha!r}; expected a number in (0, 1]")
    return Divergence(
        f"indicator({alpha:g})",
        phi=partial(_indicator_phi, alpha=alpha),
        conj=partial(_indicator_conj, alpha=alpha),
        dconj=partial(_indicator_dconj, alpha=alpha),
        d2conj=_zero,
        slope0=0.0,
        slope1=0.0,
        recession=inf,
        # At alpha = 1 only the density 1 is allowed, as with an infinite curvature.
        curvature1=inf if alpha == 1 else 0.0,
        family="indicator",
        parameter=alpha,
    )


def _hockey_stick_phi(x: Array, *, beta: float) -> Array:
    xp = array_namespace(x)
    # As for the indicator, the factor allows for rounding: a large eta would magnify it.
    free = x <= beta * (1 + 16 * float(xp.finfo(x.dtype).eps))
    return _infinite_below_0(xp.where(free, _full(x, 0.0), x - beta), x)


def _hockey_stick_conj(s: Array, *, beta: float) -> Array:
    return beta * _clipped_conj(s, slope0=0.0)


def _hockey_stick_dconj(s: Array, *, beta: float) -> Array:
    return beta * _clipped_dconj(s, slope0=0.0)


def hockey_stick(beta: float) -> Divergence:
    r"""The hockey-stick divergence $\phi(x) = \max(x - \beta, 0)$ of differential privacy.

    Arguments:
    - `beta`: a number of at least 1, which gives `HINGE`. Densities up to beta are free.

    >>> hockey_stick(1) is HINGE, hockey_stick(3.0).recession
    (True, 1.0)
    """
    beta = valid_number("beta", beta, least=1.0)
    if beta == 1:
        return HINGE
    return Divergence(
        f"hockey_stick({beta:g})",
        phi=partial(_hockey_stick_phi, beta=beta),
        conj=partial(_hockey_stick_conj, beta=beta),
        dconj=partial(_hockey_stick_dconj, beta=beta),
        d2conj=_zero,
        slope0=0.0,
        slope1=0.0,
        recession=1.0,
        curvature1=0.0,
        family="hockey_stick",
        parameter=beta,
    )


def expm1_over(k: float, x: Array) -> Array:
    """(exp(k x) - 1)/k, and its limit x at k = 0."""
    return array_namespace(x).expm1(k * x) / k if k else x


def _log_power(s: Array, *, k: float) -> Array:
    """log phi*'(s) = log(1 + (k-1) s)/(k-1) for k != 1.

    Where 1 + (k-1) s <= 0, it is -inf for k > 1, and inf for k < 1.
    """
    xp = array_namespace(s)
    y = (k - 1) * s
    inside = y > -1
    log_y = xp.log1p(xp.where(inside, y, _full(s, 0.0))) / (k - 1)
    return xp.where(inside, log_y, _full(s, -inf if k > 1 else inf))


def _power_phi(x: Array, *, k: float) -> Array:
    # phi(x) = x phi'(x) - phi*(phi'(x)): both terms are accurate for k near 0 and 1.
    xp = array_namespace(x)
    safe = xp.where(x > 0, x, _full(x, 1.0))
    log_x = xp.log(safe)
    value = safe * expm1_over(k - 1, log_x) - expm1_over(k, log_x)
    value = xp.where(xp.isnan(value), _full(x, inf), value)  # inf - inf, where phi itself overflows
    return _infinite_below_0(xp.where(x > 0, value, _full(x, 1 / k if k > 0 else inf)), x)


def _power_conj(s: Array, *, k: float) -> Array:
    xp = array_namespace(s)
    log_x = _log_power(s, k=k)
    value = expm1_over(k, log_x)  # for k < 0 also finite at the end of the domain, s = 1/(1-k)
    return xp.where((k - 1) * s < -1, _full(s, inf), value) if k < 1 else value


def _power_dconj(s: Array, *, k: float) -> Array:
    return array_namespace(s).exp(_log_power(s, k=k))


def _power_d2conj(s: Array, *, k: float) -> Array:
    # phi*''(s) = x^(2-k) at x = phi*'(s); zero where x is truncated to 0.
    xp = array_namespace(s)
    log_x = _log_power(s, k=k)
    inside = xp.isfinite(log_x)
    value = xp.exp((2 - k) * xp.where(inside, log_x, _full(s, 0.0)))
    return xp.where(inside, value, _full(s, 0.0 if k > 1 else inf))


def cressie_read(k: float) -> Divergence:
    r"""The Cressie-Read divergence $\phi(x) = (x^k - k x + k - 1) / (k (k - 1))$, with limits at k = 0, 1.

    Arguments:
    - `k`: any real number.

    k = 2 gives $(x - 1)^2/2$, k = 1 `ENTROPIC`, k = 1/2 Hellinger's divergence, and k = 0 Burg's
    $x - 1 - \log x$.

    >>> cressie_read(1) is ENTROPIC
    True
    >>> cressie_read(0.5).recession
    2.0
    """
    k = valid_number("k", k)
    if k == 1:
        return ENTROPIC
    return Divergence(
        f"cressie_read({k:g})",
        phi=partial(_power_phi, k=k),
        conj=partial(_power_conj, k=k),
        dconj=partial(_power_dconj, k=k),
        d2conj=partial(_power_d2conj, k=k),
        slope0=-1 / (k - 1) if k > 1 else -inf,
        slope1=0.0,
        recession=1 / (1 - k) if k < 1 else inf,
        curvature1=1.0,
        family="cressie_read",
        parameter=k,
    )


def centred(d: Divergence) -> Divergence:
    """The divergence phi(x) - slope1 (x - 1), whose minimum is at 1.

    The risk and the weights are the same as for `d`, and mu is larger by eta slope1. Solvers use this
    divergence to avoid cancellation for a large eta.
    """
    if d.slope1 == 0:
        return d
    if d.family == "quadratic":
        return cressie_read(2)
    a = d.slope1
    return Divergence(
        f"centred {d.name}",
        phi=lambda x: d.phi(x) - a * (x - 1),
        conj=lambda s: d.conj(s + a) - a,
        dconj=lambda s: d.dconj(s + a),
        d2conj=lambda s: d.d2conj(s + a),
        slope0=d.slope0 - a,
        slope1=0.0,
        recession=d.recession - a,
        curvature1=d.curvature1,
    )


DIVERGENCES = {d.name: d for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE)}
"""The divergences without parameters, by name."""
_ALIASES = {"kl": "entropic", "chi2": "quadratic", "tv": "absolute"}


def as_divergence(divergence: str | Divergence) -> Divergence:
    """Convert a name, such as "entropic" or "kl", to a `Divergence`; a `Divergence` is returned unchanged.

    >>> as_divergence("chi2") is QUADRATIC
    True
    """
    if isinstance(divergence, Divergence):
        return divergence
    if not isinstance(divergence, str):
        raise TypeError(
            f"divergence is {divergence!r}; expected a name such as 'kl' or a Divergence such as "
            "cressie_read(1.5)"
        )
    name = _ALIASES.get(divergence, divergence)
    if name not in DIVERGENCES:
        names = ", ".join([*DIVERGENCES, *_ALIASES])
        raise ValueError(
            f"divergence is {divergence!r}; expected one of {names}, or a Divergence such as indicator(0.1)"
        )
    return DIVERGENCES[name]
