"""`Grid` and the neighbourhoods of perturbed states."""

from typing import Any

import numpy as np
import pytest

from phiball.backends.numba import qlearning as numba_qlearning
from phiball.refimpl.qlearning import Grid, Neighbourhood
from tests.support.arrays import Arrays


def dense(distribution: Neighbourhood, states: int, arrays: Arrays) -> Any:
    """The neighbourhoods as probability vectors over all states."""
    out = np.zeros((distribution.index.shape[0], states))
    index, weight = arrays.numpy(distribution.index), arrays.numpy(distribution.weight)
    for row in range(out.shape[0]):
        np.add.at(out[row], index[row], weight[row])
    return out


def test_neighbourhood_at_agrees_with_values_computed_by_hand(arrays: Arrays) -> None:
    """The cells are (-inf, 1), [1, 2), [2, 3) and [3, inf), then products of intervals."""
    for x, radius, distribution in [
        (1.75, 0.5, [0, 0.75, 0.25, 0]),
        (1.5, 0.5, [0, 1, 0, 0]),
        (1.5, 1.0, [0.25, 0.5, 0.25, 0]),
        (2.0, 0.25, [0, 0.5, 0.5, 0]),
        (0.25, 0.5, [1, 0, 0, 0]),
        (-7.0, 0.5, [1, 0, 0, 0]),
        (0.75, 0.5, [0.75, 0.25, 0, 0]),
        (9.0, 0.5, [0, 0, 0, 1]),
        (3.75, 1.0, [0, 0, 0.125, 0.875]),
        (2.0, 8.0, [7 / 16, 1 / 16, 1 / 16, 7 / 16]),
        (2.5, 0.0, [0, 0, 1, 0]),
        (-1.0, 4.0, [6 / 8, 1 / 8, 1 / 8, 0]),
        (5.0, 1.5, [0, 0, 0, 1]),
        (5.0, 4.0, [0, 1 / 8, 1 / 8, 6 / 8]),
    ]:
        found = Grid((0.0,), (4.0,), (4,)).neighbourhood_at(arrays.asarray([[x]]), radius)
        assert found.weight.dtype == arrays.dtype
        weights = dense(found, 4, arrays)[0].tolist()
        assert weights == pytest.approx(distribution, abs=4 * arrays.eps), (x, radius)
    grid = Grid((0.0, 0.0), (2.0, 3.0), (2, 3))
    both = dense(grid.neighbourhood_at(arrays.asarray([[1.0, 0.9]]), (0.5, 0.2)), 6, arrays)[0]
    expected = np.outer([0.5, 0.5], [0.75, 0.25, 0.0]).ravel()
    assert both.tolist() == pytest.approx(expected.tolist(), abs=8 * arrays.eps)
    assert grid.neighbourhood_at(arrays.asarray([[1.0, 0.9]]), (0.5, 0.0)).index.shape == (1, 2)
    cube, x = Grid((-1.0, 0.0, -2.0), (1.0, 1.5, 4.0), (2, 3, 4)), arrays.asarray([[0.25, 9.0, -0.25]])
    distribution = np.einsum(
        "i,j,k->ijk", [0.25, 0.75], [0.0, 0.0, 1.0], [1.25 / 3, 0.5, 0.25 / 3, 0.0]
    ).ravel()
    assert dense(cube.neighbourhood_at(x, (0.5, 0.1, 1.5)), 24, arrays)[0].tolist() == pytest.approx(
        distribution.tolist(), abs=16 * arrays.eps
    )


def test_points_outside_the_grid_belong_to_the_nearest_cell(doubles: Arrays) -> None:
    grid = Grid((-1.0, 0.0), (1.0, 1.0), (4, 2))
    x = np.array([[-9.0, -9.0], [-0.6, 0.7], [0.0, 0.5], [0.99, 0.1], [1.0, 1.0], [1e30, -1e30]])
    found = grid.cell(doubles.asarray(x))
    assert doubles.numpy(found).tolist() == [0, 1, 5, 6, 7, 6]
    assert doubles.numpy(found).dtype == np.int64
    assert doubles.numpy(grid.cell(doubles.asarray(x.reshape(2, 3, 2)))).shape == (2, 3)
    # With radius 0, the neighbourhood is the cell itself.
    distribution = grid.neighbourhood_at(doubles.asarray(x), 0.0)
    assert doubles.numpy(distribution.index)[:, 0].tolist() == [0, 1, 5, 6, 7, 6]


