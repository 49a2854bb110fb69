"""Beyond the paper: derivatives of the worst case, at a price and within a radius, in every mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from phiball.backends import Array, rng
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    Gaussian,
    constrained_worst_case,
    cressie_read,
    indicator,
    surrogate,
    worst_case,
    worst_case_jvp,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.oracles import derivatives as exact
from phiball.verification.oracles.derivatives import Direction, Solution
from phiball.verification.oracles.inner import solve_exactly

Solve: TypeAlias = Callable[..., Any]


class Case(NamedTuple):
    """A problem without ties."""

    f: list[float]
    eta: float
    p: list[float] | None

    @property
    def law(self) -> list[float]:
        """The law, written out."""
        return self.p or [1 / len(self.f)] * len(self.f)


PLAIN = Case([0.3, -0.7, 1.4, 0.9], 0.6, None)
WEIGHED = Case([0.2, 1.1, -0.4, 0.8], 2.5, [0.1, 0.2, 0.4, 0.3])
IDLE = Case([0.5, 3.0, -2.0, 1.0], 0.45, [0.3, 0.2, 0.4, 0.1])  # some have no weight for an order above 1
WITHOUT = Case([1.0, 7.0, -0.5, 0.25], 1.2, [0.5, 0.0, 0.2, 0.3])  # the largest loss is not charged
CASES = (PLAIN, WEIGHED, IDLE, WITHOUT)

SMOOTH = (ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (-1.0, 0.0, 0.5, 1.5, 3.0)))
KINKED = (ABSOLUTE, HINGE, indicator(0.37))
CLOSE = 1e-11


def _unnamed(d: Divergence) -> Divergence:
    """The divergence as users give theirs: by its functions."""
    return replace(d, family=None, parameter=None)


FORMS = [(d, form) for d in SMOOTH for form in (d, _unnamed(d))]


def _ways(case: Case) -> list[tuple[str, Direction]]:
    """One direction of losses, of price or radius and of the law each, with zeros where there is no mass."""
    none = [0.0] * 4
    turn = [0.03 * s if q else 0.0 for s, q in zip((1, -2, 2, 3), case.law, strict=True)]
    return [
        ("the losses", Direction([1.0, -2.0, 0.5, 3.0], 0.0, none)),
        ("price or radius", Direction(none, 0.75, none)),
        ("the law", Direction(none, 0.0, turn)),
    ]


def _pairs(got: Any, true: Solution, price: bool) -> Iterator[tuple[str, float]]:
    """How far value, multipliers and weights are from the exact ones, in units of their size."""
    for name in ("value", "mu", "weights") if price else ("value", "eta", "mu", "weights"):
        a = np.array(numbers(getattr(got, name)))
        b = np.array(_floats(getattr(true, name)))
        yield name, float((np.abs(a - b) / (1 + np.abs(b).max())).max())


def _floats(x: Any) -> list[float]:
    return [float(v) for v in np.ravel(np.array(x, dtype=object))]


@claim(
    "worst_case_jvp",
    id="U12",
    verdict=Verdict.HOLDS,
    formula=r"\dot R = \gamma \cdot \dot f, \quad "
    r"(\dot\mu, \dot\gamma) = \frac{d}{dt}\,(\mu, \gamma)(f + t \dot f, \eta + t \dot\eta, p + t \dot p)",
    assumptions="nine phi by name and by their functions, uniform laws and others, zeros among them; against "
    "differences of exact solutions",
)
def derivative_along_a_direction(jvp: Solve = worst_case_jvp) -> Iterator[Evidence]:
    """The derivatives of value, mu and weights are what small changes of losses, eta and law make of them."""
    for case in CASES:
        for named, phi in FORMS:
            family, k = named.family or "", named.parameter
            base = exact.at_price(case.f, case.eta, case.law, family, k)
            for way, to in _ways(case):
                if case is WITHOUT and way != "the losses" and k is not None and k < 1:
                    continue  # beyond its pole the conjugate of a loss without mass is infinite
                got = _derivative(jvp, case, case.eta, phi, to)
                true = exact.along(base, case.f, case.law, to, family, k, within=False)
                for name, off in _pairs(got, true, price=True):
                    yield Evidence(off, CLOSE, f"{phi.name}, {way}: {name}")
    yield from _kinks(jvp)
    rows = [Case([0.3, -0.7, 1.4], 0.6, None), Case([1.0, 0.2, 0.1], 2.0, None)]
    both = jvp(
        array([r.f for r in rows]), array([r.eta for r in rows]), ENTROPIC, array([[1.0, 2.0, 4.0]] * 2)
    )
    for at, row in enumerate(rows):
        alone = jvp(array(row.f), row.eta, ENTROPIC, array([1.0, 2.0, 4.0]))
        off = np.abs(np.array(numbers(both.weights)).reshape(2, 3)[at] - numbers(alone.weights)).max()
        yield Evidence(float(off), CLOSE, "rows with prices of their own")


def _derivative(jvp: Solve, case: Case, eta: float, phi: Divergence, to: Direction) -> Any:
    along = {"deta": to.setting or None, "dp": array(to.p) if any(to.p) else None}
    law = array(case.law) if case.p or any(to.p) else None
    return jvp(array(case.f), eta, phi, array(to.f) if any(to.f) else None, **along, p=law)


STEP = 2.0**-16


def _kinks(jvp: Solve) -> Iterator[Evidence]:
    """Where phi is kinked, value and weights are piecewise linear, but for the rescaling of the law."""
    for case in (PLAIN, WEIGHED, IDLE):
        for named in KINKED:
            for phi in (named, _unnamed(named)):
                for eta in (case.eta, 20.0):
                    for way, to in _ways(case):
                        ends = [_moved(case, eta, named, to, side * STEP) for side in (1, -1)]
                        got = _derivative(jvp, case, eta, phi, to)
                        note = f"{phi.name}, eta = {eta:g}, {way}"
                        for name in ("value", "mu", "weights"):
                            up, down = (np.array(end[name]) for end in ends)
                            if name == "mu" and phi is not named and eta > 2:
                                continue  # any mu of an interval is optimal
                            off = np.array(numbers(getattr(got, name))) - (up - down) / (2 * STEP)
                            yield Evidence(float(np.abs(off).max()), 1e-8, f"{note}: {name}")


def _moved(case: Case, eta: float, d: Divergence, to: Direction, h: float) -> dict[str, Any]:
    """The solution a step along the direction; mu is the library's own, as there may be several."""
    f = [v + h * x for v, x in zip(case.f, to.f, strict=True)]
    p = [q + h * x for q, x in zip(case.law, to.p, strict=True)]
    total = sum(p)
    eta = eta + h * to.setting
    best = solve_exactly(f, eta, d.family or "", d.parameter, p=p)
    mu = worst_case(array(f), eta, d, p=array([q / total for q in p])).mu
    return {
        "value": [float(best.value)],
        "mu": [float(mu)],
        "weights": [float(w) for w in best.weights],
    }


