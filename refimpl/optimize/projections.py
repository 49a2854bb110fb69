"""Projections onto boxes, balls and the simplex, for `projected_sgd`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan

from phiball.backends import Array, array_namespace, detach, device, is_array_api_obj
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import QUADRATIC
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.validation import broadcasts, check_array, check_same_array_type

Map = Callable[[Array], Array]


def onto_box(low: float | Array, high: float | Array) -> Map:
    """Return the projection onto the box low <= theta <= high, a function of theta for `projected_sgd`.

    Arguments:
    - `low`, `high`: numbers, possibly infinite, or arrays that broadcast to theta.

    >>> import numpy as np
    >>> from phiball.optimize import onto_box
    >>> print(onto_box(0.0, 1.0)(np.array([-0.5, 0.25, 3.0])))
    [0.   0.25 1.  ]
    """
    low, high = _valid_bound("low", low), _valid_bound("high", high)
    ordered = low <= high
    if not (ordered if isinstance(ordered, bool) else array_namespace(ordered).all(ordered)):
        raise ValueError(f"low is {low!r} and high {high!r}; expected low <= high")

    def project(theta: Array) -> Array:
        check_array("theta", theta)
        xp = array_namespace(theta)
        for name, bound in (("low", low), ("high", high)):
            if not isinstance(bound, float):
                check_same_array_type(name, bound, theta, other="theta")
                if not broadcasts(bound.shape, theta.shape):
                    raise ValueError(
                        f"{name} has shape {tuple(bound.shape)}; expected one that broadcasts to the shape "
                        f"of theta, {tuple(theta.shape)}"
                    )
        where = {"dtype": theta.dtype, "device": device(theta)}
        return xp.minimum(xp.maximum(theta, xp.asarray(low, **where)), xp.asarray(high, **where))

    return project


def onto_ball(ball: Ball, centre: Array | None = None, *, event_ndim: int = 1) -> Map:
    """Return the projection onto a ball, a function of theta for `projected_sgd`.

    Arguments:
    - `ball`: a `Ball` of norm 1, 2 or inf, without clip and feature_scale.
    - `centre`: an array that broadcasts with theta; 0 by default.
    - `event_ndim`: the number of trailing axes of theta that form one point: 1 for a vector, 2 for a matrix
      in a Frobenius ball.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.optimize import onto_ball
    >>> print(onto_ball(Ball(2, 1.0))(np.array([3.0, 4.0])))
    [0.6 0.8]
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 1.0)")
    if ball.norm not in (1, 2, inf) or ball.clip is not None or ball.feature_scale is not None:
        raise ValueError(f"ball is {ball!r}; expected norm 1, 2 or inf, without clip and feature_scale")
    if centre is not None:
        check_array("centre", centre)

    def project(theta: Array) -> Array:
        check_array("theta", theta)
        z = array_namespace(theta).zeros_like(theta) if centre is None else centre
        return ball.project(theta, z, event_ndim=event_ndim)

    return project


def onto_simplex(theta: Array) -> Array:
    """Project theta (..., m) onto the probability simplex along the last axis.

    The projection maximizes theta.gamma - |gamma|^2/2 over the simplex. This is the inner problem with the
    quadratic divergence and eta = 1/m. The result has the shape of theta, and no gradient.

    >>> import numpy as np
    >>> from phiball.optimize import onto_simplex
    >>> print(onto_simplex(np.array([0.5, 1.0, -2.0])))
    [0.25 0.75 0.  ]
    """
    check_array("theta", theta)
    theta = detach(theta)
    if theta.ndim == 0 or theta.shape[-1] == 0:
        raise ValueError(f"theta has shape {tuple(theta.shape)}; expected at least one entry per row")
    if not array_namespace(theta).all(array_namespace(theta).isfinite(theta)):
        raise ValueError("theta contains NaN or infinity; expected finite numbers")
    return worst_case(theta, 1 / theta.shape[-1], QUADRATIC).weights


def _valid_bound(name: str, bound: float | Array) -> float | Array:
    """`bound` as a float or an array; raise unless it consists of numbers other than NaN."""
    if is_array_api_obj(bound):
        check_array(name, bound)
        missing = bool(array_namespace(bound).any(array_namespace(bound).isnan(bound)))
    elif isinstance(bound, (int, float)) and not isinstance(bound, bool):
        bound = float(bound)
        missing = isnan(bound)
    else:
        raise TypeError(f"{name} is {bound!r}; expected a number or an array")
    if missing:
        raise ValueError(f"{name} is {bound!r}; expected numbers, not NaN")
    return bound
