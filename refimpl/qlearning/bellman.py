"""The robust Bellman operator of Section 6.2, and its fixed point with a certified error.

    Q'(s, a) = r(s, a) + discount * sum over s' of P(s' | s, a) V(s'),
    V(s') = max over a of  min over gamma of  E_gamma[Q(., a)] + eta D_phi(gamma, beta(s'; rho))

beta(s'; rho) is the distribution of the perturbed state. For the entropic divergence the minimum is
-eta log E exp(-Q/eta), the paper's update, whose sign is right (claim J1). The paper writes the objective as
a supremum over the ambiguity set; what its update solves, and what is robust, is the infimum (claim J3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import isfinite

from phiball.backends import Array, array_namespace, detach, device, is_array_api_obj
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.numerics import tolerance
from phiball.refimpl.printing import one_line
from phiball.refimpl.qlearning.grid import Neighbourhood
from phiball.refimpl.validation import check_same_array_type, valid_array, valid_count, valid_distribution


class Maximum(Enum):
    """Where the maximum over actions stands: outside or inside the soft minimum.

    - `OUTSIDE`, as in the paper: the agent acts without seeing the perturbation.
    - `INSIDE`: it sees the perturbed state first, which is never worse for it.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import Maximum, Neighbourhood, robust_value
    >>> Q, distribution = np.eye(2), Neighbourhood(np.array([[0, 1]]), np.array([[0.5, 0.5]]))
    >>> [robust_value(Q, distribution, 1.0, ENTROPIC, maximum=maximum).round(3).tolist() for maximum in Maximum]
    [[0.38], [1.0]]
    """

    OUTSIDE = "outside"
    INSIDE = "inside"


@dataclass(frozen=True)
class DecisionProcess:
    """A discounted decision process on S states and A actions, given by its tables.

    Arguments:
    - `transition` (S, A, S): P(s' | s, a). Rows sum to one, and are rescaled to do so exactly.
    - `reward` (S, A): r(s, a).
    - `discount`: a number in [0, 1).
    - `terminal` (S,) bool: states that end an episode; none by default. Q is zero there: a perturbation
      does not resume an episode that has ended.

    >>> import numpy as np
    >>> DecisionProcess(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), 0.9).terminal
    array([False])
    """

    transition: Array
    reward: Array
    discount: float
    terminal: Array = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        valid_array("transition", self.transition)
        valid_array("reward", self.reward)
        check_same_array_type("reward", self.reward, self.transition, other="transition", dtype=True)
        xp = array_namespace(self.reward)
        if self.reward.ndim != 2 or 0 in self.reward.shape:
            raise ValueError(
                f"reward has shape {tuple(self.reward.shape)}; expected (S, A), none of them zero"
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


@dataclass(frozen=True)
class FixedPoint:
    """An approximate fixed point of the robust Bellman operator, with a bound on its error.

    - `Q` (S, A): the table.
    - `residual`: the largest change of an entry in the last iteration.
    - `error`: a bound on the largest distance of an entry of `Q` from the fixed point,
      (discount * residual + rounding)/(1 - discount).
    - `iterations`: the number of iterations.
    """

    Q: Array
    residual: float
    error: float
    iterations: int
    __repr__ = one_line


def robust_value(
    Q: Array,
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    *,
    maximum: Maximum = Maximum.OUTSIDE,
) -> Array:
    r"""The robust value $V(s)$ of each row $s$ of a neighbourhood.

    $$V(s) = \max_a \min_\gamma \mathbb{E}_\gamma[Q(\cdot, a)] + \eta D_\phi(\gamma, \beta(s; \rho))$$

    Arguments:
    - `Q` (..., S, A): the table.
    - `neighbourhood`: beta, the distributions of n perturbed states, with indices below S.
    - `eta`, `divergence`: as in `worst_case`; eta is one number.
    - `maximum`: a `Maximum`; INSIDE takes the maximum over a before the minimum over gamma.

    Returns an array (..., n). The soft minimum is -worst_case(-Q), between the smallest and the mean of Q in
    the neighbourhood, so that V(s) may exceed the plain max over a of Q(s, a) (claim J2).

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC
    >>> all_three = Neighbourhood(np.array([[0, 1, 2]]), np.full((1, 3), 1 / 3))
    >>> print(np.round(robust_value(np.array([[1.0], [0.0], [1.0]]), all_three, 1.0, ENTROPIC), 3))
    [0.547]
    """
    valid_table(Q, neighbourhood)
    return value_of(Q, neighbourhood.index, neighbourhood.weight, eta, divergence, maximum)


def value_of(
    Q: Array, index: Array, weight: Array, eta: float, divergence: Divergence, maximum: Maximum
) -> Array:
    """`robust_value` on the bare arrays of a neighbourhood."""
    xp = array_namespace(Q)
    inside = valid_maximum(maximum) is Maximum.INSIDE
    rows = xp.max(Q, axis=-1, keepdims=True) if inside else Q
    near = xp.take(rows, xp.reshape(index, (-1,)), axis=-2)
    near = xp.reshape(near, (*Q.shape[:-2], *index.shape, rows.shape[-1]))
    near = xp.moveaxis(near, -1, -2)  # (..., n, A, k)
    soft = -worst_case(-near, eta, divergence, p=weight[:, None, :]).value
    return xp.max(soft, axis=-1)


def bellman(
    Q: Array,
    mdp: DecisionProcess,
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    *,
    maximum: Maximum = Maximum.OUTSIDE,
) -> Array:
    r"""Apply the robust Bellman operator once: $Q'(s, a) = r(s, a) + \beta\, \mathbb{E}[V(s') | s, a]$.

    Arguments:
    - `Q` (..., S, A): the table.
    - `mdp`: a `DecisionProcess`, whose discount is $\beta$.
    - `neighbourhood`: a `Neighbourhood` with one row per state.
    - `eta`, `divergence`, `maximum`: as in `robust_value`, which gives $V$.

    Returns an array (..., S, A), zero at terminal states.

    The operator is a contraction with factor `discount` in the largest entry, with one fixed point (claim
    J2). The paper's update is this operator with P replaced by a draw of s'.

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> stay = DecisionProcess(np.eye(2)[:, None, :], np.array([[1.0], [0.0]]), 0.5)
    >>> both = Neighbourhood(np.array([[0, 1], [0, 1]]), np.full((2, 2), 0.5))
    >>> bellman(np.array([[1.0], [0.0]]), stay, both, 1.0, QUADRATIC).tolist()
    [[1.1875], [0.1875]]
    """
    states = valid_problem(mdp, neighbourhood)
    valid_table(Q, neighbourhood)
    check_same_array_type("Q", Q, mdp.reward, other="reward", dtype=True)
    if tuple(Q.shape[-2:]) != tuple(mdp.reward.shape):
        raise ValueError(
            f"Q has shape {tuple(Q.shape)}; expected (..., S, A) with (S, A) = {tuple(mdp.reward.shape)}"
        )
    xp = array_namespace(Q)
    value = value_of(Q, neighbourhood.index, neighbourhood.weight, eta, divergence, maximum)
    value = xp.where(mdp.terminal, xp.zeros_like(value), value)
    expected = xp.matmul(xp.reshape(mdp.transition, (-1, states)), value[..., None])
    backup = mdp.reward + mdp.discount * xp.reshape(expected, Q.shape)
    return xp.where(mdp.terminal[:, None], xp.zeros_like(backup), backup)


def value_iteration(
    mdp: DecisionProcess,
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    *,
    tol: float,
    max_iter: int = 100_000,
    maximum: Maximum = Maximum.OUTSIDE,
) -> FixedPoint:
    """Find the fixed point of the robust Bellman operator to within `tol`, with a certificate.

    Arguments:
    - `tol`: the largest error of an entry of Q.
    - `max_iter`: the largest number of iterations.
    - The others are those of `bellman`.

    Returns `Q` (S, A) and a bound `error` on its distance from the fixed point. By the contraction, after
    Q' = T Q that is at most discount/(1 - discount) times the largest entry of abs(Q' - Q); the rounding of T
    is added. Raises RuntimeError if `max_iter` are not enough, and ValueError if `tol` is below rounding.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC
    >>> loop = DecisionProcess(np.ones((1, 1, 1)), np.array([[1.0]]), 0.5)
    >>> alone = Neighbourhood(np.array([[0]]), np.array([[1.0]]))
    >>> solution = value_iteration(loop, alone, 1.0, ENTROPIC, tol=1e-6)
    >>> abs(float(solution.Q[0, 0]) - 2) <= solution.error <= 1e-6
    True
    """
    valid_problem(mdp, neighbourhood)
    if not (isinstance(tol, (int, float)) and tol > 0 and isfinite(tol)):
        raise ValueError(f"tol is {tol!r}; expected a positive number")
    valid_count("max_iter", max_iter)
    xp = array_namespace(mdp.reward)
    Q = xp.zeros_like(mdp.reward)
    error = float("inf")
    for n in range(1, max_iter + 1):
        before, Q = Q, bellman(Q, mdp, neighbourhood, eta, divergence, maximum=maximum)
        residual = float(xp.max(xp.abs(Q - before)))
        rounding = tolerance(Q, float(xp.max(xp.abs(Q))))
        if rounding / (1 - mdp.discount) > tol:
            raise ValueError(
                f"tol is {tol!r}; expected at least {rounding / (1 - mdp.discount):.2g}, the rounding of "
                f"{Q.dtype} over 1 - discount"
            )
        error = (mdp.discount * residual + rounding) / (1 - mdp.discount)
        if error <= tol:
            return FixedPoint(Q, residual, error, n)
    raise RuntimeError(
        f"value_iteration reached an error of {error:.2g} in {max_iter} iterations; expected {tol!r}: "
        "allow more iterations or a larger tol"
    )


# --- Checks ---------------------------------------------------------------------------------------


def valid_table(Q: Array, neighbourhood: Neighbourhood) -> None:
    """Raise unless Q is a table (..., S, A) that holds every index of the neighbourhood."""
    valid_array("Q", Q)
    if not isinstance(neighbourhood, Neighbourhood):
        raise TypeError(f"neighbourhood is {neighbourhood!r}; expected a Neighbourhood")
    check_same_array_type("Q", Q, neighbourhood.weight, other="neighbourhood.weight")
    if Q.ndim < 2 or 0 in Q.shape[-2:]:
        raise ValueError(f"Q has shape {tuple(Q.shape)}; expected (..., S, A), none of S and A zero")
    xp = array_namespace(Q)
    if neighbourhood.index.shape[0] and int(xp.max(neighbourhood.index)) >= Q.shape[-2]:
        raise ValueError(
            f"neighbourhood.index contains {int(xp.max(neighbourhood.index))}; expected states below "
            f"S = {Q.shape[-2]}"
        )
    if not xp.all(xp.isfinite(detach(Q))):
        raise ValueError("Q contains NaN or an infinity; expected finite numbers")


def valid_problem(mdp: DecisionProcess, neighbourhood: Neighbourhood) -> int:
    """The number of states, or an error unless both have the same."""
    if not isinstance(mdp, DecisionProcess):
        raise TypeError(f"mdp is {mdp!r}; expected a DecisionProcess")
    if not isinstance(neighbourhood, Neighbourhood):
        raise TypeError(f"neighbourhood is {neighbourhood!r}; expected a Neighbourhood")
    states = int(mdp.reward.shape[0])
    if neighbourhood.index.shape[0] != states:
        raise ValueError(
            f"neighbourhood has {neighbourhood.index.shape[0]} rows; expected one a state, {states}"
        )
    return states


def valid_discount(discount: float) -> float:
    """`discount` as a float in [0, 1), or an error."""
    if isinstance(discount, bool) or not isinstance(discount, (int, float)) or not 0 <= discount < 1:
        raise ValueError(f"discount is {discount!r}; expected a number in [0, 1)")
    return float(discount)


def valid_maximum(maximum: Maximum) -> Maximum:
    """`maximum`, or an error."""
    if not isinstance(maximum, Maximum):
        raise TypeError(f"maximum is {maximum!r}; expected Maximum.OUTSIDE or Maximum.INSIDE")
    return maximum
