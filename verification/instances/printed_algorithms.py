"""Algorithm 2 and the hyper-parameters as printed in the paper, and constants for claims on plans of SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp, inf, log2, sqrt
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence
from phiball.refimpl.inner import dual_value
from phiball.refimpl.theory.plans import Plan
from phiball.verification.instances.divergence_catalog import KAPPA
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten

# --- Algorithm 2 ----------------------------------------------------------------------------------

Bracket: TypeAlias = Callable[[Array, float, Divergence], tuple[float, float]]
"""A function of losses, eta and phi that returns an interval in which to search for mu."""


class Output(NamedTuple):
    """gamma, which need not sum to one; the multiplier mu; and h(mu) = sum_i gamma_i - 1."""

    gamma: Array
    mu: float
    h: float


Algorithm: TypeAlias = Callable[[Array, float, Divergence, int, tuple[float, float]], Output]


def printed_bracket(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    """[min f, max f - eta K], where K is phi'(0+) if finite, else min f - max f."""
    xp = array_namespace(f)
    lowest, highest = float(xp.min(f)), float(xp.max(f))
    K = phi.slope0
    return lowest, highest - eta * (lowest - highest if -inf == K else K)


def corrected_bracket(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    """[min f - eta g, max f - eta g], where g is a subgradient of phi at 1.

    The lower end is raised if the dual is infinite there.
    """
    xp = array_namespace(f)
    g = phi.slope1
    low, high = float(xp.min(f)) - eta * g, float(xp.max(f)) - eta * g
    return max(low, float(xp.max(f)) - eta * phi.recession), high


def printed_iterations(width: float, kappa: float, eta: float, eps: float) -> float:
    """T = log2(width^2 / (2 kappa eta eps))/2, a real number that may be negative."""
    return log2(width**2 / (2 * kappa * eta * eps)) / 2 if width else -inf


def iterations(width: float, kappa: float, eta: float, eps: float) -> int:
    """The printed T rounded up, and at least 1."""
    return max(1, ceil(max(printed_iterations(width, kappa, eta, eps), 1.0)))


def algorithm2(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    """Steps 1 to 7 of Algorithm 2, with T bisection steps.

    m gamma_i is 0 on the index set N, where f_i <= mu + eta phi'(0), and phi*'((f_i - mu)/eta) elsewhere.
    phi*' is the inverse of phi'.
    """
    xp = array_namespace(f)
    m = f.shape[-1]
    low, high = bracket
    gamma, mu, h = xp.zeros_like(f), low, -1.0
    for _ in range(T):
        mu = (low + high) / 2
        gamma = xp.where(f <= mu + eta * phi.slope0, xp.zeros_like(f), phi.dconj((f - mu) / eta)) / m
        h = float(xp.sum(gamma)) - 1
        if h <= 0:
            high = mu
        else:
            low = mu
    return Output(gamma, mu, h)


def run_algorithm2(
    problem: InnerProblem,
    phi: Divergence,
    eps: float,
    *,
    kappa: float | None = None,
    bracket: Bracket = corrected_bracket,
    algorithm: Algorithm = algorithm2,
) -> Output:
    """Run Algorithm 2 with the number of bisection steps from `iterations`."""
    low, high = ends = bracket(problem.losses, problem.eta, phi)
    T = iterations(high - low, KAPPA[phi] if kappa is None else kappa, problem.eta, eps)
    return algorithm(problem.losses, problem.eta, phi, T, ends)


def dual_at(problem: InnerProblem, phi: Divergence, out: Output) -> float:
    """D(mu), the dual value at the returned multiplier."""
    return float(dual_value(problem.losses, out.mu, problem.eta, phi))


def _moves_the_wrong_end(
    f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]
) -> Output:
    low, high = bracket
    out = algorithm2(f, eta, phi, 1, bracket)
    for _ in range(1, T):
        low, high = (out.mu, high) if out.h <= 0 else (low, out.mu)
        out = algorithm2(f, eta, phi, 1, (low, high))
    return out


ALGORITHM_MUTANTS: dict[str, Algorithm] = {
    "moves the wrong end of the bracket": _moves_the_wrong_end,
    "stops two steps early": lambda f, eta, phi, T, ends: algorithm2(f, eta, phi, max(1, T - 2), ends),
}
"""Mutants of Algorithm 2 by description, which the claims about its guarantees must reject."""

# --- The hyper-parameters of Theorem 3 and its Table 2 ----------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The constants of a problem with smooth losses.

    - `lipschitz`: L_f, a Lipschitz constant of the losses.
    - `smoothness`: S, a smoothness constant of every F^l.
    - `height`: B, a bound on the losses.
    - `drop`: D = F^L(theta_1) - min F^L.
    - `constrained`: whether the feasible set Theta is smaller than the whole space.
    """

    lipschitz: float
    smoothness: float
    height: float
    eta: float
    drop: float
    constrained: bool

    @property
    def level_constant(self) -> float:
        """K = L_f^2 e^(4B/eta); K/2^l bounds the squared bias of grad F^l and the second moment of G^l."""
        return self.lipschitz**2 * exp(4 * self.height / self.eta)


@dataclass(frozen=True)
class HyperParameters:
    """The largest level L, the batch size n_L, the number T of steps, and the step size."""

    level: int
    batch: int
    steps: int
    step_size: float


Table: TypeAlias = Callable[[Setting, float], HyperParameters]


def table_2(problem: Setting, eps: float, factor: float = 128.0) -> HyperParameters:
    """The hyper-parameters of the proof, for the Euclidean norm.

    `factor` is the constant of T if Theta is the whole space.
    """
    K, S, D = problem.level_constant, problem.smoothness, problem.drop
    L = max(0, ceil(log2(4 * K / eps**2)))
    if problem.constrained:
        T = max(1, ceil(64 * S * D / eps**2))
        return HyperParameters(L, ceil(96 * (L + 1) * K / eps**2), T, 1 / (2 * S))
    M2 = 2 * (L + 1) * K
    T = max(1, ceil(factor * D * S * M2 / eps**4))
    return HyperParameters(L, 1, T, sqrt(2 * D / (S * T * M2)))


def guarantee(problem: Setting, h: HyperParameters) -> float:
    """A bound on E|gradient mapping of F|^2: twice the squared bias, plus twice the bound for F^L."""
    K, S, D = problem.level_constant, problem.smoothness, problem.drop
    squared_bias, M2 = K * 2.0**-h.level, 2 * (h.level + 1) * K
    if problem.constrained:
        level_bound = 8 * S * D / h.steps + 6 * M2 / h.batch  # Lemma EC.2, with the step size 1/(2S)
    else:
        # The descent lemma: E F^L(next) <= F^L - step |grad F^L|^2 + S step^2 M_2/2, summed over T steps.
        level_bound = D / (h.step_size * h.steps) + S * h.step_size * M2 / 2
    return 2 * squared_bias + 2 * level_bound


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """L_f, S and eta from 0.1 to 10; B/eta from 0.01 to 3; D from B/1000 to B; Theta constrained or not."""
    unit = powers_of_ten(-1, 1)
    eta = draw(unit)
    B = eta * draw(st.one_of(st.sampled_from([1.0, 0.01, 3.0]), powers_of_ten(-2, 0)))
    return Setting(draw(unit), draw(unit), B, eta, B * draw(powers_of_ten(-3, 0)), draw(st.booleans()))


# --- Scales at which plans are compared -----------------------------------------------------------

Planner: TypeAlias = Callable[..., Plan]


def altered(make: Callable[..., Any], **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """A mutant of `make`: `changes` has functions that compute some fields anew from the result."""

    def mutant(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        return replace(made, **{name: change(made) for name, change in changes.items()})

    return mutant


# Accuracies for convex losses (delta) and smooth losses (eps), and problems whose constants are all 1.
DELTAS = tuple(2.0**-k for k in range(2, 21, 3))
CONVEX_UNITS = {"lipschitz": 1.0, "diameter": 1.0, "idf": 1.0, "chi_square": 1.0}

EPSILONS = tuple(2.0**-k for k in range(1, 9))
INVERSE_EPSILONS = tuple(1 / eps for eps in EPSILONS)
NONCONVEX_UNITS = {"lipschitz": 1.0, "smoothness": 1.0, "bound": 1.0, "eta": 1.0}
