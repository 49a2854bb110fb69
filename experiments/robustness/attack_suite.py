"""The attacks of a report, run on one batch at each radius.

An attack *breaks* a data point if it finds a misclassified perturbation within the radius.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from phiball.backends import Array, Rng, array_namespace, device, input_gradient, without_gradient
from phiball.experiments.robustness.certificates import certify_batch
from phiball.experiments.robustness.models import CLASSIFIER, REGRESSOR, Model, to_float64
from phiball.refimpl import (
    ENTROPIC,
    Ball,
    Tilted,
    Uniform,
    apgd,
    fgm,
    pgm,
    pointwise_loss,
    robust_risk,
    white_noise,
)
from phiball.refimpl.certify.margins import METHODS
from phiball.refimpl.distributions.norms import norm_name
from phiball.refimpl.theory import surrogate
from phiball.refimpl.validation import valid_count, valid_number

OUR_ATTACKS = ("fgm", "pgm", "apgd", "search")
TORCHATTACKS = ("fab", "square")
ATTACKS = (*OUR_ATTACKS, *TORCHATTACKS)
TORCHATTACKS_NORMS = {"l2": "L2", "linf": "Linf"}
MAX_FRAGILE = 8  # points broken at the smallest radii, listed per batch and in the summary
ESTIMATE_FIELDS = ("value", "missing", "errors", "heaviest")  # per data point, for `Estimate.merge`
BISECTIONS = 10  # of the segment from a data point to its adversarial example


@dataclass(frozen=True)
class AttackSettings:
    """The attacks of a report and their effort.

    - `attacks`: some of "fgm", "pgm", "apgd", "search" (random search, which needs no gradients), and the
      attacks "fab" and "square" of torchattacks, which run on torch classifiers of images with
      `clip=(0, 1)`, in l2 and linf. None takes all that are installed.
    - `steps`, `restarts`: of "pgm" and "apgd"; "fab" takes as many steps.
    - `n_queries`: forward passes of "search" and "square" per point.
    - `n_noise`: uniform points of each ball.
    - `etas`: the prices eta of the robust risk, with the entropic divergence; () skips it.
    - `n_samples`: sampled points per data point for the robust risk.
    - `chunk`: data points per batch, for data given as arrays.
    - `certificate`: the method that certifies networks, as in `certified_margins`. None takes "crown-ibp",
      followed by "crown" for points that it does not certify if the network is small.
    - `kind`: "classifier" or "regressor". None decides by the labels: whole numbers and strings are classes.

    >>> from phiball import AttackSettings
    >>> AttackSettings(attacks=("fgm", "search")).attacks
    ('fgm', 'search')
    """

    attacks: tuple[str, ...] | None = None
    steps: int = 20
    restarts: int = 2
    n_queries: int = 100
    n_noise: int = 8
    etas: tuple[float, ...] = (0.1, 1.0)
    n_samples: int = 32
    chunk: int = 256
    certificate: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        default = ATTACKS if has_torchattacks() else OUR_ATTACKS
        object.__setattr__(self, "attacks", default if self.attacks is None else tuple(self.attacks))
        for name in self.attacks or ():
            if name not in ATTACKS:
                raise ValueError(f"attacks contains {name!r}; expected some of {', '.join(ATTACKS)}")
        etas = dict.fromkeys(valid_number("etas", eta, above=0.0) for eta in self.etas)
        object.__setattr__(self, "etas", tuple(etas))
        for name in ("steps", "restarts", "n_queries", "n_noise", "chunk"):
            valid_count(name, getattr(self, name))
        valid_count("n_samples", self.n_samples, 2)
        if self.certificate not in (None, *METHODS):
            raise ValueError(f"certificate is {self.certificate!r}; expected one of {', '.join(METHODS)}")
        if self.kind not in (None, CLASSIFIER, REGRESSOR):
            raise ValueError(f"kind is {self.kind!r}; expected {CLASSIFIER!r} or {REGRESSOR!r}")


@dataclass(frozen=True)
class ThreatModel:
    """The allowed perturbations: increasing radii for each norm, a box `clip`, feature scales."""

    radii: dict[str, tuple[float, ...]]
    clip: tuple[float, float] | None = None
    feature_scale: Any = None

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the norms."""
        return tuple(self.radii)

    def ball(self, norm: str, radius: float, *, clip: bool = True) -> Ball:
        """The ball of a norm and a radius, with or without the box."""
        return Ball(norm, radius, self.clip if clip else None, self.feature_scale)


class MeasureKey(NamedTuple):
    """The key of an array of results; fields that do not apply are None."""

    quantity: str
    norm: str | None = None
    radius: float | None = None
    attack: str | None = None
    eta: float | None = None


Measures = dict[MeasureKey, Any]  # NumPy arrays of one model on one batch, or on all data


