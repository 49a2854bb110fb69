"""Beyond the paper: the losses of linear models, and the worst weights of their examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from phiball.backends import to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    LinearLoss,
    Reweighting,
    huber_loss,
    quantile_loss,
    smoothed_hinge_loss,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.oracles.inner import solve_exactly


@claim(
    "Linear models, losses and weights",
    id="U26",
    verdict=Verdict.HOLDS,
    formula=r"\min(e^2/2,\ w |e| - w^2/2), \quad \max(q e, (q - 1) e), \quad \max_\gamma \gamma \cdot \ell - "
    r"\eta D_\phi(\gamma, p)",
    assumptions="e = y - z, or 1 - y z for labels; residuals on a grid that holds the kinks' neighbours",
)
def losses_of_linear_models(
    huber: Callable[[float], LinearLoss] = huber_loss,
    quantile: Callable[[float], LinearLoss] = quantile_loss,
    hinge: Callable[[float], LinearLoss] = smoothed_hinge_loss,
    reweighting: Callable[..., Reweighting] = Reweighting,
) -> Iterator[Evidence]:
    """Huber's, the quantile and the smoothed hinge loss are their formulas; weights are the worst ones."""
    z = np.arange(-3, 3, 0.07)
    cases: list[tuple[str, LinearLoss, float, Callable[[Any], Any]]] = [
        ("huber", huber(0.8), 0.5, lambda e: np.where(abs(e) <= 0.8, e * e / 2, 0.8 * abs(e) - 0.32)),
        ("quantile", quantile(0.9), 0.5, lambda e: np.maximum(0.9 * e, -0.1 * e)),
        ("smoothed hinge", hinge(0.4), -1.0, _rounded),
    ]
    for name, loss, y, exact in cases:
        at = partial(_residual, y=y, classes=name == "smoothed hinge")
        labels = array(np.full(z.shape, y))
        value, slope, bend = (to_numpy(part) for part in loss.jet(array(z), labels))
        yield Evidence(float(np.abs(value - exact(at(z))).max()), 1e-13, f"{name}: the loss")
        h = 1e-6
        kinks = loss.kinks(labels[:1]) if loss.kinks else ()
        smooth = np.min([np.abs(z - float(k[0])) for k in kinks], axis=0) > 1e-3
        first = (exact(at(z + h)) - exact(at(z - h))) / (2 * h)
        yield Evidence(float(np.abs(slope - first)[smooth].max()), 1e-8, f"{name}: its derivative")
        around = (to_numpy(loss.jet(array(z + s * h), labels)[1]) for s in (1, -1))
        second = np.subtract(*around) / (2 * h)
        yield Evidence(float(np.abs(bend - second)[smooth].max()), 1e-6, f"{name}: its second derivative")
    losses, p = [0.2, 1.0, 3.0, 0.7], [0.1, 0.2, 0.3, 0.4]
    for phi in (ENTROPIC, QUADRATIC):
        for eta in (0.5, 4.0):
            best = solve_exactly(losses, eta, phi.family or "", p=p)
            value, weights, _ = reweighting(phi, eta=eta).value(array(losses), array(p))
            yield Evidence(
                abs(float(value) - float(best.value)), 1e-13, f"{phi.name}, eta = {eta}: the value"
            )
            off = np.abs(to_numpy(weights) - [float(w) for w in best.weights]).max()
            yield Evidence(float(off), 1e-13, f"{phi.name}, eta = {eta}: the weights")


def _residual(z: Any, *, y: float, classes: bool) -> Any:
    return 1 - y * z if classes else y - z


def _rounded(e: Any) -> Any:
    return np.where(e <= 0, 0.0, np.where(e < 0.4, e * e / 0.8, e - 0.2))


@losses_of_linear_models.mutant("twice the width", replaces="huber")
def _(width: float) -> LinearLoss:
    return huber_loss(2 * width)


@losses_of_linear_models.mutant("the other quantile", replaces="quantile")
def _(q: float) -> LinearLoss:
    return quantile_loss(1 - q)


@losses_of_linear_models.mutant("half of the price", replaces="reweighting")
def _(phi: Any, *, eta: float) -> Reweighting:
    return Reweighting(phi, eta=eta / 2)
