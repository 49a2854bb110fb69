"""The inner problem: the worst-case distribution on m points, with a certificate of optimality.

    R(f) = max over gamma in the simplex of  sum_i gamma_i f_i - eta sum_i p_i phi(gamma_i/p_i)
         = min over mu of  mu + eta sum_i p_i phi*((f_i - mu)/eta)

f are the losses, eta is the price of the divergence phi, and phi* is the conjugate of phi. This is
Eq. (expression:R) of the paper's Section 3, with a reference distribution p in place of 1/m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from phiball.backends import (
    Array,
    array_namespace,
    detach,
    device,
    differentiable_solve,
    ignore_float_warnings,
    is_array_api_obj,
    is_half,
    is_jax,
    is_torch,
    is_traced,
    kernel_memory,
    to_single,
    tracks_derivatives,
)
from phiball.refimpl.inner.budget import solve_budget
from phiball.refimpl.inner.budget_derivatives import SolvedBudget
from phiball.refimpl.inner.derivatives import Solved
from phiball.refimpl.inner.divergences import (
    DIVERGENCES,
    Divergence,
    as_divergence,
    cressie_read,
    indicator,
)
from phiball.refimpl.inner.solvers import Solution, solve, solve_by_length, solve_ragged
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import (
    budget_in_range,
    check_array,
    check_budget,
    check_budget_range,
    check_eta,
    check_eta_range,
    check_finite,
    check_losses,
    check_p,
    check_same_array_type,
    eta_in_range,
    is_distribution,
    valid_budget,
    valid_eta,
    valid_p,
)


@dataclass(frozen=True)
class WorstCase:
    """The solution of an inner problem, batched over leading axes.

    - `value` (...): the optimal value.
    - `mu` (...): the multiplier of the constraint sum_i gamma_i = 1.
    - `weights` (..., m): gamma, the worst-case probabilities.
    - `gap` (...): the duality gap, an upper minus a lower bound on the optimal value. It is of the size of
      rounding errors in the dtype of the losses, and rounding may make it negative.
    - `eta` (...): the given price. With a budget, the multiplier of the budget constraint, which is the
      derivative of the value in the budget: 0 if the budget does not bind, inf at budget 0 for smooth phi.

    With a price, the two bounds are `dual_value` at `mu` and `primal_value` at `weights`. With a budget, they
    are eta * budget plus `dual_value` at `mu` and `eta`, and the expected loss under `weights`.
    docs/guides/inner.md states the accuracy.
    """

    value: Array
    mu: Array
    weights: Array
    gap: Array
    eta: Array
    __repr__ = one_line


def worst_case(
    losses: Array,
    eta: float | Array | None = None,
    divergence: str | Divergence = "entropic",
    *,
    budget: float | Array | None = None,
    p: Array | None = None,
    offsets: Array | list[int] | None = None,
    check: bool = True,
) -> WorstCase:
    r"""Find the worst-case distribution on given losses, at a price or within a budget for the divergence.

    $$\max_{\gamma \in \Delta_m} \sum_i \gamma_i f_i - \eta \sum_i p_i \phi(\gamma_i / p_i), \quad
    \text{or} \quad \max_\gamma \sum_i \gamma_i f_i \text{ subject to }
    \sum_i p_i \phi(\gamma_i / p_i) \le \text{budget}$$

    Arguments:
    - `losses` (..., m): f, a floating-point array of any supported library.
    - `eta` or `budget`, not both: a number or an array that broadcasts to losses.shape[:-1], positive for eta
      and nonnegative for a budget.
    - `divergence`: phi, a `Divergence`, or "entropic"/"kl", "quadratic"/"chi2", "absolute"/"tv", "hinge".
    - `p`: the reference distribution, an array that broadcasts to losses.shape; uniform by default.
    - `offsets` (n + 1,): for n rows of different lengths. Then losses is flat, and row r is
      losses[offsets[r] : offsets[r + 1]].
    - `check`: False skips the check that losses and results are finite.

    Returns a `WorstCase`, exact up to rounding, as its `gap` certifies. With torch and JAX, all fields except
    the gap are differentiable; for other libraries see `worst_case_jvp`. docs/guides/inner.md has details.

    Reference: Eq. (expression:R) and Theorem 1 (I).

    >>> import numpy as np
    >>> worst_case(np.array([0.0, 1.0]), eta=0.5, divergence="chi2")
    WorstCase(value=0.75, mu=0, weights of shape (2,), gap=0, eta=0.5)
    >>> worst_case(np.array([0.0, 1.0, 2.0]), budget=0.1, divergence="chi2").weights.round(4)
    array([0.1508, 0.3333, 0.5159])
    """
    divergence = as_divergence(divergence)
    if (eta is None) == (budget is None):
        raise TypeError(f"expected exactly one of eta and budget, got {'neither' if eta is None else 'both'}")
    if is_half(losses):
        single = worst_case(
            to_single(losses),
            to_single(eta),
            divergence,
            budget=to_single(budget),
            p=to_single(p),
            offsets=offsets,
            check=check,
        )
        return _round_to(single, losses.dtype)
    problem: _Problem = (_Price if budget is None else _Budget)(divergence, check)
    setting = eta if budget is None else budget
    if offsets is not None:
        return WorstCase(*_solve_ragged(problem, losses, offsets, setting, p))
    if is_jax(losses) or (is_torch(losses) and tracks_derivatives(losses, setting, p)):
        solution = differentiable_solve(type(problem), (divergence, check), losses, setting, p)
        return WorstCase(*(solution if eta is None else (*solution, _broadcast_eta(eta, solution[0]))))
    return WorstCase(*problem.solve(losses, setting, p, validated=False))


@dataclass(frozen=True)
class _Problem:
    """How to validate, solve and differentiate a problem, with the methods that `differentiable_solve` calls.

    `setting` is eta or the budget, `outputs` the number of fields that `maximise` returns, and `solved` the
    class that computes derivatives.
    """

    divergence: Divergence
    check: bool
    outputs: ClassVar[int]
    solved: ClassVar[Any]
    check_setting: ClassVar[Callable[..., bool]]
    check_range: ClassVar[Callable[..., None]]
    valid_setting: ClassVar[Callable[..., Array]]
    in_range: ClassVar[Callable[..., Array]]

    @property
    def has_kernel(self) -> bool:
        return self.divergence.family is not None

    def is_valid(self, setting: Array, p: Array | None) -> Array:
        valid = self.in_range(setting)
        return valid if p is None else valid & is_distribution(p)

    @staticmethod
    def to_text(divergence: Divergence, check: bool) -> str | None:
        """Encode a divergence of the library, and `check`, as text; None for a user's divergence."""
        return None if divergence.family is None else f"{divergence.family} {divergence.parameter} {check}"

    @classmethod
    def from_text(cls, text: str) -> _Problem:
        """The problem whose divergence and `check` were encoded by `to_text`."""
        family, parameter, check = text.split()
        make = {"indicator": indicator, "cressie_read": cressie_read}.get(family)
        return cls(DIVERGENCES[family] if make is None else make(float(parameter)), check == "True")

    def maximise(self, f: Array, setting: Array, p: Array | None) -> Solution:
        """Solve for valid arrays."""
        raise NotImplementedError

    def maximise_ragged(self, f: Array, offsets: Array, setting: Array, p: Array | None) -> Solution:
        """Solve for valid rows of different lengths."""
        raise NotImplementedError

    def validate(self, losses: Array, setting: float | Array, p: Array | None) -> None:
        """Raise unless the types and shapes are valid."""
        check_losses(losses)
        self.check_setting(setting, losses)
        if p is not None:
            check_p(p, losses)

    def solve(
        self, losses: Array, setting: float | Array, p: Array | None, *, validated: bool = True
    ) -> Solution:
        """Solve. Unless `validated`, check types and shapes first, and return all fields of `WorstCase`.

        If `validated`, a problem with a price returns its solution without the field eta.
        """
        # No conversion for a user's divergence: its functions expect arrays of the library of the losses.
        (f, setting, p), back = kernel_memory(losses, setting, p, convert=self.has_kernel)
        if validated:
            self.check_range(setting)
            return back(self.maximise(f, setting, p))
        check_losses(f)
        setting = self.valid_setting(setting, f)
        if p is not None:
            check_p(p, f)
        return back((*self.maximise(f, setting, p), setting)[:5])

    def jvp(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
        """The tangents of the solution, for `tangents` of the inputs (losses, setting, p).

        `outputs` is the solution without value and gap: (mu, weights), and eta where there is a budget.
        """
        return self.solved(self.divergence, *inputs, *outputs).jvp(*tangents)

    def vjp(
        self,
        inputs: tuple[Array, ...],
        outputs: tuple[Array, ...],
        factors: tuple[Array, ...],
        wanted: list[bool],
    ) -> Any:
        """The gradients in the inputs, each if `wanted`, for the cotangents `factors` of the solution."""
        return self.solved(self.divergence, *inputs, *outputs).vjp(*factors, wanted)


class _Price(_Problem):
    outputs = 4
    solved = Solved
    check_setting = staticmethod(check_eta)
    check_range = staticmethod(check_eta_range)
    valid_setting = staticmethod(valid_eta)
    in_range = staticmethod(eta_in_range)

    def maximise(self, f: Array, setting: Array, p: Array | None) -> Solution:
        return solve(f, setting, _cast_p(p, f), self.divergence, self.check)

    def maximise_ragged(self, f: Array, offsets: Array, setting: Array, p: Array | None) -> Solution:
        return solve_ragged(f, offsets, setting, _cast_p(p, f), self.divergence, self.check)


class _Budget(_Problem):
    outputs = 5
    solved = SolvedBudget
    check_setting = staticmethod(check_budget)
    check_range = staticmethod(check_budget_range)
    valid_setting = staticmethod(valid_budget)
    in_range = staticmethod(budget_in_range)

    def maximise(self, f: Array, setting: Array, p: Array | None) -> Solution:
        p = valid_p(p, f)
        if self.check and p is not None:
            check_finite("losses", f)  # also where p is zero
        return solve_budget(f, setting, p, self.divergence, self.check)

    def maximise_ragged(self, f: Array, offsets: Array, setting: Array, p: Array | None) -> Solution:
        return solve_by_length(self.maximise, f, offsets, setting, p)


def _cast_p(p: Array | None, f: Array) -> Array | None:
    if p is None:
        return None
    with ignore_float_warnings():  # `solve` rejects overflow as an invalid distribution
        return array_namespace(f).astype(p, f.dtype, copy=False)


def _broadcast_eta(eta: float | Array, value: Array) -> Array:
    """`eta` with the shape and dtype of `value`."""
    xp = array_namespace(value)
    if isinstance(eta, (int, float)):
        return xp.full_like(value, eta)
    return xp.broadcast_to(xp.astype(eta, value.dtype, copy=False), value.shape)


def _solve_ragged(
    problem: _Problem, losses: Array, offsets: Array, setting: float | Array, p: Array | None
) -> Solution:
    """Validate the arguments of `worst_case` with offsets, and solve; returns all fields of `WorstCase`."""
    check_array("losses", losses)
    if losses.ndim != 1 or losses.shape[0] == 0:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}; with offsets, expected a nonempty flat array"
        )
    offsets = _valid_offsets(offsets, losses)
    setting = problem.valid_setting(setting, losses, (offsets.shape[0] - 1,), rows="(len(offsets) - 1,)")
    if p is not None:
        check_array("p", p)
        check_same_array_type("p", p, losses)
        if p.shape != losses.shape:
            raise ValueError(
                f"p has shape {tuple(p.shape)}; expected the shape of losses, {tuple(losses.shape)}"
            )
    if tracks_derivatives(losses, setting, p):
        rule = type(problem), (problem.divergence, problem.check)

        def solve_rows(f: Array, setting: Array, p: Array | None) -> Solution:
            return (*differentiable_solve(*rule, f, setting, p), setting)[:5]

        return solve_by_length(solve_rows, losses, offsets, setting, p)
    (f, offsets, setting, p), back = kernel_memory(losses, offsets, setting, p, convert=problem.has_kernel)
    return back((*problem.maximise_ragged(f, offsets, setting, p), setting)[:5])


