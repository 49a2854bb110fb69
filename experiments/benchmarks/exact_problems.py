"""Problems whose regularised risk and its gradient are known exactly, to measure estimators against.

A logistic loss in the plane with the quadratic divergence, whose risk and gradient are integrals over the
disc, and a linear loss in many dimensions with the entropic one, whose risk is eta log E exp(theta.b/eta).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from phiball.backends import Array
from phiball.refimpl import ENTROPIC, QUADRATIC, Ball, Divergence, integrated_risk, quadrature, worst_case

BATCH = 64


@dataclass(frozen=True)
class Problem:
    """A loss(theta, x, i) around data z whose regularised risk is known.

    `value` is the mean risk over the data; `slopes` (n, k) are the gradients in theta of the risk of each
    data point.
    """

    name: str
    z: Array
    theta: Array
    ball: Ball
    eta: float
    divergence: Divergence
    loss: Callable[[Array, Array, Array], Array]
    gradient: Callable[[Array, Array, Array], Array]
    value: float
    slopes: Array

    @property
    def slope(self) -> Array:
        """The gradient of the mean risk."""
        return np.mean(self.slopes, axis=0)

    @property
    def spread(self) -> float:
        """The noise that drawing a batch adds: the distance of its mean slope from that of all data."""
        return sqrt(np.sum(np.var(self.slopes, axis=0)) / BATCH)


def logistic(n: int = BATCH) -> Problem:
    """Return the problem of log(1 + exp(-y theta.x)) around n points of the plane, on a disc."""
    source = np.random.default_rng(0)
    z = source.normal(size=(n, 2))
    y = np.where(source.random(n) < 0.5, -1.0, 1.0)
    theta = np.array([2.0, -1.0])
    ball, eta, divergence = Ball(2, 1.0), 0.2, QUADRATIC

    def loss(theta: Array, x: Array, i: Array) -> Array:
        return np.logaddexp(0.0, -y[i] * (x @ theta))

    def gradient(theta: Array, x: Array, i: Array) -> Array:
        return (-y[i] / (1 + np.exp(y[i] * (x @ theta))))[:, None] * x

    risk = integrated_risk(lambda x, i: loss(theta, x, i), z, ball, eta, divergence, panels=2)
    rule = quadrature(ball, z, panels=2)
    slopes = np.empty_like(z)
    for i, x in enumerate(rule.points):  # by Danskin's theorem, with the weights of the inner problem
        index = np.full(len(x), i)
        gamma = worst_case(loss(theta, x, index), eta, divergence, p=rule.weights).weights
        slopes[i] = gamma @ gradient(theta, x, index)
    name, value = "logistic, d = 2, quadratic", float(risk.value)
    return Problem(name, z, theta, ball, eta, divergence, loss, gradient, value, slopes)


def linear(n: int = BATCH, d: int = 10) -> Problem:
    """Return the problem of theta.x around n points in d dimensions, on an l2 ball."""
    source = np.random.default_rng(0)
    z = source.normal(size=(n, d)) / sqrt(d)
    theta = source.normal(size=d)
    theta /= np.linalg.norm(theta)
    ball, eta = Ball(2, 1.0), 0.1

    def risk(theta: Array) -> Array:  # of each data point
        return z @ theta + eta * ball.log_mgf(theta / eta)

    h = 1e-5  # the third derivative of the risk is below 1/eta^2, so that both errors stay below 1e-7
    slopes = [(risk(theta + h * e) - risk(theta - h * e)) / (2 * h) for e in np.eye(d)]
    return Problem(
        f"linear, d = {d}, entropic",
        z,
        theta,
        ball,
        eta,
        ENTROPIC,
        lambda theta, x, i: x @ theta,
        lambda theta, x, i: x,
        float(np.mean(risk(theta))),
        np.stack(slopes, axis=-1),
    )


def problems() -> list[Problem]:
    """Return the problems of the table."""
    return [logistic(), linear()]
