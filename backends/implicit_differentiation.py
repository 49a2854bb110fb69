"""Solvers as torch operations: any code solves the problem, and a `Rule` gives its derivatives.

Eager mode and torch.func use a torch.autograd.Function with both `backward` and `jvp`. torch.compile does not
support a Function with `jvp`; there a custom operator is used.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import Any, Protocol
from uuid import uuid4
from weakref import finalize, ref

import torch

from phiball.backends.arrays import is_recording

Tensors = tuple[Any, ...]  # some entries may be None


class Rule(Protocol):
    """An inner problem: its solver and the derivatives of the solution.

    The inputs are losses (..., m), `setting` (...), which is eta or the budget, and p (..., m) or None. The
    solution is the tuple (value, mu, weights, gap), followed by eta if the setting is a budget. The weights
    have shape (..., m), all others (...). All except the gap have derivatives.

    - The attribute `outputs` is the length of the solution, 4 or 5.
    - The attribute `has_kernel` says whether the divergence may have a compiled kernel.
    - `jvp` and `vjp` consist of differentiable operations, so that they can be differentiated again. Their
      argument `inputs` is the tuple (losses, setting, p); their argument `outputs` is the solution without
      value and gap.
    - Compiled graphs also need two static methods: to_text(*parameters) returns a text that identifies the
      rule, or None if there is none; from_text(text) returns the rule.
    """

    outputs: int
    has_kernel: bool

    def validate(self, losses: Any, setting: Any, p: Any) -> None:
        """Raise unless types and shapes are valid. Also check the value of a setting that is a number."""

    def solve(self, losses: Any, setting: Any, p: Any) -> Tensors:
        """Check the values of the setting, and return the solution."""

    def maximise(self, losses: Any, setting: Any, p: Any) -> Tensors:
        """The solution, without checking values, so that JAX can trace it."""

    def is_valid(self, setting: Any, p: Any) -> Any:
        """Whether the setting and p are valid, for each row (...)."""

    def jvp(self, inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Any:
        """The derivatives of the solution without the gap along `tangents` of the inputs (None for zero)."""

    def vjp(self, inputs: Tensors, outputs: Tensors, cotangents: Tensors, wanted: list[bool]) -> Any:
        """The gradients with respect to the inputs, for `cotangents` of the solution without the gap.

        A cotangent may be None, which means zero. `wanted` has one entry per input; gradients of the other
        inputs are not used.
        """


class _EagerSolve(torch.autograd.Function):  # type: ignore[misc]
    """The solver in eager mode. `forward` also saves the tensors: `setup_context` would be slower."""

    @staticmethod
    def forward(ctx: Any, losses: Any, setting: Any, p: Any, rule: Rule) -> Tensors:
        solution = rule.solve(losses, setting, p)
        _save_for_backward(ctx, (losses, setting, p), solution)
        ctx.rule = rule
        ctx.save_for_forward(losses, setting, p, *_without_value_and_gap(solution))
        return solution

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return *_input_gradients(ctx.rule, ctx, cotangents), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = ctx.saved_tensors
        value, mu, weights, *others = ctx.rule.jvp(saved[:3], saved[3:], tangents[:3])
        return value, mu, weights, None, *others


class _FunctorchSolve(_EagerSolve):
    """The solver inside torch.func, which requires a separate `setup_context`."""

    @staticmethod
    def forward(losses: Any, setting: Any, p: Any, rule: Rule) -> Tensors:  # type: ignore[override]
        return rule.solve(losses, setting, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: Tensors) -> None:
        _save_for_backward(ctx, inputs[:3], output)
        ctx.rule = inputs[3]
        ctx.save_for_forward(*inputs[:3], *_without_value_and_gap(output))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        def batch_first(x: Any, axis: int | None) -> Any:
            if x is None:
                return None
            return x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)

        batched = [batch_first(x, axis) for x, axis in zip(inputs[:3], in_dims, strict=False)]
        return _FunctorchSolve.apply(*batched, inputs[3]), (0,) * inputs[3].outputs


def _save_for_backward(ctx: Any, inputs: Tensors, solution: Tensors) -> None:
    """Save the tensors that `_input_gradients` reads; mark the gap as not differentiable."""
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(solution[3])
    ctx.save_for_backward(*inputs, *_without_value_and_gap(solution))


def _without_value_and_gap(solution: Tensors) -> Tensors:
    _, mu, weights, _, *others = solution
    return mu, weights, *others


def _input_gradients(rule: Rule, ctx: Any, cotangents: Any) -> list[Any]:
    """The gradients with respect to (losses, setting, p), or None; `cotangents` has one per output."""
    saved, wanted = ctx.saved_tensors, list(ctx.needs_input_grad[:3])
    cotangents = cotangents[:3] + cotangents[4:]
    if all(cotangent is None for cotangent in cotangents):
        return [None, None, None]
    gradients = rule.vjp(saved[:3], saved[3:], cotangents, wanted)
    return [gradient if needed else None for gradient, needed in zip(gradients, wanted, strict=True)]


# A compiled graph names its rule by a string. If the rule has a text (see `Rule`), the name contains it, and
# any process can recreate the rule. Otherwise the name contains a number, which is valid only in this process
# and while the rule's parameters exist. The tables hold weak references to the parameters, so that the
# parameters are freed with the compiled function.
_PROCESS = uuid4().hex
_name_by_key: dict[tuple[Any, ...], str] = {}
_rule_by_name: dict[str, tuple[Any, ...]] = {}
_next_number = count()


def _rule_name(kind: Any, *parameters: Any) -> str:
    _check_forward_mode()
    text = kind.to_text(*parameters)  # torch traces this call: the compiled function may create parameters
    return _number(kind, *parameters) if text is None else f"{kind.__module__} {kind.__qualname__} {text}"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _check_forward_mode() -> None:
    """Raise in forward mode: the custom operator has no forward derivative, and torch would return zero."""
    if _jvp_levels() > 0 or torch.autograd.forward_ad._current_level >= 0:
        raise NotImplementedError("forward-mode derivatives are not supported inside torch.compile")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number(kind: Any, *parameters: Any) -> str:
    """The name of a rule without a text; the same objects as `parameters` give the same name."""
    objects = [x for x in parameters if not isinstance(x, bool)]
    if not all(vars(x) for x in objects):
        raise ValueError("a custom divergence is created in the compiled function; create it outside")
    key = (kind, *(x if isinstance(x, bool) else id(x) for x in parameters))
    if key not in _name_by_key:
        name = _name_by_key[key] = f"{_PROCESS} own {next(_next_number)}"
        references = ((lambda x=x: x) if isinstance(x, bool) else ref(x) for x in parameters)
        _rule_by_name[name] = (kind, *references)
        for x in objects:
            finalize(x, _forget, key, name)
    return _name_by_key[key]


def _forget(key: tuple[Any, ...], name: str) -> None:
    _name_by_key.pop(key, None)
    _rule_by_name.pop(name, None)


def _rule_of_name(name: str) -> Rule:
    module, kind, text = name.split(" ", 2)
    if module.startswith("phiball."):
        return _rule_from_text(module, kind, text)
    make, *references = _rule_by_name.get(name, (None,))
    parameters = [reference() for reference in references]
    if make is None or any(x is None for x in parameters):
        raise RuntimeError(
            "the divergence of a compiled graph no longer exists; keep a reference to it while the graph is "
            "used, in the process that compiled it"
        )
    rule: Rule = make(*parameters)
    return rule


@lru_cache
def _rule_from_text(module: str, kind: str, text: str) -> Rule:
    rule: Rule = getattr(import_module(module), kind).from_text(text)
    return rule


def _operator(outputs: int) -> Any:
    """The custom operator for rules with this number of outputs."""
    tensors = ", ".join(["Tensor"] * outputs)

    def solve(losses: Any, setting: Any, p: Any, rule: str) -> Tensors:
        _check_forward_mode()  # again: the graph may have been traced outside forward mode
        inputs = losses.detach(), setting.detach(), None if p is None else p.detach()
        problem = _rule_of_name(rule)
        problem.validate(*inputs)  # only now, since a traced tensor has no values
        return problem.solve(*inputs)

    def fake(losses: Any, setting: Any, p: Any, rule: str) -> Tensors:
        shapes = [losses.shape[:-1]] * outputs
        shapes[2] = losses.shape
        return tuple(losses.new_empty(shape) for shape in shapes)

    def save(ctx: Any, inputs: Tensors, output: Tensors) -> None:
        _save_for_backward(ctx, inputs[:3], output)
        ctx.rule = inputs[3]

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return *_input_gradients(_rule_of_name(ctx.rule), ctx, cotangents), None

    operator = torch.library.custom_op(
        f"phiball::implicit{outputs}",
        solve,
        mutates_args=(),
        schema=f"(Tensor losses, Tensor setting, Tensor? p, str rule) -> ({tensors})",
    )
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=save)
    return operator


_OPERATORS = {outputs: _operator(outputs) for outputs in (4, 5)}


def _jvp_levels() -> int:
    """The number of torch.func.jvp calls that are active."""
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    jvp = torch._C._functorch.TransformType.Jvp
    return sum(level.key() == jvp for level in retrieve_all_functorch_interpreters())


def solve_by_rule(kind: Any, parameters: tuple[Any, ...], losses: Any, setting: Any, p: Any) -> Tensors:
    """Solve the problem of the rule kind(*parameters); the result carries derivatives."""
    recording = is_recording()
    if not recording:
        rule = kind(*parameters)
        rule.validate(losses, setting, p)
    rows = losses.shape[:-1]
    if not isinstance(setting, torch.Tensor):
        setting = torch.full(rows, float(setting), dtype=losses.dtype, device=losses.device)
    setting = setting.to(losses.dtype).expand(rows)
    if p is not None:
        if p.shape[-1] != losses.shape[-1]:  # torch would broadcast a last axis of length 1
            raise ValueError("p and losses have last axes of different lengths; expected equal lengths")
        p = p.to(losses.dtype).expand(losses.shape)
    solution: Tensors
    if recording:
        solution = _OPERATORS[kind.outputs](losses, setting, p, _rule_name(kind, *parameters))
    else:
        transformed = torch._C._are_functorch_transforms_active()
        if transformed and _jvp_levels() > 1:  # pytorch#197867: the second derivative would be zero
            raise NotImplementedError(
                "jvp of jvp (jacfwd of jacfwd) is not supported: torch returns zero for it; use "
                "torch.func.hessian, or jacrev for one of the two"
            )
        function = _FunctorchSolve if transformed else _EagerSolve
        solution = function.apply(losses, setting, p, rule)
    return solution
