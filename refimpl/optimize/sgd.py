"""Projected stochastic gradient descent (Algorithm 1), mirror descent and the gradient mapping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phiball.backends import Array, array_namespace, as_rng, detach
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count, valid_number

Map = Callable[[Array], Array]
Step = Callable[[Array, Array, float], Array]  # maps theta, V and the step size to the next theta


@dataclass(frozen=True)
class Iterates:
    """The result of a descent method.

    - `theta`: the solution, which is the average of the iterates or a random one.
    - `last`: the last iterate, from which another run can continue.
    """

    theta: Array
    last: Array
    __repr__ = one_line


def _identity(theta: Array) -> Array:
    """The projection onto the whole space."""
    return theta


def projected_sgd(
    gradient: Map,
    theta0: Array,
    *,
    step_size: float | Callable[[int], float],
    steps: int,
    project: Map = _identity,
    average: bool = True,
    rng: Any = None,
) -> Iterates:
    r"""Minimize a function F by projected stochastic gradient descent, with gradient estimates $V$.

    $$\theta_{t+1} = \operatorname{Proj}_\Theta(\theta_t - \tau V(\theta_t))$$

    Arguments:
    - `gradient`: gradient(theta) returns V, an estimate of the gradient of F at theta, in its shape.
    - `theta0`: the starting point, an array of any shape; theta_1 = Proj(theta0).
    - `step_size`: tau, a positive number, or a function of t = 1, 2, ... that returns one.
    - `steps`: T, the number of iterates theta_1, ..., theta_T. There are T - 1 gradients, as in the paper.
    - `project`: the projection onto the feasible set Theta, such as `onto_box(0, 1)`; none by default.
    - `average`: True to return the mean of the T iterates (for a convex F), False for a random iterate.
    - `rng`: for average=False, a seed, a generator of NumPy or torch, an `Rng`, or None.

    Several runs can be stacked along leading axes of theta0. Let theta* be a minimizer of F. If F is convex,
    E|V|^2 <= M^2, |theta_1 - theta*| <= D and the step size is D/(M sqrt T), then the average theta of the
    iterates has E F(theta) - min F <= D M/sqrt T. `convex_plan` and `nonconvex_plan` choose step size and T.

    Reference: Algorithm 1 of Section 3, with the constants corrected (claims F1 and F2).

    >>> import numpy as np
    >>> from phiball.optimize import onto_box, projected_sgd
    >>> run = projected_sgd(np.sign, np.array([1.0]), step_size=0.1, steps=101, project=onto_box(-1.0, 1.0))
    >>> abs(float(run.theta[0])) < 0.1
    True
    """
    _valid_function("project", project)

    def step(theta: Array, v: Array, size: float) -> Array:
        return _like_theta(project(theta - size * v), theta, "project(theta)")

    theta = _copy_start(theta0)
    theta = _like_theta(project(theta), theta, "project(theta)")
    return _descend(gradient, theta, step, step_size, steps, average, rng)


def mirror_descent(
    gradient: Map,
    theta0: Array,
    *,
    step_size: float | Callable[[int], float],
    steps: int,
    average: bool = True,
    rng: Any = None,
) -> Iterates:
    r"""Minimize F over the simplex by mirror descent, $\theta_{t+1} \propto \theta_t e^{-\tau V}$.

    Arguments:
    - `theta0` (..., d): the starting point, with positive entries that sum to 1 along the last axis.
    - The other arguments and the result are as in `projected_sgd`.

    If F is convex, E max_j V_j^2 <= M^2, all entries of theta0 are 1/d and the step size is
    sqrt(2 log(d)/T)/M, then the average theta of the T iterates has
    E F(theta) - min F <= M sqrt(2 log(d)/T). `convex_plan` with a diameter of sqrt(2 log d)
    chooses this step size.

    Reference: the footnote to Algorithm 1, with the entropy as the mirror map.

    >>> import numpy as np
    >>> from phiball.optimize import mirror_descent
    >>> cost = np.array([1.0, 0.0, 2.0])
    >>> run = mirror_descent(lambda theta: cost, np.full(3, 1 / 3), step_size=1.0, steps=50)
    >>> int(np.argmax(run.last)), bool(run.last[1] > 0.999)
    (1, True)
    """
    theta = _copy_start(theta0)
    xp = array_namespace(theta)
    if theta.ndim == 0 or theta.shape[-1] == 0:
        raise ValueError(f"theta0 has shape {tuple(theta.shape)}; expected at least one entry per row")
    total = xp.sum(theta, axis=-1, keepdims=True)
    # If the sum differs from 1 by rounding only, theta0 is accepted, and rescaled below.
    loose = 1e-6 if theta.dtype == xp.float64 else 1e-4
    if not (xp.all(theta > 0) and xp.all(xp.abs(total - 1) <= loose)):
        raise ValueError(
            "theta0 leaves the open simplex; expected positive entries that sum to 1 along the last axis"
        )

    def step(theta: Array, v: Array, size: float) -> Array:
        log_theta = xp.log(theta) - size * v
        new = xp.exp(log_theta - xp.max(log_theta, axis=-1, keepdims=True))
        # An entry that underflows to 0 would stay 0: replace it by a tiny positive number.
        tiny = theta.shape[-1] * float(xp.finfo(new.dtype).smallest_normal)
        new = xp.maximum(new, xp.full_like(new, tiny))
        return new / xp.sum(new, axis=-1, keepdims=True)

    return _descend(gradient, theta / total, step, step_size, steps, average, rng)


def _descend(
    gradient: Map,
    theta: Array,
    step: Step,
    step_size: float | Callable[[int], float],
    steps: int,
    average: bool,
    rng: Any,
) -> Iterates:
    """The loop of both methods, starting at theta_1 = theta; `step` computes the next iterate."""
    xp = array_namespace(theta)
    _valid_function("gradient", gradient)
    steps = valid_count("steps", steps)
    if not isinstance(average, bool):
        raise TypeError(f"average is {average!r}; expected True or False")
    if not callable(step_size):
        valid_number("step_size", step_size, above=0.0)
    pick = 1 if average else 1 + int(as_rng(rng).integers(steps, (), like=theta))
    chosen = theta
    total = xp.astype(theta, xp.float64)  # a long sum in single precision would lose small changes
    for t in range(1, steps):
        size = valid_number("step_size(t)", step_size(t), above=0.0) if callable(step_size) else step_size
        # `gradient` gets a copy of theta, which it may modify or mark as requiring a gradient.
        v = _like_theta(detach(gradient(xp.asarray(theta, copy=True))), theta, "gradient(theta)")
        if not xp.all(xp.isfinite(v)):
            raise ValueError(
                f"gradient(theta) contains NaN or infinity at t = {t}; expected finite numbers: "
                "reduce step_size if the iterates diverge"
            )
        theta = step(theta, v, size)
        total = total + xp.astype(theta, xp.float64)
        chosen = theta if t + 1 == pick else chosen
    if not xp.all(xp.isfinite(theta)):
        raise ValueError(
            f"step_size is {step_size!r}, and the iterates diverge; expected a smaller step_size"
        )
    return Iterates(xp.astype(total / steps, theta.dtype) if average else chosen, theta)


def gradient_mapping(gradient: Array, theta: Array, *, step_size: float, project: Map = _identity) -> Array:
    r"""The gradient mapping $(\theta - \operatorname{Proj}_\Theta(\theta - \tau \nabla F(\theta)))/\tau$.

    Arguments:
    - `gradient`: grad F(theta), of the shape of theta.
    - `theta`: the point, an array of any shape.
    - `step_size`: tau, a positive number.
    - `project`: the projection onto Theta; none by default.

    Returns an array of the shape of theta, whose norm is the paper's measure of stationarity. Without a
    projection it is the gradient. (The paper misprints delta for the step size in front of the gradient.)

    >>> import numpy as np
    >>> from phiball.optimize import gradient_mapping, onto_box
    >>> print(gradient_mapping(np.array([-3.0, 2.0]), np.ones(2), step_size=0.5, project=onto_box(0.0, 1.0)))
    [0. 2.]
    """
    check_array("theta", theta)
    step_size = valid_number("step_size", step_size, above=0.0)
    _valid_function("project", project)
    v = _like_theta(gradient, theta, "gradient")
    return (theta - _like_theta(project(theta - step_size * v), theta, "project(theta)")) / step_size


def _copy_start(theta0: Array) -> Array:
    """A copy of theta0 without gradient; raise unless it is an array of finite numbers."""
    check_array("theta0", theta0)
    xp = array_namespace(theta0)
    if not xp.all(xp.isfinite(theta0)):
        raise ValueError("theta0 contains NaN or infinity; expected finite numbers")
    return xp.asarray(detach(theta0), copy=True)


def _like_theta(x: Array, theta: Array, name: str) -> Array:
    """`x` in the dtype of theta; raise unless it is an array of the same library and shape."""
    check_array(name, x)
    check_same_array_type(name, x, theta, other="theta")
    if tuple(x.shape) != tuple(theta.shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected that of theta, {tuple(theta.shape)}")
    return array_namespace(theta).astype(x, theta.dtype, copy=False)


def _valid_function(name: str, f: object) -> None:
    if not callable(f):
        raise TypeError(f"{name} is {f!r}; expected a function of theta")
