"""Losses of linear models: convex functions of the prediction z = theta.x + c, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from phiball.backends import Array, array_namespace
from phiball.refimpl.validation import valid_number

Jet = tuple[Array, Array, Array]  # a loss and its first two derivatives


@dataclass(frozen=True)
class LinearLoss:
    """A convex loss of a prediction z and a label y, for linear models.

    - `name`: the name in messages.
    - `jet`: jet(z, y) returns the loss and its first two derivatives in z, for arrays z and y that broadcast.
      The second derivative only makes fits faster, and may be zero.
    - `kinks`: kinks(y) returns the z at which the first or second derivative jumps, as a tuple of arrays of
      the shape of y; None for a smooth loss. Integrals are split there.
    - `monotone`: whether the loss is monotone in z for every y.
    - `smoothed`: only for a loss whose first derivative jumps: smoothed(width) returns a loss with a
      continuous derivative that is smaller, by at most the width.

    >>> import numpy as np
    >>> from phiball.linear import LinearLoss
    >>> def jet(z, y):
    ...     return np.log(np.cosh(z - y)), np.tanh(z - y), 1 / np.cosh(z - y) ** 2
    >>> LinearLoss("log cosh", jet)
    LinearLoss('log cosh')
    """

    name: str
    jet: Callable[[Array, Array], Jet] = field(repr=False)
    kinks: Callable[[Array], tuple[Array, ...]] | None = field(default=None, repr=False)
    monotone: bool = field(default=False, repr=False)
    smoothed: Callable[[float], LinearLoss] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.jet):
            raise TypeError(f"jet is {self.jet!r}; expected a function jet(z, y)")

    def __repr__(self) -> str:
        return f"LinearLoss({self.name!r})"


def _logistic(z: Array, y: Array) -> Jet:
    """log(1 + exp(-y z)), for y = -1 or 1."""
    xp = array_namespace(z)
    u = -y * z
    e = xp.exp(-xp.abs(u))
    up = u > 0
    share = 1 / (1 + e)
    probability = xp.where(up, share, e * share)
    return xp.where(up, u, xp.zeros_like(u)) + xp.log1p(e), -y * probability, e * share * share


def _squared(z: Array, y: Array) -> Jet:
    """(z - y)^2/2."""
    e = z - y
    return e * e / 2, e, array_namespace(z).ones_like(e)


def _poisson(z: Array, y: Array) -> Jet:
    """Half the Poisson deviance, exp(z) - y z + y log y - y, for counts y."""
    xp = array_namespace(z)
    mean = xp.exp(z)
    constant = y * xp.log(xp.where(y > 0, y, xp.ones_like(y))) - y
    return mean - y * z + constant, mean - y, mean


def _bent(z: Array, y: Array, *, tilt: float, jump: float, width: float, classes: bool) -> Jet:
    """tilt e + jump abs(e)/2, where e = y - z, or 1 - y z for `classes`; abs is smoothed over `width`."""
    xp = array_namespace(z)
    e = 1 - y * z if classes else y - z
    de = -y if classes else -1.0
    if width == 0:
        size, slope, bend = xp.abs(e), xp.sign(e), xp.zeros_like(e)
    else:  # Huber's function: below abs(e) by at most width/2
        inside = xp.abs(e) <= width
        size = xp.where(inside, e * e / (2 * width), xp.abs(e) - width / 2)
        slope = xp.where(inside, e / width, xp.sign(e))
        bend = xp.where(inside, xp.full_like(e, 1 / width), xp.zeros_like(e))
    return tilt * e + jump / 2 * size, (tilt + jump / 2 * slope) * de, jump / 2 * bend * (de * de)


def _bent_at(y: Array, *, width: float, classes: bool) -> tuple[Array, ...]:
    """The kinks of `_bent`."""
    shifts = (-width, width) if width else (0.0,)
    return tuple((1 + s) * y if classes else y + s for s in shifts)  # 1/y = y for y = -1 and 1


def _with_kink(
    name: str, tilt: float, jump: float, *, classes: bool = False, width: float = 0.0
) -> LinearLoss:
    return LinearLoss(
        name,
        jet=partial(_bent, tilt=tilt, jump=jump, width=width, classes=classes),
        kinks=partial(_bent_at, width=width, classes=classes),
        monotone=classes,
        smoothed=None if width else lambda w: _with_kink(name, tilt, jump, classes=classes, width=w),
    )


def quantile_loss(q: float) -> LinearLoss:
    """The pinball loss, whose minimizer is the q-quantile: q e if e = y - z > 0, and (q - 1) e otherwise.

    >>> import numpy as np
    >>> value, slope, _ = quantile_loss(0.9).jet(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    >>> print(np.round(value, 12), np.round(slope, 12))
    [0.9 0.1] [-0.9  0.1]
    """
    q = valid_number("q", q)
    if not 0 < q < 1:
        raise ValueError(f"q is {q!r}; expected a number in (0, 1)")
    return _with_kink(f"quantile {q:g}", q - 0.5, 1.0)


def _huber(z: Array, y: Array, *, width: float) -> Jet:
    value, slope, bend = _bent(z, y, tilt=0.0, jump=2.0, width=width, classes=False)
    return width * value, width * slope, width * bend


def huber_loss(width: float = 1.35) -> LinearLoss:
    """Huber's loss of the residual e = y - z: e^2/2 for abs(e) <= `width`, and linear beyond.

    >>> import numpy as np
    >>> print(huber_loss(1.0).jet(np.array([0.5, 3.0]), np.zeros(2))[0])
    [0.125 2.5  ]
    """
    width = valid_number("width", width, above=0.0)
    return LinearLoss(
        f"huber {width:g}",
        jet=partial(_huber, width=width),
        kinks=partial(_bent_at, width=width, classes=False),
    )


def _rounded_hinge(z: Array, y: Array, *, width: float) -> Jet:
    xp = array_namespace(z)
    e = 1 - y * z
    zero = xp.zeros_like(e)
    inside = (e > 0) & (e < width)
    outer = xp.where(e > 0, e - width / 2, zero)
    value = xp.where(inside, e * e / (2 * width), outer)
    slope = xp.clip(e / width, 0.0, 1.0)
    return value, -y * slope, xp.where(inside, xp.full_like(e, 1 / width), zero) * (y * y)


def smoothed_hinge_loss(width: float = 1.0) -> LinearLoss:
    """The hinge loss max(0, 1 - y z) for labels y = -1 or 1, quadratic where 0 < 1 - y z < `width`.

    >>> import numpy as np
    >>> print(smoothed_hinge_loss(0.5).jet(np.array([0.0, 0.8, 2.0]), np.ones(3))[0])
    [0.75 0.04 0.  ]
    """
    width = valid_number("width", width, above=0.0)
    return LinearLoss(
        f"smoothed hinge {width:g}",
        jet=partial(_rounded_hinge, width=width),
        kinks=lambda y: (y, (1 - width) * y),
        monotone=True,
    )


LOSSES = {
    "logistic": LinearLoss("logistic", _logistic, monotone=True),
    "squared": LinearLoss("squared", _squared),
    "absolute": _with_kink("absolute", 0.0, 2.0),
    "hinge": _with_kink("hinge", 0.5, 1.0, classes=True),
    "smoothed hinge": smoothed_hinge_loss(),
    "quantile": quantile_loss(0.5),
    "huber": huber_loss(),
    "poisson": LinearLoss("poisson", _poisson),
}
MULTINOMIAL = "multinomial"  # predictions are vectors: not a LinearLoss, see multinomial_objective.py


def valid_loss(loss: LinearLoss | str) -> LinearLoss | str:
    """Look up a loss by name; a `LinearLoss` is returned unchanged. Raises ValueError for other values."""
    if isinstance(loss, LinearLoss) or loss == MULTINOMIAL:
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        names = ", ".join([*LOSSES, MULTINOMIAL])
        raise ValueError(f"loss is {loss!r}; expected a LinearLoss, or one of {names}")
    return LOSSES[loss]


def check_labels(loss: LinearLoss | str, y: Array) -> None:
    """Raise unless the labels y are valid for a loss that the library defines."""
    xp = array_namespace(y)
    name = loss if isinstance(loss, str) else loss.name
    if name in ("logistic", "hinge") or name.startswith("smoothed hinge"):
        if not bool(xp.all((y == 1) | (y == -1))):
            raise ValueError(f"y has labels other than -1 and 1, which the {name} loss needs")
    elif name == "poisson":
        if not bool(xp.all(y >= 0)):
            raise ValueError(f"y contains {float(xp.min(y)):g}; expected nonnegative counts")
    elif name == MULTINOMIAL and not bool(xp.all((y >= 0) & (y == xp.floor(y)))):
        raise ValueError("y has labels that are not class numbers; expected whole numbers 0, 1, ...")
