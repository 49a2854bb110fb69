"""The evidence that a statement returns: violations with tolerances, and curves with exponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf, isfinite, log, nan, sqrt


class Verdict(StrEnum):
    """The outcome of running a claim.

    >>> [verdict.value for verdict in Verdict]
    ['holds', 'holds as corrected', 'refuted', 'not checkable', 'not reached']
    """

    HOLDS = "holds"
    CORRECTED = "holds as corrected"
    REFUTED = "refuted"
    UNCHECKED = "not checkable"
    UNDECIDED = "not reached"


class Quantity(StrEnum):
    """The measured quantity of the inner problem, which determines the tolerance in `verify_solver`.

    >>> [quantity.value for quantity in Quantity]
    ['value', 'weights', 'mu', 'mass', 'gap']
    """

    VALUE = "value"  # the optimal value, the primal value at weights, or the dual value at mu
    WEIGHTS = "weights"  # weights entry by entry
    MU = "mu"  # the multiplier itself
    MASS = "mass"  # properties of weights: sum one, no negative weight, equal weights for equal losses
    GAP = "gap"  # the duality gap that the solver reports


@dataclass(frozen=True)
class Evidence:
    """The violation of an inequality on one example, and the tolerance for rounding.

    Arguments:
    - `violation`: at most zero if the inequality holds exactly; NaN is an error in the claim.
    - `tolerance`: a finite nonnegative number.
    - `note`: a description of the measured quantity, shown beside the numbers.
    - `quantity`: the measured quantity, for `verify_solver`.
    - `bound`: the bound that the measured number must not exceed; NaN if there is none.

    >>> evidence = Evidence(violation=3e-16, tolerance=1e-15, note="primal - dual")
    >>> evidence.holds, round(evidence.ratio, 3)
    (True, 0.3)
    """

    violation: float
    tolerance: float
    note: str = ""
    quantity: Quantity = Quantity.VALUE
    bound: float = nan

    @classmethod
    def at_most(cls, measured: float, bound: float, tolerance: float, note: str = "") -> Evidence:
        """Evidence that a measured number is at most its bound; the report shows their ratio.

        >>> Evidence.at_most(0.5, 2.0, 0.0).measured
        0.5
        """
        return cls(measured - bound, tolerance, note, bound=bound)

    def __post_init__(self) -> None:
        object.__setattr__(self, "violation", float(self.violation))
        object.__setattr__(self, "tolerance", float(self.tolerance))
        object.__setattr__(self, "bound", float(self.bound))
        if not (isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"tolerance is {self.tolerance!r}; expected a finite nonnegative number")

    @property
    def holds(self) -> bool:
        """Whether the violation is within the tolerance; False for NaN."""
        return self.violation <= self.tolerance

    @property
    def measured(self) -> float:
        """The number that was compared with the bound; NaN without a bound."""
        return self.violation + self.bound

    @property
    def ratio(self) -> float:
        """The violation in units of the tolerance."""
        if self.tolerance:
            return self.violation / self.tolerance
        return inf if self.violation > 0 else 0.0


@dataclass(frozen=True)
class Fit:
    """The slope of log y in log x by least squares, with its 99 % confidence interval.

    >>> print(Fit(-1.0, -1.1, -0.9))
    -1.000 [-1.100, -0.900]
    """

    slope: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.slope:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Curve:
    """A positive quantity y measured at four or more scales x, beside its stated bound.

    Arguments:
    - `title`, `x_label`, `y_label`, `bound_label`: the labels of the plot.
    - `x`, `y`: the scales and the measured values, positive numbers.
    - `bound`: the stated bound at each x.

    A statement yields a curve along with its evidence. The report plots it on logarithmic axes.

    >>> curve = Curve.of_order("bias", "n", [2, 4, 8, 16], [0.5, 0.25, 0.125, 0.0625], power=-1)
    >>> print(curve.fit)  # the exponent, with its 99 % confidence interval
    -1.000 [-1.000, -1.000]
    >>> curve.at_most(-0.5, slack=0.01).holds
    True
    """

    title: str
    x_label: str
    y_label: str
    bound_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bound: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("x", "y", "bound"):
            values = tuple(float(v) for v in getattr(self, name))
            object.__setattr__(self, name, values)
            if len(values) != len(self.x) or not all(isfinite(v) and v > 0 for v in values):
                raise ValueError(f"{name} is {values!r}; expected {len(self.x)} positive numbers")
        if len(set(self.x)) < 4:
            raise ValueError(f"x is {self.x!r}; expected at least four scales")

    @classmethod
    def of_order(
        cls, title: str, x_label: str, x: Sequence[float], y: Sequence[float], power: float, logs: float = 0.0
    ) -> Curve:
        """The curve of an O-statement: the bound is c x^power log(x)^logs, equal to y at x[0]."""
        stated = [a**power * log(a) ** logs for a in x]
        bound = tuple(y[0] * b / stated[0] for b in stated)
        words = f"{x_label}^{power:g}" + (f" log^{logs:g}" if logs else "")
        return cls(title, x_label, title, f"stated order {words}", tuple(x), tuple(y), bound)

    @cached_property
    def fit(self) -> Fit:
        """The fitted exponent of y in x."""
        from scipy.special import stdtrit

        u, v = [log(a) for a in self.x], [log(b) for b in self.y]
        n, mean_u, mean_v = len(u), sum(u) / len(u), sum(v) / len(v)
        spread = sum((a - mean_u) ** 2 for a in u)
        slope = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / spread
        residual = sum((b - mean_v - slope * (a - mean_u)) ** 2 for a, b in zip(u, v, strict=True))
        margin = float(stdtrit(n - 2, 0.995)) * sqrt(residual / (n - 2) / spread)
        return Fit(slope, slope - margin, slope + margin)

    def at_most(self, exponent: float, slack: float) -> Evidence:
        """Evidence that the exponent of y is at most `exponent`, up to `slack`."""
        return Evidence(self.fit.slope - exponent, slack, f"{self.title}: exponent {self.fit}")

    def exactly(self, exponent: float, slack: float) -> Evidence:
        """Evidence that the exponent of y is `exponent`, up to `slack`."""
        return Evidence(abs(self.fit.slope - exponent), slack, f"{self.title}: exponent {self.fit}")

    def below_bound(self, slack: float = 0.0) -> Evidence:
        """Evidence that y is at most its bound at every x, up to the relative error `slack`."""
        worst = max(b / c for b, c in zip(self.y, self.bound, strict=True))
        return Evidence.at_most(worst, 1.0, slack, f"{self.title}: at most {worst:.4g} of the bound")

    def within_order(self, slack: float = 0.0) -> Iterator[Curve | Evidence]:
        """Yield the curve, evidence that y is at most its bound, and evidence that it does not grow faster.

        The growth is compared by fitted exponents. The exponent of the bound is fitted too: it differs from
        the stated one if there is a logarithmic factor. `slack` allows for steps, batches and levels that are
        rounded up to whole numbers.
        """
        slack = max(slack, 2.0**-40)  # y equals its bound at the first x, up to rounding
        yield self
        yield self.below_bound(slack)
        yield self.at_most(replace(self, y=self.bound).fit.slope, slack)
