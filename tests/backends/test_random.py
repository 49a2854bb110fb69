"""`Rng`: distributions, shapes, streams and saved states."""

import pickle
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phiball.backends import Array, Rng, rng
from phiball.refimpl import RobustLoss
from tests.support.arrays import Arrays

LEVEL = 1e-4  # significance level of each statistical test
N = 4000

# Floating-point draws, each with its exact distribution.
FLOATS: dict[str, tuple[Callable[[Rng, tuple[int, ...], Array], Array], Any]] = {
    "uniform": (lambda g, shape, x: g.uniform(shape, like=x), stats.uniform()),
    "uniform(-3, 5)": (
        lambda g, shape, x: g.uniform(shape, like=x, low=-3.0, high=5.0),
        stats.uniform(-3, 8),
    ),
    "normal": (lambda g, shape, x: g.normal(shape, like=x), stats.norm()),
    "exponential": (lambda g, shape, x: g.exponential(shape, like=x), stats.expon()),
    "gamma(0.3)": (lambda g, shape, x: g.gamma(0.3, shape, like=x), stats.gamma(0.3)),
    "gamma(1)": (lambda g, shape, x: g.gamma(1, shape, like=x), stats.gamma(1)),
    "gamma(7.5)": (lambda g, shape, x: g.gamma(7.5, shape, like=x), stats.gamma(7.5)),
}


def draw_everything(source: Rng, like: Array, read: Callable[[Array], Any]) -> list[Any]:
    """One draw of every method, as lists."""
    draws = [draw(source, (3, 2), like) for draw, _ in FLOATS.values()]
    draws += [source.integers(1000, (5,), like=like), source.permutation(9, like=like)]
    draws += [source.sobol((2, 2), like=like)]
    return [read(draw).tolist() for draw in draws]


@pytest.mark.parametrize("name", FLOATS)
def test_draws_have_their_distribution(name: str, arrays: Arrays) -> None:
    draw, exact = FLOATS[name]
    sample = arrays.numpy(draw(rng(1), (N,), arrays.asarray([0.0]))).astype(np.float64)
    assert stats.kstest(sample, exact.cdf).pvalue > LEVEL
    # Kolmogorov's test detects neither errors in the tails nor dependence of successive draws.
    low, high = exact.support()
    assert np.all((sample >= low) & (sample <= high))
    ranks = exact.cdf(sample) - 0.5
    assert abs(np.sum(ranks[1:] * ranks[:-1])) * 12 / np.sqrt(N - 1) < stats.norm.isf(LEVEL / 2)


def test_integers_and_permutations_are_uniform(arrays: Arrays) -> None:
    source, like = rng(3), arrays.asarray([0.0])
    counts = np.bincount(arrays.numpy(source.integers(7, (N,), like=like)), minlength=7)
    assert counts.size == 7
    orders = Counter(tuple(arrays.numpy(source.permutation(3, like=like)).tolist()) for _ in range(1200))
    assert orders.keys() == set(permutations(range(3)))
    for found in (counts, list(orders.values())):
        assert stats.chisquare(found).pvalue > LEVEL


@pytest.mark.parametrize("n", [1, 5, 8])
def test_sobol_points_fill_each_axis_evenly(n: int, arrays: Arrays) -> None:
    """Each eighth of an axis contains at most one of n <= 8 points."""
    points = rng(4).sobol((2, 3, n, 4), like=arrays.asarray([0.0]))
    assert points.shape == (2, 3, n, 4)
    assert points.dtype == arrays.dtype
    u = arrays.numpy(points).astype(np.float64)
    assert np.all((u > 0) & (u < 1))
    assert all(len(set(column)) == n for column in np.floor(8 * u).swapaxes(-1, -2).reshape(-1, n))
    assert len(np.unique(u[:, :, 0, 0])) == 6  # each batch entry has its own random shift


