"""Derivatives of `worst_case` with torch: autograd, torch.func and torch.compile."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import product
from math import log
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from phiball.backends import backend
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    bisection,
    cressie_read,
    indicator,
    worst_case,
)
from phiball.refimpl.inner import dual_value, primal_value, worst_case_jvp
from tests.support.divergences import ELASTIC, HALF, QUARTIC_BY_FUNCTIONS, anonymous, name_of, select

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # raised by torch in forward mode
]

SMOOTH = [
    ENTROPIC,
    QUADRATIC,
    *(cressie_read(k) for k in (-1, 0, 0.5, 1.5, 3)),
    QUARTIC_BY_FUNCTIONS,
    anonymous(ENTROPIC),
]
KINKED = [indicator(0.37), ABSOLUTE, HINGE, ELASTIC, HALF]

LOADING = """
import sys
import torch
from phiball import worst_case
import phiball.backends.implicit_differentiation

f = torch.tensor([0.0, 1.0, 2.0])
for divergence in ("kl", "chi2"):
    torch.compile(lambda f: worst_case(f, 0.7, divergence).value, backend="eager")(f)
for name in ("library", "own"):
    try:
        print(float(torch.export.load(f"{sys.argv[1]}/{name}.pt2").module()(f)))
    except RuntimeError as error:
        print(error)
"""


def tensor(values: Any, grad: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


F, ETA = [[0.11, -0.42, 0.9, 0.37], [2.1, 0.3, -0.8, 1.7]], [0.45, 1.9]
P = [[0.1, 0.2, 0.4, 0.3], [0.3, 0.15, 0.35, 0.2]]


def fields(d: Divergence) -> Callable[..., Any]:
    """Return a function from losses, eta and unnormalised p to value, mu and weights."""

    def function(f: Any, eta: Any, p: Any = None) -> Any:
        out = worst_case(f, eta, d, p=None if p is None else p / p.sum(-1, keepdim=True))
        return out.value, out.mu, out.weights

    return function


@pytest.mark.parametrize("backend_name", ["torch", "numba", "numpy"])
def test_gradient_of_the_value_is_the_weights(backend_name: str) -> None:
    """This is Danskin's theorem; all fields except the gap carry gradients."""
    rows = [[0.11, -0.42, 0.9], [1e8 + 0.11, 1e8, 1e8 - 0.3], [1.0, 1.0, 0.0]]
    with backend(backend_name):
        for d, dtype in product((*select(usual=True), anonymous(ENTROPIC)), (torch.float64, torch.float32)):
            f = torch.tensor(rows, dtype=dtype, requires_grad=True)
            eta = torch.tensor([0.2, 1.0, 5.0], dtype=dtype, requires_grad=True)
            p = torch.full((3,), 1 / 3, dtype=dtype, requires_grad=True)
            out = worst_case(f, eta, d)
            (gradient,) = torch.autograd.grad(out.value.sum(), f)
            assert gradient.dtype == dtype
            assert torch.equal(gradient, out.weights), d.name
            without = worst_case(f.detach(), eta.detach(), d)
            assert torch.equal(out.value.detach(), without.value), d.name
            assert not without.value.requires_grad
            out = worst_case(f, eta, d, p=p)
            assert all(x.requires_grad for x in (out.value, out.mu, out.weights))
            assert not out.gap.requires_grad
            gradients = torch.autograd.grad((out.value + out.mu + out.weights[:, 0]).sum(), (f, eta, p))
            assert all(bool(torch.all(torch.isfinite(x))) for x in gradients), d.name


def test_nondifferentiable_functions_reject_tensors_that_require_grad() -> None:
    f, eta, p = tensor(F[0], True), tensor(0.5, True), tensor([0.25] * 4, True)
    assert worst_case(f.detach(), eta, ENTROPIC).value.requires_grad
    assert worst_case(f.detach(), 0.5, ENTROPIC, p=p).value.requires_grad
    w = p.detach()
    for call in (
        lambda: bisection(f, 0.5, ENTROPIC, tol=1e-3),
        lambda: dual_value(f.detach(), tensor(0.1, True), 0.5, ENTROPIC),
        lambda: primal_value(f.detach(), w, eta, ENTROPIC),
    ):
        with pytest.raises(ValueError, match=r"(bisection|dual_value|primal_value) requires a gradient"):
            call()
    with torch.no_grad():
        assert not worst_case(f, 0.5, ENTROPIC).value.requires_grad
        assert not primal_value(f, w, eta, ENTROPIC).requires_grad


