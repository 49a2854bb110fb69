"""Single calls on points: balls, attacks, projections and risks, judged in extended precision."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

import phiball
from phiball.backends import array_namespace, to_numpy
from phiball.backends import rng as source
from phiball.refimpl.validation import valid_array
from tests.support.fuzz.arguments import ETAS, Argument, losses
from tests.support.fuzz.batches import NAMED
from tests.support.fuzz.guard import FaultError, fault, guarded, search
from tests.support.fuzz.judge import LONG

METHODS = ["length", "dual_norm", "contains", "project", "steepest", "variance", "log_mgf", "sample"]
METHODS += ["sample_tilted", "white_noise", "fgm", "pgm", "onto_simplex", "quadrature", "gaussian"]
METHODS += ["surrogate", "r2", "r3", "linear_model_risk"]
RISKS = ["robust_risk", "adversarial_risk", "worst_case_sample", "RegularizedLoss", "constrained_risk"]
NORMS = [1, 2, inf, 2, inf, 1.5, 4]
RADII = [0.0, 0.5, 1.0, 3, 1e-3, 1e6, 1e-300, 1e-310, 1e30, 1e200, 1.7e308, -1.0, inf, "1", None]
CLIPS = [None, None, None, (-10.0, 10.0), (0, 1), (1, 0)]
Ball = tuple[Any, Any, Any]


@st.composite
def calls(draw: Any) -> tuple[Any, ...]:
    """(name, backend, divergence, norm, radius and clip, z, g, eta)."""
    z = draw(losses())
    g = draw(losses()) if draw(st.integers(0, 4)) == 0 else _same_shape(draw, z)
    radius = draw(st.one_of(st.floats(0, 10, width=16), st.sampled_from(RADII)))
    ball = draw(st.sampled_from(NORMS)), radius, draw(st.sampled_from(CLIPS))
    name, backend = draw(st.sampled_from(METHODS + RISKS)), draw(st.sampled_from(["numba", "numpy"]))
    return name, backend, draw(st.sampled_from(list(NAMED))), ball, z, g, draw(ETAS)


def _same_shape(draw: Any, z: Argument) -> Argument:
    other = draw(losses())
    shape = np.shape(np.array(z.values, dtype=float))
    values = np.resize(np.array(other.values, dtype=float), shape)
    return Argument(z.kind, z.dtype, other.layout, values.tolist())


def run(count: int, start: int) -> str | None:
    """Make `count` calls from a seed; the fault of the smallest that has one."""
    return search(check, calls(), count, start)


def check(name: str, backend: str, divergence: str, ball: Ball, z: Argument, g: Argument, eta: Any) -> None:
    """Make one call, and raise a FaultError if it is wrong."""
    x, y = z.make(), g.make()

    def say(what: str) -> FaultError:
        return fault(what, check, name, backend, divergence, ball, z, g, eta)

    out = guarded(lambda: call(name, divergence, ball, x, y, eta), backend, (x, y), say)
    if out is None or not {z.dtype, g.dtype} <= {"float32", "float64"}:
        return
    law = phiball.Ball(*ball)
    a, b = (v.numbers() for v in (z, g))
    if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        return  # what is of one of them alone
    found = wrong(name, law, a, b, [np.asarray(to_numpy(v)) for v in out])
    if found:
        raise say(f"wrong: {found}: {out}")


def call(name: str, divergence: str, ball: Ball, z: Any, g: Any, eta: Any) -> Any:
    """What the call returns, as a tuple of arrays."""
    law, d, random = phiball.Ball(*ball), NAMED[divergence], source(1)

    if name in (*RISKS, "linear_model_risk"):
        valid_array("z", z)
        if type(z) is not type(g) or z.shape != g.shape or 0 in (z.ndim, *z.shape):
            raise ValueError("there is no slope for each point")

    def loss(x: Any, i: Any) -> Any:
        xp = array_namespace(x)
        with np.errstate(all="ignore"):
            return xp.sum(xp.reshape(x * xp.take(g, i, axis=0), (x.shape[0], -1)), axis=-1)

    if name in ("length", "dual_norm", "variance", "log_mgf", "steepest"):
        return (getattr(law, name)(g),)
    if name in ("contains", "project"):
        return (getattr(law, name)(g, z),)
    if name == "sample":
        return (law.sample(z, 3, random),)
    if name == "sample_tilted":
        return law.sample_tilted(z, g, 2, random)
    if name == "gaussian":
        return phiball.Gaussian(ball[1]).sample(z, 2, random), phiball.Gaussian(ball[1]).log_mgf(g)
    if name == "white_noise":
        return (phiball.white_noise(z, law, random),)
    if name in ("fgm", "pgm"):
        more = {} if name == "fgm" else {"steps": 3, "rng": random}
        return (getattr(phiball, name)(lambda x, i: g, z, law, **more),)
    if name == "onto_simplex":
        return (phiball.onto_simplex(g),)
    if name == "quadrature":
        valid_array("z", z)
        rule = phiball.quadrature(law, z[..., :2] if z.ndim and z.shape[-1] > 2 else z)
        return rule.points, rule.weights
    if name == "r2":
        return (phiball.r2(g, law),)
    if name in ("surrogate", "r3"):
        return (getattr(phiball, name)(g, law, eta, d),)
    if name == "adversarial_risk":
        risk: Any = phiball.adversarial_risk(loss, z, law, samples=3, rng=random)
        return risk.values, risk.points
    if name == "worst_case_sample":
        drawn = phiball.worst_case_sample(loss, z, law, eta, d, n=2, samples=4, rng=random)
        return drawn.points, drawn.index
    if name == "constrained_risk":
        risk = phiball.constrained_risk(loss, z, law, d, radius=0.5, samples=4, rng=random)
        return (risk.value,)
    if name == "linear_model_risk":
        labels = 2.0 * (z[..., 0] > 0) - 1
        problem = phiball.LinearProblem(ball=law, eta=eta, divergence=d)
        return (phiball.linear_model_risk(problem, g[0, ...], 0.0, z, labels).value,)
    if name == "RegularizedLoss":
        objective = phiball.RegularizedLoss(law, eta, d, phiball.SG(2))
        return (objective(loss, z, rng=random),)
    risk = phiball.robust_risk(loss, z, law, eta, d, samples=4, rng=random)
    return risk.values, risk.value, risk.bias, risk.stderr


def wrong(name: str, ball: Any, z: Any, g: Any, out: list[Any]) -> str:
    """What is wrong with a result, or nothing."""
    eps = max(float(np.finfo(x.dtype).eps) for x in (z, g))
    with np.errstate(all="ignore"):
        first = out[0].astype(LONG)
        if any(np.any(np.isnan(x)) for x in out if x.dtype.kind == "f"):
            return "NaN"
        v, radius = g.astype(LONG), LONG(ball.radius)
        reach = radius * norm(v, conjugate(ball.norm))
        slack = eps * (16 + 4 * g.shape[-1] if g.ndim else 16)
        if name == "length":
            return far(first, norm(v, ball.norm), slack, eps)
        if name == "dual_norm":
            return far(first, norm(v, conjugate(ball.norm)), slack, eps)
        if name == "variance":
            moment = LONG(replace(ball, radius=1.0).variance(np.eye(1, g.shape[-1])[0]))
            return far(first, radius**2 * moment * np.sum(v * v, axis=-1), 8 * slack, eps)
        if name == "steepest":
            gain, size = np.sum(first * v, axis=-1), norm(first, ball.norm)
            tiny = np.finfo(g.dtype).smallest_normal * (1 + norm(v, 1))
            low = np.any(gain < reach * (1 - slack) - tiny)
            return "too short" if low else "too long" if np.any(size > radius * (1 + slack) + tiny) else ""
        if name in ("log_mgf", "surrogate"):
            tiny = np.finfo(g.dtype).smallest_normal
            over = reach > LONG(np.finfo(g.dtype).max) * (1 - slack)  # then infinity is right
            off = (first < -slack * reach - tiny) | ((first > reach * (1 + slack) + tiny) & ~over)
            return "outside its bounds" if np.any(off) else ""
        if name == "onto_simplex":
            return far(first, simplex(v), 8 * slack, eps, extra=8 * slack)
        if name == "gaussian":
            return "" if np.all(np.isfinite(first)) else "not finite"
        if name in ("contains", "r2", "r3"):
            return ""
        if not all(np.all(np.isfinite(x)) for x in out):
            return "not finite"
        if name in ("constrained_risk", "linear_model_risk"):
            return ""
        centre = z.astype(LONG)
        if name in ("robust_risk", "RegularizedLoss", "adversarial_risk"):
            tiny = np.finfo(g.dtype).smallest_normal
            values = np.sum((centre * v).reshape(len(z), -1), axis=-1)
            way = radius * norm(v.reshape(len(z), -1), conjugate(ball.norm))
            size = np.sum(np.abs(centre * v).reshape(len(z), -1), axis=-1) + way
            if name == "RegularizedLoss":
                values, way, size = (np.mean(x) for x in (values, way, size))
            return (
                "outside its bounds"
                if np.any(np.abs(first - values) > way + 64 * slack * size + tiny)
                else ""
            )
        if name == "onto_ball" or name == "project":
            moved = (g - z).astype(LONG)
            nearest = np.where(norm(moved, ball.norm)[..., None] <= radius, v, centre + project(moved, ball))
            nearest = nearest if ball.clip is None else np.clip(nearest, *ball.clip)
            room = slack * (np.abs(centre) + np.minimum(radius, norm(moved, inf))[..., None])
            return far(first, nearest, slack, eps, extra=room)
        if name == "worst_case_sample":
            centre = centre[out[1]]
        if name in ("fgm", "pgm", "white_noise", "worst_case_sample"):  # a point is all axes but the first
            first, centre = (x.reshape(len(x), -1) for x in (first, centre))
        elif name != "adversarial_risk":
            points = first.ndim - (centre.ndim if name != "quadrature" else 0)
            centre = centre[..., :2] if name == "quadrature" else centre
            centre = centre if points == 0 else np.expand_dims(centre, -2)
        room = slack * (norm(np.broadcast_to(np.abs(centre), first.shape), ball.norm) + radius)
        return "outside the ball" if np.any(norm(first - centre, ball.norm) > radius + 4 * room) else ""


def far(x: Any, exact: Any, slack: float, eps: float, extra: Any = 0.0) -> str:
    """Whether x is not exact to `slack` relative; infinite beyond the range of the dtype, and else finite."""
    limits = np.finfo(np.float32 if eps > 1e-10 else np.float64)
    over, tiny = np.abs(exact) > limits.max * (1 - slack), LONG(limits.smallest_normal)
    off = ~(np.abs(x - exact) <= slack * np.abs(exact) + extra + tiny) & ~over
    return "far from the truth" if np.any(off) else ""


def conjugate(p: float) -> float:
    """q with 1/p + 1/q = 1."""
    return 1.0 if p == inf else inf if p == 1 else p / (p - 1)


def norm(v: Any, p: float) -> Any:
    """|v|_p along the last axis."""
    if p == inf:
        return np.max(np.abs(v), axis=-1, initial=0)
    return np.sum(np.abs(v) ** LONG(p), axis=-1) ** (1 / LONG(p))


def project(v: Any, ball: Any) -> Any:
    """The point of the ball around 0 that is nearest to v, which is outside."""
    r = LONG(ball.radius)
    if ball.norm == inf:
        return np.clip(v, -r, r)
    if ball.norm == 2:
        return v * (r / norm(v, 2))[..., None]
    size = np.abs(v)
    return np.sign(v) * threshold(size, r)


def simplex(v: Any) -> Any:
    """The law nearest to v."""
    return threshold(v, LONG(1))


def threshold(v: Any, mass: Any) -> Any:
    """(v - t)_+ with the sum `mass`."""
    top = np.max(v, axis=-1, keepdims=True, initial=-np.inf)
    low = -np.sort(-(v - top), axis=-1)
    t = np.max((np.cumsum(low, axis=-1) - mass) / np.arange(1, v.shape[-1] + 1), axis=-1, keepdims=True)
    return np.maximum(v - top - t, 0)
