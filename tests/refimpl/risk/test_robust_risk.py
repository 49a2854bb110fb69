"""`robust_risk` by sampling: values, error estimates and chunks."""

from dataclasses import dataclass, fields
from functools import partial
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from phiball import Tilted, Uniform, fgm, pgm, white_noise
from phiball.backends import Array, array_namespace, rng
from phiball.refimpl.distributions import Ball
from phiball.refimpl.inner import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator
from phiball.refimpl.risk import adversarial_risk, robust_risk
from phiball.refimpl.types import PreparedProposal
from tests.support.arrays import NUMPY, Arrays
from tests.support.distributions import DISTRIBUTIONS
from tests.support.divergences import name_of
from tests.support.risk_distributions import Counted, first, fixed
from tests.support.tilting_distributions import THETA, in_x, linear_value, model


@dataclass(frozen=True)
class GivenProposal:
    """A proposal with given points and weights."""

    points: Any
    log_w: Any
    self_normalised: bool

    def check(self, reference: Any, divergence: Any) -> None: ...

    def prepare(self, reference: Any, x: Any, i: Any, eta: Any, loss: Any, rng: Any, chunk: int) -> Any:
        xp = array_namespace(x)

        def draw(index: Any, n: int, rng: Any) -> tuple[Any, Any]:
            return xp.take(self.points, index, axis=0), xp.take(self.log_w, index, axis=0)

        return PreparedProposal(x, eta, draw)


def oracle(f: Any, eta: float, name: str, p: Any) -> tuple[float, float]:
    """(value, mu) of min over mu of E_p[mu + eta phi*((f - mu)/eta)], by a scalar minimizer."""
    conj = {"entropic": np.expm1, "quadratic": lambda s: np.maximum(s, 0) ** 2 / 2 + 0.5}[name]
    p = p / p.sum()

    def dual(mu: float) -> float:
        return float(mu + eta * (p @ conj((f - mu) / eta)))

    found = optimize.minimize_scalar(
        dual, bounds=(f.min() - 2 * eta, f.max()), method="bounded", options={"xatol": 1e-12}
    )
    return float(found.fun), float(found.x)


@pytest.mark.parametrize("weights", ["none", "exact", "self-normalised"])
@pytest.mark.parametrize("d", [ENTROPIC, QUADRATIC], ids=name_of)
def test_every_field_agrees_with_a_scalar_minimizer(d: Divergence, weights: str, arrays: Arrays) -> None:
    """Exact weights w replace the losses f by f + eta log w; self-normalised weights replace p."""
    draws = np.random.default_rng(0)
    f, log_w, eta = draws.uniform(size=(3, 41)), 0.5 * draws.normal(size=(3, 41)), 0.3
    z, distribution = fixed(f, arrays)
    method = (
        Uniform()
        if weights == "none"
        else GivenProposal(distribution.points, arrays.asarray(log_w), weights != "exact")
    )
    out = robust_risk(first, z, distribution, eta, d, n_samples=41, rng=rng(0), method=method)
    p = np.exp(log_w) if weights == "self-normalised" else np.ones_like(f)
    f = f + eta * log_w if weights == "exact" else f
    conj = {"entropic": np.expm1, "quadratic": lambda s: np.maximum(s, 0) ** 2 / 2}[d.name]
    values, missing, variances = [], [], []
    for row, q in zip(f, p, strict=True):
        value, mu = oracle(row, eta, d.name, q)
        low = 20 * oracle(row[:20], eta, d.name, q[:20])[0] + 21 * oracle(row[20:], eta, d.name, q[20:])[0]
        values.append(value)
        missing.append(value - low / 41)
        v, q = eta * conj((row - mu) / eta), q / q.sum()
        variances.append(np.sum(q**2 * (v - q @ v) ** 2) * 41 / 40)
    # The scalar minimizer determines mu, and thus the variance, to about 1e-7.
    tolerance: dict[str, Any] = {"rel": 1e-5, "abs": 20 * arrays.eps}
    assert arrays.numpy(out.values) == pytest.approx(np.array(values), **tolerance)
    assert float(out.value) == pytest.approx(np.mean(values), **tolerance)
    assert float(out.bias) == pytest.approx(np.mean(missing), **tolerance)
    assert float(out.stderr) == pytest.approx(sqrt(sum(variances)) / 3, **tolerance)
    assert float(out.population_stderr) == pytest.approx(np.std(values, ddof=1) / sqrt(3), rel=1e-4)
    assert out.lower_bound or weights != "self-normalised"
    for field in (out.value, out.values, out.bias, out.stderr, out.population_stderr):
        assert field.dtype == arrays.dtype
    assert [x.shape for x in (out.value, out.bias, out.stderr, out.population_stderr)] == [()] * 4


def test_population_error_of_one_data_point_is_infinite() -> None:
    z, distribution = fixed([[0.0, 1.0]], NUMPY)
    out = robust_risk(first, z, distribution, 1.0, ENTROPIC, n_samples=2, rng=rng(0))
    assert float(out.population_stderr) == inf
    assert float(out.value) == pytest.approx(log((1 + exp(1)) / 2), abs=1e-14)
    assert float(out.bias) == pytest.approx(log((1 + exp(1)) / 2) - 0.5, abs=1e-14)


