"""`pointwise_loss` and its default losses, which agree with torch's."""

from typing import Any

import numpy as np
import pytest

from phiball import SG, Ball, RegularizedLoss, RobustLoss, pointwise_loss
from phiball.refimpl.sampling.pointwise_loss import default_loss
from tests.support.arrays import Arrays
from tests.support.training_models import close, cross_entropy, data, gradients, network

torch = pytest.importorskip("torch", reason="torch: not installed")
functional = torch.nn.functional

LABELS = np.array([2, 0, 1, 2, 1, 0, 0])


def outputs(*shape: int) -> Any:
    return 3 * np.random.default_rng(0).normal(size=(7, *shape))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_default_for_integer_labels_is_cross_entropy(dtype: str, arrays: Arrays) -> None:
    logits = outputs(3)
    expected = functional.cross_entropy(torch.tensor(logits), torch.tensor(LABELS), reduction="none")
    y = arrays.xp.asarray(LABELS.tolist(), dtype=getattr(arrays.xp, dtype), **arrays.at)
    found = default_loss(arrays.asarray(logits), y)
    assert found.dtype == arrays.dtype
    np.testing.assert_allclose(arrays.numpy(found), expected.numpy(), atol=40 * arrays.eps)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_default_for_one_logit_is_binary_cross_entropy(shape: tuple[int, ...], arrays: Arrays) -> None:
    logits = 30 * outputs()  # so large that exp would overflow in float32
    y = LABELS > 0
    expected = functional.binary_cross_entropy_with_logits(
        torch.tensor(logits), torch.tensor(y, dtype=torch.float64), reduction="none"
    )
    labels = arrays.xp.asarray(y.tolist(), **arrays.at)
    for given in (labels, arrays.xp.astype(labels, arrays.xp.int64)):
        found = default_loss(arrays.asarray(logits.reshape(7, *shape)), given)
        np.testing.assert_allclose(arrays.numpy(found), expected.numpy(), atol=1000 * arrays.eps)


@pytest.mark.parametrize(
    ("output", "target"), [((), ()), ((1,), ()), ((), (1,)), ((2,), (2,)), ((2, 3), (2, 3))]
)
def test_default_for_real_targets_is_squared_error(
    output: tuple[int, ...], target: tuple[int, ...], arrays: Arrays
) -> None:
    out = outputs(*output)
    y = np.random.default_rng(1).normal(size=(7, *target))
    expected = ((out.reshape(7, -1) - y.reshape(7, -1)) ** 2).mean(axis=1)
    found = default_loss(arrays.asarray(out), arrays.asarray(y))
    np.testing.assert_allclose(arrays.numpy(found), expected, atol=1000 * arrays.eps)


@pytest.mark.parametrize("kind", ["classes", "logit", "target"])
def test_gradients_agree_with_torch(kind: str) -> None:
    out = torch.tensor(outputs(*{"classes": (3,)}.get(kind, (1,))), requires_grad=True)
    y = torch.tensor(LABELS)
    if kind == "classes":
        theirs = functional.cross_entropy(out, y, reduction="none")
    elif kind == "logit":
        y = y > 0
        theirs = functional.binary_cross_entropy_with_logits(out[:, 0], y.double(), reduction="none")
    else:
        y = y.float()  # a precision different from the output's
        theirs = functional.mse_loss(out[:, 0], y.double(), reduction="none")
    weights = torch.linspace(-1, 2, 7, dtype=torch.float64)
    (expected,) = torch.autograd.grad(weights @ theirs, out)
    (found,) = torch.autograd.grad(weights @ default_loss(out, y), out)
    assert torch.allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_outputs_are_float32(dtype: Any) -> None:
    out, y = torch.tensor(outputs(3)).to(dtype), torch.tensor(LABELS)
    found = default_loss(out, y)
    assert found.dtype == torch.float32
    assert torch.allclose(found, functional.cross_entropy(out.float(), y, reduction="none"))


