"""The price that belongs to a budget: the minimum of a convex function of the price eta.

With a budget B for the divergence, averaged over the examples, the risk is the minimum over eta of
eta B + F(eta), by duality, where F is the risk for the price eta. This function is convex in eta, and jointly
convex in eta and the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import inf, log

_FACTOR, _STEPS = 4.0, 12  # between prices while the minimum is not bracketed, and the number of steps
_WIDTH = 1e-4  # relative width of the final bracket; the minimum depends on its square
_GOLDEN = (3 - 5**0.5) / 2


def best_price(value: Callable[[float], float], guess: float) -> float:
    """The price at which value(eta), a convex function, is smallest: by golden section in log eta.

    If there is no minimum between 1e-7 and 1e7 times the guess, the result is the best price there.

    >>> round(best_price(lambda eta: 8 / eta + 2 * eta, 100.0), 3)
    2.0
    """
    value = cache(value)
    a, eta, b = guess / _FACTOR, guess, guess * _FACTOR
    for _ in range(_STEPS):
        if value(eta) == inf or value(b) < value(eta):
            a, eta, b = eta, b, b * _FACTOR
        elif value(a) < value(eta):
            a, eta, b = a / _FACTOR, a, eta
        else:
            break
    else:
        return eta
    while log(b / a) > _WIDTH:
        if b / eta > eta / a:
            new = eta * (b / eta) ** _GOLDEN
            a, eta, b = (eta, new, b) if value(new) < value(eta) else (a, eta, new)
        else:
            new = eta * (a / eta) ** _GOLDEN
            a, eta, b = (a, new, eta) if value(new) < value(eta) else (new, eta, b)
    return eta


def convex_lower_bound(eta: float, bounds: dict[float, tuple[float, float]]) -> float:
    """A lower bound on a convex function of the price; -inf if there is none.

    `bounds` has a lower and an upper bound on the value at several prices, among them `eta`. If the values
    at a < eta and b > eta are larger than at eta, the minimum is in [a, b], and lines through two of the
    three points bound it. The best choice of a and b is taken.
    """
    low, high = bounds[eta]
    left = {a: above for a, (below, above) in bounds.items() if a < eta and below >= high}
    right = {b: above for b, (below, above) in bounds.items() if b > eta and below >= high}
    found = -inf
    for (a, at_a), (b, at_b) in product(left.items(), right.items()):
        ratio = (eta - a) / (b - eta)
        found = max(found, low - max((at_b - low) * ratio, (at_a - low) / ratio))
    return found
