"""Quadrature over balls of one and two dimensions: the robust risk without random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi, prod, sin

from phiball.backends import Array, array_namespace, detach, device
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence, valid_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import CHUNK, each_eta, evaluated, indices, slices, valid_data
from phiball.refimpl.types import Loss
from phiball.refimpl.validation import valid_array, valid_count, valid_finite

_DEGREE = 16  # intervals per panel; even, and so is half of it
Rule = list[tuple[float, float, float]]  # node, weight, weight in the coarse rule


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights for the uniform distribution of a ball around each z.

    - `points`, batch + (K,) + event: the nodes.
    - `weights` (K,): positive, with sum one.
    - `coarse` (K,): the weights of the rule on every second node in each direction, and zero on the others.
      The difference between the two results estimates the error of the coarse rule.
    """

    points: Array
    weights: Array
    coarse: Array
    __repr__ = one_line


def quadrature(ball: Ball, z: Array, *, panels: int = 1, event_ndim: int = 1) -> Quadrature:
    """Make nodes and weights for integrals over the ball around each z, in one or two dimensions.

    Arguments:
    - `ball`: a `Ball` of any norm. With `clip`, nodes outside the box are moved to its border, like samples.
    - `z`, batch + event: points of one or two coordinates; `event_ndim` trailing axes are one point.
    - `panels`: the number of pieces into which a line, a radius and an eighth of a turn are cut. There are
      16 panels + 1 nodes on a line, and 2048 panels^2 in the plane.

    Returns `points`, batch + (K,) + event, and `weights` (K,): the mean of f over the ball is the sum of
    weights * f(points). `coarse` (K,) are the weights of a coarser rule, for an estimate of the error.

    It is the Clenshaw-Curtis rule on 17 nodes per panel, in the plane in polar coordinates. One panel gives
    about 12 digits where f is smooth; more panels are for kinks.

    >>> import numpy as np
    >>> from phiball.refimpl import Ball
    >>> from phiball.risk import quadrature
    >>> rule = quadrature(Ball(2, 1.0), np.zeros(2))
    >>> print(round(float(np.sum(rule.weights * rule.points[:, 0] ** 2)), 12))  # radius^2/(d + 2)
    0.25
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.45)")
    valid_array("z", z)
    xp = array_namespace(z)
    valid_count("panels", panels, 1)
    valid_count("event_ndim", event_ndim, 0)
    if event_ndim > z.ndim:
        raise ValueError(f"event_ndim is {event_ndim}; expected at most the axes of z, {z.ndim}")
    batch, event = z.shape[: z.ndim - event_ndim], z.shape[z.ndim - event_ndim :]
    if prod(event) not in (1, 2):
        raise ValueError(
            f"z has points of {prod(event)} coordinates, shape {tuple(event)}; expected 1 or 2: "
            "robust_risk samples in any dimension"
        )
    valid_finite("z", z)
    ball.check_centres(detach(z))
    nodes, fine, coarse = _line(panels) if prod(event) == 1 else _plane(panels, ball.norm)
    where = {"dtype": z.dtype, "device": device(z)}
    b = xp.reshape(ball.radius * xp.asarray(nodes, **where), (len(fine), *event))
    if ball.feature_scale is not None:
        if ball.feature_scale.per_point(event_ndim) or ball.dimension(event, event_ndim=event_ndim) < prod(
            event
        ):
            raise ValueError(f"ball is {ball!r}; expected one size per coordinate, none of them 0")
        b = b * ball.feature_scale.like(b, event_ndim)
    points = xp.expand_dims(z, axis=len(batch)) + b
    if ball.clip is not None:
        points = xp.clip(points, *ball.clip)
    return Quadrature(points, xp.asarray(fine, **where), xp.asarray(coarse, **where))


def _clenshaw_curtis(m: int) -> list[tuple[float, float]]:
    """Nodes (1 - cos(k pi/m))/2 in [0, 1] and weights that sum to one; m is even."""
    rule = []
    for k in range(m + 1):
        total = 1 - sum(
            (1 if 2 * j == m else 2) / (4 * j * j - 1) * cos(2 * j * k * pi / m) for j in range(1, m // 2 + 1)
        )
        rule.append((sin(k * pi / (2 * m)) ** 2, total / m / (2 if k in (0, m) else 1)))
    return rule


def _composite(panels: int, m: int) -> Rule:
    """The rule on m intervals in each of the panels of [0, 1], and on every second node of it."""
    fine, coarse = _clenshaw_curtis(m), _clenshaw_curtis(m // 2)
    rule: Rule = []
    for panel in range(panels):
        for k, (t, w) in enumerate(fine):
            c = coarse[k // 2][1] if k % 2 == 0 else 0.0
            if k == 0 and panel:  # the panels share their ends
                t_end, w_end, c_end = rule.pop()
                rule.append((t_end, w_end + w / panels, c_end + c / panels))
            else:
                rule.append(((panel + t) / panels, w / panels, c / panels))
    return rule


def _line(panels: int) -> tuple[list[list[float]], list[float], list[float]]:
    rule = _composite(panels, _DEGREE)
    return [[2 * t - 1] for t, _, _ in rule], [w for _, w, _ in rule], [c for _, _, c in rule]


def _plane(panels: int, norm: float) -> tuple[list[list[float]], list[float], list[float]]:
    """Polar coordinates: b = t u(angle) with ||u|| = 1, area element |u|^2 t dt dangle."""
    # The centre has no weight; one turn ends where it began.
    radial = [(t, 2 * t * w, 2 * t * c) for t, w, c in _composite(panels, _DEGREE)[1:]]
    turn = _composite(8 * panels, _DEGREE)
    last = turn.pop()
    turn[0] = (0.0, turn[0][1] + last[1], turn[0][2] + last[2])
    angular = []
    for s, w, c in turn:
        x, y = _direction(s)
        size = max(abs(x), abs(y)) if norm == inf else (abs(x) ** norm + abs(y) ** norm) ** (1 / norm)
        angular.append((x / size, y / size, w / size**2, c / size**2))
    area = sum(w for _, _, w, _ in angular), sum(c for _, _, _, c in angular)
    nodes = [[t * x, t * y] for t, _, _ in radial for x, y, _, _ in angular]
    fine = [v * w / area[0] for _, v, _ in radial for _, _, w, _ in angular]
    coarse = [v * c / area[1] for _, _, v in radial for _, _, _, c in angular]
    return nodes, fine, coarse


def _direction(s: float) -> tuple[float, float]:
    """(cos, sin) of s turns, exact on the axes."""
    quarter, rest = divmod(4 * s, 1)
    x, y = cos(rest * pi / 2), sin(rest * pi / 2)
    return [(x, y), (-y, x), (-x, -y), (y, -x)][int(quarter) % 4]


@dataclass(frozen=True)
class Integral:
    """A risk computed by quadrature.

    - `value` (): the mean of `values`.
    - `values` (N,): the value of the inner problem at each data point.
    - `error` (): the mean over data points of the change of the value from the coarse rule to the fine one.
      It is an estimate, not a bound: it misses a peak between the nodes.
    """

    value: Array
    values: Array
    error: Array
    __repr__ = one_line


def integrated_risk(
    loss: Loss,
    x: Array,
    ball: Ball,
    eta: float | Array,
    divergence: Divergence,
    *,
    panels: int = 4,
    chunk: int = CHUNK,
) -> Integral:
    """Compute the robust risk by quadrature, without sampling, for data of one or two coordinates.

    Arguments:
    - `panels`: refines the rule, see `quadrature`.
    - The others are those of `robust_risk`. The nodes of one data point, or one chunk, are held at a time.

    Returns `value`, `values` (N,) and `error`, which carry no graph.

    Reference: Eq. (CSO:formula) of Section 1.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC, Ball
    >>> from phiball.risk import integrated_risk
    >>> risk = integrated_risk(lambda x, i: x[:, 0], np.full((1, 1), 0.5), Ball(2, 0.5), 1.0, ENTROPIC)
    >>> print(round(float(risk.value), 12), bool(risk.error < 1e-12))  # log(e - 1)
    0.541324854613 True
    """
    x = valid_data(x)
    xp = array_namespace(x)
    valid_divergence(divergence)
    valid_count("chunk", chunk, 1)
    eta = each_eta(eta, x)
    event_ndim = x.ndim - 1
    i = indices(x)
    K = quadrature(ball, x[:1, ...], panels=panels, event_ndim=event_ndim).weights.shape[0]
    values, errors = [], []
    for part in slices(x.shape[0], max(1, chunk // K)):
        rule = quadrature(ball, x[part, ...], panels=panels, event_ndim=event_ndim)
        shape = rule.points.shape[:2]
        x = xp.reshape(rule.points, (-1, *x.shape[1:]))
        pair = (x, xp.reshape(xp.broadcast_to(i[part, None], shape), (-1,)))
        f = xp.reshape(xp.concat([f for _, _, f in evaluated(loss, [pair], chunk)]), shape)
        fine = worst_case(f, eta[part], divergence, p=xp.astype(rule.weights, f.dtype, copy=False))
        coarse = worst_case(detach(f), eta[part], divergence, p=xp.astype(rule.coarse, f.dtype, copy=False))
        values.append(fine.value)
        errors.append(xp.abs(detach(fine.value) - coarse.value))
    every = xp.concat(values)
    return Integral(xp.mean(every), every, xp.mean(xp.concat(errors)))
