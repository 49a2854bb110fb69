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

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, device, to_single, without_gradient
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import check_overflow
from phiball.refimpl.numerics import to_double
from phiball.refimpl.sampling.gradients import check_gradient, loss_gradients
from phiball.refimpl.sampling.pointwise_loss import PointwiseLoss, class_margin, default_loss
from phiball.refimpl.sampling.precision import half_to_single, to_half_like
from phiball.refimpl.sampling.streaming import evaluate, indices, valid_data
from phiball.refimpl.types import Distribution, Gradient, Loss
from phiball.refimpl.validation import all_finite, holds, valid_count, valid_number

_MOMENTUM = 0.75  # the weight of the new step in `apgd`
_MIN_RISES = 0.75  # the fraction of steps between checkpoints that must increase the loss


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


def apgd(
    loss: Loss | None,
    x: Array,
    ball: Ball,
    *,
    gradient: Gradient | None = None,
    steps: int = 100,
    rng: Any = None,
    restarts: int = 1,
) -> Array:
    """Auto-PGD: an attack that adapts the step size of each data point, and needs no settings.

    Arguments:
    - `loss`, `x`, `ball`, `gradient`: as in `fgm`. The norm must be 1, 2 or inf.
    - `steps`: the number of steps of a run.
    - `rng`: unless None, each run starts from a uniform point of the ball.
    - `restarts`: the number of runs. More than one needs `rng`.

    Returns points of the shape of x: for each data point, the one with the largest loss of all iterates of
    all runs and of x itself. If `loss` is `pointwise_loss(model, y)` with integer labels, and `gradient` is
    not given, the first run uses the cross-entropy and then the margin, and each further run the margin to
    one other class, in the order of their scores at x; as many runs as classes try every class. Only points
    that are still classified correctly are attacked; of all iterates, the one with the smallest margin is
    returned. For three or more classes the margin is scaled as in the DLR loss of AutoAttack.

    Steps have momentum, and are twice the radius at first. At each checkpoint the step size is halved, and
    the run continues from its best point, if fewer than 3/4 of the steps since the last checkpoint increased
    the loss, or if neither the step size nor the best loss has changed since then.

    Reference: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
    parameter-free attacks".

    >>> import torch
    >>> from phiball import Ball, apgd
    >>> target = torch.tensor([[0.1, 0.2]])
    >>> loss = lambda x, i: -torch.sum((x - target) ** 2, -1)
    >>> x = apgd(loss, torch.zeros(1, 2), Ball(2, 1.0))
    >>> bool(torch.all(torch.abs(x - target) < 0.02))
    True
    """
    data, classifier = x, _is_classifier_loss(loss, gradient)
    objective: Any = _ClassifierLoss(loss, cross_entropy=True) if classifier else loss
    x, gradient, function = half_to_single(x, gradient, objective)
    x, i = _check_problem(gradient, x, ball)
    valid_count("steps", steps)
    if valid_count("restarts", restarts) > 1 and rng is None:
        raise ValueError(f"restarts is {restarts}; expected an rng for different starting points")
    check_overflow("radius", ball.radius, 4 * ball.reach, x)
    rng = None if rng is None else as_rng(rng)
    xp, event_ndim = array_namespace(x), x.ndim - 1
    best, value = x, _score(objective, _losses(function, x, i))
    active, objectives = i, objective.series(restarts) if classifier else restarts * [objective]
    for objective in objectives:
        if classifier:
            (active,) = xp.nonzero(value <= 0)
            if active.shape[0] == 0:
                break
        _, function = half_to_single(data, objective)
        centres, own_ball = xp.take(x, active, axis=0), ball.rows(active, event_ndim=event_ndim)
        start = centres if rng is None else white_noise(centres, own_ball, rng=rng)
        run = _Run(objective, function, gradient, active, xp.take(best, active, axis=0), value[active])
        _adaptive_ascent(run, start, centres, own_ball, steps)
        best, value = _put(best, active, run.best), _put(value, active, run.value)
    return to_half_like(best, data)


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


