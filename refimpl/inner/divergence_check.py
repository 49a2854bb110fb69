"""`check_divergence`, which lists the errors in a user's divergence."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, isnan
from typing import Any

from phiball.backends import active, ignore_float_warnings, is_array_api_obj, library, to_numpy
from phiball.refimpl.inner.constants import derive_constants
from phiball.refimpl.inner.divergences import Divergence, as_divergence

_TOL = 1e-6  # relative to 1 plus the size of the values compared


def check_divergence(divergence: str | Divergence) -> list[str]:
    """List the errors in a divergence, one sentence each; the list is empty for a valid divergence.

    Arguments:
    - `divergence`: a `Divergence`, for example your own.

    The functions are evaluated on a grid, with arrays of the active backend. The checks are: phi is convex,
    phi(1) = 0, and phi is infinite below 0; conj is the conjugate of phi (Fenchel's inequality, with equality
    at x = dconj(s)); d2conj is the derivative of dconj; the constants agree with the functions.

    >>> from dataclasses import replace
    >>> from phiball.refimpl import ENTROPIC
    >>> check_divergence(ENTROPIC)
    []
    >>> check_divergence(replace(ENTROPIC, recession=3.0))
    ['recession is 3, but the functions give inf.']
    """
    d = as_divergence(divergence)
    xs = sorted({0.0, *(10 ** (e / 8) for e in range(-24, 25)), *(1 + i / 50 for i in range(-20, 21))})
    lowest, highest = max(d.slope0, -8.0) - 2.0, min(d.recession, 8.0)
    ss = [lowest + (highest - lowest) * (i + 0.37) / 160 for i in range(160)]
    for name, points in (("phi", xs), ("conj", ss), ("dconj", ss), ("d2conj", ss)):
        for dtype in ("float64", "float32"):
            error = _output_error(name, getattr(d, name), points, dtype)
            if error:
                return [error]  # the other checks would fail for the same reason
    errors = (
        *_errors_of_phi(d, xs),
        _error_of_inequality(d, xs, ss),
        _error_of_equality(d, ss),
        _error_of_d2conj(d, ss),
        *_errors_of_constants(d),
    )
    return [error for error in errors if error]


def _evaluate(function: Callable[[Any], Any], points: list[float]) -> list[float]:
    """The values of a function of arrays at `points`, in float64."""
    xp = active().namespace
    with ignore_float_warnings():
        values: list[float] = to_numpy(function(xp.asarray(points, dtype=xp.float64))).tolist()
    return values


def _output_error(name: str, function: Callable[[Any], Any], points: list[float], dtype: str) -> str | None:
    """The error in the type, shape or dtype that `function` returns for an array, if any."""
    xp = active().namespace
    at = xp.asarray(points, dtype=getattr(xp, dtype))
    before = to_numpy(at).tolist()
    try:
        with ignore_float_warnings():
            out = function(at)
    except Exception as error:  # the user's function may raise anything
        return f"{name} raises {type(error).__name__} on an array: {error}."
    if not is_array_api_obj(out):
        return f"{name} returns {out!r}, of type {type(out).__name__}, for an array: it must return an array."
    if library(out) != library(at):
        return (
            f"{name} returns a {library(out)} array for a {library(at)} array: it must return the same type."
        )
    if out.shape != at.shape:
        return f"{name} returns shape {tuple(out.shape)} for shape {tuple(at.shape)}: it must be elementwise."
    if out.dtype != at.dtype:
        return f"{name} returns dtype {out.dtype} for {at.dtype}: it must keep the dtype."
    if to_numpy(at).tolist() != before:
        return f"{name} modifies its argument."
    bad = [v for v, o in zip(points, to_numpy(out).tolist(), strict=True) if isnan(o)]
    return f"{name} is NaN at {bad[0]:g}." if bad else None


def _errors_of_phi(d: Divergence, xs: list[float]) -> list[str]:
    errors = []
    at_one, below = _evaluate(d.phi, [1.0, -0.5])
    if abs(at_one) > _TOL:
        errors.append(f"phi(1) is {at_one:g}; it must be 0.")
    if below < inf:
        errors.append(f"phi(-0.5) is {below:g}; phi must be infinite below 0.")
    points = list(zip(xs, _evaluate(d.phi, xs), strict=True))
    for (a, fa), (b, fb), (c, fc) in zip(points, points[1:], points[2:], strict=False):
        chord = fa + (fc - fa) * (b - a) / (c - a) if isfinite(fa) and isfinite(fc) else inf
        if fb > chord + _TOL * (1 + abs(chord)):
            errors.append(f"phi is not convex: phi({b:g}) = {fb:g} lies above its chord from {a:g} to {c:g}.")
            break
    return errors


def _error_of_inequality(d: Divergence, xs: list[float], ss: list[float]) -> str | None:
    """The error if conj(s) < s x - phi(x) for some x."""
    phis = _evaluate(d.phi, xs)
    for s, conj in zip(ss, _evaluate(d.conj, ss), strict=True):
        best, at = max((s * x - phi, x) for x, phi in zip(xs, phis, strict=True))
        if conj < best - _TOL * (1 + abs(best)):
            return (
                f"conj is not the conjugate of phi: conj({s:g}) is {conj:g}, "
                f"but s x - phi(x) is {best:g} at x = {at:g}."
            )
    return None


def _error_of_equality(d: Divergence, ss: list[float]) -> str | None:
    """The error if dconj is negative or decreases, or conj(s) != s x - phi(x) at x = dconj(s)."""
    before = -inf
    ratios = _evaluate(d.dconj, ss)
    finite = [x if isfinite(x) else 1.0 for x in ratios]
    for s, conj, x, phi in zip(ss, _evaluate(d.conj, ss), ratios, _evaluate(d.phi, finite), strict=True):
        if x < 0:
            return f"dconj({s:g}) is {x:g}; a density must be nonnegative: truncate it at 0."
        if x < before - _TOL * (1 + abs(before)):
            return f"dconj decreases from {before:g} to {x:g} at {s:g}; it must be nondecreasing."
        before = x
        if (
            isfinite(x)
            and isfinite(conj)
            and not abs(s * x - phi - conj) <= _TOL * (1 + abs(conj) + abs(s * x))
        ):
            return (
                f"dconj is not the derivative of the conjugate of phi: at s = {s:g} and "
                f"x = dconj(s) = {x:g}, s x - phi(x) is {s * x - phi:g}, but conj(s) is {conj:g}."
            )
    return None


def _error_of_d2conj(d: Divergence, ss: list[float]) -> str | None:
    """The error if d2conj is not the slope of dconj, at points where dconj is differentiable."""
    h = 1e-5
    middle = _evaluate(d.dconj, ss)
    left = _evaluate(d.dconj, [s - h for s in ss])
    right = _evaluate(d.dconj, [s + h for s in ss])
    for s, x, a, b, second in zip(ss, middle, left, right, _evaluate(d.d2conj, ss), strict=True):
        before, after = (x - a) / h, (b - x) / h
        size = 1e-2 * (1e-2 + abs(before) + abs(after))
        if abs(before - after) <= size and not abs(second - (before + after) / 2) <= size:
            return f"d2conj({s:g}) is {second:g}, but dconj has slope {(before + after) / 2:g} there."
    return None


def _errors_of_constants(d: Divergence) -> list[str]:
    try:
        derived = derive_constants(d.conj, d.dconj, d.d2conj)
    except ValueError as error:
        return [f"{error}."]
    errors = []
    for name, value in zip(("slope0", "slope1", "recession", "curvature1"), derived, strict=True):
        constant = getattr(d, name)
        near = (
            abs(constant - value) <= 1e-6 * (1 + abs(value))
            if isfinite(value)
            else _is_plausible(d, name, constant)
        )
        # Both 0 and inf are valid if phi has a kink at 1 and is linear on one side.
        either_valid = name == "curvature1" and {constant, value} == {0.0, inf}
        if constant != value and not near and not either_valid:
            errors.append(f"{name} is {constant:g}, but the functions give {value:g}.")
    return errors


def _is_plausible(d: Divergence, name: str, constant: float) -> bool:
    """Whether a finite constant is right although the derived one is infinite, because of overflow."""
    beyond = 1e-6 * (1 + abs(constant))
    if name == "recession" and isfinite(constant):
        return _evaluate(d.conj, [constant + beyond])[0] == inf
    if name == "slope0" and isfinite(constant):
        return _evaluate(d.dconj, [constant - beyond])[0] == 0
    return False
