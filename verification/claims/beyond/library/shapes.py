"""Beyond the paper: the same numbers, whatever the shape of the data and however they are handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf, pi
from typing import Any, TypeAlias

import numpy as np

from phiball import refimpl
from phiball.backends import Array, Rng, array_namespace, rng, to_numpy
from phiball.refimpl import ENTROPIC, HINGE, QUADRATIC, RTMLMC, SG, Ball, Tilted, Uniform
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array

Z = np.array(
    [
        [0.2, -0.1, 0.4, 1.0],
        [1.0, 0.5, -0.3, 0.2],
        [-0.4, 0.3, 0.6, -0.7],
        [0.0, 2.0, 0.1, 0.3],
        [0.9, -0.8, -0.2, 0.5],
        [-1.1, 0.4, 0.8, 0.1],
    ]
)
S = np.flip(Z, axis=0) + 0.3  # tilts, gradients and steps
SIZES = 0.5 + np.abs(Z)  # of the coordinates of each data point
ROUNDING = 2.0**-40  # sums over other axes may be added up in another order
Named: TypeAlias = Iterator[tuple[str, Any]]


def _public(name: str) -> Any:
    return getattr(refimpl, name)


def _rows(x: Array) -> Array:
    return array_namespace(x).reshape(x, (x.shape[0], -1))


def _loss(x: Array, i: Array) -> Array:
    xp, v = array_namespace(x), _rows(x)
    return xp.sin(2 * v[:, 0]) + v[:, 1] ** 2 / 3 + v[:, 2] * v[:, 3] + 0.1 * xp.astype(i, x.dtype)


def _slope(x: Array, i: Array) -> Array:
    xp, v = array_namespace(x), _rows(x)
    parts = [2 * xp.cos(2 * v[:, 0]), 2 * v[:, 1] / 3, v[:, 3], v[:, 2]]
    return xp.reshape(xp.stack(parts, axis=-1), x.shape)


def _of_laws(batch: tuple[int, ...], event: tuple[int, ...], seed: int) -> Named:
    """What balls and normal laws say of a batch of points."""
    z, s = (array(v.reshape(*batch, *event)) for v in (Z, S))
    k = len(event)
    balls = [Ball(norm, 0.7) for norm in (1.0, 2.0, 3.0, inf)]
    balls.append(Ball(2, 0.7, clip=(-1.2, 2.1), scale=SIZES[0].reshape(event)))
    for ball in balls:
        law = f"Ball({ball.norm:g}){' with sizes' if ball.scale is not None else ''}"
        for method in (ball.length, ball.dual_norm, ball.steepest, ball.variance):
            yield f"{law}.{method.__name__}", method(s, event_ndim=k)
        yield f"{law}.contains", ball.contains(z + s / 3, z, event_ndim=k)
        for how in ({}, {"antithetic": True}, {"qmc": True}):
            yield f"{law}.sample, {how}", ball.sample(z, 4, rng(seed), event_ndim=k, **how)
        if ball.norm != 3:
            yield f"{law}.project", ball.project(z + s, z, event_ndim=k)
            yield f"{law}.log_mgf", ball.log_mgf(s, event_ndim=k)
            yield from _pair(f"{law}.sample_tilted", ball.sample_tilted(z, s, 3, rng(seed), event_ndim=k))
    normal = refimpl.Gaussian(0.6)
    yield "Gaussian.sample", normal.sample(z, 3, rng(seed), event_ndim=k)
    yield "Gaussian.log_mgf", normal.log_mgf(s, event_ndim=k)
    yield from _pair("Gaussian.sample_tilted", normal.sample_tilted(z, s, 3, rng(seed), event_ndim=k))


def _pair(name: str, values: tuple[Array, Array]) -> Named:
    yield f"{name}: the points", values[0]
    yield f"{name}: the weights", values[1]


def _of_risks(library: Callable[[str], Any], event: tuple[int, ...], seed: int) -> Named:
    """What risks, attacks and regularisers say of data points."""
    z, s = (array(v.reshape(-1, *event)) for v in (Z, S))
    ball, eta = Ball(2, 0.5, scale=SIZES.reshape(-1, *event)), 0.4
    for phi in (ENTROPIC, HINGE):
        got = library("robust_risk")(_loss, z, ball, eta, phi, samples=8, rng=rng(seed))
        yield f"robust_risk, {phi.name}", got.values
        yield f"robust_risk, {phi.name}: its error", got.stderr
        at = z[:2, ...] + 0.1  # around the other data points there is none
        dense = library("worst_case_density")(
            _loss, z, Ball(2, 0.5), eta, phi, at=at, samples=8, rng=rng(seed)
        )
        yield f"worst_case_density, {phi.name}", dense.density
        yield f"worst_case_density, {phi.name}: the atoms", dense.atoms
        yield f"worst_case_density, {phi.name}: their masses", dense.masses
    for own in (Tilted(), Tilted(self_normalised=True, start="uniform"), Tilted(retilt=1)):
        how = {"proposal": own, "input_gradient": _slope, "samples": 8}
        got = library("robust_risk")(_loss, z, ball, eta, ENTROPIC, rng=rng(seed), chunk=5, **how)
        yield f"robust_risk, {own}", got.values
        yield f"robust_risk, {own}: its error", got.stderr
    got = library("adversarial_risk")(_loss, z, ball, samples=8, rng=rng(seed), attack=lambda z: z + 0.1)
    yield "adversarial_risk", got.values
    yield "adversarial_risk: the points", got.points
    got = library("constrained_risk")(_loss, z, ball, QUADRATIC, radius=0.1, samples=8, rng=rng(seed))
    yield "constrained_risk", got.value
    got = library("worst_case_sample")(_loss, z, ball, eta, QUADRATIC, n=9, samples=8, rng=rng(seed))
    yield "worst_case_sample", got.points
    for law in (Ball(2, 0.5), Ball(inf, 0.5)):
        yield f"fgm, {law}", library("fgm")(_slope, z, law, rng=rng(seed))
        yield f"ifgm, {law}", library("ifgm")(_slope, z, law, steps=3)
        how = {"steps": 2, "loss": _loss, "restarts": 2}
        yield f"pgm, {law}", library("pgm")(_slope, z, law, rng=rng(seed), **how)
        yield f"white_noise, {law}", library("white_noise")(z, law, rng(seed))
        yield f"surrogate, {law}", library("surrogate")(s, law, eta, ENTROPIC)
        how = {"samples": 8, "rng": rng(seed)}
        yield f"surrogate_estimate, {law}", library("surrogate_estimate")(s, law, eta, QUADRATIC, **how)
        yield f"r1, {law}", library("r1")(s, law, 2.0, ENTROPIC)
        yield f"r2, {law}", library("r2")(s, law)
        yield f"r3, {law}", library("r3")(s, law, eta, QUADRATIC)
    common = replace(ball, scale=SIZES[0].reshape(event))
    single = replace(ball, scale=SIZES[:, 0].reshape(-1, *[1] * len(event)))
    for estimator in (SG(2), RTMLMC(2), RTMLMC(2, "stratified")):
        for way in (Uniform(), Uniform(antithetic=True), Tilted(), Tilted(kappa=1.0)):
            for sizes, law in (("own", ball), ("common", common), ("single", single)):
                made = library("RegularizedLoss")(law, eta, ENTROPIC, estimator, way)
                drawn = made.points(_loss, z, rng=rng(seed), input_gradient=_slope)
                for part in ("points", "weights", "log_weights", "value"):
                    note = f"RegularizedLoss, {estimator}, {way}, {sizes} sizes: the {part}"
                    yield note, getattr(drawn, part)


def _alike(name: str, a: Array, b: Array) -> Evidence:
    """Whether two arrays hold the same numbers, in whatever shape."""
    first, second = (np.asarray(to_numpy(v), dtype=float).ravel() for v in (a, b))
    if first.size != second.size:
        return Evidence(inf, ROUNDING, f"{name}: {first.size} and {second.size} numbers")
    size = 1 + float(np.abs(first).max())
    return Evidence(float(np.abs(first - second).max()), ROUNDING * size, name)


@claim(
    "Shapes of data",
    id="U27",
    verdict=Verdict.HOLDS,
    formula=r"F(\mathrm{reshape}(z)) = \mathrm{reshape}(F(z))",
    assumptions="six points of four coordinates, also as images (2, 2) and as a batch (2, 3); sizes of "
    "coordinates for each data point",
)
def shapes_do_not_matter(library: Callable[[str], Any] = _public, seed: int = 0) -> Iterator[Evidence]:
    """Laws, risks, attacks, regularisers and estimators give images the numbers of rows."""
    rows = dict(_of_laws((6,), (4,), seed))
    for batch, event in (((6,), (2, 2)), ((2, 3), (4,)), ((3, 2), (1, 4, 1))):
        for name, value in _of_laws(batch, event, seed):
            yield _alike(f"{batch + event}: {name}", rows[name], value)
    for norm, unit in ((1.0, 2 / 3), (2.0, pi**2 / 2), (inf, 16.0)):  # of the ball in four dimensions
        volume = Ball(norm, 0.5, scale=SIZES[0]).log_volume(4)
        exact = unit / 16 * SIZES[0].prod()
        yield Evidence(abs(np.exp(volume) / exact - 1), ROUNDING, f"norm {norm:g}: the volume with sizes")
    rows = dict(_of_risks(library, (4,), seed))
    for name, value in _of_risks(library, (2, 2), seed):
        yield _alike(f"images: {name}", rows[name], value)
    for name, value in rows.items():
        if name.startswith("RegularizedLoss") and name.endswith("log_weights") and "Uniform" in name:
            yield Evidence(float(np.abs(to_numpy(value)).max()), 0.0, f"{name} of uniform points")


@shapes_do_not_matter.mutant("takes the last axis for a point")
def _(name: str) -> Any:
    if name != "r2":
        return _public(name)
    return lambda g, ball: refimpl.r2(g if g.ndim == 2 else g[:, 0, :], ball)


@shapes_do_not_matter.mutant("moves every data point as the first")
def _(name: str) -> Any:
    if name != "robust_risk":
        return _public(name)

    def risk(loss: Any, z: Array, ball: Ball, *rest: Any, **how: Any) -> Any:
        own = ball if z.ndim == 2 or ball.scale is None else replace(ball, scale=SIZES[0].reshape(2, 2))
        return refimpl.robust_risk(loss, z, own, *rest, **how)

    return risk


# --- Batches, chunks and precision ----------------------------------------------------------------


def _handed_over(library: Callable[[str], Any], z: Array, seed: int) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Pairs that must agree: data held at once, and the same in batches or in pieces of the evaluation."""
    ball, xp = Ball(2, 0.5), array_namespace(z)

    def robust(data: Any, **how: Any) -> Any:
        return library("robust_risk")(_loss, data, ball, 0.4, QUADRATIC, samples=400, rng=rng(seed), **how)

    def adversarial(data: Any, **how: Any) -> Any:
        how |= {"attack": lambda z, *labels: z + 0.1}
        return library("adversarial_risk")(_loss, data, ball, samples=400, rng=rng(seed), **how)

    def batches(*cuts: int, labels: bool = False) -> Any:
        ends = [0, *cuts, z.shape[0]]
        parts = [slice(a, b) for a, b in pairwise(ends)]
        index = xp.arange(z.shape[0])
        return iter([(z[k, ...], index[k]) if labels else z[k, ...] for k in parts])

    for name, risk in (("robust_risk", robust), ("adversarial_risk", adversarial)):
        whole = risk(z)
        for chunk in (3, 8192):
            for cuts in ((), (1,), (2, 5), (1, 2, 3, 4, 5)):
                for labels in (False, True):
                    note = f"{name}, chunks of {chunk}, cut at {cuts}{', with labels' if labels else ''}"
                    got = risk(batches(*cuts, labels=labels), chunk=chunk, labels=labels)
                    yield note, (whole.values, got.values)
                    if name == "robust_risk":
                        yield f"{note}: its error", (whole.stderr, got.stderr)
        yield f"{name}, in chunks", (whole.values, risk(z, chunk=7).values)