def test_model_and_labels_are_equivalent_to_a_loss_function() -> None:
    model, (x, y) = network((5,)), data((5,))
    objective = RegularizedLoss(Ball(2, 0.5), 0.3, "chi2", SG(2))
    for loss in (None, torch.nn.CrossEntropyLoss(reduction="none")):
        expected = objective(cross_entropy(model, y), x, rng=1)
        expected.backward()
        theirs = gradients(model)
        for evaluate in (
            lambda loss=loss: objective(model, x, y, rng=1, loss=loss),
            lambda loss=loss: objective(pointwise_loss(model, y, loss), x, rng=1),
            lambda loss=loss: objective.backward(model, x, y, rng=1, loss=loss, chunk=7),
        ):
            found = evaluate()
            if found.requires_grad:
                found.backward()
            assert close([found.detach()], [expected.detach()])
            assert close(gradients(model), theirs)
        assert close([objective.points(model, x, y, rng=1, loss=loss).value], [expected.detach()])
        values = [
            RobustLoss(0.3, rng=2)(*how, loss=loss if len(how) == 3 else None)
            for how in ((model, x, y), (pointwise_loss(model, y, loss), x), (cross_entropy(model, y), x))
        ]
        assert close([v.detach() for v in values[:2]], [values[2].detach()] * 2)


def test_loss_can_be_compiled_without_graph_breaks() -> None:
    model, (x, y) = network((5,)), data((5,))
    loss = pointwise_loss(model, y)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    i = torch.tensor([3, 3, 0])
    assert torch.equal(compiled(x[i], i), loss(x[i], i))


def test_invalid_models_labels_and_losses_raise() -> None:
    model, (x, y) = network((5,)), data((5,))
    objective = RegularizedLoss(Ball(2, 0.5), 0.3)
    cases: list[tuple[Any, Any, str]] = [
        (lambda: pointwise_loss(3, y), TypeError, "model is 3; expected"),
        (lambda: pointwise_loss(model, [1, 2]), TypeError, r"y is \[1, 2\]; expected an array"),
        (lambda: pointwise_loss(model, y, "mse"), TypeError, "loss is 'mse'; expected a function"),
        (lambda: objective(model, x, y[:5]), ValueError, "y has 5 labels for 9 points x"),
        (lambda: objective(pointwise_loss(model, y[:5]), x), ValueError, "y has 5 labels for 9 points x"),
        (lambda: RobustLoss(0.3)(model, x, y[:5]), ValueError, "y has 5 labels for 9 points x"),
        (lambda: objective(model, x, loss=torch.nn.MSELoss()), ValueError, "loss is given without y"),
        (lambda: objective(model, x, y.numpy()), TypeError, "y is a numpy array and x a torch array"),
        (lambda: objective(model, x, y.to("meta")), ValueError, "y is on meta and x on cpu"),
        (lambda: objective(pointwise_loss(model), x), ValueError, "pointwise_loss has no labels"),
        (lambda: objective(lambda x: (x,), x, y), TypeError, "the model returns tuple; expected an array"),
        (lambda: objective(lambda x: x.sum(), x, y), ValueError, r"shape \(\) for 36 points"),
        (lambda: objective(lambda x: x.T, x, y), ValueError, r"shape \(5, 36\) for 36 points"),
        (lambda: objective(model, x, torch.ones(9, 2).long()), ValueError, r"for labels of shape \(36, 2\)"),
        (lambda: objective(model, x, y + 1), ValueError, "a label outside 0 to 2"),
        (lambda: objective(model, x, y - 1), ValueError, "a label outside 0 to 2"),
        (lambda: objective(model, x, y.double()), ValueError, r"for targets of shape \(36,\)"),
        (lambda: objective(lambda x: x[:, None, :], x, y), ValueError, "expected .k, classes."),
        (lambda: objective(model, x, y, loss=torch.nn.CrossEntropyLoss()), ValueError, "reduction='none'"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()


def test_with_labels_replaces_the_labels() -> None:
    model, (x, y) = network((5,)), data((5,))
    i = torch.arange(9)
    first, second = pointwise_loss(model, y), pointwise_loss(model).with_labels(y.flip(0))
    assert torch.equal(second(x, i), pointwise_loss(model, y.flip(0))(x, i))
    assert not torch.equal(first(x, i), second(x, i))
