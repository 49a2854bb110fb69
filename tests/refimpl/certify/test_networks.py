"""Certified margins are never above the margins that attacks find, and agree with a dense implementation."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball import Ball, certify, pgm, pointwise_loss, white_noise
from phiball.backends import torch_layers
from phiball.refimpl.certify import input_set, networks
from phiball.refimpl.certify.margins import METHODS

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn
NORMS = ("l1", "l2", "linf")


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    """x + body(x)."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x)).flatten(1)


def mlp(*widths: int) -> Any:
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).eval()


def cnn() -> Any:
    block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, eps=0.3), nn.LeakyReLU(0.1))
    block.append(nn.Conv2d(3, 3, 1, bias=False))
    first = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2, 1)
    model = nn.Sequential(*first, Residual(block), nn.Dropout(), nn.Linear(12, 4), nn.LeakyReLU(0.2))
    for layer in (model[1], block[1]):
        for values, low in ((layer.running_mean, -1.0), (layer.running_var, 0.2), (layer.weight.data, -1.0)):
            values.uniform_(low, 1.0)
    return model.append(nn.Linear(4, 3)).eval()


def problems(seed: int, n: int = 4) -> Iterator[tuple[Any, Any, Any, Ball]]:
    """Random networks with points in [0, 1], labels and balls."""
    torch.manual_seed(seed)
    draws = np.random.default_rng(seed)
    for model, event in ((mlp(5, 7, 6, 3), (5,)), (cnn(), (1, 6, 6)), (mlp(4, 6, 1), (4,))):
        x = torch.rand(n, *event)
        scores = model(x)
        y = scores.argmax(-1) if scores.shape[1] > 1 else (scores[:, 0] > 0).long()
        for norm in NORMS:
            radius = float(draws.choice([0.0, 1e-3, 0.02, 0.1, 0.5]) * {"l1": 3, "l2": 1.5, "linf": 1}[norm])
            scale = None if draws.random() < 0.5 else draws.choice([0.0, 0.5, 2.0], size=event)
            yield model, x, y, Ball(norm, radius, (0, 1) if draws.random() < 0.5 else None, scale)


def margins_at(model: Any, x: Any, y: Any) -> Any:
    """Score y minus every score, (N, classes)."""
    with torch.no_grad():
        scores = model(x).double()
    if scores.shape[1] == 1:
        scores = torch.cat([0 * scores, scores], 1)
    return scores.gather(1, y[:, None]) - scores


def attacked_margins(model: Any, x: Any, y: Any, ball: Ball) -> Any:
    """The smallest margins that noise, points of the sphere and PGM find."""
    event = x.ndim - 1
    points = [x, *(white_noise(x, ball, rng=seed) for seed in range(10))]
    steps = (ball.steepest(torch.randn_like(x), event_ndim=event) for _ in range(10))
    points += [ball.project(x + step, x, event_ndim=event) for step in steps]
    found = [margins_at(model, z, y) for z in points]
    for c in range(found[0].shape[1]):

        def loss(z: Any, i: Any, c: int = c) -> Any:
            scores = model(z)
            if scores.shape[1] == 1:
                return scores[:, 0] * (1 - 2 * y[i])
            return scores[:, c] - scores.gather(1, y[i][:, None])[:, 0]

        if ball.radius > 0:
            z = pgm(loss, x, ball, steps=15, restarts=2, rng=0)
            assert ball.contains(z, x, event_ndim=event).all()
            found.append(margins_at(model, z, y))
    return torch.stack(found).amin(0)


def check_soundness(seeds: range, method: str = "crown") -> list[float]:
    """Assert that no attack crosses a certificate; return the certified part of every attacked margin."""
    parts = []
    for seed in seeds:
        for model, x, y, ball in problems(seed):
            certified = certify.certified_margins(model, x, y, ball, method=method)
            others = torch.isfinite(certified)
            assert others.sum() == certified.numel() - len(y)
            interval = certify.certified_margins(model, x, y, ball, method="interval")
            assert (interval <= certified).all()
            certified, found = certified[others].double(), attacked_margins(model, x, y, ball)[others]
            assert (certified <= found).all(), f"crossed: seed {seed}, {ball}, {method}"
            parts += (certified > 0)[found > 0].double().tolist()
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_attack_crosses_a_certificate(method: str) -> None:
    parts = check_soundness(range(6), method)
    assert np.mean(parts) > (0.8 if method == "crown" else 0.6)  # the bounds are not vacuous


