"""Every bad argument raises, and the message names it and shows what was given."""

from __future__ import annotations

import re
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball.backends import use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Divergence,
    bisection,
    constrained_worst_case,
    cressie_read,
    dual_value,
    indicator,
    primal_value,
    worst_case,
)
from tests.support.arrays import Arrays
from tests.support.divergences import on_each, select


def each(f: Any, eta: Any = 1.0, d: Any = ENTROPIC, p: Any = None) -> list[Any]:
    """The four functions that share these arguments, as calls."""
    return [
        lambda: worst_case(f, eta, d, p=p),
        lambda: bisection(f, eta, d, tol=1e-3, p=p),
        lambda: dual_value(f, 0.0, eta, d, p),
        lambda: primal_value(f, f, eta, d, p),
    ]


@on_each(core=True)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_losses_not_finite(bad: float, d: Divergence, arrays: Arrays) -> None:
    for f in ([0.0, bad], [bad], [bad, bad], [[0.0, 1.0, 2.0, 3.0, 4.0], [1.0, bad, 2.0, 3.0, 4.0]]):
        x = arrays.asarray(f)
        for p in (None, arrays.asarray(np.full(x.shape[-1], 1 / x.shape[-1]))):
            for eta in (1e-3, 1e3):
                with pytest.raises(ValueError, match=rf"losses contains {bad}; expected finite numbers"):
                    worst_case(x, eta, d, p=p)
            if 0 < d.curvature1 < inf:
                with pytest.raises(ValueError, match=rf"losses contains {bad}; expected finite numbers"):
                    bisection(x, 1.0, d, tol=1e-3, p=p)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_losses_not_finite_where_p_is_zero(bad: float, arrays: Arrays) -> None:
    f, p = arrays.asarray([0.0, bad, 1.0]), arrays.asarray([0.5, 0.0, 0.5])
    for d in select(core=True):
        with pytest.raises(ValueError, match=rf"losses contains {bad}; expected finite numbers"):
            worst_case(f, 1.0, d, p=p)


def test_losses_without_entries(doubles: Arrays) -> None:
    for shape in ((), (0,), (3, 0)):
        for call in each(doubles.asarray(np.zeros(shape))):
            text = str(shape).replace("(", r"\(").replace(")", r"\)")
            with pytest.raises(ValueError, match=f"losses has shape {text}; expected at least one loss"):
                call()


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "complex128"])
def test_losses_of_another_dtype(dtype: str, doubles: Arrays) -> None:
    f = doubles.asarray([0, 1], dtype=getattr(doubles.xp, dtype))
    for call in each(f):
        with pytest.raises(
            TypeError, match=f"losses has dtype .*{dtype.rstrip('8')}.*expected float32 or float64"
        ):
            call()


@pytest.mark.parametrize("bad", [[0.0, 1.0], (0.0, 1.0), 1.5, "losses", None])
def test_losses_that_are_no_array(bad: Any, doubles: Arrays) -> None:
    name = type(bad).__name__
    for call in each(bad):
        with pytest.raises(TypeError, match=rf"losses is .*, of type {name}; expected an array"):
            call()


@pytest.mark.parametrize("eta", [0, 0.0, -1.0, nan, inf, -inf])
def test_eta_not_positive_and_finite(eta: float, arrays: Arrays) -> None:
    for call in each(arrays.asarray([0.0, 1.0]), eta):
        with pytest.raises(ValueError, match=f"eta is {eta!r}; expected a positive, finite number"):
            call()


@pytest.mark.parametrize("eta", ["one", "1.0", b"1", None, True, 1j, [1.0, 2.0], {}])
def test_eta_that_is_no_number(eta: Any, doubles: Arrays) -> None:
    for call in each(doubles.asarray([0.0, 1.0]), eta):
        with pytest.raises(TypeError, match=r"eta is .*; expected a positive number") as error:
            call()
        assert repr(eta) in str(error.value)