class BatchProblem:
    """A model on a batch of data, with the functions loss(x, i) and gradient(x, i) that attacks call.

    `gradient` is None for models without gradients, and for torch modules, which autograd differentiates.
    """

    def __init__(self, model: Model, x: Array, y: Array) -> None:
        self.model, self.x, self.y = model, x, y
        gradient = model.gradient
        self.gradient = None if gradient is None else lambda x, i: gradient(x, y[i])

    def loss(self, x: Array, i: Array) -> Array:
        """The losses at points x, each a perturbation of data point i."""
        return self.model.losses(x, self.y[i])

    def data_gradients(self) -> Array | None:
        """The gradients of the losses at the data points; None for models without gradients."""
        if not self.model.differentiable:
            return None
        i = array_namespace(self.x).arange(self.x.shape[0], device=device(self.x))
        return input_gradient(self.loss, self.x, i) if self.gradient is None else self.gradient(self.x, i)

    def score(self, x: Array) -> tuple[Any, Any]:
        """(losses, wrong) at one perturbed point per data point, as NumPy arrays."""
        loss, wrong = self.model.score(x, self.y)
        if not np.all(np.isfinite(loss)):
            raise ValueError(
                f"model {self.model.name!r} returns a NaN or infinite loss; expected finite numbers"
            )
        return loss, wrong


@dataclass
class WorstPoints:
    """The worst point found so far for each data point: its loss, and whether the model is wrong there."""

    loss: Any
    wrong: Any
    x: Array

    def update(self, problem: BatchProblem, x: Array) -> None:
        """Replace points by worse ones of x: newly misclassified, or as wrong with a larger loss."""
        loss, wrong = problem.score(x)
        worse = (wrong > self.wrong) | ((wrong == self.wrong) & (loss > self.loss))
        self.x = _where(worse, x, self.x)
        self.loss = np.where(worse, loss, self.loss)
        self.wrong = np.maximum(self.wrong, wrong)


def random_search(problem: BatchProblem, x: Array, ball: Ball, *, n_queries: int, rng: Rng) -> Array:
    """Attack without gradients: resample random coordinates of the perturbation, keep improvements.

    The fraction of resampled coordinates decays linearly from 1/2 to 1/10, as in the Square attack. Returns
    the points with the largest loss after `n_queries` evaluations, an array of the shape of x.
    """
    xp = array_namespace(x)
    n, event = x.shape[0], x.ndim - 1
    i = xp.arange(n, device=device(x))
    with without_gradient():
        best, value = x, problem.loss(x, i)
    first = ball.steepest(rng.normal(tuple(x.shape), like=x), event_ndim=event)
    for query in range(n_queries):
        fraction = max(0.5 * (1 - query / n_queries), 0.1)
        resampled = rng.uniform(tuple(x.shape), like=x) < fraction
        fresh = ball.steepest(rng.normal(tuple(x.shape), like=x), event_ndim=event)
        change = first if query == 0 else xp.where(resampled, fresh, best - x)
        candidate = ball.project(x + change, x, event_ndim=event)
        with without_gradient():
            f = problem.loss(candidate, i)
        better = f > value
        best = xp.where(xp.reshape(better, (-1, *[1] * event)), candidate, best)
        value = xp.where(better, f, value)
    return best


