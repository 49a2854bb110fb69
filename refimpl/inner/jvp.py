"""Forward-mode derivatives of the worst case, for every array library."""

from __future__ import annotations

from dataclasses import dataclass

from phiball.backends import Array, array_namespace, is_array_api_obj
from phiball.refimpl.inner.derivatives import Solved
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import broadcasts, check_array, check_same_array_type, valid_number


@dataclass(frozen=True)
class WorstCaseTangent:
    """The derivatives of `value` (...), `mu` (...) and `weights` (..., m) along a direction."""

    value: Array
    mu: Array
    weights: Array
    __repr__ = one_line


def worst_case_jvp(
    losses: Array,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    dlosses: Array | None = None,
    *,
    deta: float | Array | None = None,
    dp: Array | None = None,
    p: Array | None = None,
) -> WorstCaseTangent:
    r"""The derivative of `worst_case` along a direction, for every array library.

    Arguments:
    - `losses`, `eta`, `divergence`, `p`: as in `worst_case`.
    - `dlosses`: the direction in the losses, an array that broadcasts to losses.shape.
    - `deta`: the direction in eta, a number or an array that broadcasts to losses.shape[:-1].
    - `dp`: the direction in p, an array that broadcasts to losses.shape; p must then be given. The rows of dp
      need not sum to zero, because p is normalized.

    A direction of None means zero. Returns a `WorstCaseTangent`, computed by implicit differentiation.
    docs/guides/inner.md describes points where the solution is nondifferentiable.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> f, direction = np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.0, 1.0])
    >>> tangent = worst_case_jvp(f, 0.5, QUADRATIC, direction)
    >>> print(round(float(tangent.value), 4), np.round(tangent.weights, 4))
    0.6667 [ 0.     -0.3333  0.3333]
    """
    divergence = as_divergence(divergence)
    solution = worst_case(losses, eta, divergence, p=p)
    xp = array_namespace(losses)
    distribution = (
        None if p is None else xp.broadcast_to(xp.astype(p, losses.dtype, copy=False), losses.shape)
    )
    if dp is not None and distribution is None:
        raise ValueError("dp is given without p; pass p as well")
    if deta is not None and not is_array_api_obj(deta):
        deta = xp.full_like(solution.mu, valid_number("deta", deta))
    solved = Solved(divergence, losses, solution.eta, distribution, solution.mu, solution.weights)
    directions = (
        _direction("dlosses", dlosses, losses, losses.shape),
        _direction("deta", deta, losses, losses.shape[:-1]),
        _direction("dp", dp, losses, losses.shape),
    )
    return WorstCaseTangent(*solved.jvp(*directions))


def _direction(name: str, x: Array | None, losses: Array, shape: tuple[int, ...]) -> Array | None:
    """A direction, checked and broadcast to `shape`."""
    if x is None:
        return None
    check_array(name, x)
    check_same_array_type(name, x, losses)
    if not broadcasts(x.shape, shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected one that broadcasts to {tuple(shape)}")
    xp = array_namespace(losses)
    return xp.broadcast_to(xp.astype(x, losses.dtype, copy=False), shape)
