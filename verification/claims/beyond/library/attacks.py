"""Beyond the paper: what the attacks promise, on losses whose maximum over the ball is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, Rng, array_namespace, rng, to_numpy
from phiball.refimpl import Ball, fgm, ifgm, pgm, white_noise
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL

Attack: TypeAlias = Callable[..., Array]

RHO, N, D = 0.5, 6, 3
DUAL = {1.0: inf, 2.0: 2.0, inf: 1.0, 3.0: 1.5}


@claim(
    "Section 6.1, attacks",
    id="U4",
    verdict=Verdict.HOLDS,
    formula=r"f = g \cdot x: \quad \max_{\|b\| \le \rho} f(z + b) = g \cdot z + \rho \|g\|_*",
    assumptions="linear losses, and concave ones with their maximum inside; norms 1, 2, 3 and inf; boxes",
)
def attacks_reach_the_maximum(
    fast: Attack = fgm, iterated: Attack = ifgm, projected: Attack = pgm, seed: int = 0
) -> Iterator[Evidence]:
    """Attacks stay in the ball and the box, and reach the maximum of linear and of concave losses."""
    source = np.random.default_rng(seed)
    g, z = source.normal(size=(N, D)), source.uniform(-1, 1, size=(N, D))

    def slope(x: Array, i: Array) -> Array:
        return array(g)

    def loss(x: Array, i: Array) -> Array:
        return array_namespace(x).sum(x * array(g), axis=-1)

    for norm, dual in DUAL.items():
        ball = Ball(norm, RHO)
        top = (g * z).sum(axis=-1) + RHO * np.linalg.norm(g, ord=dual, axis=-1)
        found = {"fgm": fast(slope, array(z), ball)}
        if norm != 3.0:
            found["ifgm"] = iterated(slope, array(z), ball)
            found["pgm, a short step"] = projected(slope, array(z), ball, steps=40, step=RHO / 4)
            more = {"steps": 60, "rng": rng(seed), "loss": loss, "restarts": 2}
            found["pgm, random starts"] = projected(slope, array(z), ball, **more)
            found["fgm, a random start"] = fast(slope, array(z), ball, rng=rng(seed))
        for name, x in found.items():
            points = to_numpy(x)
            size = np.linalg.norm(points - z, ord=norm, axis=-1)
            yield Evidence(float(size.max()) - RHO, 2.0**-48, f"{name}, norm {norm:g}: within the ball")
            short = top - (g * points).sum(axis=-1)
            # A random start of one step need not get to the maximum, but gets above z.
            allowed = {"fgm, a random start": RHO * np.linalg.norm(g, ord=dual, axis=-1)}.get(name, 1e-12)
            slack = 1e-2 if name == "pgm, random starts" and norm == 2 else 1e-12
            yield Evidence(float((short - allowed).max()), slack, f"{name}, norm {norm:g}: the maximum")
    yield from _in_a_box(fast, projected, g, z)
    yield from _concave(iterated, projected, seed)


def _in_a_box(fast: Attack, projected: Attack, g: Any, z: Any) -> Iterator[Evidence]:
    ball, low, high = Ball(inf, RHO, clip=(-1.0, 1.0)), -1.0, 1.0
    best = np.clip(z + RHO * np.sign(g), low, high)

    def slope(x: Array, i: Array) -> Array:
        return array(g)

    for name, attack in (("fgm", fast), ("pgm", projected)):
        off = np.abs(to_numpy(attack(slope, array(z), ball)) - best)
        yield Evidence(float(off.max()), 1e-12, f"{name} in a box")


def _concave(iterated: Attack, projected: Attack, seed: int) -> Iterator[Evidence]:
    """-|x - t|^2/2 with t inside the ball: the last iterate is within a step of t."""
    t = np.array([[0.1, -0.2, 0.05]])

    def slope(x: Array, i: Array) -> Array:
        return array(t) - x

    def loss(x: Array, i: Array) -> Array:
        return -array_namespace(x).sum((x - array(t)) ** 2, axis=-1) / 2

    z = array(np.zeros((1, D)))
    step = 2.5 * RHO / 50
    far = np.linalg.norm(to_numpy(iterated(slope, z, Ball(2, RHO), steps=50)) - t)
    yield Evidence(float(far), step, "ifgm: within a step of a maximum inside")
    best = to_numpy(projected(slope, z, Ball(2, RHO), steps=50, rng=rng(seed), loss=loss, restarts=3))
    yield Evidence(float(np.linalg.norm(best - t)), step, "pgm: the best of all iterates")
    start = array(t)  # the maximum itself, which no iterate beats
    kept = to_numpy(projected(slope, start, Ball(2, RHO), steps=5, rng=rng(seed), loss=loss))
    yield Evidence(float(np.abs(kept - t).max()), 0.0, "pgm: a loss is never lowered")


@attacks_reach_the_maximum.mutant("goes downhill", replaces="fast")
def _(gradient: Any, z: Array, ball: Ball, **how: Any) -> Array:
    return fgm(lambda x, i: -gradient(x, i), z, ball, **how)


@attacks_reach_the_maximum.mutant("does not project", replaces="projected")
def _(gradient: Any, z: Array, ball: Ball, **how: Any) -> Array:
    step = how.pop("step", None) or 2.5 * ball.radius / how.get("steps", 15)
    return pgm(gradient, z, replace(ball, radius=3 * ball.radius), step=step, **how)


@attacks_reach_the_maximum.mutant("half of the steps", replaces="iterated")
def _(gradient: Any, z: Array, ball: Ball, **how: Any) -> Array:
    return ifgm(gradient, z, ball, steps=1, step=ball.radius / 2)


@claim(
    "Section 6.1, white noise",
    id="U5",
    verdict=Verdict.HOLDS,
    formula=r"b \sim U(B_\rho): \quad \mathbb{E}\, b_1^2 = \rho^2 m_d, \quad \|b\| \le \rho",
    assumptions="norms 1, 2 and inf in the plane",
    error_level=9 * TEST_LEVEL,
)
def noise_is_uniform(
    noise: Callable[[Array, Ball, Rng], Array] = white_noise, seed: int = 0
) -> Iterator[Evidence]:
    """White noise lies in the ball, leans nowhere and has the second moment of the uniform law."""
    rows = 4000
    z = np.tile([[0.3, -2.0]], (rows, 1))
    for norm, second in ((1.0, 1 / 6), (2.0, 1 / 4), (inf, 1 / 3)):
        b = (to_numpy(noise(array(z), Ball(norm, RHO), rng(seed))) - z) / RHO
        yield Evidence(float(np.linalg.norm(b, ord=norm, axis=-1).max()) - 1, 2.0**-46, f"norm {norm:g}")
        for name, terms, exact in (
            ("the mean", b[:, 0], 0.0),
            ("the second moment", b[:, 1] ** 2, second),
            ("the fourth", b[:, 0] ** 4, {1.0: 1 / 15, 2.0: 1 / 8, inf: 1 / 5}[norm]),
        ):
            error = abs(float(terms.mean()) - exact)
            yield Evidence(error, NORMAL_QUANTILE * float(terms.std()) / rows**0.5, f"norm {norm:g}, {name}")


@noise_is_uniform.mutant("draws from the border")
def _(z: Array, ball: Ball, source: Rng) -> Array:
    b = to_numpy(white_noise(z, ball, source) - z)
    return z + array(ball.radius * b / np.linalg.norm(b, ord=ball.norm, axis=-1, keepdims=True))


@noise_is_uniform.mutant("moves all points alike")
def _(z: Array, ball: Ball, source: Rng) -> Array:
    xp = array_namespace(z)
    return z + xp.broadcast_to((white_noise(z, ball, source) - z)[:1, :], z.shape)