class _ClassifierLoss:
    """The cross-entropy or scaled margin of a classifier; keeps the `scores` and `margin` of its last call.

    `target`: classes (N,) that the margin refers to, instead of the largest score of another class.
    The scores are converted to double precision: in float32, gradients vanish for confident predictions.
    """

    def __init__(self, loss: Any, target: Array = None, *, cross_entropy: bool = False) -> None:
        self.given, self.targeted, self.cross_entropy = loss, target is not None, cross_entropy
        y = loss.y if target is None else array_namespace(target).stack([_labels(loss), target], axis=1)
        self.loss = replace(loss, loss=self._evaluate, y=y)
        self.scores: Array = None
        self.margin: Array = None  # positive where the class is wrong

    def __call__(self, x: Array, i: Array) -> Array:
        return self.loss(x, i)

    def series(self, restarts: int) -> list[_ClassifierLoss]:
        """The losses of all runs, after a call at the data points, whose scores order the targets."""
        targets = (restarts - 1) * [None]
        if self.scores.shape[1] > 2:
            xp = array_namespace(self.scores)
            order = xp.argsort(self.scores, axis=1, descending=True)
            others = xp.reshape(order[order != _labels(self.given)[:, None]], (order.shape[0], -1))
            targets = [others[:, k % others.shape[1]] for k in range(restarts - 1)]
        return [self, _ClassifierLoss(self.given), *(_ClassifierLoss(self.given, t) for t in targets)]

    def _evaluate(self, output: Array, y: Array) -> Array:
        xp, output, pair = array_namespace(output), to_double(to_single(output)), y
        y = pair[:, 0] if self.targeted else y
        loss = default_loss(output, y)  # also validates the outputs
        margin, spread = class_margin(output, y)
        self.scores, self.margin = xp.reshape(detach(output), (output.shape[0], -1)), detach(margin)
        if self.cross_entropy:
            return loss
        if self.targeted:
            both = xp.take_along_axis(output, pair, axis=1)
            margin = both[:, 1] - both[:, 0]
        return margin / spread


def _labels(loss: PointwiseLoss) -> Array:
    xp = array_namespace(loss.y)
    return xp.reshape(xp.astype(loss.y, xp.int64, copy=False), (-1,))


def _score(objective: Any, f: Array) -> Array:
    """The numbers by which points are compared: the margins of a classifier, otherwise the losses f."""
    return objective.margin if isinstance(objective, _ClassifierLoss) else f


def _is_classifier_loss(loss: Loss | None, gradient: Gradient | None) -> bool:
    """Whether `loss` is the default loss of a model with class labels, and `gradient` is not given."""
    if not isinstance(loss, PointwiseLoss) or loss.loss is not None or loss.y is None or gradient is not None:
        return False
    return not array_namespace(loss.y).isdtype(loss.y.dtype, "real floating")


@dataclass
class _Run:
    """Losses and gradients at the iterates of a run, with the worst point so far of each data point."""

    objective: Any
    function: Loss
    gradient: Gradient | None
    i: Array
    best: Array
    value: Array

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """(losses, gradients) at points."""
        f, g = _gradients(self.function, self.gradient, points, self.i)
        f = _losses(self.function, points, self.i) if f is None else f
        self.best, self.value = _better(self.best, self.value, points, _score(self.objective, f))
        return f, g