def measure_batch(
    model: Model, x: Array, y: Array, threat: ThreatModel, settings: AttackSettings, rng: Rng
) -> Measures:
    """Run every attack on one batch, at every norm and radius.

    A ball contains every smaller ball of its norm, so a point broken at one radius counts as broken at all
    larger radii, and errors never decrease with the radius.
    """
    problem = BatchProblem(model, x, y)
    if threat.clip is not None:
        values = to_float64(x)
        outside = values[(values < threat.clip[0]) | (values > threat.clip[1])]
        if outside.size:
            raise ValueError(
                f"x contains {outside[0]:.9g}, outside clip = {threat.clip}: clip the data, or widen clip"
            )
    loss, wrong = problem.score(x)
    out: Measures = {MeasureKey("loss"): loss, MeasureKey("wrong"): wrong}
    gradients = problem.data_gradients()
    if model.kind == CLASSIFIER and model.outputs(x[:1]).ndim == 1:
        out[MeasureKey("labels_only")] = np.ones(1)
    for norm in threat.norms:
        attacks = [name for name in settings.attacks or () if is_applicable(name, model, x, norm, threat)]
        worst = {name: WorstPoints(loss, wrong, x) for name in ("sampling", *attacks, "worst")}
        broken, adversarial = wrong > 0, x
        for radius in threat.radii[norm]:
            ball, key = threat.ball(norm, radius), MeasureKey("loss", norm, radius)
            if radius > 0:
                noise = _noise(problem, ball, worst["sampling"], settings.n_noise, rng)
                for name in attacks:
                    worst[name].update(problem, _attack(name, problem, ball, settings, rng))
                    if name == "fgm":
                        for points in _steps_to_classes(problem, ball):
                            worst[name].update(problem, points)
                for name in ("sampling", *attacks):
                    worst["worst"].update(problem, worst[name].x)
                    worst["worst"].wrong = np.maximum(worst["worst"].wrong, worst[name].wrong)
                if model.smoothed is None:
                    out |= _risks(problem, ball, gradients, settings, rng, key)
            else:
                noise = loss, wrong
            for name, found in {"noise": noise, **{k: (w.loss, w.wrong) for k, w in worst.items()}}.items():
                at = key._replace(attack=name)
                out |= {at: found[0], at._replace(quantity="wrong"): found[1]}
            newly = (worst["worst"].wrong > 0) & ~broken
            broken = broken | newly
            adversarial = _where(newly, worst["worst"].x, adversarial)
        balls = {radius: threat.ball(norm, radius) for radius in threat.radii[norm]}
        text, uncertified = certify_batch(model, x, y, wrong, balls, norm, settings.certificate)
        out[MeasureKey("certificate", norm)] = np.asarray([text])
        out |= {MeasureKey("uncertified", norm, radius): values for radius, values in uncertified.items()}
        out |= _breaking_radii(problem, norm, adversarial, broken, threat)
        if gradients is not None and model.kind == CLASSIFIER and model.smoothed is None:
            out[MeasureKey("wrong_in_huge_ball", norm)] = _wrong_in_huge_ball(problem, norm, threat, settings)
    return out


def has_torchattacks() -> bool:
    """Whether torchattacks can be imported."""
    return find_spec("torchattacks") is not None


def is_applicable(name: str, model: Model, x: Array, norm: str, threat: ThreatModel) -> bool:
    """Whether an attack can run on a model and its data.

    torchattacks supports torch classifiers of images in l2 and linf, clips every input to [0, 1], and has no
    feature scales. Its attack square in l2 needs images of at least five rows.
    """
    if name not in TORCHATTACKS:
        return name == "search" or model.differentiable
    images = model.module is not None and model.smoothed is None and model.kind == CLASSIFIER and x.ndim == 4
    supported = norm in TORCHATTACKS_NORMS and threat.clip == (0.0, 1.0) and threat.feature_scale is None
    if not (has_torchattacks() and images and supported):
        return False
    return name != "square" or norm != "l2" or x.shape[2] >= 5


