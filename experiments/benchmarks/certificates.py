"""`phiball bench certify`: certified margins of networks, compared with attacks.

Attacks bound the error under perturbations from below, and certificates from above. `soundness` counts the
points where an attack finds a smaller margin than the certified one: there must be none. `tightness` measures
the gap between the two bounds on MNIST, `cost` their time, and `training` the bounds after IBP training.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from math import ceil, inf
from statistics import fmean
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, backend
from phiball.backends import rng as make_rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    Row,
    compare,
    part_of,
)
from phiball.experiments.datasets.images import VARIABLE, Images, load
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.image_networks import torch_seed
from phiball.experiments.training.loop import Schedule, train_network
from phiball.experiments.training.small_classifiers import train_layers
from phiball.experiments.training.training_methods import (
    Objective,
    mean_loss,
    random_start_fgm,
)
from phiball.refimpl import Ball, RobustLoss, apgd, fgm, pgm, pointwise_loss, white_noise
from phiball.refimpl.certify import certified_loss, certified_margins
from phiball.refimpl.certify.margins import METHODS

PIXELS = (0.0, 1.0)
NORMS = (1.0, 2.0, inf)


# --- Soundness --------------------------------------------------------------------------------------------

KINDS = ("linear", "random", "residual", "trained", "cancelling", "tied", "offset")
RADII = (1e-5, 0.01, 0.1)  # in linf; in other norms times the norm of (1, ..., 1)
POINTS = 100  # per network
SOUNDNESS_NOTE = (
    "certified: all margins above 0 by CROWN. attacked: another class, or a tie. crossings in doubles: of "
    "bounds for the network in double precision, which do not include the rounding of float32"
)


def network_and_points(kind: str, seed: int, n: int) -> tuple[Any, Array]:
    """A network of one of KINDS, in evaluation mode, and n points.

    The last three kinds are hard for rounding. "cancelling": scores near 0 are sums of large terms. "tied":
    the scores of both classes are equal in exact arithmetic. "offset": x is large compared with the radius.
    """
    if kind == "trained":
        return _trained_on_digits(seed, n)
    with torch_seed(seed) as torch:
        nn = torch.nn
        x = torch.rand(n, 8)
        first, last = nn.Linear(8, 64), nn.Linear(64, 3)
        network = nn.Sequential(first, nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.ReLU(), last).eval()
        if kind == "linear":
            network = nn.Linear(8, 3).eval()
        elif kind == "residual":
            x = torch.rand(n, 1, 6, 6)
            norm = nn.BatchNorm2d(4).eval()
            for values in (norm.running_mean, norm.running_var, norm.weight.data):
                values.uniform_(0.2, 1.0)
            layers = nn.Conv2d(1, 4, 3, padding=1), norm, _residual(nn.Conv2d(4, 4, 3, padding=1))
            network = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
        elif kind == "cancelling":
            x = x[:1] + 1e-4 * torch.randn(n, 8)
            for layer in network[::2]:
                layer.weight.data *= 100.0
            last.bias.data -= network(x).detach().mean(0)
        elif kind == "tied":
            first.weight.data, first.bias.data = (
                torch.cat([a.data, a.data.flip(0)]) for a in (first.weight, first.bias)
            )
            w, zero = 100.0 * last.weight.data[0], torch.zeros(64)
            rows = torch.cat([w, zero]), torch.cat([zero, w.flip(0)])
            network = nn.Sequential(first, nn.ReLU(), nn.Linear(128, 2, bias=False)).eval()
            network[2].weight.data = torch.stack(rows)
        elif kind == "offset":
            x = 1000.0 + x
            first.bias.data -= first(x).detach().mean(0)
    return network, x


def _residual(body: Any) -> Any:
    torch = import_module("torch")

    class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Array) -> Array:
            return x + torch.relu(self.body(x))

    return Residual()


def _trained_on_digits(seed: int, n: int) -> tuple[Any, Array]:
    """A network trained on digits under attack, with one hidden layer or convolutional, and test images."""
    digits = load("digits")

    def layers(nn: Any) -> list[Any]:
        if seed % 2:
            return [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        return [nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)]

    attack = random_start_fgm("", Ball(inf, 0.1, PIXELS)).objective
    network = train_layers(layers, *digits.tensors("train"), epochs=3, seed=seed, objective=attack)
    return network.eval(), digits.tensors("test", 0, n)[0]


def smallest_margins(network: Any, x: Array, y: Array, ball: Ball, rng: np.random.Generator) -> Array:
    """The smallest score y minus score c that attacks find, (N, classes); inf for c = y.

    Points are evaluated in the dtype of x, in batches and some of them one by one, because the order of sums
    differs. Corners are also tried beyond the radius; points that `ball.contains` rejects do not count.
    """
    torch = import_module("torch")
    loss, event_ndim = pointwise_loss(network, y), x.ndim - 1
    points = [x, *(white_noise(x, ball, rng=rng) for _ in range(4))]
    for factor in (1.0, 1.0, 1 + 1e-6, 1 + 1e-5, 2.0):
        wider = replace(ball, radius=factor * ball.radius)
        direction = torch.tensor(rng.normal(size=x.shape), dtype=x.dtype)
        corner = x + wider.steepest(direction, event_ndim=event_ndim)
        points.append(corner if ball.clip is None else corner.clip(*ball.clip))
    points += [fgm(loss, x, ball), pgm(loss, x, ball, steps=10, rng=rng), apgd(loss, x, ball, steps=20)]
    with torch.no_grad():
        scores = [
            *network(torch.cat(points)).split(len(x)),
            torch.cat([network(z[None]) for z in points[-1]]),
        ]
    smallest = torch.full((len(x), scores[0].shape[1]), inf, dtype=torch.float64)
    for z, score in zip([*points, points[-1]], scores, strict=True):
        margin = score.double().gather(1, y[:, None]) - score.double()
        margin[~ball.contains(z, x, event_ndim=event_ndim)] = inf
        smallest = torch.minimum(smallest, margin)
    return smallest.scatter(1, y[:, None], inf)


def soundness_rows(networks: int, *, points: int = POINTS, update: Update = silent) -> list[Row]:
    """Count crossings of certified margins, for each of KINDS; a case is a network, a point and a ball."""
    rows = []
    for k, kind in enumerate(KINDS):
        row: Row = {"networks": kind}
        row |= dict.fromkeys(("cases", "certified", "attacked", "crossings", "crossings in doubles"), 0)
        for seed in range(networks):
            update((k + seed / networks) / len(KINDS), f"{kind} network {seed + 1} of {networks}")
            network, x = network_and_points(kind, seed, points)
            y, rng = network(x).argmax(1), np.random.default_rng(seed)
            size = x[0].numel()
            for norm, radius in ((norm, radius) for norm in NORMS for radius in RADII):
                clip = PIXELS if rng.uniform() < 0.5 and kind not in ("cancelling", "offset") else None
                scale = rng.choice([0.0, 0.5, 2.0], x.shape[1:]) if rng.uniform() < 0.5 else None
                ball = Ball(norm, radius * size ** (1 / norm), clip, scale)
                found = smallest_margins(network, x, y, ball, rng)
                bounds = [certified_margins(network, x, y, ball, method=method) for method in METHODS]
                if kind == "linear":
                    bounds.append(
                        certified_margins((network.weight.detach(), network.bias.detach()), x, y, ball)
                    )
                doubles = certified_margins(deepcopy(network).double(), x.double(), y, ball)
                row["cases"] += len(x)
                row["certified"] += int((bounds[0].amin(1) > 0).sum())
                row["attacked"] += int((found.amin(1) <= 0).sum())
                row["crossings"] += int(sum(bound > found for bound in bounds).any(1).sum())
                row["crossings in doubles"] += int((doubles > found).any(1).sum())
        rows.append(row)
    return rows


# --- Tightness, cost and training -------------------------------------------------------------------------

BALLS = {"linf": (0.02, 0.1), "l2": (0.2, 1.0)}  # networks are trained for the larger radius
NETWORKS = ("2 x 100", "CNN")
TRAININGS = ("plain", "RobustLoss", "FGM")
BATCH, CHUNK, ATTACK_STEPS = 128, 100, 50


@dataclass(frozen=True)
class Size:
    """The size of the benchmark.

    - `networks`: of each kind, for soundness.
    - `train`, `test`: images. `crown`: the first test images, for CROWN on the CNN.
    - `epochs`, `ibp_epochs`, `seeds`: of training. `seconds`: per timing.
    """

    networks: int = 16
    train: int | None = None
    test: int = 1000
    crown: int = 100
    epochs: int = 3
    ibp_epochs: int = 4
    seeds: int = 3
    seconds: float = 1.0


QUICK = Size(1, 500, 50, 10, 1, 2, 1, 0.01)


def images() -> Images:
    """MNIST if PHIBALL_DATA is set, otherwise scikit-learn's digits."""
    return load("mnist" if os.environ.get(VARIABLE) else "digits")


