"""A lower bound on the adversarial risk E_z [ sup over x in B_rho(z) of f(x) ] of a data set, by search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from phiball.backends import Array, array_namespace, as_rng, detach, device, to_single
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.batches import Block, Data, StreamLoss, blocks, is_stream
from phiball.refimpl.sampling.precision import half_to_single, to_half_like
from phiball.refimpl.sampling.streaming import CHUNK, concat, evaluate_chunks, regroup_rows, sample_tiles
from phiball.refimpl.types import Loss
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count

Attack = Callable[[Loss, Array, Ball], Array]


@dataclass(frozen=True)
class AdversarialRisk:
    """The largest losses found around each data point: a lower bound on the adversarial risk.

    - `value` (): the mean of `values`.
    - `values` (N,): the larger of `sampled` and `attacked`, for each data point.
    - `points` (N,) + event: the points where the losses are `values`; None for data in batches.
    - `sampled` (N,): the largest loss among the sampled points.
    - `attacked` (N,): the loss at the attacked point; -inf without an attack.

    >>> import numpy as np
    >>> from phiball import Ball, adversarial_risk
    >>> risk = adversarial_risk(lambda x, i: x[:, 0], np.eye(2), Ball("l2", 0.0), n_samples=1, rng=0)
    >>> print(risk.values)
    [1. 0.]
    """

    value: Array
    values: Array
    points: Array | None
    sampled: Array
    attacked: Array
    __repr__ = one_line

    @staticmethod
    def merge(parts: Sequence[AdversarialRisk]) -> AdversarialRisk:
        """Merge the risks of parts of the data, in order, into the risk of all data points.

        >>> import numpy as np
        >>> from phiball import AdversarialRisk, Ball, adversarial_risk
        >>> loss, ball = lambda x, i: x[:, 0], Ball("l2", 0.0)
        >>> parts = [adversarial_risk(loss, x, ball, rng=0) for x in np.eye(2)[:, None, :]]
        >>> float(AdversarialRisk.merge(parts).value)
        0.5
        """
        if not parts or not all(isinstance(part, AdversarialRisk) for part in parts):
            raise ValueError(f"parts is {parts!r}; expected one or more results of adversarial_risk")
        points = [part.points for part in parts if part.points is not None]
        values, sampled, attacked = (
            concat([getattr(part, name) for part in parts]) for name in ("values", "sampled", "attacked")
        )
        where = concat(points) if len(points) == len(parts) else None
        return AdversarialRisk(array_namespace(values).mean(values), values, where, sampled, attacked)


def adversarial_risk(
    loss: Loss,
    x: Array | Data,
    ball: Ball,
    *,
    n_samples: int = 100,
    attack: Attack | None = None,
    rng: Any = None,
    chunk: int = CHUNK,
) -> AdversarialRisk:
    r"""A lower bound on the adversarial risk $\mathbb{E}_z [\sup_{x \in B_\rho(z)} f(x)]$, by search.

    Arguments:
    - `loss`, `x`, `rng`, `chunk`: as in `robust_risk`.
    - `ball`: a `Ball`.
    - `n_samples`: the number of random points tried in each ball, at least 1.
    - `attack`: None, or an attack such as `pgm` or `partial(pgm, steps=50)`: a function attack(loss, x, ball)
      that returns points of the shape of x inside the balls. Data in batches are attacked a few thousand data
      points at a time, with a loss whose index counts these data points.

    Returns an `AdversarialRisk`, without a graph. It is a lower bound, because neither sampling nor a local
    search proves that there is no larger loss.

    Reference: Eq. (formula:adv) of Section 1.

    >>> import numpy as np
    >>> from phiball import Ball, adversarial_risk
    >>> x, ball = np.zeros((2, 3)), Ball("linf", 0.5)
    >>> risk = adversarial_risk(lambda x, i: x[:, 0], x, ball, attack=lambda loss, x, ball: x + 0.5, rng=0)
    >>> float(risk.value), bool(np.all(risk.sampled < 0.5))
    (0.5, True)
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    if attack is not None and not callable(attack):
        raise TypeError(f"attack is {attack!r}; expected a function attack(loss, x, ball), or None")
    rng = as_rng(rng)
    n = valid_count("n_samples", n_samples, 1)
    valid_count("chunk", chunk, 1)
    stream, data, full_loss = is_stream(x), x, loss
    if stream:
        full_loss = StreamLoss(loss)
    else:
        x, full_loss = half_to_single(x, loss)
    tops: list[tuple[Array, ...]] = []
    tried: list[tuple[Array, Array]] = []

    def sampled_pieces() -> Iterator[tuple[Array, ...]]:
        for block in blocks(x, ball, n, chunk, loss=loss, evaluate=attack is not None):
            if isinstance(full_loss, StreamLoss):
                full_loss.add(block)
            yield from sample_tiles(block.x, block.i, ball, n, rng)
            if attack is not None:
                candidates = _attacked(attack, loss, block, ball, like=block.x if stream else data)
                found = [f for _, _, f in evaluate_chunks(full_loss, [(candidates, block.i)], chunk)]
                tried.append((candidates[:0, ...] if stream else candidates, concat(found)))

    pieces = evaluate_chunks(full_loss, sampled_pieces(), chunk)
    for points, f in regroup_rows(((points, f) for points, _, f in pieces), n):
        where, top = highest(points, f)
        tops.append((where[:0, ...] if stream else where, top))
    points, sampled = (concat(list(column)) for column in zip(*tops, strict=True))
    xp = array_namespace(sampled)
    attacked = xp.full_like(detach(sampled), -xp.inf)
    values = sampled
    if attack is not None:
        candidates, attacked = (concat(list(column)) for column in zip(*tried, strict=True))
        better = attacked > sampled
        values = xp.where(better, attacked, sampled)
        if not stream:
            points = xp.where(xp.reshape(better, (-1,) + (1,) * (points.ndim - 1)), candidates, points)
    if not xp.all(xp.isfinite(values)) or xp.any(xp.isnan(attacked)):
        raise ValueError("loss(x, i) contains NaN or infinity; expected finite numbers")
    where = None if stream else to_half_like(points, data)
    return AdversarialRisk(xp.mean(values), values, where, sampled, attacked)


