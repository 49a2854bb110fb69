"""JAX: transformations of the inner problem, and sampling, risks, attacks and training inside jax.jit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phiball.backends import as_rng, backend
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    Gaussian,
    RegularizedLoss,
    RobustLoss,
    Tilted,
    Uniform,
    adversarial_risk,
    cressie_read,
    fgm,
    indicator,
    pgm,
    pointwise_loss,
    robust_risk,
    worst_case,
)
from phiball.refimpl.attacks import _put
from tests.support.divergences import ELASTIC, anonymous, name_of

jax = pytest.importorskip("jax", reason="jax: not installed")
jnp = jax.numpy

SMOOTH = [ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (-1, 0.5, 1.5, 3)), anonymous(ENTROPIC)]
ALL = [*SMOOTH, indicator(0.37), ABSOLUTE, HINGE, ELASTIC]
RNG = np.random.default_rng(0)
F, P = RNG.normal(size=(3, 6)), RNG.dirichlet(np.ones(6), 3)
ROUTES = {"kernel": "numba", "native": "numpy"}  # by callback, and compiled by XLA

KEY = jax.random.key(0)
X, Y = jnp.asarray(RNG.uniform(size=(8, 5)), jnp.float32), jnp.arange(8) % 3
W = jnp.asarray(RNG.normal(size=(5, 3)), jnp.float32)


def linear(w: Any) -> Callable[[Any], Any]:
    return lambda x: x @ w


@pytest.fixture(params=ROUTES.values(), ids=ROUTES)
def route(request: pytest.FixtureRequest) -> Any:
    with backend(request.param):
        yield request.param


@pytest.fixture
def x64() -> Any:
    """Double precision, which the threads of callbacks see only if it is set for the process."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("d", ALL, ids=name_of)
