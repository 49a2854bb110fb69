"""Invalid arguments of the inner problem raise an error that names the argument and shows its value."""

import re
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball.backends import backend, library
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, bisection, cressie_read, indicator, worst_case
from phiball.refimpl.inner import dual_value, primal_value
from tests.support.arrays import Arrays
from tests.support.divergences import select

F = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0]])


def calls_with(losses: Any = F, eta: Any = 1.0, divergence: Any = ENTROPIC, p: Any = None) -> list[Any]:
    """One call of each function that takes these arguments."""
    return [
        lambda: worst_case(losses, eta, divergence, p=p),
        lambda: bisection(losses, eta, divergence, tol=1e-3, p=p),
        lambda: dual_value(losses, 0.0, eta, divergence, p=p),
        lambda: primal_value(losses, losses, eta, divergence, p=p),
    ]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nonfinite_losses_raise_even_where_p_is_zero(bad: float, arrays: Arrays) -> None:
    message = rf"losses contains {bad}; expected finite numbers"
    for f in ([0.0, bad], [bad], [bad, bad], [[0.0, 1.0, 2.0, 3.0, 4.0], [1.0, bad, 2.0, 3.0, 4.0]]):
        x = arrays.asarray(f)
        m = x.shape[-1]
        distributions = [None, arrays.asarray(np.full(m, 1 / m))]
        if m > 2:
            distributions.append(arrays.asarray([0.5, 0.0, 0.25, 0.25, 0.0]))
        for p in distributions:
            for d in select(core=True):
                for eta in (1e-3, 1e3):
                    with pytest.raises(ValueError, match=message):
                        worst_case(x, eta, d, p=p)
                if 0 < d.curvature1 < inf:
                    with pytest.raises(ValueError, match=message):
                        bisection(x, 1.0, d, tol=1e-3, p=p)


# Invalid values of each argument, with the message that follows the argument's name.
SHARED_ERRORS: dict[tuple[str, type[Exception]], list[tuple[Any, str]]] = {
    ("losses", ValueError): [(np.zeros(x), f"has shape {x}; expected at least one") for x in ((), (3, 0))],
    ("losses", TypeError): [
        *(
            (F.astype(x), f"has dtype {x}; expected float32 or float64")
            for x in ("int64", "bool", "complex128")
        ),
        *((x, f"is {x!r}, of type {type(x).__name__}; expected an array") for x in ([0.0, 1.0], 1.5, None)),
        (np.ma.array(F, mask=F > 1), "is a masked array; expected a plain array"),
    ],
    ("eta", ValueError): [
        *((x, f"is {x!r}; expected a positive number") for x in (0, -1.0, nan, inf)),
        *((np.array(x), "is array(") for x in ([1.0, 0.0], [nan, 1.0], [1.0, inf], [1.0, 2e-311])),
        (2e-311, "is 2e-311; expected"),
        *((np.ones(x), f"has shape {x}; expected a number, or") for x in ((3,), (2, 1), (1, 1, 2))),
    ],
    ("eta", TypeError): [
        *((x, f"is {x!r}; expected a number") for x in ("1.0", b"1", True, 1j, [1.0, 2.0])),
        (np.array([1, 2]), "has dtype int64; expected float32 or float64"),
    ],
    ("divergence", TypeError): [(x, f"is {x!r}; expected") for x in (2, None, Divergence)],
    ("divergence", ValueError): [("KL", "is 'KL'; expected")],
    ("p", ValueError): [
        (np.array([1.5, -0.5, 0.0]), "contains -0.5; expected nonnegative probabilities"),
        (np.array([nan, 1.0, 0.0]), "contains nan; expected nonnegative probabilities"),
        *((np.array(x), f"sums to {sum(x)} along") for x in ([0.5, 0.25, 0.0], [0.5, inf, 0.0], [0.0] * 3)),
        (np.array([[0.5, 0.5, 0.0], [0.5, 0.75, 0.0]]), "sums to 1.25 along the last axis; expected 1"),
        *((np.ones(x), f"has shape {x}; expected a shape") for x in ((), (1,), (2,), (1, 2, 3))),
    ],
    ("p", TypeError): [
        ([0.5, 0.5, 0.0], "is [0.5, 0.5, 0.0], of type list; expected an array"),
        (np.array([1, 0, 0]), "has dtype int64; expected float32 or float64"),
    ],
}


@pytest.mark.parametrize(("argument", "error"), SHARED_ERRORS)
def test_invalid_arguments_raise_in_all_functions(argument: str, error: type[Exception]) -> None:
    for value, message in SHARED_ERRORS[argument, error]:
        for call in calls_with(**{argument: value}):
            with pytest.raises(error, match=re.escape(f"{argument} {message}")):
                call()


FLOAT32_LOSSES = np.zeros((2, 3), dtype=np.float32)
PARAMETRIC_FAMILIES = (("alpha", indicator), ("k", cressie_read))
INVALID_WEIGHTS = [
    (np.array([1.5, -0.5, 0.0]), "contains a negative number or NaN; expected probabilities"),
    (np.array([nan, 1.0, 0.0]), "contains a negative number or NaN; expected probabilities"),
    (np.array([0.5, 0.25, 0.0]), "sums to 0.75 along the last axis; expected 1"),
    (np.array([1e308, 1e308, 0.0]), "sums to inf along the last axis; expected 1"),
    *((np.full(x, 0.25), f"has shape {x}; expected ") for x in ((), (1,), (2,), (3, 3), (1, 2, 3))),
]


