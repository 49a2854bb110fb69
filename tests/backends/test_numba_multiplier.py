"""The compiled price of a budget gives what the reference gives, for every order, law and budget."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from phiball.backends import to_numpy, use
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, constrained_worst_case, cressie_read
from phiball.refimpl.inner.divergences import centred
from phiball.refimpl.inner.multiplier import multiplier
from tests.support.divergences import name_of

ORDERS = [ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (-3, 0, 0.5, 0.9, 1.5, 3, 6))]


@pytest.mark.parametrize("d", ORDERS, ids=name_of)
def test_the_twin_agrees(d: Divergence) -> None:
    """Rows of one loss, ties at the top, no budget and too large a one, and points without mass."""
    g, rows, c = np.random.default_rng(0), 30, centred(d)
    for m in (1, 2, 5, 130):
        for scale in (1e-6, 1.0, 1e5):
            f = scale * g.standard_exponential((rows, m))
            f[3] = f[3, 0]
            f[4, : m // 2] = f[4].max()
            p = np.where(g.random((rows, m)) < 0.3, 0, g.random((rows, m)))
            p[:, 0] += 1e-3
            p /= p.sum(-1, keepdims=True)
            radius = 10 ** g.uniform(-8, 2, rows)
            radius[0] = 0
            for law in (None, p):
                with use("numba"):
                    eta, cost = multiplier(f, radius, law, c)
                with use("numpy"):
                    exact, known = multiplier(f, radius, law, c)
                np.testing.assert_allclose(eta, exact, rtol=1e-11)
                np.testing.assert_allclose(cost, known, rtol=2e-14, atol=1e-15)


@pytest.mark.skipif(not find_spec("torch"), reason="torch: not installed")
def test_tensors_of_any_shape() -> None:
    torch = import_module("torch")
    f, radius = np.random.default_rng(1).random((2, 3, 7)), np.array([[0.1], [0.2]])
    expected = constrained_worst_case(f, radius, QUADRATIC)
    for dtype, slack in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        found = constrained_worst_case(torch.asarray(f, dtype=dtype), torch.asarray(radius), QUADRATIC)
        for name in ("value", "eta", "weights"):
            np.testing.assert_allclose(
                to_numpy(getattr(found, name)), getattr(expected, name), rtol=10 * slack
            )