def test_risk_and_standard_error_are_those_of_the_mean_for_large_eta(arrays: Arrays) -> None:
    f = np.random.default_rng(1).uniform(size=(1, 50))
    z, distribution = fixed(f, arrays)
    for d in (ENTROPIC, QUADRATIC, cressie_read(1.5)):
        out = robust_risk(first, z, distribution, 1e12, d, n_samples=50, rng=rng(0))
        assert float(out.value) == pytest.approx(f.mean(), rel=4 * arrays.eps)
        assert float(out.stderr) == pytest.approx(f.std(ddof=1) / sqrt(50), rel=1e3 * arrays.eps)


def test_lower_bound_flag_is_set_if_eta_or_n_samples_is_small(doubles: Arrays) -> None:
    z = doubles.asarray(np.full((2, 1), 0.5))
    for d, eta, samples, label in [
        (ENTROPIC, 0.2, 400, False),
        (ENTROPIC, 1e-3, 400, True),
        (QUADRATIC, 1e-4, 400, True),
        (ENTROPIC, 1.0, 10, True),
        (ABSOLUTE, 0.2, 4000, True),
        (HINGE, 0.2, 4000, True),
        (HINGE, 2.0, 4000, False),  # no mass moves
        (indicator(0.01), 1.0, 400, True),
    ]:
        out = robust_risk(first, z, Ball(2, 0.5), eta, d, n_samples=samples, rng=rng(0))
        assert out.lower_bound is label, (d.name, eta)


def test_loss_gets_the_index_of_its_data_point(doubles: Arrays) -> None:
    labels = doubles.asarray([5.0, -3.0, 10.0])
    z = doubles.asarray(np.array([[0.0], [10.0], [20.0]]))

    def loss(x: Array, i: Array) -> Array:
        xp = array_namespace(x)
        assert i.dtype == xp.int64
        assert xp.all(xp.abs(x[:, 0] - 10 * xp.astype(i, x.dtype)) <= 1)
        return xp.take(labels, i) + 0 * x[:, 0]

    for samples, chunk in ((5, 4), (5, 1000), (2500, 100), (2500, 10000)):
        out = robust_risk(loss, z, Ball(2, 1.0), 1.0, QUADRATIC, n_samples=samples, rng=rng(0), chunk=chunk)
        assert doubles.numpy(out.values) == pytest.approx(np.array([5.0, -3.0, 10.0]), rel=4 * doubles.eps)
    assert doubles.numpy(z).tolist() == [[0.0], [10.0], [20.0]]


@pytest.mark.parametrize("samples", [3, 400, 1024, 2600])
def test_estimate_does_not_depend_on_the_chunk(samples: int) -> None:
    z = np.linspace(-1, 1, 10).reshape(5, 2)
    outs = []
    for chunk in (37, 999, 3000, 100_000):
        loss, at = Counted(), {"n_samples": samples, "rng": rng(1), "chunk": chunk}
        outs.append(robust_risk(loss, z, Ball(2, 0.7), 0.1, ENTROPIC, **at))
        assert max(loss.sizes) <= chunk
        assert sum(loss.sizes) == 5 * samples  # each point is evaluated once
        # Only the last chunk of a tile of 1024 points may be smaller, so few calls are made.
        assert len(loss.sizes) <= 5 * samples / min(chunk, 512) + 1 + 5 * samples / 1024 + 5
    for out in outs[1:]:
        # The order of summation depends on the layout of the rows.
        assert out.values == pytest.approx(outs[0].values, abs=1e-14)
        assert float(out.stderr) == pytest.approx(float(outs[0].stderr), rel=1e-13)
        assert float(out.bias) == pytest.approx(float(outs[0].bias), abs=1e-14)
    other = robust_risk(loss, z, Ball(2, 0.7), 0.1, ENTROPIC, n_samples=samples, rng=rng(2))
    assert float(other.value) != float(outs[0].value)


def test_results_require_no_gradient_and_print_on_one_line() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    theta = torch.tensor([0.4, 1.3], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[0.1, 0.2], [0.5, -0.3]], dtype=torch.float64, requires_grad=True)
    graphs = []

    def loss(x: Any, i: Any) -> Any:
        f = torch.sin(x @ theta) + theta[0] * i
        graphs.append(f.requires_grad)
        return f

    ball = Ball(2, 1.0)
    results = [
        robust_risk(loss, z, ball, 0.3, QUADRATIC, n_samples=8, rng=rng(0)),
        robust_risk(loss, z, ball, None, QUADRATIC, budget=0.2, n_samples=8, rng=rng(0)),
        robust_risk(loss, z, ball, 0.3, QUADRATIC, method="quadrature"),
        adversarial_risk(loss, z, ball, n_samples=8, rng=rng(0), attack=lambda loss, x, ball: x),
    ]
    assert not any(graphs)
    results.append(robust_risk(loss, z, ball, 0.3, ENTROPIC, n_samples=8, rng=rng(0), method=Tilted()))
    for result in results:
        numbers = [getattr(result, field.name) for field in fields(result)]
        assert not any(getattr(x, "requires_grad", False) for x in numbers)
        assert "\n" not in repr(result)
    for x in (fgm(loss, z, ball), pgm(loss, z, ball, rng=rng(0)), white_noise(z, ball, rng=rng(0))):
        assert not x.requires_grad
    assert theta.grad is None
    assert z.grad is None