def test_neighbourhood_is_neighbourhood_at_the_cell_centres(doubles: Arrays) -> None:
    grid = Grid((0.0, -1.0), (3.0, 1.0), (3, 4))
    centres = np.stack(np.meshgrid([0.5, 1.5, 2.5], [-0.75, -0.25, 0.25, 0.75], indexing="ij"), -1)
    for radius in (0.1, 0.5, 1.0, (0.0, 0.3), (2.0, 0.25), 50.0):
        table = dense(grid.neighbourhood(radius, like=doubles.asarray([0.0])), 12, doubles)
        points = dense(grid.neighbourhood_at(doubles.asarray(centres.reshape(12, 2)), radius), 12, doubles)
        np.testing.assert_allclose(table, points, atol=16 * doubles.eps)
        np.testing.assert_allclose(table.sum(axis=1), 1, atol=8 * doubles.eps)
    # The grid is symmetric, and a radius of half a cell stays in the cell.
    assert np.allclose(table, table[::-1, ::-1])
    same_cell = dense(grid.neighbourhood((0.5, 0.25), like=doubles.asarray([0.0])), 12, doubles)
    np.testing.assert_allclose(same_cell, np.eye(12), atol=8 * doubles.eps)


@pytest.mark.parametrize("radius", [(0.0, 0.0, 0.0), (0.1, 0.2, 0.3), (0.5, 0.0, 2.5), (1e-9, 9.0, 0.4)])
def test_compiled_neighbourhood_at_agrees_with_the_reference(radius: tuple[float, ...]) -> None:
    grid = Grid((-1.0, 0.0, -2.0), (1.0, 1.0, 3.0), (5, 1, 4))
    points = np.random.default_rng(3).uniform(-4, 4, size=(40, 3))
    expected = grid.neighbourhood_at(points, radius)
    k = expected.index.shape[1]
    index, weight = np.full(k, -1), np.full(k, np.nan)
    args = [np.array(a) for a in (grid.low, grid.width, grid.bins, radius)]
    for row in range(40):
        assert numba_qlearning.neighbourhood_at(points[row], *args, index, weight) == k
        np.testing.assert_array_equal(index, expected.index[row])
        np.testing.assert_allclose(weight, expected.weight[row], atol=1e-15)


GRID, ONE, ZERO = Grid((0.0,), (1.0,), (2,)), np.ones((1, 1)), np.array([[0]])


def test_invalid_grids_points_and_neighbourhoods_raise() -> None:
    torch = pytest.importorskip("torch")
    cases: list[tuple[Any, Any, str]] = [
        (lambda: Grid((0.0,), (0.0,), (2,)), ValueError, r"low is \(0.0,\) and high \(0.0,\)"),
        (lambda: Grid((0.0,), (1.0, 2.0), (2,)), ValueError, "have 1, 2 and 1 entries"),
        (lambda: Grid((0.0,), (1.0,), (0,)), ValueError, r"bins is \(0,\)"),
        (lambda: Grid((0.0,), (np.inf,), (2,)), ValueError, r"high is \(inf,\)"),
        (lambda: Grid(0.0, (1.0,), (2,)), TypeError, "low is 0.0"),
        (lambda: GRID.cell([0.0]), TypeError, r"x is \[0.0\]"),
        (lambda: GRID.cell(np.zeros((3, 2))), ValueError, r"x has shape \(3, 2\); expected \(\.\.\., 1\)"),
        (lambda: GRID.cell(np.array([np.nan])), ValueError, "x contains NaN or infinity"),
        (lambda: GRID.neighbourhood_at(np.zeros(1), 0.1), ValueError, r"x has shape \(1,\)"),
        (lambda: GRID.neighbourhood_at(ONE * np.nan, 0.1), ValueError, "x contains NaN or infinity"),
        (lambda: GRID.neighbourhood_at(ONE, -0.1), ValueError, "radius is -0.1"),
        (lambda: GRID.neighbourhood_at(ONE, (0.1, 0.1)), ValueError, r"radius is \(0.1, 0.1\)"),
        (lambda: GRID.neighbourhood_at(ONE, "wide"), TypeError, "radius is 'wide'"),
        (lambda: GRID.neighbourhood(0.1, like=[0.0]), TypeError, r"like is \[0.0\]"),
        (lambda: Neighbourhood([[0]], ONE), TypeError, "index is of type list"),
        (lambda: Neighbourhood(ONE, ONE), TypeError, "index has dtype float64; expected int64"),
        (lambda: Neighbourhood(ZERO, [[1.0]]), TypeError, r"weight is \[\[1.0\]\]"),
        (lambda: Neighbourhood(np.array([[0, 1]]), ONE), ValueError, r"shape \(1, 2\) and weight \(1, 1\)"),
        (lambda: Neighbourhood(ZERO[0], ONE[0]), ValueError, r"index has shape \(1,\)"),
        (lambda: Neighbourhood(ZERO[:, :0], ONE[:, :0]), ValueError, r"shape \(1, 0\)"),
        (lambda: Neighbourhood(torch.tensor([[0]]), ONE), TypeError, "a numpy array and index a torch array"),
        (lambda: Neighbourhood(ZERO - 1, ONE), ValueError, "index contains -1"),
        (lambda: Neighbourhood(ZERO, 0.9 * ONE), ValueError, "weight sums to"),
        (lambda: Neighbourhood(np.array([[0, 0]]), np.array([[2.0, -1.0]])), ValueError, "weight contains "),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
