"""The divergences that tests select from."""

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence, cressie_read, hockey_stick, indicator
from phiball.refimpl.inner.divergences import DIVERGENCES
from phiball.verification.instances.divergence_catalog import QUARTIC


def anonymous(d: Divergence) -> Divergence:
    """A copy of d without `family`, which is solved like a user's own divergence."""
    return Divergence(f"my {d.name}", d.phi, d.conj, d.dconj, d.d2conj)


def _elastic() -> Divergence:
    """phi(x) = abs(x - 1) + (x - 1)^2/2, which has a kink at 1."""

    def phi(x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(x < 0, xp.full_like(x, inf), xp.abs(x - 1) + (x - 1) ** 2 / 2)

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        right, left = xp.clip(s, min=1.0), xp.clip(s + 2, min=0.0, max=1.0)
        return xp.where(s > 0, right, left)

    def conj(s: Array) -> Array:
        return s * dconj(s) - phi(dconj(s))

    def d2conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where((s > 1) | ((s > -2) & (s < -1)), xp.ones_like(s), xp.zeros_like(s))

    return Divergence("elastic", phi, conj, dconj, d2conj)


def _half() -> Divergence:
    """phi(x) = abs(x - 1) for x >= 1/2, and infinite below: the counterexample of claim B1."""

    def phi(x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(x < 0.5, xp.full_like(x, inf), xp.abs(x - 1))

    def conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where(s > 1, xp.full_like(s, inf), xp.where(s > -1, s, (s - 1) / 2))

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        inner = xp.where(s > -1, xp.ones_like(s), xp.full_like(s, 0.5))
        return xp.where(s > 1, xp.full_like(s, inf), inner)

    return Divergence("half", phi, conj, dconj, lambda s: array_namespace(s).zeros_like(s))


def _rounded_absolute() -> Divergence:
    """phi(x) = (x - 1)^2 between 1/2 and 3/2, and abs(x - 1) - 1/4 elsewhere."""

    def phi(x: Array) -> Array:
        xp = array_namespace(x)
        size = xp.abs(x - 1)
        inside = xp.where(size <= 0.5, size**2, size - 0.25)
        return xp.where(x < 0, xp.full_like(x, inf), inside)

    def conj(s: Array) -> Array:
        xp = array_namespace(s)
        low = xp.clip(s, min=-1.0)
        return xp.where(s > 1, xp.full_like(s, inf), low + low**2 / 4)

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        inner = xp.where(s < -1, xp.zeros_like(s), 1 + s / 2)
        return xp.where(s > 1, xp.full_like(s, inf), inner)

    def d2conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where(xp.abs(s) < 1, xp.full_like(s, 0.5), xp.zeros_like(s))

    return Divergence("rounded absolute", phi, conj, dconj, d2conj)


ROUNDED_ABSOLUTE = _rounded_absolute()
QUARTIC_BY_FUNCTIONS, ELASTIC, HALF = anonymous(QUARTIC), _elastic(), _half()


@dataclass(frozen=True)
class Row:
    """A divergence and the properties by which tests select it."""

    divergence: Divergence
    smooth: bool = True
    """phi'' is finite and positive at 1."""
    usual: bool = False
    """Used in every test that solves an inner problem."""
    core: bool = False
    """Used in slow tests: one divergence for each solver."""
    compiled: bool = False
    """Has a kernel in the numba backend."""
    limit: bool = False
    """The order k is so close to 0 or 1 that direct formulas lose digits."""
    extreme: bool = False
    """An exact solution would need thousands of digits."""


COMPILED = ("entropic", "quadratic", "absolute", "hinge")
TABLE = [
    *(
        Row(d, 0 < d.curvature1 < inf, usual=True, core=d.family in COMPILED, compiled=d.family in COMPILED)
        for d in DIVERGENCES.values()
    ),
    Row(indicator(0.25), smooth=False, usual=True, compiled=True),  # the quantile is often an atom
    Row(indicator(0.3), smooth=False, core=True, compiled=True),
    Row(indicator(1.0), smooth=False, usual=True, compiled=True),
    Row(indicator(0.013), smooth=False),
    Row(hockey_stick(1.5), smooth=False, usual=True),
    Row(cressie_read(0.5), usual=True, core=True),
    Row(cressie_read(1.5), usual=True, core=True, compiled=True),
    Row(cressie_read(2), usual=True, compiled=True),
    *(Row(cressie_read(k), usual=True) for k in (-3, 0, 3)),
    *(Row(cressie_read(k)) for k in (-10, -1, -0.5, 0.99, 1.01, 4 / 3, 10)),
    *(Row(cressie_read(k), extreme=True) for k in (-100, 50)),
    *(Row(cressie_read(k), limit=True) for k in (1 - 1e-9, 1 + 1e-9, -1e-9, 1e-9)),
]


def select(**wanted: bool) -> list[Divergence]:
    """The divergences with the properties `wanted`, for example `select(usual=True, smooth=False)`."""
    return [row.divergence for row in TABLE if all(getattr(row, name) == on for name, on in wanted.items())]


def name_of(value: Any) -> str | None:
    """The pytest id of a divergence; None, which means the default id, for other values."""
    if not isinstance(value, Divergence):
        return None
    # `name` rounds the parameter, which is not unique near a limit.
    return value.name if value.parameter is None else f"{value.family}({value.parameter:.10g})"


def on_each(argument: str = "d", *more: Divergence, **wanted: bool) -> pytest.MarkDecorator:
    """Parametrise a test over the selected divergences and `more`."""
    return pytest.mark.parametrize(argument, [*select(**wanted), *more], ids=name_of)