def test_loss_of_another_library_is_rejected() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict: not installed")
    z, ball = strict.asarray([[0.0], [1.0]]), Ball(2, 1.0)
    with pytest.raises(TypeError, match=r"loss\(x, i\) is a numpy array"):
        robust_risk(lambda x, i: np.zeros(x.shape[0]), z, ball, 1.0, ENTROPIC, n_samples=2, rng=rng(0))


def test_risks_and_standard_errors_scale_with_losses_and_eta_without_overflow() -> None:
    z, ball = np.full((3, 1), 0.5), Ball(2, 0.5)
    for d in (ENTROPIC, indicator(0.75)):
        small, large = (
            robust_risk(lambda x, i, t=t: t * x[:, 0], z, ball, t * 0.1, d, n_samples=8, rng=rng(0))
            for t in (1.0, 2.0**1015)
        )
        for field in ("value", "bias", "stderr", "population_stderr"):
            assert abs(float(getattr(large, field)) / 2.0**1015 - float(getattr(small, field))) < 1e-13, field
    tiny = robust_risk(
        lambda x, i: 2.0**1015 * x[:, 0], z, ball, 1e-3, indicator(0.75), n_samples=8, rng=rng(0)
    )
    assert float(tiny.stderr) == float(large.stderr)  # CVaR does not depend on eta


def test_float32_losses_near_overflow_have_finite_risks() -> None:
    z = np.array([0.0, 3e38], dtype=np.float32)  # scalar data points
    risk = robust_risk(lambda x, i: x, z, Ball(1, 0.0), 1.0, ENTROPIC, n_samples=4, rng=rng(0))
    np.testing.assert_array_equal(risk.values, z)
    assert float(risk.bias) == 0


def test_gradients_for_tilting_are_computed_in_chunks() -> None:
    x, loss = np.random.default_rng(6).normal(size=(50, 2)), partial(model, THETA)
    out = []
    for chunk in (1, 7, 50, 10**6):
        sizes: list[int] = []

        def slope(x: Any, i: Any, sizes: list[int] = sizes) -> Any:
            sizes.append(len(x))
            return in_x(THETA, x, i)

        how: dict[str, Any] = {"chunk": chunk, "method": Tilted(retilt=1, gradient=slope)}
        risk = robust_risk(loss, x, Ball(1, 0.5), 0.3, ENTROPIC, n_samples=30, rng=rng(12), **how)
        assert max(sizes) <= chunk
        assert sum(sizes) == 100  # once at the data points, once at the tilted points
        out.append(risk)
    for risk in out[1:]:
        assert np.array_equal(risk.values, out[0].values)
        assert risk.stderr == out[0].stderr
        assert risk.bias == out[0].bias


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_tilted_risk_of_linear_losses_is_exact(distribution: Any, doubles: Arrays) -> None:
    xp = doubles.xp
    slopes = np.array([[1.0, -2.0, 0.5], [0.0, 0.3, 0.0], [0.0, 0.0, 0.0]])
    etas = np.array([0.5, 0.05, 2.0])
    a = doubles.asarray(slopes)
    risk = robust_risk(
        lambda x, i: xp.sum(x * xp.take(a, i, axis=0), axis=-1),
        doubles.asarray(np.zeros((3, 3))),
        distribution,
        doubles.asarray(etas),
        ENTROPIC,
        n_samples=50,
        rng=rng(13),
        chunk=70,  # less than two data points
        method=Tilted(gradient=lambda x, i: xp.take(a, i, axis=0)),
    )
    exact = np.array([linear_value(distribution, g, eta) for g, eta in zip(slopes, etas, strict=True)])
    slack = 50 * doubles.eps
    assert np.abs(doubles.numpy(risk.values) - exact).max() <= slack
    assert float(risk.bias) <= slack
    assert float(risk.stderr) <= slack
    assert not risk.lower_bound
    assert risk.values.dtype == risk.stderr.dtype == doubles.dtype


def test_self_normalised_weights_set_the_lower_bound_flag() -> None:
    """Such weights overestimate the entropic risk of x_1 in 784 dimensions by more than a fifth."""
    slope, ball, z = np.eye(784)[0], Ball(2, 1.0), np.zeros((1, 784))

    def risk(**how: Any) -> Any:
        method = Tilted(gradient=lambda x, i: slope + 0 * x, **how)
        return robust_risk(lambda x, i: x[:, 0], z, ball, 0.001, n_samples=256, rng=rng(0), method=method)

    found = risk(self_normalised=True)
    assert found.value > 1.2 * 0.001 * float(ball.log_mgf(1000 * slope))
    assert found.lower_bound
    with pytest.raises(ValueError, match="kappa=None"):
        risk(kappa=1.0)
