"""What is tried on a batch at each radius, and which points it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, array_namespace, device
from phiball.experiments.robustness.models import CLASSIFIER, Model, to_numpy
from phiball.refimpl import ENTROPIC, Ball, Tilted, fgm, pgm, robust_risk, white_noise
from phiball.refimpl.theory import surrogate

NORMS = {"l1": 1.0, "l2": 2.0, "linf": inf}
# By gradient, and without: noise is one point, sampling the worst of several.
OWN = ("fgm", "pgm", "search")
THIRD_PARTY = ("apgd-ce", "apgd-dlr", "fab", "square")  # of torchattacks: the parts of AutoAttack
ATTACKS = (*OWN, *THIRD_PARTY)
_NORMS = {2.0: "L2", inf: "Linf"}  # that torchattacks knows
MOST_FRAGILE = 8  # points that are kept, of each batch and in the end
OF_POINTS = ("loss", "missing", "errors", "heaviest")  # what an `Estimate` keeps of each point, to be merged
HALVINGS = 10  # of the way to a point that breaks, to find the smallest radius


@dataclass(frozen=True)
class Settings:
    """What is measured, and with how much effort; see `robustness_report`."""

    norms: tuple[str, ...] = ("l2", "linf")
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    attacks: tuple[str, ...] = OWN
    etas: tuple[float, ...] = (0.1, 1.0)
    clip: tuple[float, float] | None = None
    scale: Any = None
    draws: int = 8
    samples: int = 32
    steps: int = 20
    restarts: int = 2
    queries: int = 100
    seed: int = 0

    def ball(self, norm: str, radius: float, *, clip: bool = True) -> Ball:
        """The ball of a norm and a radius, in which the features have their sizes."""
        return Ball(NORMS[norm], radius, self.clip if clip else None, self.scale)


class Problem:
    """A model on a batch of data: the functions loss(x, i), gradient(x, i) and judge."""

    def __init__(self, model: Model, x: Array, y: Array) -> None:
        self.model, self.x, self.y = model, x, y
        self.gradient: Any = None if model.gradient is None else model.gradient(x, y)

    def loss(self, z: Array, i: Array) -> Array:
        """The losses of points z that come from the data points i."""
        out = self.model.losses(z, self.y[i])
        return out.detach() if hasattr(out, "detach") else out

    def judge(self, z: Array) -> tuple[Any, Any]:
        """(losses, wrong) of a point per data point."""
        loss, wrong = self.model.judge(z, self.y)
        if not np.all(np.isfinite(loss)):
            raise ValueError(f"model {self.model.name!r} gives a loss that is not finite; expected numbers")
        return loss, wrong


@dataclass
class Best:
    """The worst point found so far for each data point: its loss, and whether the model is wrong there."""

    loss: Any
    wrong: Any
    point: Array

    def update(self, problem: Problem, z: Array) -> None:
        """Take the points at which the model is newly wrong, or as wrong and the loss larger."""
        loss, wrong = problem.judge(z)
        better = (wrong > self.wrong) | ((wrong == self.wrong) & (loss > self.loss))
        self.point = _where(better, z, self.point)
        self.loss = np.where(better, loss, self.loss)
        self.wrong = np.maximum(self.wrong, wrong)


def random_search(problem: Problem, z: Array, ball: Ball, *, queries: int, rng: Rng) -> Array:
    """Attack without gradients: from a corner of the ball, change a random part of it, keep what is worse.

    The share of coordinates that change falls from a half to one in so many as there are (at least a tenth),
    as in attacks by random squares. Returns points of the shape of z after `queries` evaluations.
    """
    xp = array_namespace(z)
    n, event = z.shape[0], z.ndim - 1
    i = xp.arange(n, device=device(z))
    best, value = z, problem.loss(z, i)
    corner = ball.steepest(rng.normal(tuple(z.shape), like=z), event_ndim=event)
    for query in range(queries):
        share = max(0.5 * (1 - query / queries), 0.1)
        change = rng.uniform(tuple(z.shape), like=z) < share
        fresh = ball.steepest(rng.normal(tuple(z.shape), like=z), event_ndim=event)
        moved = corner if query == 0 else xp.where(change, fresh, best - z)
        candidate = ball.project(z + moved, z, event_ndim=event)
        f = problem.loss(candidate, i)
        better = f > value
        best = xp.where(xp.reshape(better, (-1, *[1] * event)), candidate, best)
        value = xp.where(better, f, value)
    return best


def measure_batch(model: Model, x: Array, y: Array, settings: Settings, source: Rng) -> dict[str, Any]:
    """Everything about one model on one batch: NumPy arrays by "norm/radius/measure/loss" and the like.

    A ball holds every smaller one of its norm, so that what breaks a point at one radius counts at all
    larger ones: no curve falls.
    """
    problem = Problem(model, x, y)
    loss, wrong = problem.judge(x)
    out: dict[str, Any] = {"clean/loss": loss, "clean/wrong": wrong}
    xp = array_namespace(x)
    i = xp.arange(x.shape[0], device=device(x))
    slopes = None if problem.gradient is None else problem.gradient(x, i)
    out |= {"x/low": np.min(to_numpy(x))[None], "x/high": np.max(to_numpy(x))[None]}
    if model.kind == CLASSIFIER and model.outputs(x[:1]).ndim == 1:
        out["labels alone"] = np.ones(1)
    for norm in settings.norms:
        wanted = [name for name in settings.attacks if takes(name, model, x, norm, settings)]
        best = {name: Best(loss, wrong, x) for name in ("sampling", *wanted, "worst")}
        broken, point = wrong > 0, x  # where a point first breaks
        for radius in settings.radii:
            key, ball = f"{norm}/{radius:g}", settings.ball(norm, radius)
            if radius > 0:
                _noise(problem, ball, best["sampling"], settings, source, out, key)
                for name in wanted:
                    best[name].update(problem, _attack(name, problem, ball, settings, source))
                for name in ("sampling", *wanted):
                    best["worst"].update(problem, best[name].point)
                    best["worst"].wrong = np.maximum(best["worst"].wrong, best[name].wrong)
            else:
                out |= {f"{key}/noise/loss": loss, f"{key}/noise/wrong": wrong}
            for name, worst in best.items():
                out |= {f"{key}/{name}/loss": worst.loss, f"{key}/{name}/wrong": worst.wrong}
            newly = (best["worst"].wrong > 0) & ~broken
            broken = broken | newly
            point = _where(newly, best["worst"].point, point)
            _predictions(problem, ball, slopes, settings, source, out, key)
        out |= _fragile(problem, norm, point, broken, settings)
        if problem.gradient is not None and model.kind == CLASSIFIER:
            out[f"{norm}/limit"] = _limit(problem, norm, settings)
    return out


def installed() -> bool:
    """Whether torchattacks can be imported."""
    return find_spec("torchattacks") is not None


def takes(name: str, model: Model, x: Array, norm: str, settings: Settings) -> bool:
    """Whether an attack is run on a model and its data.

    torchattacks takes torch classifiers of images, knows l2 and linf, clips every input to [0, 1], and knows
    no sizes of features; the loss of apgd-dlr needs three classes.
    """
    if name not in THIRD_PARTY:
        return name == "search" or model.gradient is not None
    images = model.module is not None and model.kind == CLASSIFIER and x.ndim == 4
    known = NORMS[norm] in _NORMS and settings.clip == (0.0, 1.0) and settings.scale is None
    return installed() and images and known and (name != "apgd-dlr" or model.classes_of(x) >= 3)


def run_third_party(
    name: str, model: Model, x: Array, y: Array, ball: Ball, steps: int, queries: int, seed: int
) -> Array:
    """The points that an attack of `THIRD_PARTY` finds, put back into the ball where rounding left it.

    torch's generator is left as it was.
    """
    torchattacks, torch = import_module("torchattacks"), import_module("torch")
    common = {"norm": _NORMS[ball.norm], "eps": ball.radius, "seed": seed}
    kinds: dict[str, Callable[[Any], Any]] = {
        "apgd-ce": lambda net: torchattacks.APGD(net, **common, steps=steps, loss="ce"),
        "apgd-dlr": lambda net: torchattacks.APGD(net, **common, steps=steps, loss="dlr"),
        "fab": lambda net: torchattacks.FAB(net, **common, steps=steps, n_classes=model.classes_of(x)),
        "square": lambda net: torchattacks.Square(net, **common, n_queries=queries),
    }

    class SinglePrecision(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The model, on points that torchattacks makes in single precision."""

        def __init__(self) -> None:
            super().__init__()
            self.inside, self.training = model.module, model.module.training

        def forward(self, z: Any) -> Any:
            return self.inside(z.to(next(self.inside.parameters()).dtype))

    with torch.random.fork_rng(devices=[]):  # it seeds the global generator
        found = kinds[name](SinglePrecision())(x, y).to(x.dtype)
    return ball.project(found, x, event_ndim=x.ndim - 1)


