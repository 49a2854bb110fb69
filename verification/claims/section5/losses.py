"""Section 5 of the paper: the ramp loss, and the losses in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import ramp_loss
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.strategies import powers_of_ten

Ramp: TypeAlias = Callable[..., Array]

LOGITS = st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5, width=32, allow_subnormal=False))


@st.composite
def logits(draw: st.DrawFn) -> tuple[list[float], list[float], int]:
    """Two vectors of logits of up to five classes, and a label."""
    K = draw(st.integers(2, 5))
    first, second = (draw(st.lists(LOGITS, min_size=K, max_size=K)) for _ in range(2))
    return first, second, draw(st.integers(0, K - 1))


def _loss(loss: Ramp, t: list[float], y: int, varrho: float) -> float:
    xp = active().namespace
    return float(loss(array(t), xp.asarray(y, dtype=xp.int64), varrho=varrho))


@claim(
    "Eq. (23), Lipschitz constant",
    id="I4",
    verdict=Verdict.HOLDS,
    formula=r"|\ell(t, y) - \ell(t', y)| \le \frac{2}{\varrho} \|t - t'\|_\infty",
    assumptions="two classes or more, margin varrho > 0",
    examples=120,
    pair=logits(),
    varrho=powers_of_ten(-1, 1),
)
def ramp_is_lipschitz(
    pair: tuple[list[float], list[float], int], varrho: float, loss: Ramp = ramp_loss
) -> Iterator[Evidence]:
    """The ramp loss is 2/varrho-Lipschitz in the largest change of a logit, and no less."""
    t, other, y = pair
    apart = max(abs(a - b) for a, b in zip(t, other, strict=True))
    change = abs(_loss(loss, t, y, varrho) - _loss(loss, other, y, varrho))
    size = max(map(abs, t + other))
    yield Evidence(
        change - 2 / varrho * apart, 2.0**-48 * (1 + size / varrho), f"{change:.4g} of {apart:.4g}"
    )
    # Own and best other logit move against each other, inside the ramp: the constant is attained.
    still = [varrho / 2 if k == y else 0.0 for k in range(len(t))]
    moved = [v + (varrho / 8 if k == y else -varrho / 8) for k, v in enumerate(still)]
    change = _loss(loss, still, y, varrho) - _loss(loss, moved, y, varrho)
    yield Evidence(abs(change - 0.25), 2.0**-48, "2/varrho is attained")


@ramp_is_lipschitz.mutant("is a step")
def _(t: Array, y: Array, *, varrho: float) -> Array:
    return array_namespace(t).round(ramp_loss(t, y, varrho=varrho))


def cross_entropy(t: list[float], y: int) -> float:
    """-log of the softmax of t at y."""
    return log(sum(exp(v - t[y]) for v in t))


@claim(
    "Section 5, the loss",
    id="I4-range",
    verdict=Verdict.CORRECTED,
    formula=r"\ell : \mathbb{R}^K \times \{1,\ldots,K\} \to [0,1]",
    assumptions="a classification loss, such as the one named",
    quote=r"$\ell:~\mathbb{R}^K\times\{1,\ldots,K\}\to[0,1]$ denotes a $K$-class classification loss "
    r"function "
    r"such as the cross-entropy loss",
    correction="such as the ramp loss, which the examples take; the cross-entropy has to be cut off",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.NONE,
        "The cross-entropy has no upper bound, and the section asks for one.",
    ),
    corrected=r"\ell_{ramp}(t, y) \in [0,1], \qquad \sup_t \ell_{cross-entropy}(t, y) = \infty",
    examples=120,
    pair=logits(),
    varrho=powers_of_ten(-1, 1),
)
def ramp_is_bounded(
    pair: tuple[list[float], list[float], int], varrho: float, loss: Ramp = ramp_loss
) -> Iterator[Evidence]:
    """The loss has its values in [0, 1]: 1 where the margin is negative, 0 from varrho on, linear between."""
    t, _, y = pair
    value = _loss(loss, t, y, varrho)
    yield Evidence(max(-value, value - 1), 0.0, f"the loss is {value:.4g}")
    margin = t[y] - max(v for k, v in enumerate(t) if k != y)
    exact = 1.0 if margin <= 0 else 0.0 if margin >= varrho else 1 - margin / varrho
    yield Evidence(abs(value - exact), 2.0**-48 * (1 + max(map(abs, t)) / varrho), "Eq. (23)")


FIVE_APART = [0.0, 5.0]


def _within_unbounded() -> Iterator[Evidence]:
    yield from each(
        ("real logits, two classes or more", len(FIVE_APART) >= 2 and max(map(abs, FIVE_APART)) < 1e308)
    )


@ramp_is_bounded.counterexample(margin=4.0, meets=_within_unbounded)
def _unbounded() -> Evidence:
    value = cross_entropy(FIVE_APART, 0)
    return Evidence(
        value - 1, 0.0, f"logits (0, 5), the first class: the cross-entropy is log(1 + e^5) = {value:.4f} > 1"
    )


@ramp_is_bounded.mutant("counts the own class among the others")
def _(t: Array, y: Array, *, varrho: float) -> Array:
    xp = array_namespace(t)
    best = xp.max(t, axis=-1)
    return xp.clip(1 - (xp.take(t, xp.reshape(y, (1,)), axis=-1)[0] - best) / varrho, 0.0, 1.0)