def test_jit_agrees_with_numpy(d: Divergence, route: str) -> None:
    """In JAX's default float32, at a price and within a budget, with p."""
    f, p = jnp.asarray(F, jnp.float32), jnp.asarray(P, jnp.float32)
    for setting in ({"eta": 0.4}, {"budget": 0.1}):
        out = jax.jit(lambda f, p, s=setting: vars(worst_case(f, divergence=d, p=p, **s)))(f, p)
        exact = worst_case(np.asarray(f, np.float64), divergence=d, p=P, **setting)
        assert out["value"].dtype == out["weights"].dtype == jnp.float32
        np.testing.assert_allclose(out["value"], exact.value, rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(out["weights"], exact.weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out["eta"], exact.eta, rtol=1e-3)
        assert float(jnp.max(jnp.abs(out["gap"]))) < 1e-5


@pytest.mark.parametrize("d", SMOOTH, ids=name_of)
@pytest.mark.usefixtures("x64")
def test_derivatives_match_finite_differences(d: Divergence) -> None:
    """Forward and reverse mode, first and second order, in the losses, eta or the budget, and p."""
    from jax.test_util import check_grads

    f, p, setting = jnp.asarray(F[:2]), jnp.asarray(P[:2]), jnp.asarray([0.45, 0.3])

    def at_price(f: Any, eta: Any, p: Any) -> Any:
        out = worst_case(f, eta, d, p=p / p.sum(-1, keepdims=True))
        return out.value, out.mu, out.weights

    def within_budget(f: Any, budget: Any, p: Any) -> Any:
        out = worst_case(f, budget=budget, divergence=d, p=p / p.sum(-1, keepdims=True))
        return out.value, out.eta

    check_grads(jax.jit(at_price), (f, setting, p), order=2, modes=("fwd", "rev"), rtol=1e-3)
    check_grads(jax.jit(within_budget), (f, setting / 4, p), order=1, modes=("fwd", "rev"), rtol=1e-3)


@pytest.mark.parametrize("d", [indicator(0.37), ABSOLUTE, HINGE, ELASTIC], ids=name_of)
def test_gradient_of_a_kinked_value_is_the_weights(d: Divergence, route: str) -> None:
    f = jnp.asarray(F, jnp.float32)
    gradient = jax.jit(jax.grad(lambda f: worst_case(f, 0.4, d).value.sum()))(f)
    np.testing.assert_array_equal(gradient, worst_case(f, 0.4, d).weights)


@pytest.mark.usefixtures("x64")
def test_hessian_and_batched_derivatives(route: str) -> None:
    def value(f: Any) -> Any:
        return worst_case(f, 0.4, "entropic").value

    f = jnp.asarray(F)
    softmax = jax.nn.softmax(f / 0.4)
    exact = (jax.vmap(jnp.diag)(softmax) - softmax[:, :, None] * softmax[:, None, :]) / 0.4
    for hessian in (jax.hessian(value), jax.jacfwd(jax.jacfwd(value)), jax.jacrev(jax.grad(value))):
        np.testing.assert_allclose(jax.jit(jax.vmap(hessian))(f), exact, atol=1e-12)


def test_second_call_does_not_retrace(route: str) -> None:
    traces = []

    @jax.jit
    def value(f: Any) -> Any:
        traces.append(f.shape)
        return worst_case(f, 0.4, indicator(0.25)).value  # a new object in every trace

    for _ in range(3):
        value(jnp.asarray(F, jnp.float32))
    value(jnp.asarray(F[:2], jnp.float32))
    assert traces == [(3, 6), (2, 6)]


def test_divergences_of_one_name_are_not_confused(route: str) -> None:
    """Functions do not count in the comparison of divergences, but do in the cache of compiled solvers."""
    first = anonymous(ENTROPIC)
    other = cressie_read(1.5)
    second = Divergence(first.name, other.phi, other.conj, other.dconj, other.d2conj)
    f = jnp.asarray(F[0], jnp.float32)
    values = [float(worst_case(f, 0.4, d).value) for d in (first, second)]
    exact = [float(worst_case(F[0], 0.4, d).value) for d in (ENTROPIC, other)]
    np.testing.assert_allclose(values, exact, rtol=1e-5)


def test_invalid_values_raise_or_give_nan(route: str) -> None:
    """Outside jit every value is checked; inside, the kernel raises and the compiled reference gives NaN."""
    f, p = jnp.asarray(F[0], jnp.float32), jnp.full(6, 0.2)
    for arguments, message in (({"eta": jnp.asarray(-1.0)}, "eta"), ({"eta": 1.0, "p": p}, "p sums to")):
        with pytest.raises(ValueError, match=message):
            worst_case(f, **arguments)
        value = jax.jit(lambda f, a: worst_case(f, **a).value)
        if route == "numpy":
            assert jnp.isnan(value(f, arguments))
        else:
            with pytest.raises(Exception, match=message):
                value(f, arguments).block_until_ready()
    with pytest.raises(ValueError, match="losses contains nan"):
        worst_case(f.at[0].set(jnp.nan), 1.0)


def test_ragged_rows_have_gradients() -> None:
    f, offsets = jnp.asarray(F[0], jnp.float32), [0, 2, 6]
    out = worst_case(f, 0.4, offsets=offsets)
    exact = worst_case(np.asarray(f, np.float64), 0.4, offsets=offsets)
    np.testing.assert_allclose(out.value, exact.value, rtol=1e-6)
    gradient = jax.grad(lambda f: worst_case(f, 0.4, offsets=offsets).value.sum())(f)
    np.testing.assert_allclose(gradient, exact.weights, rtol=1e-6)


@pytest.mark.parametrize("reference", [Ball(1, 0.5), Ball(2, 0.5), Ball(np.inf, 0.5), Gaussian(0.5)], ids=str)
def test_draws_are_pure_functions_of_a_key(reference: Any) -> None:
    def draw(x: Any, key: Any) -> Any:
        return reference.sample(x, 3, rng=key), *reference.sample_tilted(x, 2 * x, 3, rng=key)

    first, again, other = draw(X, KEY), jax.jit(draw)(X, KEY), jax.jit(draw)(X, jax.random.key(1))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert not np.allclose(a, c)
    if isinstance(reference, Ball):
        assert jnp.all(reference.contains(first[1], X[:, None, :]))
    with pytest.raises(ValueError, match="rng=key"):
        jax.jit(lambda x: reference.sample(x, 3, rng=0))(X)


def test_sobol_points_and_spawned_generators_depend_on_the_key() -> None:
    def draws(key: Any) -> tuple[Any, ...]:
        points = Ball(2, 0.5).sample(X, 4, rng=key, qmc=True)
        return points, *(g.uniform((3,), like=X) for g in (as_rng(key).spawn(1)[0], as_rng(key).keyed("a")))

    for first, again, other in zip(draws(KEY), draws(KEY), draws(jax.random.key(1)), strict=True):
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, other)
    with pytest.raises(ValueError, match="no Sobol points"):
        jax.jit(lambda key: Ball(2, 0.5).sample(X, 4, rng=key, qmc=True))(KEY)


def test_tilted_mean_in_jax_matches_its_density() -> None:
    """The weights nu/q turn tilted points back into uniform ones."""
    for norm, second_moment in ((1, 2 / 42), (2, 1 / 7), (np.inf, 1 / 3)):
        tilt = jnp.asarray([[2.0, 0.0, -1.0, 0.5, 0.0]])
        points, log_w = Ball(norm, 1.0).sample_tilted(jnp.zeros((1, 5)), tilt, 40_000, rng=3)
        values = np.asarray(jnp.exp(log_w)[..., None] * points**2, np.float64)[0]
        error = values.std(axis=0) / 200
        assert np.all(np.abs(values.mean(axis=0) - second_moment) < 5 * error), norm


