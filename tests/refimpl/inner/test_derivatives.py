"""`worst_case_jvp` agrees with finite differences of `worst_case`."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from phiball.refimpl.inner import worst_case_jvp
from tests.support.divergences import HALF, QUARTIC_BY_FUNCTIONS, anonymous, name_of

F = np.array([[0.11, -0.42, 0.9, 0.37, 0.63], [2.1, 0.3, -0.8, 1.7, 0.25]])
ETA = np.array([0.45, 1.9])
P = np.array([[0.1, 0.2, 0.3, 0.25, 0.15], [0.3, 0.1, 0.15, 0.05, 0.4]])
DF = np.array([[0.3, -1.0, 0.2, 0.7, -0.4], [-0.6, 0.1, 0.5, 0.9, 1.0]])
DETA = np.array([0.7, -0.4])
DP = np.array([[0.05, -0.02, 0.03, 0.01, 0.04], [-0.03, 0.06, 0.01, 0.02, -0.01]])
FIELDS = ("value", "mu", "weights")

SMOOTH = [
    ENTROPIC,
    QUADRATIC,
    *(cressie_read(k) for k in (-3, 0, 0.5, 1.5, 2, 3)),
    QUARTIC_BY_FUNCTIONS,
    anonymous(cressie_read(0.5)),
]
# Away from ties, the weights of these depend on p alone.
KINKED = [indicator(0.37), ABSOLUTE, HINGE, anonymous(indicator(0.37)), anonymous(ABSOLUTE), HALF]


def finite_differences(d: Divergence, p: Any, df: Any, deta: Any, dp: Any, h: float = 1e-6) -> dict[str, Any]:
    """Central differences of value, mu and weights."""

    def at(t: float) -> Any:
        distribution = None
        if p is not None:
            distribution = p + t * dp
            distribution = distribution / distribution.sum(axis=-1, keepdims=True)
        return worst_case(F + t * df, ETA + t * deta, d, p=distribution)

    up, down = at(h), at(-h)
    return {name: (getattr(up, name) - getattr(down, name)) / (2 * h) for name in FIELDS}


DIRECTIONS = {
    "losses": (DF, 0 * DETA, 0 * DP),
    "eta": (0 * DF, DETA, 0 * DP),
    "p": (0 * DF, 0 * DETA, DP),
    "all": (DF, DETA, DP),
}


@pytest.mark.parametrize("d", SMOOTH + KINKED, ids=name_of)
def test_jvp_agrees_with_finite_differences(d: Divergence) -> None:
    for direction, (df, deta, dp) in DIRECTIONS.items():
        for p in (None, P) if direction != "p" else (P,):
            tangent = worst_case_jvp(F, ETA, d, df, deta=deta, dp=None if p is None else dp, p=p)
            expected = finite_differences(d, p, df, deta, dp)
            for name in FIELDS:
                found = getattr(tangent, name)
                np.testing.assert_allclose(found, expected[name], rtol=1e-6, atol=2e-8, err_msg=direction)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_derivatives_are_finite_for_extreme_eta(dtype: Any) -> None:
    f, df, p, dp = (x.astype(dtype) for x in (F, DF, P, DP))
    for d, eta in product(SMOOTH + KINKED, (1e-30, 1e-8, 1e-3, 1e3, 1e8, 1e30)):
        tangent = worst_case_jvp(f, eta, d, df, dp=dp, p=p)
        for name in FIELDS:
            assert np.all(np.isfinite(getattr(tangent, name))), (d.name, name, eta)
        limit = np.sum((p if eta > 1 else np.eye(5, dtype=dtype)[f.argmax(-1)]) * df, axis=-1)
        if d in (ENTROPIC, QUADRATIC) and not 1e-8 < eta < 1e8:
            np.testing.assert_allclose(worst_case_jvp(f, eta, d, df, p=p).value, limit, rtol=1e-5)


def test_derivative_in_eta_is_accurate_for_large_eta() -> None:
    """To leading order, the derivative of the value in eta is -Var f / (2 eta^2)."""
    for d in (ENTROPIC, QUADRATIC, cressie_read(3)):
        tangent = worst_case_jvp(F, 1e5, d, deta=1.0)
        np.testing.assert_allclose(tangent.value, -F.var(axis=-1) / 2e10, rtol=1e-4)
        np.testing.assert_allclose(
            tangent.weights, -(F - F.mean(-1, keepdims=True)) / 5e10, rtol=1e-4, atol=1e-16
        )


def test_derivative_of_mu_is_shared_by_tied_losses_in_proportion_to_p() -> None:
    f, p = np.array([1.0, 3.0, 2.0, 3.0]), np.array([0.4, 0.1, 0.2, 0.3])
    dmu = [float(worst_case_jvp(f, 0.1, HINGE, e, p=p).mu) for e in np.eye(4)]
    np.testing.assert_allclose(dmu, [0, 0.25, 0, 0.75])
    f = np.array([1.0, 3.0, 1.0, 1.0])
    dmu = [float(worst_case_jvp(f, 0.1, indicator(0.5), e, p=p).mu) for e in np.eye(4)]
    np.testing.assert_allclose(dmu, [4 / 9, 0, 2 / 9, 3 / 9])


def test_derivative_in_p_is_one_sided_where_p_is_zero() -> None:
    p, dp = np.array([0.0, 0.3, 0.3, 0.4]), np.array([1.0, 0.0, 0.0, 0.0])
    f, h = np.array([0.9, 0.2, 0.7, 0.4]), 1e-7
    for d in (ENTROPIC, QUADRATIC, cressie_read(1.5)):
        tangent = worst_case_jvp(f, 0.5, d, dp=dp, p=p)
        near, start = worst_case(f, 0.5, d, p=(p + h * dp) / (1 + h)), worst_case(f, 0.5, d, p=p)
        for name in FIELDS:
            slope = (getattr(near, name) - getattr(start, name)) / h
            np.testing.assert_allclose(getattr(tangent, name), slope, rtol=1e-5, atol=1e-6, err_msg=d.name)
    assert np.isfinite(worst_case_jvp(f + 5 * dp, 0.5, cressie_read(-1), dp=dp[::-1] * 0.1, p=p).value)


def test_invalid_directions_are_rejected() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict: not installed")
    wrong: Any
    for wrong, error, message in (
        ({"dp": DP}, ValueError, "dp is given without p"),
        ({"dlosses": np.ones(3)}, ValueError, r"dlosses has shape \(3,\)"),
        ({"dlosses": strict.asarray(np.ones(5))}, TypeError, "dlosses"),
        ({"deta": "much"}, TypeError, "deta is 'much'"),
    ):
        with pytest.raises(error, match=message):
            worst_case_jvp(F, 1.0, ENTROPIC, **wrong)