@pytest.mark.parametrize("bad", [0.0, -2.0, nan, inf])
def test_one_bad_eta_of_many(bad: float, arrays: Arrays) -> None:
    f = arrays.asarray([[0.0, 1.0]] * 3)
    for call in each(f, arrays.asarray([1.0, bad, 2.0])):
        with pytest.raises(ValueError, match=r"eta is .*; expected positive, finite numbers") as error:
            call()
        assert str(abs(bad)).rstrip("0") in str(error.value)


def test_subnormal_eta(arrays: Arrays) -> None:
    """As a number and in an array: it would leave weights that sum to 0."""
    f, eta = arrays.asarray([[3.0] * 4]), 1e-40 if arrays.eps > 1e-10 else 2e-311
    for call in (*each(f, eta), *each(f, arrays.asarray([eta]))):
        with pytest.raises(ValueError, match=r"eta is .*; expected .* within the range of .*float.*, .* to "):
            call()


def test_eta_beyond_the_precision() -> None:
    f = np.array([0.0, 1.0], dtype=np.float32)
    for eta in (1e-60, 1e-40, 1e60):
        with (
            np.errstate(over="ignore"),
            pytest.raises(
                ValueError, match=rf"eta is {re.escape(repr(eta))}; expected a number within .*float32"
            ),
        ):
            worst_case(f, eta, ENTROPIC)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (1, 3)])
def test_eta_of_another_shape(shape: tuple[int, ...], doubles: Arrays) -> None:
    f, eta = doubles.asarray(np.zeros((3, 4))), doubles.asarray(np.ones(shape))
    for call in each(f, eta):
        with pytest.raises(ValueError, match=r"eta has shape \(.*\); expected .* = \(3,\)") as error:
            call()
        assert str(shape) in str(error.value)


def test_eta_of_another_dtype(doubles: Arrays) -> None:
    eta = doubles.asarray([1, 2], dtype=doubles.xp.int64)
    for call in each(doubles.asarray([[0.0, 1.0]] * 2), eta):
        with pytest.raises(TypeError, match=r"eta has dtype .*int64; expected float32 or float64"):
            call()


@pytest.mark.parametrize("alpha", [0, 0.0, -0.5, 1.0000001, 2])
def test_alpha_outside_its_range(alpha: float) -> None:
    with pytest.raises(ValueError, match=rf"alpha is {float(alpha)!r}; expected a number in \(0, 1\]"):
        indicator(alpha)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_parameters_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match=f"alpha is {bad!r}; expected a finite number"):
        indicator(bad)
    with pytest.raises(ValueError, match=f"k is {bad!r}; expected a finite number"):
        cressie_read(bad)


@pytest.mark.parametrize("bad", ["half", "0.5", b"0.5", None, [0.5], 1j])
def test_parameters_that_are_no_numbers(bad: Any) -> None:
    for name, make in (("alpha", indicator), ("k", cressie_read)):
        with pytest.raises(TypeError, match=f"{name} is .*; expected a number") as error:
            make(bad)
        assert repr(bad) in str(error.value)


@pytest.mark.parametrize("bad", ["entropic", None, 2.0, type(ENTROPIC)])
def test_divergence_that_is_none(bad: Any, doubles: Arrays) -> None:
    for call in each(doubles.asarray([0.0, 1.0]), d=bad):
        with pytest.raises(TypeError, match=r"divergence is .*; expected a Divergence such as") as error:
            call()
        assert repr(bad) in str(error.value)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([1.5, -0.5], r"p contains -0\.5; expected probabilities, none negative"),
        ([nan, 1.0], "p contains nan; expected probabilities"),
        ([0.5, 0.25], r"p sums to 0\.75 along the last axis; expected 1"),
        ([0.5, inf], "p sums to inf along the last axis; expected 1"),
        ([0.0, 0.0], r"p sums to 0\.0 along the last axis; expected 1"),
        (
            [0.25, 0.25, 0.5],
            r"p has shape \(3,\); expected a shape that broadcasts to losses\.shape = \(2,\)",
        ),
        ([1.0], r"p has shape \(1,\); expected .* has the same last axis"),
        (1.0, r"p has shape \(\); expected"),
        ([[0.5, 0.5]], r"p has shape \(1, 2\); expected a shape that broadcasts to losses\.shape = \(2,\)"),
    ],
)
def test_p_that_is_no_law(p: Any, message: str, arrays: Arrays) -> None:
    for call in each(arrays.asarray([0.0, 1.0]), p=arrays.asarray(p)):
        with pytest.raises(ValueError, match=message):
            call()