def test_attacks_inside_jit() -> None:
    def attack(w: Any, x: Any, key: Any) -> Any:
        loss = pointwise_loss(linear(w), Y)
        ball = Ball(2, 0.3, clip=(0, 1))
        return fgm(loss, x, ball), pgm(loss, x, ball, steps=4, rng=key, restarts=2)

    for eager, jitted in zip(attack(W, X, KEY), jax.jit(attack)(W, X, KEY), strict=True):
        np.testing.assert_allclose(eager, jitted, atol=1e-5)
    slope = W[:, 0]
    points = fgm(lambda x, i: x @ slope, X, Ball(2, 0.3))
    np.testing.assert_allclose(points, X + 0.3 * slope / jnp.linalg.norm(slope), atol=1e-6)


def test_rows_are_replaced_without_assignment() -> None:
    """`apgd` calls this for the points of a classifier that are still classified correctly."""
    found = _put(jnp.zeros((5, 2)), jnp.asarray([1, 3]), jnp.asarray([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(found, [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]])


@pytest.mark.parametrize("estimator", [SG(0), SG(2), RTMLMC(3).draw_level(rng=5)], ids=str)
@pytest.mark.parametrize("proposal", [Uniform(), Tilted()], ids=["uniform", "tilted"])
def test_training_step_inside_jit(estimator: Any, proposal: Any) -> None:
    """The jitted value is that of the eager call, and the gradient that of the signed points."""
    objective = RegularizedLoss(Ball(2, 0.3), 0.4, "entropic", estimator, proposal)

    def value(w: Any, key: Any) -> Any:
        return objective(linear(w), X, Y, rng=key)

    found, gradient = jax.jit(jax.value_and_grad(value))(W, KEY)
    np.testing.assert_allclose(found, value(W, KEY), rtol=1e-4, atol=1e-5)
    signed = objective.points(linear(W), X, Y, rng=KEY)

    def weighted(w: Any) -> Any:
        return jnp.sum(signed.weights * pointwise_loss(linear(w), Y)(signed.points, signed.index))

    np.testing.assert_allclose(gradient, jax.grad(weighted)(W), rtol=1e-3, atol=1e-4)


def test_rtmlmc_inside_jit_needs_a_drawn_level() -> None:
    objective = RegularizedLoss(Ball(2, 0.3), 0.4, "entropic", RTMLMC(3))
    with pytest.raises(TypeError, match="draw_level"):
        jax.jit(lambda key: objective(linear(W), X, Y, rng=key))(KEY)
    # For a constant loss only level 0 contributes, with weight 1/P(0): the mean over levels is the constant.
    estimator, mean = RTMLMC(3), 0.0
    levels = {estimator.draw_level(rng=seed) for seed in range(100)}
    assert len(levels) == 4
    for level in levels:
        constant = RegularizedLoss(Ball(2, 0.3), 0.4, "entropic", level)
        mean += estimator.probabilities[level.level] * float(constant(lambda x, i: 2 + 0 * x[:, 0], X, rng=0))
    assert mean == pytest.approx(2.0)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_robust_loss_inside_jit(norm: str) -> None:
    robust = RobustLoss(0.3, norm, rng=0)

    def value(w: Any, key: Any) -> Any:
        return robust(linear(w), X, Y, rng=key)

    jitted = jax.jit(jax.value_and_grad(value))(W, KEY)
    assert "outside jax.jit" in robust.explain()
    eager = jax.value_and_grad(value)(W, KEY)
    np.testing.assert_allclose(jitted[0], eager[0], rtol=1e-4)
    np.testing.assert_allclose(jitted[1], eager[1], rtol=1e-3, atol=1e-4)
    assert float(robust(linear(W), X, Y)) > float(pointwise_loss(linear(W), Y)(X, jnp.arange(8)).mean())


def test_risks() -> None:
    loss = pointwise_loss(linear(W), Y)
    found = robust_risk(loss, X, Ball(2, 0.3), eta=0.4, n_samples=64, rng=0)
    numpy_loss = pointwise_loss(lambda x: x @ np.asarray(W), np.asarray(Y))
    exact = robust_risk(numpy_loss, np.asarray(X), Ball(2, 0.3), eta=0.4, n_samples=4096, rng=0)
    assert float(found.value) == pytest.approx(float(exact.value), abs=0.02)
    assert float(adversarial_risk(loss, X, Ball(2, 0.3)).value) > float(found.value)


def test_training_needs_no_torch() -> None:
    program = (
        "import sys, jax, jax.numpy as jnp, phiball\n"
        "robust = phiball.RobustLoss(0.5, rng=0)\n"
        "x, y, key = jnp.ones((4, 3)), jnp.asarray([0, 1, 0, 1]), jax.random.key(0)\n"
        "gradient = jax.grad(lambda w: robust(lambda x: x @ w, x, y, rng=key))(jnp.ones((3, 2)))\n"
        "print(gradient.shape)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(3, 2)\n"
