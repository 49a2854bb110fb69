"""The cart and pole of the study in plain Python, step by step: what its compiled functions must equal."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, sin
from typing import Any

import numpy as np

from phiball.experiments.studies.cartpole.environment import CART, EDGE, FORCE, LEAN, STEP, Backup, Physics
from phiball.refimpl import ENTROPIC, Grid, q_update


def plain_move(state: Sequence[float], action: int, physics: Physics) -> tuple[list[float], bool]:
    """What `move` does: the next state, and whether the episode ends there."""
    x, v, angle, spin = state
    total, pole = physics.mass + CART, physics.mass * physics.length
    push = FORCE if action == 1 else -FORCE
    pull = (push + pole * spin**2 * sin(angle)) / total
    turn = (physics.gravity * sin(angle) - cos(angle) * pull) / (
        physics.length * (4 / 3 - physics.mass * cos(angle) ** 2 / total)
    )
    pace = pull - pole * turn * cos(angle) / total
    after = [x + STEP * v, v + STEP * pace, angle + STEP * spin, spin + STEP * turn]
    return after, abs(after[0]) > EDGE or abs(after[2]) > LEAN


def plain_learn(
    Q: Any,
    grid: Grid,
    backup: Backup,
    discount: float,
    schedules: tuple[Any, Any],
    starts: Any,
    numbers: Any,
    physics: Physics,
) -> tuple[Any, list[int]]:
    """What `learn` does, step by step with `q_update`: a new table, and the lengths."""
    lengths = []
    for alpha, epsilon, start, drawn in zip(*schedules, starts, numbers, strict=True):
        state, over, t = list(start), False, 0
        while not over and t < len(drawn):
            s = int(grid.cell(np.array(state)))
            a = int(2 * drawn[t][1]) if drawn[t][0] < epsilon else int(np.argmax(Q[s]))
            state, over = plain_move(state, a, physics)
            law = grid.perturbed(np.array([state]), backup.radius)
            Q = q_update(
                Q, s, a, 1.0, 0, over,
                alpha=float(alpha), discount=discount, neighbourhood=law,
                eta=backup.eta, divergence=ENTROPIC, maximum=backup.maximum,
            )  # fmt: skip
            t += 1
        lengths.append(t)
    return Q, lengths


def plain_play(Q: Any, grid: Grid, starts: Any, cap: int, physics: Physics) -> list[int]:
    """What `play` does."""
    lengths = []
    for start in starts:
        state, over, t = list(start), False, 0
        while not over and t < cap:
            state, over = plain_move(state, int(np.argmax(Q[int(grid.cell(np.array(state)))])), physics)
            t += 1
        lengths.append(t)
    return lengths