def _valid_offsets(offsets: Array, losses: Array) -> Array:
    """`offsets` as an integer array; raise unless they increase from 0 to the number of losses."""
    xp = array_namespace(losses)
    if isinstance(offsets, (list, tuple)):
        offsets = xp.asarray(offsets, device=device(losses))
    if not is_array_api_obj(offsets):
        raise TypeError(
            f"offsets is of type {type(offsets).__name__}; expected a list of integers, or an array from the "
            "library of the losses"
        )
    check_same_array_type("offsets", offsets, losses)
    if not xp.isdtype(offsets.dtype, "integral"):
        raise TypeError(f"offsets has dtype {offsets.dtype}; expected integers")
    if offsets.ndim != 1 or offsets.shape[0] < 2:
        raise ValueError(f"offsets has shape {tuple(offsets.shape)}; expected (n + 1,) for n >= 1 rows")
    first, last = int(offsets[0]), int(offsets[-1])
    if (first, last) != (0, losses.shape[0]):
        raise ValueError(
            f"offsets goes from {first} to {last}; expected from 0 to the number of losses, {losses.shape[0]}"
        )
    offsets = xp.astype(offsets, xp.int64, copy=False)
    if not xp.all(offsets[1:] > offsets[:-1]):
        row = int(xp.argmin(offsets[1:] - offsets[:-1]))
        raise ValueError(
            f"offsets goes from {int(offsets[row])} to {int(offsets[row + 1])} at row {row}; expected at "
            "least one loss per row"
        )
    return offsets


def _round_to(solution: WorstCase, dtype: Any) -> WorstCase:
    """Round a solution to half precision, and add the rounding error of the value to the gap."""
    values = {field.name: getattr(solution, field.name) for field in fields(solution)}
    value = values["value"]
    rounded = _cast(value, dtype)
    xp = array_namespace(value)
    error = xp.abs(detach(xp.astype(rounded, value.dtype)) - detach(value))
    # The factor and the last term, the smallest positive float16, cover the rounding of the gap itself.
    values["gap"] = (values["gap"] + error) * (1 + 2**-7) + 2**-24
    return WorstCase(**{name: _cast(x, dtype) for name, x in values.items()})


def _cast(x: Array, dtype: Any) -> Array:
    if is_traced(x):  # torch emits no warnings, and its compiler rejects the context manager
        return array_namespace(x).astype(x, dtype)
    with ignore_float_warnings():
        return array_namespace(x).astype(x, dtype)
