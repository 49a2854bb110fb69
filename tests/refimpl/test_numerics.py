"""Error-free sums and directed rounding agree with exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiball.refimpl.numerics import add_up, rounding, tolerance, two_sum
from tests.support.arrays import Arrays

DTYPES = {"float32": np.float32, "float64": np.float64}


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_two_sum_is_exact_and_add_up_rounds_up(dtype: str, data: st.DataObject) -> None:
    width = int(dtype.removeprefix("float"))
    numbers = st.floats(-1e30, 1e30, width=width) if width == 64 else st.floats(-(2.0**90), 2.0**90, width=32)
    a, b = (np.asarray([data.draw(numbers)], dtype=DTYPES[dtype]) for _ in range(2))
    exact = Fraction(float(a[0])) + Fraction(float(b[0]))
    s, e = two_sum(a, b)
    assert s[0] == (a + b)[0]
    assert Fraction(float(s[0])) + Fraction(float(e[0])) == exact
    up = add_up(a, b)
    assert up.dtype == DTYPES[dtype]
    assert Fraction(float(up[0])) >= exact
    assert Fraction(float(np.nextafter(up, -np.inf, dtype=up.dtype)[0])) < exact  # `up` is the next number


def test_tolerances_are_multiples_of_eps(arrays: Arrays) -> None:
    a, b = arrays.asarray([1.0, 1.0, -1.0, 2.0]), arrays.asarray(np.array([1, -1, 1, 0]) * arrays.eps / 8)
    up = arrays.numpy(add_up(a, b)).astype(np.float64)
    assert up.tolist() == [1 + arrays.eps, 1.0, -1 + arrays.eps / 2, 2.0]
    x = arrays.asarray([0.0])
    assert tolerance(x) == 8 * arrays.eps
    assert tolerance(x, 3.0) == 24 * arrays.eps
    losses = arrays.asarray(np.zeros((3, 16)))
    assert rounding(losses) == 96 * arrays.eps  # 8 (8 + log2 16)
    assert rounding(losses, 5.0) == 480 * arrays.eps
