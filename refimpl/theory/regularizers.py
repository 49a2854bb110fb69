"""The regularizers of Section 4: first-order approximations of the robust risk minus the plain loss.

    E_z [ R(f; z) - f(z) ]  ~  E_z [ inf over mu of  mu + eta E_b phi*((g.b - mu)/eta) ],      g = grad f(z),

where R(f; z) is the robust risk at z, and b is uniform on the ball of radius rho around 0. Every function
takes gradients g (N,) + event and returns one value per data point; the paper's regularizer is the mean of
these values. With torch, a model can be trained with a regularizer, from the gradients
g = `phiball.backends.input_gradient(loss, x, i, create_graph=True)`:

    (loss(x, i) + surrogate(g, ball, eta, ENTROPIC)).mean().backward()

Theorem 3 of the paper states when the limits r1, r2 and r3 apply as rho and eta tend to 0; claims H1 to H10
verify and correct the theorem. 0 <= surrogate <= r2 always holds.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from typing import Any

from phiball.backends import Array, array_namespace, as_rng, detach, ignore_float_warnings
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence, as_divergence, centred, cressie_read
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.sampling.streaming import check_reference, each_eta
from phiball.refimpl.theory.linear_risk import linear_risk
from phiball.refimpl.types import Distribution
from phiball.refimpl.validation import broadcasts, check_array, valid_count, valid_number


def surrogate(g: Array, ball: Ball, eta: float | Array, divergence: str | Divergence = "entropic") -> Array:
    r"""The robust risk of the linearized loss minus $f(z)$.

    $$\inf_\mu \mu + \eta\, \mathbb{E}_b\Big[\phi^*\Big(\frac{g^\top b - \mu}{\eta}\Big)\Big],
    \qquad b \text{ uniform on the ball}$$

    Arguments:
    - `g` (N,) + event: the gradient of the loss at each data point.
    - `ball`: a `Ball` without clip.
    - `eta`: a positive number, or an array that broadcasts to (N,).
    - `divergence`: phi or its name.

    Returns an array (N,), one value per data point. It can be computed for
    - the entropic phi and norm 1, 2 or inf, as eta log E exp(g.b/eta); torch can differentiate it twice;
    - every phi with norm 2, or with any norm if d = 1, by a problem in one variable; torch can differentiate
      it once, and the gradient is the mean of b under the worst-case distribution;
    - the quadratic phi with any norm, as `r3`, if rho ||g||_* <= eta for all gradients (claim H7).

    In other cases ValueError is raised: use `surrogate_estimate`, which samples the ball.

    Reference: Eq. (surrogate) of Section 4, before the expectation over z.

    >>> import numpy as np
    >>> from phiball import ENTROPIC, QUADRATIC, Ball
    >>> from phiball.theory import surrogate
    >>> g = np.array([[1.0], [2.0]])
    >>> print(np.round(surrogate(g, Ball(np.inf, 1.0), 1.0, ENTROPIC), 8))  # log(sinh(g)/g)
    [0.16143936 0.59522019]
    >>> print(np.round(surrogate(g, Ball(2, 1.0), 1.0, QUADRATIC), 8))  # 1/6, and 2 - (4/3) sqrt(2) + 1/2
    [0.16666667 0.61438192]
    """
    _valid_ball(ball)
    eta = _valid_problem(g, ball, eta)
    divergence = as_divergence(divergence)
    xp = array_namespace(g)
    event_ndim = g.ndim - 1
    if divergence.family == "entropic" and ball.norm in (1, 2, inf):
        scale = xp.reshape(eta, (-1, *[1] * event_ndim))
        with ignore_float_warnings():
            return eta * ball.log_mgf(g / scale, event_ndim=event_ndim)
    d = ball.dimension(g.shape, event_ndim=event_ndim)
    if d == 0:
        return 0 * eta
    if ball.norm == 2 or d == 1:
        return _one_dimensional(g, ball, eta, divergence)
    quadratic = centred(divergence) == cressie_read(2)
    with ignore_float_warnings():
        reach = xp.max(ball.radius * ball.dual_norm(detach(g), event_ndim=event_ndim) / eta)
    if quadratic and reach <= 1:
        return r3(g, ball, eta, divergence)
    why = f", and rho ||g||_*/eta reaches {float(reach):.3g} > 1" if quadratic else ""
    raise ValueError(
        f"divergence is {divergence.name}, ball.norm is {ball.norm:g} and d is {d}{why}: no exact value is "
        "known; expected norm 2, the entropic divergence or d = 1, or use surrogate_estimate"
    )


def surrogate_estimate(
    g: Array,
    reference: Distribution,
    eta: float | Array,
    divergence: str | Divergence = "entropic",
    *,
    n_samples: int = 100,
    rng: Any = None,
) -> Array:
    """Estimate the `surrogate` from sampled perturbations, for every reference distribution and divergence.

    Arguments:
    - `reference`: any distribution with a method `sample`, for example a `Ball` or a `Gaussian`.
    - `n_samples`: the number of sampled perturbations per data point.
    - `rng`: a seed, a generator of NumPy or torch, an `Rng`, or None.
    - The other arguments are as in `surrogate`.

    Returns an array (N,), which torch can differentiate once. It is biased low, because samples miss the
    extreme points of the ball. The bias is O(1/n_samples) for a smooth phi, but large in high dimension with
    a small eta.

    Reference: Eq. (surrogate) of Section 4.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.theory import surrogate_estimate
    >>> g = np.array([[1.0, 0.5]])
    >>> value = surrogate_estimate(g, Ball("linf", 1.0), 2.0, "chi2", n_samples=100_000, rng=0)
    >>> print(np.round(value, 2))  # Var(g.b)/(2 eta) = (5/12)/4 = 0.104
    [0.1]
    """
    check_reference(reference)
    divergence, rng = as_divergence(divergence), as_rng(rng)
    eta = _valid_problem(g, reference, eta)
    valid_count("n_samples", n_samples, 1)
    xp = array_namespace(g)
    b = reference.sample(xp.zeros_like(detach(g)), n_samples, rng=rng, event_ndim=g.ndim - 1)
    b = xp.reshape(b, (g.shape[0], n_samples, prod(g.shape[1:])))
    linear = xp.sum(xp.reshape(g, (g.shape[0], 1, -1)) * b, axis=-1)
    return worst_case(linear, eta, divergence).value


def r1(g: Array, ball: Ball, C: float, divergence: str | Divergence = "entropic") -> Array:
    r"""The limit of the regularizer for $\rho/\eta \to C$: $\rho$ times a risk measure of $g^\top b$.

    $$\rho\, S_{1/C}(g^\top b), \qquad
    S_{1/C}(X) = \inf_\mu \mu + \frac{1}{C} \mathbb{E}[\phi^*(C (X - \mu))],
    \qquad b \text{ uniform on the unit ball}$$

    Arguments:
    - `C`: a positive number.
    - The other arguments are as in `surrogate`.

    Returns an array (N,), the `surrogate` at eta = rho/C. r1 increases with C. The ratio r1/r2 tends to 1 as
    C -> infinity, and the ratio of r1 to r3 at eta = rho/C tends to 1 as C -> 0 (claim H9).

    Reference: Eq. (R:1) of Section 4, before the expectation.

    >>> import numpy as np
    >>> from phiball import ENTROPIC, Ball
    >>> from phiball.theory import r1
    >>> print(np.round(r1(np.array([[0.6, 0.0, 0.8]]), Ball(2, 0.1), 1.0, ENTROPIC), 8))  # (log 3 - 1)/10
    [0.00986123]
    """
    _valid_ball(ball)
    C = valid_number("C", C, above=0.0)
    return ball.radius * surrogate(g, replace(ball, radius=1.0), 1 / C, divergence)


def r2(g: Array, ball: Ball) -> Array:
    r"""The limit of the regularizer for $\rho/\eta \to \infty$: the dual norm $\rho \Vert g \Vert_*$.

    Arguments:
    - `g` (N,) + event: the gradient of the loss at each data point.
    - `ball`: a `Ball` without clip.

    Returns an array (N,), the largest increase of the linearized loss in each ball. The limit holds if
    (0, inf) lies in the domain of phi, which excludes `indicator` (claim H4).

    Reference: Eq. (R:2) of Section 4, before the expectation.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.theory import r2
    >>> print(r2(np.array([[3.0, -4.0]]), Ball(2, 0.5)))
    [2.5]
    """
    _valid_ball(ball)
    _valid_problem(g, ball, 1.0)
    with ignore_float_warnings():
        return ball.radius * ball.dual_norm(g, event_ndim=g.ndim - 1)


def r3(g: Array, ball: Ball, eta: float | Array, divergence: str | Divergence = "entropic") -> Array:
    r"""The limit of the regularizer for $\rho/\eta \to 0$: a multiple of the variance of $g^\top b$.

    $$\frac{\operatorname{Var}_b[g^\top b]}{2 \eta\, \phi''(1)}, \qquad b \text{ uniform on the ball}$$

    The arguments are as in `surrogate`; phi needs a second derivative phi''(1) > 0, its `curvature1`.

    Returns an array (N,). As b lies in the ball of radius rho, the variance includes the paper's factor
    rho^2. For the quadratic phi, r3 equals the surrogate if and only if rho ||g||_* <= eta (claim H7). For
    the entropic phi in linf, surrogate = r3 - (rho^4/eta^3) sum_j g_j^4/180 + smaller terms (claim H8).

    Reference: Eq. (R:3) of Section 4, before the expectation.

    >>> import numpy as np
    >>> from phiball import QUADRATIC, Ball
    >>> from phiball.theory import r3
    >>> print(r3(np.array([[3.0, -4.0]]), Ball(2, 0.5), 2.5, QUADRATIC))  # (1/4) (25/4)/5
    [0.3125]
    """
    _valid_ball(ball)
    eta = _valid_problem(g, ball, eta)
    divergence = as_divergence(divergence)
    if not 0 < divergence.curvature1 < inf:
        raise ValueError(
            f"divergence is {divergence.name}, with phi''(1) = {divergence.curvature1:g}; expected a "
            "positive and finite second derivative at 1"
        )
    with ignore_float_warnings():
        return ball.variance(g, event_ndim=g.ndim - 1) / (2 * eta * divergence.curvature1)


def _one_dimensional(g: Array, ball: Ball, eta: Array, divergence: Divergence) -> Array:
    """eta h(rho ||g||_*/eta) with h of linear_risk.py; the gradient in g is h' times argmax_b g.b."""
    xp = array_namespace(g)
    fixed, event_ndim = detach(g), g.ndim - 1
    with ignore_float_warnings():
        t = ball.radius * ball.dual_norm(fixed, event_ndim=event_ndim) / eta
    if not xp.all(xp.isfinite(t)):
        raise ValueError("rho ||g||_*/eta overflows: increase eta")
    d = ball.dimension(g.shape, event_ndim=event_ndim)
    h, slope = linear_risk(xp.astype(t, xp.float64, copy=False), d, divergence)
    value = eta * xp.astype(h, g.dtype, copy=False)
    if fixed is g:
        return value
    mean = xp.reshape(ball.steepest(fixed, event_ndim=event_ndim), (g.shape[0], -1))
    mean = xp.astype(slope, g.dtype, copy=False)[:, None] * mean
    return value + xp.sum(mean * xp.reshape(g - fixed, (g.shape[0], -1)), axis=-1)  # adds 0, with a gradient


def _valid_problem(g: Array, distribution: Distribution, eta: float | Array) -> Array:
    """Validate g, the distribution and eta; return eta as an array (N,)."""
    _valid_gradients(g)
    if getattr(distribution, "clip", None) is not None:
        raise ValueError(
            f"ball is {distribution!r}; expected no clip, because gradients do not determine the data points"
        )
    shape = tuple(getattr(eta, "shape", ()))
    if not broadcasts(shape, (g.shape[0],)):
        raise ValueError(
            f"eta has shape {shape}; expected a number, or one that broadcasts to ({g.shape[0]},)"
        )
    return each_eta(eta, detach(g))


def _valid_gradients(g: Array) -> None:
    check_array("g", g)
    if g.ndim == 0 or prod(g.shape) == 0:
        raise ValueError(f"g has shape {tuple(g.shape)}; expected (N,) + event, with at least one gradient")
    xp = array_namespace(g)
    if not xp.all(xp.isfinite(detach(g))):
        raise ValueError("g contains NaN or infinity; expected finite gradients")


def _valid_ball(ball: Ball) -> None:
    if not isinstance(ball, Ball):
        raise TypeError(
            f"ball is {ball!r}; expected a Ball (surrogate_estimate also takes other distributions)"
        )
