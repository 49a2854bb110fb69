"""The value of a state under the worst perturbation: computed exactly, or estimated from samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, device
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence, as_divergence
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.qlearning.grid import Neighbourhood
from phiball.refimpl.types import Estimator
from phiball.refimpl.validation import check_array, check_same_array_type, valid_number


class Maximum(Enum):
    """Whether the maximum over actions is outside or inside the soft minimum over perturbations.

    - `OUTSIDE`, as in the paper: the agent acts without knowing the perturbed state.
    - `INSIDE`: the agent knows the perturbed state when it acts, so that its value is at least as high.

    >>> import numpy as np
    >>> from phiball.qlearning import Maximum, Neighbourhood, StatePerturbation, robust_value
    >>> Q, coin = np.eye(2), Neighbourhood(np.array([[0, 1]]), np.array([[0.5, 0.5]]))
    >>> [robust_value(Q, StatePerturbation(coin, 1.0, "kl", m)).round(3).tolist() for m in Maximum]
    [[0.38], [1.0]]
    """

    OUTSIDE = "outside"
    INSIDE = "inside"


@dataclass(frozen=True)
class StatePerturbation:
    """An adversary that perturbs the next state, and pays eta times a divergence.

    Arguments:
    - `neighbourhood`: a `Neighbourhood`, the reference distribution of the perturbed state.
    - `eta`: a positive number, the price of the divergence.
    - `divergence`: a divergence or its name.
    - `maximum`: a `Maximum` or its value, "outside" or "inside": whether the agent acts before or after it
      knows the perturbed state.

    >>> import numpy as np
    >>> coin = Neighbourhood(np.array([[0, 1]]), np.array([[0.5, 0.5]]))
    >>> StatePerturbation(coin, 1.0, "chi2", "inside").maximum
    <Maximum.INSIDE: 'inside'>
    """

    neighbourhood: Neighbourhood
    eta: float
    divergence: Divergence | str = ENTROPIC
    maximum: Maximum | str = Maximum.OUTSIDE
    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.neighbourhood, Neighbourhood):
            raise TypeError(f"neighbourhood is {self.neighbourhood!r}; expected a Neighbourhood")
        if self.maximum not in [*Maximum, *(m.value for m in Maximum)]:
            raise ValueError(f"maximum is {self.maximum!r}; expected 'outside' or 'inside'")
        object.__setattr__(self, "eta", valid_number("eta", self.eta, above=0.0))
        object.__setattr__(self, "divergence", as_divergence(self.divergence))
        object.__setattr__(self, "maximum", Maximum(self.maximum))

    @property
    def phi(self) -> Divergence:
        """The divergence as a `Divergence`, also if it was given by name."""
        return as_divergence(self.divergence)


def robust_value(
    Q: Array,
    perturbation: StatePerturbation,
    *,
    estimator: Estimator | None = None,
    rng: int | Rng | None = None,
) -> Array:
    r"""The robust value $V(s)$ of each row $s$ of a neighbourhood.

    $$V(s) = \max_a \min_\gamma \mathbb{E}_\gamma[Q(\cdot, a)] + \eta D_\phi(\gamma, \beta(s; \rho))$$

    Arguments:
    - `Q` (..., S, A): the table of values of S states and A actions.
    - `perturbation`: a `StatePerturbation` whose neighbourhood has n rows, with indices below S.
    - `estimator`: None to sum over all states of the neighbourhood, or `SG(level)` or `RTMLMC(level)` to
      estimate V from samples; then Q is (S, A).
    - `rng`: a seed or generator, for an estimator.

    Returns an array (..., n). The soft minimum, -worst_case(-Q), lies between the smallest value and the mean
    of Q(., a) in the neighbourhood. So V(s) may exceed max over a of Q(s, a) (claim J2).

    The expectation of SG(level) is above V(s), and decreases to V(s) as the level grows. RTMLMC(level) has
    the same expectation with (level + 1)/(2 - 2^-level) samples on average; it draws one level per call.

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> all_three = Neighbourhood(np.array([[0, 1, 2]]), np.full((1, 3), 1 / 3))
    >>> robust_value(np.array([[1.0], [0.0], [1.0]]), StatePerturbation(all_three, 1.0, "kl")).round(3)
    array([0.547])
    """
    check_perturbation(perturbation)
    check_table(Q, perturbation.neighbourhood)
    check_estimator(estimator)
    if estimator is not None and Q.ndim != 2:
        raise ValueError(f"Q has shape {tuple(Q.shape)}; expected (S, A) with an estimator")
    rng = None if estimator is None else as_rng(rng)
    return unchecked_robust_value(Q, perturbation.neighbourhood, perturbation, estimator, rng)


def unchecked_robust_value(
    Q: Array,
    neighbourhood: Neighbourhood,
    perturbation: StatePerturbation,
    estimator: Estimator | None,
    rng: Rng | None,
) -> Array:
    """`robust_value` of the rows of `neighbourhood`, without argument checks."""
    if estimator is None:
        return _soft_minimum(Q, neighbourhood.index, neighbourhood.weight, perturbation)
    assert rng is not None
    (group,) = estimator.assign_levels(1, rng, like=Q)
    points = _sample_states(neighbourhood, 2**group.level, Q, rng)
    value = _sampled_soft_minimum(Q, points, perturbation)
    if group.telescoping and group.level:
        half = 2 ** (group.level - 1)
        first = _sampled_soft_minimum(Q, points[:, :half], perturbation)
        value = value - (first + _sampled_soft_minimum(Q, points[:, half:], perturbation)) / 2
    return group.weight * value


def _soft_minimum(Q: Array, index: Array, weight: Array, perturbation: StatePerturbation) -> Array:
    """V (..., n) for states `index` (n, k) with probabilities `weight` (n, k)."""
    xp = array_namespace(Q)
    inside = perturbation.maximum is Maximum.INSIDE
    rows = xp.max(Q, axis=-1, keepdims=True) if inside else Q
    near = xp.take(rows, xp.reshape(index, (-1,)), axis=-2)
    near = xp.reshape(near, (*Q.shape[:-2], *index.shape, rows.shape[-1]))
    near = xp.moveaxis(near, -1, -2)  # (..., n, A, k)
    soft = -worst_case(-near, perturbation.eta, perturbation.phi, p=weight[:, None, :]).value
    return xp.max(soft, axis=-1)


def _sampled_soft_minimum(Q: Array, points: Array, perturbation: StatePerturbation) -> Array:
    """`_soft_minimum` of sampled states `points` (n, k), with equal probabilities."""
    xp = array_namespace(Q)
    weight = xp.full(points.shape, 1 / points.shape[1], dtype=Q.dtype, device=device(Q))
    return _soft_minimum(Q, points, weight, perturbation)


def _sample_states(neighbourhood: Neighbourhood, n: int, like: Array, rng: Rng) -> Array:
    """n states drawn from each row of `neighbourhood`: (rows, n) int64."""
    xp = array_namespace(like)
    cumulative = xp.astype(xp.cumulative_sum(neighbourhood.weight, axis=-1), like.dtype)
    total = cumulative[:, -1:]
    u = rng.uniform((neighbourhood.index.shape[0], n), like=like) * total
    slot = xp.sum(xp.astype(cumulative[:, None, :] <= u[:, :, None], xp.int64), axis=-1)
    last = xp.sum(xp.astype(cumulative < total, xp.int64), axis=-1, keepdims=True)
    # If u rounds up to the total, take the last state with a positive probability.
    return xp.take_along_axis(neighbourhood.index, xp.where(slot < last, slot, last), axis=1)


def check_table(Q: Array, neighbourhood: Neighbourhood) -> None:
    """Raise unless Q is a table (..., S, A) that contains all states of the neighbourhood."""
    check_array("Q", Q)
    check_same_array_type("Q", Q, neighbourhood.weight, other="neighbourhood.weight")
    if Q.ndim < 2 or 0 in Q.shape[-2:]:
        raise ValueError(f"Q has shape {tuple(Q.shape)}; expected (..., S, A), with S and A at least 1")
    xp = array_namespace(Q)
    if neighbourhood.index.shape[0] and int(xp.max(neighbourhood.index)) >= Q.shape[-2]:
        raise ValueError(
            f"neighbourhood.index contains {int(xp.max(neighbourhood.index))}; expected states below "
            f"S = {Q.shape[-2]}"
        )
    if not xp.all(xp.isfinite(detach(Q))):
        raise ValueError("Q contains NaN or an infinity; expected finite numbers")


def check_perturbation(perturbation: StatePerturbation) -> None:
    """Raise unless it is a `StatePerturbation`."""
    if not isinstance(perturbation, StatePerturbation):
        raise TypeError(f"perturbation is {perturbation!r}; expected a StatePerturbation")


def check_estimator(estimator: Estimator | None) -> None:
    """Raise unless it is None or an estimator."""
    if estimator is not None and not hasattr(estimator, "assign_levels"):
        raise TypeError(f"estimator is {estimator!r}; expected None, SG(level) or RTMLMC(level)")
