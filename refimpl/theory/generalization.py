"""Generalization bounds of Section 5: the population risk in terms of the sample risk.

With probability 1 - delta over n independent data points, for all parameters at once,

    R_adv <= (R_adv on the sample) + 3 sqrt(log(2/delta)/n)
             + inf over alpha of (8 alpha + (24/sqrt n) int_alpha^1 sqrt(log N(eps)) d eps),

for losses in [0, 1], such as `ramp_loss`. R_adv is the robust risk. N(eps) is the covering number of the
class of losses, as functions of perturbed points, in the supremum norm over all perturbed data points. The
covering number of the robust losses is not larger (claim I1). A bound of 1 or more is `vacuous`. Only x is
perturbed, in an linf ball; labels are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isnan, log, log1p, prod, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, detach
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.printing import one_line
from phiball.refimpl.risk.estimate import Estimate
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import check_array, valid_count, valid_number

_TINY = 2.0**-1000  # a smaller alpha counts as 0
_NEGLIGIBLE = 60.0  # integrals over [0, 1] start at exp(-60) instead of 0


@dataclass(frozen=True)
class CoveringBound:
    """The three terms of the bound on the population risk minus the sample risk, and the best alpha.

    N is the covering number of `covering_bound`.
    - `alpha`: where the infimum is attained; 0 if it is attained in the limit alpha -> 0.
    - `approximation`: 8 alpha.
    - `complexity`: (24/sqrt n) int_alpha^1 sqrt(log N(eps)) d eps.
    - `confidence`: 3 sqrt(log(2/delta)/n).
    """

    alpha: float
    approximation: float
    complexity: float
    confidence: float
    __repr__ = one_line

    @property
    def total(self) -> float:
        """The sum of the three terms."""
        return self.approximation + self.complexity + self.confidence

    @property
    def vacuous(self) -> bool:
        """Whether the bound is trivial: losses in [0, 1] never differ by more than 1."""
        return self.total >= 1


@dataclass(frozen=True)
class Certificate:
    """A bound on the population risk R_adv, valid with probability 1 - delta.

    - `risk`: the sample risk. Its estimation error is not included in the bound.
    - `bound`: the `CoveringBound`; `value`: the bound on R_adv, `risk` + `bound.total`.
    """

    risk: float
    bound: CoveringBound
    value: float
    __repr__ = one_line

    @property
    def vacuous(self) -> bool:
        """Whether the certificate is trivial: the risk of a loss in [0, 1] is at most 1."""
        return self.value >= 1


def covering_bound(n: int, delta: float, log_covering: Callable[[float], float]) -> CoveringBound:
    r"""Bound population risk minus sample risk, from covering numbers of a class of losses in [0, 1].

    $$3 \sqrt{\frac{\log(2/\delta)}{n}} + \inf_\alpha \Big( 8 \alpha
    + \frac{24}{\sqrt{n}} \int_\alpha^1 \sqrt{\log N(\epsilon)}\, d\epsilon \Big)$$

    Arguments:
    - `n`: the number of independent data points.
    - `delta`: the probability that the bound fails, in (0, 1).
    - `log_covering`: a function eps -> log N(eps) for 0 < eps <= 1, nonnegative and nonincreasing; for
      example `lambda eps: log(33)` for a class of 33 losses, or `linear_covering`.

    Returns the terms of the bound and their sum `total`, which is vacuous if it is 1 or more.

    Reference: Proposition (cover) of Section 5.

    >>> from math import log
    >>> from phiball.theory import covering_bound
    >>> for n in (50, 20_000):
    ...     bound = covering_bound(n, 0.1, lambda eps: log(33))
    ...     print(round(bound.total, 3), bound.vacuous)
    7.081 True
    0.354 False
    """
    valid_count("n", n, 1)
    _valid_delta(delta)
    if not callable(log_covering):
        raise TypeError(f"log_covering is {log_covering!r}; expected a function eps -> log N(eps)")

    def checked(eps: float) -> float:
        value = float(log_covering(eps))
        if isnan(value) or value < 0:
            raise ValueError(f"log_covering({eps!r}) is {value!r}; expected a nonnegative number")
        return value

    alpha = _best_alpha(n, checked)
    # Integrate over log eps: if N is a power of 1/eps, the integrand in eps is singular at 0.
    start = log(alpha) if alpha > 0 else -_NEGLIGIBLE
    integral = _integral(lambda u: sqrt(checked(exp(u))) * exp(u), start, 0.0) if start < 0 else 0.0
    return CoveringBound(alpha, 8 * alpha, 24 / sqrt(n) * integral, _confidence(n, delta))


def linear_covering(
    eps: float, *, K: int, d: int, Lambda: float, Psi: float, rho: float, varrho: float
) -> float:
    r"""Bound the log covering number of the ramp loss of linear classifiers $x \mapsto Wx$.

    $$\log N \le K d \log\Big(1 + \frac{4 \Lambda (\Psi + \sqrt{d}\, \rho)}{\varrho\, \epsilon}\Big)$$

    Arguments:
    - `eps`: the radius of the cover, a positive number.
    - `K`, `d`: the numbers of classes and of features.
    - `Lambda`, `Psi`: bounds on the Frobenius norm of W and on the Euclidean norm of x.
    - `rho`: the radius of the linf perturbations; `varrho`: the margin of the ramp loss.

    Returns a float. The bound follows from a cover of the ball of all W. Unlike the paper's bound (see
    `linear_capacity`), it has no hidden constant, and grows only with log(1/eps) (claim I5).

    >>> from functools import partial
    >>> from phiball.theory import covering_bound, linear_covering
    >>> log_covering = partial(linear_covering, K=2, d=2, Lambda=1.0, Psi=1.0, rho=0.1, varrho=1.0)
    >>> [round(covering_bound(n, 0.1, log_covering).total, 3) for n in (10_000, 100_000, 1_000_000)]
    [0.819, 0.259, 0.082]
    """
    valid_count("K", K, 2)
    valid_number("eps", eps, above=0.0)
    # A change of W by r in Frobenius norm changes a logit by at most r (Psi + sqrt(d) rho), and the loss by
    # at most 2/varrho times as much.
    return (
        K * d * log1p(4 * _max_logit(d, Lambda, Psi, rho) / (valid_number("varrho", varrho, above=0.0) * eps))
    )


def linear_capacity(*, d: int, Lambda: float, Psi: float, rho: float, varrho: float) -> float:
    r"""The capacity of the paper's linear class, $A = \Lambda \sqrt{d}\, (\Psi + \sqrt{d}\, \rho) / \varrho$.

    Arguments:
    - `d`, `Psi`, `rho`, `varrho`: as in `linear_covering`.
    - `Lambda`: a bound on the norm |W|_2,2 of the paper.

    Returns a float, for `excess_order`. In the paper, log N(eps) = O~(A^2/eps^2) for the ramp loss of linear
    classifiers. The paper also assumes a bound on |W|_1,inf, which A does not contain.

    Reference: the linear class of Section 5.

    >>> from phiball.theory import linear_capacity
    >>> linear_capacity(d=4, Lambda=2.0, Psi=1.0, rho=0.25, varrho=0.5)
    12.0
    """
    return sqrt(d) * _max_logit(d, Lambda, Psi, rho) / valid_number("varrho", varrho, above=0.0)


def network_capacity(
    *, d: int, s: Sequence[float], a: Sequence[float], Psi: float, rho: float, varrho: float
) -> float:
    r"""The capacity of a class of networks with L layers and 1-Lipschitz activations.

    $$A = L \sqrt{d}\, \frac{\Psi + \sqrt{d}\, \rho}{\varrho} \prod_l s_l\, \sqrt{\sum_l a_l^2 / s_l^2}$$

    Arguments:
    - `s`: bounds on the spectral norms of the L weight matrices (for the last: on the norms of its rows).
    - `a`: bounds on the Frobenius norms of the L weight matrices.
    - `d`, `Psi`, `rho`, `varrho`: as in `linear_covering`.

    Returns a float, for `excess_order`. As for `linear_capacity`, log N(eps) = O~(A^2/eps^2). The paper
    prints 1/eps, but computes its bound with 1/eps^2 (claim I6).

    Reference: the network class of Section 5.

    >>> from phiball.theory import network_capacity
    >>> network_capacity(d=1, s=[1.0, 2.0, 1.0], a=[1.0, 4.0, 2.0], Psi=0.5, rho=0.5, varrho=1.0)
    18.0
    """
    if len(s) == 0 or len(s) != len(a):
        raise ValueError(f"s has {len(s)} entries and a {len(a)}; expected one for each layer")
    for name, values in (("s", s), ("a", a)):
        for value in values:
            valid_number(name, value, above=0.0)
    layers = len(s) * prod(s) * sqrt(sum((a_l / s_l) ** 2 for a_l, s_l in zip(a, s, strict=True)))
    return layers * sqrt(d) * _max_logit(d, 1.0, Psi, rho) / valid_number("varrho", varrho, above=0.0)


def excess_order(n: int, delta: float, capacity: float, *, constant: float = 1.0) -> float:
    r"""The order of population minus sample risk, $3 \sqrt{\log(2/\delta)/n} + 8/n + c A/\sqrt{n}$.

    Arguments:
    - `n`: the number of data points; `delta`: the probability of failure, in (0, 1).
    - `capacity`: A, from `linear_capacity` or `network_capacity`.
    - `constant`: c, which the paper does not give.

    Returns a float. It is an order of magnitude, not a bound: the paper's O~ hides the constant and
    logarithms of n and of all parameters. (log N = A^2/eps^2 with alpha = 1/n gives c = 24 log n.) For a
    bound, use `covering_bound` with an explicit covering number.

    Reference: the two examples of Section 5.

    >>> from phiball.theory import excess_order
    >>> round(excess_order(10_000, 0.1, 2.0), 4)
    0.0727
    """
    valid_count("n", n, 1)
    _valid_delta(delta)
    valid_number("constant", constant, above=0.0)
    return _confidence(n, delta) + 8 / n + constant * valid_number("capacity", capacity, above=0.0) / sqrt(n)


def regularized_adversarial_risk(
    loss: Loss,
    x: Array,
    reference: Distribution,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    n_samples: int = 100,
    rng: Any = None,
) -> Estimate:
    """Estimate the robust risk of a loss in [0, 1], for `generalization_bound`.

    Arguments:
    - `x` (N,) + event: the data points, which are perturbed. Labels are not.
    - The other arguments are as in `robust_risk`.

    Returns the estimate of `robust_risk`, which is biased low (see its `bias`). Raises ValueError for a loss
    outside [0, 1], such as the cross-entropy.

    Reference: Eq. (R:adv:theta) of Section 5.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball import ENTROPIC, Ball
    >>> from phiball.theory import ramp_loss, regularized_adversarial_risk
    >>> x, y = np.array([[1.0, 0.0], [0.2, 0.0], [0.0, 0.5]]), np.array([0, 0, 1])
    >>> loss = lambda x, i: ramp_loss(x, y[i], varrho=1.0)
    >>> ball = Ball(np.inf, 0.1)
    >>> risk = regularized_adversarial_risk(loss, x, ball, 0.1, ENTROPIC, n_samples=1000, rng=rng(0))
    >>> print(np.round(risk.value, 2))  # the mean of the losses without perturbation is 0.43
    0.47
    """

    def checked(x: Array, i: Array) -> Array:
        f = loss(x, i)
        check_array("loss(x, i)", f)
        xp, plain = array_namespace(f), detach(f)
        if f.ndim and f.shape[0] and not xp.all((plain >= 0) & (plain <= 1)):
            low, high = float(xp.min(plain)), float(xp.max(plain))
            raise ValueError(
                f"loss(x, i) ranges from {low:g} to {high:g}; expected values in [0, 1], as from ramp_loss "
                "(the cross-entropy is unbounded)"
            )
        return f

    if not callable(loss):
        raise TypeError(f"loss is {loss!r}; expected a function loss(x, i)")
    return robust_risk(checked, x, reference, eta, divergence, n_samples=n_samples, rng=rng)


def generalization_bound(risk: float | Array, bound: CoveringBound) -> Certificate:
    """Bound the population risk by the sample risk and a `covering_bound`.

    Arguments:
    - `risk`: the sample risk, a number in [0, 1], for example `value + bias` of
      `regularized_adversarial_risk`. Its estimation error is not included in the result.
    - `bound`: the result of `covering_bound`.

    Returns a `Certificate`; its `value` is vacuous if it is 1 or more.

    Reference: Proposition (cover) of Section 5.

    >>> from math import log
    >>> from phiball.theory import covering_bound, generalization_bound
    >>> certificate = generalization_bound(0.25, covering_bound(20_000, 0.1, lambda eps: log(33)))
    >>> round(certificate.value, 3), certificate.vacuous
    (0.604, False)
    """
    if not isinstance(bound, CoveringBound):
        raise TypeError(f"bound is {bound!r}; expected a result of covering_bound")
    if isinstance(risk, (bool, str, bytes, complex)):
        raise TypeError(f"risk is {risk!r}; expected a number in [0, 1]")
    number = float(detach(risk))
    if not 0 <= number <= 1:
        raise ValueError(f"risk is {number!r}; expected a number in [0, 1], the risk of a loss in [0, 1]")
    return Certificate(number, bound, number + bound.total)


def _best_alpha(n: int, log_covering: Callable[[float], float]) -> float:
    """The alpha in [0, 1] that minimizes the bound; 0 if it is below _TINY.

    The derivative of the bound, 8 - (24/sqrt n) sqrt(log N(alpha)), is positive where log N(alpha) < n/9.
    """
    if log_covering(1.0) > n / 9:
        return 1.0
    low = 1.0
    while log_covering(low) <= n / 9:  # search from above, because log N may overflow near 0
        low /= 2
        if low < _TINY:
            return 0.0
    high = 2 * low
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if log_covering(middle) <= n / 9 else (middle, high)
    return high


# The Gauss-Legendre rule with seven nodes on [-1, 1], exact for polynomials up to degree 13.
_NODES = (0.0, 0.4058451513773972, 0.7415311855993945, 0.9491079123427585)
_WEIGHTS = (0.4179591836734694, 0.3818300505051189, 0.2797053914892766, 0.1294849661688697)


def _gauss_rule(f: Callable[[float], float], a: float, b: float) -> float:
    """The Gauss-Legendre approximation of the integral of f over [a, b]."""
    middle, half = (a + b) / 2, (b - a) / 2
    pairs = zip(_NODES[1:], _WEIGHTS[1:], strict=True)
    ends = sum(w * (f(middle - half * x) + f(middle + half * x)) for x, w in pairs)
    return half * (_WEIGHTS[0] * f(middle) + ends)


def _integral(f: Callable[[float], float], a: float, b: float) -> float:
    """Integrate f >= 0 over [a, b], with a relative error of about 1e-12.

    An interval is halved until the rule on it agrees with the sum of the rule on its two halves.
    """
    panels = max(1, round(b - a))
    ends = [a + (b - a) * k / panels for k in range(panels + 1)]
    todo = [(left, right, _gauss_rule(f, left, right)) for left, right in pairwise(ends)]
    done, scale = 0.0, sum(value for _, _, value in todo)
    while todo:
        left, right, whole = todo.pop()
        middle = (left + right) / 2
        halves = _gauss_rule(f, left, middle), _gauss_rule(f, middle, right)
        # At a jump of f the two never agree: stop at a negligible width.
        if abs(sum(halves) - whole) <= 1e-12 * scale or right - left < 1e-12:
            done += sum(halves)
        else:
            todo += [(left, middle, halves[0]), (middle, right, halves[1])]
    return done


def _confidence(n: int, delta: float) -> float:
    return 3 * sqrt(log(2 / delta) / n)


def _max_logit(d: int, Lambda: float, Psi: float, rho: float) -> float:
    """Lambda (Psi + sqrt(d) rho): the largest logit on the linf ball around an x with |x|_2 <= Psi."""
    valid_count("d", d, 1)
    rho = valid_number("rho", rho, least=0.0)
    return valid_number("Lambda", Lambda, above=0.0) * (valid_number("Psi", Psi, above=0.0) + sqrt(d) * rho)


def _valid_delta(delta: float) -> None:
    if not (isinstance(delta, (int, float)) and 0 < delta < 1):
        raise ValueError(f"delta is {delta!r}; expected a number in (0, 1), the probability of failure")
