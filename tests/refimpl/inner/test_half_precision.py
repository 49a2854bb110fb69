"""Half-precision losses are solved in single precision; the gap covers the rounding of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phiball.refimpl import ENTROPIC, QUADRATIC, cressie_read, indicator, worst_case
from phiball.verification.oracles.exact_solver import solve_exactly

ROWS = np.random.default_rng(3).exponential(size=(40, 6)).astype(np.float16)
ETA = 0.37
KINDS = ["numpy float16", "torch float16", "torch bfloat16"]


def halves(kind: str) -> Any:
    """The losses as an array of a library and dtype."""
    library, dtype = kind.split()
    if library == "numpy":
        return ROWS
    torch = pytest.importorskip("torch", reason="torch: not installed")
    return torch.asarray(ROWS, dtype=getattr(torch, dtype))


def numbers(x: Any) -> Any:
    """`x` in double precision, as a NumPy array."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_gap_covers_the_rounding_of_the_value(kind: str) -> None:
    f = halves(kind)
    for d in (ENTROPIC, QUADRATIC, indicator(0.3), cressie_read(1.5)):
        solution = worst_case(f, ETA, d)
        assert {x.dtype for x in vars(solution).values()} == {f.dtype}
        exact = [float(solve_exactly(row, ETA, d.family, d.parameter).value) for row in numbers(f)]
        error = np.abs(numbers(solution.value) - exact)
        assert np.all(error <= numbers(solution.gap) + 1e-6)  # the rounding of single precision
        assert error.max() > 1e-5  # rounding to half precision matters here
        precision = 2.0**-8 if "bfloat16" in kind else 2.0**-11
        assert np.all(numbers(solution.gap) <= 1.02 * precision * np.abs(exact) + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_result_is_that_of_single_precision_rounded(kind: str) -> None:
    """With eta, a budget and a distribution in any precision."""
    f = halves(kind)
    wide = f.astype(np.float32) if isinstance(f, np.ndarray) else f.float()
    eta, p = wide[:, 0] + 0.125, wide / wide.sum(-1)[:, None]
    offsets, flat = [0, 2, 240], f.reshape(-1)
    cases = [
        (worst_case(f, eta, ENTROPIC, p=p), worst_case(wide, eta, ENTROPIC, p=p)),
        (worst_case(f, f[:, 0], ENTROPIC), worst_case(wide, wide[:, 0], ENTROPIC)),
        (worst_case(f, budget=eta, divergence=QUADRATIC), worst_case(wide, budget=eta, divergence=QUADRATIC)),
        (
            worst_case(flat, offsets=offsets, eta=0.5, divergence=QUADRATIC),
            worst_case(wide.reshape(-1), offsets=offsets, eta=0.5, divergence=QUADRATIC),
        ),
    ]
    for half, full in cases:
        assert {x.dtype for x in vars(half).values()} == {f.dtype}
        for name in vars(full).keys() - {"gap"}:
            rounded = getattr(full, name)
            rounded = rounded.astype(f.dtype) if isinstance(f, np.ndarray) else rounded.to(f.dtype)
            np.testing.assert_array_equal(numbers(getattr(half, name)), numbers(rounded))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_gradients_have_the_dtype_of_their_arguments(kind: str) -> None:
    f = halves(kind).requires_grad_()
    eta = f.detach().double()[:, 1].requires_grad_()
    p = (0 * f.detach().float() + 1 / 6).requires_grad_()
    solution = worst_case(f, eta, QUADRATIC, p=p)
    assert not solution.gap.requires_grad
    (solution.value + solution.mu + (solution.weights**2).sum(-1)).sum().backward()
    single = [x.detach().float().requires_grad_() for x in (f, eta, p)]
    expected = worst_case(single[0], single[1], QUADRATIC, p=single[2])
    # The factor of the weights is rounded to half precision, and the gradient of the losses again.
    (expected.value + expected.mu).sum().backward(retain_graph=True)
    expected.weights.backward(2 * solution.weights.detach().float())
    precision = 2.0**-8 if "bfloat16" in kind else 2.0**-11
    for x, y in zip((f, eta, p), single, strict=True):
        assert x.grad.dtype == x.dtype
        size = np.abs(numbers(y.grad)).max()
        assert np.abs(numbers(x.grad) - numbers(y.grad)).max() <= 4 * precision * size


def test_large_eta_and_other_dtypes() -> None:
    """mu overflows without a warning; other dtypes are still rejected."""
    assert np.all(np.isneginf(worst_case(ROWS, 1e6, QUADRATIC).mu))
    for bad in (ROWS.astype(np.longdouble), ROWS.astype(np.int16)):
        with pytest.raises(TypeError, match="losses has dtype"):
            worst_case(bad, ETA, ENTROPIC)
