"""Beyond the paper: the risks that users call, recomputed from the losses that they evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar

from phiball.backends import Array, array_namespace, rng, to_numpy
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    Estimate,
    Gaussian,
    Tilted,
    adversarial_risk,
    constrained_risk,
    integrated_risk,
    quadrature,
    regularized_adversarial_risk,
    robust_risk,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.divergences import PAPER_DIVERGENCES
from phiball.verification.oracles import levels
from phiball.verification.oracles.inner import solve_exactly

Risk: TypeAlias = Callable[..., Any]
ROUNDING = 2.0**-40
Z = np.array([[0.2, -0.1], [1.0, 0.5], [-0.4, 0.3], [0.0, 2.0]])


def _smooth(x: Array, i: Array) -> Array:
    xp = array_namespace(x)
    return xp.sin(2 * x[:, 0]) + x[:, 1] ** 2 / 3 + 0.1 * xp.astype(i, x.dtype)


class Recorded:
    """A loss that keeps what it was asked and what it answered, in the order of the data points."""

    def __init__(self, loss: Callable[[Array, Array], Array]) -> None:
        self.loss = loss
        self.x: list[Any] = []
        self.f: list[Any] = []

    def __call__(self, x: Array, i: Array) -> Array:
        f = self.loss(x, i)
        self.x.append(to_numpy(x))
        self.f.append(to_numpy(f))
        return f

    def rows(self, n: int) -> Any:
        """The losses (N, n) of a sample of n points around each data point."""
        return np.concatenate(self.f)[: len(Z) * n].reshape(len(Z), n)


def _influence(rows: Any, eta: Any, family: str) -> Any:
    """The variance of the value of each row, from eta phi*((f - mu)/eta) at mu*."""
    value, weights = levels.solve(rows, eta, family)
    n = rows.shape[1]
    if family == "entropic":
        terms = eta * np.exp((rows - value[:, None]) / eta)
    else:  # phi = (x - 1)^2/2, for which x = n gamma = max(1 + s, 0), and phi*(s) = s x - phi(x)
        x = n * weights
        active = weights.argmax(axis=1)[:, None]
        mu = np.take_along_axis(rows - eta * (x - 1), active, axis=1)
        terms = (rows - mu) * x - eta * (x - 1) ** 2 / 2
    return terms.var(axis=1, ddof=1) / n


@claim(
    "robust_risk",
    id="U6",
    verdict=Verdict.HOLDS,
    formula=r"\hat R = \frac{1}{N} \sum_z R(f(z'_1), \ldots, f(z'_n)), \quad "
    r"\mathrm{se}^2 = \frac{1}{N^2} \sum_z \frac{1}{n} \mathrm{Var}\, \eta "
    r"\phi^*\left(\frac{f - \mu_z}{\eta}\right)",
    assumptions="a smooth loss around four points of the plane; the ball and the normal law; chunks",
)
def risk_is_what_it_evaluates(
    risk: Risk = robust_risk,
    bounded: Risk = regularized_adversarial_risk,
    merge: Callable[[list[Estimate]], Estimate] = Estimate.merge,
    seed: int = 0,
) -> Iterator[Evidence]:
    """The risk, its bias and its standard errors are those of the losses that it evaluates."""
    n, N = 64, len(Z)
    for phi in PAPER_DIVERGENCES:
        for law, eta, chunk in ((Ball(2, 0.4), 0.7, 10), (Gaussian(0.3), 2.0, 10**6)):
            seen = Recorded(_smooth)
            got = risk(seen, array(Z), law, eta, phi, samples=n, rng=rng(seed), chunk=chunk)
            rows = seen.rows(n)
            note = f"{phi.name}, {law}"
            family, parameter = phi.family or "", phi.parameter
            exact = levels.solve(rows, eta, family, parameter)[0]
            halves = [levels.solve(rows[:, k], eta, family, parameter)[0] for k in (slice(32), slice(32, n))]
            yield Evidence(float(np.abs(to_numpy(got.values) - exact).max()), ROUNDING, f"{note}: the values")
            yield Evidence(abs(float(got.value) - exact.mean()), ROUNDING, f"{note}: the value")
            low = (exact - (halves[0] + halves[1]) / 2).mean()
            yield Evidence(abs(float(got.bias) - low), ROUNDING, f"{note}: the bias")
            spread = exact.std(ddof=1) / N**0.5
            yield Evidence(abs(float(got.population_stderr) - spread), ROUNDING, f"{note}: over the data")
            if phi in (ENTROPIC, QUADRATIC):
                error = np.sqrt(_influence(rows, eta, family).sum()) / N
                yield Evidence(abs(float(got.stderr) - error), 1e-10, f"{note}: the standard error")
                # Without a slope, weights that are normalised are equal, and so is everything else.
                seen = Recorded(_smooth)
                how = {"proposal": Tilted(self_normalised=True), "input_gradient": lambda x, i: 0 * x}
                same = risk(seen, array(Z), law, eta, phi, samples=n, rng=rng(seed), **how)
                error = np.sqrt(_influence(seen.rows(n), eta, family).sum()) / N
                off = abs(float(same.stderr) - error)
                yield Evidence(off, 1e-10, f"{note}: the standard error, with weights")
                heavy = levels.solve(rows, eta, family)[1].max(axis=1).mean() > 0.05
                yield Evidence(float(got.lower_bound is not bool(heavy)), 0.0, f"{note}: whether it is heavy")
    yield from _tilted_risk(risk, seed)
    seen = Recorded(lambda x, i: array_namespace(x).sin(x[:, 0]) ** 2)
    got = bounded(seen, array(Z), Ball(inf, 0.3), 0.5, ENTROPIC, samples=16, rng=rng(seed))
    exact = levels.solve(seen.rows(16), 0.5, "entropic")[0].mean()
    yield Evidence(abs(float(got.value) - exact), ROUNDING, "a loss in [0, 1]")
    how = {"samples": 16, "rng": rng(seed)}
    parts = [risk(_smooth, array(z), Ball(2, 0.4), 0.7, ENTROPIC, **how) for z in (Z[:1], Z[1:])]
    got, sizes = merge(parts), np.array([1, N - 1])
    off = np.abs(to_numpy(got.values) - np.concatenate([to_numpy(part.values) for part in parts])).max()
    yield Evidence(float(off), 0.0, "two parts together: the values")
    for name in ("value", "bias"):
        mean = float(sizes @ [float(getattr(part, name)) for part in parts]) / N
        yield Evidence(abs(float(getattr(got, name)) - mean), ROUNDING, f"two parts together: the {name}")
    error = float(np.linalg.norm(sizes * [float(part.stderr) for part in parts])) / N
    yield Evidence(abs(float(got.stderr) - error), ROUNDING, "two parts together: the standard error")


def _tilted_risk(risk: Risk, seed: int) -> Iterator[Evidence]:
    """Points of the normal law, tilted by g: weights proportional to exp(-g.b/eta), exact or normalised."""
    g, eta, n, sigma = np.array([1.0, -0.5]), 2.0, 16, 0.3
    for phi, own in ((ENTROPIC, False), (ENTROPIC, True), (QUADRATIC, True)):
        seen = Recorded(_smooth)
        how = {"proposal": Tilted(self_normalised=own), "input_gradient": lambda x, i: 0 * x + array(g)}
        got = risk(seen, array(Z), Gaussian(sigma), eta, phi, samples=n, rng=rng(seed), **how)
        rows = seen.rows(n)
        b = np.concatenate(seen.x)[: len(Z) * n].reshape(len(Z), n, 2) - Z[:, None, :]
        log_w = sigma**2 * float(g @ g) / (2 * eta**2) - b @ g / eta
        p = np.exp(log_w) if own else np.ones_like(log_w)
        rows = rows if own else rows + eta * log_w
        best = [
            float(solve_exactly(f, eta, phi.family or "", p=q / q.sum()).value)
            for f, q in zip(rows, p, strict=True)
        ]
        note = f"{phi.name}, tilted points, {'normalised' if own else 'exact'} weights"
        yield Evidence(float(np.abs(to_numpy(got.values) - best).max()), ROUNDING, note)
        # The largest of 16 weights is 1/16 at least, which is heavy, and normalised weights are biased.
        yield Evidence(float(not got.lower_bound), 0.0, f"{note}: a lower bound")


@risk_is_what_it_evaluates.mutant("takes parts for equally large", replaces="merge")
def _(parts: list[Estimate]) -> Estimate:
    value = sum(part.value for part in parts) / len(parts)
    return replace(Estimate.merge(parts), value=value)


@risk_is_what_it_evaluates.mutant("adds the data points up", replaces="risk")
def _(*args: Any, **rest: Any) -> Any:
    got = robust_risk(*args, **rest)
    return replace(got, value=got.value * got.values.shape[0])


@risk_is_what_it_evaluates.mutant("does not divide the variance by n", replaces="risk")
def _(*args: Any, samples: int, **rest: Any) -> Any:
    got = robust_risk(*args, samples=samples, **rest)
    return replace(got, stderr=got.stderr * samples**0.5)


# --- The largest loss, and a budget ---------------------------------------------------------------


@claim(
    "adversarial_risk",
    id="U7",
    verdict=Verdict.HOLDS,
    formula=r"\frac{1}{N} \sum_z \max\left(\max_i f(z'_i), f(a(z))\right)",
    assumptions="sampled points and those of an attack, whichever is larger at each data point",
)
def adversarial_risk_is_the_largest(risk: Risk = adversarial_risk, seed: int = 0) -> Iterator[Evidence]:
    """The adversarial risk is the mean of the largest losses tried, at the points that it names."""
    move = np.array([[0.3, 0.0], [-0.3, 0.0], [0.0, -0.3], [0.0, 0.3]])
    seen, n = Recorded(_smooth), 12
    risk(seen, array(Z), Ball(2, 0.3), samples=n, rng=rng(seed), attack=None, chunk=5)
    sampled = seen.rows(n).max(axis=1)  # an attack draws nothing, and so changes none of them
    for attack in (None, lambda z: z + array(move)):
        got = risk(_smooth, array(Z), Ball(2, 0.3), samples=n, rng=rng(seed), attack=attack, chunk=5)
        moved = to_numpy(_smooth(array(Z + move), array(np.arange(4)))) if attack else np.full(4, -inf)
        best = np.maximum(sampled, moved)
        yield Evidence(float(np.abs(to_numpy(got.values) - best).max()), 0.0, "the largest of both")
        yield Evidence(abs(float(got.value) - best.mean()), ROUNDING, "their mean")
        yield Evidence(float(np.abs(to_numpy(got.sampled) - sampled).max()), 0.0, "the largest sampled loss")
        at = to_numpy(_smooth(got.points, array(np.arange(4))))
        yield Evidence(float(np.abs(at - best).max()), ROUNDING, "attained at the points")


@adversarial_risk_is_the_largest.mutant("leaves the attack out")
def _(*args: Any, attack: Any, **rest: Any) -> Any:
    return adversarial_risk(*args, attack=None, **rest)


@adversarial_risk_is_the_largest.mutant("takes the attack alone")
def _(*args: Any, attack: Any, **rest: Any) -> Any:
    got = adversarial_risk(*args, attack=attack, **rest)
    return replace(got, values=got.attacked) if attack else got


@claim(
    "Remark on Bayesian DRO",
    id="U8",
    verdict=Verdict.HOLDS,
    formula=r"\max\left\{\mathbb{E}_z \mathbb{E}_{\gamma_z} f:\ \mathbb{E}_z D_\phi(\gamma_z, "
    r"\nu_z) \le r\right\} "
    r"= \min_{\eta} \eta r + \mathbb{E}_z R_\eta(z)",
    assumptions="a budget for all data points together, or one for each; finite samples",
)
def budget_has_its_dual(risk: Risk = constrained_risk, seed: int = 0) -> Iterator[Evidence]:
    """The risk within a budget for the divergence is the least of eta r plus the risk at the price eta."""
    n = 40
    for phi in (ENTROPIC, QUADRATIC):
        for r, own in ((0.05, False), (0.3, False), (0.05, True), (0.3, True)):
            seen = Recorded(_smooth)
            how = {"radius": r, "samples": n, "rng": rng(seed), "per_point": own, "chunk": 17}
            got = risk(seen, array(Z), Ball(2, 0.4), phi, **how)
            rows = seen.rows(n)
            groups = [rows[k : k + 1] for k in range(len(Z))] if own else [rows]
            total, etas = 0.0, []
            for group in groups:
                best = minimize_scalar(
                    _price(group, r, phi.family or ""), bounds=(-6, 6), options={"xatol": 1e-10}
                )
                total += best.fun / len(groups)
                etas += [float(np.exp(best.x))] * (1 if own else len(Z))
            note = f"{phi.name}, r = {r}, {'each' if own else 'all together'}"
            yield Evidence(abs(float(got.value) - total), 1e-10, f"{note}: the value")
            off = np.abs(np.log(to_numpy(got.eta) / np.array(etas))).max()
            yield Evidence(float(off), 1e-3, f"{note}: the price")  # the minimum is flat
            yield Evidence(float(got.gap), 1e-10, f"{note}: the gap")
            spread = [
                _influence(rows[k : k + 1], float(eta), phi.family or "")[0]
                for k, eta in enumerate(numbers(got.eta))
            ]
            error = np.sqrt(np.sum(spread)) / len(Z)
            yield Evidence(abs(float(got.stderr) - error), 1e-8, f"{note}: the standard error")
            flat = risk(lambda x, i: 0 * x[:, 0] + 3, array(Z), Ball(2, 0.4), phi, **how)
            off = abs(float(flat.value) - 3) + abs(float(flat.stderr))
            yield Evidence(off, 1e-12, f"{note}: a constant loss, which no budget changes")
        # A budget that no price is known for leaves the average over all points, and their law.
        seen = Recorded(_smooth)
        how = {"radius": 1e-40, "samples": n, "rng": rng(seed)}
        value = float(risk(seen, array(Z), Ball(2, 0.4), phi, **how).value)
        yield Evidence(abs(value - seen.rows(n).mean()), 1e-10, f"{phi.name}: next to no budget")


def _price(rows: Any, r: float, family: str) -> Callable[[float], float]:
    def value(log_eta: float) -> float:
        eta = float(np.exp(log_eta))
        return eta * r + float(levels.solve(rows, eta, family)[0].mean())

    return value


@budget_has_its_dual.mutant("gives each data point all of the budget")
def _(*args: Any, per_point: bool, **rest: Any) -> Any:
    return constrained_risk(*args, per_point=True, **rest)


@budget_has_its_dual.mutant("twice the budget")
def _(*args: Any, radius: float, **rest: Any) -> Any:
    return constrained_risk(*args, radius=2 * radius, **rest)


# --- Without random numbers -----------------------------------------------------------------------


@claim(
    "integrated_risk",
    id="U9",
    verdict=Verdict.HOLDS,
    formula=r"\eta \log \mathbb{E} e^{g \cdot b/\eta}, \quad \mathbb{E} f + \frac{\mathrm{Var} f}{2 \eta}",
    assumptions="linear losses on intervals, discs, squares and diamonds; moments up to the fourth",
)
def quadrature_is_exact(risk: Risk = integrated_risk, rule: Risk = quadrature) -> Iterator[Evidence]:
    """Quadrature gives closed forms: the risk of linear losses in the plane and on a line, and moments."""
    rho, g = 0.8, np.array([0.9, -0.4])
    second = {1.0: 1 / 6, 2.0: 1 / 4, inf: 1 / 3}
    fourth = {1.0: 1 / 15, 2.0: 1 / 8, inf: 1 / 5}
    for norm in (1.0, 2.0, inf):
        for eta in (0.3, 2.0):
            s = rho * g / eta
            # A diamond is a square turned by an eighth; on a disc the Bessel function I_1.
            turned = np.array([s.sum(), s[0] - s[1]]) / 2 if norm == 1 else s
            exact = np.log(np.sinh(turned) / turned).sum() if norm != 2 else _disc(float(np.hypot(*s)))
            got = risk(_linear(g), array([[0.0, 0.0], [1.0, 1.0]]), Ball(norm, rho), eta, ENTROPIC, panels=1)
            values = np.array([eta * exact, eta * exact + g.sum()])
            yield Evidence(float(np.abs(to_numpy(got.values) - values).max()), 1e-11, f"norm {norm:g}, {eta}")
            yield Evidence(float(got.error), 1e-6, f"norm {norm:g}, eta = {eta}: the estimated error")
        spread = rho**2 * second[norm] * float(g @ g)
        got = risk(_linear(g), array([[1.0, 1.0]]), Ball(norm, rho), 4.0, QUADRATIC)
        exact = g.sum() + spread / 8
        yield Evidence(abs(float(got.value) - exact), 1e-11, f"norm {norm:g}: the variance")
        made = rule(Ball(norm, rho), array([0.0, 0.0]), panels=2)
        b, w = to_numpy(made.points) / rho, to_numpy(made.weights)
        yield Evidence(abs(float(w @ b[:, 1] ** 4) - fourth[norm]), 1e-12, f"norm {norm:g}: fourth moment")
        mixed = {1.0: 1 / 90, 2.0: 1 / 24, inf: 1 / 9}[norm]
        yield Evidence(abs(float(w @ (b[:, 0] * b[:, 1]) ** 2) - mixed), 1e-12, f"norm {norm:g}: b_1^2 b_2^2")
        coarse = to_numpy(made.coarse)
        yield Evidence(
            abs(float(coarse.sum()) - 1) + float((coarse == 0).mean() < 0.7), 1e-12, "the coarse rule"
        )
    line = risk(lambda x, i: x[:, 0], array([[0.5]]), Ball(2, 0.5), 1.0, ENTROPIC)
    yield Evidence(abs(float(line.value) - np.log(np.e - 1)), 1e-12, "an interval: log(e - 1)")


def _linear(g: Any) -> Callable[[Array, Array], Array]:
    return lambda x, i: array_namespace(x).sum(x * array(g), axis=-1)


def _disc(t: float) -> float:
    """log E exp(t b_1) on the unit disc, by its series."""
    term = total = 1.0
    for k in range(1, 60):
        term *= t * t / 4 / (k * (k + 1))
        total += term
    return float(np.log(total))


@quadrature_is_exact.mutant("a ball that is too small", replaces="risk")
def _(loss: Any, z: Array, ball: Ball, eta: float, phi: Any, **rest: Any) -> Any:
    return integrated_risk(loss, z, replace(ball, radius=0.99 * ball.radius), eta, phi, **rest)


@quadrature_is_exact.mutant("nodes of equal weights", replaces="rule")
def _(*args: Any, **rest: Any) -> Any:
    made = quadrature(*args, **rest)
    return replace(made, weights=0 * made.weights + 1 / made.weights.shape[0])