def test_sobol_points_are_uniform_to_the_last_bits() -> None:
    u = rng(5).sobol((N // 4, 4, 2), like=np.empty(0))
    for bits in (u, u * 2.0**30 % 1):  # all bits, and the bits below the first 30
        assert stats.kstest(bits.ravel(), stats.uniform().cdf).pvalue > LEVEL
    first, second = u[:-1, 0, 0] - 0.5, u[1:, 0, 0] - 0.5  # successive batch entries
    assert abs(np.sum(first * second)) * 12 / np.sqrt(len(first)) < stats.norm.isf(LEVEL / 2)
    seeds = [rng(seed).sobol((2, 2), like=np.empty(0)).tolist() for seed in (5, 5, 6)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_draws_have_the_requested_shape_and_dtype(arrays: Arrays) -> None:
    like, source = arrays.asarray([0.0]), rng(0)
    for shape in [(), (0,), (2, 3), (2, 0, 3)]:
        for draw, _ in FLOATS.values():
            out = draw(source, shape, like)
            assert out.shape == shape
            assert out.dtype == arrays.dtype
            assert np.all(np.isfinite(arrays.numpy(out)))
        whole = source.integers(4, shape, like=like)
        assert whole.shape == shape
        assert whole.dtype == arrays.xp.int64
    for n in (0, 1, 6):
        order = source.permutation(n, like=like)
        assert order.dtype == arrays.xp.int64
        assert sorted(arrays.numpy(order).tolist()) == list(range(n))
    assert set(arrays.numpy(source.integers(1, (20,), like=like)).tolist()) == {0}


def test_seed_determines_the_draws_and_draws_differ(arrays: Arrays) -> None:
    like, source = arrays.asarray([0.0]), rng(5)
    first, second = (draw_everything(source, like, arrays.numpy) for _ in range(2))
    again, other = (draw_everything(rng(seed), like, arrays.numpy) for seed in (5, 6))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_each_library_has_its_own_stream(doubles: Arrays) -> None:
    source, own, other = rng(5), doubles.asarray([0.0]), np.zeros(1)
    alone = doubles.numpy(rng(5).uniform((8,), like=own)).tolist()
    numbers = source.uniform((8,), like=other).tolist()
    drawn = doubles.numpy(source.uniform((8,), like=own)).tolist()
    if type(own) is np.ndarray:
        assert drawn != numbers
        assert alone == numbers
    else:
        assert drawn == alone  # a draw with NumPy does not affect this stream
        assert not set(drawn) & set(numbers)
    fresh = rng(9)
    fresh.normal((3,), like=np.zeros(1, dtype=np.float32))
    restored = Rng.restore(fresh.state())  # saved before the first draw with this library
    assert draw_everything(restored, own, doubles.numpy) == draw_everything(fresh, own, doubles.numpy)


def test_keyed_generators_depend_on_the_seed_the_spawn_key_and_the_name() -> None:
    def draw(source: Rng, name: str) -> tuple[float, ...]:
        return tuple(source.keyed(name).uniform((3,), like=np.empty(0)).tolist())

    parent = rng(8)
    first, second = parent.spawn(2)
    first.uniform((5,), like=np.empty(0))
    sources = [parent, first, second, rng(9), parent.keyed("a")]
    draws = [draw(source, name) for source in sources for name in ("a", "b")]
    assert len(set(draws)) == len(draws)
    again = rng(8)
    assert [draw(source, "a") for source in (again, *again.spawn(2))] == draws[0:6:2]


def test_spawned_generators_are_independent_and_reproducible(arrays: Arrays) -> None:
    like = arrays.asarray([0.0])

    def family(seed: int, turn: int = 1) -> list[list[float]]:
        parent = rng(seed)
        sources = [parent, *parent.spawn(2), *parent.spawn(1)]
        sources += sources[1].spawn(1)
        assert repr(parent) == f"rng({seed})"
        assert repr(sources[1]) == f"rng({seed}), spawned as (0,)"
        return [arrays.numpy(s.uniform((N,), like=like)).tolist() for s in sources[::turn]][::turn]

    draws = family(8)
    assert draws == family(8)
    assert draws == family(8, turn=-1)  # the same numbers if the children draw before the parent
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert a[:20] != b[:20]
            assert stats.pearsonr(a, b).pvalue > LEVEL


def test_saved_state_continues_with_the_same_draws(arrays: Arrays) -> None:
    like, source = arrays.asarray([0.0]), rng(9).spawn(3)[2]
    draw_everything(source, like, arrays.numpy)
    source.integers(3, (1,), like=like)  # leaves 32 unused bits in the generator
    source.spawn(2)
    saved, state = pickle.loads(pickle.dumps(source.state())), source.state()
    frozen = pickle.dumps(state)
    went_on = draw_everything(source, like, arrays.numpy)
    child = draw_everything(source.spawn(1)[0], like, arrays.numpy)

    restored = Rng.restore(saved)
    assert draw_everything(restored, like, arrays.numpy) == went_on
    assert draw_everything(restored.spawn(1)[0], like, arrays.numpy) == child
    assert draw_everything(Rng.restore(saved), like, arrays.numpy) == went_on  # a state can be restored twice
    assert pickle.dumps(state) == frozen  # the state is a copy


INVALID_CALLS: list[tuple[Callable[[], Any], str]] = [
    *(
        (lambda seed=seed: rng(seed), f"seed is {seed!r}; expected a whole number")
        for seed in (-1, 1.5, True, "seven", nan)
    ),
    *(
        (lambda a=a: rng(0).gamma(a, (2,), like=np.zeros(1)), f"concentration is {a}; expected a positive")
        for a in (0, nan, inf)
    ),
    (lambda: rng(0).integers(0, (2,), like=np.zeros(1)), "high is 0; expected"),
    (lambda: rng(0).permutation(-1, like=np.zeros(1)), "n is -1; expected"),
]


def test_invalid_seeds_and_parameters_raise() -> None:
    assert repr(rng(np.int64(3))) == "rng(3)"  # type: ignore[arg-type]
    for call, words in INVALID_CALLS:
        with pytest.raises(ValueError, match=words):
            call()


def test_state_of_a_missing_device_is_kept() -> None:
    """A checkpoint from a GPU loads on a machine without a GPU, and can later continue on the GPU."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    source = rng(1)
    source.uniform((2,), like=torch.empty(0))
    state = source.state()
    state["streams"] |= {("torch", "cuda:7"): b"gpu", ("cupy", "<CUDA Device 0>"): 3}
    restored = Rng.restore(state)
    expected = source.uniform((2,), like=torch.empty(0))
    assert torch.equal(restored.uniform((2,), like=torch.empty(0)), expected)
    assert restored.state()["streams"] == {**state["streams"], **source.state()["streams"]}
    loss = RobustLoss(0.5, rng=1)
    loss.load_state_dict({**loss.state_dict(), "rng": state})
    assert loss.state_dict()["rng"]["streams"] == state["streams"]
