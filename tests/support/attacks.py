"""Attacks with various settings, and a linear loss to attack."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from phiball.backends import Array, array_namespace
from phiball.refimpl import apgd, fgm, ifgm, pgm, white_noise

Attack = Callable[..., Any]

ATTACKS: dict[str, Attack] = {
    "fgm": fgm,
    "fgm, a long step": partial(fgm, step=7.0),
    "ifgm": ifgm,
    "pgm": partial(pgm, steps=5),
    "noise": lambda loss, x, ball, gradient=None: white_noise(x, ball, rng=1),
    "fgm, random start": partial(fgm, rng=1),
    "pgm, random start": partial(pgm, rng=1, steps=5, keep_best=False),
    "apgd": partial(apgd, steps=5),
    "apgd, random start": partial(apgd, steps=5, rng=1, restarts=2),
    "pgm, best": partial(pgm, steps=5, rng=1, restarts=2),
}


def linear(gradient: Any, x: Array, i: Array) -> Array:
    """The loss g.x of each point, where g = gradient(x, i)."""
    xp = array_namespace(x)
    return xp.sum(xp.reshape(gradient(x, i) * x, (x.shape[0], prod(x.shape[1:]))), axis=-1)


def size(v: Any, norm: float) -> Any:
    """The norm of each row, in double precision."""
    return np.linalg.norm(np.asarray(v, dtype=np.float64).reshape(v.shape[0], -1), norm, axis=-1)