def test_p_of_another_kind(doubles: Arrays) -> None:
    f = doubles.asarray([0.0, 1.0])
    for call in each(f, p=[0.5, 0.5]):
        with pytest.raises(TypeError, match=r"p is \[0\.5, 0\.5\], of type list; expected an array"):
            call()
    for call in each(f, p=doubles.asarray([1, 0], dtype=doubles.xp.int64)):
        with pytest.raises(TypeError, match=r"p has dtype .*int64; expected float32 or float64"):
            call()


def test_one_bad_row_of_p(arrays: Arrays) -> None:
    f, p = arrays.asarray([[0.0, 1.0]] * 2), arrays.asarray([[0.5, 0.5], [0.5, 0.75]])
    for call in each(f, p=p):
        with pytest.raises(ValueError, match=r"p sums to 1\.25 along the last axis"):
            call()


def test_arrays_of_two_libraries(doubles: Arrays) -> None:
    f = doubles.asarray([[0.0, 1.0]])
    if type(f) is not np.ndarray:
        half, one = np.array([0.5, 0.5]), np.array([1.0])
        name = type(f).__module__.partition(".")[0]
    else:
        strict = pytest.importorskip("array_api_strict", reason="array-api-strict: not installed")
        half, one = strict.asarray([0.5, 0.5]), strict.asarray([1.0])
        name = "numpy"
    for call in each(f, p=half):
        with pytest.raises(
            TypeError, match=f"p is a .* array and losses a {name} array; expected arrays of one"
        ):
            call()
    for call in each(f, one):
        with pytest.raises(TypeError, match=f"eta is a .* array and losses a {name} array"):
            call()
    with pytest.raises(TypeError, match=f"mu is a .* array and losses a {name} array"):
        dual_value(f, one, 1.0, ENTROPIC)
    with pytest.raises(TypeError, match=f"weights is a .* array and losses a {name} array"):
        primal_value(f, half, 1.0, ENTROPIC)


@pytest.mark.parametrize("shape", [(2,), (3, 1), (1, 1, 3)])
def test_mu_of_another_shape(shape: tuple[int, ...], doubles: Arrays) -> None:
    f, mu = doubles.asarray(np.zeros((3, 4))), doubles.asarray(np.zeros(shape))
    with pytest.raises(
        ValueError, match=r"mu has shape \(.*\); expected one that broadcasts to \(3,\)"
    ) as error:
        dual_value(f, mu, 1.0, ENTROPIC)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("mu", ["zero", None, [0.0]])
def test_mu_that_is_no_number(mu: Any, doubles: Arrays) -> None:
    with pytest.raises(TypeError, match=r"mu is .*, of type (str|NoneType|list); expected an array") as error:
        dual_value(doubles.asarray([0.0, 1.0]), mu, 1.0, ENTROPIC)
    assert repr(mu) in str(error.value)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 4), (1, 3, 4)])
