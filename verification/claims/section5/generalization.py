"""Section 5: Proposition 5 on the covering number of robust losses, its proof, and the ramp loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
    worst_case,
)
from phiball.refimpl.inner import primal_value
from phiball.refimpl.theory import ramp_loss
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each, strongly_convex
from phiball.verification.instances.conversion import array
from phiball.verification.instances.function_classes import classes, robust_class_is_no_richer
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import with_losses
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.exact_solver import solve_exactly

Value: TypeAlias = Callable[..., Array]

# --- The covering number of the robust losses -----------------------------------------------------

STRICTLY_CONVEX = (ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (0.5, 0.0, 1.5, 3.0)))


@claim(
    "Proposition 5",
    id="I1",
    verdict=Verdict.HOLDS,
    formula=r"\mathcal{N}(\mathcal{G}_{adv|S}, \epsilon, |\cdot|) \le \mathcal{N}(\mathcal{G}_{|S}, "
    r"\epsilon, \|\cdot\|_\infty)",
    assumptions="phi strictly convex; losses in [0, 1]",
    examples=60,
    family=classes(),
    eta=powers_of_ten(-3, 2),
    phi=st.sampled_from(STRICTLY_CONVEX),
)
def covering_of_robust_losses(
    family: list[list[list[float]]], eta: float, phi: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Covering the robust losses of a class takes no more centres than covering its losses on the ball."""
    yield from robust_class_is_no_richer(family, eta, phi, solve)


covering_of_robust_losses.mutant("doubles the losses")(with_losses(lambda losses: 2 * losses))


# --- The divergence in the proof ------------------------------------------------------------------


@claim(
    "Proof of Proposition 5",
    id="I2",
    verdict=Verdict.CORRECTED,
    formula=r"T(g) = \sup_P \left\{ \mathbb{E}_P[g] - \eta\, \mathbb{E}_{b \sim "
    r"P}\left[\phi\left(\frac{dP}{d\beta}(b)\right)\right] \right\}",
    assumptions="T(g) is the dual value; beta is uniform on the ball, of radius 1 in the proof",
    quote=r"$\bE_{\bP}[g] - \eta\bE_{b\sim\bP}"
    r"\left[\phi\left(\frac{\diff\bP(b)}{\diff\beta(b)}\right)\right]$",
    correction="take the expectation of phi under beta, as in Definition 1",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The divergence is an expectation of phi under the reference distribution beta, not under P.",
    ),
    corrected=r"T(g) = \sup_P \left\{ \mathbb{E}_P[g] - \eta\, \mathbb{E}_{b \sim "
    r"\beta}\left[\phi\left(\frac{dP}{d\beta}(b)\right)\right] \right\}",
    examples=25,
    problem=problems(max_size=4),
    phi=st.sampled_from([*STRICTLY_CONVEX[:3], ABSOLUTE, HINGE, indicator(0.5)]),
)
def divergence_under_beta(
    problem: InnerProblem, phi: Divergence, objective: Value = primal_value
) -> Iterator[Evidence]:
    """T(g) is the optimal value of the primal problem with the divergence as an expectation under beta."""
    instance = (problem.eta, phi.family or "", phi.parameter, problem.p)
    best = worst_case(problem.losses, problem.eta, phi, p=problem.distribution)
    reached = float(objective(problem.losses, best.weights, problem.eta, phi, p=problem.distribution))
    exact = solve_exactly(problem.f, *instance).value
    # Rounding errors of the weights are multiplied by the losses and by eta phi'.
    slack = primal_tolerance(problem, phi) + 2.0**-40 * problem.spread
    error = abs(definitions.exact_difference(reached, exact))
    yield Evidence(error, slack, "the primal objective at the weights")
    dual = definitions.dual_minimum(problem.f, *instance)
    slack = value_tolerance(problem) + 1e-18 * problem.eta
    yield Evidence(abs(definitions.exact_difference(dual, exact)), slack, "T(g) and the primal optimum")


