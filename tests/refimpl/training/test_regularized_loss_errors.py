"""Mistakes in a training loop are told in words: what was given, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss
from tests.support.training_models import cross_entropy, data, network

torch = pytest.importorskip("torch", reason="torch: not installed")

OBJECTIVE = RegularizedLoss(Ball(2, 0.5), 0.3, ENTROPIC, RTMLMC(4))
MODEL, (X, Y) = network((5,)), data((5,))
LOSS = cross_entropy(MODEL, Y)


def called(loss: Any, x: Any) -> Any:
    return OBJECTIVE(loss, x, rng=rng(0))


def in_chunks(loss: Any, x: Any) -> Any:
    return OBJECTIVE.backward(loss, x, rng=rng(0), chunk=20)


def in_small_chunks(loss: Any, x: Any) -> Any:
    return OBJECTIVE.backward(loss, x, rng=rng(0), chunk=1)


def laid_open(loss: Any, x: Any) -> Any:
    return OBJECTIVE.points(loss, x, rng=rng(0))


WAYS = [called, in_chunks, in_small_chunks, laid_open]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda x, i: torch.mean(LOSS(x, i)), ValueError, r"shape \(\); expected .*reduction='none'"),
        (lambda x, i: MODEL(x), ValueError, r"shape \(\d+, 3\); expected \(\d+,\), one loss for each x"),
        (lambda x, i: nan * LOSS(x, i), ValueError, "contains nan; expected finite numbers"),
        (lambda x, i: inf + LOSS(x, i), ValueError, "contains inf; expected finite numbers"),
        (lambda x, i: Y[i], TypeError, "dtype torch.int64; expected float32 or float64"),
        (lambda x, i: None, TypeError, r"loss\(x, i\) is None, of type NoneType"),
        (lambda x, i: float(torch.sum(x)), TypeError, r"loss\(x, i\) is .*, of type float"),
    ],
    ids=["mean", "logits", "nan", "inf", "integers", "nothing", "number"],
)
def test_what_is_no_loss(
    way: Callable[[Any, Any], Any], loss: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        way(loss, X)
    assert all(p.grad is None for p in MODEL.parameters())  # no gradient was added


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("x", "kind", "words"),
    [
        (torch.ones((9, 5), dtype=torch.int64), TypeError, "x has dtype torch.int64; expected float32"),
        (torch.ones((9, 5), dtype=torch.uint8), TypeError, "x has dtype torch.uint8; expected float32"),
        (X.to(torch.complex64), TypeError, "x has dtype torch.complex64; expected float32"),
        (X[:0], ValueError, r"x has shape \(0, 5\); expected \(N,\) \+ event, with at least one"),
        (torch.tensor(1.0), ValueError, r"x has shape \(\); expected \(N,\) \+ event"),
    ],
    ids=["integers", "bytes", "complex", "empty", "number"],
)
def test_what_is_no_batch(way: Callable[[Any, Any], Any], x: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        way(LOSS, x)


@pytest.mark.parametrize("way", [in_chunks, in_small_chunks])
def test_nothing_to_differentiate(way: Callable[[Any, Any], Any]) -> None:
    words = "do not depend on anything that requires a gradient; expected a model with parameters"
    with pytest.raises(ValueError, match=words):
        way(lambda x, i: LOSS(x, i).detach(), X)
    with torch.no_grad(), pytest.raises(ValueError, match=words):
        way(LOSS, X)


def test_a_value_without_a_gradient_may_be_asked_for() -> None:
    """As when a held-out risk is followed: under no_grad the call is an estimate and nothing more."""
    expected = called(LOSS, X).detach()
    with torch.no_grad():
        found = called(LOSS, X)
    assert not found.requires_grad
    assert torch.equal(found, expected)
    with torch.inference_mode():
        assert torch.equal(called(LOSS, X), expected)


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, "all"])
def test_what_is_no_chunk(chunk: Any) -> None:
    with pytest.raises(ValueError, match=r"chunk is .*; expected a whole number of at least 1"):
        OBJECTIVE.backward(LOSS, X, rng=rng(0), chunk=chunk)


@pytest.mark.parametrize("estimator", [SG(0), SG(2), RTMLMC(3)])
def test_eta_beyond_the_precision_of_the_losses(estimator: Any) -> None:
    """Whatever the levels that are drawn."""
    x = data((4,))[0].float()
    for eta in (1e-60, 1e60):
        objective = RegularizedLoss(Ball(2, 1.0), eta, ENTROPIC, estimator)
        with pytest.raises(ValueError, match=r"eta is 1e.60; expected .* the range of .*float32"):
            objective(lambda z, i: z.reshape(len(z), -1).sum(-1), x, rng=rng(0))