def test_weights_of_another_shape(shape: tuple[int, ...], doubles: Arrays) -> None:
    f, w = doubles.asarray(np.zeros((3, 4))), doubles.asarray(np.full(shape, 0.25))
    with pytest.raises(ValueError, match=r"weights has shape \(.*\); expected .* = \(3, 4\)") as error:
        primal_value(f, w, 1.0, ENTROPIC)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize(
    ("w", "message"),
    [
        ([1.5, -0.5], "weights contains a negative number or NaN; expected probabilities"),
        ([nan, 1.0], "weights contains a negative number or NaN; expected probabilities"),
        ([0.5, 0.25], r"weights sums to 0\.75 along the last axis; expected 1"),
    ],
)
def test_weights_that_are_no_law(w: list[float], message: str, arrays: Arrays) -> None:
    with pytest.raises(ValueError, match=message):
        primal_value(arrays.asarray([0.0, 1.0]), arrays.asarray(w), 1.0, ENTROPIC)


def test_weights_whose_sum_overflows(doubles: Arrays) -> None:
    with pytest.raises(ValueError, match="weights sums to inf along the last axis; expected 1"):
        primal_value(doubles.asarray([0.0, 1.0]), doubles.asarray([1e308, 1e308]), 1.0, ENTROPIC)


def test_weights_that_are_no_array(doubles: Arrays) -> None:
    with pytest.raises(TypeError, match=r"weights is \[0\.5, 0\.5\], of type list; expected an array"):
        primal_value(doubles.asarray([0.0, 1.0]), [0.5, 0.5], 1.0, ENTROPIC)


@pytest.mark.parametrize("tol", [0, 0.0, -1e-3, nan, inf, "small", None])
def test_tol_not_positive(tol: Any, doubles: Arrays) -> None:
    with pytest.raises(ValueError, match=f"tol is {tol!r}; expected a positive number"):
        bisection(doubles.asarray([0.0, 1.0]), 1.0, QUADRATIC, tol=tol)


def test_masked_array() -> None:
    with pytest.raises(TypeError, match="losses is a masked array; expected a plain one"):
        worst_case(np.ma.array([0.0, 0.5, 1.0], mask=[0, 0, 1]), 1.0, ENTROPIC)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_losses_whose_range_overflows(backend: str) -> None:
    with (
        use(backend),
        pytest.raises(ValueError, match="a value that is not finite in float64; expected losses"),
    ):
        worst_case(np.array([0.0, 1e308, -1e308]), 0.2, ENTROPIC)


def test_function_that_returns_a_number() -> None:
    with pytest.raises(TypeError, match=r"d2conj returned 0\.5 for an array of one number"):
        Divergence("own", ENTROPIC.phi, ENTROPIC.conj, ENTROPIC.dconj, lambda s: 0.5)


def test_law_of_single_precision_is_taken_and_rescaled() -> None:
    p = np.array([0.3, 0.2, 0.5 - 4e-8])
    out = worst_case(np.array([0.0, 0.5, 1.0]), 1.0, ENTROPIC, p=p)
    assert abs(np.sum(out.weights) - 1) <= 1e-15
    assert abs(out.gap) <= 1e-15


def test_tensors_without_a_number_for_each_entry() -> None:
    torch = pytest.importorskip("torch")
    f = torch.ones(2, 3, dtype=torch.float64)
    for call in each(f.to_sparse()):
        with pytest.raises(TypeError, match=r"losses is a tensor of layout torch\.sparse_coo; expected a"):
            call()
    for call in each(f.to("meta")):
        with pytest.raises(TypeError, match="losses is on the device meta, which holds no numbers"):
            call()
    for call in each(f, torch.ones(2, dtype=torch.float64).to_sparse()):
        with pytest.raises(TypeError, match=r"eta is a tensor of layout torch\.sparse_coo"):
            call()


def test_radius_beyond_the_precision() -> None:
    with pytest.raises(ValueError, match=r"radius is 1e\+300; expected a number within the range of float32"):
        constrained_worst_case(np.zeros(2, dtype=np.float32), 1e300, ENTROPIC)


def test_a_law_beyond_the_precision() -> None:
    f, p = np.zeros((2, 3), dtype=np.float32), np.array([0.0, 0.0, 1e308])
    with pytest.raises(ValueError, match="p sums to inf along the last axis; expected 1"):
        worst_case(f, 1.0, ENTROPIC, p=p)
