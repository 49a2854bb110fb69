"""The ways to train that the study compares: each loss against a computation of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.studies.supervised.methods import (
    CHOSEN,
    FAMILIES,
    FEWER_SEEDS,
    candidates,
    fixed,
    readings,
)
from phiball.experiments.studies.supervised.study import Config
from phiball.experiments.training.methods import Method

torch = pytest.importorskip("torch", reason="torch: not installed")
special = pytest.importorskip("scipy.special", reason="scipy: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = Config(level=3, steps=4, step=0.1, rho=0.45, eta=2.0, alpha=0.5)
RHO, ETA, DIMENSION = 0.45, 0.9, 16
NORMS = {"l2": 2.0, "linf": inf}


class Batch:
    """A batch of a small classifier, and the points that a method evaluates it at."""

    def __init__(self, n: int = 10) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            nn = torch.nn
            self.model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ELU(), nn.Linear(6, 3)).double()
        draws = np.random.default_rng(2)
        self.x, self.y = torch.tensor(draws.random((n, 1, 4, 4))), torch.tensor(draws.integers(0, 3, n))
        self.count = 0
        self.model.register_forward_hook(lambda model, given, found: self._counted(len(found)))
        self.seen: list[tuple[Any, Any]] = []

    def _counted(self, n: int) -> None:
        self.count += n

    def loss(self, x: Any, i: Any) -> Any:
        self.seen.append((x.detach(), i))
        return self.value(x, i)

    def value(self, x: Any, i: Any) -> Any:
        return -self.model(x).log_softmax(-1)[torch.arange(len(x)), self.y[i]]

    def of(self, method: Method, seed: int = 0) -> float:
        self.seen, self.count = [], 0
        return float(method.objective(self.loss, self.x, rng(seed)).detach())

    def slope(self, x: Any) -> Any:
        """The gradient at one point of each image, by differences."""
        found = torch.zeros_like(x)
        every = torch.arange(len(x))
        for row in range(4):
            for column in range(4):
                step = torch.zeros_like(x)
                step[:, 0, row, column] = 1e-6
                rise = self.value(x + step, every) - self.value(x - step, every)
                found[:, 0, row, column] = (rise / 2e-6).detach()
        return found

    def by_image(self) -> list[Any]:
        """Of the last evaluation, the losses of each image's points, in order."""
        x, i = self.seen[-1]
        values = self.value(x, i).detach()
        return [values[i == k].numpy() for k in range(len(self.x))]


def length(b: Any, norm: str) -> Any:
    return torch.linalg.vector_norm(b.flatten(1), NORMS[norm], dim=-1)


def towards(g: Any, norm: str, far: float) -> Any:
    return far * (torch.sign(g) if norm == "linf" else g / length(g, "l2")[:, None, None, None])


def back(b: Any, norm: str, radius: float) -> Any:
    if norm == "linf":
        return b.clip(-radius, radius)
    return b * (radius / length(b, "l2").clip(min=radius))[:, None, None, None]


def test_plain_training_has_the_mean_loss() -> None:
    batch = Batch()
    expected = batch.value(batch.x, torch.arange(10)).mean().item()
    assert batch.of(fixed(CONFIG)["ERM"]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.45, 0.1])