def highest(points: Array, f: Array) -> tuple[Array, Array]:
    """(point, loss) where the loss is largest in each row, of points (g, n) + event with losses f (g, n)."""
    xp = array_namespace(f)
    g, n = f.shape
    top = xp.argmax(detach(f), axis=-1, keepdims=True)
    position = xp.arange(g, dtype=top.dtype, device=device(f)) * n + top[:, 0]
    chosen = xp.take(xp.reshape(points, (g * n, *points.shape[2:])), position, axis=0)
    return chosen, xp.take_along_axis(f, top, axis=-1)[:, 0]


def _attacked(attack: Attack, loss: Loss, block: Block, ball: Ball, *, like: Array) -> Array:
    """The attacked points of a block, validated; the attack is called with x in the precision of `like`."""
    x = to_half_like(block.x, like)
    xp = array_namespace(x)
    points = attack(block.local_loss(loss), x, ball.rows(block.i, event_ndim=x.ndim - 1))
    name = "attack(loss, x, ball)"
    check_array(name, to_single(points))
    check_same_array_type(name, points, x, other="x")
    if tuple(points.shape) != tuple(x.shape):
        raise ValueError(f"{name} has shape {tuple(points.shape)}; expected {tuple(x.shape)}, as x")
    points = xp.astype(detach(points), x.dtype, copy=False)
    if not xp.all(xp.isfinite(points)):
        raise ValueError(f"{name} contains NaN or infinity; expected finite numbers")
    if not xp.all(ball.contains(points, x, event_ndim=x.ndim - 1)):
        worst = float(xp.max(ball.length(to_single(points) - to_single(x), event_ndim=x.ndim - 1)))
        raise ValueError(f"{name} moves a point by {worst!r}; expected at most the radius {ball.radius!r}")
    if ball.clip is not None and not xp.all((points >= ball.clip[0]) & (points <= ball.clip[1])):
        raise ValueError(f"{name} is outside the box clip = {ball.clip}; expected points inside it")
    return to_single(points)