@claim(
    "Batches, chunks and precision",
    id="U28",
    verdict=Verdict.HOLDS,
    formula=r"F(z_1, \ldots, z_N) = F((z_1, \ldots, z_k), (z_{k+1}, \ldots, z_N))",
    assumptions="six data points, cut anywhere, with labels or without; chunks of the evaluation; half and "
    "single precision, where the backend has them",
)
def handing_over_does_not_matter(
    library: Callable[[str], Any] = _public, seed: int = 0
) -> Iterator[Evidence]:
    """Data in batches, evaluated in chunks or held in half precision have the risks of the data at once."""
    z = array(Z)
    for name, (whole, cut) in _handed_over(library, z, seed):
        yield _alike(name, whole, cut)
    xp = array_namespace(z)
    half = getattr(xp, "float16", None)
    if half is None:
        return
    coarse, tilt = (xp.astype(array(v), half) for v in (Z, S))
    exact, wide = (xp.astype(v, xp.float32) for v in (coarse, tilt))
    for norm in (1.0, 2.0, inf):
        ball = Ball(norm, 0.5)
        ours = ball.sample_tilted(coarse, tilt, 3, rng(seed))
        theirs = ball.sample_tilted(exact, wide, 3, rng(seed))
        yield _alike(f"{ball}.sample_tilted in half precision", xp.astype(theirs[0], half), ours[0])
        yield _alike(f"{ball}.sample_tilted in half precision: the weights", theirs[1], ours[1])
        yield _alike(
            f"{ball}.sample in half precision",
            xp.astype(ball.sample(exact, 3, rng(seed)), half),
            ball.sample(coarse, 3, rng(seed)),
        )

    for phi in (ENTROPIC, HINGE):
        fine, rough = (refimpl.worst_case(x, 0.25, phi) for x in (exact, coarse))
        for part in ("value", "mu", "weights"):
            rounded = xp.astype(getattr(fine, part), half)
            yield _alike(
                f"worst_case in half precision, {phi.name}: the {part}", rounded, getattr(rough, part)
            )
        lost = to_numpy(fine.value).astype(float) - to_numpy(rough.value).astype(float)
        short = np.abs(lost) - to_numpy(rough.gap).astype(float)
        yield Evidence(float(short.max()), 0.0, f"worst_case in half precision, {phi.name}: the gap")

    def seen(function: Any, x: Array, i: Array) -> Array:
        """The function of what half precision leaves of x, in single."""
        return function(xp.astype(xp.astype(x, half), xp.float32), i)

    def loss(x: Array, i: Array) -> Array:
        return seen(_loss, x, i)

    def slope(x: Array, i: Array) -> Array:
        return seen(_slope, x, i)

    for way in (Uniform(), Tilted(), Tilted(kappa=1.0)):
        made = library("RegularizedLoss")(Ball(inf, 0.5), 0.4, ENTROPIC, RTMLMC(2), way)
        values = [made(loss, x, rng=rng(seed), input_gradient=slope) for x in (exact, coarse)]
        yield _alike(f"RegularizedLoss in half precision, {way}", *values)
        drawn = made.points(loss, coarse, rng=rng(seed), input_gradient=slope)
        yield Evidence(float(drawn.points.dtype != half), 0.0, f"{way}: points in half precision")
        yield _alike(f"RegularizedLoss.points in half precision, {way}", values[0], drawn.value)


@handing_over_does_not_matter.mutant("draws the same points in every batch")
def _(name: str) -> Any:
    if name != "robust_risk":
        return _public(name)

    def risk(loss: Any, z: Any, *rest: Any, **how: Any) -> Any:
        if not isinstance(z, Iterator):
            return refimpl.robust_risk(loss, z, *rest, **how)
        state = how["rng"].state()
        parts = []
        for batch in z:
            how["rng"] = Rng.restore(state)
            parts.append(refimpl.robust_risk(loss, iter([batch]), *rest, **how))
        return type(parts[0]).merge(parts)

    return risk


@handing_over_does_not_matter.mutant("takes the radius for one of half precision")
def _(name: str) -> Any:
    if name != "RegularizedLoss":
        return _public(name)

    class Coarse(refimpl.RegularizedLoss):
        def __call__(self, loss: Any, x: Array, **how: Any) -> Array:
            used = replace(self, ball=Ball(inf, 0.51)) if x.dtype.itemsize == 2 else self
            return refimpl.RegularizedLoss.__call__(used, loss, x, **how)

    return Coarse