def test_invalid_arguments_of_one_function_raise() -> None:
    def solve_float32(eta: Any = 1.0, p: Any = None) -> Any:
        return lambda: worst_case(FLOAT32_LOSSES, eta, ENTROPIC, p=p)

    def dual_at(mu: Any) -> Any:
        return lambda: dual_value(F, mu, 1.0, ENTROPIC)

    def primal_at(w: Any) -> Any:
        return lambda: primal_value(F, w, 1.0, ENTROPIC)

    def divergence_with_scalar_d2conj() -> Any:
        return Divergence("own", ENTROPIC.phi, ENTROPIC.conj, ENTROPIC.dconj, lambda s: 0.5)

    value_errors: list[tuple[Any, str]] = [
        *((solve_float32(x), f"eta is {x!r}; expected") for x in (1e-40, 1e60)),
        (solve_float32(p=np.array([0.0, 0.0, 1e308])), "p sums to inf along the last axis; expected 1"),
        (
            lambda: worst_case(FLOAT32_LOSSES, budget=1e300, divergence=ENTROPIC),
            "budget is 1e+300; expected a number within",
        ),
        *(
            (partial(indicator, x), f"alpha is {x}; expected a number in (0, 1]")
            for x in (0.0, -0.5, 1.0000001)
        ),
        *(
            (partial(f, x), f"{name} is {x}; expected a finite")
            for name, f in PARAMETRIC_FAMILIES
            for x in (nan, inf)
        ),
        *((dual_at(np.zeros(x)), f"mu has shape {x}; expected") for x in ((3,), (2, 1), (1, 1, 2))),
        *((dual_at(x), f"mu is {x!r}; expected a finite number") for x in (inf, -inf, nan)),
        (dual_at(np.array([0.0, nan])), "mu contains nan; expected finite numbers"),
        *((primal_at(w), f"weights {message}") for w, message in INVALID_WEIGHTS),
        *(
            (partial(bisection, F, 1.0, QUADRATIC, tol=x), f"tol is {x!r}; expected a positive number")
            for x in (0, -1e-3, nan, inf, "small", None)
        ),
    ]
    type_errors: list[tuple[Any, str]] = [
        *(
            (partial(f, x), f"{name} is {x!r}; expected a")
            for name, f in PARAMETRIC_FAMILIES
            for x in ("0.5", None, [0.5])
        ),
        *(
            (dual_at(x), f"mu is {x!r}, of type {type(x).__name__}; expected an")
            for x in ("zero", None, [0.0])
        ),
        (primal_at([0.5]), "weights is [0.5], of type list; expected an array"),
        (divergence_with_scalar_d2conj, "d2conj returned 0.5 for an array of one number"),
    ]
    for error, calls in ((ValueError, value_errors), (TypeError, type_errors)):
        for call, message in calls:
            with np.errstate(over="ignore"), pytest.raises(error, match=re.escape(message)):
                call()


def test_arrays_of_two_libraries_raise(doubles: Arrays) -> None:
    f = doubles.asarray([[0.0, 1.0]])
    other = np
    if type(f) is np.ndarray:
        other = pytest.importorskip("array_api_strict", reason="array-api-strict: not installed")
    half, one = other.asarray([0.5, 0.5]), other.asarray([1.0])
    name = library(f)
    for argument, calls in (
        ("p", calls_with(f, p=half)),
        ("eta", calls_with(f, one)),
        ("mu", [lambda: dual_value(f, one, 1.0, ENTROPIC)]),
        ("weights", [lambda: primal_value(f, half, 1.0, ENTROPIC)]),
    ):
        for call in calls:
            with pytest.raises(TypeError, match=f"{argument} is a .* array and losses a {name} array"):
                call()


def test_losses_whose_range_overflows_are_solved_or_rejected() -> None:
    losses = np.array([0.0, 1e308, -1e308])
    with backend("numpy"), pytest.raises(ValueError, match="losses / eta overflows float64"):
        worst_case(losses, 0.2, ENTROPIC)
    assert worst_case(losses, 0.2, ENTROPIC).weights.tolist() == [0.0, 1.0, 0.0]


def test_p_that_sums_to_one_in_single_precision_is_rescaled() -> None:
    p = np.array([0.3, 0.2, 0.5 - 4e-8])
    out = worst_case(np.array([0.0, 0.5, 1.0]), 1.0, ENTROPIC, p=p)
    assert abs(np.sum(out.weights) - 1) <= 1e-15
    assert abs(out.gap) <= 1e-15


def test_sparse_and_meta_tensors_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    f, eta = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    for calls, message in (
        (calls_with(f.to_sparse()), r"losses is a tensor of layout torch\.sparse_coo; expected a"),
        (calls_with(f.to("meta")), "losses is on the meta device, which holds no numbers"),
        (calls_with(f, eta.to_sparse()), r"eta is a tensor of layout torch\.sparse_coo"),
    ):
        for call in calls:
            with pytest.raises(TypeError, match=message):
                call()