def _adaptive_ascent(run: _Run, now: Array, x: Array, ball: Ball, steps: int) -> None:
    """Auto-PGD from the points `now`."""
    xp, event_ndim = array_namespace(x), x.ndim - 1
    unit = replace(ball, radius=1.0)

    def wide(v: Array) -> Array:  # to be broadcast with x
        return xp.reshape(v, (-1, *[1] * event_ndim))

    value, g = run(now)
    best, best_value, best_g, before = now, value, g, now
    top = 2 * ball.radius or 1.0
    size = xp.full((x.shape[0],), top, dtype=x.dtype, device=device(x))
    last, last_value = 0, value  # number of steps and best loss at the last checkpoint
    rises = xp.zeros_like(value)  # steps since the last checkpoint that increased the loss
    halved = rises > 0
    checkpoints = _checkpoints(steps)
    for step in range(1, steps + 1):
        if ball.norm == 1:
            target = now + wide(size / top) * (_l1_maximizer(g, x, ball) - now)
        else:
            target = now + wide(size) * unit.steepest(g, event_ndim=event_ndim)
        target = ball.project(target, x, event_ndim=event_ndim)
        weight = 1.0 if step == 1 else _MOMENTUM
        moved = now + weight * (target - now) + (1 - weight) * (now - before)
        before, now = now, ball.project(moved, x, event_ndim=event_ndim)
        new_value, g = run(now)
        rises = rises + xp.astype(new_value > value, rises.dtype)
        better = new_value > best_value
        best, best_g = (xp.where(wide(better), new, old) for new, old in ((now, best), (g, best_g)))
        value, best_value = new_value, xp.where(better, new_value, best_value)
        if step in checkpoints:
            halved = (rises < _MIN_RISES * (step - last)) | (~halved & (best_value == last_value))
            last, last_value, rises = step, best_value, xp.zeros_like(value)
            size = xp.where(halved, size / 2, size)
            now, g = (xp.where(wide(halved), new, old) for new, old in ((best, now), (best_g, g)))
            value = xp.where(halved, best_value, value)


def _l1_maximizer(g: Array, x: Array, ball: Ball) -> Array:
    """The point of an l1 ball around x and its box with the largest g.z.

    Coordinates move to the box in the order of their gradients, until the radius is used up. Steps along
    single coordinates, as in `pgm`, stop at the box.
    """
    xp, shape = array_namespace(x), (x.shape[0], -1)
    scale = xp.ones_like(x) if ball.feature_scale is None else ball.feature_scale.like(x, x.ndim - 1)
    room = xp.full_like(x, ball.radius)
    if ball.clip is not None:
        distance = xp.where(g > 0, ball.clip[1] - x, x - ball.clip[0])
        room = xp.minimum(room, distance / xp.where(scale > 0, scale, xp.ones_like(scale)))
    room, gain = xp.reshape(room, shape), xp.reshape(xp.abs(g) * scale, shape)
    order = xp.argsort(-gain, axis=1)
    room = xp.take_along_axis(room, order, axis=1)
    used = xp.clip(ball.radius - (xp.cumulative_sum(room, axis=1) - room), min=0.0)
    length = xp.take_along_axis(xp.minimum(room, used), xp.argsort(order, axis=1), axis=1)
    return x + xp.reshape(length, x.shape) * xp.sign(g) * scale


def _checkpoints(steps: int) -> list[int]:
    """The steps after which step sizes are updated, as in the article."""
    fractions = [0.0, 0.22]
    while fractions[-1] < 1:
        fractions.append(fractions[-1] + max(fractions[-1] - fractions[-2] - 0.03, 0.06))
    # Without `round`, a rounding error could move a checkpoint to the next integer.
    return sorted({ceil(round(f * steps, 9)) for f in fractions[1:] if round(f, 9) < 1})


def _put(x: Array, index: Array, rows: Array) -> Array:
    """x with the rows at the increasing `index` replaced, without assignment, which JAX does not support."""
    xp, i = array_namespace(x), indices(x)
    at = xp.clip(xp.searchsorted(index, i), max=index.shape[0] - 1)
    mask = xp.reshape(xp.take(index, at) == i, (-1, *[1] * (x.ndim - 1)))
    return xp.where(mask, xp.take(rows, at, axis=0), x)


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
