"""`worst_case` with offsets solves each row as if it were alone."""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from phiball.refimpl import ABSOLUTE, ENTROPIC, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from tests.support.arrays import Arrays
from tests.support.divergences import anonymous, on_each

LENGTHS = [3, 1, 17, 3, 40, 1, 2, 128, 17]
OFFSETS = [0, *accumulate(LENGTHS)]


def _problem() -> tuple[Any, Any, Any]:
    """Losses with ties, eta for each row, and a distribution for each row with zeros."""
    rng = np.random.default_rng(7)
    f = np.round(rng.exponential(size=OFFSETS[-1]), 1)
    p = rng.integers(0, 5, size=f.size) + 0.0
    for start, stop in pairwise(OFFSETS):
        p[start] += 1
        p[start:stop] /= p[start:stop].sum()
    return f, 10.0 ** rng.uniform(-2, 1, size=len(LENGTHS)), p


@on_each(core=True)
def test_rows_have_the_same_solution_as_alone(doubles: Arrays, d: Divergence) -> None:
    f, eta, distribution = (doubles.asarray(x) for x in _problem())
    offsets = doubles.asarray(OFFSETS, doubles.xp.int64)
    for p in (None, distribution):
        batched = worst_case(f, offsets=offsets, eta=eta, divergence=d, p=p)
        for row, part in enumerate(map(slice, OFFSETS, OFFSETS[1:])):
            alone = worst_case(f[part], float(eta[row]), d, p=None if p is None else p[part])
            size = 8 * doubles.eps * (1 + abs(float(alone.value)))
            assert abs(float(batched.value[row]) - float(alone.value)) <= size
            assert abs(float(batched.mu[row]) - float(alone.mu)) <= size * (1 + float(eta[row]))
            assert abs(float(batched.gap[row])) <= 4 * size
            found, expected = doubles.numpy(batched.weights)[part], doubles.numpy(alone.weights)
            np.testing.assert_allclose(found, expected, rtol=64 * doubles.eps, atol=size)


def test_scalar_eta_and_list_of_offsets_are_accepted() -> None:
    f, _, _ = _problem()
    whole = worst_case(
        f, offsets=np.array(OFFSETS, dtype=np.int32), eta=np.full(len(LENGTHS), 0.3), divergence=ENTROPIC
    )
    np.testing.assert_array_equal(
        worst_case(f, offsets=OFFSETS, eta=0.3, divergence=ENTROPIC).weights, whole.weights
    )


@on_each(core=True)
def test_gradients_are_those_of_separate_rows(d: Divergence) -> None:
    torch = pytest.importorskip("torch")
    arguments = [torch.asarray(x, dtype=torch.float64).requires_grad_() for x in _problem()]
    f, eta, p = arguments

    def total(solution: Any, cosines: Any) -> Any:
        return (solution.value + solution.mu).sum() + (solution.weights * cosines).sum()

    cosines = torch.cos(torch.arange(f.shape[0]))
    offsets = torch.asarray(OFFSETS)
    batched = torch.autograd.grad(
        total(worst_case(f, offsets=offsets, eta=eta, divergence=d, p=p), cosines), arguments
    )
    alone = sum(
        total(worst_case(f[part], eta[row], d, p=p[part]), cosines[part])
        for row, part in enumerate(map(slice, OFFSETS, OFFSETS[1:]))
    )
    for gradient, expected in zip(batched, torch.autograd.grad(alone, arguments), strict=True):
        finite = torch.isfinite(expected)
        assert torch.equal(torch.isfinite(gradient), finite)
        torch.testing.assert_close(gradient[finite], expected[finite], rtol=1e-10, atol=1e-10)


def test_budget_with_offsets_gives_the_solution_of_each_row() -> None:
    f, p = np.sin(np.arange(9.0)), np.r_[np.full(4, 0.25), np.full(5, 0.2)]
    budget = np.array([0.1, 0.3])
    for d in (ENTROPIC, QUADRATIC, cressie_read(3), ABSOLUTE, indicator(0.4), anonymous(ENTROPIC)):
        out = worst_case(f, budget=budget, divergence=d, p=p, offsets=[0, 4, 9])
        for row, part in enumerate((slice(0, 4), slice(4, 9))):
            alone = worst_case(f[part], budget=float(budget[row]), divergence=d, p=p[part])
            assert float(out.eta[row]) == float(alone.eta), d.name
            assert float(out.value[row]) == float(alone.value), d.name
            np.testing.assert_array_equal(out.weights[part], alone.weights)


F = np.arange(5.0)


def test_invalid_losses_offsets_eta_and_p_raise() -> None:
    for losses, offsets, eta, p, message in (
        (F[None], [0, 5], 1.0, None, r"losses has shape \(1, 5\); with offsets, expected"),
        (F[:0], [0, 0], 1.0, None, r"losses has shape \(0,\)"),
        (np.r_[F, np.nan], [0, 2, 6], 1.0, None, "losses contains nan"),
        (F, [0, 4], 1.0, None, "from 0 to 4; expected"),
        (F, [1, 5], 1.0, None, "offsets goes from 1 to 5"),
        (F, [0, 3, 3, 5], 1.0, None, "offsets goes from 3 to 3 at row 1; expected"),
        (F, [0, 4, 2, 5], 1.0, None, "offsets goes from 4 to 2 at row 1"),
        (F, [0], 1.0, None, r"offsets has shape \(1,\); expected \(n \+ 1,\) for n >= 1 rows"),
        (F, [0.0, 5.0], 1.0, None, "offsets has dtype float64; expected integers"),
        (F, 5, 1.0, None, "offsets is of type int; expected"),
        (F, [0, 2, 5], np.ones(3), None, r"eta has shape \(3,\); .*\(len\(offsets\) - 1,\) = \(2,\)"),
        (F, [0, 2, 5], -1.0, None, "eta is -1.0"),
        (F, [0, 2, 5], 1.0, np.full(4, 0.25), r"p has shape \(4,\); expected the shape of losses, \(5,\)"),
        (F, [0, 2, 5], 1.0, np.full(5, 0.5), "p sums to 1.5"),
        (F, [0, 2, 5], 1.0, np.array([1.5, -0.5, 0.5, 0.5, 0.0]), "p contains -0.5"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            worst_case(losses, offsets=offsets, eta=eta, divergence=QUADRATIC, p=p)