@derivative_along_a_direction.mutant("does not move the weights")
def _(*args: Any, **rest: Any) -> Any:
    got = worst_case_jvp(*args, **rest)
    return replace(got, weights=0 * got.weights)


@derivative_along_a_direction.mutant("the other direction of eta")
def _(f: Array, eta: float, phi: Divergence, df: Any, *, deta: Any = None, **law: Any) -> Any:
    return worst_case_jvp(f, eta, phi, df, deta=None if deta is None else -deta, **law)


@derivative_along_a_direction.mutant("moves mu with the value")
def _(*args: Any, **rest: Any) -> Any:
    got = worst_case_jvp(*args, **rest)
    return replace(got, mu=got.value)


# --- With torch, and within a radius --------------------------------------------------------------


@claim(
    "Derivatives by torch",
    id="U12-modes",
    part_of="U12",
    verdict=Verdict.HOLDS,
    formula=r"\nabla (a \cdot y) \cdot \dot x = a \cdot \frac{d}{dt}\, y(x + t \dot x), \quad "
    r"x = (f, \eta \text{ or } r, p)",
    assumptions="worst_case and constrained_worst_case, forward, backward, twice and in batches; without "
    "torch the slope of the value in the radius alone; against differences of exact solutions",
)
def derivatives_in_every_mode(
    price: Solve = worst_case, budget: Solve = constrained_worst_case
) -> Iterator[Evidence]:
    """Gradients of value, multipliers and weights are those of exact solutions, also within a radius."""
    for case in (WEIGHED, IDLE):
        for named in (ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3.0)):
            family, k = named.family or "", named.parameter
            base = exact.at_price(case.f, case.eta, case.law, family, k)
            radius = float(exact.divergence(base.weights, case.law, family, k))
            got = budget(array(case.f), radius, named, p=array(case.law))
            yield Evidence(abs(float(got.eta) / case.eta - 1), 1e-7, f"{named.name}: the slope of the value")
            if find_spec("torch") is None:
                continue
            for within, solve, setting in ((False, price, case.eta), (True, budget, radius)):
                moves = [
                    (to, exact.along(base, case.f, case.law, to, family, k, within)) for _, to in _ways(case)
                ]
                for phi in (named, _unnamed(named)) if case is WEIGHED else (named,):
                    yield from _by_torch(case, solve, setting, phi, moves, within)
    for case in (WEIGHED, IDLE):
        for named, unit in ((ABSOLUTE, 0.5), (HINGE, 1.0)):
            moves = [(to, _by_transport(case, to, unit)) for _, to in _ways(case)]
            if find_spec("torch") is not None:
                for phi in (named, _unnamed(named)):
                    yield from _by_torch(case, budget, RADIUS, phi, moves, within=True)
    if find_spec("torch") is not None:
        yield from _without_a_budget(budget)
        yield from _of_regularisers()
        yield from _of_samples()


