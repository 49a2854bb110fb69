"""The networks of Section 6.1: what they compute, and that the fast form computes what the plain one does."""

from __future__ import annotations

import copy
import io
import pickle
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
    "every other image": lambda x: x.repeat_interleave(2, 0)[::2],
    "transposed": lambda x: x.mT.contiguous().mT,
    "images last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
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


def test_the_network_of_the_paper() -> None:
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
def test_a_seed_repeats_itself_and_moves_no_other_generator(name: str) -> None:
    make = MAKERS[name]
    torch.manual_seed(5)
    first, again, other = (make(2, seed=n).state_dict() for n in (1, 1, 2))
    after = torch.rand(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("name", MAKERS)
def test_width_and_seed_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match="width is 0; expected a whole number of at least 1"):
        MAKERS[name](0)
    with pytest.raises(ValueError, match="seed is -1; expected a whole number of at least 0"):
        MAKERS[name](2, seed=-1)


# --- The fast form --------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("width", "n"), [(1, 5), (3, 1), (16, 4)])
def test_values_and_gradients_are_those_of_the_plain_network(
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


def test_activations_have_their_channels_last() -> None:
    """It is what makes the network fast, and no value shows it."""
    met = []
    model = fast_cnn(4)
    for i in (1, 3):
        model[i].register_forward_pre_hook(lambda module, x: met.append(x[0]))
    model(images(2, torch.float32))
    assert [tuple(x.shape) for x in met] == [(2, 4, 14, 14), (2, 8, 5, 5)]
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in met)
    assert not any(x.is_contiguous() for x in met)


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_each_layer_has_the_values_of_its_twin(layer: int) -> None:
    model, plain = pair(3, torch.float64)
    x = plain[:layer](images(2))
    same(model[layer](x), plain[layer](x))
    assert isinstance(model[layer], torch.nn.Conv2d)


def test_the_images_are_not_modified() -> None:
    x = images(2)
    before = x.clone()
    loss(fast_cnn(2).double(), x).sum().backward()
    assert torch.equal(x, before)


def test_no_images() -> None:
    assert tuple(fast_cnn(2)(torch.zeros(0, 1, 28, 28)).shape) == (0, 10)


@pytest.mark.parametrize("shape", [(2, 1, 27, 28), (2, 3, 28, 28), (2, 784), (1, 28, 28), (2, 1, 30, 30)])
def test_other_images_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"x has shape \(.*\); expected \(N, 1, 28, 28\)") as error:
        fast_cnn(2)(torch.zeros(shape))
    assert str(shape) in str(error.value)


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


def test_second_derivatives_by_differences() -> None:
    model = fast_cnn(1, seed=4).double()
    x = images(1).requires_grad_()
    direction = images(1, seed=7) - 0.5

    def along(t: Any) -> Any:
        return loss(model, x.detach() + t * direction).sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(along, (t,))
    assert torch.autograd.gradgradcheck(along, (t,))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, on first use
def test_transforms_of_functions() -> None:
    """Gradients of single images in the weights, and forward derivatives."""
    func = torch.func
    x = images(3)
    results = []
    for model in pair(2, torch.float64):

        def value(weights: Any, image: Any, model: Any = model) -> Any:
            return func.functional_call(model, weights, (image[None],)).logsumexp(1).sum()

        weights = {name: p.detach() for name, p in model.named_parameters()}
        gradients = func.vmap(func.grad(value), (None, 0))(weights, x)
        forward = func.jvp(lambda z, model=model: model(z), (x,), (torch.ones_like(x),))[1]
        results.append([*gradients.values(), forward])
    assert len(results[0]) == 8 + 1
    for a, b in zip(*results, strict=True):
        same(a, b)


# --- Its parameters -------------------------------------------------------------------------------


def layout(model: Any) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(name, tuple(p.shape), p.stride()) for name, p in model.state_dict().items()]


def test_both_forms_begin_with_the_same_parameters() -> None:
    fast, plain = fast_cnn(3, seed=8), cnn(3, seed=8)
    assert layout(fast) == layout(plain)
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in plain.named_parameters()]
    for name, value in plain.state_dict().items():
        assert torch.equal(fast.state_dict()[name], value)


@pytest.mark.parametrize(
    ("source", "target"), [(cnn, fast_cnn), (fast_cnn, cnn)], ids=["to fast", "to plain"]
)
def test_checkpoints_fit_both_forms(source: Callable[..., Any], target: Callable[..., Any]) -> None:
    """After steps of training, through a file."""
    model, other = source(2, seed=1), target(2, seed=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = images(4, torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model, x).mean().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        assert (other(x) - model(x)).abs().max() > 1e-2
        other.load_state_dict(torch.load(file, weights_only=True))
        same(other(x), model(x))
    assert layout(model) == layout(other)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_training_in_both_forms_stays_together() -> None:
    fast, plain = pair(2, torch.float64)
    x = images(8)
    for model in (fast, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            loss(model, x).mean().backward()
            optimizer.step()
    assert loss(fast, x).mean() < loss(pair(2, torch.float64)[0], x).mean() - 0.1
    same(fast(x), plain(x))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_are_apart(copied: Callable[[Any], Any]) -> None:
    model = fast_cnn(2, seed=1)
    x = images(2, torch.float32)
    with torch.no_grad():
        before = model(x)
        twin = copied(model)
        assert torch.equal(twin(x), before)
        for p in twin.parameters():
            p.zero_()
        assert torch.equal(model(x), before)


# --- A network for every size of image ------------------------------------------------------------


def test_the_dense_network() -> None:
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
def test_a_network_for_a_shape(shape: tuple[int, int], made: Callable[[], Any]) -> None:
    model, expected = network(shape, 3, seed=6), made()
    x = torch.rand((2, 1, *shape), generator=torch.Generator().manual_seed(0))
    assert [type(layer) for layer in model] == [type(layer) for layer in expected]
    assert torch.equal(model(x), expected(x))
    assert tuple(model(x).shape) == (2, 10)


def test_the_plain_network_on_request() -> None:
    assert {type(layer) for layer in network((28, 28), 2, fast=False)} == {type(layer) for layer in cnn(2)}
    assert {type(layer) for layer in network((28, 28), 2)} != {type(layer) for layer in cnn(2)}


@pytest.mark.parametrize("shape", [(29, 28), (28, 32), (1, 64)])
def test_no_network_for_larger_images(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected images of at most 28 x 28 pixels") as error:
        network(shape)
    assert f"shape is {shape}" in str(error.value)


@pytest.mark.parametrize("shape", [(1, 28, 28), (28,), 28, (0, 8), (8, -1), (8.0, 8), ("8", 8), None])
@pytest.mark.parametrize("make", [network, dense], ids=["network", "dense"])
def test_what_is_not_a_shape(make: Callable[..., Any], shape: Any) -> None:
    with pytest.raises(ValueError, match="expected \\(height, width\\) of an image") as error:
        make(shape)
    assert f"shape is {shape!r}" in str(error.value)
