"""Derivation of the constants of a divergence from its conjugate, by bisection."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, isnan

from phiball.backends import Array, active, ignore_float_warnings

# Values beyond these come from overflow or underflow, not from the end of the conjugate's domain.
_HUGE, _TINY = 1e290, 1e-290
_INFINITE = 1e50  # a larger s counts as infinite; powers of s up to here do not overflow


def _scalar(name: str, function: Callable[[Array], Array]) -> Callable[[float], float]:
    """`function` as a function of one number, evaluated on an array of the active backend."""
    xp = active().namespace

    def evaluate(s: float) -> float:
        with ignore_float_warnings():
            out = function(xp.asarray([s], dtype=xp.float64))
        if getattr(out, "shape", None) != (1,):
            raise TypeError(
                f"{name} returned {out!r} for an array of one number; expected an array of that shape"
            )
        return float(out[0])

    return evaluate


def _last_true(holds: Callable[[float], bool], start: float, direction: float) -> float:
    """The last s at which `holds` is true, going from `start` in `direction` (1 or -1); may be infinite."""
    step = 1e-3
    while holds(start + direction * step):
        step *= 2
        if step > _INFINITE:
            return direction * inf
    good, bad = start, start + direction * step
    while True:
        middle = good + (bad - good) / 2
        if middle in (good, bad):
            return good
        good, bad = (middle, bad) if holds(middle) else (good, middle)


def derive_constants(
    conj: Callable[[Array], Array],
    dconj: Callable[[Array], Array],
    d2conj: Callable[[Array], Array],
) -> tuple[float, float, float, float]:
    """The constants (slope0, slope1, recession, curvature1) of the phi whose conjugate is given.

    slope0 is the s where the density phi*' becomes positive, slope1 where the density crosses one, and
    recession where phi* becomes infinite. curvature1 is 1/phi*''(slope1).
    """
    value, density, slope = _scalar("conj", conj), _scalar("dconj", dconj), _scalar("d2conj", d2conj)

    # slope1 is the subgradient of phi at 1 that is nearest to 0.
    at_zero = density(0.0)
    if isnan(at_zero):
        raise ValueError("dconj(0) is NaN; expected the derivative of the conjugate at 0")
    slope1 = 0.0
    if at_zero < 1:
        slope1 = _last_true(lambda s: density(s) < 1, 0.0, 1.0)
    elif at_zero > 1:
        slope1 = _last_true(lambda s: density(s) > 1, 0.0, -1.0)
    if not isfinite(slope1):
        raise ValueError("dconj never crosses 1; expected a phi that is finite around 1")

    slope0 = _last_true(lambda s: density(s) > 0, slope1, -1.0)
    if density(slope0 + 1e-12 * (abs(slope0) + 1)) < _TINY:
        slope0 = -inf
    recession = _last_true(lambda s: value(s) < inf, slope1, 1.0)
    if isfinite(recession) and value(recession) > _HUGE:
        recession = inf
    curvature_of_conj = slope(slope1)
    if curvature_of_conj == 0:  # phi* is linear at slope1 (phi has a kink at 1) or has a kink (phi is linear)
        near = 1e-9 * (1 + abs(slope1))
        curvature1 = 0.0 if density(slope1 - near) < density(slope1 + near) else inf
    else:
        curvature1 = 1 / curvature_of_conj
    return _tidy(slope0), _tidy(slope1), _tidy(recession), curvature1


def _tidy(s: float) -> float:
    """Round `s` to 12 digits if this changes it by no more than the error of bisection."""
    short = float(f"{s:.12g}")
    return short if isfinite(s) and abs(s - short) <= 1e-14 * abs(s) + _TINY else s
