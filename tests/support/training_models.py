"""Models, losses and reference weights for tests of training."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import log, prod
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch: not installed")

Loss = Callable[[Any, Any], Any]


def network(event: tuple[int, ...], dtype: Any = torch.float64) -> Any:
    """A small classifier of three classes for points of shape `event`, with fixed weights."""
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {0: [nn.Unflatten(0, (-1, 1))], 1: []}.get(len(event), [nn.Flatten()])
        model = nn.Sequential(*shape, nn.Linear(prod(event), 8), nn.Tanh(), nn.Linear(8, 3))
    return model.to(dtype)


def data(event: tuple[int, ...], n: int = 9, dtype: Any = torch.float64, seed: int = 0) -> tuple[Any, Any]:
    """Points (n,) + event, and classes 0, 1, 2 in turn."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((n, *event), generator=generator, dtype=dtype), torch.arange(n) % 3


def cross_entropy(model: Any, y: Any) -> Loss:
    """The loss of each perturbed point, as a user would write it."""
    return lambda x, i: torch.nn.functional.cross_entropy(model(x), y[i], reduction="none")


@dataclass
class Recorder:
    """A loss that records its arguments and results, call by call."""

    loss: Loss
    points: list[Any] = field(default_factory=list)
    index: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)

    def __call__(self, x: Any, i: Any) -> Any:
        f = self.loss(x, i)
        self.points.append(x.detach().clone())
        self.index.append(i.clone())
        self.losses.append(f.detach().clone())
        return f


def gradients(model: Any) -> list[Any]:
    """Return the gradients of the parameters that have one, and reset them."""
    collected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return collected


def entropic_weights(
    losses: Any, index: Any, n: int, eta: float, level: int, *, multilevel: bool
) -> tuple[Any, Any]:
    """Compute the value and the signed weights of SG or, if `multilevel`, RT-MLMC by softmax.

    losses and index are (k,), with data points 0, ..., n - 1. If `multilevel`, the softmax of each half of a
    data point's losses is subtracted with the factor 1/2, and the result is divided by the probability of the
    data point's level; `level` is the highest one.
    """
    weights = torch.zeros_like(losses)
    value = torch.zeros((), dtype=losses.dtype)
    for k in range(n):
        mine = torch.nonzero(index == k)[:, 0]
        f, count = losses[mine], len(mine)
        w = torch.softmax(f / eta, 0)
        v = eta * (torch.logsumexp(f / eta, 0) - log(count))
        scale = 1.0
        if multilevel:
            scale = count * (2 - 2.0**-level)
            if count > 1:
                half = count // 2
                for part in (slice(0, half), slice(half, count)):
                    w[part] -= torch.softmax(f[part] / eta, 0) / 2
                    v -= eta * (torch.logsumexp(f[part] / eta, 0) - log(half)) / 2
        weights[mine] = scale * w / n
        value = value + scale * v / n
    return value, weights


def close(actual: Iterable[Any], expected: Iterable[Any], roundings: float = 1e4) -> bool:
    """Whether all tensors agree up to `roundings` machine epsilons, relative to the largest entry.

    Another order of summation changes the result by much less than 1e4 epsilons, a missing point or a wrong
    weight by more.
    """
    actual, expected = list(actual), list(expected)
    if [t.shape for t in actual] != [t.shape for t in expected] or not actual:
        return False
    size = max(float(torch.max(torch.abs(t))) for t in expected)
    eps = torch.finfo(expected[0].dtype).eps
    worst = max(float(torch.max(torch.abs(a - b))) for a, b in zip(actual, expected, strict=True))
    return size > 0 and worst <= roundings * eps * size
