"""Risks of data in batches use bounded memory and equal the risks of one array."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from phiball import ENTROPIC, QUADRATIC, Ball, Tilted, Uniform, pointwise_loss, rng
from phiball.refimpl.risk import AdversarialRisk, Estimate, adversarial_risk, robust_risk
from tests.support.arrays import Arrays

N, D = 300, 4
BALL = Ball(2, 0.5)
SLOPES = np.random.default_rng(1).standard_normal((D, 3))
Z = np.random.default_rng(0).standard_normal((N, D))
Y = np.arange(N) % 3


def batches_of(z: Any, *sizes: int) -> Iterator[Any]:
    """Cut z into batches of these sizes, cyclically."""
    start = k = 0
    while start < z.shape[0]:
        end = min(start + sizes[k % len(sizes)], z.shape[0])
        yield z[start:end, ...]
        start, k = end, k + 1


def logits(x: Any) -> Any:
    return np.tanh(x @ SLOPES)


def labelled_loss(x: Any, i: Any) -> Any:
    return label_loss(logits(x), Y[i])


def loss_gradient(x: Any, i: Any) -> Any:
    y = Y[i]
    return -(1 - np.take_along_axis(logits(x), y[:, None], axis=1) ** 2) * SLOPES.T[y]


def label_loss(output: Any, y: Any) -> Any:
    return 1 - np.take_along_axis(output, y[:, None], axis=1)[:, 0]


def same(found: Any, expected: Any) -> bool:
    """Assert that two results are equal, except for the points, which are not stored for batches."""
    for item in fields(expected):
        if item.name not in ("points", "per_point"):
            np.testing.assert_array_equal(getattr(found, item.name), getattr(expected, item.name), item.name)
    return True


@pytest.mark.parametrize(("samples", "chunk"), [(7, 50), (40, 64), (1500, 8192)])
def test_robust_risk_of_batches_equals_that_of_one_array(samples: int, chunk: int) -> None:
    """Data points share a tile of samples or need several, and chunks begin inside blocks."""
    x, y = Z[:60], Y[:60]
    for d, method in (
        (ENTROPIC, Uniform()),
        (QUADRATIC, Uniform(antithetic=True)),
        (ENTROPIC, Tilted(gradient=loss_gradient)),
    ):

        def risk(loss: Any, x: Any, d: Any = d, method: Any = method) -> Any:
            return robust_risk(loss, x, BALL, 0.3, d, n_samples=samples, chunk=chunk, method=method, rng=5)

        whole = risk(labelled_loss, x)
        for sizes in ((1,), (7, 20)):
            assert same(risk(labelled_loss, batches_of(x, *sizes)), whole)
            pairs = zip(batches_of(x, *sizes), batches_of(y, *sizes), strict=True)
            assert same(risk(pointwise_loss(logits, loss=label_loss), pairs), whole)


def test_adversarial_risk_of_batches_equals_that_of_one_array() -> None:

    def attack(loss: Any, x: Any, ball: Ball) -> Any:
        i, h = np.arange(len(x)), 1e-6  # within a block, data points are numbered from 0
        step = np.stack([loss(x + h * e, i) - loss(x - h * e, i) for e in np.eye(D)], axis=-1)
        return x + ball.radius * step / np.linalg.norm(step, axis=-1, keepdims=True) * (1 - 1e-12)

    for samples, chunk in ((3, 64), (1100, 500)):
        settings: dict[str, Any] = {"n_samples": samples, "chunk": chunk, "rng": 2}
        x, y = Z[:90], Y[:90]
        whole = adversarial_risk(labelled_loss, x, BALL, attack=attack, **settings)
        for sizes in ((90,), (1, 31)):
            pairs = zip(batches_of(x, *sizes), batches_of(y, *sizes), strict=True)
            loss = pointwise_loss(logits, loss=label_loss)
            for found in (
                adversarial_risk(loss, pairs, BALL, attack=attack, **settings),
                adversarial_risk(labelled_loss, batches_of(x, *sizes), BALL, attack=attack, **settings),
            ):
                assert found.points is None
                assert same(found, whole)
        assert same(
            adversarial_risk(labelled_loss, batches_of(x, 11), BALL, **settings),
            adversarial_risk(labelled_loss, x, BALL, **settings),
        )


def test_batches_of_every_array_library_are_accepted(doubles: Arrays) -> None:
    z = doubles.asarray(Z[:40])
    for risk in (
        lambda z: robust_risk(lambda x, i: x[:, 0] ** 2, z, BALL, 0.3, ENTROPIC, n_samples=9, rng=rng(1)),
        lambda z: adversarial_risk(lambda x, i: x[:, 0] ** 2, z, BALL, n_samples=9, rng=rng(1)),
    ):
        found, whole = risk(batches_of(z, 3, 8)), risk(z)
        np.testing.assert_array_equal(doubles.numpy(found.values), doubles.numpy(whole.values))
        assert float(found.value) == float(whole.value)


@pytest.mark.slow
def test_data_loaders_dask_arrays_and_memory_maps_are_accepted(tmp_path: Any) -> None:
    whole = robust_risk(labelled_loss, Z, BALL, 0.3, ENTROPIC, n_samples=20, rng=rng(1))
    np.save(tmp_path / "z.npy", Z)
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert same(
        robust_risk(labelled_loss, batches_of(mapped, 32), BALL, 0.3, ENTROPIC, n_samples=20, rng=rng(1)),
        whole,
    )
    dask = pytest.importorskip("dask.array", reason="dask: not installed")
    blocks = dask.from_array(Z, chunks=(64, 2))
    assert same(robust_risk(labelled_loss, blocks, BALL, 0.3, ENTROPIC, n_samples=20, rng=rng(1)), whole)
    torch = pytest.importorskip("torch", reason="torch: not installed")
    weight = torch.asarray(SLOPES).requires_grad_()

    def network(x: Any) -> Any:
        return torch.tanh(x @ weight)

    x, y = torch.asarray(Z), torch.asarray(Y)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
    settings: dict[str, Any] = {"n_samples": 20, "rng": 1, "chunk": 512}
    found = robust_risk(pointwise_loss(network), loader, BALL, 0.3, **settings)
    in_memory = robust_risk(pointwise_loss(network, y), x, BALL, 0.3, **settings)
    assert not in_memory.values.requires_grad
    assert not found.values.requires_grad
    assert torch.equal(found.values, in_memory.values)


def test_loss_is_called_as_soon_as_a_block_of_batches_is_read() -> None:
    batches_read = 0

    def endless() -> Iterator[Any]:
        nonlocal batches_read
        while True:
            batches_read += 1
            yield Z[:10]

    class StopError(Exception):
        pass

    def loss(x: Any, i: Any) -> Any:
        if int(np.max(i)) > 2000:
            raise StopError
        assert x.shape[0] <= 100
        return x[:, 0]

    with pytest.raises(StopError):
        robust_risk(loss, endless(), BALL, 0.3, ENTROPIC, n_samples=5, rng=rng(0), chunk=100)
    assert 200 <= batches_read <= 200 + 2 * 204 // 10  # a block has 1024 // 5 = 204 data points


def test_estimates_of_parts_merge_to_the_estimate_of_all_data() -> None:
    settings: dict[str, Any] = {"n_samples": 30}
    for chunk in (30, 8192):  # one data point at a time, and many

        def risk(z: Any, source: Any, chunk: int = chunk) -> Estimate:
            return robust_risk(lambda x, i: x[:, 0] ** 2, z, BALL, 0.2, rng=source, chunk=chunk, **settings)

        source = rng(3)
        # The draws are the same, because a tile has 34 data points.
        parts = [risk(part, source) for part in batches_of(Z[:102], 34)]
        whole = risk(Z[:102], rng(3))
        assert same(Estimate.merge(parts), whole)
        assert same(Estimate.merge([Estimate.merge(parts[:2]), parts[2]]), whole)
    source = rng(3)
    found = [
        adversarial_risk(labelled_loss, part, BALL, rng=source, **settings) for part in batches_of(Z[:68], 34)
    ]
    merged = AdversarialRisk.merge(found)
    assert float(merged.value) == float(np.mean(np.concatenate([part.values for part in found])))
    assert merged.points is not None
    assert merged.points.shape == (68, D)


def test_labels_come_from_the_batches_or_from_the_loss_but_not_from_both() -> None:
    def pairs() -> Iterator[Any]:
        return zip(batches_of(Z, 10), batches_of(Y, 10), strict=True)

    for risk in (
        lambda loss, x: robust_risk(loss, x, BALL, 0.3, n_samples=3, rng=0),
        lambda loss, x: adversarial_risk(loss, x, BALL, n_samples=3, rng=0),
    ):
        for loss in (labelled_loss, pointwise_loss(logits, Y)):
            with pytest.raises(ValueError, match=r"is a pair \(x, y\), but the loss takes no labels"):
                risk(loss, pairs())
        with pytest.raises(ValueError, match="is of type ndarray, and the loss has no labels"):
            risk(pointwise_loss(logits), batches_of(Z, 10))
        with pytest.raises(ValueError, match="pointwise_loss has no labels"):
            risk(pointwise_loss(logits), Z)


def test_invalid_batches_and_settings_raise() -> None:
    def risk(x: Any, loss: Any = lambda x, i: x[:, 0], **more: Any) -> Any:
        settings = {"eta": 0.3, "n_samples": 3, "rng": rng(0), **more}
        return robust_risk(loss, x, BALL, divergence=ENTROPIC, **settings)

    strict = pytest.importorskip("array_api_strict", reason="array_api_strict: not installed")
    for batches, error, message in [
        ([], ValueError, "x has no batches"),
        (["abc"], TypeError, "a batch of x is 'abc'"),
        ([Z[:2], Z[:0]], ValueError, r"a batch of x has shape \(0, 4\)"),
        ([Z[:2], (Z[:2], Y[:2])], ValueError, "a batch of x is a pair"),
        ([(Z[:2], Y[:3])], ValueError, r"the labels of a batch have shape \(3,\); expected 2 labels"),
        ([(Z[:2], [0, 1])], ValueError, "the labels of a batch have shape list"),
        ([(Z[:2], strict.asarray(Y[:2]))], TypeError, "expected arrays of one supported library"),
        ([(Z[:2], Y[:2], Y[:2])], ValueError, "a batch of x is a tuple of 3 items; expected"),
        ([np.full((1, 4), np.nan)], ValueError, "a batch of x contains NaN"),
        ([Z[:2], Z[:2, :3]], ValueError, r"has points of shape \(3,\)"),
    ]:
        paired = len(batches) == 1 and isinstance(batches[0], tuple)
        settings = {"loss": pointwise_loss(logits)} if paired else {}
        with pytest.raises(error, match=message):
            risk(iter(batches), **settings)
    ball = BALL.masked(np.arange(N)[:, None] % 2 == np.ones((1, D)))
    robust_risk(labelled_loss, Z, ball, 0.3, ENTROPIC, n_samples=3, rng=rng(0))
    other = adversarial_risk(lambda x, i: x[:, 0], Z, BALL, n_samples=1, rng=rng(0))
    cases: dict[str, Any] = {
        r"eta has shape \(300,\); expected a number": lambda: risk(batches_of(Z, 10), eta=np.full(N, 0.3)),
        "retilt=0 for data in batches": lambda: risk(
            batches_of(Z, 10), method=Tilted(retilt=1, gradient=loss_gradient)
        ),
        "feature_scale differs between data points": lambda: robust_risk(
            labelled_loss, batches_of(Z, 10), ball, 0.3, ENTROPIC, n_samples=3, rng=rng(0)
        ),
        "x is": lambda: risk([[0.0, 1.0]]),
        r"x is a list of arrays; pass one array, or iter\(x\) for batches": lambda: risk([Z[:2], Z[:2]]),
        r"parts is \[\]; expected sampled results": lambda: Estimate.merge([]),
        "expected sampled results of robust_risk": lambda: Estimate.merge([other]),
        "expected one or more results of adversarial_risk": lambda: AdversarialRisk.merge([]),
    }
    for message, call in cases.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()