@pytest.mark.parametrize("method", METHODS)
def test_bounds_of_sums(method: str) -> None:
    body = nn.Linear(1, 1, bias=False)
    x, y = torch.ones(1, 1), torch.tensor([1])
    for weight, smallest in ((2.0, 1.5), (-0.5, 0.25)):  # of x + weight x for x of at least 0.5
        body.weight.data.fill_(weight)
        margins = certify.certified_margins(Residual(body).eval(), x, y, Ball("linf", 0.5), method=method)
        assert margins[0, 0] <= smallest
        assert margins[0, 0] > smallest - 1e-4 or (method == "interval" and weight < 0)


def with_a_steep_lower_line(low: Any, high: Any, slope: float) -> Any:
    below, above, offset = networks_lines(low, high, slope)
    return 1.1 * below, above, offset


def without_offset(low: Any, high: Any, slope: float) -> Any:
    below, above, offset = networks_lines(low, high, slope)
    return below, above, 0 * offset


def without_absolute_values(model: Any, x: Any) -> Any:
    layers = torch_layers.network_layers(model, x)
    return [layer if layer.linear is None else replace(layer, absolute=layer.linear) for layer in layers]


networks_lines = networks._lines
OPTIMISTIC = {
    "lower line too steep": (networks, "_lines", with_a_steep_lower_line),
    "upper line too low": (networks, "_lines", without_offset),
    "absolute values omitted": (certify.margins, "network_layers", without_absolute_values),
    "maximum norm instead of the dual norm": (input_set, "dual", lambda p: inf),
    "clip too narrow": (input_set, "products", lambda rows, v: product(rows, 0.97 * v)),
}
product = input_set.products


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMISTIC)
def test_attacks_reveal_optimistic_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*OPTIMISTIC[name])
    with pytest.raises(AssertionError, match="crossed"):
        check_soundness(range(6), "interval" if name == "absolute values omitted" else "crown")