@pytest.mark.parametrize("d", SMOOTH, ids=name_of)
def test_first_and_second_derivatives_pass_gradcheck(d: Divergence) -> None:
    for distribution in ([], [tensor(P, True)]):
        arguments = (tensor(F, True), tensor(ETA, True), *distribution)
        assert torch.autograd.gradcheck(fields(d), arguments, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(fields(d), arguments, fast_mode=True)


def test_derivatives_in_eta_and_p_shared_by_all_rows_pass_gradcheck() -> None:
    arguments = (tensor(F, True), tensor(0.7, True), tensor(P[0], True))
    assert torch.autograd.gradcheck(fields(QUADRATIC), arguments)
    assert torch.autograd.gradgradcheck(fields(ENTROPIC), arguments)


@pytest.mark.parametrize("distribution", [False, True], ids=["uniform", "p"])
@pytest.mark.parametrize("d", SMOOTH + KINKED, ids=name_of)
def test_backward_is_the_transpose_of_the_jvp(d: Divergence, distribution: bool) -> None:
    """`gradcheck` does not cover kinked divergences; test_derivatives.py checks their jvp."""
    f, eta, p = tensor(F, True), tensor(ETA, True), tensor(P, True)
    generator = torch.Generator().manual_seed(0)
    out = worst_case(f, eta, d, p=p if distribution else None)
    factors = [torch.randn(x.shape, generator=generator, dtype=f.dtype) for x in (out.value, out.mu, f)]
    inputs = (f, eta, p) if distribution else (f, eta)
    gradients = torch.autograd.grad((out.value, out.mu, out.weights), inputs, factors)
    directions = [torch.randn(x.shape, generator=generator, dtype=f.dtype) for x in inputs]
    tangent = worst_case_jvp(
        f.detach(),
        eta.detach(),
        d,
        directions[0],
        deta=directions[1],
        dp=directions[2] if distribution else None,
        p=p.detach() if distribution else None,
    )
    backward_product = sum(torch.sum(g * v) for g, v in zip(gradients, directions, strict=True))
    products = (tangent.value, tangent.mu, tangent.weights)
    expected = sum(torch.sum(a * b) for a, b in zip(factors, products, strict=True))
    torch.testing.assert_close(backward_product, expected, rtol=1e-12, atol=1e-13)


def log_sum_exp(f: Any, eta: Any) -> Any:
    return eta * (torch.logsumexp(f / eta[..., None], -1) - log(f.shape[-1]))


def value(f: Any, eta: Any) -> Any:
    return worst_case(f, eta, ENTROPIC).value


def test_torch_func_derivatives_agree_with_log_sum_exp() -> None:
    func, f, eta = torch.func, tensor(F), tensor(ETA)
    close = torch.testing.assert_close
    for transform in (
        lambda g: func.grad(lambda f: g(f, eta).sum())(f),
        lambda g: func.grad(lambda eta: g(f, eta).sum())(eta),
        lambda g: func.vmap(g)(f, eta),
        lambda g: func.vmap(g, in_dims=(None, 0))(f[0], eta),
        lambda g: func.vmap(func.grad(g, argnums=1))(f, eta),
        lambda g: func.jvp(g, (f, eta), (f**2, eta))[1],
        lambda g: func.jacrev(g)(f, eta),
        lambda g: func.jacfwd(g, argnums=1)(f, eta),
        lambda g: func.hessian(g)(f[0], eta[0]),
        lambda g: func.vmap(func.hessian(g))(f, eta),
    ):
        close(transform(value), transform(log_sum_exp), rtol=1e-10, atol=1e-12)


def test_vmap_over_the_last_axis_agrees_with_log_sum_exp() -> None:
    f, eta = tensor(F), tensor(ETA)
    found = torch.func.vmap(value, in_dims=(1, 0))(f.T, eta)
    torch.testing.assert_close(found, log_sum_exp(f, eta), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [ENTROPIC, QUADRATIC, cressie_read(3), ABSOLUTE, indicator(0.37)], ids=name_of)
def test_batched_torch_func_agrees_with_row_by_row_jacobians(d: Divergence) -> None:

    def flat_fields(f: Any, eta: Any, p: Any) -> Any:
        return torch.cat([x.reshape(-1) for x in fields(d)(f, eta, p)])

    rows = tensor(F), tensor(ETA), tensor(P)
    alone = [torch.autograd.functional.jacobian(flat_fields, row) for row in zip(*rows, strict=True)]
    expected = tuple(torch.stack(jacobians) for jacobians in zip(*alone, strict=True))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        found = torch.func.vmap(transform(flat_fields, argnums=(0, 1, 2)))(*rows)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_torch_compile_has_no_graph_breaks() -> None:
    """Values and gradients of a model match eager mode, without warnings, with eta and with a budget."""
    compiler = "inductor" if which("g++") or which("clang++") else "aot_eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing torch's compiler raises deprecation warnings
        inductor = import_module("torch._inductor.config")
        import_module("torch._inductor.compile_fx")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    x, eta = torch.randn(6, 3, dtype=torch.float64), tensor(0.3, True)
    distribution = torch.full((6,), 1 / 6, dtype=torch.float64, requires_grad=True)
    inputs, cvar = [*model.parameters(), eta, distribution], indicator(0.37)

    def loss(x: Any, eta: Any, p: Any) -> Any:
        f = (model(x)[:, 0] - 1) ** 2
        penalized = worst_case(f, eta, QUADRATIC, p=p)
        budgeted = worst_case(f, budget=0.1, divergence=ENTROPIC)
        tail = worst_case(f, eta, cvar, p=p)
        parts = penalized.value, penalized.mu, penalized.weights @ x, tail.value, tail.weights @ x
        parts += budgeted.value, budgeted.eta, budgeted.weights @ x
        return torch.cat([part.reshape(-1) for part in parts])

    with warnings.catch_warnings(), inductor.patch(compile_threads=1):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"Guards may run slower on Python 3\.13\.0")  # torch's own
        result = torch.compile(loss, fullgraph=True, backend=compiler)(x, eta, distribution)
        factors = torch.linspace(-1, 2, len(result), dtype=torch.float64)
        gradients = torch.autograd.grad(result, inputs, factors)
    expected = loss(x, eta, distribution)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, factors))


