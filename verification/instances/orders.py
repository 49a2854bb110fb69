"""O-statements as curves: the measured growth beside the stated one, which meet at the coarsest scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from phiball.verification.framework.evidence import Curve, Evidence


def order(
    title: str, x_label: str, x: Sequence[float], y: Sequence[float], power: float, logs: float = 0.0
) -> Curve:
    """y over x beside c x^power log(x)^logs, with the c that makes them equal at the first x."""
    stated = [a**power * log(a) ** logs for a in x]
    bound = [y[0] * b / stated[0] for b in stated]
    words = f"{x_label}^{power:g}" + (f" log^{logs:g}" if logs else "")
    return Curve(title, x_label, title, f"stated order {words}", tuple(x), tuple(y), tuple(bound))


def within(curve: Curve, slack: float) -> Iterator[Curve | Evidence]:
    """The curve, that it stays below the stated order, and that its exponent is at most the order's own.

    The logarithms raise the exponent of the stated order over the scales at hand; `slack` is for whole
    numbers, to which steps, batches and levels are rounded up.
    """
    slack = max(slack, 2.0**-40)  # the two meet at the first x, up to rounding
    yield curve
    yield curve.below_bound(slack)
    yield curve.at_most(replace(curve, y=curve.bound).fit.slope, slack)
