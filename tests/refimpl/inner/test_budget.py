"""`worst_case` with a budget agrees with exact solutions at the optimal multiplier eta."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from mpmath import mp

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from phiball.backends import backend
from phiball.refimpl.inner.budget_derivatives import SolvedBudget
from phiball.verification.oracles.definitions import phi
from phiball.verification.oracles.exact_solver import solve_exactly
from tests.support.divergences import QUARTIC_BY_FUNCTIONS, ROUNDED_ABSOLUTE, anonymous, name_of, on_each

F = np.array([0.11, -0.42, 0.9, 0.37, 0.63, -0.2])
P = np.array([0.1, 0.25, 0.15, 0.2, 0.05, 0.25])
NAMED = [ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (-1, 0.5, 1.5, 3)), ABSOLUTE, HINGE]
SMOOTH = [ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3), QUARTIC_BY_FUNCTIONS]


def divergence_of(weights: Any, d: Divergence, p: Any) -> float:
    """The divergence of weights from p, for the centred phi."""
    assert d.family is not None
    with mp.workdps(30):
        terms = [
            mp.mpf(q) * phi(mp.mpf(float(w)) / mp.mpf(q), d.family, d.parameter)
            for w, q in zip(weights, p, strict=True)
        ]
        return float(mp.fsum(terms))


@on_each(limit=False, extreme=False)
def test_weights_are_within_budget_and_attain_the_exact_dual_bound(d: Divergence) -> None:
    for backend_name, p, budget in product(("numpy", "numba"), (None, P), (0.003, 0.05, 0.2, 0.7, 3.0)):
        with backend(backend_name):
            found = worst_case(F, budget=budget, divergence=d, p=p)
        distribution = np.full(6, 1 / 6) if p is None else p
        value, weights = float(found.value), found.weights
        assert divergence_of(weights, d, distribution) <= budget * (1 + 1e-12)
        assert abs(weights.sum() - 1) <= 1e-14
        assert weights.min() >= 0
        assert abs(float(weights @ F) + float(found.gap) - value) <= 1e-14
        assert abs(float(found.gap)) <= 1e-13
        eta = float(found.eta) or 1e-13  # eta is 0 if the budget does not bind
        bound = eta * budget + float(solve_exactly(F, eta, d.family or "", d.parameter, distribution).value)
        assert abs(value - bound) <= 1e-12 * (1 + eta * budget), (backend_name, p, budget)


@pytest.mark.parametrize("excess", [1e-15, 1e-13, 1e-9])
@pytest.mark.parametrize("k", [3.0, 5.0])
def test_budget_at_which_a_weight_is_barely_positive(k: float, excess: float) -> None:
    """The weights are proportional to (1 + f/beta)_+^(1/(k-1)); beta is slightly above 2, the third -f."""
    f = -np.arange(4.0)
    with mp.workdps(50):
        x = [max(1 + v / (2 * (1 + mp.mpf(excess))), mp.mpf(0)) ** (1 / (mp.mpf(k) - 1)) for v in f]
        ratios = [4 * v / mp.fsum(x) for v in x]
        budget = mp.fsum(phi(v, "cressie_read", k) for v in ratios) / 4
        weights = np.array([float(v / 4) for v in ratios])
    found = worst_case(f, budget=float(budget), divergence=cressie_read(k))
    np.testing.assert_allclose(found.weights, weights, atol=1e-6)
    assert abs(float(found.value) - weights @ f) <= 1e-13
    assert abs(float(found.gap)) <= 1e-13


def test_values_agree_with_closed_forms() -> None:
    mean, variance = F.mean(), F.var()
    for budget in (0.0, 1e-4, 0.02):
        chi = worst_case(F, budget=budget, divergence=QUADRATIC)
        assert float(chi.value) == pytest.approx(mean + (2 * budget * variance) ** 0.5, abs=1e-15)
    # A sixth of the mass moves from the smallest loss to the largest.
    assert float(worst_case(F, budget=1 / 3, divergence=ABSOLUTE).value) == pytest.approx(mean + 1.32 / 6)
    assert float(worst_case(F, budget=1 / 6, divergence=HINGE).value) == pytest.approx(mean + 1.32 / 6)
    for budget in (0.0, 5.0):  # CVaR does not depend on the budget
        assert float(worst_case(F, budget=budget, divergence=indicator(0.5)).value) == pytest.approx(1.9 / 3)


def test_budget_that_does_not_bind_gives_the_maximum() -> None:
    for d in (ENTROPIC, QUADRATIC, cressie_read(3), ABSOLUTE, HINGE):
        solution = worst_case(F, budget=1e3, divergence=d)
        assert (float(solution.value), float(solution.eta), float(solution.gap)) == (0.9, 0, 0)
        np.testing.assert_allclose(solution.weights, [0, 0, 1, 0, 0, 0], rtol=1e-15)


def test_value_and_mu_scale_with_the_losses_unless_eta_overflows() -> None:
    for backend_name in ("numpy", "numba"):
        with backend(backend_name):
            for d in (ENTROPIC, QUADRATIC, cressie_read(1.5), cressie_read(3), HINGE, QUARTIC_BY_FUNCTIONS):
                plain = worst_case(F, budget=0.2, divergence=d, p=P)
                for size in (1e-290, 1e-160, 1e160, 1e300, 1e308):
                    solution = worst_case(F * size, budget=0.2, divergence=d, p=P)
                    np.testing.assert_allclose(solution.weights, plain.weights, rtol=1e-12, atol=1e-14)
                    assert float(solution.value / size) == pytest.approx(float(plain.value), rel=1e-13)
                    assert float(solution.mu / size) == pytest.approx(float(plain.mu), rel=1e-12)
                    assert abs(float(solution.gap / size)) < 1e-13, (backend_name, d.name, size)
            with pytest.raises(ValueError, match="eta overflows float64"):
                worst_case(F * 1e308, budget=1e-30, divergence=ENTROPIC)


def test_rows_with_equal_losses_or_zero_budget_in_a_batch() -> None:
    f, budget = np.array([[1.0, 1, 1], [0, 1, 2], [0, 1, 2]]), np.array([0.1, 0.0, 0.1])
    for d in NAMED:
        out = worst_case(f, budget=budget, divergence=d)
        alone = worst_case(f[2], budget=0.1, divergence=d)
        np.testing.assert_allclose(out.value, [1.0, 1.0, float(alone.value)], rtol=1e-14, err_msg=d.name)
        np.testing.assert_allclose(out.weights[:2], 1 / 3, rtol=1e-14, err_msg=d.name)
        np.testing.assert_allclose(out.weights[2], alone.weights, rtol=1e-12, err_msg=d.name)


def test_invalid_losses_and_budgets_raise() -> None:
    f = np.stack([F, F])
    for losses, budget, message in (
        (F, -0.1, "budget is -0.1; expected"),
        (f, np.ones(3), r"budget has shape \(3,\)"),
        (F * np.nan, 0.1, "losses contains nan"),
        (f, np.array([0.1, -1.0]), r"budget is .*; expected finite, nonnegative numbers"),
        (f, np.ma.masked_array([0.1, 0.2], [False, True]), "budget is a masked array"),
        (f, np.array([0.1j, 0.2]), "budget has dtype complex128; expected float32 or float64"),
        (f, np.array([1, 2]), "budget has dtype int64; expected float32 or float64"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            worst_case(losses, budget=budget, divergence=ENTROPIC)


# --- Derivatives -------------------------------------------------------------------------------------------


def differentiable_fields(d: Divergence) -> Any:
    """Return a function from losses, budget and unnormalised p to the differentiable fields."""

    def function(f: Any, budget: Any, p: Any) -> Any:
        out = worst_case(f, budget=budget, divergence=d, p=p / p.sum(-1, keepdim=True))
        return out.value, out.eta, out.mu, out.weights

    return function


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("d", [*SMOOTH[:4], ABSOLUTE, HINGE, anonymous(ENTROPIC)], ids=name_of)
def test_gradients_pass_gradcheck(d: Divergence) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    numbers = F[None, :4], np.array([0.07]), P[None, :4]
    arguments = [torch.asarray(x).clone().requires_grad_() for x in numbers]
    function = differentiable_fields(d)
    # For a divergence given by its functions, eta is accurate only to the square root of machine epsilon.
    tolerances = {"eps": 1e-4, "atol": 1e-4, "rtol": 1e-3} if d.family is None else {}
    assert torch.autograd.gradcheck(
        function, arguments, fast_mode=True, check_forward_ad=d.family is not None, **tolerances
    )
    if d in SMOOTH:
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


def test_derivatives_of_a_partly_linear_phi_agree_with_finite_differences() -> None:
    """The smallest and the largest loss are where phi is linear, and the others where it is curved."""
    f = np.array([[0.0, 1.0, 1.3, 2.0], [3.0, 1.8, 1.2, -1.0]])
    p = np.array([[0.3, 0.2, 0.4, 0.1], [0.1, 0.3, 0.2, 0.4]])
    budget, dbudget, step = np.array([0.2, 0.3]), np.array([0.3, -0.2]), 1e-4
    generator = np.random.default_rng(0)
    df, dp = generator.normal(size=(2, 2, 4))
    dp = dp - dp.mean(axis=1, keepdims=True)
    factors = [generator.normal(size=shape) for shape in ((2,), (2,), (2, 4), (2,))]

    def solve(t: float) -> Any:
        f_t, budget_t, p_t = f + t * df, budget + t * dbudget, p + t * dp
        out = worst_case(f_t, budget=budget_t, divergence=ROUNDED_ABSOLUTE, p=p_t)
        return out.value, out.mu, out.weights, out.eta

    _, mu, weights, eta = solve(0.0)
    low, high = (np.take_along_axis(weights / p, g(f, axis=1)[:, None], 1) for g in (np.argmin, np.argmax))
    assert np.all((low > 0) & (low < 0.5) & (high > 1.5))  # outside the curved part, [1/2, 3/2]
    solved = SolvedBudget(ROUNDED_ABSOLUTE, f, budget, p, mu, weights, eta)
    tangent = solved.jvp(df, dbudget, dp)
    in_f, in_budget, in_p = solved.vjp(*factors, [True, True, True])
    forward_product = sum(float(np.sum(w * x)) for w, x in zip(factors, tangent, strict=True))
    backward_product = float(np.sum(in_f * df) + np.sum(in_budget * dbudget) + np.sum(in_p * dp))
    assert backward_product == pytest.approx(forward_product, rel=1e-12)
    for after, before, derivative in zip(solve(step), solve(-step), tangent, strict=True):
        np.testing.assert_allclose(derivative, (after - before) / (2 * step), atol=1e-6)


def test_derivatives_do_not_depend_on_the_batch_shape() -> None:
    f = np.array([[0.0, 1.0, 1.3, 2.0], [3.0, 1.8, 1.2, -1.0], [0.3, 0.1, 0.7, 0.2]])
    budget = np.array([0.2, 0.3, 0.01])
    df = np.random.default_rng(1).normal(size=f.shape)

    def tangents(shape: tuple[int, ...]) -> Any:
        g, r, dg = f.reshape(*shape, 4), budget.reshape(shape), df.reshape(*shape, 4)
        out = worst_case(g, budget=r, divergence=ROUNDED_ABSOLUTE)
        solved = SolvedBudget(ROUNDED_ABSOLUTE, g, r, None, out.mu, out.weights, out.eta)
        return [x.reshape(3, -1) for x in solved.jvp(dg, None, None)]

    for flat, nested in zip(tangents((3,)), tangents((3, 1)), strict=True):
        np.testing.assert_array_equal(flat, nested)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_func_derivatives_agree_with_the_closed_form() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    func, f, r = torch.func, torch.tensor(np.stack([F, F[::-1] / 2])), torch.tensor([0.01, 0.02]).double()

    def chi(f: Any, r: Any) -> Any:
        return worst_case(f, budget=r, divergence=QUADRATIC).value

    def closed_form(f: Any, r: Any) -> Any:  # valid if no weight is zero
        return f.mean(-1) + (2 * r * f.var(-1, correction=0)) ** 0.5

    for transform in (
        lambda g: func.vmap(func.grad(g))(f, r),
        lambda g: func.jvp(g, (f, r), (f**2, r))[1],
        lambda g: func.jacrev(g, argnums=1)(f, r),
        lambda g: func.vmap(func.hessian(g))(f, r),
    ):
        torch.testing.assert_close(transform(chi), transform(closed_form), rtol=1e-9, atol=1e-11)
