"""`check_divergence` finds the error in each of many invalid divergences."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from phiball.backends import Array, array_namespace, backend
from phiball.refimpl import ENTROPIC, Divergence, cressie_read
from phiball.refimpl.inner import check_divergence
from tests.support.arrays import Arrays

Function = Callable[[Array], Array]


def where(condition: Callable[[Array], Array], then: Function, otherwise: Function) -> Function:
    def function(x: Array) -> Array:
        return array_namespace(x).where(condition(x), then(x), otherwise(x))

    return function


def constant(value: float) -> Function:
    return lambda x: array_namespace(x).full_like(x, value)


def on_positives(phi: Function) -> Function:
    return where(lambda x: x < 0, constant(inf), phi)


def valid_divergence() -> Divergence:
    """phi(x) = (x - 1)^2/2, defined by its four functions alone."""
    return Divergence(
        "valid",
        phi=on_positives(lambda x: (x - 1) ** 2 / 2),
        conj=where(lambda s: s > -1, lambda s: s + s * s / 2, constant(-0.5)),
        dconj=where(lambda s: s > -1, lambda s: 1 + s, constant(0.0)),
        d2conj=where(lambda s: s > -1, constant(1.0), constant(0.0)),
    )


def modifying_its_argument(function: Function) -> Function:
    def modifying(x: Array) -> Array:
        out = function(x)
        x += 1.0
        return out

    return modifying


def raising(x: Array) -> Array:
    raise ZeroDivisionError("by accident")


NAMES = ("phi", "conj", "dconj", "d2conj")
FUNCTIONS = PHI, CONJ, DCONJ, D2CONJ = [getattr(valid_divergence(), name) for name in NAMES]

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "not convex": (
        {"phi": on_positives(where(lambda x: x > 3, lambda x: 2 + (x - 3) / 2, lambda x: (x - 1) ** 2 / 2))},
        "phi is not convex: phi(",
    ),
    "not convex near 1": (
        {"phi": on_positives(lambda x: -abs(x - 1) + (x - 1) ** 2)},
        "phi is not convex: phi(1)",
    ),
    "phi(1) is not 0": (
        {"phi": lambda x: PHI(x) + 0.1, "conj": lambda s: CONJ(s) - 0.1},
        "phi(1) is 0.1; it must be 0.",
    ),
    "finite below zero": (
        {"phi": lambda x: (x - 1) ** 2 / 2},
        "phi(-0.5) is 1.125; phi must be infinite below 0.",
    ),
    "conj too small": ({"conj": lambda s: CONJ(s) - 0.2}, "conj is not the conjugate of phi: conj("),
    "conj of another phi": ({"conj": lambda s: CONJ(s) / 2}, "conj is not the conjugate of phi: conj("),
    "conj too large": ({"conj": lambda s: CONJ(s) + 0.2}, "the conjugate of phi: at s = "),
    "conj not truncated": ({"conj": lambda s: s + s * s / 2}, "the conjugate of phi: at s = "),
    "dconj negative": ({"dconj": lambda s: 1 + s}, "; a density must be nonnegative: truncate it at 0."),
    "dconj scaled": ({"dconj": lambda s: 1.1 * DCONJ(s)}, "dconj is not the derivative of the conjugate"),
    "dconj decreasing": ({"dconj": where(lambda s: s > 1, constant(0.5), DCONJ)}, "dconj decreases from "),
    "d2conj scaled": ({"d2conj": lambda s: 2 * D2CONJ(s)}, "is 2, but dconj has slope 1 there."),
    "d2conj zero": ({"d2conj": constant(0.0)}, "is 0, but dconj has slope 1 there."),
    "slope0": ({"slope0": -2.0}, "slope0 is -2, but the functions give -1."),
    "slope0 infinite": ({"slope0": -inf}, "slope0 is -inf, but the functions give -1."),
    "slope1": ({"slope1": 0.5}, "slope1 is 0.5, but the functions give 0."),
    "recession": ({"recession": 7.0}, "recession is 7, but the functions give inf."),
    "curvature1": ({"curvature1": 3.0}, "curvature1 is 3, but the functions give 1."),
    **{
        f"{name} {error}": ({name: function}, f"{name} {message}")
        for name, whole in zip(NAMES, FUNCTIONS, strict=True)
        for error, function, message in (
            ("raises", raising, "raises ZeroDivisionError on an array: by accident."),
            ("has another shape", lambda x, f=whole: f(x)[:3], "returns shape "),
            ("is a number", lambda x: 1.0, "returns 1.0, of type float, for an array"),
            (
                "has another dtype",
                lambda x, f=whole: array_namespace(x).astype(f(x), array_namespace(x).float32),
                "returns dtype ",
            ),
            ("is NaN", where(lambda x: x == x, constant(nan), constant(nan)), "is NaN at "),
            ("modifies", modifying_its_argument(whole), "modifies its argument."),
        )
    },
}


def test_valid_divergence_has_no_errors(doubles: Arrays) -> None:
    assert check_divergence(valid_divergence()) == []
    bad = replace(ENTROPIC, phi=on_positives(lambda x: x * array_namespace(x).log(x) - x + 1))
    assert check_divergence(bad) == ["phi is NaN at 0."]


def test_each_error_is_reported() -> None:
    for error, (changes, sentence) in INVALID.items():
        found = check_divergence(replace(valid_divergence(), **changes))
        assert any(sentence in one for one in found), (error, found)
        assert all(one.endswith(".") for one in found)


def test_function_of_another_cressie_read_order_is_reported() -> None:
    for k in (-1.0, 0.5, 1.5, 3.0):
        for name in NAMES:
            mixed = replace(cressie_read(k), **{name: getattr(cressie_read(k + 0.1), name)})
            assert any(name in one for one in check_divergence(mixed)), (k, name)


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="dconj never crosses 1; expected"):  # phi has no subgradient at 1
        Divergence("flat", PHI, CONJ, constant(0.5), constant(0.0))
    with pytest.raises(ValueError, match=r"dconj\(0\) is NaN"):
        Divergence("hole", PHI, CONJ, constant(nan), constant(0.0))
    for name in NAMES:
        changes: dict[str, Any] = {name: 3.0}
        with pytest.raises(TypeError, match=f"{name} is 3.0; expected"):
            replace(valid_divergence(), **changes)
    number: Any = 7
    with pytest.raises(TypeError, match="name is 7; expected a string"):
        replace(valid_divergence(), name=number)
    with pytest.raises(TypeError, match="divergence is 7; expected"):
        check_divergence(number)


def test_function_that_returns_float64_for_float32_is_reported() -> None:
    builtin = cressie_read(2)
    own = Divergence(
        "own", builtin.phi, builtin.conj, builtin.dconj, lambda s: np.where(s > -1, 1.0, 0.0), slope1=0.0
    )
    with backend("numpy"):
        assert check_divergence(own) == ["d2conj returns dtype float64 for float32: it must keep the dtype."]
