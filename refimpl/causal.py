"""Contextual optimization: regularized causal transport of the covariates (Section 6.3).

    E_x inf over mu of  mu + E_{x' ~ nu_x} (eta phi)*( E_{z|x}[Psi(f(x'), z)] - mu )     Eq. (reg:casual:dual)

f(x') is the decision at the covariate x', and Psi(w, z) the cost of the decision w. A causal transport plan
moves the covariate x to x' without using z. So the adversary faces the mean cost E_{z|x}[Psi(f(x'), z)], a
function of x'. `conditional_loss` returns it as a function loss(x, i). Pass this function to `robust_risk`,
`RegularizedLoss`, or any other function that takes a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, device, is_array_api_obj
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.inner.worst_case import WorstCase, worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.risk.estimate import Estimate
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.sampling.streaming import CHUNK, evaluate
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import (
    check_array,
    check_same_array_type,
    valid_count,
    valid_distribution,
    valid_number,
    valid_p,
)

__all__ = ["CausalValue", "Conditional", "Estimate", "causal_risk", "causal_value", "conditional_loss"]


@dataclass(frozen=True)
class Conditional:
    """Data (x, z) as K covariates x, and for each of them the distribution of z.

    - `x` (K,) + event: the covariates.
    - `z` (K, m) + event: the values observed with each covariate.
    - `share` (K, m): P(z_kj | x_k). Rows sum to one; shorter rows are padded with zeros.
    - `weight` (K,): P(x_k), positive, with sum one.

    Create it with `stacked` or `grouped`.

    >>> import numpy as np
    >>> Conditional.stacked(np.zeros((2, 3)), np.ones((2, 5, 1)))
    Conditional(x of shape (2, 3), z of shape (2, 5, 1), share of shape (2, 5), weight of shape (2,))
    """

    x: Array
    z: Array
    share: Array
    weight: Array
    __repr__ = one_line

    def __post_init__(self) -> None:
        for name in ("x", "z", "share", "weight"):
            array = getattr(self, name)
            check_array(name, array)
            check_same_array_type(name, array, self.x, other="x", dtype=True)
            if not array_namespace(array).all(array_namespace(array).isfinite(detach(array))):
                raise ValueError(f"{name} contains NaN or an infinity; expected finite numbers")
        if self.x.ndim == 0 or self.z.ndim < 2 or self.x.shape[0] != self.z.shape[0] or 0 in self.z.shape[:2]:
            raise ValueError(
                f"x has shape {tuple(self.x.shape)} and z {tuple(self.z.shape)}; expected (K,) + event and "
                "(K, m) + event, with K and m at least 1"
            )
        for name, shape in (("share", self.z.shape[:2]), ("weight", self.z.shape[:1])):
            if tuple(getattr(self, name).shape) != tuple(shape):
                raise ValueError(
                    f"{name} has shape {tuple(getattr(self, name).shape)}; expected {tuple(shape)}"
                )
            object.__setattr__(self, name, valid_distribution(name, getattr(self, name)))
        if not array_namespace(self.weight).all(self.weight > 0):
            raise ValueError("weight contains 0; expected a positive weight for each covariate")

    @staticmethod
    def stacked(x: Array, z: Array, *, weight: Array | None = None) -> Conditional:
        """Create it from covariates x (K,) + event with m samples each, z (K, m) + event, as in the paper.

        The samples of a covariate have equal weights. So have the covariates, unless `weight` (K,) is given.

        >>> import numpy as np
        >>> data = Conditional.stacked(np.zeros((2, 3)), np.ones((2, 5, 1)))
        >>> data.share.shape, data.weight.tolist()
        ((2, 5), [0.5, 0.5])
        """
        check_array("x", x)
        check_array("z", z)
        xp = array_namespace(x)
        if x.ndim == 0 or x.shape[0] == 0 or z.ndim < 2 or 0 in z.shape[:2]:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and z {tuple(z.shape)}; expected (K,) + event and (K, m) + "
                "event, with K and m at least 1"
            )
        at = {"dtype": x.dtype, "device": device(x)}
        share = xp.full(z.shape[:2], 1 / z.shape[1], **at)
        weight = xp.full(x.shape[:1], 1 / x.shape[0], **at) if weight is None else weight
        return Conditional(x, z, share, weight)

    @staticmethod
    def grouped(x: Array, z: Array, *, weight: Array | None = None) -> Conditional:
        """Create it from n pairs (x, z), x (n,) + event and z (n,) + event, in which values of x repeat.

        Pairs with exactly equal x form a group; the covariates are in lexicographic order. `weight` (n,) are
        the weights of the pairs, equal by default. z and `share` have a row for each of the K covariates,
        padded to the size of the largest group.

        >>> import numpy as np
        >>> data = Conditional.grouped(np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 6.0, 7.0]))
        >>> data.x.tolist(), data.z.tolist(), data.share.tolist()
        ([[1.0], [2.0]], [[6.0, 6.0], [5.0, 7.0]], [[1.0, 0.0], [0.5, 0.5]])
        """
        check_array("x", x)
        check_array("z", z)
        check_same_array_type("z", z, x, other="x", dtype=True)
        xp = array_namespace(x)
        if x.ndim == 0 or z.ndim == 0 or x.shape[0] != z.shape[0] or x.shape[0] == 0:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and z {tuple(z.shape)}; expected (n,) + event each, with "
                "n at least 1"
            )
        if not xp.all(xp.isfinite(detach(x))):
            raise ValueError("x contains NaN or an infinity; expected finite numbers")
        if weight is None:
            weight = xp.full(x.shape[:1], 1 / x.shape[0], dtype=x.dtype, device=device(x))
        check_array("weight", weight)
        check_same_array_type("weight", weight, x, other="x", dtype=True)
        if tuple(weight.shape) != tuple(x.shape[:1]):
            raise ValueError(f"weight has shape {tuple(weight.shape)}; expected {tuple(x.shape[:1])}")
        code = _row_codes(detach(x))
        counts = xp.unique_counts(code).counts
        order = xp.argsort(code, stable=True)
        first = xp.cumulative_sum(counts) - counts
        slot = xp.arange(int(xp.max(counts)), dtype=first.dtype, device=device(x))[None, :]
        real = slot < counts[:, None]
        # Pad with copies of the first z of a group, so that the cost is finite.
        place = xp.take(order, xp.reshape(first[:, None] + xp.where(real, slot, xp.zeros_like(slot)), (-1,)))
        mass = xp.reshape(xp.take(valid_distribution("weight", weight), place), real.shape)
        mass = xp.where(real, mass, xp.zeros_like(mass))
        total = xp.sum(mass, axis=1)
        if not xp.all(total > 0):
            raise ValueError(
                "weight is 0 for every pair of a covariate; expected a positive weight in each group"
            )
        z = xp.reshape(xp.take(z, place, axis=0), (*real.shape, *z.shape[1:]))
        return Conditional(xp.take(x, xp.take(order, first), axis=0), z, mass / total[:, None], total)


def _row_codes(x: Array) -> Array:
    """The rank 0, ..., K - 1 of each row of x in lexicographic order; equal rows have equal ranks."""
    xp = array_namespace(x)
    columns = xp.reshape(x, (x.shape[0], -1))
    code = xp.zeros(x.shape[:1], dtype=xp.int64, device=device(x))
    for j in range(columns.shape[1]):
        digit = xp.astype(xp.unique_inverse(columns[:, j]).inverse_indices, xp.int64)
        # Both numbers are below n, so that the combined code is below n^2.
        code = xp.unique_inverse(code * x.shape[0] + digit).inverse_indices
        code = xp.astype(code, xp.int64)
    return code


def conditional_loss(
    decision: Callable[[Array], Array],
    cost: Callable[[Array, Array], Array],
    data: Conditional,
    *,
    linear: bool = False,
    chunk: int | None = None,
) -> Loss:
    r"""Return the function loss(x', i), the mean cost $\mathbb{E}_{z | x_i}[\Psi(f(x'), z)]$.

    Arguments:
    - `decision`: f_theta, a function from covariates (n,) + event to n decisions (n,) + event.
    - `cost`: Psi(w, z), a function from n decisions w and n values z to n costs (n,).
    - `data`: a `Conditional`.
    - `linear`: True if Psi is affine in z for every w, which is not checked. Then Psi is evaluated only at
      the mean of z given x.
    - `chunk`: the number of z per covariate to evaluate at a time; all by default. It limits the memory,
      unless torch keeps a graph of all chunks for gradients.

    Returns a loss for `causal_risk`, `causal_value`, `RegularizedLoss` and every other function of a loss.
    `decision` is called once per x'. With torch, the loss has gradients in theta and x'.

    Reference: Eq. (reg:casual:dual) of Section 6.3.

    >>> import numpy as np
    >>> data = Conditional.stacked(np.zeros((2, 1)), np.array([[[1.0], [3.0]], [[0.0], [2.0]]]))
    >>> loss = conditional_loss(lambda x: x, lambda w, z: (w[:, 0] - z[:, 0]) ** 2, data)
    >>> loss(np.array([[2.0], [2.0]]), np.array([0, 1])).tolist()
    [1.0, 2.0]
    """
    if not callable(decision):
        raise TypeError(f"decision is {decision!r}; expected a function of covariates")
    if not callable(cost):
        raise TypeError(f"cost is {cost!r}; expected a function of decisions w and values z")
    _valid_conditional(data)
    if chunk is not None:
        valid_count("chunk", chunk, 1)
    xp = array_namespace(data.x)
    share, z = data.share, data.z
    if linear:
        wide = xp.reshape(share, (*share.shape, *(1,) * (z.ndim - 2)))
        share, z = xp.ones_like(share[:, :1]), xp.sum(wide * z, axis=1, keepdims=True)
    m = z.shape[1]
    step = m if chunk is None else min(chunk, m)

    def loss(x: Array, i: Array) -> Array:
        w = decision(x)
        n = x.shape[0]
        if not is_array_api_obj(w) or w.ndim == 0 or w.shape[0] != n:
            got = f"shape {tuple(w.shape)}" if is_array_api_obj(w) else f"type {type(w).__name__}"
            raise ValueError(f"decision(x) has {got}; expected ({n},) + event, one decision per x")
        total = 0.0
        for j in range(0, m, step):
            end = min(j + step, m)
            part, mass, c = xp.take(z[:, j:end, ...], i, axis=0), xp.take(share[:, j:end], i, axis=0), end - j
            decisions = xp.reshape(
                xp.broadcast_to(w[:, None, ...], (n, c, *w.shape[1:])), (n * c, *w.shape[1:])
            )
            costs = cost(decisions, xp.reshape(part, (n * c, *z.shape[2:])))
            if tuple(costs.shape) != (n * c,):
                raise ValueError(
                    f"cost(w, z) has shape {tuple(costs.shape)}; expected ({n * c},), one cost per pair"
                )
            total = total + xp.sum(mass * xp.reshape(costs, (n, c)), axis=1)
        return total

    return loss


def causal_risk(
    loss: Loss,
    data: Conditional,
    reference: Distribution,
    eta: float,
    divergence: Divergence | str,
    *,
    n_samples: int,
    rng: int | Rng | None = None,
    chunk: int = CHUNK,
) -> Estimate:
    """Estimate the regularized causal risk from samples around each covariate.

    Arguments:
    - `loss`: the result of `conditional_loss` for the same `data`.
    - `data`: a `Conditional`, whose covariates x are the data points of `robust_risk`.
    - The other arguments are as in `robust_risk`.

    Returns an `Estimate`: `values` (K,) are the values of the inner problems, and `value` is their weighted
    mean.

    Reference: Eq. (reg:casual:dual) of Section 6.3.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> data = Conditional.stacked(np.zeros((2, 1)), np.array([[[1.0], [3.0]], [[0.0], [2.0]]]))
    >>> loss = conditional_loss(lambda x: x, lambda w, z: w[:, 0] * z[:, 0], data, linear=True)
    >>> risk = causal_risk(loss, data, Ball(2, 1.0), 1.0, "kl", n_samples=4000, rng=0)
    >>> exact = (np.log(np.sinh(2) / 2) + np.log(np.sinh(1))) / 2
    >>> bool(abs(risk.value + risk.bias - exact) < 4 * risk.stderr)
    True
    """
    _valid_conditional(data)
    eta, divergence = valid_number("eta", eta, above=0.0), as_divergence(divergence)
    xp = array_namespace(data.x)
    # `robust_risk` averages the K values R_eta(f) with equal weights. As c R_eta(f) = R_{c eta}(c f), scaling
    # the loss and eta of covariate k by c = K weight_k turns this average into the weighted mean.
    scale = data.weight * data.weight.shape[0]

    def scaled(x: Array, i: Array) -> Array:
        return xp.take(scale, i) * evaluate(loss, x, i)

    estimate = robust_risk(
        scaled, data.x, reference, eta * scale, divergence, n_samples=n_samples, rng=as_rng(rng), chunk=chunk
    )
    own = {name: getattr(estimate, name) / scale for name in ("values", "eta", "gap")}
    return replace(estimate, **own)


@dataclass(frozen=True)
class CausalValue:
    """The exact solution of a causal problem with finitely many points per covariate.

    - `value` (): the regularized value, Eq. (reg:casual:dual).
    - `supremum` (): the value without regularization, Eq. (casual:dual).
    - `losses` (K, n): the mean cost at each point, given its covariate.
    - `inner`: the solutions of the inner problems; inner.weights (K, n) is the distribution of x' given x in
      a worst-case transport plan.
    """

    value: Array
    supremum: Array
    losses: Array
    inner: WorstCase
    __repr__ = one_line


def causal_value(
    loss: Loss,
    data: Conditional,
    points: Array,
    eta: float | Array,
    divergence: Divergence | str,
    *,
    p: Array | None = None,
) -> CausalValue:
    """Solve the causal problem exactly, for finitely many points per covariate.

    Arguments:
    - `loss`: the result of `conditional_loss` for the same `data`.
    - `data`: a `Conditional` with K covariates.
    - `points` (K, n) + event: the points that each covariate may move to.
    - `eta`: a positive number, or an array (K,).
    - `divergence`: phi or its name.
    - `p` (K, n): the reference distribution nu_x, uniform by default. A point with p = 0 is unreachable.

    Returns a `CausalValue`. With torch losses that require a gradient, `value` and `supremum` have one.

    Reference: Eq. (casual:dual) and (reg:casual:dual) of Section 6.3.

    >>> import numpy as np
    >>> data = Conditional.stacked(np.zeros((1, 1)), np.array([[[0.0], [2.0]]]))
    >>> loss = conditional_loss(lambda x: x, lambda w, z: w[:, 0] * z[:, 0], data)
    >>> out = causal_value(loss, data, np.array([[[0.0], [1.0]]]), 1.0, "chi2")
    >>> float(out.value), float(out.supremum), out.losses.tolist()
    (0.625, 1.0, [[0.0, 1.0]])
    """
    _valid_conditional(data)
    check_array("points", points)
    check_same_array_type("points", points, data.x, other="data.x", dtype=True)
    K, event = data.x.shape[0], tuple(data.x.shape[1:])
    if points.ndim != data.x.ndim + 1 or tuple(points.shape) != (K, points.shape[1], *event):
        raise ValueError(
            f"points has shape {tuple(points.shape)}; expected (K, n) + event, with K = {K}, event = {event}"
        )
    if points.shape[1] == 0:
        raise ValueError(f"points has shape {tuple(points.shape)}; expected at least one point per covariate")
    xp = array_namespace(data.x)
    n = points.shape[1]
    i = xp.broadcast_to(xp.arange(K, dtype=xp.int64, device=device(points))[:, None], (K, n))
    losses = evaluate(loss, xp.reshape(points, (K * n, *event)), xp.reshape(i, (-1,)))
    losses = xp.reshape(losses, (K, n))
    inner = worst_case(losses, eta, as_divergence(divergence), p=p)
    p = valid_p(p, detach(losses))
    reachable = losses if p is None else xp.where(p > 0, losses, xp.full_like(losses, -xp.inf))
    supremum = xp.sum(data.weight * xp.max(reachable, axis=-1))
    return CausalValue(xp.sum(data.weight * inner.value), supremum, losses, inner)


def _valid_conditional(data: Conditional) -> None:
    if not isinstance(data, Conditional):
        raise TypeError(f"data is {data!r}; expected a Conditional, from Conditional.stacked or .grouped")
