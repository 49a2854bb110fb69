"""Beyond the paper: the mean of the estimators, taken through `RegularizedLoss` as users call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from math import inf, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    RobustLoss,
    Tilted,
    Uniform,
)
from phiball.refimpl.training.robust_loss import CHOICES
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.all_draws import ListedLaw, batch_of_all_draws
from phiball.verification.instances.arrays import array
from phiball.verification.instances.divergences import PAPER_DIVERGENCES
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL
from phiball.verification.oracles import levels
from phiball.verification.oracles.inner import solve_exactly

Objective: TypeAlias = Callable[..., RegularizedLoss]

SLOPES = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 3.0]])  # gradients in theta at the points 0, 1 and 2


def _exact(f: Any, eta: float, phi: Divergence, level: int) -> tuple[float, Any]:
    """The mean value and the mean gradient over all draws of 2^level of the points."""
    picks = levels.draws(len(f), 2**level)
    value, weights = levels.solve(f[picks], eta, phi.family or "", phi.parameter)
    return float(value.mean()), (weights[:, :, None] * SLOPES[picks]).sum(axis=1).mean(axis=0)


def _exact_normalised(f: Any, law: Any, eta: float, level: int) -> tuple[float, Any]:
    """The same for the quadratic phi, where each draw has weights in proportion to `law`."""
    total, gradient = 0.0, np.zeros(2)
    picks = levels.draws(len(f), 2**level)
    for row in picks:
        best = solve_exactly(f[row].tolist(), eta, "quadratic", p=(law[row] / law[row].sum()).tolist())
        total += float(best.value)
        gradient += np.array([float(w) for w in best.weights]) @ SLOPES[row]
    return total / len(picks), gradient / len(picks)


@claim(
    "RegularizedLoss, expectation",
    id="U1",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \hat F = F^L, \quad \mathbb{E} V^{SG} = \mathbb{E} V^{RT-MLMC} = \nabla F^L",
    assumptions="three points for L = 0 and 1, two for L = 2; the call, points, gradient and, with torch, "
    "backward; levels at random and stratified; uniform, tilted and self-normalised points",
    examples=10,
    f=st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3, unique=True),
    eta=powers_of_ten(-1, 1),
    phi=st.sampled_from(PAPER_DIVERGENCES),
    level=st.integers(0, 2),
    way=st.sampled_from(["uniform", "tilted", "self-normalised"]),
)
def objective_has_its_mean(
    f: list[float], eta: float, phi: Divergence, level: int, way: str, objective: Objective = RegularizedLoss
) -> Iterator[Evidence]:
    """The mean of the objective over all draws and levels is F^L, and that of its gradient grad F^L."""
    s0 = 0.0 if way == "uniform" else 0.7
    f = f if level < 2 else f[:2]  # of three points there are too many draws
    law = ListedLaw(len(f), s0)
    proposal: Any = Uniform()
    if way == "tilted":
        phi, proposal = ENTROPIC, Tilted()
        exact = _exact(np.array(f) + eta * law.log_ratio, eta, phi, level)
    elif way == "self-normalised":
        level, phi, proposal = min(level, 1), QUADRATIC, Tilted(self_normalised=True)
        exact = _exact_normalised(np.array(f), np.exp(law.log_ratio), eta, level)
    else:
        exact = _exact(np.array(f), eta, phi, level)
    smooth = phi.family in ("entropic", "quadratic")  # else the weights may not be unique
    codes, source = batch_of_all_draws(len(f), level)
    rounding = 2.0**-40 * (1 + max(map(abs, f))) * (1 + 1 / eta)
    for estimator in (SG(level), RTMLMC(level), RTMLMC(level, "stratified")):
        made = objective(law, eta, phi, estimator, proposal)
        for name, value, gradient in _by_every_way(made, codes, source, f, s0 * eta):
            note = f"{estimator}, {way}, {name}"
            yield Evidence(abs(value - exact[0]), rounding, f"{note}: the value")
            if smooth and gradient is not None:
                yield Evidence(float(np.abs(gradient - exact[1]).max()), rounding, f"{note}: the gradient")


def _by_every_way(
    made: RegularizedLoss, codes: Any, source: Any, f: list[float], slope: float
) -> Iterator[tuple[str, float, Any]]:
    """What the call, points, gradient and backward give: name, value and gradient in theta at 0."""

    def parts(xp: Any, x: Array) -> tuple[Array, Array]:
        place = xp.astype(x[:, 0], xp.int64)
        return xp.take(xp.asarray(f, dtype=x.dtype), place), xp.take(
            xp.asarray(SLOPES, dtype=x.dtype), place, axis=0
        )

    def loss(x: Array, i: Array) -> Array:
        return parts(array_namespace(x), x)[0]

    def tilt(x: Array, i: Array) -> Array:
        xp = array_namespace(x)
        return xp.stack([xp.full_like(x[:, 0], slope), xp.zeros_like(x[:, 0])], axis=-1)

    x = array(codes)
    yield "the call", float(made(loss, x, rng=source, input_gradient=tilt)), None
    drawn = made.points(loss, x, rng=source, input_gradient=tilt)
    weighted = to_numpy(drawn.weights) @ SLOPES[to_numpy(drawn.points)[:, 0].astype(int)]
    yield "points", float(drawn.value), weighted
    theta = array([0.0, 0.0])
    gradient = made.gradient(
        theta,
        lambda t, x, i: loss(x, i),
        lambda t, x, i: parts(array_namespace(x), x)[1],
        x,
        rng=source,
        input_gradient=lambda t, x, i: tilt(x, i),
    )
    yield "gradient", float(drawn.value), to_numpy(gradient)
    if find_spec("torch") is not None:
        yield from _by_torch(made, codes, source, f, tilt)


def _by_torch(
    made: RegularizedLoss, codes: Any, source: Any, f: list[float], tilt: Any
) -> Iterator[tuple[str, float, Any]]:
    import torch

    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    table, slopes = torch.tensor(f, dtype=torch.float64), torch.tensor(SLOPES)

    def moving(x: Any, i: Any) -> Any:
        place = x[:, 0].long()
        return table[place] + slopes[place] @ theta

    x = torch.tensor(codes)
    value = made(moving, x, rng=source, input_gradient=tilt)
    value.backward()
    yield "the call, with torch", float(value.detach()), theta.grad.numpy()
    for chunk, scale in ((3, {"scale": 2.0}), (10_000, {})):
        theta.grad = None
        value = made.backward(moving, x, rng=source, chunk=chunk, input_gradient=tilt, **scale)
        share = scale.get("scale", 1.0)
        yield f"backward, {chunk} points at a time", float(value), theta.grad.numpy() / share


@objective_has_its_mean.mutant("forgets 1/P(l)")
def _(law: Any, eta: float, phi: Divergence, estimator: Any, proposal: Any) -> RegularizedLoss:
    class Forgetful(RTMLMC):
        def assign_levels(self, n: int, rng: Any, *, like: Array) -> Any:
            groups = super().assign_levels(n, rng, like=like)
            return [replace(group, scale=1.0) for group in groups]

    wrong = Forgetful(estimator.level, estimator.allocation) if isinstance(estimator, RTMLMC) else estimator
    return RegularizedLoss(law, eta, phi, wrong, proposal)


@objective_has_its_mean.mutant("tilts the other way")
def _(law: ListedLaw, eta: float, phi: Divergence, estimator: Any, proposal: Any) -> RegularizedLoss:
    return RegularizedLoss(replace(law, tilt=-law.tilt), eta, phi, estimator, proposal)


@objective_has_its_mean.mutant("solves with twice the eta")
def _(law: Any, eta: float, phi: Divergence, estimator: Any, proposal: Any) -> RegularizedLoss:
    return RegularizedLoss(law, 2 * eta, phi, estimator, proposal)


# --- Points that depend on each other -------------------------------------------------------------

ROWS, LEVEL = 2000, 3


@claim(
    "Uniform(antithetic=True) and Uniform(qmc=True)",
    id="U2",
    verdict=Verdict.HOLDS,
    formula=r"b_{2j+1} = -b_{2j}, \quad \mathbb{E}\, b_1^2 = \rho^2\, m_d, \quad "
    r"\#\{i: u_i \in [k/n, (k+1)/n)\} = 1",
    assumptions="the points behind `RegularizedLoss`, in the plane and on a line; n = 8",
    error_level=12 * TEST_LEVEL,
)
def dependent_points_keep_their_law(
    objective: Objective = RegularizedLoss, seed: int = 0
) -> Iterator[Evidence]:
    """Antithetic points are pairs b and -b, Sobol points one in each eighth, and every one is uniform."""
    xp = active().namespace
    z = xp.zeros((ROWS, 2), dtype=xp.float64)
    rho, n = 0.5, 2**LEVEL
    for norm, second in ((1.0, 1 / 6), (2.0, 1 / 4), (inf, 1 / 3)):
        for way in (Uniform(antithetic=True), Uniform(qmc=True)):
            made = objective(Ball(norm, rho), 1.0, ENTROPIC, SG(LEVEL), way)
            b = to_numpy(made.points(lambda x, i: x[:, 0], z, rng=rng(seed)).points).reshape(ROWS, n, 2)
            size = np.linalg.norm(b, ord=norm, axis=-1)
            yield Evidence(float(size.max()) - rho, 2.0**-50, f"norm {norm:g}, {way}: within the ball")
            if way.antithetic:
                apart = float(np.abs(b[:, ::2] + b[:, 1::2]).max())
                yield Evidence(apart, 0.0, f"norm {norm:g}: pairs")
            squares = (b[:, :, 0] ** 2 / rho**2).mean(axis=1)
            error = abs(float(squares.mean()) - second)
            allowed = NORMAL_QUANTILE * float(squares.std()) / sqrt(ROWS)
            yield Evidence(error, allowed, f"norm {norm:g}, {way}: the second moment")
            crossed = (b[:, 0] * b[:, 2]).sum(axis=-1)
            allowed = NORMAL_QUANTILE * float(crossed.std()) / sqrt(ROWS)
            lean = float(crossed.mean()) if way.antithetic else float(b[:, :, 0].mean(axis=1).mean())
            if not way.antithetic:
                allowed = NORMAL_QUANTILE * float(b[:, :, 0].mean(axis=1).std()) / sqrt(ROWS)
            yield Evidence(abs(lean), allowed, f"norm {norm:g}, {way}: no direction is preferred")
            image = made.points(lambda x, i: x[:, 0, 0], z[:9, :, None], rng=rng(seed)).points
            row = made.points(lambda x, i: x[:, 0], z[:9, :], rng=rng(seed)).points
            apart = np.abs(to_numpy(image)[:, :, 0] - to_numpy(row)).max()
            yield Evidence(float(apart), 0.0, f"norm {norm:g}, {way}: images are rows in another shape")
    made = objective(Ball(inf, rho), 1.0, ENTROPIC, SG(LEVEL), Uniform(qmc=True))
    line = to_numpy(made.points(lambda x, i: x[:, 0], z[:100, :1], rng=rng(seed)).points).reshape(100, n)
    cells = np.sort(np.floor((line / rho + 1) / 2 * n), axis=1)
    yield Evidence(float(np.abs(cells - np.arange(n)).max()), 0.0, "one Sobol point in each eighth")


@dependent_points_keep_their_law.mutant("draws independent points")
def _(ball: Ball, eta: float, phi: Divergence, estimator: Any, proposal: Any) -> RegularizedLoss:
    return RegularizedLoss(ball, eta, phi, estimator, Uniform())


@dependent_points_keep_their_law.mutant("draws from a ball of nine tenths")
def _(ball: Ball, eta: float, phi: Divergence, estimator: Any, proposal: Any) -> RegularizedLoss:
    return RegularizedLoss(replace(ball, radius=0.9 * ball.radius), eta, phi, estimator, proposal)


# --- A tilt that does not depend on the scale of the loss ------------------------------------------


@claim(
    "Tilted(kappa)",
    id="U3",
    verdict=Verdict.HOLDS,
    formula=r"\eta_z = \frac{\rho \|g\|_*}{\kappa d}: \quad f = g \cdot b \Rightarrow \hat F = "
    r"\eta_z \log \mathbb{E} e^{g \cdot b/\eta_z}",
    assumptions="a linear loss of any scale; norm inf; one tilted point",
    examples=40,
    g=st.lists(st.floats(0.1, 3), min_size=1, max_size=3),
    scale=powers_of_ten(-2, 2),
    kappa=st.sampled_from([0.5, 1.0, 2.0]),
)
def tilt_is_free_of_scale(
    g: list[float],
    scale: float,
    kappa: float,
    proposal: Callable[[float], Tilted] = Tilted,
    robust: Callable[..., RobustLoss] = RobustLoss,
) -> Iterator[Evidence]:
    """With kappa each data point has the eta rho |g|_*/(kappa d), whatever the scale of its loss."""
    slope, rho = scale * np.array(g), 0.5
    made = RegularizedLoss(Ball(inf, rho), 123.0, ENTROPIC, SG(0), proposal(kappa))
    v = array(slope)

    def loss(x: Array, i: Array) -> Array:
        return array_namespace(x).sum(x * v, axis=-1)

    def gradient(x: Array, i: Array) -> Array:
        return array_namespace(x).broadcast_to(v, x.shape)

    value = float(made(loss, array(np.zeros((3, len(g)))), rng=rng(0), input_gradient=gradient))

    def exact(rho: float, kappa: float) -> float:
        eta = rho * float(np.abs(slope).sum()) / (kappa * len(g))
        t = rho * slope / eta
        return eta * float(np.log(np.sinh(t) / t).sum())

    rounding = 2.0**-42 * float(slope.sum()) * (1 + 1 / (kappa * len(g)))
    yield Evidence(abs(value - exact(rho, kappa)), rounding)
    # `RobustLoss` has its own ball and kappa. Sizes of 1/2 and 2, and a coordinate that must not move,
    # whatever its slope, leave it as it is.
    wider, strong = CHOICES[inf]
    sizes = np.array([0.5, 2.0, 1.0])[: len(g)]
    v = array(np.append(slope / sizes, 7.0 * scale))
    default = robust(rho, "linf", scale=[*sizes, 0.0])
    value = float(default(loss, array(np.zeros((3, len(g) + 1))), input_gradient=gradient))
    yield Evidence(abs(value - exact(wider * rho, strong)), rounding, "RobustLoss")
    still = robust(rho, "linf", scale=[*sizes, 3.0])
    mask = [*np.ones(len(g)), 0.0]
    value = float(still(loss, array(np.zeros((3, len(g) + 1))), mask=mask, input_gradient=gradient))
    yield Evidence(abs(value - exact(wider * rho, strong)), rounding, "RobustLoss, with a mask")
    yield from _seeds(slope)


def _seeds(slope: Any) -> Iterator[Evidence]:
    """Generators of NumPy and torch are sources of seeds: the same gives the same, and another another."""
    makers: list[Callable[[int], Any]] = [np.random.default_rng]
    if find_spec("torch") is not None:
        import torch

        makers.append(lambda seed: torch.Generator().manual_seed(seed))
    for make in makers:
        drawn = []
        for seed in (1, 1, 2):
            found = RobustLoss(0.5, seed=make(seed))(
                lambda x, i: array_namespace(x).sum(x * x, axis=-1),
                array(np.zeros((3, len(slope)))),
                input_gradient=lambda x, i: array_namespace(x).broadcast_to(array(slope), x.shape),
            )
            drawn.append(float(found))
        note = f"a generator of {type(make(0)).__module__.partition('.')[0]}"
        yield Evidence(abs(drawn[0] - drawn[1]), 0.0, f"{note}: the same seed")
        yield Evidence(float(drawn[0] == drawn[2]), 0.0, f"{note}: another one")


@tilt_is_free_of_scale.mutant("takes twice the kappa", replaces="proposal")
def _(kappa: float) -> Tilted:
    return Tilted(2 * kappa)


@tilt_is_free_of_scale.mutant("keeps eta", replaces="proposal")
def _(kappa: float) -> Tilted:
    return Tilted()


@tilt_is_free_of_scale.mutant("takes half the ball", replaces="robust")
def _(radius: float, norm: str, scale: list[float]) -> RobustLoss:
    return RobustLoss(radius / 2, norm, scale=scale)


@tilt_is_free_of_scale.mutant("moves what must not", replaces="robust")
def _(radius: float, norm: str, scale: list[float]) -> RobustLoss:
    return RobustLoss(radius, norm, scale=[*scale[:-1], 0.5])
