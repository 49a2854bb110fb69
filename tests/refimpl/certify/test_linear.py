"""Certified margins of linear models are the solutions of convex programs."""

from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball import Ball
from phiball.certify import certified_margins
from tests.support.arrays import Arrays

SCALE = np.array([1.0, 0.5, 2.0, 0.0, 1.0, 3.0])


def smallest(c: Any, x: Any, ball: Ball) -> float:
    """The smallest c.z over the ball around x and the box, by convex programming."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy: not installed")
    b = cp.Variable(x.shape)
    scale = np.ones(len(x)) if ball.feature_scale is None else SCALE
    limits = [cp.norm(b, ball.norm) <= ball.radius]
    if ball.clip is not None:
        limits += [x + cp.multiply(scale, b) >= ball.clip[0], x + cp.multiply(scale, b) <= ball.clip[1]]
    return float(cp.Problem(cp.Minimize(c @ x + c @ cp.multiply(scale, b)), limits).solve(solver="CLARABEL"))


draws = np.random.default_rng(0)
W, B, X, Y = draws.normal(size=(3, 6)), draws.normal(size=3), draws.uniform(size=(4, 6)), [0, 1, 2, 0]


@cache
def exact_margins(ball: Ball) -> Any:
    rows = [
        [smallest(W[y] - w, x, ball) + B[y] - b for w, b in zip(W, B, strict=True)]
        for x, y in zip(X, Y, strict=True)
    ]
    return np.where(np.arange(3) == np.array(Y)[:, None], inf, rows)


@pytest.mark.parametrize("norm", [1, 2, inf, 3])
@pytest.mark.parametrize("clip", [None, (0.0, 1.0)])
def test_linear_margins_are_exact(norm: float, clip: Any, arrays: Arrays) -> None:
    model, x = (arrays.asarray(W), arrays.asarray(B)), arrays.asarray(X)
    y = arrays.xp.asarray(Y, **arrays.at)
    for ball in (Ball(norm, 0.7, clip), Ball(norm, 0.0, clip), Ball(norm, 0.3, clip, SCALE)):
        margins, exact = certified_margins(model, x, y, ball), exact_margins(ball)
        assert margins.dtype == x.dtype
        # The rounding is bounded by 2 eps (d + 4) times the sizes of two scores, which are below 20.
        np.testing.assert_allclose(arrays.numpy(margins), exact, atol=1e-6 + 800 * arrays.eps)
        assert (arrays.numpy(margins) <= exact + 1e-6).all()  # the tolerance of the convex program


def test_two_classes_and_a_network_of_one_layer_agree() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 1).eval()
    x, y, ball = torch.rand(5, 6), torch.tensor([0, 1, 0, 1, 1]), Ball(2, 0.4, (0, 1))
    by_network = certified_margins(layer, x, y, ball)
    by_pair = certified_margins((layer.weight[0].detach(), layer.bias.detach()), x, y, ball)
    assert torch.isinf(by_pair).sum() == 5
    torch.testing.assert_close(by_network, by_pair)
    with pytest.raises(ValueError, match="label outside 0 to 1"):
        certified_margins(layer, x, y + 1, ball)


def test_margins_include_the_rounding_of_the_scores() -> None:
    """The terms of each score are large, and almost cancel."""
    draws = np.random.default_rng(1)
    coef, x = draws.normal(size=(2, 500)).astype("f4"), draws.normal(size=(200, 500)).astype("f4")
    intercept = -np.mean(x @ coef.T, axis=0)
    scores = x @ coef.T + intercept
    y, fixed = np.argmax(scores, axis=1), Ball("linf", 0.1, feature_scale=0.0)
    certified = np.min(certified_margins((coef, intercept), x, y, fixed), axis=1)
    found = np.max(scores, axis=1) - np.min(scores, axis=1)
    assert (certified <= found).all()
    np.testing.assert_allclose(certified, found, atol=0.1)
