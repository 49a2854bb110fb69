"""Half-precision losses are solved in single precision; the gap covers the rounding of the result."""

from typing import Any

import numpy as np
import pytest

from phiball.refimpl import ENTROPIC, QUADRATIC, cressie_read, indicator, worst_case
from phiball.verification.oracles.exact_solver import solve_exactly

ROWS = np.random.default_rng(3).exponential(size=(40, 6)).astype(np.float16)
ETA = 0.37
LIBRARY_DTYPES = ["numpy float16", "torch float16", "torch bfloat16"]


def half_losses(library_dtype: str) -> Any:
    """The losses as an array of a library and dtype."""
    library, dtype = library_dtype.split()
    if library == "numpy":
        return ROWS
    torch = pytest.importorskip("torch", reason="torch: not installed")
    return torch.asarray(ROWS, dtype=getattr(torch, dtype))


def to_double(x: Any) -> Any:
    """`x` in double precision, as a NumPy array."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()


@pytest.mark.parametrize("library_dtype", LIBRARY_DTYPES)
def test_gap_covers_the_rounding_of_the_value(library_dtype: str) -> None:
    f = half_losses(library_dtype)
    for d in (ENTROPIC, QUADRATIC, indicator(0.3), cressie_read(1.5)):
        solution = worst_case(f, ETA, d)
        assert {x.dtype for x in vars(solution).values()} == {f.dtype}
        exact = [float(solve_exactly(row, ETA, d.family, d.parameter).value) for row in to_double(f)]
        error = np.abs(to_double(solution.value) - exact)
        assert np.all(error <= to_double(solution.gap) + 1e-6)  # the rounding of single precision
        assert error.max() > 1e-5  # rounding to half precision matters here
        precision = 2.0**-8 if "bfloat16" in library_dtype else 2.0**-11
        assert np.all(to_double(solution.gap) <= 1.02 * precision * np.abs(exact) + 1e-6)


@pytest.mark.parametrize("library_dtype", LIBRARY_DTYPES)
def test_result_is_the_float32_result_rounded(library_dtype: str) -> None:
    f = half_losses(library_dtype)
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
            np.testing.assert_array_equal(to_double(getattr(half, name)), to_double(rounded))


@pytest.mark.parametrize("library_dtype", LIBRARY_DTYPES[1:])
def test_gradients_have_the_dtype_of_their_arguments(library_dtype: str) -> None:
    f = half_losses(library_dtype).requires_grad_()
    eta = f.detach().double()[:, 1].requires_grad_()
    p = (0 * f.detach().float() + 1 / 6).requires_grad_()
    solution = worst_case(f, eta, QUADRATIC, p=p)
    assert not solution.gap.requires_grad
    (solution.value + solution.mu + (solution.weights**2).sum(-1)).sum().backward()
    single = [x.detach().float().requires_grad_() for x in (f, eta, p)]
    expected = worst_case(single[0], single[1], QUADRATIC, p=single[2])
    # The gradient in the weights is rounded to half precision, and the gradient in the losses once more.
    (expected.value + expected.mu).sum().backward(retain_graph=True)
    expected.weights.backward(2 * solution.weights.detach().float())
    precision = 2.0**-8 if "bfloat16" in library_dtype else 2.0**-11
    for x, y in zip((f, eta, p), single, strict=True):
        assert x.grad.dtype == x.dtype
        size = np.abs(to_double(y.grad)).max()
        assert np.abs(to_double(x.grad) - to_double(y.grad)).max() <= 4 * precision * size


def test_mu_may_overflow_without_a_warning() -> None:
    assert np.all(np.isneginf(worst_case(ROWS, 1e6, QUADRATIC).mu))


def test_integers_and_long_doubles_raise() -> None:
    for bad in (ROWS.astype(np.longdouble), ROWS.astype(np.int16)):
        with pytest.raises(TypeError, match="losses has dtype"):
            worst_case(bad, ETA, ENTROPIC)
