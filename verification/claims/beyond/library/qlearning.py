"""Beyond the paper: grids, sampled neighbours, and runs of Q-learning, as users call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, Rng, active, array_namespace, rng, to_numpy, use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    DecisionProcess,
    Grid,
    Maximum,
    Neighbourhood,
    SampledNeighbours,
    TelescopedNeighbours,
    bellman,
    q_learning,
    value_iteration,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.decision_processes import law, tables
from phiball.verification.oracles import levels
from phiball.verification.oracles.inner import solve_exactly

Grids: TypeAlias = Callable[..., Grid]


@claim(
    "Grid",
    id="U17",
    verdict=Verdict.HOLDS,
    formula=r"P(\text{box}) = \prod_j \frac{|[x_j - \rho_j, x_j + \rho_j] \cap \text{box}_j|}{2 \rho_j}",
    assumptions="grids in the plane; states inside and outside; the outermost boxes have no outer end",
)
def perturbed_boxes_have_their_shares(make: Grids = Grid, seed: int = 0) -> Iterator[Evidence]:
    """The law of the box of a perturbed state is the share of the perturbations that land in it."""
    source = np.random.default_rng(seed)
    low, high, bins = (0.0, -1.0), (2.0, 1.0), (4, 5)
    grid = make(low, high, bins)
    width = (np.array(high) - low) / bins
    yield Evidence(
        abs(grid.states - 20) + float(np.abs(np.array(grid.width) - width).max()), 1e-15, "the size"
    )
    x = source.uniform(-0.7, 2.5, size=(12, 2))
    unit = np.floor((x - low) / width).clip(0, np.array(bins) - 1).astype(int)
    off = np.abs(to_numpy(grid.cell(array(x))) - (unit[:, 0] * 5 + unit[:, 1])).max()
    yield Evidence(float(off), 0.0, "the box of a state")
    one = abs(int(grid.cell(array(x[3]))) - int(unit[3, 0] * 5 + unit[3, 1]))
    yield Evidence(float(one), 0.0, "the cell of one point")
    centres = (
        np.stack(np.meshgrid(np.arange(4), np.arange(5), indexing="ij"), -1).reshape(-1, 2) + 0.5
    ) * width + low
    for radius in ((0.2, 0.3), (0.9, 0.1), (0.6, 0.0), (3.0, 3.0)):
        for points, got in (
            (x, grid.perturbed(array(x), radius)),
            (centres, grid.neighbourhood(radius, like=array(0.0))),
        ):
            dense = np.zeros((len(points), 20))
            for row, (index, weight) in enumerate(
                zip(to_numpy(got.index), to_numpy(got.weight), strict=True)
            ):
                np.add.at(dense[row], index, weight)
            exact = np.array([_shares(p, radius, low, width, bins) for p in points])
            yield Evidence(float(np.abs(dense - exact).max()), 1e-12, f"radius {radius}")


def _shares(x: Any, radius: Any, low: Any, width: Any, bins: Any) -> Any:
    """The share of each box, dimension by dimension, from its ends."""
    sides = []
    for j in range(2):
        edges = np.concatenate([[-np.inf], low[j] + width[j] * np.arange(1, bins[j]), [np.inf]])
        if radius[j] == 0:
            sides.append(np.histogram([x[j]], edges)[0].astype(float))
        else:
            sides.append(np.diff(np.clip((edges - x[j] + radius[j]) / (2 * radius[j]), 0, 1)))
    return np.outer(*sides).ravel()


@perturbed_boxes_have_their_shares.mutant("twice the radius")
def _(*args: Any) -> Any:
    class Wide(Grid):
        def perturbed(self, x: Array, radius: Any) -> Neighbourhood:
            return super().perturbed(x, tuple(2 * r for r in radius))

    return Wide(*args)


@perturbed_boxes_have_their_shares.mutant("numbers the boxes with the first dimension fastest")
def _(*args: Any) -> Any:
    class Turned(Grid):
        def cell(self, x: Array) -> Array:
            number = super().cell(x)
            return number % 5 * 4 + number // 5

    return Turned(*args)


# --- Sampled neighbours ---------------------------------------------------------------------------


class Listed(Rng):
    """Uniform numbers that are given, one call after the other."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__(0)
        self.given = given

    def uniform(self, shape: tuple[int, ...], *, like: Array, low: float = 0.0, high: float = 1.0) -> Array:
        """The next of them."""
        return array_namespace(like).asarray(np.reshape(self.given.pop(0), shape), dtype=like.dtype)


