"""The cart-pole problem of Section 6.2, and compiled Q-learning on it.

The dynamics are those of gymnasium's CartPole, in double precision. A state is (position, velocity, angle,
angular velocity). An episode ends when the cart leaves +-2.4 or the pole leans by more than 12 degrees. Each
step has reward 1. Action 1 pushes the cart to the right, action 0 to the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, pi, prod
from typing import Any

import numpy as np

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.qlearning import landing_value, neighbourhood_at
from phiball.refimpl.qlearning import Grid, Maximum

FORCE, CART_MASS, TIME_STEP = 10.0, 1.0, 0.02  # newtons, kilograms, seconds
MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * pi / 360
START = 0.05  # an episode begins with each coordinate uniform on +-START


@dataclass(frozen=True)
class Physics:
    """The parameters in which the problems differ: gravity, mass of the pole, and half its length."""

    gravity: float = 9.8
    mass: float = 0.1
    length: float = 0.5

    def numbers(self) -> tuple[float, float, float]:
        """The parameters as a tuple for the kernels."""
        return self.gravity, self.mass, self.length


@dataclass(frozen=True)
class Backup:
    """The update rule: radius in each coordinate (0 for the regular update), eta, place of the maximum."""

    radius: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    eta: float = 1.0
    maximum: Maximum = Maximum.OUTSIDE


@compiled()
def move(state: Any, action: int, physics: tuple[float, float, float]) -> bool:
    """Advance `state` (4,) in place by one step; True if the episode ends."""
    gravity, mass, length = physics
    x, v, angle, spin = state
    total_mass, moment = mass + CART_MASS, mass * length
    force = FORCE if action == 1 else -FORCE
    c, s = np.cos(angle), np.sin(angle)
    pull = (force + moment * (spin * spin) * s) / total_mass
    spin_rate = (gravity * s - c * pull) / (length * (4.0 / 3.0 - mass * (c * c) / total_mass))
    state[0] = x + TIME_STEP * v
    state[1] = v + TIME_STEP * (pull - moment * spin_rate * c / total_mass)
    state[2] = angle + TIME_STEP * spin
    state[3] = spin + TIME_STEP * spin_rate
    return bool(abs(state[0]) > MAX_POSITION or abs(state[2]) > MAX_ANGLE)


@compiled()
def _cell(state: Any, low: Any, width: Any, bins: Any) -> int:
    """The index of the grid cell of a state; outside the grid, of the nearest cell."""
    number = 0
    for j in range(state.size):
        place = np.floor((state[j] - low[j]) / width[j])
        number = number * bins[j] + int(min(max(place, 0.0), bins[j] - 1.0))
    return number


@compiled()
def _greedy(Q: Any, s: int) -> int:
    return 1 if Q[s, 1] > Q[s, 0] else 0


@compiled()
def _learn(
    Q: Any,
    grid: Any,
    backup: Any,
    discount: float,
    schedules: Any,
    draws: Any,
    physics: tuple[float, float, float],
    out: Any,
) -> None:
    """Run the loop of `learn`; `out` holds two work arrays for neighbouring cells, and episode lengths."""
    low, width, bins = grid
    radius, eta, inside = backup
    alphas, epsilons = schedules
    starts, numbers = draws
    index, weight, lengths = out
    for k in range(starts.shape[0]):
        state = starts[k].copy()
        s = _cell(state, low, width, bins)
        for t in range(numbers.shape[1]):
            lengths[k] = t + 1
            a = int(2 * numbers[k, t, 1]) if numbers[k, t, 0] < epsilons[k] else _greedy(Q, s)
            ended = move(state, a, physics)
            target = 1.0
            if not ended:
                n = neighbourhood_at(state, low, width, bins, radius, index, weight)
                target += discount * landing_value(Q, index[:n], weight[:n], eta, inside)
            Q[s, a] = (1.0 - alphas[k]) * Q[s, a] + alphas[k] * target
            if ended:
                break
            s = _cell(state, low, width, bins)


@compiled()
def _play(
    Q: Any, grid: Any, starts: Any, cap: int, physics: tuple[float, float, float], lengths: Any
) -> None:
    """Run the loop of `play`, and write the episode lengths to `lengths`."""
    low, width, bins = grid
    for k in range(starts.shape[0]):
        state = starts[k].copy()
        lengths[k] = cap
        for t in range(cap):
            if move(state, _greedy(Q, _cell(state, low, width, bins)), physics):
                lengths[k] = t + 1
                break


def _arrays(grid: Grid) -> tuple[Any, Any, Any]:
    return np.array(grid.low), np.array(grid.width), np.array(grid.bins)


def learn(
    Q: Any,
    grid: Grid,
    backup: Backup,
    discount: float,
    schedules: tuple[Any, Any],
    starts: Any,
    numbers: Any,
    physics: Physics,
) -> Any:
    """Update the table Q (states, 2) in place over the episodes, and return their lengths (episodes,).

    - `schedules`: the step size and epsilon of each episode, both (episodes,).
    - `starts` (episodes, 4): initial states.
    - `numbers` (episodes, cap, 2): uniform numbers that decide whether to explore, and which action. They are
      indexed by episode and step, so that methods share them even if their episodes differ in length.

    An episode that is truncated at the cap is bootstrapped as if it continued.
    """
    max_neighbours = prod(
        min(n, ceil(2 * (r / h)) + 1) for n, r, h in zip(grid.bins, backup.radius, grid.width, strict=True)
    )
    lengths = np.zeros(len(starts), np.int64)
    _learn(
        Q,
        _arrays(grid),
        (np.array(backup.radius), backup.eta, backup.maximum is Maximum.INSIDE),
        discount,
        schedules,
        (starts, numbers),
        physics.numbers(),
        (np.empty(max_neighbours, np.int64), np.empty(max_neighbours), lengths),
    )
    return lengths


def play(Q: Any, grid: Grid, starts: Any, cap: int, physics: Physics) -> Any:
    """The lengths (episodes,) of episodes under the greedy policy of Q, truncated at `cap`."""
    lengths = np.zeros(len(starts), np.int64)
    _play(Q, _arrays(grid), starts, cap, physics.numbers(), lengths)
    return lengths