def _of_samples() -> Iterator[Evidence]:
    """A perturbed point moves as its data point does."""
    import torch

    z = torch.tensor([[0.4, -1.0], [2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    for law in (Ball(2, 0.3), Ball(inf, 0.3), Ball(1, 0.3), Gaussian(0.3)):
        got = torch.autograd.grad(law.sample(z, 3, rng(0)).sum(), z)[0]
        yield Evidence(float((got - 3).abs().max()), 1e-12, f"{law}: the sum of three samples, in the centre")
        moved, _ = law.sample_tilted(z, torch.ones_like(z), 3, rng(0))
        got = torch.autograd.grad(moved.sum(), z)[0]
        yield Evidence(float((got - 3).abs().max()), 1e-12, f"{law}: the same of tilted ones")


def _without_a_budget(budget: Solve) -> Iterator[Evidence]:
    """At radius 0 the value is the mean, whose gradient is the law, and the losses less their mean."""
    import torch

    f, p = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (WEIGHED.f, WEIGHED.law))
    for phi in (ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3.0)):
        got = torch.autograd.grad(budget(f, 0.0, phi, p=p).value, (f, p))
        own = (p.detach(), f.detach() - p.detach() @ f.detach())
        for name, a, b in zip(("losses", "law"), got, own, strict=True):
            yield Evidence(float((a - b).abs().max()), CLOSE, f"{phi.name}, radius 0: in the {name}")


def _of_regularisers() -> Iterator[Evidence]:
    """The gradient of the risk of a linear loss, against differences of its values."""
    import torch

    g = torch.tensor([[0.4, -1.0, 0.3], [2.0, 0.5, -0.1]], dtype=torch.float64, requires_grad=True)
    h = 1e-5
    for norm, phi in ((2.0, QUADRATIC), (2.0, cressie_read(1.5)), (2.0, ABSOLUTE), (1.0, ENTROPIC)):
        got = torch.autograd.grad(surrogate(g, Ball(norm, 1.0), 0.6, phi).sum(), g)[0]
        for k in range(3):
            step = h * torch.eye(3, dtype=torch.float64)[k]
            up, down = (surrogate(g.detach() + s * step, Ball(norm, 1.0), 0.6, phi) for s in (1, -1))
            off = float((got[:, k] - (up - down) / (2 * h)).abs().max())
            yield Evidence(off, 1e-7, f"surrogate, {phi.name}, norm {norm:g}: coordinate {k}")


RADIUS = 0.55  # moves all of the lowest loss, or a part of it


def _by_transport(case: Case, to: Direction, unit: float) -> Solution:
    ends = []
    for h in (STEP, -STEP):
        f = [v + h * x for v, x in zip(case.f, to.f, strict=True)]
        p = [q + h * x for q, x in zip(case.law, to.p, strict=True)]
        ends.append(exact.transport(f, p, unit * (RADIUS + h * to.setting), unit))
    return exact.difference(ends[0], ends[1], 2 * STEP)


def _by_torch(
    case: Case,
    solve: Solve,
    setting: float,
    phi: Divergence,
    moves: list[tuple[Direction, Solution]],
    within: bool,
) -> Iterator[Evidence]:
    import torch

    def numbers_of(*values: Any) -> list[Any]:
        return [torch.tensor(v, dtype=torch.float64) for v in values]

    def outputs(f: Any, s: Any, p: Any) -> tuple[Any, ...]:
        y = solve(f, s, phi, p=p / p.sum())
        return (y.value, y.eta, y.mu, y.weights) if within else (y.value, y.mu, y.weights)

    x = numbers_of(case.f, setting, case.law)
    for v in x:
        v.requires_grad_(True)
    note = f"{phi.name}, {'within a radius' if within else 'at a price'}"
    y = outputs(*x)
    factors = numbers_of(1.3, *([-0.4] if within else []), 0.7, [0.5, -1.0, 2.0, 0.3])
    names = ("value", "eta", "mu", "weights") if within else ("value", "mu", "weights")
    true = [
        [numbers_of([float(v) for v in np.ravel(np.array(getattr(s, n), dtype=object))])[0] for n in names]
        for _, s in moves
    ]
    size = 1 + max(float(v.abs().max()) for row in true for v in row)
    for chosen in (*((n,) for n in range(len(names))), tuple(range(len(names)))):
        mixed = sum((factors[n] * y[n]).sum() for n in chosen)
        which = "all" if len(chosen) > 1 else names[chosen[0]]
        gradient = torch.autograd.grad(mixed, x, retain_graph=True)
        alone = torch.autograd.grad(mixed, x[0], retain_graph=True)[0]
        yield Evidence(float((alone - gradient[0]).abs().max()), CLOSE * size, f"{note}: {which}, in f alone")
        for (to, _), exact_of in zip(moves, true, strict=True):
            dx = numbers_of(to.f, to.setting, to.p)
            got = sum((g * d).sum() for g, d in zip(gradient, dx, strict=True))
            want = sum((factors[n].reshape(-1) * exact_of[n]).sum() for n in chosen)
            yield Evidence(float(abs(got - want)), 10 * CLOSE * size, f"{note}: {which}, backward")
    if phi.family is None:  # the other modes use the same formulas
        return
    yield from _rows(case, solve, setting, phi, factors, torch.autograd.grad(mixed, x))
    fixed = [v.detach() for v in x]
    for (to, _), exact_of in zip(moves, true, strict=True):
        dx = numbers_of(to.f, to.setting, to.p)
        dy = _forward(outputs, tuple(fixed), tuple(dx))
        off = max(float((a.reshape(-1) - b).abs().max()) for a, b in zip(dy, exact_of, strict=True))
        yield Evidence(off, 10 * CLOSE * size, f"{note}: forward")
    value = torch.func.grad(lambda f: outputs(f, *fixed[1:])[0])
    bend = _forward(value, (fixed[0],), (numbers_of(moves[0][0].f)[0],))
    yield Evidence(float((bend - true[0][-1]).abs().max()), 10 * CLOSE * size, f"{note}: twice")
    batch = torch.func.vmap(value)(torch.stack([fixed[0], fixed[0] + 1]))
    yield Evidence(float((batch - y[-1].detach()).abs().max()), 1e-9, f"{note}: in a batch")


def _forward(function: Solve, x: tuple[Any, ...], dx: tuple[Any, ...]) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, in its forward mode
        return torch.func.jvp(function, x, dx)[1]


def _rows(
    case: Case, solve: Solve, setting: float, phi: Divergence, factors: list[Any], alone: Any
) -> Iterator[Evidence]:
    """The gradients of a row beside another are those of the row alone."""
    import torch

    f = torch.tensor([[2.0, 0.0, 1.0, -1.0], case.f], dtype=torch.float64, requires_grad=True)
    s = torch.tensor([0.4, setting], dtype=torch.float64, requires_grad=True)
    y = solve(f, s, phi, p=torch.tensor(case.law, dtype=torch.float64))
    outputs = (y.value, y.mu, y.weights) if len(factors) == 3 else (y.value, y.eta, y.mu, y.weights)
    mixed = sum((a * v).sum() for a, v in zip(factors, outputs, strict=True))
    rows = torch.autograd.grad(mixed, (f, s))
    for got, own in zip(rows, alone, strict=False):
        off = float((got[1] - own).abs().max() / (1 + own.abs().max()))
        yield Evidence(off, CLOSE, f"{phi.name}: a row beside another")


@derivatives_in_every_mode.mutant("twice the price", replaces="price")
def _(f: Array, eta: Any, phi: Divergence, *, p: Array) -> Any:
    return worst_case(f, 2 * eta, phi, p=p)


@derivatives_in_every_mode.mutant("half of the radius", replaces="budget")
def _(f: Array, radius: Any, phi: Divergence, *, p: Array) -> Any:
    return constrained_worst_case(f, radius / 2, phi, p=p)