def test_fgm_goes_all_of_the_radius(norm: str, radius: float) -> None:
    batch = Batch()
    x = batch.x + towards(batch.slope(batch.x), norm, radius)
    expected = batch.value(x, torch.arange(10)).mean().item()
    assert batch.of(fixed(CONFIG)[f"FGM {norm} {radius:g}"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("radius", "step"), [(0.45, 0.1), (0.1, 2.5 * 0.1 / 7)])
def test_ifgm_climbs_by_its_steps(norm: str, radius: float, step: float) -> None:
    batch = Batch()
    x = batch.x
    for _ in range(7):
        x = batch.x + back(x + towards(batch.slope(x), norm, step) - batch.x, norm, radius)
    assert length(x - batch.x, norm).max() == pytest.approx(radius)  # in seven steps it comes to the border
    expected = batch.value(x, torch.arange(10)).mean().item()
    method = fixed(replace(CONFIG, steps=7))[f"IFGM {norm} {radius:g}"]
    assert batch.of(method) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_random_start_fgm_steps_from_a_point_of_the_ball(norm: str) -> None:
    batch = Batch()
    found = batch.of(fixed(CONFIG)[f"random-start FGM {norm} 0.45"])
    (start, _), (end, i) = batch.seen
    assert 0.2 < length(start - batch.x, norm).mean() <= RHO
    expected = back(start + towards(batch.slope(start), norm, 1.25 * RHO) - batch.x, norm, RHO)
    torch.testing.assert_close(end - batch.x, expected, rtol=0, atol=1e-6)
    assert found == pytest.approx(batch.value(end, i).mean().item(), rel=1e-12)
    assert batch.of(fixed(CONFIG)[f"random-start FGM {norm} 0.45"], seed=1) != found


def entropic(f: Any) -> float:
    return ETA * log(np.mean(np.exp(f / ETA)))


def quadratic(f: Any) -> float:
    """The best of all sets of points that may have weight, where the optimum is an equation."""
    n, found = len(f), -inf
    for k in range(1, n + 1):
        top = np.sort(f)[-k:]
        weight = 1 / k + (top - top.mean()) / (ETA * n)
        if weight.min() >= 0:
            value = weight @ top - ETA * (np.sum((n * weight) ** 2) / n - 1) / 2
            found = max(found, float(value))
    return found


SAMPLED: dict[str, Callable[[Any], float]] = {
    "noise x4": lambda f: float(np.mean(f)),
    "SG": entropic,
    "quadratic": quadratic,
    "CVaR": lambda f: float(np.mean(np.sort(f)[2:])),  # the upper half of four
}


@pytest.mark.parametrize("family", SAMPLED)
def test_sampled_losses(family: str) -> None:
    batch = Batch()
    found = batch.of(fixed(CONFIG)[f"{family} linf 0.45"])
    points, i = batch.seen[-1]
    assert np.bincount(i).tolist() == [4] * 10
    far = (points - batch.x[i]).abs()
    assert 0.44 < far.max() <= RHO
    assert far.mean() == pytest.approx(RHO / 2, abs=0.03)
    assert found == pytest.approx(np.mean([SAMPLED[family](f) for f in batch.by_image()]), abs=1e-5)


def test_noise_in_l2_fills_the_ball() -> None:
    batch = Batch(40)
    batch.of(fixed(CONFIG)["noise x4 l2 0.45"])
    points, i = batch.seen[-1]
    far = length(points - batch.x[i], "l2")
    assert far.max() <= RHO + 1e-12
    assert far.mean() == pytest.approx(RHO * DIMENSION / (DIMENSION + 1), abs=0.01)


@pytest.mark.parametrize("allocation", ["stratified", "random"])
@pytest.mark.parametrize("norm", NORMS)
def test_rtmlmc_telescopes(allocation: str, norm: str) -> None:
    batch = Batch(40)
    found = batch.of(fixed(replace(CONFIG, allocation=allocation))[f"RT-MLMC {norm} 0.45"])
    points, i = batch.seen[-1]
    assert 0.38 < length(points - batch.x[i], norm).max() <= RHO + 1e-12
    total, levels = 0.0, set()
    for f in batch.by_image():
        level = len(f).bit_length() - 1
        levels.add(level)
        below = 0.0 if level == 0 else (entropic(f[: len(f) // 2]) + entropic(f[len(f) // 2 :])) / 2
        total += (entropic(f) - below) * (2 - 2**-3) * 2**level
    assert levels == {0, 1, 2, 3}
    assert found == pytest.approx(total / 40, rel=1e-6)


def log_mean_exp(s: Any, norm: str) -> float:
    """log E exp(s.b) for b uniform in the unit ball."""
    if norm == "linf":
        a = np.abs(s)
        return float(np.sum(a + np.log(-np.expm1(-2 * a) / (2 * a))))
    t, nu = np.linalg.norm(s), len(s) / 2
    return float(special.gammaln(nu + 1) + nu * log(2 / t) + log(special.ive(nu, t)) + t)


def test_tilted_points_are_weighed() -> None:
    found = candidates(replace(CONFIG, chosen=("tilted",)))
    assert {"eta" in name for name in found} == {True, False}
    for name, method in found.items():
        norm, radius, kind, number = re.fullmatch(
            r"tilted (l2|linf) ([\d.]+), (eta|kappa) ([\d.]+)", name
        ).groups()  # type: ignore[union-attr]
        rho, batch = float(radius), Batch()
        value = batch.of(method)
        points, i = batch.seen[-1]
        assert sorted(i.tolist()) == list(range(10))
        g = batch.slope(batch.x)[i].flatten(1).numpy()
        b = (points - batch.x[i]).flatten(1).numpy()
        f = batch.value(points, i).detach().numpy()
        assert length(points - batch.x[i], norm).max() <= rho + 1e-12
        total = 0.0
        for k in range(10):
            dual = np.abs(g[k]).sum() if norm == "linf" else np.linalg.norm(g[k])
            eta = float(number) if kind == "eta" else rho * dual / (float(number) * DIMENSION)
            total += f[k] - g[k] @ b[k] + eta * log_mean_exp(rho * g[k] / eta, norm)
        assert value == pytest.approx(total / 10, abs=1e-6), name


def test_candidates_are_what_their_names_say() -> None:
    found = candidates(Config(level=3))
    assert {method.family for method in found.values()} == set(CHOSEN)
    for name, method in found.items():
        norm, radius = re.search(r"(l2|linf) ([\d.]+)", name).groups()  # type: ignore[union-attr]
        batch = Batch(30)
        batch.of(method)
        points, i = batch.seen[-1]
        far = length(points - batch.x[i], norm)
        assert far.max() <= float(radius) * (1 + 1e-9), name
        assert far.max() > 0.6 * float(radius), name
        assert name == f"{method.family} {method.setting}"
    assert {m.family for m in candidates(Config(chosen=("tilted", "RT-MLMC"))).values()} == {
        "tilted",
        "RT-MLMC",
    }
    assert candidates(Config(chosen=("none",))) == {}


def test_candidates_of_rtmlmc_have_the_eta_of_their_names() -> None:
    """With a loss that is 0 or 1 by turns, the value of two points tells eta."""
    for name, method in candidates(Config(level=1, chosen=("RT-MLMC",))).items():
        eta = float(name.rpartition("eta ")[2])

        def loss(x: Any, i: Any) -> Any:
            one = [float((i[:k] == i[k]).sum()) for k in range(len(i))]  # the second point of an image
            return torch.tensor(one, dtype=torch.float64) + 0 * x.flatten(1).sum(-1)

        two = eta * log((1 + np.exp(1 / eta)) / 2) - 0.5
        values = [
            method.objective(loss, torch.zeros(1, 1, 4, 4, dtype=torch.float64), rng(k)).item()
            for k in range(20)
        ]
        assert {round(v, 6) for v in values} == {0.0, round(two * 3, 6)}, name  # 3 = 1/P(1)


def everything(config: Config) -> dict[str, Method]:
    return {**fixed(config), **candidates(config)}


@pytest.mark.slow
def test_evaluations_are_counted() -> None:
    for name, method in everything(CONFIG).items():
        batch = Batch(16)
        batch.of(method)
        if method.family != "RT-MLMC":
            assert batch.count == 16 * method.evaluations, name
    for allocation in ("random", "stratified"):
        batch = Batch(64)
        method = fixed(replace(CONFIG, allocation=allocation))["RT-MLMC linf 0.45"]
        counts = []
        for seed in range(80):
            batch.of(method, seed)
            counts.append(batch.count / 64)
        assert method.evaluations == pytest.approx(4 / (2 - 1 / 8))
        assert np.mean(counts) == pytest.approx(method.evaluations, abs=0.12)  # 1.86/sqrt(80 64) is 0.026
        assert (np.std(counts) < 0.15) == (allocation == "stratified")
    assert fixed(Config())["RT-MLMC l2 0.45"].evaluations == pytest.approx(4.0157, abs=1e-4)
    assert fixed(Config())["IFGM l2 0.45"].evaluations == 16


def test_methods_are_those_asked_for() -> None:
    both = [
        name
        for norm in ("l2", "linf")
        for name in (
            f"FGM {norm} 0.45", f"IFGM {norm} 0.45", f"FGM {norm} 0.1", f"IFGM {norm} 0.1",
            f"random-start FGM {norm} 0.45", f"RT-MLMC {norm} 0.45", f"noise x4 {norm} 0.45",
        )
    ]  # fmt: skip
    others = [f"{family} linf 0.45" for family in FEWER_SEEDS]
    assert list(fixed(Config())) == ["ERM", *both, *others]
    assert list(fixed(Config(methods=("ERM", "SG"), norms=("linf", "l2")))) == ["ERM", "SG l2 0.45"]
    assert list(fixed(Config(methods=("FGM",), norms=("l2",), step=0.45))) == ["FGM l2 0.45"]
    for family in FAMILIES:
        assert {method.family for method in fixed(Config(methods=(family,))).values()} == {family}
    assert fixed(Config())["FGM l2 0.1"].setting == "FGM l2 0.1"


def test_readings() -> None:
    def told(**options: Any) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(r.name, r.ours, r.baselines) for r in readings(Config(**options))]

    l2 = [
        ("l2, rho", "RT-MLMC l2 0.45", ("ERM", "FGM l2 0.45", "IFGM l2 0.45")),
        ("l2, literal", "RT-MLMC l2 0.45", ("ERM", "FGM l2 0.1", "IFGM l2 0.45")),
        ("l2, step", "RT-MLMC l2 0.45", ("ERM", "FGM l2 0.1", "IFGM l2 0.1")),
    ]
    linf = [
        (name.replace("l2", "linf"), ours.replace("l2", "linf"), tuple(b.replace("l2", "linf") for b in base))
        for name, ours, base in l2
    ]
    assert told() == l2 + linf
    assert told(norms=("l2",)) == l2
    assert told(norms=("linf",)) == linf
    assert told(methods=("RT-MLMC", "IFGM", "FGM", "ERM"), norms=("l2",)) == l2
    for missing in ("ERM", "FGM", "IFGM", "RT-MLMC"):
        assert told(methods=tuple(family for family in FAMILIES if family != missing)) == []