def run_torchattacks(
    name: str, problem: BatchProblem, ball: Ball, settings: AttackSettings, rng: Rng
) -> Array:
    """The points found by an attack of torchattacks, projected onto the ball because of rounding.

    The state of torch's global generator is restored.
    """
    torchattacks, torch = import_module("torchattacks"), import_module("torch")
    x, model, steps = problem.x, problem.model, settings.steps
    seed = int(rng.integers(2**31, (), like=np.empty(0)))
    common = {"norm": TORCHATTACKS_NORMS[norm_name(ball.norm)], "eps": ball.radius, "seed": seed}
    kinds: dict[str, Callable[[Any], Any]] = {
        "fab": lambda net: torchattacks.FAB(net, **common, steps=steps, n_classes=model.n_classes(x)),
        "square": lambda net: torchattacks.Square(net, **common, n_queries=settings.n_queries),
    }

    class SinglePrecision(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The model for torchattacks, whose points are float32; they are converted to the data's dtype."""

        def __init__(self) -> None:
            super().__init__()
            # Its device is read from a parameter. The model is not a submodule: its modes must not change.
            self.place = torch.nn.Parameter(x.new_zeros(()))

        def forward(self, x: Any) -> Any:
            return model.outputs(x.to(problem.x.dtype))

    with torch.random.fork_rng(devices=[]):  # torchattacks seeds the global generator
        found = kinds[name](SinglePrecision())(x, problem.y).to(x.dtype)
    return ball.project(found, x, event_ndim=x.ndim - 1)


def _where(mask: Any, a: Array, b: Array) -> Array:
    """`a` at the data points where the NumPy array `mask` is true, `b` elsewhere."""
    xp = array_namespace(a)
    return xp.where(xp.reshape(xp.asarray(mask, device=device(a)), (-1, *[1] * (a.ndim - 1))), a, b)


def _breaking_radii(
    problem: BatchProblem, norm: str, adversarial: Array, broken: Any, threat: ThreatModel
) -> Measures:
    """The smallest radius found to break each point, and the points that break at the smallest radii.

    The segment from a data point to its adversarial example is bisected. The radius is 0 for a point that is
    misclassified without a perturbation, and infinite for a point that no attack breaks.
    """
    x, event = problem.x, problem.x.ndim - 1
    if problem.model.kind != CLASSIFIER:
        return {}
    xp, direction = array_namespace(x), adversarial - x
    low, high = np.zeros(len(broken)), np.ones(len(broken))  # positions on the segment: broken at `high`

    def at(position: Any) -> Array:
        shape = (-1, *[1] * event)
        return x + xp.reshape(xp.asarray(position, dtype=x.dtype, device=device(x)), shape) * direction

    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        breaks = problem.score(at(middle))[1] > 0
        low, high = np.where(breaks, low, middle), np.where(breaks, middle, high)
    change = at(high) - x
    lengths = to_float64(threat.ball(norm, 1.0, clip=False).length(change, event_ndim=event))
    radii = np.where(broken, lengths, np.inf)
    order = [k for k in np.argsort(radii, kind="stable") if 0 < radii[k] < np.inf][:MAX_FRAGILE]
    return {
        MeasureKey("breaking_radius", norm): radii,
        MeasureKey("fragile_index", norm): np.asarray(order, dtype=np.int64),
        MeasureKey("fragile_change", norm): to_float64(change)[order],
    }


def _noise(problem: BatchProblem, ball: Ball, worst: WorstPoints, n_noise: int, rng: Rng) -> tuple[Any, Any]:
    """Return the means of losses and errors over uniform points of the ball, which also update `worst`."""
    sums = np.zeros((2, len(worst.loss)))
    for _ in range(n_noise):
        x = white_noise(problem.x, ball, rng=rng)
        sums += problem.score(x)
        worst.update(problem, x)
    return sums[0] / n_noise, sums[1] / n_noise


def _attack(name: str, problem: BatchProblem, ball: Ball, settings: AttackSettings, rng: Rng) -> Array:
    """The points found by an attack, one per data point."""
    if name in TORCHATTACKS:
        return run_torchattacks(name, problem, ball, settings, rng)
    if name == "search":
        return random_search(problem, problem.x, ball, n_queries=settings.n_queries, rng=rng)
    if name == "fgm":
        return fgm(problem.loss, problem.x, ball, gradient=problem.gradient)
    options: Any = {"gradient": problem.gradient, "steps": settings.steps, "restarts": settings.restarts}
    if name == "apgd":
        loss = problem.loss if problem.gradient else pointwise_loss(problem.model.attacked, problem.y)
        return apgd(loss, problem.x, ball, rng=rng, **options)
    return pgm(problem.loss, problem.x, ball, rng=rng, **options)


def _steps_to_classes(problem: BatchProblem, ball: Ball) -> Iterator[Array]:
    """For a linear classifier, one step toward each class, which is the worst one without `clip`."""
    if problem.model.kind == CLASSIFIER and len(problem.model.affine) == 1:
        coef, x = problem.model.affine[0][0], problem.x
        for row in coef:
            step = ball.steepest(row - coef[problem.y], event_ndim=1)
            yield ball.project(x + step, x, event_ndim=1)


def _wrong_in_huge_ball(
    problem: BatchProblem, norm: str, threat: ThreatModel, settings: AttackSettings
) -> Any:
    """1 for points that PGM breaks at ten times the largest radius, else 0; useful gradients break all."""
    ball = threat.ball(norm, 10 * threat.radii[norm][-1])
    options: Any = {"gradient": problem.gradient, "steps": settings.steps, "keep_best": False}
    return problem.score(pgm(problem.loss, problem.x, ball, **options))[1]


def _risks(
    problem: BatchProblem,
    ball: Ball,
    gradients: Array | None,
    settings: AttackSettings,
    rng: Rng,
    key: MeasureKey,
) -> Measures:
    """The robust risk for each eta, and first-order approximations from the gradients (Section 4).

    `key` holds the norm and the radius of the ball. First-order results are increases of the clean loss.
    """
    out: Measures = {}
    unclipped = replace(ball, clip=None)
    if gradients is not None:
        dual_norm = unclipped.dual_norm(gradients, event_ndim=problem.x.ndim - 1)
        out[key._replace(quantity="first_order")] = ball.radius * to_float64(dual_norm)
    for eta in settings.etas:
        risk = robust_risk(
            problem.loss,
            problem.x,
            ball,
            eta,
            ENTROPIC,
            n_samples=settings.n_samples,
            rng=rng,
            method=Uniform() if gradients is None else Tilted(gradient=problem.gradient),
        )
        at = key._replace(eta=eta)
        assert risk.per_point is not None
        *columns, normalised = risk.per_point
        for field, values in zip(ESTIMATE_FIELDS, [risk.values, *columns], strict=True):
            out[at._replace(quantity=field)] = to_float64(values)
        out[at._replace(quantity="normalised")] = normalised
        if gradients is not None:
            increase = surrogate(gradients, unclipped, eta, ENTROPIC)
            out[at._replace(quantity="first_order")] = to_float64(increase)
    return out
