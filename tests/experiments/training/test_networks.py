"""The networks of Section 6.1: what they compute, and that the fast form computes what the plain one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch: not installed")

from phiball.backends import input_gradient  # noqa: E402
from phiball.experiments.training.networks import cnn, dense, fast_cnn, network  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# Relative to the largest entry; float32 sums of up to 36 width terms are in another order.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "cropped": lambda x: torch.nn.functional.pad(x, (2, 1, 3, 0))[:, :, 3:, 2:-1],
    "one image, repeated": lambda x: x[:1].expand(x.shape),
}


def images(n: int, dtype: Any = torch.float64, *, seed: int = 0) -> Any:
    return torch.rand((n, 1, 28, 28), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(n: int) -> Any:
    return torch.randint(10, (n,), generator=torch.Generator().manual_seed(1))


def loss(model: Any, x: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), labels(len(x)), reduction="none")


def same(actual: Any, expected: Any) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    far = (actual - expected).detach().abs().max()
    assert far <= TOLERANCE[actual.dtype] * expected.detach().abs().max()
    assert expected.detach().abs().max() > 0


def pair(width: int, dtype: Any) -> tuple[Any, Any]:
    return fast_cnn(width, seed=3).to(dtype), cnn(width, seed=3).to(dtype)


# --- The plain network ----------------------------------------------------------------------------


def test_layers_of_the_paper() -> None:
    model = cnn()
    filters = [tuple(m.weight.shape) for m in model if hasattr(m, "weight")]
    assert filters == [(64, 1, 8, 8), (128, 64, 6, 6), (128, 128, 5, 5), (10, 128)]
    assert sum(isinstance(m, torch.nn.ELU) for m in model) == 3
    assert tuple(cnn(2)(torch.zeros(3, 1, 28, 28)).shape) == (3, 10)


MAKERS: dict[str, Callable[..., Any]] = {
    "cnn": cnn,
    "fast_cnn": fast_cnn,
    "dense": lambda width, seed=0: dense((8, 8), width, seed=seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_seed_sets_the_weights_and_no_global_state(name: str) -> None:
    make = MAKERS[name]
    torch.manual_seed(5)
    first, again, other = (make(2, seed=n).state_dict() for n in (1, 1, 2))
    after = torch.rand(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


# --- The fast form --------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("width", "n"), [(1, 5), (16, 4)])
def test_fast_form_has_values_and_gradients_of_the_plain_one(
    width: int, n: int, layout: str, dtype: Any
) -> None:
    x = LAYOUTS[layout](images(n, dtype))
    results = []
    for model in pair(width, dtype):
        point = x.detach().requires_grad_()
        values = model(point)
        loss(model, point).sum().backward()
        results.append((values, point.grad, [p.grad for p in model.parameters()]))
    (values, inner, outer), (values_0, inner_0, outer_0) = results
    same(values, values_0)
    same(inner, inner_0)
    for grad, grad_0 in zip(outer, outer_0, strict=True):
        same(grad, grad_0)
    # The ordinary layout, whatever lies inside.
    assert values.is_contiguous()
    assert all(grad.is_contiguous() for grad in outer)


def test_second_derivatives() -> None:
    """The gradient in the weights of the norm of the input gradient, as regularisers need it."""
    results = []
    for model in pair(2, torch.float64):

        def inner(x: Any, i: Any, model: Any = model) -> Any:
            return loss(model, x)

        slopes = input_gradient(inner, images(3), torch.arange(3), create_graph=True)
        slopes.flatten(1).norm(dim=1).sum().backward()
        results.append([slopes, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == 1 + 8
    for a, b in zip(*results, strict=True):
        same(a, b)


# --- Its parameters -------------------------------------------------------------------------------


def layout(model: Any) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(name, tuple(p.shape), p.stride()) for name, p in model.state_dict().items()]


def test_both_forms_have_the_same_parameters() -> None:
    fast, plain = fast_cnn(3, seed=8), cnn(3, seed=8)
    assert layout(fast) == layout(plain)
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in plain.named_parameters()]
    for name, value in plain.state_dict().items():
        assert torch.equal(fast.state_dict()[name], value)


# --- A network for every size of image ------------------------------------------------------------


def test_dense_network() -> None:
    model = dense((8, 6), 4, seed=2)
    assert [tuple(p.shape) for p in model.parameters()] == [(32, 48), (32,), (10, 32), (10,)]
    x = torch.rand((3, 1, 8, 6), generator=torch.Generator().manual_seed(0))
    a, b, c, d = model.parameters()
    with torch.no_grad():
        z = x.reshape(3, 48) @ a.T + b
        expected = torch.where(z > 0, z, torch.expm1(z)) @ c.T + d
        torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("shape", "made"),
    [
        ((28, 28), lambda: fast_cnn(3, seed=6)),
        ((8, 8), lambda: dense((8, 8), 3, seed=6)),
        ((28, 27), lambda: dense((28, 27), 3, seed=6)),
        ([1, 28], lambda: dense((1, 28), 3, seed=6)),
    ],
    ids=["28 x 28", "8 x 8", "28 x 27", "1 x 28"],
)
def test_network_by_shape(shape: tuple[int, int], made: Callable[[], Any]) -> None:
    model, expected = network(shape, 3, seed=6), made()
    x = torch.rand((2, 1, *shape), generator=torch.Generator().manual_seed(0))
    assert [type(layer) for layer in model] == [type(layer) for layer in expected]
    assert torch.equal(model(x), expected(x))
    assert tuple(model(x).shape) == (2, 10)


def test_invalid_shapes() -> None:
    with pytest.raises(ValueError, match=r"shape is \(29, 28\); expected images of at most 28 x 28 pixels"):
        network((29, 28))
    for shape in ((1, 28, 28), (0, 8), (8.0, 8), None):
        with pytest.raises(ValueError, match="expected \\(height, width\\) of an image"):
            network(shape)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x has shape \(.*\); expected \(N, 1, 28, 28\)"):
        fast_cnn(2)(torch.zeros(2, 3, 28, 28))
