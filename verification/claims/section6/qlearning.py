"""Section 6.2 of the paper: the robust update of Q-learning, its operator, and its objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, to_numpy
from phiball.refimpl import Divergence
from phiball.refimpl.qlearning import (
    MDP,
    FixedPoint,
    StatePerturbation,
    Transition,
    bellman,
    q_update,
    value_iteration,
)
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.conversion import array
from phiball.verification.instances.decision_processes import Tables, random_tables, to_neighbourhood
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles import definitions
from phiball.verification.oracles.policy_evaluation import policy_value, relative_entropy

Update: TypeAlias = Callable[..., Array]
Operator: TypeAlias = Callable[..., Array]
Fixed: TypeAlias = Callable[..., FixedPoint]


# --- The update -----------------------------------------------------------------------------------


@claim(
    "Section 6.2, update",
    id="J1",
    verdict=Verdict.HOLDS,
    formula=r"-\min_a \eta \log \mathbb{E}_{\beta} e^{-Q(\cdot, a)/\eta} = "
    r"\max_a \min_{\gamma} \left\{ \mathbb{E}_{\gamma} Q(\cdot, a) + \eta D_{KL}(\gamma, \beta) \right\}",
    examples=25,
    rows=st.lists(
        st.lists(st.floats(-4, 4, width=32, allow_subnormal=False), min_size=3, max_size=3),
        min_size=1,
        max_size=2,
    ),
    counts=st.lists(st.sampled_from([1, 0, 2, 1000]), min_size=3, max_size=3).filter(any),
    eta=powers_of_ten(-2.0, 2.0),
    alpha=st.sampled_from([1.0, 0.5, 0.1]),
    discount=st.sampled_from([0.5, 0.9, 0.0]),
)
def update_is_robust(
    rows: list[list[float]],
    counts: list[int],
    eta: float,
    alpha: float,
    discount: float,
    update: Update = q_update,
) -> Iterator[Evidence]:
    """The last term of the update is the best action's value under the worst penalized perturbation."""
    p = tuple(c / sum(counts) for c in counts)
    reward = 1.5
    # The minimum over gamma is minus the maximum for -Q, which the oracle computes from its definition.
    worst = [-float(definitions.dual_minimum([-v for v in row], eta, "entropic", None, p)) for row in rows]
    Q = np.array(rows).T
    target = (1 - alpha) * Q[0, 0] + alpha * reward + discount * alpha * max(worst)

    def updated(near: list[int], weight: Any) -> float:
        new = update(
            array(Q),
            Transition(0, 0, reward, 0),
            StatePerturbation(to_neighbourhood([near], [weight]), eta),
            step_size=alpha,
            discount=discount,
        )
        return float(new[0, 0])

    size = 1 + abs(Q).max()
    yield Evidence(abs(updated([0, 1, 2], p) - target), ROUNDING * size, "the update of Q(s, a)")
    plain = (1 - alpha) * Q[0, 0] + alpha * reward + discount * alpha * Q[1].max()
    yield Evidence(abs(updated([1], [1.0]) - plain), ROUNDING * size, "radius 0 gives Eq. (24)")


@update_is_robust.mutant("omits 1/eta in the exponent")
def _(Q: Array, step: Transition, perturbation: StatePerturbation, **options: Any) -> Array:
    return q_update(Q, step, replace(perturbation, eta=1.0), **options)


