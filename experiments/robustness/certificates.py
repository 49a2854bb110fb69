"""The points of a batch whose class no perturbation within a radius changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from phiball.backends import Array, array_namespace, device
from phiball.backends.torch_layers import Layer, network_layers
from phiball.experiments.robustness.models import REGRESSOR, Model, to_float64
from phiball.refimpl import Ball
from phiball.refimpl.certify import certified_margins

MAX_PASSES = 1500  # per point, up to which a network is certified by "crown"
MAX_ENTRIES = 2**24  # of the coefficients of one point in "crown-ibp"; "interval" certifies larger networks
AFFINE_TOL = 4e-8  # relative to the scores: an estimator is affine up to 1e-8

Certificate = Callable[[Array, Array, Ball], Any]  # (x, y, ball) -> whether each point is certified


def certify_batch(
    model: Model, x: Array, y: Array, wrong: Any, balls: dict[float, Ball], norm: str, method: str | None
) -> tuple[str, dict[float, Any]]:
    """The method, and for each radius an array (n,) that is 0 where a certificate proves the class y, else 1.

    Arguments:
    - `wrong`: 1 for the points that are misclassified without a perturbation, else 0.
    - `balls`: the ball of each radius, in increasing order.
    - `method`: the method for networks, as in `AttackSettings`.

    Without a certificate, returns the reason and {}.
    """
    if model.smoothed is not None:
        return _certify_smoothed(model.smoothed, x, y, balls, norm)
    text, certificate = _find_certificate(model, x, method)
    if certificate is None:
        return text, {}
    xp, uncertified, out = array_namespace(x), np.array(wrong), {}
    for radius, ball in balls.items():
        (left,) = np.nonzero(uncertified == 0)  # other points are not certified at larger radii either
        if radius > 0 and len(left):
            rows = xp.asarray(left, device=device(x))
            uncertified = uncertified.copy()
            uncertified[left] = ~certificate(xp.take(x, rows, axis=0), xp.take(y, rows, axis=0), ball)
        out[radius] = uncertified
    return text, out


def _find_certificate(model: Model, x: Array, method: str | None) -> tuple[str, Certificate | None]:
    if model.kind == REGRESSOR:
        return "certificates are for classifiers", None
    if model.affine:
        text = "exact" if len(model.affine) == 1 else "a bound on the mean of linear classifiers"
        return text, partial(_certify_affine, model)
    if model.module is None:
        return "the model is neither a torch module nor linear", None
    if model.exported:
        return "the layers of an exported program are unknown; pass the torch module", None
    try:
        layers = network_layers(model.module, x[:1])
    except Exception as error:  # tracing runs code of the user
        return str(error), None
    entries = max(2, prod(layers[-1].shape)) * max(prod(layer.shape) for layer in layers)
    methods: list[str] = ["crown-ibp", "crown"][: 2 if _crown_passes(layers) <= MAX_PASSES else 1]
    if method or entries > MAX_ENTRIES:
        methods = [method or "interval"]
    return methods[-1], partial(_certify_network, model.module, methods)


def _crown_passes(layers: list[Layer]) -> float:
    """About the largest number of backward passes per point of "crown", by a count of products.

    There are two for each activation, through the layers before it. Those of the first layer are the same for
    all points.
    """
    work = list(accumulate(layer.n_terms * prod(layer.shape) for layer in layers))
    activations = [k for k, layer in enumerate(layers) if layer.slope is not None]
    return sum(2 * prod(layers[k].shape) * work[k] for k in activations[1:]) / max(work[-1], 1)


def _certify_network(network: Any, methods: list[str], x: Array, y: Array, ball: Ball) -> Any:
    xp, certified = array_namespace(x), np.zeros(x.shape[0], dtype=bool)
    for method in methods:
        (left,) = np.nonzero(~certified)
        if len(left):
            rows = xp.asarray(left, device=device(x))
            points, labels = xp.take(x, rows, axis=0), xp.take(y, rows, axis=0)
            margins = certified_margins(network, points, labels, ball, method=method)
            certified[left] = to_float64(margins).min(axis=1) > 0
    return certified


def _certify_affine(model: Model, x: Array, y: Array, ball: Ball) -> Any:
    """Whether the mean probability of the class is largest in the ball; only where the model is affine."""
    margins, scores = [], [x @ coef.T + intercept for coef, intercept in model.affine]
    for part, values in zip(model.affine, scores, strict=True):
        slack = AFFINE_TOL * (1 + np.abs(values).max())
        margins.append(certified_margins(part, x, y, ball).min(axis=1) - slack)
    out = model.outputs(x)
    if len(scores) == 1:
        ours, found = (s - s[:, :1] for s in (scores[0], out))
        return (margins[0] > 0) & np.isclose(found, ours, AFFINE_TOL, AFFINE_TOL).all(axis=1)
    ours = np.mean([np.tanh((s[:, 1] - s[:, 0]) / 2) for s in scores], axis=0)
    affine = np.isclose(np.exp(out[:, 1]) - np.exp(out[:, 0]), ours, 0, 1e-6)
    return (np.mean(np.tanh(np.divide(margins, 2)), axis=0) > 0) & affine


def _certify_smoothed(
    smoothed: Any, x: Array, y: Array, balls: dict[float, Ball], norm: str
) -> tuple[str, dict[float, Any]]:
    own = "l2" if hasattr(smoothed.noise, "std") else "l1"
    if norm != own:
        return f"the noise of a smoothed classifier certifies {own} radii only", {}
    certified = smoothed.radii(x, y)
    # A point of the report's ball is in the certified ball of this multiple of its radius.
    ours, theirs = (
        1.0 if scale is None else np.asarray(scale.values)
        for scale in (
            next(iter(balls.values())).feature_scale,
            getattr(smoothed.noise, "feature_scale", None),
        )
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.max(np.where(ours > 0, np.divide(ours, theirs), 0.0), initial=0.0)
    text = f"smoothed: each radius holds with probability {1 - smoothed.failure_probability:g}"
    radii = to_float64(certified.radius)
    return text, {radius: 1.0 * (radii <= radius * factor) for radius in balls}
