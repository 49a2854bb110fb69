"""Beyond the paper: descent, projections and random numbers, as users call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from math import inf, log, sqrt
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from scipy.stats import chi2

from phiball.backends import Array, Rng, rng, to_numpy
from phiball.refimpl import (
    Ball,
    covering_bound,
    generalization_bound,
    gradient_mapping,
    mirror_descent,
    onto_ball,
    onto_box,
    onto_simplex,
    projected_sgd,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, TEST_LEVEL

Descent: TypeAlias = Callable[..., Any]


@claim(
    "Algorithm 1, footnote on mirror descent",
    id="U21",
    verdict=Verdict.HOLDS,
    formula=r"\theta_{t+1} \propto \theta_t e^{-\tau V(\theta_t)}, \quad "
    r"F(\bar\theta) - F(\theta^*) \le M \sqrt{\frac{2 \log d}{T}}",
    assumptions="F = c.theta, or sum_j c_j theta_j^2/2, with entries of V of at most M; from the uniform law",
    examples=40,
    cost=st.lists(st.integers(-3, 3), min_size=2, max_size=6),
    steps=st.integers(1, 60),
    kind=st.sampled_from(["linear", "squares"]),
)
def mirror_descent_reaches_its_bound(
    cost: list[int], steps: int, kind: str, descend: Descent = mirror_descent
) -> Iterator[Evidence]:
    """Mirror descent takes multiplicative steps, and its average is within M sqrt(2 log d/T) of the best."""
    c, d = np.array(cost, dtype=float), len(cost)
    M = float(np.abs(c).max()) or 1.0
    step = sqrt(2 * log(d) / steps) / M

    def slope(theta: Any) -> Any:
        return c + 0 * theta if kind == "linear" else c * theta

    def gradient(theta: Array) -> Array:
        return array(slope(to_numpy(theta)))

    run = descend(gradient, array(np.full(d, 1 / d)), step_size=step, steps=steps)
    path = [np.full(d, 1 / d)]
    for _ in range(steps - 1):
        new = path[-1] * np.exp(-step * slope(path[-1]))
        path.append(new / new.sum())
    yield Evidence(float(np.abs(to_numpy(run.last) - path[-1]).max()), 1e-12, "the last iterate")
    yield Evidence(float(np.abs(to_numpy(run.theta) - np.mean(path, axis=0)).max()), 1e-12, "the average")
    rows = descend(gradient, array(np.full((3, d), 1 / d)), step_size=step, steps=steps)
    apart = np.abs(to_numpy(rows.last) - to_numpy(run.last)).max() if rows.last.shape == (3, d) else inf
    yield Evidence(float(apart), 1e-12, "three rows, each as if it were alone")
    if kind == "linear":
        gap = float(c @ to_numpy(run.theta)) - float(c.min())
        yield Evidence.at_most(gap, M * sqrt(2 * log(d) / steps), 1e-12, "the gap of the average")


@mirror_descent_reaches_its_bound.mutant("climbs")
def _(gradient: Any, theta0: Array, **how: Any) -> Any:
    return mirror_descent(lambda theta: -gradient(theta), theta0, **how)


@mirror_descent_reaches_its_bound.mutant("takes Euclidean steps")
def _(gradient: Any, theta0: Array, **how: Any) -> Any:
    return projected_sgd(gradient, theta0, project=onto_simplex, **how)


@claim(
    "onto_ball, onto_box, onto_simplex and gradient_mapping",
    id="U22",
    verdict=Verdict.HOLDS,
    formula=r"\langle \theta - P\theta,\, y - P\theta \rangle \le 0 \text{ for all } y \in \Theta, \quad "
    r"P\theta \in \Theta",
    assumptions="balls of norm 1, 2 and inf around any centre, boxes, the simplex; y the extreme points",
    examples=25,
    theta=st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=4),
)
def projections_are_nearest(
    theta: list[float], ball: Any = onto_ball, box: Any = onto_box, simplex: Any = onto_simplex
) -> Iterator[Evidence]:
    """A projection lies in its set, and no extreme point of it is nearer: the angle is not acute."""
    v, d = np.array(theta), len(theta)
    eye, corners = np.eye(d), np.array(np.meshgrid(*[[-1.0, 1.0]] * d)).reshape(d, -1).T
    centre = 0.25 * np.arange(d)
    sphere = (v - centre) / (np.linalg.norm(v - centre) or 1.0)
    vertices = {1.0: np.vstack([eye, -eye]), 2.0: sphere[None], inf: corners}
    sets: list[tuple[str, Any, Any, Callable[[Any], Any]]] = [
        ("the simplex", simplex, eye, lambda x: max(abs(x.sum() - 1), -x.min())),
        ("a box", box(-1.0, 0.5), 0.75 * corners - 0.25, lambda x: max(x.max() - 0.5, -1 - x.min())),
    ]
    for norm, unit in vertices.items():
        project = ball(Ball(norm, 0.7), centre=array(centre))
        far = partial(lambda x, norm: np.linalg.norm(x - centre, ord=norm) - 0.7, norm=norm)
        sets.append((f"the ball of norm {norm:g}", project, centre + 0.7 * unit, far))
    for where, project, extreme, outside in sets:
        x = to_numpy(project(array(v)))
        yield Evidence(float(outside(x)), 1e-12, f"{where}: inside")
        angle = ((v - x) * (extreme - x)).sum(axis=1)
        yield Evidence(float(angle.max()), 1e-10, f"{where}: no extreme point is nearer")
        mapping = to_numpy(gradient_mapping(array(centre - v), array(centre), step_size=1.0, project=project))
        yield Evidence(float(np.abs(mapping - (centre - x)).max()), 1e-12, f"{where}: the gradient mapping")


@projections_are_nearest.mutant("scales onto every ball", replaces="ball")
def _(ball: Ball, *, centre: Array) -> Any:
    def project(theta: Array) -> Array:
        size = float(ball.length(theta - centre))
        return centre + (theta - centre) * min(1.0, ball.radius / size if size else 1.0)

    return project


@projections_are_nearest.mutant("clips and rescales", replaces="simplex")
def _(theta: Array) -> Array:
    kept = np.maximum(to_numpy(theta), 1e-9)
    return array(kept / kept.sum())


@claim(
    "Algorithm 1, a random iterate",
    id="U23",
    verdict=Verdict.HOLDS,
    formula=r"P(\tilde\theta = \theta_t) = \frac{1}{T}, \quad t = 1, \ldots, T",
    assumptions="T = 5, iterates that are all different; 2000 runs",
    error_level=TEST_LEVEL,
)
def random_iterate_is_uniform(sgd: Descent = projected_sgd, seed: int = 0) -> Iterator[Evidence]:
    """Without averaging each of the T iterates is returned equally often, the first and last included."""
    T, runs = 5, 2000
    source = rng(seed)
    counts: Counter[int] = Counter()
    for _ in range(runs):
        run = sgd(
            lambda theta: 0 * theta - 1, array([0.0]), step_size=1.0, steps=T, average=False, rng=source
        )
        counts[round(float(run.theta[0]))] += 1
    yield Evidence(float(set(counts) != set(range(T))), 0.0, f"the iterates returned: {sorted(counts)}")
    statistic = sum((counts[t] - runs / T) ** 2 / (runs / T) for t in range(T))
    yield Evidence.at_most(statistic, float(chi2.isf(TEST_LEVEL, T - 1)), 0.0, "equally often")
    whole = sgd(lambda theta: 0 * theta - 1, array([0.0]), step_size=lambda t: 1.0 * t, steps=T)
    yield Evidence(abs(float(whole.theta[0]) - 4.0), 1e-14, "the average of 0, 1, 3, 6, 10")


@random_iterate_is_uniform.mutant("never the last")
def _(gradient: Any, theta0: Array, *, steps: int, average: bool = True, **how: Any) -> Any:
    return projected_sgd(gradient, theta0, steps=steps if average else steps - 1, average=average, **how)


@random_iterate_is_uniform.mutant("always the last")
def _(gradient: Any, theta0: Array, *, average: bool = True, **how: Any) -> Any:
    run = projected_sgd(gradient, theta0, average=average, **how)
    return run if average else type(run)(run.last, run.last)


# --- Random numbers, and a certificate ------------------------------------------------------------


@claim(
    "Rng",
    id="U24",
    verdict=Verdict.HOLDS,
    formula=r"\mathrm{Cov}(u_i, u_j) = 0,\ i \ne j \text{ children}; \quad \text{restore(state)} "
    r"\text{ repeats}",
    assumptions="uniform, normal, exponential, gamma, integers, permutations; four children of one source; "
    "arrays of the backend and, where it is installed, of torch",
    error_level=30 * TEST_LEVEL,
)
def sources_are_independent(make: Callable[[int], Rng] = rng, seed: int = 0) -> Iterator[Evidence]:
    """Children of a source are independent of it and of each other, and every draw has its law."""
    yield from _draws(make, array(0.0), seed)
    if find_spec("torch") is not None:
        import torch

        yield from _draws(make, torch.zeros((), dtype=torch.float64), seed)


def _draws(make: Callable[[int], Rng], like: Any, seed: int) -> Iterator[Evidence]:
    n = 4000
    parent = make(seed)
    streams = [parent, *parent.spawn(3)]
    u = np.array([to_numpy(source.uniform((n,), like=like)) for source in streams])
    for i in range(4):
        for j in range(i):
            lean = float(((u[i] - 0.5) * (u[j] - 0.5)).mean())
            yield Evidence(abs(lean), NORMAL_QUANTILE / 12 / sqrt(n), f"streams {i} and {j} are independent")
    again = make(seed).spawn(3)
    for k in (2, 0, 1):  # in any order: a child does not depend on what others draw
        off = np.abs(to_numpy(again[k].uniform((n,), like=like)) - u[k + 1]).max()
        yield Evidence(float(off), 0.0, f"child {k} is its own")
    source = make(seed)
    for name, terms, mean, spread in (
        ("uniform", source.uniform((n,), like=like, low=-1.0, high=3.0), 1.0, 4 / sqrt(12)),
        ("normal", source.normal((n,), like=like) ** 2, 1.0, sqrt(2)),
        ("exponential", source.exponential((n,), like=like), 1.0, 1.0),
        ("gamma", source.gamma(2.5, (n,), like=like), 2.5, sqrt(2.5)),
        ("small gamma", source.gamma(0.4, (n,), like=like), 0.4, sqrt(0.4)),
        ("integers", source.integers(7, (n,), like=like), 3.0, 2.0),
    ):
        off = abs(float(np.mean(to_numpy(terms))) - mean)
        yield Evidence(off, NORMAL_QUANTILE * spread / sqrt(n), name)
    order = to_numpy(source.permutation(50, like=like))
    yield Evidence(float(np.abs(np.sort(order) - np.arange(50)).max()), 0.0, "a permutation")
    moved = float(np.abs(order - np.arange(50)).mean())
    yield Evidence(abs(moved - 16.66), NORMAL_QUANTILE * 2.0, "that is random")
    saved = source.state()
    first, again = source.normal((5,), like=like), type(source).restore(saved).normal((5,), like=like)
    yield Evidence(
        max(abs(a - b) for a, b in zip(numbers(first), numbers(again), strict=True)), 0.0, "restored"
    )


@sources_are_independent.mutant("gives the same child again and again")
def _(seed: int) -> Rng:
    class Same(Rng):
        def spawn(self, n: int) -> list[Rng]:
            return [Rng(seed + 1) for _ in range(n)]

    return Same(seed)


@sources_are_independent.mutant("uniform numbers from 0 to 1 whatever is asked")
def _(seed: int) -> Rng:
    class Narrow(Rng):
        def uniform(self, shape: Any, *, like: Array, low: float = 0.0, high: float = 1.0) -> Array:
            return super().uniform(shape, like=like)

    return Narrow(seed)


@claim(
    "Proposition 4, as a certificate",
    id="U25",
    verdict=Verdict.HOLDS,
    formula=r"\hat R + 8\alpha + \frac{24}{\sqrt n} (1 - \alpha) \sqrt{\log N} + "
    r"3\sqrt{\frac{\log(2/\delta)}{n}}",
    assumptions="a finite class, for which alpha = 0 is best if 9 log N <= n; vacuous from 1 on",
)
def certificate_is_the_sum(certify: Any = generalization_bound) -> Iterator[Evidence]:
    """The certificate of a finite class is the printed sum, and says so where it is vacuous."""
    for n in (50, 20_000, 10**6):
        for risk in (0.0, 0.25):
            bound = covering_bound(n, 0.1, lambda eps: log(33))
            got = certify(risk, bound)
            exact = risk + 24 * sqrt(log(33) / n) + 3 * sqrt(log(20) / n)
            exact = min(exact, risk + 8 + 3 * sqrt(log(20) / n))
            yield Evidence(abs(got.value - exact), 1e-9, f"n = {n}: {got.value:.4g}")
            yield Evidence(float(got.vacuous is not (exact >= 1)), 0.0, f"n = {n}: vacuous or not")
            yield Evidence(float(bound.vacuous is not (exact - risk >= 1)), 0.0, f"n = {n}: the bound alone")


@certificate_is_the_sum.mutant("forgets the risk of the sample")
def _(risk: float, bound: Any) -> Any:
    return generalization_bound(0.0, bound)