@claim(
    "Section 6.2, update",
    id="J2-mean",
    part_of="J1",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}_{s' \sim P(\cdot | s, a)}[Q_{new}(s, a)] = (1 - \alpha) Q(s, a) + \alpha (TQ)(s, a)",
)
def update_is_a_mean_step(update: Update = q_update, operator: Operator = bellman) -> Iterator[Evidence]:
    """On average over the next state, the update is a step from Q towards the robust Bellman operator."""
    for seed in range(3):
        model = random_tables(seed, 4, 2, 0.9)
        Q = array(np.random.default_rng(seed + 100).normal(size=(4, 2)))
        perturbation = model.perturbation(0.5)
        image, now = to_numpy(operator(Q, model.process, perturbation)), to_numpy(Q)
        for s, a in product(range(4), range(2)):
            steps = [Transition(s, a, float(model.r[s, a]), k) for k in range(4)]
            after = [
                float(update(Q, step, perturbation, step_size=0.25, discount=0.9)[s, a]) for step in steps
            ]
            expected = 0.75 * now[s, a] + 0.25 * image[s, a]
            error = abs(model.P[s, a] @ after - expected)
            yield Evidence(error, 4 * ROUNDING, f"s = {s}, a = {a}, seed = {seed}")


@update_is_a_mean_step.mutant("also discounts the reward", replaces="update")
def _(Q: Array, step: Transition, perturbation: StatePerturbation, **options: Any) -> Array:
    return q_update(Q, replace(step, reward=options["discount"] * step.reward), perturbation, **options)


# --- The operator ---------------------------------------------------------------------------------


@claim(
    "Section 6.2, convergence",
    id="J2",
    verdict=Verdict.HOLDS,
    formula=r"\| TQ - TQ' \|_{\infty} \le \gamma \| Q - Q' \|_{\infty}",
    assumptions="finitely many states and actions; any phi",
    examples=60,
    seed=st.integers(0, 200),
    first=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    change=st.one_of(
        st.integers(1, 3).map(lambda c: [c] * 8), st.lists(st.integers(-3, 3), min_size=8, max_size=8)
    ),
    unit=st.sampled_from([1.0, 1e-2, 1e2]),
    eta=st.one_of(st.sampled_from([1.0, 10.0, 0.1]), powers_of_ten(-2.0, 2.0)),
    d=divergences(),
)
def operator_contracts(
    seed: int,
    first: list[int],
    change: list[int],
    unit: float,
    eta: float,
    d: Divergence,
    operator: Operator = bellman,
) -> Evidence:
    """The robust Bellman operator is a contraction in the maximum norm, with the discount as its factor."""
    model = random_tables(seed, 4, 2, 0.9)
    perturbation = model.perturbation(eta, d)
    Q, change_of_Q = (unit * np.array(v, dtype=float).reshape(4, 2) for v in (first, change))
    images = [to_numpy(operator(array(v), model.process, perturbation)) for v in (Q, Q + change_of_Q)]
    distance = float(abs(images[0] - images[1]).max())
    slack = ROUNDING * (6 * unit + abs(model.r).max())
    return Evidence.at_most(distance, 0.9 * abs(change_of_Q).max(), slack, "the change of TQ")


@operator_contracts.mutant("omits 1/eta in the exponent")
def _(Q: Array, mdp: MDP, perturbation: StatePerturbation) -> Array:
    image = bellman(Q, mdp, replace(perturbation, eta=1.0))
    return mdp.reward + perturbation.eta * (image - mdp.reward)


# --- The objective --------------------------------------------------------------------------------


