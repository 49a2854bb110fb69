"""Solvers as torch operations: solved by any code, differentiated by rules of their own.

In eager mode and under torch.func an autograd function does it, with a rule for each mode. Under
torch.compile, which takes no function with a forward-mode rule, a custom operator does.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

Outputs = tuple[Any, Any, Any, Any]


class Rule(Protocol):
    """A problem of (losses, eta, p) with the solution (value, mu, weights, gap), and its derivatives.

    `inputs` are (losses, eta, p) and `outputs` the solution. The products of the derivatives are written in
    torch operations, which are differentiated for second derivatives.
    """

    def validate(self, losses: Any, eta: Any, p: Any) -> None:
        """Raise unless the types and shapes are right; the numbers are left to `solve`."""

    def solve(self, losses: Any, eta: Any, p: Any) -> Outputs:
        """(value, mu, weights, gap), whose shapes are losses.shape with or without the last axis."""

    def jvp(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        """The derivatives of value, mu and weights along `tangents`, where None is zero."""

    def vjp(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], factors: tuple[Any, ...], wanted: list[bool]
    ) -> Any:
        """The gradients in the inputs that are `wanted`, for factors of value, mu and weights or None."""


class _Implicit(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(losses: Any, eta: Any, p: Any, rule: Rule) -> Outputs:
        return rule.solve(losses, eta, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        ctx.rule = inputs[3]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[3])
        ctx.save_for_backward(*inputs[:3], *output[1:3])
        ctx.save_for_forward(*inputs[:3], *output[1:3])

    @staticmethod
    def backward(ctx: Any, *factors: Any) -> Any:
        saved = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        return *_gradients(ctx.rule, saved, factors, wanted), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = ctx.saved_tensors
        return *ctx.rule.jvp(saved[:3], saved[3:], tangents[:3]), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        def first(x: Any, axis: int | None) -> Any:
            if x is None:
                return None
            return x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)

        batched = [first(x, axis) for x, axis in zip(inputs[:3], in_dims, strict=False)]
        return _Implicit.apply(*batched, inputs[3]), (0, 0, 0, 0)


def _gradients(rule: Rule, saved: Any, factors: Any, wanted: list[bool]) -> list[Any]:
    if all(factor is None for factor in factors[:3]):
        return [None, None, None]
    gradients = rule.vjp(saved[:3], saved[3:], factors[:3], wanted)
    return [gradient if needed else None for gradient, needed in zip(gradients, wanted, strict=True)]


# A graph holds a number in the place of the rule. The rules live as long as the graphs, which no one counts.
_rules: dict[tuple[Any, ...], int] = {}
_numbered: list[Rule] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number(kind: Any, *parameters: Any) -> int:
    key = (kind, *((type(x), x) if isinstance(x, bool) else (id(x),) for x in parameters))
    if key not in _rules:
        _rules[key] = len(_numbered)
        _numbered.append(kind(*parameters))
    return _rules[key]


@torch.library.custom_op("phiball::implicit", mutates_args=())  # type: ignore[untyped-decorator]
def _operator(
    losses: torch.Tensor, eta: torch.Tensor, p: torch.Tensor | None, rule: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _numbered[rule].solve(losses.detach(), eta.detach(), None if p is None else p.detach())


@_operator.register_fake  # type: ignore[untyped-decorator]
def _(losses: Any, eta: Any, p: Any, rule: int) -> Outputs:
    rows = losses.shape[:-1]
    return losses.new_empty(rows), losses.new_empty(rows), torch.empty_like(losses), losses.new_empty(rows)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    ctx.rule = inputs[3]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])
    ctx.save_for_backward(*inputs[:3], *output[1:3])


def _backward(ctx: Any, *factors: Any) -> Any:
    wanted = list(ctx.needs_input_grad[:3])
    return *_gradients(_numbered[ctx.rule], ctx.saved_tensors, factors, wanted), None


_operator.register_autograd(_backward, setup_context=_save)


def solve(kind: Any, parameters: tuple[Any, ...], losses: Any, eta: Any, p: Any) -> Outputs:
    """Solve the problem of the rule kind(*parameters); the result carries derivatives."""
    compiling = torch.compiler.is_compiling()
    if not compiling:
        rule = kind(*parameters)
        rule.validate(losses, eta, p)
    rows = losses.shape[:-1]
    if not isinstance(eta, torch.Tensor):
        eta = torch.full(rows, float(eta), dtype=losses.dtype, device=losses.device)
    eta = eta.to(losses.dtype).expand(rows)
    if p is not None:
        if p.shape[-1] != losses.shape[-1]:  # which would be broadcast
            raise ValueError("p and losses have last axes of different lengths; expected the same")
        p = p.to(losses.dtype).expand(losses.shape)
    solution: Outputs
    if compiling:
        solution = _operator(losses, eta, p, _number(kind, *parameters))
    else:
        solution = _Implicit.apply(losses, eta, p, rule)
    return solution
