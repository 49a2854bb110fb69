"""The unregularised adversarial risk of a data set, bounded from below by search.

E_z [ sup over x in B_rho(z) of f(x) ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from phiball.backends import Array, Rng, array_namespace, detach, device, to_single
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.batches import Data, Points, blocks, is_stream
from phiball.refimpl.sampling.half_points import in_single, rounded
from phiball.refimpl.sampling.streaming import CHUNK, evaluated, in_rows, joined, tiles, valid_sampling
from phiball.refimpl.types import Loss
from phiball.refimpl.validation import check_same_array_type, valid_array, valid_count


@dataclass(frozen=True)
class AdversarialRisk:
    """The largest losses found around each data point: a lower bound on the adversarial risk.

    - `value` (): the mean of `values`.
    - `values` (N,): the larger of `sampled` and `attacked`.
    - `points` (N,) + event: where that loss is attained; None for data in batches, which it would not fit.
    - `sampled` (N,): the largest loss among the sampled points.
    - `attacked` (N,): the loss at the attack's point; minus infinity without an attack.

    >>> import numpy as np
    >>> from phiball import Ball, adversarial_risk, rng
    >>> risk = adversarial_risk(lambda x, i: x[:, 0], np.eye(2), Ball(2, 0.0), n_samples=1, rng=rng(0))
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
        """The risk of all data points, from those of parts of them, in their order: as from all at once.

        >>> import numpy as np
        >>> from phiball import AdversarialRisk, Ball, adversarial_risk, rng
        >>> loss, ball = lambda x, i: x[:, 0], Ball(2, 0.0)
        >>> parts = [adversarial_risk(loss, z, ball, n_samples=1, rng=rng(0)) for z in np.eye(2)[:, None, :]]
        >>> float(AdversarialRisk.merge(parts).value)
        0.5
        """
        if not parts or not all(isinstance(part, AdversarialRisk) for part in parts):
            raise ValueError(f"parts is {parts!r}; expected results of adversarial_risk, at least one")
        points = [part.points for part in parts if part.points is not None]
        values, sampled, attacked = (
            joined([getattr(part, name) for part in parts]) for name in ("values", "sampled", "attacked")
        )
        where = joined(points) if len(points) == len(parts) else None
        return AdversarialRisk(array_namespace(values).mean(values), values, where, sampled, attacked)


def adversarial_risk(
    loss: Loss,
    x: Array | Data,
    ball: Ball,
    *,
    n_samples: int,
    rng: Rng,
    attack: Callable[..., Array] | None = None,
    labels: bool = False,
    chunk: int = CHUNK,
) -> AdversarialRisk:
    r"""Bound the unregularised risk $\mathbb{E}_z [\sup_{x \in B_\rho(z)} f(x)]$ from below, by search.

    Arguments:
    - `n_samples`: the number of random points tried in each ball, at least 1.
    - `attack`: a function attack(z) that returns points of the shape of z inside the balls, which are tried
      too; None for none. With `labels=True` it is attack(z, y). For batches it is called on some thousand
      data points at a time.
    - The others are those of `robust_risk`. The points of one data point are held in memory at a time.

    Returns the larger loss for each data point, the points where it is attained, and their mean. It is a
    lower bound: neither sampling nor a local search proves that there is no larger loss. Nothing carries a
    graph.

    Reference: Eq. (formula:adv) of Section 1.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Ball, adversarial_risk
    >>> z, ball = np.zeros((2, 3)), Ball(float("inf"), 0.5)
    >>> risk = adversarial_risk(
    ...     lambda x, i: x[:, 0], z, ball, n_samples=10, rng=rng(0), attack=lambda z: z + 0.5
    ... )
    >>> float(risk.value), bool(np.all(risk.sampled < 0.5))
    (0.5, True)
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    valid_sampling(ball, rng)
    n = valid_count("n_samples", n_samples, 1)
    valid_count("chunk", chunk, 1)
    stream, data = is_stream(x), x
    if not stream:
        x, loss = in_single(x, loss)
    tops: list[tuple[Array, ...]] = []
    tried: list[tuple[Array, Array]] = []

    def drawn() -> Iterator[tuple[Array, ...]]:
        for block in blocks(x, ball, n, chunk, labels=labels, evaluate=attack is not None):
            yield from tiles(block.z, block.i, ball, n, rng)
            if attack is not None:
                candidates = _attacked(attack, block, ball, labels, like=block.z if stream else data)
                found = [f for _, _, f in evaluated(loss, [(candidates, block.i)], chunk)]
                tried.append((candidates[:0, ...] if stream else candidates, joined(found)))

    pieces = evaluated(loss, drawn(), chunk)
    for points, f in in_rows(((points, f) for points, _, f in pieces), n):
        where, top = highest(points, f)
        tops.append((where[:0, ...] if stream else where, top))
    points, sampled = (joined(list(column)) for column in zip(*tops, strict=True))
    xp = array_namespace(sampled)
    attacked = xp.full_like(detach(sampled), -xp.inf)
    values = sampled
    if attack is not None:
        candidates, attacked = (joined(list(column)) for column in zip(*tried, strict=True))
        better = attacked > sampled
        values = xp.where(better, attacked, sampled)
        if not stream:
            points = xp.where(xp.reshape(better, (-1,) + (1,) * (points.ndim - 1)), candidates, points)
    if not xp.all(xp.isfinite(values)) or xp.any(xp.isnan(attacked)):
        raise ValueError("loss(x, i) contains NaN or infinity; expected finite numbers")
    where = None if stream else rounded(points, data)
    return AdversarialRisk(xp.mean(values), values, where, sampled, attacked)


def highest(x: Array, f: Array) -> tuple[Array, Array]:
    """The first point with the largest loss in each row, and that loss: x (g, n) + event, f (g, n)."""
    xp = array_namespace(f)
    g, n = f.shape
    top = xp.argmax(detach(f), axis=-1, keepdims=True)
    place = xp.arange(g, dtype=top.dtype, device=device(f)) * n + top[:, 0]
    points = xp.take(xp.reshape(x, (g * n, *x.shape[2:])), place, axis=0)
    return points, xp.take_along_axis(f, top, axis=-1)[:, 0]


def _attacked(attack: Callable[..., Array], block: Points, ball: Ball, labels: bool, *, like: Array) -> Array:
    """The points of the attack on a block, which it gets in the precision of `like`."""
    z = rounded(block.z, like)
    xp = array_namespace(z)
    if not callable(attack):
        raise TypeError(f"attack is {attack!r}; expected a function attack(z), or None")
    x = attack(z, block.i) if labels else attack(z)
    valid_array("attack(z)", to_single(x))
    check_same_array_type("attack(z)", x, z, other="z")
    if tuple(x.shape) != tuple(z.shape):
        raise ValueError(f"attack(z) has shape {tuple(x.shape)}; expected that of z, {tuple(z.shape)}")
    x = xp.astype(detach(x), z.dtype, copy=False)
    if not xp.all(xp.isfinite(x)):
        raise ValueError("attack(z) contains NaN or infinity; expected finite numbers")
    if not xp.all(ball.contains(x, z, event_ndim=z.ndim - 1)):
        worst = float(xp.max(ball.length(to_single(x) - to_single(z), event_ndim=z.ndim - 1)))
        raise ValueError(f"attack(z) moves a point by {worst!r}; expected at most the radius {ball.radius!r}")
    if ball.clip is not None and not xp.all((x >= ball.clip[0]) & (x <= ball.clip[1])):
        raise ValueError(
            f"attack(z) leaves the box clip = {ball.clip} of the ball; expected points inside it"
        )
    return to_single(x)