@claim(
    "Section 6.2, objective",
    id="J3",
    verdict=Verdict.CORRECTED,
    formula=r"\sup_{P \in \mathfrak{R}} \mathbb{E} \left[ \sum_t \gamma^t r(s_t, a_t) \right]",
    assumptions="a kernel kappa moves the next state within its neighbourhood, and pays eta times its "
    "divergence from beta",
    quote=r"seeks to maximize the worst-case risk function "
    r"$\sup_{\mathbb{P}\in\mathfrak{R}}\mathbb{E}[\sum_t\gamma^tr(s_t,a_t)]$",
    correction="an infimum in place of the supremum; the update of the paper computes the infimum",
    assessment=Assessment(Kind.MISPRINT, Consequence.NONE, "The worst case of a reward is an infimum."),
    corrected=r"\max_{\pi} \inf_{\kappa} \mathbb{E} \left[ \sum_t \gamma^t \left( r(s_t, a_t) + "
    r"\gamma \eta D_{KL}(\kappa, \beta) \right) \right]",
)
def fixed_point_is_an_infimum(fixed: Fixed = value_iteration) -> Iterator[Evidence]:
    """The fixed point is the max over policies of the min over perturbations of the penalized return."""
    for seed in range(5):
        model, eta, tol = random_tables(seed, 4, 2, 0.8), 0.3, 1e-11
        Q = to_numpy(fixed(model.process, model.perturbation(eta), tol=tol).Q)
        near = np.moveaxis(Q[model.near], -1, -2)  # (4, 2, 3): Q at the three neighbours of each state
        worst = model.weight[:, None, :] * np.exp(-(near - near.min(axis=-1, keepdims=True)) / eta)
        worst /= worst.sum(axis=-1, keepdims=True)
        penalty = eta * relative_entropy(worst, model.weight)
        best = np.argmax(np.sum(worst * near, axis=-1) + penalty, axis=-1)
        reached = policy_value(*model.plain, best, worst, penalty)
        note = "the best policy against the worst kernel"
        yield Evidence(float(abs(reached - Q).max()), 10 * tol, note)
        for policy in product(range(2), repeat=4):
            other = policy_value(*model.plain, policy, worst, penalty)
            yield Evidence(float((other - Q).max()), 10 * tol, f"policy {policy} against the worst kernel")
        rng = np.random.default_rng(seed)
        for scale in (0.01, 0.1, 1.0, 10.0):
            kernel = worst * np.exp(scale * rng.normal(size=worst.shape))
            kernel /= kernel.sum(axis=-1, keepdims=True)
            other = policy_value(*model.plain, best, kernel, eta * relative_entropy(kernel, model.weight))
            yield Evidence(float((Q - other).max()), 10 * tol, "the best policy against another kernel")


ABSORBING, EITHER_STATE, DISCOUNT = np.eye(2)[:, None, :], np.full((2, 2), 0.5), 0.5


def _assumptions_hold() -> Iterator[Evidence]:
    distributions = bool(np.all(ABSORBING.sum(axis=-1) == 1) and np.all(EITHER_STATE.sum(axis=-1) == 1))
    yield from each(
        ("transitions and perturbations are distributions", distributions),
        ("0 < discount < 1", 0 < DISCOUNT < 1),
    )


@fixed_point_is_an_infimum.counterexample(margin=0.2, meets=_assumptions_hold)
def _supremum_rewards_noise() -> Evidence:
    # Two absorbing states with rewards 1 and 0; the perturbation may exchange them.
    model = Tables(ABSORBING, np.array([[1.0], [0.0]]), [[0, 1]] * 2, EITHER_STATE, discount=DISCOUNT)
    fixed = value_iteration(model.process, model.perturbation(1.0), tol=1e-11).Q
    to_first_state = np.array([[[1.0 - 1e-12, 1e-12]]] * 2)
    supremum = policy_value(*model.plain, [0, 0], to_first_state, np.zeros((2, 1)))[0, 0]
    robust = float(fixed[0, 0])
    return Evidence(
        supremum - robust,
        0.0,
        "two absorbing states with rewards 1 and 0, which the perturbation may exchange; discount 1/2, "
        f"entropic phi, eta = 1: the supremum is 1 + 1/2 + 1/4 + ... = {supremum:.4f}, while the update "
        f"converges to {robust:.4f}",
    )


@fixed_point_is_an_infimum.mutant("stops after ten iterations")
def _(mdp: MDP, perturbation: StatePerturbation, *, tol: float) -> FixedPoint:
    Q = array_namespace(mdp.reward).zeros_like(mdp.reward)
    for _ in range(10):
        Q = bellman(Q, mdp, perturbation)
    return FixedPoint(Q, 0.0, 0.0, 10)
