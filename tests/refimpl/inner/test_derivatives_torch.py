"""Derivatives of the worst case by torch: every mode, every argument, and second ones through a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from math import log
from shutil import which
from typing import Any

import pytest

from phiball.backends import use
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    constrained_worst_case,
    cressie_read,
    indicator,
    worst_case,
    worst_case_jvp,
)
from tests.support.divergences import ELASTIC, HALF, QUARTIC_BY_FUNCTIONS, anonymous, name_of

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's own, in its forward mode
]

SMOOTH = [
    ENTROPIC,
    QUADRATIC,
    *(cressie_read(k) for k in (-1, 0, 0.5, 1.5, 3)),
    QUARTIC_BY_FUNCTIONS,
    anonymous(ENTROPIC),
]
KINKED = [indicator(0.37), ABSOLUTE, HINGE, ELASTIC, HALF]


def tensor(values: Any, grad: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


F, ETA = [[0.11, -0.42, 0.9, 0.37], [2.1, 0.3, -0.8, 1.7]], [0.45, 1.9]
P = [[0.1, 0.2, 0.4, 0.3], [0.3, 0.15, 0.35, 0.2]]


def fields(d: Divergence) -> Callable[..., Any]:
    """The three fields as a function of losses, eta and a law, which the steps of a check may leave."""

    def function(f: Any, eta: Any, p: Any = None) -> Any:
        out = worst_case(f, eta, d, p=None if p is None else p / p.sum(-1, keepdim=True))
        return out.value, out.mu, out.weights

    return function


@pytest.mark.parametrize("law", [False, True], ids=["uniform", "p"])
@pytest.mark.parametrize("d", SMOOTH, ids=name_of)
def test_gradcheck(d: Divergence, law: bool) -> None:
    arguments = (tensor(F, True), tensor(ETA, True), *([tensor(P, True)] if law else []))
    assert torch.autograd.gradcheck(fields(d), arguments, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fields(d), arguments, fast_mode=True)


def test_gradcheck_of_one_eta_and_one_law_for_all_rows() -> None:
    arguments = (tensor(F, True), tensor(0.7, True), tensor(P[0], True))
    assert torch.autograd.gradcheck(fields(QUADRATIC), arguments)
    assert torch.autograd.gradgradcheck(fields(ENTROPIC), arguments)


@pytest.mark.parametrize("law", [False, True], ids=["uniform", "p"])
@pytest.mark.parametrize("d", SMOOTH + KINKED, ids=name_of)
def test_backward_is_the_transpose_of_the_product(d: Divergence, law: bool) -> None:
    """For kinked divergences too, whose product is tested against differences."""
    f, eta, p = tensor(F, True), tensor(ETA, True), tensor(P, True)
    generator = torch.Generator().manual_seed(0)
    out = worst_case(f, eta, d, p=p if law else None)
    factors = [torch.randn(x.shape, generator=generator, dtype=f.dtype) for x in (out.value, out.mu, f)]
    inputs = (f, eta, p) if law else (f, eta)
    gradients = torch.autograd.grad((out.value, out.mu, out.weights), inputs, factors)
    directions = [torch.randn(x.shape, generator=generator, dtype=f.dtype) for x in inputs]
    tangent = worst_case_jvp(
        f.detach(),
        eta.detach(),
        d,
        directions[0],
        deta=directions[1],
        dp=directions[2] if law else None,
        p=p.detach() if law else None,
    )
    along = sum(torch.sum(g * v) for g, v in zip(gradients, directions, strict=True))
    products = (tangent.value, tangent.mu, tangent.weights)
    expected = sum(torch.sum(a * b) for a, b in zip(factors, products, strict=True))
    torch.testing.assert_close(along, expected, rtol=1e-12, atol=1e-13)


# --- Sparse maps: with a uniform law and eta = m^(1 - k), the weights are alpha-entmax for alpha = k ------


def entmax(z: Any, alpha: float) -> Any:
    d = QUADRATIC if alpha == 2 else cressie_read(alpha)
    return worst_case(z, z.shape[-1] ** (1 - alpha), d).weights


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2, 2.5])
def test_the_jacobian_of_entmax(alpha: float) -> None:
    """diag(s) - s s'/sum s with s = gamma^(2 - alpha) on the support, and finite differences."""
    z = tensor([0.6, -2.0, 0.4, 0.9, -1.5, 0.1], True)
    gamma = entmax(z, alpha).detach()
    s = torch.where(gamma > 0, gamma ** (2 - alpha), 0.0)
    expected = torch.diag(s) - torch.outer(s, s) / s.sum()
    jacobian = torch.autograd.functional.jacobian(lambda z: entmax(z, alpha), z)
    torch.testing.assert_close(jacobian, expected, rtol=1e-9, atol=1e-11)
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), z)