@claim(
    "SampledNeighbours and TelescopedNeighbours",
    id="U18",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E}\,\hat V^{RT-MLMC}_L = \mathbb{E}\,\hat V_L = \sum_{\text{draws}} 2^{-n} "
    r"V(\text{draw})",
    assumptions="two equally likely neighbours; all draws of 1, 2 and 4, and all levels",
)
def sampled_neighbours_have_their_mean(
    sampled: Callable[[int], Any] = SampledNeighbours, telescoped: Callable[[int], Any] = TelescopedNeighbours
) -> Iterator[Evidence]:
    """The value from random levels has the mean of the value from 2^L draws, by enumeration."""
    Q = np.array([[1.0, 0.2], [-0.5, 0.7], [3.0, 3.0]])
    near = law([[0, 1, 2]], [[0.5, 0.5, 0.0]])
    eta = 0.4
    for level, maximum in product(range(3), Maximum):
        cells = 2 ** (level + 1) - 1
        single, random = [], []
        for picks in levels.draws(2, 2**level):
            rows = Q[picks].max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else Q[picks]
            soft = -levels.solve(-rows.T, eta, "entropic")[0]
            single.append(float(soft.max()))
            u = 0.25 + picks / 2  # in the first half for 0, in the second for 1
            got = sampled(level)(array(Q), near, eta, ENTROPIC, maximum, Listed([u]))
            yield Evidence(abs(float(got[0]) - single[-1]), 1e-12, f"L = {level}: one draw")
            for cell in range(cells):
                v = (cell + 0.5) / cells
                own = next(k for k in range(level + 1) if v < (2 - 2.0**-k) / (2 - 2.0**-level))
                source = Listed([[v], u[: 2**own]])
                random.append(float(telescoped(level)(array(Q), near, eta, ENTROPIC, maximum, source)[0]))
        off = abs(np.mean(random) - np.mean(single))
        yield Evidence(float(off), 1e-12, f"L = {level}, {maximum.value}: the mean over draws and levels")


@sampled_neighbours_have_their_mean.mutant("a level less", replaces="sampled")
def _(level: int) -> Any:
    return lambda Q, near, eta, d, maximum, source: SampledNeighbours(0)(
        Q, near, eta, d, maximum, Listed([source.given[0][:1]])
    )


@sampled_neighbours_have_their_mean.mutant("forgets 1/P(0)", replaces="telescoped")
def _(level: int) -> Any:
    return lambda *args: TelescopedNeighbours(level)(*args) * (1 if level == 0 else 0.9)


# --- Runs -----------------------------------------------------------------------------------------


def _by_hand(model: Any, terminal: Any, Q: Any, eta: float) -> Any:
    """The robust Bellman operator for the entropic phi, in plain NumPy; Q is 0 at terminal states."""
    soft = -eta * np.log((model.weight[:, :, None] * np.exp(-Q[model.near] / eta)).sum(axis=1))
    value = np.where(terminal, 0.0, soft.max(axis=1))
    return np.where(terminal[:, None], 0.0, model.r + model.discount * model.P @ value)


@claim(
    "value_iteration and bellman, terminal states",
    id="U19",
    verdict=Verdict.HOLDS,
    formula=r"\|Q - Q^*\|_\infty \le \frac{\beta \|Q - Q_{-1}\|_\infty + \epsilon}{1 - \beta} \le "
    r"\mathrm{tol}",
    assumptions="random processes of five states, some terminal; the fixed point by 4000 iterations in NumPy",
)
def certified_error_holds(iterate: Any = value_iteration, operator: Any = bellman) -> Iterator[Evidence]:
    """The certified error bounds the distance from the fixed point, with and without terminal states."""
    for seed, discount in ((0, 0.5), (1, 0.9), (2, 0.99)):
        model, eta = tables(seed, 5, 2, discount), 0.3
        terminal = np.array([False, False, seed > 0, False, False])
        process = replace(model.process, terminal=active().namespace.asarray(terminal))
        Q = np.random.default_rng(seed).normal(size=(5, 2))
        off = np.abs(
            to_numpy(operator(array(Q), process, model.beta, eta, ENTROPIC))
            - _by_hand(model, terminal, Q, eta)
        )
        yield Evidence(float(off.max()), 1e-12, f"one step, discount {discount}")
        both = np.stack([Q, -2 * Q])
        got = to_numpy(operator(array(both), process, model.beta, eta, ENTROPIC))
        off = np.abs(got - np.stack([_by_hand(model, terminal, table, eta) for table in both]))
        yield Evidence(float(off.max()), 1e-12, f"two tables at a time, discount {discount}")
        exact = np.zeros((5, 2))
        for _ in range(4000):
            exact = _by_hand(model, terminal, exact, eta)
        for tol in (1e-1, 1e-3, 1e-8):
            got = iterate(process, model.beta, eta, ENTROPIC, tol=tol)
            far = float(np.abs(to_numpy(got.Q) - exact).max())
            yield Evidence.at_most(far, got.error, 1e-12, f"discount {discount}: within the certified error")
            yield Evidence.at_most(got.error, tol, 0.0, f"discount {discount}: the error is at most tol")
            again = _by_hand(model, terminal, to_numpy(got.Q), eta)
            step = float(np.abs(again - to_numpy(got.Q)).max())
            yield Evidence(step - discount * got.residual, 1e-12, "the residual is that of the last step")
            by_hand = np.zeros((5, 2))
            for _ in range(got.iterations):
                by_hand = _by_hand(model, terminal, by_hand, eta)
            off = np.abs(to_numpy(got.Q) - by_hand)
            yield Evidence(float(off.max()), 1e-12, f"discount {discount}: after the steps that it counts")