def printed_objective(
    losses: Array, weights: Array, eta: float, phi: Divergence, p: Array | None = None
) -> Array:
    """The printed objective, with the expectation of phi under P."""
    xp = array_namespace(losses)
    distribution = xp.full_like(losses, 1 / losses.shape[-1]) if p is None else p / xp.sum(p)
    positive = weights > 0
    ratio = xp.where(
        positive,
        weights / xp.where(distribution > 0, distribution, xp.ones_like(distribution)),
        xp.ones_like(distribution),
    )
    cost = xp.where(positive, weights * phi.phi(ratio), xp.zeros_like(distribution))
    return xp.sum(weights * losses, axis=-1) - eta * xp.sum(cost, axis=-1)


ZERO_ONE = (0.0, 1.0)


def _assumptions_hold() -> Iterator[Evidence]:
    yield from strongly_convex(QUADRATIC, 1.0)  # hence strictly convex
    inside = all(0 <= v <= 1 for v in ZERO_ONE)
    yield from each(("phi as in Example 3", QUADRATIC.name == "quadratic"), ("losses in [0, 1]", inside))


@divergence_under_beta.counterexample(margin=0.08, meets=_assumptions_hold)
def _printed_divergence() -> Iterator[Evidence]:
    # f = (0, 1), quadratic phi, eta = 1: the printed objective at P = (1/2 - e, 1/2 + e) is 1/2 + e - 6 e^2.
    q = np.linspace(0, 1, 2401)
    xp = active().namespace
    weights = array(np.stack([1 - q, q], axis=-1))
    highest = float(xp.max(printed_objective(array(ZERO_ONE), weights, 1.0, QUADRATIC)))
    true = float(definitions.dual_minimum(ZERO_ONE, 1.0, "quadratic"))
    yield Evidence(
        true - highest,
        0.0,
        "g = (0, 1), beta = (1/2, 1/2), phi = (x^2 - 1)/2 on [0, inf), eta = 1: at P = (1/2 - e, 1/2 + e) "
        f"the printed objective is 1/2 + e - 6 e^2, at most {highest:.6f}, while T(g) = 5/8 = {true:.6f}",
    )
    weights, zero = array([0.9, 0.1]), array([0.0, 0.0])
    right = -float(primal_value(zero, weights, 1.0, QUADRATIC))
    printed = -float(printed_objective(zero, weights, 1.0, QUADRATIC))
    yield Evidence(
        printed - right,
        0.0,
        "the same phi, P = (0.9, 0.1), beta = (1/2, 1/2): the divergence is ((1.8^2 - 1) + (0.2^2 - 1))/4 = "
        f"{right:.4g}; as printed it is 0.9 (1.8^2 - 1)/2 + 0.1 (0.2^2 - 1)/2 = {printed:.4g}",
    )


divergence_under_beta.mutant("uses the printed expectation")(printed_objective)


# --- The ramp loss --------------------------------------------------------------------------------

Ramp: TypeAlias = Callable[..., Array]

LOGIT = st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5, width=32, allow_subnormal=False))


@st.composite
def labelled_logits(draw: st.DrawFn) -> tuple[list[float], list[float], int]:
    """Two vectors of logits for up to five classes, and a label."""
    K = draw(st.integers(2, 5))
    first, second = (draw(st.lists(LOGIT, min_size=K, max_size=K)) for _ in range(2))
    return first, second, draw(st.integers(0, K - 1))


def _evaluate(loss: Ramp, t: list[float], y: int, varrho: float) -> float:
    """The loss at the logits t and the label y, with margin varrho."""
    xp = active().namespace
    return float(loss(array(t), xp.asarray(y, dtype=xp.int64), varrho=varrho))


