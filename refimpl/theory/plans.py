"""Hyperparameters of SGD from the paper's two tables, with proven bounds.

Throughout, F(theta) is the robust risk, F* its minimum, and F^L(theta) the expected risk with 2^L sampled
points per data point. L_f is a Lipschitz constant of the loss in theta, losses lie in [0, B], and V is the
gradient estimate. Inner problems are solved exactly, so that E V = grad F^L.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, sinh, sqrt

from phiball.refimpl.inner.divergences import Divergence, as_divergence, centred, cressie_read
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.estimators import RTMLMC, SG
from phiball.refimpl.validation import valid_count, valid_number


@dataclass(frozen=True)
class Plan:
    """Settings of projected SGD, and the bound that they guarantee.

    - `estimator`: SG or RTMLMC, with its level.
    - `batch`: the number of data points drawn independently for each gradient.
    - `steps`, `step_size`: the arguments of `projected_sgd`.
    - `bound`: a bound on E F(theta) - F* (convex), or on E|gradient mapping|^2 (nonconvex).
    """

    estimator: SG | RTMLMC
    batch: int
    steps: int
    step_size: float
    bound: float
    __repr__ = one_line

    @property
    def evaluations(self) -> float:
        """The expected number of perturbed points in a run, which has steps - 1 gradients."""
        return self.estimator.evaluations * self.batch * (self.steps - 1)


def gradient_second_moment(estimator: SG | RTMLMC, lipschitz: float, chi_square: float) -> float:
    r"""Bound the second moment $\mathbb{E}|V|^2$ of an estimator, for one data point.

    It is $L_f^2$ for SG, and for RT-MLMC

    $$(2 - 2^{-L}) L_f^2 \Big[ 1 + \sum_{l=1}^L 2^l \min\Big(1, \frac{C}{2^l - 1}\Big) \Big]$$

    Arguments:
    - `estimator`: an `SG` or `RTMLMC`, of level L.
    - `lipschitz`: L_f.
    - `chi_square`: C, a bound on m sum_i (gamma_i - 1/m)^2 for worst-case weights gamma_1, ..., gamma_m of m
      points; possibly infinite, see `chi_square_bound`.

    Returns a float. Reference: Proposition 3 of Section 3, corrected (claim D6).

    >>> from phiball import RTMLMC, SG
    >>> from phiball.theory import gradient_second_moment
    >>> gradient_second_moment(SG(7), 2.0, 1.0), gradient_second_moment(RTMLMC(1), 1.0, 1.0)
    (4.0, 4.5)
    """
    lipschitz = _valid_constant("lipschitz", lipschitz)
    if not isinstance(estimator, (SG, RTMLMC)):
        raise TypeError(f"estimator is {estimator!r}; expected SG(level) or RTMLMC(level)")
    if chi_square != inf:
        chi_square = valid_number("chi_square", chi_square, least=0.0)
    if isinstance(estimator, SG):
        return lipschitz**2
    top = estimator.level
    series = sum(2.0**k * min(1.0, chi_square / (2.0**k - 1)) for k in range(1, top + 1))
    return (2 - 2.0**-top) * lipschitz**2 * (1 + series)


def chi_square_bound(divergence: str | Divergence, bound: float, eta: float) -> float:
    r"""A bound $C$ on $m \sum_i (\gamma_i - 1/m)^2$ for all inner problems with losses in $[0, B]$.

    $m$ is the number of losses, and $\gamma$ are the worst-case weights.

    Arguments:
    - `divergence`: "entropic", "quadratic" or `indicator(alpha)`; others raise ValueError.
    - `bound`: B, a nonnegative number.
    - `eta`: a positive number.

    Returns a float. Entropic: sinh^2(B/(2 eta)). Quadratic: B^2/(4 eta^2) for B <= 2 eta, otherwise
    B/eta - 1. Both are attained by losses that only take the values 0 and B. Indicator: 1/alpha - 1. Contrary
    to the paper, the entropic and quadratic phi have no finite C without a bound B: one very large loss gets
    all the weight.

    Reference: Assumption 3 of Section 3, corrected.

    >>> from phiball.theory import chi_square_bound
    >>> chi_square_bound("quadratic", 1.0, 0.1), round(chi_square_bound("entropic", 1.0, 0.5), 6)
    (9.0, 1.381098)
    """
    divergence = as_divergence(divergence)
    ratio = _ratio(valid_number("bound", bound, least=0.0), valid_number("eta", eta, above=0.0))
    if divergence.family == "entropic":
        return sinh(_valid_exponent(ratio) / 2) ** 2
    if centred(divergence) == cressie_read(2):
        return ratio**2 / 4 if ratio <= 2 else ratio - 1
    if divergence.family == "indicator" and divergence.parameter is not None:
        return 1 / divergence.parameter - 1
    raise ValueError(
        f"divergence is {divergence.name}; expected entropic, quadratic or indicator(alpha): no finite bound "
        "is known for others"
    )


def gradient_bias(level: int, *, lipschitz: float, bound: float, eta: float) -> float:
    r"""Bound the gradient's bias with $2^L$ points and the entropic divergence.

    $$|\nabla F^L - \nabla F| \le L_f r (r - 1)/2^L, \qquad r = e^{B/(2 \eta)}$$

    Arguments:
    - `level`: L; `lipschitz`: L_f; `bound`: B; `eta`: a positive number.

    Returns a float. Reference: a lemma of Theorem 2 of Section 3. The paper's bound, L_f e^(2B/eta) 2^(-L/2),
    would need twice the level.

    >>> from phiball.theory import gradient_bias
    >>> round(gradient_bias(3, lipschitz=1.0, bound=1.0, eta=1.0), 6)  # 0.0492 for losses 0 or 1 at random
    0.133695
    """
    level = valid_count("level", level, 0)
    lipschitz, bound = _valid_constant("lipschitz", lipschitz), _valid_constant("bound", bound)
    half = _valid_exponent(_ratio(bound, _valid_constant("eta", eta))) / 2
    return lipschitz * exp(half) * expm1(half) / 2.0**level


def convex_plan(
    delta: float,
    *,
    lipschitz: float,
    diameter: float,
    idf: float,
    chi_square: float = inf,
    estimator: type[SG] | type[RTMLMC] = RTMLMC,
) -> Plan:
    r"""Choose settings of SGD for a convex loss such that E F(theta) - F* <= `delta`.

    Arguments:
    - `delta`: a positive number.
    - `lipschitz`: L_f, a Lipschitz constant of the loss in theta.
    - `diameter`: D, at least |theta_1 - theta*|.
    - `idf`: G, a Lipschitz constant of the inverse distribution function of the loss in every ball. There is
      no finite G for a linear loss on a ball in which two or more coordinates matter.
    - `chi_square`: C, a bound on the chi-square divergence of the weights, see `chi_square_bound`. SG does
      not need it; without it, RT-MLMC has no advantage over SG.
    - `estimator`: the class `RTMLMC` or `SG`.

    Returns a `Plan`. With M^2 from `gradient_second_moment`, the average of the iterates has

    $$\mathbb{E} F(\theta) - F^* \le \frac{G}{2^L + 1} + \frac{D M}{\sqrt{T}}, \qquad
    L = \lceil \log_2(4 G/\delta) \rceil$$

    The number of evaluations is O(delta^-3) for SG, and O(delta^-2 log^2(1/delta)) for RT-MLMC with finite C.

    Reference: Table 1 and Theorem 1 of Section 3, corrected.

    >>> from phiball import RTMLMC
    >>> from phiball.theory import convex_plan
    >>> convex_plan(0.1, lipschitz=1.0, diameter=1.0, idf=2.0, chi_square=0.25, estimator=RTMLMC)
    Plan(estimator=RTMLMC(level=7, allocation='random'), batch=1, steps=879, step_size=0.01346, bound=0.09999)
    """
    delta, diameter = _valid_constant("delta", delta), _valid_constant("diameter", diameter)
    idf = _valid_constant("idf", idf, zero=True)
    chosen = _valid_estimator(estimator)(_level(4 * idf / delta, "delta", delta))
    bias = idf / (2**chosen.level + 1)
    reach = diameter * sqrt(gradient_second_moment(chosen, lipschitz, chi_square))  # D M
    ratio = reach / (delta - bias)
    steps = _round_up(ratio * ratio, "delta", delta)
    step_size = diameter * diameter / (reach * sqrt(steps))  # D/(M sqrt T)
    return Plan(chosen, 1, steps, step_size, bias + reach / sqrt(steps))


def nonconvex_plan(
    epsilon: float,
    *,
    lipschitz: float,
    smoothness: float,
    bound: float,
    eta: float,
    constrained: bool,
    estimator: type[SG] | type[RTMLMC] = RTMLMC,
) -> Plan:
    r"""Choose settings of SGD for a small gradient, with a smooth loss and the entropic divergence.

    Arguments:
    - `epsilon`: the accuracy: E|gradient mapping|^2 <= epsilon^2 at a random iterate (average=False).
    - `lipschitz`: L_f; `smoothness`: S_f, a Lipschitz constant of the gradient of the loss in theta.
    - `bound`: B, the losses lie in [0, B]; `eta`: the price of the divergence.
    - `constrained`: whether Theta is a proper subset of R^d.
    - `estimator`: the class `RTMLMC` or `SG`.

    Returns a `Plan`. With S = S_f + L_f^2/eta, M^2 from `gradient_second_moment` and beta from
    `gradient_bias`, the bound is

    $$\mathbb{E}|\nabla F|^2 \le \beta^2 + \frac{2B}{\tau T} + S \tau M^2, \qquad
    \tau = \sqrt{\frac{2B}{S T M^2}}, \quad \text{batch} = 1$$

    without constraints, and with them (Ghadimi, Lan and Zhang, Corollary 3)

    $$\mathbb{E}|\text{mapping}|^2 \le 2 \beta^2 + 2 \Big( \frac{8 S B}{T} + \frac{6 M^2}{\text{batch}} \Big),
    \qquad \tau = \frac{1}{2S}$$

    The number of evaluations is O(epsilon^-4 log^2(1/epsilon)) for RT-MLMC, and O(epsilon^-5) for SG.

    Reference: Table 2 and Theorem 2 of Section 3, corrected.

    >>> from phiball.theory import nonconvex_plan
    >>> plan = nonconvex_plan(0.3, lipschitz=1, smoothness=1, bound=1, eta=1, constrained=False)
    >>> plan.estimator.level, plan.batch, plan.steps, plan.bound <= 0.09
    (3, 1, 12777, True)
    """
    epsilon, smoothness = _valid_constant("epsilon", epsilon), _valid_constant("smoothness", smoothness)
    lipschitz, bound = _valid_constant("lipschitz", lipschitz), _valid_constant("bound", bound)
    eta = _valid_constant("eta", eta)
    if not isinstance(constrained, bool):
        raise TypeError(f"constrained is {constrained!r}; expected True or False")
    S = smoothness + lipschitz**2 / eta
    counted = 2 if constrained else 1  # coefficient of beta^2 in the bound
    at_zero = gradient_bias(0, lipschitz=lipschitz, bound=bound, eta=eta)
    chosen = _valid_estimator(estimator)(_level(2 * sqrt(counted) * at_zero / epsilon, "epsilon", epsilon))
    bias = counted * (at_zero / 2**chosen.level) ** 2
    moment = gradient_second_moment(chosen, lipschitz, sinh(bound / (2 * eta)) ** 2)
    left = epsilon**2 - bias
    if constrained:
        batch = _round_up(24 * moment / left, "epsilon", epsilon)
        steps = _round_up(32 * S * bound / left, "epsilon", epsilon)
        rest = 2 * (8 * S * bound / steps + 6 * moment / batch)
        return Plan(chosen, batch, steps, 1 / (2 * S), bias + rest)
    steps = _round_up(8 * bound * S * moment / left / left, "epsilon", epsilon)
    step_size = sqrt(2 * bound / (S * steps * moment))
    return Plan(chosen, 1, steps, step_size, bias + 2 * sqrt(2 * bound * S * moment / steps))


def _valid_constant(name: str, value: object, *, zero: bool = False) -> float:
    """`value` as a float; raise ValueError outside [1e-30, 1e30], where products might over- or underflow."""
    number = valid_number(name, value, least=0.0 if zero else None, above=None if zero else 0.0)
    if not (1e-30 <= number <= 1e30 or (zero and number == 0)):
        raise ValueError(f"{name} is {value!r}; expected a number from 1e-30 to 1e30: change the units")
    return number


def _ratio(bound: float, eta: float) -> float:
    ratio = bound / eta
    if not ratio <= 1e150:
        raise ValueError(f"eta is {eta!r} with bound = {bound!r}; expected bound/eta of at most 1e150")
    return ratio


def _valid_exponent(ratio: float) -> float:
    if ratio > 700:
        raise ValueError(
            f"eta is too small: bound/eta = {ratio:g}, and e^(bound/eta) overflows; expected at most 700"
        )
    return ratio


def _level(ratio: float, name: str, value: float) -> int:
    """The smallest L with 2^L >= ratio; `name` and `value` are the argument that an error names."""
    for level in range(31):
        if 2**level >= ratio:
            return level
    raise ValueError(
        f"{name} is {value!r}, which needs {ratio:.2g} samples per data point; expected at least "
        f"{value * ratio / 2**30:.2g}, which needs 2^30"
    )


def _round_up(x: float, name: str, value: float) -> int:
    """x rounded up to an integer, with a margin for rounding errors in x."""
    if not x <= 1e50:
        raise ValueError(
            f"{name} is {value!r}, which needs {x:.2g} steps or data points; expected a larger {name}"
        )
    return max(1, ceil(x * (1 + 2.0**-48)))


def _valid_estimator(estimator: object) -> type[SG] | type[RTMLMC]:
    if estimator is SG:
        return SG
    if estimator is RTMLMC:
        return RTMLMC
    raise TypeError(f"estimator is {estimator!r}; expected the class SG or RTMLMC, without a level")
