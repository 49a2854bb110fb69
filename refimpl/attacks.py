"""Attacks: search for points with a large loss in the ball around each data point (Section 6.1).

All attacks take data points x (N,) + event, and return points of the same shape, each in the ball around its
data point. The loss is a function loss(x, i), such as `pointwise_loss(model, y)`. Its gradient in x is
computed with torch or JAX; for other libraries pass gradient=, a function gradient(x, i) that returns an
array of the shape of x.

A step moves each point by a vector of length `step` (in the norm of the ball) that maximizes the linearized
loss: with the gradient g, along sign(g) in linf, along g in l2, along one coordinate in l1. The paper's
"stepsize 0.1" for a ball of radius 0.45 may mean `step=0.1`, or Ball(norm, 0.1), where 0.1 bounds the whole
perturbation.

A point with gradient zero does not move; a random start (`rng`) helps on plateaus. If the ball has
clip=(lo, hi), points are clipped to that box. Results carry no gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, to_single, without_gradient
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import check_overflow
from phiball.refimpl.sampling.gradients import check_gradient, loss_gradients
from phiball.refimpl.sampling.precision import half_to_single, to_half_like
from phiball.refimpl.sampling.streaming import evaluate, indices, valid_data
from phiball.refimpl.types import Distribution, Gradient, Loss
from phiball.refimpl.validation import all_finite, holds, valid_count, valid_number


def fgm(
    loss: Loss | None,
    x: Array,
    ball: Ball,
    *,
    gradient: Gradient | None = None,
    step: float | None = None,
    rng: Any = None,
) -> Array:
    """The fast gradient method: an attack with one gradient step, which maximizes the linearized loss.

    Arguments:
    - `loss`: a function loss(x, i), such as `pointwise_loss(model, y)`; None if `gradient` is given.
    - `x` (N,) + event: the data points.
    - `ball`: a `Ball` with the norm and the radius of the attack.
    - `gradient`: a function gradient(x, i) for libraries without automatic differentiation.
    - `step`: the length of the step. The default is the radius, or 1.25 times the radius from a random start.
    - `rng`: None starts from x. An integer, a generator or an `Rng` starts from a uniform point of the ball,
      and the step is projected onto the ball (Wong, Rice and Kolter, "Fast is better than free"); the norm
      must then be 1, 2 or inf.

    Returns points of the shape of x. By default, a loss that is linear in x is maximized exactly if the ball
    has no clip.

    Reference: Section 6.1.

    >>> import torch
    >>> from phiball import Ball, fgm
    >>> w = torch.tensor([3.0, -4.0])
    >>> print(fgm(lambda x, i: x @ w, torch.zeros(1, 2), Ball(2, 0.5)))
    tensor([[ 0.3000, -0.4000]])
    """
    data = x
    x, loss, gradient = half_to_single(x, loss, gradient)
    x, i = _check_problem(gradient, x, ball)
    step = _valid_step(step, ball.radius if rng is None else 1.25 * ball.radius, x, ball)
    start = x if rng is None else white_noise(x, ball, rng=rng)
    _, g = _gradients(loss, gradient, start, i)
    return to_half_like(_ascend(start, g, x, ball, step), data)


def ifgm(
    loss: Loss | None,
    x: Array,
    ball: Ball,
    *,
    gradient: Gradient | None = None,
    steps: int = 15,
    step: float | None = None,
) -> Array:
    """The iterated fast gradient method: an attack with projected gradient steps from x.

    Arguments:
    - `steps`: the number of steps, 15 in the paper.
    - `step`: the length of one step, by default 2.5 radius / steps.
    - The other arguments are those of `fgm`. The norm must be 1, 2 or inf.

    Returns the last iterate, of the shape of x.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball import Ball, ifgm
    >>> x = np.array([[1.0, 2.0]])
    >>> print(np.round(ifgm(None, x, Ball(float("inf"), 0.5), gradient=lambda x, i: x), 6))
    [[1.5 2.5]]
    """
    return pgm(loss, x, ball, gradient=gradient, steps=steps, step=step, keep_best=False)


def pgm(
    loss: Loss | None,
    x: Array,
    ball: Ball,
    *,
    gradient: Gradient | None = None,
    steps: int = 15,
    step: float | None = None,
    rng: Any = None,
    restarts: int = 1,
    keep_best: bool = True,
) -> Array:
    """The projected gradient method: an attack with gradient steps from x or from random points.

    Arguments beyond those of `fgm`:
    - `steps`: the number of steps, 15 in the paper.
    - `step`: the length of one step, by default 2.5 radius / steps.
    - `rng`: unless None, each run starts from x + u b, with b uniform on the ball and u uniform on (0, 1).
    - `restarts`: the number of runs. More than one needs `rng`, and a loss to compare the runs.
    - `keep_best`: True returns, for each data point, the best of all iterates of all runs and of x itself;
      False returns the last iterate. Without a loss, only the last iterate is available.

    Returns points of the shape of x, after steps * restarts gradients. The norm must be 1, 2 or inf. With
    torch, `keep_best` costs one more forward pass per run, and one at x for random starts; with `gradient`,
    one more per step.

    Reference: Section 6.1.

    >>> import torch
    >>> from phiball import Ball, pgm
    >>> target = torch.tensor([[0.1, 0.2]])
    >>> loss = lambda x, i: -torch.sum((x - target) ** 2, -1)
    >>> x = pgm(loss, torch.zeros(1, 2), Ball(2, 1.0), steps=100, rng=0)
    >>> bool(torch.all(torch.abs(x - target) < 0.03))
    True
    """
    data = x
    x, loss, gradient = half_to_single(x, loss, gradient)
    x, i = _check_problem(gradient, x, ball)
    valid_count("steps", steps)
    valid_count("restarts", restarts)
    step = _valid_step(step, 2.5 * ball.radius / steps, x, ball)
    keep_best = keep_best and loss is not None
    if restarts > 1 and (rng is None or not keep_best):
        raise ValueError(
            f"restarts is {restarts}; expected an rng for different starting points, and a loss with "
            "keep_best=True to compare the runs"
        )
    rng = None if rng is None else as_rng(rng)
    points = best = x
    value = None
    if keep_best and rng is not None:
        best, value = _better(x, None, x, _losses(loss, x, i))
    for _ in range(restarts):
        points = x if rng is None else _random_start(x, ball, rng)
        for _ in range(steps):
            f, g = _gradients(loss, gradient, points, i)
            if keep_best:
                best, value = _better(best, value, points, _losses(loss, points, i) if f is None else f)
            points = _ascend(points, g, x, ball, step)
        if keep_best:
            best, value = _better(best, value, points, _losses(loss, points, i))
    return to_half_like(best if keep_best else points, data)


def white_noise(x: Array, ball: Distribution, *, rng: Any = None) -> Array:
    """Perturb the data without regard to the loss: draw one uniform point of the ball around each x.

    Arguments:
    - `x` (N,) + event: the data points.
    - `ball`: a `Ball` of any norm, or another distribution with a method `sample`.
    - `rng`: an integer, a generator, an `Rng`, or None for fresh entropy.

    Returns points of the shape of x.

    Reference: Section 6.1.

    >>> import numpy as np
    >>> from phiball import Ball, white_noise
    >>> x, ball = np.zeros((2, 3)), Ball(1, 0.5)
    >>> bool(np.all(ball.contains(white_noise(x, ball), x)))
    True
    """
    data, x = x, valid_data(to_single(x), name="x")
    if not callable(getattr(ball, "sample", None)):
        raise TypeError(f"ball is {ball!r}; expected a Ball, or a distribution with a sample method")
    return to_half_like(ball.sample(x, 1, rng=as_rng(rng), event_ndim=x.ndim - 1)[:, 0, ...], data)


def _random_start(x: Array, ball: Ball, rng: Rng) -> Array:
    """x + u b, with b uniform on the ball and u uniform on (0, 1)."""
    u = rng.uniform((x.shape[0],) + (1,) * (x.ndim - 1), like=x)
    return x + u * (white_noise(x, ball, rng=rng) - x)


def _ascend(points: Array, g: Array, x: Array, ball: Ball, step: float) -> Array:
    """Move points by the vector of length `step` with the largest g.b, and project them onto the ball."""
    event_ndim = x.ndim - 1
    moved = points + replace(ball, radius=step).steepest(g, event_ndim=event_ndim)
    if points is x and step <= ball.radius:  # stays inside: no projection, which some norms do not have
        return moved if ball.clip is None else array_namespace(x).clip(moved, *ball.clip)
    return ball.project(moved, x, event_ndim=event_ndim)


def _better(x: Array, f: Array | None, other: Array, f_other: Array) -> tuple[Array, Array]:
    """(point, loss) with the larger loss, of x with losses f and `other`; `other` if f is None."""
    xp = array_namespace(x)
    if not holds(~xp.isnan(f_other)):
        raise ValueError("loss(x, i) contains NaN; expected numbers")
    if f is None:
        return other, f_other
    better = f_other > f
    wide = xp.reshape(better, better.shape + (1,) * (x.ndim - 1))
    return xp.where(wide, other, x), xp.where(better, f_other, f)


def _check_problem(gradient: Gradient | None, x: Array, ball: Ball) -> tuple[Array, Array]:
    """Validate the arguments of an attack; return x, detached, and the indices of its data points."""
    x = valid_data(x, name="x")
    check_gradient(gradient, x)
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    if ball.clip is not None and not holds((x >= ball.clip[0]) & (x <= ball.clip[1])):
        raise ValueError(f"x is outside the box clip = {ball.clip} of the ball; expected data inside it")
    return x, indices(x)


def _gradients(
    loss: Loss | None, gradient: Gradient | None, x: Array, i: Array
) -> tuple[Array | None, Array]:
    """`loss_gradients`, with a check that the gradients are finite."""
    f, g = loss_gradients(loss, gradient, x, i)
    if not all_finite(g):
        raise ValueError("gradient(x, i) contains NaN or infinity; expected finite numbers")
    return f, g


def _losses(loss: Loss | None, x: Array, i: Array) -> Array:
    with without_gradient():
        return detach(evaluate(loss, x, i, half=True))


def _valid_step(step: float | None, default: float, x: Array, ball: Ball) -> float:
    check_overflow("radius", ball.radius, 2 * ball.reach, x)
    step = default if step is None else valid_number("step", step, above=0.0)
    check_overflow("step", step, step + ball.radius, x)
    return step