def _where(mask: Any, a: Array, b: Array) -> Array:
    """`a` at the data points of a NumPy mask, `b` elsewhere."""
    xp = array_namespace(a)
    return xp.where(xp.reshape(xp.asarray(mask, device=device(a)), (-1, *[1] * (a.ndim - 1))), a, b)


def _fragile(problem: Problem, norm: str, point: Array, broken: Any, settings: Settings) -> dict[str, Any]:
    """The smallest radius that was found to break each point, and the points with the smallest of them.

    The way from a data point to where it breaks is halved, and the shortest part kept at which it does. It is
    0 for a point that is wrong as it is, and infinite for one that does not break.
    """
    x, event = problem.x, problem.x.ndim - 1
    if problem.model.kind != CLASSIFIER:
        return {}
    xp, way = array_namespace(x), point - x
    low, high = np.zeros(len(broken)), np.ones(len(broken))  # parts of the way: it breaks at `high`

    def at(part: Any) -> Array:
        shape = (-1, *[1] * event)
        return x + xp.reshape(xp.asarray(part, dtype=x.dtype, device=device(x)), shape) * way

    for _ in range(HALVINGS):
        part = (low + high) / 2
        breaks = problem.judge(at(part))[1] > 0
        low, high = np.where(breaks, low, part), np.where(breaks, part, high)
    point = at(high)
    lengths = to_numpy(settings.ball(norm, 1.0, clip=False).length(point - x, event_ndim=event))
    smallest = np.where(broken, lengths, np.inf)
    order = [k for k in np.argsort(smallest, kind="stable") if 0 < smallest[k] < np.inf][:MOST_FRAGILE]
    return {
        f"{norm}/smallest": smallest,
        f"{norm}/fragile/index": np.asarray(order, dtype=np.int64),
        f"{norm}/fragile/change": to_numpy(point - x)[order],
    }