@claim(
    "Eq. (23), Lipschitz constant",
    id="I4",
    verdict=Verdict.HOLDS,
    formula=r"|\ell(t, y) - \ell(t', y)| \le \frac{2}{\varrho} \|t - t'\|_\infty",
    assumptions="two classes or more, margin varrho > 0",
    examples=120,
    case=labelled_logits(),
    varrho=powers_of_ten(-1, 1),
)
def ramp_is_lipschitz(
    case: tuple[list[float], list[float], int], varrho: float, loss: Ramp = ramp_loss
) -> Iterator[Evidence]:
    """The ramp loss is 2/varrho-Lipschitz in the maximum norm of the logits, and the constant is sharp."""
    t, other, y = case
    distance = max(abs(a - b) for a, b in zip(t, other, strict=True))
    change = abs(_evaluate(loss, t, y, varrho) - _evaluate(loss, other, y, varrho))
    size = max(map(abs, t + other))
    note = f"logits change by {distance:.4g}, the loss by {change:.4g}"
    yield Evidence(change - 2 / varrho * distance, 2.0**-48 * (1 + size / varrho), note)
    # The constant is attained if the two largest logits move in opposite directions inside the ramp.
    before = [varrho / 2 if k == y else 0.0 for k in range(len(t))]
    after = [v + (varrho / 8 if k == y else -varrho / 8) for k, v in enumerate(before)]
    change = _evaluate(loss, before, y, varrho) - _evaluate(loss, after, y, varrho)
    yield Evidence(abs(change - 0.25), 2.0**-48, "2/varrho is attained")


@ramp_is_lipschitz.mutant("is a step function")
def _(t: Array, y: Array, *, varrho: float) -> Array:
    return array_namespace(t).round(ramp_loss(t, y, varrho=varrho))


def cross_entropy(t: list[float], y: int) -> float:
    """-log softmax(t)[y]."""
    return log(sum(exp(v - t[y]) for v in t))


@claim(
    "Section 5, the loss",
    id="I4-range",
    verdict=Verdict.CORRECTED,
    formula=r"\ell : \mathbb{R}^K \times \{1,\ldots,K\} \to [0,1]",
    assumptions="the loss that the paper names as an example",
    quote=r"$\ell:~\mathbb{R}^K\times\{1,\ldots,K\}\to[0,1]$ denotes a $K$-class classification loss "
    r"function such as the cross-entropy loss",
    correction="name the ramp loss of Example 6 in place of the cross-entropy, which would have to be "
    "truncated",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.NONE,
        "The cross-entropy is unbounded, whereas the section requires values in [0, 1].",
    ),
    corrected=r"\ell_{ramp}(t, y) \in [0,1], \qquad \sup_t \ell_{cross-entropy}(t, y) = \infty",
    examples=120,
    case=labelled_logits(),
    varrho=powers_of_ten(-1, 1),
)
def ramp_is_bounded(
    case: tuple[list[float], list[float], int], varrho: float, loss: Ramp = ramp_loss
) -> Iterator[Evidence]:
    """The ramp loss is in [0, 1]: 1 for negative margins, 0 for margins above varrho, linear between."""
    t, _, y = case
    value = _evaluate(loss, t, y, varrho)
    yield Evidence(max(-value, value - 1), 0.0, f"the loss is {value:.4g}")
    margin = t[y] - max(v for k, v in enumerate(t) if k != y)
    exact = 1.0 if margin <= 0 else 0.0 if margin >= varrho else 1 - margin / varrho
    yield Evidence(abs(value - exact), 2.0**-48 * (1 + max(map(abs, t)) / varrho), "Eq. (23)")


LOGITS = [0.0, 5.0]


@ramp_is_bounded.counterexample(
    margin=4.0,
    meets=lambda: each(
        ("real logits, two classes or more", len(LOGITS) >= 2 and max(map(abs, LOGITS)) < 1e308)
    ),
)
def _unbounded() -> Evidence:
    value = cross_entropy(LOGITS, 0)
    note = f"logits (0, 5) and the first class: the cross-entropy is log(1 + e^5) = {value:.4f} > 1"
    return Evidence(value - 1, 0.0, note)


@ramp_is_bounded.mutant("counts the label among the other classes")
def _(t: Array, y: Array, *, varrho: float) -> Array:
    xp = array_namespace(t)
    best = xp.max(t, axis=-1)
    return xp.clip(1 - (xp.take(t, xp.reshape(y, (1,)), axis=-1)[0] - best) / varrho, 0.0, 1.0)
