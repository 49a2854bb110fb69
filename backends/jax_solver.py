"""Solvers as differentiable JAX functions.

In main memory they call the compiled kernels by a callback. On other devices, and for problems or backends
without kernels, XLA compiles the reference implementation.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from phiball.backends.arrays import is_abstract
from phiball.backends.selection import active

if TYPE_CHECKING:
    from phiball.backends.implicit_differentiation import Rule

Outputs = tuple[Any, ...]


def solve_by_rule(kind: Any, parameters: tuple[Any, ...], losses: Any, setting: Any, p: Any) -> Outputs:
    """Solve the problem of the rule kind(*parameters); the result can be transformed by JAX."""
    kind(*parameters).validate(losses, setting, p)
    setting = jnp.broadcast_to(jnp.asarray(setting, losses.dtype), losses.shape[:-1])
    if p is not None:
        p = jnp.broadcast_to(p.astype(losses.dtype), losses.shape)
    rule = _Identity(kind, parameters)
    result: Outputs = _solver(rule, bool(active().kernels))(losses, setting, p)
    return result


class _Identity:
    """A rule as a hashable key: equal for equal texts or, without a text, for the same parameter objects."""

    def __init__(self, kind: Any, parameters: tuple[Any, ...]) -> None:
        self.kind, self.parameters = kind, parameters
        text = kind.to_text(*parameters)
        self._key = kind, tuple(map(id, parameters)) if text is None else text

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._key == other._key

    def rule(self) -> Rule:
        rule: Rule = self.kind(*self.parameters)
        return rule


@lru_cache(maxsize=256)
def _solver(identity: _Identity, kernels: bool) -> Any:
    """The differentiable function (losses, setting, p) -> solution, for inputs of valid shapes."""
    rule = identity.rule()

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def solve(losses: Any, setting: Any, p: Any) -> Outputs:
        concrete = not any(map(is_abstract, (losses, setting, p)))
        if not (kernels and _on_host(losses) and rule.has_kernel):
            solution: Outputs = native(losses, setting, p)
            if is_abstract(solution[0]) or jnp.all(jnp.isfinite(solution[0])):
                return solution
        if concrete:
            return rule.solve(losses, setting, p)  # with kernels if possible; raises for invalid values
        shapes = [losses.shape[:-1]] * rule.outputs
        shapes[2] = losses.shape
        outputs = tuple(jax.ShapeDtypeStruct(shape, losses.dtype) for shape in shapes)
        inputs = losses, setting, p
        return tuple(jax.pure_callback(on_host, outputs, *inputs, vmap_method="broadcast_all"))

    def on_host(losses: Any, setting: Any, p: Any) -> Outputs:
        losses, setting = np.asarray(losses), np.asarray(setting)
        solution = rule.solve(losses, setting, None if p is None else np.asarray(p))
        return tuple(np.asarray(x, losses.dtype) for x in solution)

    @jax.jit  # type: ignore[untyped-decorator]
    def native(losses: Any, setting: Any, p: Any) -> Outputs:
        """The reference, compiled; NaN where the setting or p is invalid, as compiled code cannot raise."""
        valid = rule.is_valid(setting, p)
        return tuple(
            jnp.where(valid if x.ndim == setting.ndim else valid[..., None], x, jnp.nan)
            for x in rule.maximise(losses, setting, p)
        )

    @partial(solve.defjvp, symbolic_zeros=True)
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Outputs, Outputs]:
        solution = solve(*primals)
        directions = tuple(None if isinstance(t, SymbolicZero) else t for t in tangents)
        _, mu, weights, gap, *others = solution
        tangent = rule.jvp(primals, (mu, weights, *others), directions)
        return solution, (*tangent[:3], jnp.zeros_like(gap), *tangent[3:])

    return solve


def _on_host(x: Any) -> bool:
    """Whether `x` is in main memory; a tracer is assumed to be on JAX's default device."""
    if is_abstract(x):
        return bool(jax.default_backend() == "cpu")
    return all(device.platform == "cpu" for device in x.devices())