@pytest.mark.parametrize("rounded", [True, False])
def test_bounds_include_the_rounding_of_the_network(rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms of each score are large, and almost cancel."""
    if not rounded:
        exact = partial(networks.NetworkBounds, crown=True)
        monkeypatch.setattr(certify.margins, "NetworkBounds", lambda *a, eps, crown: exact(*a, eps=0.0))
    crossed = 0
    for seed in range(20):
        torch.manual_seed(seed)
        model = mlp(64, 50, 2)
        for layer in model[::2]:
            layer.weight.data *= 1e3
        x = torch.randn(50, 64)
        middle = model(x).detach().mean(0)
        model[2].bias.data -= middle
        y = torch.zeros(50, dtype=torch.int64)
        fixed = Ball("linf", 0.1, feature_scale=0.0)
        certified = certify.certified_margins(model, x, y, fixed)[:, 1]
        found = margins_at(model, x, y)[:, 1]
        crossed += int((certified > found).sum())
        assert not rounded or (certified >= found - 0.02 * found.abs().max()).all()
    assert (crossed == 0) == rounded


@pytest.mark.parametrize("summed", [False, True])
def test_bounds_include_the_rounding_of_earlier_layers(summed: bool) -> None:
    """The first layer rounds large terms that cancel, so that the layers after it have small values."""
    torch.manual_seed(0)
    wide, first = 1e6 * torch.randn(8, 8), nn.Linear(16, 8)
    first.weight.data = torch.cat([wide, -wide], 1)
    middle = Residual(nn.Linear(8, 8)) if summed else nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model = nn.Sequential(first, middle, nn.Linear(8, 3)).eval()
    half = torch.rand(40, 8)
    x = torch.cat([half, half + 1e-6 * torch.randn(40, 8)], 1)
    with torch.no_grad():
        rounding = (model(x) - deepcopy(model).double()(x.double())).abs()
        inputs = input_set.InputSet(x, Ball("linf", 0.0))
        layers = torch_layers.network_layers(model, x)
        bounds = networks.NetworkBounds(layers, inputs, eps=float(torch.finfo(x.dtype).eps), crown=False)
    assert (rounding <= bounds.error[-1]).all()
    assert rounding.max() > 0.01


@pytest.mark.parametrize("method", ["interval", "crown-ibp"])
def test_certified_loss_bounds_the_attacked_loss_and_has_its_derivatives(method: str) -> None:
    torch.manual_seed(0)
    model, x, y = mlp(6, 8, 7, 3).double(), torch.rand(5, 6).double(), torch.tensor([0, 1, 2, 0, 1])
    loss = pointwise_loss(model, y)
    clean, tight = loss(x, torch.arange(5)), certify.certified_loss(model, x, y, Ball(2, 0.0), method=method)
    torch.testing.assert_close(tight, clean, rtol=1e-9, atol=1e-12)
    for norm in NORMS:
        ball = Ball(norm, 0.1, (0, 1))
        bound = certify.certified_loss(model, x, y, ball, method=method)
        assert (loss(pgm(loss, x, ball, rng=0), torch.arange(5)) < bound).all()
        for weight, gradient in zip(
            model.parameters(), torch.autograd.grad(bound.sum(), model.parameters()), strict=True
        ):
            step = 1e-7 * torch.randn_like(weight)
            ends = []
            for sign in (1, -1):
                weight.data += sign * step
                ends.append(float(certify.certified_loss(model, x, y, ball, method=method).detach().sum()))
                weight.data -= sign * step
            assert ends[0] - ends[1] == pytest.approx(2 * float((gradient * step).sum()), rel=1e-4, abs=1e-13)


# --- A dense implementation -------------------------------------------------------------------------


def dense_minimum(A: Any, b: Any, x: Any, ball: Ball) -> Any:
    """The smallest A z + b over a ball, (k,)."""
    q = {1: inf, 2: 2, inf: 1}[ball.norm]
    if ball.clip is not None:
        low, high = np.maximum(x - ball.radius, ball.clip[0]), np.minimum(x + ball.radius, ball.clip[1])
        return np.maximum(A, 0) @ low + np.minimum(A, 0) @ high + b
    return A @ x + b - ball.radius * np.linalg.norm(A, q, axis=1)


def dense_crown(weights: list[Any], biases: list[Any], rows: Any, x: Any, ball: Ball) -> Any:
    """CROWN for one point and a network of Linear and ReLU, with explicit matrices."""
    bounds: list[tuple[Any, Any]] = []

    def minimum(depth: int, A: Any) -> Any:
        b = A @ biases[depth]
        A = A @ weights[depth]
        for k in reversed(range(depth)):
            low, high = bounds[k]
            D, E, c = np.zeros(len(low)), np.zeros(len(low)), np.zeros(len(low))
            for j in range(len(low)):
                if low[j] >= 0:
                    D[j] = E[j] = 1.0
                elif high[j] > 0:
                    D[j] = float(high[j] > -low[j])
                    E[j] = high[j] / (high[j] - low[j])
                    c[j] = -low[j] * E[j]
            b = b + np.where(A < 0, A * c, 0).sum(axis=1)
            A = np.where(A > 0, A * D, A * E)
            b = b + A @ biases[k]
            A = A @ weights[k]
        return dense_minimum(A, b, x, ball)

    for depth in range(len(weights) - 1):
        eye = np.eye(len(biases[depth]))
        low, high = minimum(depth, eye), -minimum(depth, -eye)
        if depth:
            below, above = (np.maximum(end, 0) for end in bounds[-1])
            W = weights[depth]
            low = np.maximum(low, np.maximum(W, 0) @ below + np.minimum(W, 0) @ above + biases[depth])
            high = np.minimum(high, np.maximum(W, 0) @ above + np.minimum(W, 0) @ below + biases[depth])
        bounds.append((low, high))
    return minimum(len(weights) - 1, rows)


def dense_layers(model: Any, event: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Matrix and offset of each map between the ReLUs of a network, from its values at unit vectors."""
    maps, parts = [], [nn.Sequential()]
    for layer in model:
        if isinstance(layer, nn.ReLU):
            parts.append(nn.Sequential())
        else:
            parts[-1].append(layer)
    for part in parts:
        d = int(np.prod(event))
        with torch.no_grad():
            values = part(torch.cat([torch.zeros(1, d), torch.eye(d)]).double().reshape(d + 1, *event))
        event, values = values.shape[1:], values.flatten(1).numpy()
        maps.append(((values[1:] - values[0]).T, values[0]))
    return maps


def conv_chain() -> Any:
    first = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(2, 4, 2, padding=1, groups=2)
    last = nn.ReLU(), nn.Conv2d(4, 2, (2, 1), padding=(0, 1), dilation=2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*first, *last, nn.Linear(24, 4)).eval()


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("ball", [*(Ball(norm, 0.2) for norm in NORMS), Ball("linf", 0.2, (0, 1))], ids=str)
def test_crown_agrees_with_a_dense_implementation(
    ball: Ball, images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "MAX_ENTRIES", 40)  # several parts
    torch.manual_seed(0)
    event = (1, 5, 5) if images else (6,)
    model = (conv_chain() if images else mlp(6, 9, 8, 7, 4)).double()
    x, y = torch.rand(5, *event, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    weights, biases = map(list, zip(*dense_layers(model, event), strict=True))
    crown, _, interval = (certify.certified_margins(model, x, y, ball, method=m).numpy() for m in METHODS)
    eye = np.eye(4)
    for n, label in enumerate(y.tolist()):
        others = [c for c in range(4) if c != label]
        point = x[n].flatten().numpy()
        expected = dense_crown(weights, biases, eye[label] - eye[others], point, ball)
        np.testing.assert_array_less(expected - 1e-11, crown[n, others])
        best = np.maximum(expected, interval[n, others])
        np.testing.assert_allclose(crown[n, others], best, atol=1e-11)
    assert (interval < crown)[np.isfinite(crown)].any()


def test_bounds_of_pixels_agree_with_those_of_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels are bounded in the part of the network that they depend on."""
    torch.manual_seed(0)
    model, x, y = cnn().double(), torch.rand(3, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2])
    scale = np.random.default_rng(0).choice([0.5, 2.0], size=(1, 6, 6))
    for norm, radius in (("l1", 1.5), ("l2", 0.6), ("linf", 0.3)):
        ball = Ball(norm, radius, (0, 1), scale)
        by_pixels = certify.certified_margins(model, x, y, ball)
        with monkeypatch.context() as patch:
            patch.setattr(networks, "pixel_layers", lambda *args: None)
            whole = certify.certified_margins(model, x, y, ball)
        torch.testing.assert_close(by_pixels, whole, rtol=0, atol=1e-12)


class InPlace(nn.Module):  # type: ignore[misc, name-defined]
    """x + relu(x), where the sum reads relu(x) twice, because relu changes x."""

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(x.flatten(1), inplace=True) + x


class Shifted(nn.Module):  # type: ignore[misc, name-defined]
    """x + 1."""

    def forward(self, x: Any) -> Any:
        return x + 1


# --- Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()).eval(), NotImplementedError, "layer '1' is Sigmoid"),
        (
            nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).eval(),
            NotImplementedError,
            "'0' is Batch",
        ),
        (nn.Sequential(nn.Linear(4, 2)), ValueError, "training mode"),
        (mlp(4, 2).double(), TypeError, "0.weight is torch.float64"),
        (mlp(4, 2).half(), TypeError, "0.weight is torch.float16"),
        (InPlace().eval(), NotImplementedError, "in place"),
        (Shifted().eval(), NotImplementedError, "operation .*add.* is not supported"),
        (lambda x: x, TypeError, "model is function and x a torch array"),
        (nn.Identity().eval(), ValueError, "label outside"),
    ],
)
def test_unsupported_models_raise_by_name(model: Any, error: type[Exception], message: str) -> None:
    y = torch.full((2,), 4 if isinstance(model, nn.Identity) else 0)
    with pytest.raises(error, match=message):
        certify.certified_margins(model, torch.zeros(2, 4), y, Ball(2, 0.1))


def test_overflow_and_nan_certify_nothing() -> None:
    for value in (float("nan"), 1e300):
        model = mlp(3, 4, 2).double()
        model[0].weight.data.fill_(value)
        model[2].weight.data.fill_(value)
        x, y = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
        assert not (certify.certified_margins(model, x, y, Ball(inf, 0.1))[:, 1] > 0).any()
