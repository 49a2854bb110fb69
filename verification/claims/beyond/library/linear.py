"""Beyond the paper: the losses of linear models, and the worst weights of their examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import numpy as np
from scipy.optimize import minimize

from phiball.backends import to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    LinearLoss,
    LinearProblem,
    Reweighting,
    cressie_read,
    fit_linear_model,
    huber_loss,
    indicator,
    linear_model_risk,
    quantile_loss,
    smoothed_hinge_loss,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.oracles import linear as oracle
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


# --- Fits -----------------------------------------------------------------------------------------

X = np.array(
    [[1.0, 0.2], [-0.3, 1.5], [0.4, -0.8], [2.0, 0.1], [-1.2, -0.5], [0.7, 0.9], [-0.6, 0.3], [0.1, -1.7]]
)
Y = {
    "logistic": np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0]),
    "squared": np.array([0.8, -0.2, 1.5, 2.2, -1.0, 0.1, 0.3, 0.5]),
    "poisson": np.array([2.0, 0.0, 1.0, 4.0, 0.0, 1.0, 1.0, 3.0]),
}
W = np.array([1.0, 2.0, 1.0, 0.5, 1.0, 3.0, 0.25, 1.0])
RIDGE, RHO = 0.05, 0.4
FITS: tuple[tuple[str, float, Any, bool, Reweighting | None], ...] = (
    ("logistic", 0.2, None, True, None),
    ("logistic", 0.0, None, True, None),
    ("squared", 0.01, None, True, None),  # steep: takes many nodes
    ("squared", 0.5, (1.0, 0.3), True, None),
    ("squared", inf, None, False, None),
    ("poisson", 1.0, (0.0, 2.0), True, None),
    ("logistic", 0.3, None, True, Reweighting(ENTROPIC, eta=0.4)),
    ("squared", 1.0, None, True, Reweighting(QUADRATIC, eta=0.7)),
    ("logistic", 0.3, None, False, Reweighting(ENTROPIC, radius=0.1)),
)


def _objective(
    name: str, eta: float, scale: Any, outer: Reweighting | None, w: Any, params: Any
) -> tuple[float, Any]:
    """F, and the risks of the examples, of coefficients and an intercept, or without one."""
    theta, c = params[:2], params[2] if len(params) > 2 else 0.0
    losses, law = oracle.moved_losses(name, theta, c, X, Y[name], RHO * np.array(scale or (1.0, 1.0)))
    if eta == 0:
        reach = RHO * np.linalg.norm(theta)
        risks = np.logaddexp(0, reach - Y[name] * (X @ theta + c))
    else:
        risks = oracle.entropic(losses, law, eta)
    p = w / w.sum()
    if outer is None:
        value = float(p @ risks)
    elif outer.radius is None:
        value = float(solve_exactly(risks, outer.eta or 0.0, outer.phi.family or "", p=p).value)
    else:  # the dual bound at the best price
        value = float(min(_bound(risks, p, outer.radius, np.exp(s)) for s in np.arange(-4, 3, 0.002)))
    return value + RIDGE / 2 * float(theta @ theta), risks


def _bound(risks: Any, p: Any, radius: float, eta: float) -> float:
    return float(eta * radius + oracle.entropic(risks[None], p, eta)[0])


@claim(
    "Linear models, fits",
    id="U26-fits",
    part_of="U26",
    verdict=Verdict.HOLDS,
    formula=r"\min_{\theta, c} \sum_i w_i \eta \log "
    r"\mathbb{E} e^{\ell(\theta \cdot (x_i + b) + c, y_i)/\eta} + \frac{\lambda}{2} |\theta|^2",
    assumptions="eight examples in the plane; weights, scales of features, no intercept, worst weights of "
    "examples; the balls of norm 2 and, on Sobol points, inf; three classes",
)
def fits_reach_the_minimum(
    fit: Callable[..., Any] = fit_linear_model, risk: Callable[..., Any] = linear_model_risk
) -> Iterator[Evidence]:
    """The risk and its gradient are those of an integral in one variable, and fits are at its minimum."""
    for name, eta, scale, intercept, outer in FITS:
        weights = W if outer is None else np.ones(8)
        ball = Ball(2, RHO)
        how = {"ridge": RIDGE, "scale": scale, "intercept": intercept, "reweighting": outer}
        problem = LinearProblem(name, ball, eta, ENTROPIC, **how)
        value = partial(_objective, name, eta, scale, outer, weights)
        note = f"{name} loss, eta = {eta:g}" + (f", {outer.phi.name} weights" if outer else "")
        at = np.array([0.6, -0.9, 0.3][: 3 if intercept else 2])
        data = (array(X), array(Y[name]))
        got = risk(problem, array(at[:2]), at[2] if intercept else 0.0, *data, sample_weight=array(weights))
        near = 1e-9 if outer is None or outer.radius is None else 1e-6
        yield Evidence(abs(got.value - value(at)[0]), near, f"{note}: the risk")
        off = np.abs(to_numpy(got.values) - value(at)[1]).max()
        yield Evidence(float(off), 1e-9, f"{note}: of each example")
        if outer is None or outer.radius is None:
            slope = np.append(to_numpy(got.coef_gradient), float(got.intercept_gradient) if intercept else [])
            h = 1e-5 * np.eye(len(at))
            by_steps = [(value(at + e)[0] - value(at - e)[0]) / 2e-5 for e in h]
            yield Evidence(float(np.abs(slope - by_steps).max()), 1e-7, f"{note}: the gradient")
        found = fit(problem, *data, sample_weight=array(weights), tolerance=1e-9)
        best = minimize(lambda v: value(v)[0], at, method="BFGS", options={"gtol": 1e-7})  # noqa: B023
        yield Evidence(abs(found.value - best.fun), 1e-6 if near > 1e-9 or eta == 0 else 1e-9, f"{note}: fit")
        params = np.append(to_numpy(found.coef), float(found.intercept) if intercept else [])
        yield Evidence(abs(value(params)[0] - found.value), max(near, 1e-8), f"{note}: its value")
        yield Evidence(float(np.abs(params - best.x).max()), 1e-3 if near > 1e-9 else 1e-4, f"{note}: where")
        yield Evidence(max(-found.gap, found.gap - 1e-6), 1e-9, f"{note}: the gap")
        if eta > 0 and outer is None:
            yield Evidence(float(not found.converged), 0.0, f"{note}: it says that it has converged")
        if eta > 0 and (outer is None or outer.radius is None):
            yield Evidence(found.iterations - 30, 0.0, f"{note}: Newton's method takes few steps")
    yield from _with_kinks(fit)
    yield from _on_the_worst_examples(fit)
    yield from _of_other_orders(risk)
    yield from _of_other_families(fit, risk)
    yield from _on_sobol_points(fit, risk)


def _with_kinks(fit: Callable[..., Any]) -> Iterator[Evidence]:
    """Losses with kinks, where examples stay, or move to the worst point: no point is below the gap."""
    names: dict[str, tuple[str | LinearLoss, Any]] = {
        "hinge": ("hinge", Y["logistic"]),
        "absolute": ("absolute", Y["squared"]),
        "quantile 0.7": (quantile_loss(0.7), Y["squared"]),
    }
    p = W / W.sum()
    for name, (loss, y) in names.items():
        for rho in (0.0, RHO):

            def value(v: Any, name: str = name, y: Any = y, rho: float = rho) -> float:
                z, reach = X @ v[:2] + v[2], rho * np.linalg.norm(v[:2])
                ends = [oracle.plain_loss(name, z + s * reach, y) for s in (-1, 1)]
                return float(p @ np.maximum(*ends) + RIDGE / 2 * v[:2] @ v[:2])

            problem = LinearProblem(loss, Ball(2, rho), 0.0, ridge=RIDGE)
            found = fit(problem, array(X), array(y), sample_weight=array(W))
            yield from _by_its_gap(found, value, f"{name} loss, radius {rho}", rounding=1e-12, gap=1e-5)


def _by_its_gap(
    found: Any, value: Callable[[Any], float], note: str, *, rounding: float, gap: float
) -> Iterator[Evidence]:
    """A fit has the value it says, a small gap, and no point near it is better by more than that."""
    at = np.append(to_numpy(found.coef), float(found.intercept))
    yield Evidence(abs(value(at) - found.value), rounding, f"{note}: the value")
    best = minimize(value, at, method="Nelder-Mead", options={"xatol": 1e-7, "maxfev": 400})
    yield Evidence(found.value - best.fun - found.gap, rounding, f"{note}: what the gap allows")
    yield Evidence(max(-found.gap, found.gap - gap), 1e-12, f"{note}: the gap")


def _on_the_worst_examples(fit: Callable[..., Any]) -> Iterator[Evidence]:
    """The mean over the worst part of the examples, which has kinks where their order changes."""
    p = W / W.sum()
    for alpha in (0.3, 0.7):

        def value(v: Any, alpha: float = alpha) -> float:
            risks = _objective("logistic", 0.3, None, None, W, v)[1]
            worst = min(float(level + p @ np.maximum(risks - level, 0) / alpha) for level in risks)
            return worst + RIDGE / 2 * float(v[:2] @ v[:2])

        outer = Reweighting(indicator(alpha), eta=1.0)
        problem = LinearProblem("logistic", Ball(2, RHO), 0.3, ENTROPIC, ridge=RIDGE, reweighting=outer)
        found = fit(problem, array(X), array(Y["logistic"]), sample_weight=array(W))
        note = f"the worst {100 * alpha:g} % of the examples"
        yield from _by_its_gap(found, value, note, rounding=1e-9, gap=1e-3)


def _of_other_orders(risk: Callable[..., Any]) -> Iterator[Evidence]:
    """Powers below one, by the nodes of Chebyshev for the law of theta.b, of density sqrt(1 - t^2)."""
    theta, c, n = np.array([0.6, -0.9]), 0.3, 60
    angle = np.arange(1, n + 1) * np.pi / (n + 1)
    t, law = np.cos(angle), 2 / (n + 1) * np.sin(angle) ** 2
    for k, eta in ((-1.0, 2.0), (0.0, 2.0), (0.0, 0.3), (0.5, 0.3)):
        problem = LinearProblem("logistic", Ball(2, RHO), eta, cressie_read(k), ridge=0.0)
        got = risk(problem, array(theta), c, array(X), array(Y["logistic"]))
        z = (X @ theta + c)[:, None] + RHO * np.linalg.norm(theta) * t
        losses = oracle.plain_loss("logistic", z, Y["logistic"][:, None])
        best = [
            float(solve_exactly(f, eta, "cressie_read", k, p=law.tolist()).value) for f in losses.tolist()
        ]
        off = float(np.abs(to_numpy(got.values) - best).max())
        yield Evidence(off, 1e-9, f"order {k:g}, eta = {eta:g}: the risk of each example")


def _of_other_families(fit: Callable[..., Any], risk: Callable[..., Any]) -> Iterator[Evidence]:
    """Divergences whose worst case leaves a part of the ball out: values by bisection on many nodes."""
    n = 4000
    angle = np.arange(1, n + 1) * np.pi / (n + 1)
    t, law = np.cos(angle), 2 / (n + 1) * np.sin(angle) ** 2
    at, y = np.array([0.6, -0.9, 0.3]), Y["logistic"]
    for phi, k, eta in (
        (QUADRATIC, 2.0, 0.05),
        (cressie_read(3.0), 3.0, 0.05),
        (cressie_read(0.5), 0.5, 0.5),
        (indicator(0.3), None, 1.0),
    ):

        def value(v: Any, eta: float = eta, k: float | None = k) -> float:
            z = (X @ v[:2] + v[2])[:, None] + RHO * np.linalg.norm(v[:2]) * t
            losses = oracle.plain_loss("logistic", z, y[:, None])
            found = oracle.tail_mean(losses, law, 0.3) if k is None else oracle.power(losses, law, eta, k)
            return float(found.mean() + RIDGE / 2 * v[:2] @ v[:2])

        problem = LinearProblem("logistic", Ball(2, RHO), eta, phi, ridge=RIDGE)
        got = risk(problem, array(at[:2]), at[2], array(X), array(y))
        yield Evidence(abs(got.value - value(at)), 1e-6, f"{phi.name}: the risk of several examples")
        slope = np.append(to_numpy(got.coef_gradient), float(got.intercept_gradient))
        by_steps = [(value(at + e) - value(at - e)) / 2e-3 for e in 1e-3 * np.eye(3)]
        yield Evidence(float(np.abs(slope - by_steps).max()), 1e-4, f"{phi.name}: its gradient")
        found = fit(problem, array(X), array(y), tolerance=1e-8)
        params = np.append(to_numpy(found.coef), float(found.intercept))
        yield Evidence(abs(found.value - value(params)), 1e-6, f"{phi.name}: the value of the fit")
        lower = max(found.value - value(params + s * e) for e in 0.01 * np.eye(3) for s in (-1, 1))
        yield Evidence(lower, 1e-6, f"{phi.name}: no neighbour of the fit is better")
        yield Evidence(found.iterations - 30, 0.0, f"{phi.name}: Newton's method takes few steps")


def _softmax(params: Any, nodes: Any, law: Any, eta: float, labels: Any) -> Any:
    """F of three classes, by nodes of the plane."""
    coef, c = params[:6].reshape(3, 2), params[6:]
    logits = (X[:, None, :] + nodes) @ coef.T + c
    top = logits.max(axis=-1)
    own = np.take_along_axis(logits, labels[:, None, None], axis=-1)[..., 0]
    losses = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1)) - own
    return oracle.entropic(losses, law, eta).mean() + RIDGE / 2 * float((coef * coef).sum())


def _on_sobol_points(fit: Callable[..., Any], risk: Callable[..., Any]) -> Iterator[Evidence]:
    """Other norms, and several classes, which are as exact as 4096 points of the ball are."""
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    at = np.array([0.5, -0.3, -0.8, 0.9, 0.2, 0.1, 0.1, 0.2, -0.3])
    for ball, (nodes, law) in ((Ball(2, RHO), oracle.disc()), (Ball(inf, RHO), oracle.square())):
        for eta in (0.3, inf):
            problem = LinearProblem("multinomial", ball, eta, ENTROPIC, ridge=RIDGE)
            data = (array(X), array(labels))
            got = risk(problem, array(at[:6].reshape(3, 2)), array(at[6:]), *data, points=4096)
            value = partial(_softmax, nodes=RHO * nodes, law=law, eta=eta, labels=labels)
            yield Evidence(abs(got.value - value(at)), 2e-4, f"three classes, {ball}, eta = {eta:g}")
            yield Evidence(float(not got.error > 0), 0.0, f"three classes, {ball}, eta = {eta:g}: not exact")
            h = 1e-5 * np.eye(9)
            by_steps = np.array([(value(at + e) - value(at - e)) / 2e-5 for e in h])
            slope = np.append(to_numpy(got.coef_gradient).ravel(), to_numpy(got.intercept_gradient))
            off = float(np.abs(slope - by_steps).max())
            yield Evidence(off, 1e-3, f"three classes, {ball}, eta = {eta:g}: the gradient")
            found = fit(problem, *data, points=256, tolerance=1e-8)
            best = minimize(value, at, method="BFGS")
            yield Evidence(abs(found.value - best.fun), 2e-3, f"three classes, {ball}, eta = {eta:g}: fit")
            yield Evidence(max(-found.gap, found.gap - 1e-6), 1e-9, "three classes: the gap")
    nodes, law = oracle.square()
    problem = LinearProblem("logistic", Ball(inf, RHO), 0.2, QUADRATIC)
    theta = np.array([0.6, -0.9])
    got = risk(problem, array(theta), 0.3, array(X), array(Y["logistic"]), points=4096)
    losses = np.logaddexp(0, -Y["logistic"][:, None] * ((X[:, None, :] + RHO * nodes) @ theta + 0.3))
    risks = [float(solve_exactly(row, 0.2, "quadratic", p=law).value) for row in losses]
    yield Evidence(abs(got.value - float(np.mean(risks))), 2e-4, "norm inf, quadratic phi")
    problem = LinearProblem("logistic", Ball(inf, RHO), 0.2, ENTROPIC, ridge=RIDGE)
    found = fit(problem, array(X), array(Y["logistic"]), points=64, tolerance=1e-9)
    yield Evidence(found.iterations - 30, 0.0, "norm inf: Newton's method takes few steps")
    yield Evidence(max(-found.gap, found.gap - 1e-9), 1e-9, "norm inf: the gap")


@fits_reach_the_minimum.mutant("stops after two steps", replaces="fit")
def _(*args: Any, **how: Any) -> Any:
    return fit_linear_model(*args, **how, max_iterations=2)


@fits_reach_the_minimum.mutant("forgets the weights of the examples", replaces="risk")
def _(*args: Any, sample_weight: Any = None, **how: Any) -> Any:
    return linear_model_risk(*args, **how)