def test_underflowing_weights_have_finite_gradients() -> None:
    for d in (ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3)):
        f, eta, p = tensor([0.0, 1.0, -3.0], True), tensor(1e-9, True), tensor([0.2, 0.5, 0.3], True)
        out = worst_case(f, eta, d, p=p)
        total = out.value + out.mu + out.weights.sum() + (out.weights**2).sum()
        gradients = torch.autograd.grad(total, (f, eta, p), create_graph=True)
        again = torch.autograd.grad(sum(g.sum() for g in gradients), (f, eta, p))
        assert all(bool(torch.all(torch.isfinite(g))) for g in (*gradients, *again)), d.name


def test_unsupported_transformations_raise() -> None:
    """Without the error, they would return zeros or a constant."""
    f, v = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.5])
    jacfwd = torch.func.jacfwd

    def value(f: Any) -> Any:
        return worst_case(f, 0.7).value

    with pytest.raises(NotImplementedError, match="jacfwd"):
        jacfwd(jacfwd(value))(f)
    with pytest.raises(NotImplementedError, match="trace"):
        torch.jit.trace(value, (f,))
    compiled = torch.compile(lambda f, v: torch.func.jvp(value, (f,), (v,))[1], backend="eager")
    with pytest.raises(Exception, match="NotImplementedError: forward-mode derivatives"):
        compiled(f, v)
    compiled = torch.compile(value, backend="eager")
    compiled(f)  # the graph is traced before the dual level
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode derivatives"):
        compiled(forward_ad.make_dual(f, v))


def test_divergences_made_in_a_compiled_function() -> None:
    f = torch.tensor([0.0, 1.0, 2.0])
    compiled = torch.compile(lambda f: worst_case(f, 0.7, cressie_read(3)).value, backend="eager")
    assert float(compiled(f)) == float(worst_case(f, 0.7, cressie_read(3)).value)
    d = ENTROPIC

    def value(f: Any) -> Any:
        own = Divergence("own", d.phi, d.conj, d.dconj, d.d2conj, d.slope0, 0.0, d.recession, 1.0)
        return worst_case(f, 0.7, own).value

    own = torch.compile(value, backend="eager")
    with pytest.raises(Exception, match="ValueError: a custom divergence is created in"):
        own(f)


def test_exported_programs_name_their_divergence(tmp_path: Path) -> None:
    """Another process, which uses other divergences, solves the same problem."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, divergence: Divergence) -> None:
            super().__init__()
            self.divergence = divergence

        def forward(self, f: Any) -> Any:
            return worst_case(f, 0.7, self.divergence).value

    f = torch.tensor([0.0, 1.0, 2.0])
    for name, divergence in (("library", cressie_read(1.5)), ("own", anonymous(ENTROPIC))):
        torch.export.save(torch.export.export(Model(divergence), (f,)), tmp_path / f"{name}.pt2")
    run = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    value, error = run.stdout.splitlines()
    assert float(value) == float(worst_case(f, 0.7, cressie_read(1.5)).value)
    assert error.startswith("the divergence of a compiled graph no longer exists")


def test_make_fx_records_the_solver() -> None:
    f = torch.tensor([0.0, 1.0, 2.0])
    make_fx = import_module("torch.fx.experimental.proxy_tensor").make_fx
    # Two problems with the same divergence.
    for solve in (lambda f: worst_case(f, 0.7).value, lambda f: worst_case(f, budget=0.1).value):
        assert float(make_fx(solve)(f)(2 * f)) == float(solve(2 * f))


def test_tensors_with_a_lazy_sign() -> None:
    """The imaginary part of a conjugate is a view whose values are negated on access."""
    f, p, eta = (
        torch.complex(torch.zeros_like(x), -x).conj().imag
        for x in (tensor([[0.0, 1.0, 2.0]]), tensor([[0.2, 0.5, 0.3]]), tensor([0.7]))
    )
    assert f.is_neg()
    expected = worst_case(f.resolve_neg(), eta.resolve_neg(), p=p.resolve_neg())
    for losses in (f, f.detach().requires_grad_()):
        assert torch.equal(worst_case(losses, eta, p=p).value, expected.value)
