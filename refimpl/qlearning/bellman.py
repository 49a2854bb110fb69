"""The robust Bellman operator of Section 6.2, and its fixed point with an error bound.

    Q'(s, a) = r(s, a) + discount * sum over s' of P(s' | s, a) V(s'),
    V(s') = max over a of  min over gamma of  E_gamma[Q(., a)] + eta D_phi(gamma, beta(s'; rho))

Here gamma is a distribution of the perturbed state, and beta(s'; rho) its reference distribution. For the
entropic divergence the minimum is -eta log E exp(-Q/eta), as in the paper's update (claim J1). The paper
states its objective as a supremum over the ambiguity set, but its update solves the infimum, which is the
robust problem (claim J3).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from phiball.backends import Array, array_namespace, device, is_array_api_obj
from phiball.refimpl.numerics import tolerance
from phiball.refimpl.printing import one_line
from phiball.refimpl.qlearning.robust_value import (
    StatePerturbation,
    check_perturbation,
    check_table,
    unchecked_robust_value,
)
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count, valid_distribution


@dataclass(frozen=True)
class MDP:
    """A discounted Markov decision process with S states and A actions.

    Arguments:
    - `transition` (S, A, S): P(s' | s, a). Rows must sum to one up to rounding, and are normalised.
    - `reward` (S, A): r(s, a).
    - `discount`: a number in [0, 1).
    - `terminal` (S,) bool: states that end an episode; none by default. Q is zero there, and a terminal state
      is not perturbed.
    - `initial` (S,): the distribution of the first state of an episode, uniform on the nonterminal states by
      default.

    >>> import numpy as np
    >>> MDP(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), 0.9).terminal
    array([False])
    """

    transition: Array
    reward: Array
    discount: float
    terminal: Array = None
    initial: Array = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        check_array("transition", self.transition)
        check_array("reward", self.reward)
        check_same_array_type("reward", self.reward, self.transition, other="transition", dtype=True)
        xp = array_namespace(self.reward)
        if self.reward.ndim != 2 or 0 in self.reward.shape:
            raise ValueError(
                f"reward has shape {tuple(self.reward.shape)}; expected (S, A), with S and A at least 1"
            )
        states, actions = self.reward.shape
        if tuple(self.transition.shape) != (states, actions, states):
            raise ValueError(
                f"transition has shape {tuple(self.transition.shape)} and reward {(states, actions)}; "
                "expected (S, A, S) and (S, A)"
            )
        if not xp.all(xp.isfinite(self.reward)):
            raise ValueError("reward contains NaN or an infinity; expected finite numbers")
        object.__setattr__(self, "transition", valid_distribution("transition", self.transition))
        object.__setattr__(self, "discount", valid_discount(self.discount))
        terminal = self.terminal
        if terminal is None:
            terminal = xp.zeros((states,), dtype=xp.bool, device=device(self.reward))
            object.__setattr__(self, "terminal", terminal)
        if not is_array_api_obj(terminal) or terminal.dtype != xp.bool or tuple(terminal.shape) != (states,):
            raise ValueError(f"terminal is {terminal!r}; expected None or a bool array of shape ({states},)")
        check_same_array_type("terminal", terminal, self.reward, other="reward")
        if self.initial is not None:
            object.__setattr__(self, "initial", self._valid_initial())

    def _valid_initial(self) -> Array:
        check_array("initial", self.initial)
        check_same_array_type("initial", self.initial, self.reward, other="reward", dtype=True)
        if self.initial.shape != self.terminal.shape:
            raise ValueError(
                f"initial has shape {tuple(self.initial.shape)}; expected {tuple(self.terminal.shape)}"
            )
        if array_namespace(self.initial).any((self.initial > 0) & self.terminal):
            raise ValueError("initial is positive at a terminal state; expected 0 there")
        return valid_distribution("initial", self.initial)


@dataclass(frozen=True)
class FixedPoint:
    """An approximate fixed point of the robust Bellman operator, with a bound on its error.

    - `Q` (S, A): the table.
    - `residual`: the largest change of an entry in the last iteration.
    - `error`: a bound on the largest error of an entry, (discount * residual + rounding)/(1 - discount).
    - `iterations`: the number of iterations.
    """

    Q: Array
    residual: float
    error: float
    iterations: int
    __repr__ = one_line


def bellman(Q: Array, mdp: MDP, perturbation: StatePerturbation) -> Array:
    r"""Apply the robust Bellman operator once: $Q'(s, a) = r(s, a) + \beta\, \mathbb{E}[V(s') | s, a]$.

    Arguments:
    - `Q` (..., S, A): the table.
    - `mdp`: an `MDP`, whose discount is $\beta$.
    - `perturbation`: a `StatePerturbation` whose neighbourhood has one row per state; $V$ is its
      `robust_value`.

    Returns an array (..., S, A), zero at terminal states.

    The operator is a contraction in the maximum norm with factor `discount`, so that it has one fixed point
    (claim J2). The paper's update replaces the expectation over s' by one sample.

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> from phiball.qlearning import Neighbourhood
    >>> stay = MDP(np.eye(2)[:, None, :], np.array([[1.0], [0.0]]), 0.5)
    >>> both = Neighbourhood(np.array([[0, 1], [0, 1]]), np.full((2, 2), 0.5))
    >>> bellman(np.array([[1.0], [0.0]]), stay, StatePerturbation(both, 1.0, "chi2")).tolist()
    [[1.1875], [0.1875]]
    """
    states = check_problem(mdp, perturbation)
    check_table(Q, perturbation.neighbourhood)
    check_same_array_type("Q", Q, mdp.reward, other="reward", dtype=True)
    if tuple(Q.shape[-2:]) != tuple(mdp.reward.shape):
        raise ValueError(
            f"Q has shape {tuple(Q.shape)}; expected (..., S, A) with (S, A) = {tuple(mdp.reward.shape)}"
        )
    xp = array_namespace(Q)
    value = unchecked_robust_value(Q, perturbation.neighbourhood, perturbation, None, None)
    value = xp.where(mdp.terminal, xp.zeros_like(value), value)
    expected = xp.matmul(xp.reshape(mdp.transition, (-1, states)), value[..., None])
    backup = mdp.reward + mdp.discount * xp.reshape(expected, Q.shape)
    return xp.where(mdp.terminal[:, None], xp.zeros_like(backup), backup)


def value_iteration(
    mdp: MDP, perturbation: StatePerturbation, *, tol: float, max_iter: int = 100_000
) -> FixedPoint:
    """Find the fixed point of the robust Bellman operator to within `tol`, with an error bound.

    Arguments:
    - `mdp`, `perturbation`: as in `bellman`.
    - `tol`: the largest allowed error of an entry of Q.
    - `max_iter`: the largest number of iterations.

    Returns a `FixedPoint`, whose `error` bounds the distance of its Q from the fixed point. For a contraction
    T and Q' = T Q, the distance of Q' from the fixed point is at most discount/(1 - discount) times the
    largest entry of abs(Q' - Q); a bound on rounding errors is added. Raises RuntimeError if `max_iter`
    iterations are not enough, and ValueError if `tol` is below the rounding error.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.qlearning import Neighbourhood
    >>> loop = MDP(np.ones((1, 1, 1)), np.array([[1.0]]), 0.5)
    >>> alone = Neighbourhood(np.array([[0]]), np.array([[1.0]]))
    >>> solution = value_iteration(loop, StatePerturbation(alone, 1.0), tol=1e-6)
    >>> abs(float(solution.Q[0, 0]) - 2) <= solution.error <= 1e-6
    True
    """
    check_problem(mdp, perturbation)
    if not (isinstance(tol, (int, float)) and tol > 0 and isfinite(tol)):
        raise ValueError(f"tol is {tol!r}; expected a positive number")
    valid_count("max_iter", max_iter)
    xp = array_namespace(mdp.reward)
    Q = xp.zeros_like(mdp.reward)
    error = float("inf")
    for n in range(1, max_iter + 1):
        before, Q = Q, bellman(Q, mdp, perturbation)
        residual = float(xp.max(xp.abs(Q - before)))
        rounding = tolerance(Q, float(xp.max(xp.abs(Q))))
        if rounding / (1 - mdp.discount) > tol:
            raise ValueError(
                f"tol is {tol!r}; expected at least {rounding / (1 - mdp.discount):.2g}, the rounding error "
                f"of {Q.dtype} divided by 1 - discount"
            )
        error = (mdp.discount * residual + rounding) / (1 - mdp.discount)
        if error <= tol:
            return FixedPoint(Q, residual, error, n)
    raise RuntimeError(
        f"value_iteration reached an error of {error:.2g} in {max_iter} iterations, above tol = {tol!r}: "
        "increase max_iter or tol"
    )


def check_problem(mdp: MDP, perturbation: StatePerturbation) -> int:
    """Return the number of states; raise unless the neighbourhood has one row for each."""
    if not isinstance(mdp, MDP):
        raise TypeError(f"mdp is {mdp!r}; expected an MDP")
    check_perturbation(perturbation)
    states, rows = int(mdp.reward.shape[0]), perturbation.neighbourhood.index.shape[0]
    if rows != states:
        raise ValueError(f"neighbourhood has {rows} rows; expected one per state, {states}")
    return states


def valid_discount(discount: float) -> float:
    """`discount` as a float; raises ValueError outside [0, 1)."""
    if isinstance(discount, bool) or not isinstance(discount, (int, float)) or not 0 <= discount < 1:
        raise ValueError(f"discount is {discount!r}; expected a number in [0, 1)")
    return float(discount)