def _noise(
    problem: Problem, ball: Ball, best: Best, settings: Settings, source: Rng, out: dict[str, Any], key: str
) -> None:
    """The mean over random points of the ball, and the worst of them."""
    sums = np.zeros((2, len(best.loss)))
    for _ in range(settings.draws):
        z = white_noise(problem.x, ball, rng=source)
        sums += problem.judge(z)
        best.update(problem, z)
    out |= {f"{key}/noise/loss": sums[0] / settings.draws, f"{key}/noise/wrong": sums[1] / settings.draws}


def _attack(name: str, problem: Problem, ball: Ball, settings: Settings, source: Rng) -> Array:
    gradient = problem.gradient
    if name in THIRD_PARTY:
        return run_third_party(
            name, problem.model, problem.x, problem.y, ball, settings.steps, settings.queries, settings.seed
        )
    if name == "search" or gradient is None:
        return random_search(problem, problem.x, ball, queries=settings.queries, rng=source)
    if name == "fgm":
        return fgm(None, problem.x, ball, gradient=gradient)
    steps, restarts = settings.steps, settings.restarts
    return pgm(problem.loss, problem.x, ball, gradient=gradient, steps=steps, restarts=restarts, rng=source)


def _limit(problem: Problem, norm: str, settings: Settings) -> Any:
    """Where the model is wrong if the ball is ten times the largest: everywhere, if gradients are of use."""
    ball = settings.ball(norm, 10 * max(settings.radii))
    z = pgm(None, problem.x, ball, gradient=problem.gradient, steps=settings.steps)
    return problem.judge(z)[1]


def _predictions(
    problem: Problem,
    ball: Ball,
    slopes: Array | None,
    settings: Settings,
    source: Rng,
    out: dict[str, Any],
    key: str,
) -> None:
    """The regularised risk for each eta, and what Section 4 predicts from the gradients alone."""
    if ball.radius == 0:
        return
    whole = replace(ball, clip=None)
    event = problem.x.ndim - 1
    if slopes is not None:
        out[f"{key}/linear"] = ball.radius * to_numpy(whole.dual_norm(slopes, event_ndim=event))
    for eta in settings.etas:
        proposal = Tilted(gradient=problem.gradient) if slopes is not None else None
        risk = robust_risk(
            problem.loss,
            problem.x,
            ball,
            eta,
            ENTROPIC,
            n_samples=settings.samples,
            rng=source,
            proposal=proposal,
        )
        name = f"{key}/risk {eta:g}"
        assert risk.per_point is not None
        *columns, normalised = risk.per_point
        out |= {f"{name}/{of}": to_numpy(x) for of, x in zip(OF_POINTS, [risk.values, *columns], strict=True)}
        out[f"{name}/normalised"] = normalised
        if slopes is not None:
            out[f"{name}/surrogate"] = to_numpy(surrogate(slopes, whole, eta, ENTROPIC))
