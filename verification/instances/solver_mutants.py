"""Mutants of solvers of the inner problem, which several claims must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phiball.backends import Array, array_namespace
from phiball.refimpl import QUADRATIC, Divergence, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.refimpl.sampling import signed_weights
from phiball.verification.instances.solutions import Solver


def with_losses(change: Callable[[Array], Array]) -> Solver:
    """`worst_case` for `change(losses)`."""
    return lambda losses, eta, d, *, p=None: worst_case(change(losses), eta, d, p=p)


def with_eta(change: Callable[[float], float]) -> Solver:
    """`worst_case` for `change(eta)`."""
    return lambda losses, eta, d, *, p=None: worst_case(losses, change(eta), d, p=p)


def with_divergence(change: Callable[[Divergence], Divergence]) -> Solver:
    """`worst_case` for `change(divergence)`."""
    return lambda losses, eta, d, *, p=None: worst_case(losses, eta, change(d), p=p)


def with_answer(**fields: Callable[[WorstCase, Array], Array]) -> Solver:
    """`worst_case` with some fields replaced by functions of the answer and the losses."""

    def solve(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
        answer = worst_case(losses, eta, d, p=p)
        return replace(answer, **{name: change(answer, losses) for name, change in fields.items()})

    return solve


LARGEST_LOSS = with_answer(value=lambda _, losses: array_namespace(losses).max(losses, axis=-1))
MEAN_LOSS = with_answer(value=lambda _, losses: array_namespace(losses).mean(losses, axis=-1))
MULTIPLIER_FOR_VALUE = with_answer(value=lambda answer, _: answer.mu)


def p_or_uniform(losses: Array, p: Array | None) -> Array:
    """p, or the uniform distribution."""
    return array_namespace(losses).full_like(losses, 1 / losses.shape[-1]) if p is None else p


def without_p(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    """Ignore p."""
    return worst_case(losses, eta, d)


def without_atom(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    """Truncate the density gamma/p at one, which drops the atom of kinked divergences at the maximum."""
    answer, q = worst_case(losses, eta, d, p=p), p_or_uniform(losses, p)
    return replace(answer, weights=array_namespace(losses).where(answer.weights > q, q, answer.weights))


def even_on_the_support(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    """Distribute the mass in proportion to p over the support of the weights."""
    xp = array_namespace(losses)
    answer, q = worst_case(losses, eta, d, p=p), p_or_uniform(losses, p)
    support = xp.where(answer.weights > 0, q, xp.zeros_like(q))
    return replace(answer, weights=support / xp.sum(support))


def best_case(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    """Minimise instead of maximising."""
    answer = worst_case(-losses, eta, d, p=p)
    return replace(answer, value=-answer.value, mu=-answer.mu)


def quadratic_without_half(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    """Use x^2 - 1 as the quadratic divergence, in place of (x^2 - 1)/2."""
    return worst_case(losses, 2 * eta if d is QUADRATIC else eta, d, p=p)


# --- Mutants of `signed_weights` ------------------------------------------------------------------


def without_halves(
    losses: Array, eta: float, d: Divergence, *, telescoping: bool = True
) -> tuple[Array, Array]:
    """Subtract nothing, instead of the weights of the two halves of a level divided by two."""
    return signed_weights(losses, eta, d, telescoping=False)


def halves_by_one(
    losses: Array, eta: float, d: Divergence, *, telescoping: bool = True
) -> tuple[Array, Array]:
    """Subtract the weights of the two halves of a level, instead of these weights divided by two."""
    value, weights = signed_weights(losses, eta, d, telescoping=True)
    return value, 2 * weights - signed_weights(losses, eta, d, telescoping=False)[1]