@pytest.mark.parametrize("alpha", [1.5, 2])
def test_the_support_and_the_scale_of_entmax(alpha: float) -> None:
    """Entries without weight get no gradient; small scores are dense, large ones pick the largest."""
    z = tensor([3.0, 2.9, -4.0, 2.5], True)
    gamma = entmax(z, alpha)
    assert (gamma > 0).tolist() == [True, True, False, True]
    torch.sum(gamma * tensor([1.0, -2.0, 3.0, 0.5])).backward()
    assert z.grad[2] == 0
    assert abs(float(z.grad.sum())) < 1e-14  # a shift changes nothing
    assert bool(torch.all(entmax(0.01 * z, alpha) > 0))
    large = (1e4 * z).detach().requires_grad_()
    entmax(large, alpha)[0].backward()
    assert entmax(large, alpha).tolist() == [1, 0, 0, 0]
    assert large.grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2, 2.5])
def test_gradients_of_entmax_on_every_axis(alpha: float) -> None:
    """Of random scores, small and large; their sum along the axis does not move."""
    z = torch.randn((2, 3, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis, scale in ((0, 1.0), (1, 0.01), (2, 1.0), (2, 5.0)):

        def along(z: Any, axis: int = axis) -> Any:
            return entmax(z.movedim(axis, -1), alpha).movedim(-1, axis)

        scores = (scale * z).requires_grad_()
        assert torch.autograd.gradcheck(along, scores)
        torch.testing.assert_close(along(scores).sum(axis), torch.ones_like(scores.sum(axis)))
        (moved,) = torch.autograd.grad(along(scores).sum(), scores)
        assert float(moved.abs().max()) < 1e-12


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2])
def test_the_fenchel_young_losses_of_entmax(alpha: float) -> None:
    """The value less the score of the class: not negative, zero with a margin; gradient."""
    z = torch.randn((5, 4), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    m, y = z.shape[-1], torch.arange(5) % 4
    of_a_class = (1 - m ** (1 - alpha)) / (alpha * (alpha - 1))  # the entropy term at a vertex

    def loss(z: Any) -> Any:
        d = QUADRATIC if alpha == 2 else cressie_read(alpha)
        value = worst_case(z, m ** (1 - alpha), d).value
        return value + of_a_class - z.gather(-1, y[:, None])[:, 0]

    z.requires_grad_()
    assert torch.autograd.gradcheck(loss, z)
    assert torch.autograd.gradgradcheck(loss, z)
    classes = torch.nn.functional.one_hot(y, m)
    assert bool(torch.all(loss(z) > 0))
    torch.testing.assert_close(torch.autograd.grad(loss(z).sum(), z)[0], entmax(z, alpha) - classes)
    margin = 1 / (alpha - 1)
    torch.testing.assert_close(loss(z * 0 + margin * classes), torch.zeros(5, dtype=torch.float64))


# --- Second derivatives through a model --------------------------------------------------------------------


def log_sum_exp(f: Any, eta: Any) -> Any:
    return eta * (torch.logsumexp(f / eta[..., None], -1) - log(f.shape[-1]))


@pytest.mark.parametrize("backend", ["torch", "numba", "numpy"])
def test_the_hessian_vector_product_of_a_model(backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    parameters, x = list(model.parameters()), torch.randn(6, 3, dtype=torch.float64)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    eta = tensor(0.3, True)

    def product(risk: Callable[[Any], Any]) -> list[Any]:
        gradients = torch.autograd.grad(risk((model(x)[:, 0] - 1) ** 2), parameters, create_graph=True)
        slope = sum(torch.sum(g * v) for g, v in zip(gradients, directions, strict=True))
        return list(torch.autograd.grad(slope, [*parameters, eta]))

    with use(backend):
        products = product(lambda f: worst_case(f, eta, ENTROPIC).value)
    for a, b in zip(products, product(lambda f: log_sum_exp(f, eta)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def value(f: Any, eta: Any) -> Any:
    return worst_case(f, eta, ENTROPIC).value


def test_torch_func() -> None:
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


@pytest.mark.parametrize("d", [ENTROPIC, QUADRATIC, cressie_read(3), ABSOLUTE, indicator(0.37)], ids=name_of)
def test_torch_func_on_all_that_is_returned(d: Divergence) -> None:
    """Value, mu and weights, row by row in plain backward mode and at once in both modes of torch.func."""

    def together(f: Any, eta: Any, p: Any) -> Any:
        return torch.cat([x.reshape(-1) for x in fields(d)(f, eta, p)])

    rows = tensor(F), tensor(ETA), tensor(P)
    alone = [torch.autograd.functional.jacobian(together, row) for row in zip(*rows, strict=True)]
    expected = tuple(torch.stack(jacobians) for jacobians in zip(*alone, strict=True))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        found = torch.func.vmap(transform(together, argnums=(0, 1, 2)))(*rows)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("d", [QUADRATIC, indicator(0.37)], ids=name_of)
def test_compiled_into_one_graph_without_warnings(d: Divergence) -> None:
    def loss(f: Any, eta: Any, p: Any) -> Any:
        out = worst_case(f, eta, d, p=p)
        return out.value.sum() + (out.mu**2).sum() + (out.weights**2).sum()

    inputs = tensor(F, True), tensor(ETA, True), tensor(P, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"Guards may run slower on Python 3\.13\.0")  # torch's own
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        result = compiled(*inputs)
        gradients = torch.autograd.grad(result, inputs)
    expected = loss(*inputs)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs))


@pytest.mark.slow
@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="torch.compile: no C++ compiler")
def test_compiled_by_the_default_compiler_inside_a_model() -> None:
    """One graph with the model, to all that is returned and its gradient, in both forms of the worst case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler deprecates parts of itself on import
        inductor = import_module("torch._inductor.config")
        import_module("torch._inductor.compile_fx")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    x, eta = torch.randn(6, 3, dtype=torch.float64), tensor(0.3, True)
    law = torch.full((6,), 1 / 6, dtype=torch.float64, requires_grad=True)
    inputs = [*model.parameters(), eta, law]

    def loss(x: Any, eta: Any, p: Any) -> Any:
        f = (model(x)[:, 0] - 1) ** 2
        price, radius = worst_case(f, eta, QUADRATIC, p=p), constrained_worst_case(f, 0.1, ENTROPIC)
        found = price.value, price.mu, price.weights @ x, radius.value, radius.eta, radius.weights @ x
        return torch.cat([part.reshape(-1) for part in found])

    with warnings.catch_warnings(), inductor.patch(compile_threads=1):
        warnings.simplefilter("error")
        result = torch.compile(loss, fullgraph=True)(x, eta, law)
        factors = torch.linspace(-1, 2, len(result), dtype=torch.float64)
        gradients = torch.autograd.grad(result, inputs, factors)
    expected = loss(x, eta, law)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, factors))


# --- What costs nothing, and what is refused ---------------------------------------------------------------


def test_zero_weights_that_underflow_give_no_nan() -> None:
    for d in (ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3)):
        f, eta, p = tensor([0.0, 1.0, -3.0], True), tensor(1e-9, True), tensor([0.2, 0.5, 0.3], True)
        out = worst_case(f, eta, d, p=p)
        total = out.value + out.mu + out.weights.sum() + (out.weights**2).sum()
        gradients = torch.autograd.grad(total, (f, eta, p), create_graph=True)
        again = torch.autograd.grad(sum(g.sum() for g in gradients), (f, eta, p))
        assert all(bool(torch.all(torch.isfinite(g))) for g in (*gradients, *again)), d.name


def test_errors_are_those_without_a_gradient() -> None:
    f = tensor(F, True)
    with pytest.raises(ValueError, match="eta is -1"):
        worst_case(f, -1.0, ENTROPIC)
    with pytest.raises(ValueError, match="p has shape"):
        worst_case(f, 1.0, ENTROPIC, p=tensor([1.0]))
    with pytest.raises(ValueError, match="p sums to"):
        worst_case(f, 1.0, ENTROPIC, p=tensor([0.1] * 4))
    with pytest.raises(ValueError, match="losses contains nan"):
        worst_case(f * float("nan"), 1.0, ENTROPIC)
    with pytest.raises(TypeError, match="expected arrays of one library"):
        worst_case(f.detach().numpy(), tensor(1.0, True), ENTROPIC)