def make_network(name: str, side: int) -> Any:
    """One of NETWORKS for images (N, 1, side, side), in evaluation mode."""
    nn = import_module("torch").nn
    hidden, layers = side * side, [nn.Flatten()]
    if name == "CNN":
        for channels in ((1, 8), (8, 16)):
            layers[-1:] = nn.Conv2d(*channels, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten()
        hidden = 16 * (side // 4) ** 2
    else:
        layers += nn.Linear(hidden, 100), nn.ReLU()
        hidden = 100
    return nn.Sequential(*layers, nn.Linear(hidden, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


def train(data: Images, name: str, training: str, ball: Ball, epochs: int, size: Size, seed: int = 0) -> Any:
    """Train one of NETWORKS plainly, or against perturbations of a ball by RobustLoss, FGM or IBP."""
    x, y = data.tensors("train", 0, size.train)
    robust = RobustLoss(ball.radius, ball.norm, clip=ball.clip)
    objectives: dict[str, Any] = {
        "plain": mean_loss,
        "RobustLoss": lambda loss, x, rng: robust(loss, x, rng=rng),
        "FGM": random_start_fgm("", ball).objective,
        "IBP": ibp_objective(ball, epochs * ceil(len(x) / BATCH)),
    }
    with torch_seed(seed):
        network = make_network(name, x.shape[-1])
    schedule = Schedule(epochs, BATCH, rate=3e-3, warmup=0.05)
    train_network(network, objectives[training], (x, y), schedule, make_rng(seed))
    return network


def ibp_objective(ball: Ball, steps: int) -> Objective:
    """The objective of IBP training: the clean loss at first, and at the end its bound over the ball.

    After a tenth of the steps, the radius and the weight of the bound increase linearly over half of them.
    The last radius is 1.2 times that of the ball, which improves the certified error.
    """
    done = count()

    def objective(loss: Any, x: Array, rng: Rng) -> Array:
        ramp = min(max(2 * next(done) / steps - 0.2, 0.0), 1.0)
        clean = mean_loss(loss, x)
        if ramp == 0:
            return clean
        now = replace(ball, radius=1.2 * ramp * ball.radius)
        return (1 - ramp) * clean + ramp * certified_loss(loss.model, x, loss.y, now).mean()

    return objective


def bounds_row(data: Images, network: Any, ball: Ball, methods: dict[str, int]) -> Row:
    """Errors in percent on test images: clean, attacked by APGD, and certified by `methods` {name: images}.

    The gap is the certified error of the first method minus the attacked error of the same images.
    """
    torch = import_module("torch")
    x, y = data.tensors("test", 0, max(methods.values()))
    attacked = apgd(pointwise_loss(network, y), x, ball, steps=ATTACK_STEPS, rng=0)
    with torch.no_grad():
        clean, wrong = (network(z).argmax(1) != y for z in (x, attacked))
    row: Row = {"clean": _percent(clean), "attacked": _percent(wrong)}
    for method, n in methods.items():
        parts = zip(x[:n].split(CHUNK), y[:n].split(CHUNK), strict=True)
        margins = torch.cat([certified_margins(network, *part, ball, method=method) for part in parts])
        row[method] = _percent(margins.amin(1) <= 0)
        row.setdefault("gap", row[method] - _percent(wrong[:n]))
    return row


def _percent(mask: Array) -> float:
    return 100 * float(mask.double().mean())


def tightness_rows(data: Images, size: Size, update: Update = silent) -> list[Row]:
    """The errors of each network after plain and robust training, for each of BALLS."""
    cases = [(name, norm, training) for name in NETWORKS for norm in BALLS for training in TRAININGS]
    rows = []
    for k, (name, norm, training) in enumerate(cases):
        update(k / len(cases), f"{name}, {training}, {norm}")
        balls = [Ball(norm, radius, PIXELS) for radius in BALLS[norm]]
        network = train(data, name, training, balls[-1], size.epochs, size)
        methods = {"crown": size.crown if name == "CNN" else size.test}
        methods |= {"crown-ibp": size.test, "interval": size.test}
        for ball in balls:
            head = {"network": name, "training": training, "ball": f"{norm} {ball.radius:g}"}
            rows.append({**head, **bounds_row(data, network, ball, methods)})
    return rows


def training_rows(data: Images, size: Size, update: Update = silent) -> list[Row]:
    """The errors of the CNN in linf after IBP training for each seed, their mean, minimum and maximum."""
    ball = Ball(inf, BALLS["linf"][-1], PIXELS)
    rows = []
    for seed in range(size.seeds):
        update(seed / size.seeds, f"IBP, seed {seed}")
        network = train(data, "CNN", "IBP", ball, size.ibp_epochs, size, seed)
        methods = {"crown-ibp": size.test, "interval": size.test}
        rows.append({"seed": str(seed), **bounds_row(data, network, ball, methods)})
    errors = {key: [row[key] for row in rows] for key in rows[0] if key != "seed"}
    for name, summary in (("mean", fmean), ("least", min), ("most", max)):
        rows.append({"seed": name} | {key: summary(values) for key, values in errors.items()})
    return rows


def _backward(loss: Any, x: Array) -> None:
    mean_loss(loss, x).backward()


def cost_rows(data: Images, size: Size, clock: Clock, update: Update = silent) -> list[Row]:
    """Times of certificates of the CNN, relative to a forward and backward pass over the same images."""
    x, y = data.tensors("test", 0, size.crown)
    rows, radii = [], BALLS["linf"]
    for k, radius in enumerate(radii):
        ball = Ball(inf, radius, PIXELS)
        network = train(data, "CNN", "FGM", ball, 1, size)
        one_pass = partial(_backward, pointwise_loss(network, y), x)
        runs = {method: partial(certified_margins, network, x, y, ball, method=method) for method in METHODS}
        timings = compare(
            one_pass,
            [Contestant(method, run) for method, run in runs.items()],
            seconds=size.seconds,
            rounds=3,
            clock=clock,
            update=part_of(update, k / len(radii), (k + 1) / len(radii)),
        )
        where = {"ball": f"linf {radius:g}", "images": str(len(x))}
        rows += [{"method": m, **where, **timing.columns("passes")} for m, timing in timings.items()]
    return rows


PARTS = ("soundness", "tightness", "cost", "training")


def bench_certify(
    *, clock: Clock, quick: bool = False, part: str = "all", update: Update = silent
) -> BenchmarkReport:
    """The tables of one of PARTS, or of all."""
    if part not in (*PARTS, "all"):
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)} or all")
    require("torch", user="bench certify", extra="bench")
    size, data = QUICK if quick else Size(), images()
    chosen = PARTS if part == "all" else (part,)
    tables, findings = [], []
    with backend("torch"):
        for k, name in enumerate(chosen):
            share = part_of(update, k / len(chosen), (k + 1) / len(chosen))
            if name == "soundness":
                rows = soundness_rows(size.networks, update=share)
                crossings, cases = (sum(row[key] for row in rows) for key in ("crossings", "cases"))
                findings.append(f"{crossings} crossings in {cases:,} cases")
                title, note = "Cases in which an attack crosses a certified margin", SOUNDNESS_NOTE
            elif name == "tightness":
                rows = tightness_rows(data, size, share)
                title = f"Errors of {size.test} test images of {data.name} in percent, attacked and certified"
                note = f"crown of the CNN, and its gap to the attacked error: the first {size.crown} images"
            elif name == "cost":
                rows = cost_rows(data, size, clock, share)
                title = "Time in forward and backward passes of the same images through the CNN"
                note = "the network is trained by FGM for the ball"
            else:
                rows = training_rows(data, size, share)
                title = f"Errors of {size.test} test images of {data.name} in percent after IBP training"
                note = f"the CNN, linf {BALLS['linf'][-1]:g}, {size.ibp_epochs} epochs"
            tables.append(BenchmarkTable(title, rows, note))
    return BenchmarkReport(tables, findings)