@certified_error_holds.mutant("forgets 1/(1 - discount)", replaces="iterate")
def _(process: DecisionProcess, beta: Neighbourhood, eta: float, d: Any, *, tol: float) -> Any:
    got = value_iteration(process, beta, eta, d, tol=tol / (1 - process.discount))
    return replace(got, error=got.error * (1 - process.discount))


@certified_error_holds.mutant("terminal states keep their value", replaces="operator")
def _(Q: Array, process: DecisionProcess, *rest: Any) -> Array:
    return bellman(Q, DecisionProcess(process.transition, process.reward, process.discount), *rest)


@claim(
    "q_learning",
    id="U20",
    verdict=Verdict.HOLDS,
    formula=r"Q(s, a) \leftarrow (1 - \alpha_n) Q(s, a) + \alpha_n (r + \beta V(s')), \quad n "
    r"\text{ earlier visits}",
    assumptions="a random process with a terminal state; the path is followed step by step in plain Python; "
    "with Numba the compiled run gives the same",
)
def run_follows_the_update(learn: Any = q_learning) -> Iterator[Evidence]:
    """A run of Q-learning is its update on the path that its random numbers make, compiled or not."""
    model, eta, steps = tables(3, 4, 2, 0.8), 0.3, 150
    terminal = np.array([False, False, True, False])
    uniforms = np.random.default_rng(0).uniform(size=(steps, 4))
    exact, visits, rewards, ended = _path(model, terminal, eta, uniforms)
    names = [active().name] + (["numba"] if find_spec("numba") else [])
    for name in dict.fromkeys(names):
        with use(name):
            process = replace(model.process, terminal=active().namespace.asarray(terminal))
            got = learn(
                process, model.beta, eta, ENTROPIC, steps=steps, rng=Listed([uniforms]), epsilon=_falling
            )
            off = np.abs(to_numpy(got.Q) - exact).max()
            yield Evidence(float(off), 1e-10, f"{name}: the table")
            yield Evidence(float(np.abs(to_numpy(got.visits) - visits).max()), 0.0, f"{name}: the visits")
            yield Evidence(float(np.abs(to_numpy(got.rewards) - rewards).max()), 0.0, f"{name}: the rewards")
            yield Evidence(float(np.sum(to_numpy(got.ended) != ended)), 0.0, f"{name}: the ends of episodes")
    # With step size one, a single action and no other state the table is a geometric sum.
    loop = DecisionProcess(array(np.ones((1, 1, 1))), array([[1.0]]), 0.5)
    alone = law([[0]], [[1.0]])
    got = learn(loop, alone, 1.0, QUADRATIC, steps=20, rng=rng(0), step_size=lambda n: 0 * n + 1)
    yield Evidence(abs(float(got.Q[0, 0]) - (2 - 2.0**-19)), 1e-12, "a loop")


def _falling(t: Array) -> Array:
    return 1 / (1 + t / 20)


def _path(model: Any, terminal: Any, eta: float, uniforms: Any) -> tuple[Any, Any, Any, Any]:
    Q, visits = np.zeros((4, 2)), np.zeros((4, 2), dtype=int)
    rewards, ended, s = [], [], -1
    begin = np.cumsum(~terminal / (~terminal).sum())
    for t, (explore, which, where, first) in enumerate(uniforms):
        s = int(np.searchsorted(begin, first, side="right")) if s < 0 else s
        a = int(2 * which) if explore < 1 / (1 + t / 20) else int(np.argmax(Q[s]))
        after = int(np.searchsorted(np.cumsum(model.P[s, a]), where, side="right"))
        rows, p = Q[model.near[after]], model.weight[after].tolist()
        soft = [-float(solve_exactly((-rows[:, k]).tolist(), eta, "entropic", p=p).value) for k in range(2)]
        target = model.r[s, a] + (0.0 if terminal[after] else model.discount * max(soft))
        alpha = (1 + visits[s, a]) ** -0.8
        Q[s, a] = (1 - alpha) * Q[s, a] + alpha * target
        visits[s, a] += 1
        rewards.append(model.r[s, a])
        ended.append(terminal[after])
        s = -1 if terminal[after] else after
    return Q, visits, np.array(rewards), np.array(ended)


@run_follows_the_update.mutant("another step size")
def _(*args: Any, **rest: Any) -> Any:
    return q_learning(*args, **{"step_size": lambda n: 1 / (1 + n), **rest})


@run_follows_the_update.mutant("terminal states keep their value")
def _(process: DecisionProcess, *rest: Any, **how: Any) -> Any:
    return q_learning(DecisionProcess(process.transition, process.reward, process.discount), *rest, **how)
