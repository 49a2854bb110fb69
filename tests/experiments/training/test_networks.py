"""The networks of Section 6.1: layers, outputs and seeds."""

import pytest

torch = pytest.importorskip("torch", reason="torch: not installed")

from phiball.experiments.training.image_networks import cnn, network  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_cnn_has_the_layers_of_the_paper() -> None:
    model = cnn()
    filters = [tuple(m.weight.shape) for m in model if hasattr(m, "weight")]
    assert filters == [(64, 1, 8, 8), (128, 64, 6, 6), (128, 128, 5, 5), (10, 128)]
    assert sum(isinstance(m, torch.nn.ELU) for m in model) == 3
    assert tuple(network((28, 28), 2)(torch.zeros(3, 1, 28, 28)).shape) == (3, 10)


@pytest.mark.parametrize("shape", [(28, 28), (8, 8)])
def test_seed_sets_the_weights_without_changing_global_state(shape: tuple[int, int]) -> None:
    torch.manual_seed(5)
    first, again, other = (network(shape, 2, seed=n).state_dict() for n in (1, 1, 2))
    after = torch.rand(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_network_for_small_images_is_dense() -> None:
    model = network((8, 6), 4, seed=2)
    assert [tuple(p.shape) for p in model.parameters()] == [(32, 48), (32,), (10, 32), (10,)]
    x = torch.rand((3, 1, 8, 6), generator=torch.Generator().manual_seed(0))
    a, b, c, d = model.parameters()
    with torch.no_grad():
        z = x.reshape(3, 48) @ a.T + b
        expected = torch.where(z > 0, z, torch.expm1(z)) @ c.T + d
        torch.testing.assert_close(model(x), expected)
