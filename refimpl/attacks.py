"""Attacks: points of the ball around each data point at which a loss is large (Section 6.1).

All take z of shape (N,) + event and return points of that shape, each in the ball around its z. Of the loss
they need the gradient alone, as a function gradient(x, i) of points x (N,) + event and i = 0, ..., N - 1, the
data point that each x comes from. It returns gradients of the shape of x. With torch that is
`functools.partial(phiball.backends.input_gradient, loss)`.

A step moves each point by the steepest vector of length `step` in the norm of the ball: sign(g) in linf,
g/||g|| in l2, one coordinate in l1. The paper's "stepsize 0.1" for a ball of radius 0.45 has two readings.
Both are available: `step=0.1`, or Ball(norm, 0.1), where 0.1 is the longest way. A step that does not grow
with the radius never leaves a ball of radius steps * step around z.

Where a gradient is zero the point stays; a random start (`rng`) leaves a plateau. Points are kept in the box
(lo, hi) if the ball has clip=(lo, hi), and are not clipped otherwise. Results carry no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phiball.backends import Array, Rng, array_namespace, detach, to_single, without_gradient
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import check_overflow
from phiball.refimpl.sampling.half_points import in_single, rounded
from phiball.refimpl.sampling.streaming import evaluate, indices, valid_data
from phiball.refimpl.types import Loss
from phiball.refimpl.validation import (
    check_same_array_type,
    valid_array,
    valid_count,
    valid_number,
    valid_rng,
)

Gradient = Callable[[Array, Array], Array]


def fgm(
    gradient: Gradient, x: Array, ball: Ball, *, step: float | None = None, rng: Rng | None = None
) -> Array:
    """Attack with one gradient step, which maximises the linearised loss: the fast gradient method.

    Arguments:
    - `gradient`: a function gradient(x, i) of the gradient of each loss in its x.
    - `x` (N,) + event: the data points.
    - `ball`: a `Ball`, the norm and the radius of the attack.
    - `step`: the length of the step. The default is the radius, so that the result is the exact maximiser of
      the loss linearised at z. From a random start the default is 1.25 times the radius.
    - `rng`: if given, the step starts from a uniform point of the ball and is projected back (Wong, Rice and
      Kolter, "Fast is better than free"). The norm is then 1, 2 or inf.

    Returns points of the shape of z, after one gradient. A loss that is linear in x is maximised exactly if
    the ball has no clip.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball.refimpl import Ball, fgm
    >>> g = np.array([[3.0, -4.0]])
    >>> print(np.round(fgm(lambda x, i: g, np.zeros((1, 2)), Ball(2, 0.5)), 6))
    [[ 0.3 -0.4]]
    """
    data = x
    x, gradient = in_single(x, gradient)
    x, i = _problem(gradient, x, ball)
    step = _valid_step(step, ball.radius if rng is None else 1.25 * ball.radius, x, ball)
    start = x if rng is None else white_noise(x, ball, rng)
    return rounded(_ascend(gradient, start, i, x, ball, step), data)


def ifgm(gradient: Gradient, x: Array, ball: Ball, *, steps: int = 15, step: float | None = None) -> Array:
    """Attack with projected gradient steps from z: the iterated fast gradient method.

    Arguments:
    - `steps`: the number of steps; the paper takes 15.
    - `step`: the length of one, by default 2.5 radius / steps, which can cross the ball from side to side.
    - The others are those of `fgm`. The norm is 1, 2 or inf.

    Returns points of the shape of z.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball.refimpl import Ball, ifgm
    >>> z = np.array([[1.0, 2.0]])
    >>> print(np.round(ifgm(lambda x, i: x, z, Ball(float("inf"), 0.5)), 6))
    [[1.5 2.5]]
    """
    return pgm(gradient, x, ball, steps=steps, step=step)


def pgm(
    gradient: Gradient,
    x: Array,
    ball: Ball,
    *,
    steps: int = 15,
    step: float | None = None,
    rng: Rng | None = None,
    loss: Loss | None = None,
    restarts: int = 1,
) -> Array:
    """Attack with projected gradient steps from z or from random points: the projected gradient method.

    Arguments beyond those of `fgm`:
    - `steps`: the number of steps; the paper takes 15.
    - `step`: the length of one, by default 2.5 radius / steps.
    - `rng`: if given, each run starts from z + u b, with b uniform on the ball and u on (0, 1).
    - `loss`: a function loss(x, i) with values (N,). If given, the result is the best of all iterates of all
      runs and of z itself; otherwise it is the last iterate.
    - `restarts`: the number of runs. More than one needs `rng` and `loss`.

    Returns points of the shape of z, after steps * restarts gradients. The norm is 1, 2 or inf.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Ball, pgm
    >>> target = np.array([[0.1, 0.2]])
    >>> def loss(x, i):
    ...     return -np.sum((x - target) ** 2, axis=-1)
    >>> z, ball = np.zeros((1, 2)), Ball(2, 1.0)
    >>> x = pgm(lambda x, i: target - x, z, ball, steps=100, rng=rng(0), loss=loss)
    >>> bool(np.all(np.abs(x - target) < 0.03))
    True
    """
    data = x
    x, gradient, loss = in_single(x, gradient, loss)
    x, i = _problem(gradient, x, ball)
    valid_count("steps", steps)
    valid_count("restarts", restarts)
    step = _valid_step(step, 2.5 * ball.radius / steps, x, ball)
    if restarts > 1 and (rng is None or loss is None):
        raise ValueError(
            f"restarts is {restarts}, and {'rng' if rng is None else 'loss'} is None; expected an rng to "
            "start from different points, and a loss to choose between the runs"
        )
    points = best = x
    value = None if loss is None else _values(loss, x, i)
    for _ in range(restarts):
        points = x if rng is None else _start(x, ball, rng)
        for taken in range(steps + 1):
            points = points if taken == 0 else _ascend(gradient, points, i, x, ball, step)
            if loss is not None and points is not x:
                best, value = _larger(best, value, points, _values(loss, points, i))
    return rounded(points if loss is None else best, data)


def white_noise(x: Array, ball: Ball, rng: Rng) -> Array:
    """Perturb each point without regard to the loss: draw one uniform point of the ball around each z.

    Arguments:
    - `x` (N,) + event: the data points.
    - `ball`: a `Ball` of any norm, or another distribution with its `sample`.
    - `rng`: from `phiball.backends.rng`.

    Returns points of the shape of z.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Ball, white_noise
    >>> z = np.zeros((2, 3))
    >>> ball = Ball(1, 0.5)
    >>> bool(np.all(ball.contains(white_noise(z, ball, rng(0)), z)))
    True
    """
    data, x = x, valid_data(to_single(x))
    if not callable(getattr(ball, "sample", None)):
        raise TypeError(f"ball is {ball!r}; expected a Ball, or a distribution with its sample(z, n, rng)")
    valid_rng(rng)
    return rounded(ball.sample(x, 1, rng=rng, event_ndim=x.ndim - 1)[:, 0, ...], data)


def _start(z: Array, ball: Ball, rng: Rng) -> Array:
    """A uniform point of the ball, drawn towards z by a uniform factor."""
    u = rng.uniform((z.shape[0],) + (1,) * (z.ndim - 1), like=z)
    return z + u * (white_noise(z, ball, rng) - z)


def _ascend(gradient: Gradient, x: Array, i: Array, z: Array, ball: Ball, step: float) -> Array:
    """x moved by the steepest vector of length `step`, and projected onto the ball around z."""
    xp = array_namespace(z)
    g = _valid_gradient(gradient(x, i), z)
    event_ndim = z.ndim - 1
    moved = x + replace(ball, radius=step).steepest(g, event_ndim=event_ndim)
    if x is z and step <= ball.radius:  # not outside, so that norms without a projection have this step too
        return moved if ball.clip is None else xp.clip(moved, *ball.clip)
    return ball.project(moved, z, event_ndim=event_ndim)


def _larger(x: Array, f: Array, other: Array, f_other: Array) -> tuple[Array, Array]:
    """For each point the one of the two with the larger loss; the first in a tie."""
    xp = array_namespace(x)
    better = f_other > f
    wide = xp.reshape(better, better.shape + (1,) * (x.ndim - 1))
    return xp.where(wide, other, x), xp.where(better, f_other, f)


def _problem(gradient: Gradient, z: Array, ball: Ball) -> tuple[Array, Array]:
    """z and its indices, after the checks that the attacks share."""
    if not callable(gradient):
        raise TypeError(f"gradient is {gradient!r}; expected a function gradient(x, i)")
    z = valid_data(z)
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    xp = array_namespace(z)
    if ball.clip is not None and not xp.all((z >= ball.clip[0]) & (z <= ball.clip[1])):
        raise ValueError(f"z leaves the box clip = {ball.clip} of the ball; expected data inside it")
    return z, indices(z)


def _valid_gradient(g: Array, z: Array) -> Array:
    valid_array("gradient(x, i)", g)
    check_same_array_type("gradient(x, i)", g, z, other="z")
    xp = array_namespace(z)
    if g.shape != z.shape:
        raise ValueError(f"gradient(x, i) has shape {tuple(g.shape)}; expected that of x, {tuple(z.shape)}")
    g = xp.astype(detach(g), z.dtype, copy=False)
    if not xp.all(xp.isfinite(g)):
        raise ValueError("gradient(x, i) contains NaN or infinity; expected finite numbers")
    return g


def _values(loss: Loss, x: Array, i: Array) -> Array:
    with without_gradient():
        f = detach(evaluate(loss, x, i, half=True))
    if array_namespace(f).any(array_namespace(f).isnan(f)):
        raise ValueError("loss(x, i) contains NaN; expected numbers")
    return f


def _valid_step(step: float | None, default: float, z: Array, ball: Ball) -> float:
    check_overflow("radius", ball.radius, 2 * ball.reach, z)
    step = default if step is None else valid_number("step", step, above=0.0)
    check_overflow("step", step, step + ball.radius, z)
    return step
