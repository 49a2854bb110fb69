"""Dual values, primal values and gaps agree with their definitions in 50 digits."""

from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiball.backends import backend
from phiball.refimpl import QUADRATIC, Divergence, worst_case
from phiball.refimpl.inner import dual_value, primal_value
from phiball.verification.oracles import definitions
from tests.support.arrays import Arrays
from tests.support.divergences import select

# Quarters are exact in both precisions and give ties.
losses = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=8)
etas = st.sampled_from([0.015625, 0.25, 1.0, 4.0, 64.0])
divergences = st.sampled_from(select(usual=True))
# Eighths lie between the losses: (f - mu)/eta is exact, and not at the end of the domain of phi*.
multipliers = st.integers(-81, 81).map(lambda n: n / 4 + 1 / 8)


def distribution(n: int) -> Any:
    """Probabilities of n points, multiples of 1/64, with a zero if n is large enough."""
    p = np.arange(1.0, n + 1) % 4 * (n > 3) + (n <= 3)
    p = np.floor(64 * p / p.sum())
    p[0] += 64 - p.sum()
    return p / 64


@given(f=losses, eta=etas, d=divergences, mu=multipliers, seed=st.integers(0, 2**31))
def test_dual_and_primal_values_agree_with_their_definitions(
    f: list[float], eta: float, d: Divergence, mu: float, seed: int, arrays: Arrays
) -> None:
    assert d.family is not None
    p = distribution(len(f))
    w = np.random.default_rng(seed).dirichlet(np.ones(len(f))) * (p > 0)
    x, q, weights = arrays.asarray(f), arrays.asarray(p), arrays.asarray(w / w.sum())
    problem: Any = (eta, d.family, d.parameter, p)
    dual = float(definitions.dual_objective(f, mu, *problem))
    primal = float(definitions.primal_objective(f, arrays.numpy(weights).astype(float), *problem))
    largest = float(arrays.xp.finfo(arrays.dtype).max)
    for found, exact in (
        (dual_value(x, mu, eta, d, p=q), dual),
        (primal_value(x, weights, eta, d, p=q), primal),
    ):
        if abs(exact) > largest / 1e3:
            assert abs(float(found)) > largest / 1e6
        else:
            # Allow for the rounding of eta phi* and eta phi, and for the larger error of powers.
            tol = 64 * arrays.eps * (8 * abs(exact) + max(map(abs, f)) + abs(mu) + eta)
            assert float(found) == pytest.approx(exact, abs=tol)


def test_mass_outside_p_has_infinite_divergence(arrays: Arrays) -> None:
    f, p, w = (arrays.asarray(v) for v in ([0.0, 1.0], [1.0, 0.0], [0.5, 0.5]))
    for d in select(usual=True):
        assert float(primal_value(f, w, 1.0, d, p=p)) == -inf, d.name


def test_gap_is_accurate_for_large_losses() -> None:
    """Rounding mu + eta to one float would change the gap of losses near 1e8 by 1e-8."""
    f = 1e8 + np.array([0.0, 0.25, 1.0])
    for backend_name, eta in product(("numpy", "numba"), (0.1, 0.3, 0.7)):
        with backend(backend_name):
            solution = worst_case(f, eta, QUADRATIC)
        exact = definitions.dual_objective(
            f, float(solution.mu), eta, "quadratic"
        ) - definitions.primal_objective(f, solution.weights, eta, "quadratic")
        assert float(solution.gap) == pytest.approx(float(exact), abs=1e-12), (backend_name, eta)
