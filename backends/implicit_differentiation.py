"""Solvers as torch operations, solved by any code and differentiated by their own rules.

Eager mode and torch.func use an autograd function with a rule for each mode. torch.compile, which does not
support functions with a forward-mode rule, uses a custom operator.
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

Outputs = tuple[Any, ...]


class Rule(Protocol):
    """A problem of (losses, setting, p) with a solution, and its derivatives.

    `setting` is one number per row, such as eta. The solution is (value, mu, weights, gap, ...), `outputs`
    tensors with one entry per row, except the weights, which have the shape of the losses. All but the gap
    have derivatives. `jvp` and `vjp` consist of torch operations, which are differentiated for second
    derivatives; they get the inputs (losses, setting, p), and the solution without value and gap.

    Compiled graphs also need the static methods to_text(*parameters), which returns None or a text, and
    from_text(text), which returns the rule.
    """

    outputs: int

    def validate(self, losses: Any, setting: Any, p: Any) -> None:
        """Raise unless types and shapes are valid; a setting that is not a tensor must be a valid number."""

    def solve(self, losses: Any, setting: Any, p: Any) -> Outputs:
        """The solution, after a check of the values of the setting."""

    def jvp(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        """The derivatives of the solution without the gap along `tangents`, where None means zero."""

    def vjp(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], factors: tuple[Any, ...], wanted: list[bool]
    ) -> Any:
        """The gradients in the `wanted` inputs, for factors of the solution, or None."""


class _Solver(torch.autograd.Function):  # type: ignore[misc]
    """For eager mode, where one call is faster than two."""

    @staticmethod
    def forward(ctx: Any, losses: Any, setting: Any, p: Any, rule: Rule) -> Outputs:
        solution = rule.solve(losses, setting, p)
        _keep(ctx, (losses, setting, p), solution)
        ctx.rule = rule
        ctx.save_for_forward(losses, setting, p, *_saved(solution))
        return solution

    @staticmethod
    def backward(ctx: Any, *factors: Any) -> Any:
        return *_gradients(ctx.rule, ctx, factors), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = ctx.saved_tensors
        value, mu, weights, *others = ctx.rule.jvp(saved[:3], saved[3:], tangents[:3])
        return value, mu, weights, None, *others


class _Transformed(_Solver):
    """For torch.func, which solves and saves in two calls."""

    @staticmethod
    def forward(losses: Any, setting: Any, p: Any, rule: Rule) -> Outputs:  # type: ignore[override]
        return rule.solve(losses, setting, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        _keep(ctx, inputs[:3], output)
        ctx.rule = inputs[3]
        ctx.save_for_forward(*inputs[:3], *_saved(output))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        def first(x: Any, axis: int | None) -> Any:
            if x is None:
                return None
            return x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)

        batched = [first(x, axis) for x, axis in zip(inputs[:3], in_dims, strict=False)]
        return _Transformed.apply(*batched, inputs[3]), (0,) * inputs[3].outputs


def _keep(ctx: Any, inputs: tuple[Any, ...], solution: Outputs) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(solution[3])
    ctx.save_for_backward(*inputs, *_saved(solution))


def _saved(solution: Outputs) -> Outputs:
    """The solution without value and gap."""
    _, mu, weights, _, *others = solution
    return mu, weights, *others


def _gradients(rule: Rule, ctx: Any, factors: Any) -> list[Any]:
    saved, wanted = ctx.saved_tensors, list(ctx.needs_input_grad[:3])
    factors = factors[:3] + factors[4:]
    if all(factor is None for factor in factors):
        return [None, None, None]
    gradients = rule.vjp(saved[:3], saved[3:], factors, wanted)
    return [gradient if needed else None for gradient, needed in zip(gradients, wanted, strict=True)]


# A graph identifies the rule by a string: by its text if it has one, which every process understands, and
# otherwise by a number, which this process understands while the parameters exist. The graph's owner keeps
# them; only weak references are kept here.
_PROCESS = uuid4().hex
_names: dict[tuple[Any, ...], str] = {}
_named: dict[str, tuple[Any, ...]] = {}
_counter = count()


def _name(kind: Any, *parameters: Any) -> str:
    _check_forward_mode()
    text = kind.to_text(*parameters)  # traced, so that the parameters may be made in the compiled function
    return _number(kind, *parameters) if text is None else f"{kind.__module__} {kind.__qualname__} {text}"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _check_forward_mode() -> None:
    """Raise in forward mode: the operator has no rule for it, and the derivative would be zero."""
    if _jvp_levels() > 0 or torch.autograd.forward_ad._current_level >= 0:
        raise NotImplementedError("forward-mode derivatives are not supported inside torch.compile")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number(kind: Any, *parameters: Any) -> str:
    objects = [x for x in parameters if not isinstance(x, bool)]
    if not all(vars(x) for x in objects):
        raise ValueError("a divergence of your own is made in the compiled function; make it outside")
    key = (kind, *(x if isinstance(x, bool) else id(x) for x in parameters))
    if key not in _names:
        name = _names[key] = f"{_PROCESS} own {next(_counter)}"
        _named[name] = (kind, *((lambda x=x: x) if isinstance(x, bool) else ref(x) for x in parameters))
        for x in objects:
            finalize(x, _forget, key, name)
    return _names[key]


def _forget(key: tuple[Any, ...], name: str) -> None:
    _names.pop(key, None)
    _named.pop(name, None)


def _rule(name: str) -> Rule:
    module, kind, text = name.split(" ", 2)
    if module.startswith("phiball."):
        return _rule_from_text(module, kind, text)
    make, *references = _named.get(name, (None,))
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

    def solve(losses: Any, setting: Any, p: Any, rule: str) -> Outputs:
        _check_forward_mode()  # again, as the graph may have been traced before
        inputs = losses.detach(), setting.detach(), None if p is None else p.detach()
        problem = _rule(rule)
        problem.validate(*inputs)  # not possible while the graph is traced
        return problem.solve(*inputs)

    def fake(losses: Any, setting: Any, p: Any, rule: str) -> Outputs:
        shapes = [losses.shape[:-1]] * outputs
        shapes[2] = losses.shape
        return tuple(losses.new_empty(shape) for shape in shapes)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        _keep(ctx, inputs[:3], output)
        ctx.rule = inputs[3]

    def backward(ctx: Any, *factors: Any) -> Any:
        return *_gradients(_rule(ctx.rule), ctx, factors), None

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


def solve_by_rule(kind: Any, parameters: tuple[Any, ...], losses: Any, setting: Any, p: Any) -> Outputs:
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
        if p.shape[-1] != losses.shape[-1]:  # which torch would broadcast
            raise ValueError("p and losses have last axes of different lengths; expected equal lengths")
        p = p.to(losses.dtype).expand(losses.shape)
    solution: Outputs
    if recording:
        solution = _OPERATORS[kind.outputs](losses, setting, p, _name(kind, *parameters))
    else:
        transformed = torch._C._are_functorch_transforms_active()
        if transformed and _jvp_levels() > 1:  # pytorch#197867: the second derivative would be zero
            raise NotImplementedError(
                "jvp of jvp (jacfwd of jacfwd) is not supported: torch returns zero for it; use "
                "torch.func.hessian, or jacrev for one of the two"
            )
        function = _Transformed if transformed else _Solver
        solution = function.apply(losses, setting, p, rule)
    return solution
