"""Beyond the paper: sharper bounds on the value of a level of the entropic risk, and its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, expm1

from hypothesis import strategies as st

from phiball.refimpl import worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.enumeration import Bound, level_mean
from phiball.verification.instances.laws import BOUNDED, TWO_POINTS, Law, bounded_laws
from phiball.verification.instances.solutions import Solver
from phiball.verification.oracles.complexity import two_point_limit


def variance_bound(law: Law, level: int) -> float:
    """eta (e^(B/eta) - 1)^2/8 2^-l: log bends by at most 1 beyond 1, Var X <= (e^(B/eta) - 1)^2/4."""
    return law.eta * expm1(law.ratio) ** 2 / 8 * 2.0**-level


def large_ratio_bound(law: Law, level: int) -> float:
    """eta (e^(B/(2 eta)) - 1)^2 2^-l: E log(m/mean X) <= Var X/(2^l m), m = E X, X in [1, e^(B/eta)]."""
    return law.eta * expm1(law.ratio / 2) ** 2 * 2.0**-level


def _value_evidence(law: Law, level: int, solve: Solver, bound: Bound) -> Iterator[Evidence]:
    under = law.limit[0] - level_mean(law, level, solve)[0]
    slack = law.eta * law.rounding
    yield Evidence(-under, slack, "F^l <= F")
    yield Evidence.at_most(under, bound(law, level), slack, f"F - F^l = {under:.4g}")


@claim(
    "Lemma EC.5 (I), sharpened",
    id="G1-sharp",
    verdict=Verdict.HOLDS,
    formula=r"0 \le F - F^{\ell} \le \frac{\eta}{8} \left( e^{B/\eta} - 1 \right)^2 2^{-\ell}",
    assumptions=BOUNDED,
    law=bounded_laws(),
    level=st.integers(0, 3),
)
def value_bias_by_variance(
    law: Law, level: int, solve: Solver = worst_case, bound: Bound = variance_bound
) -> Iterator[Evidence]:
    """F^l lies below F, by at most eta (e^(B/eta) - 1)^2/8 over 2^l."""
    yield from _value_evidence(law, level, solve, bound)


@claim(
    "Lemma EC.5 (I), sharpened for small eta",
    id="G1-small",
    verdict=Verdict.HOLDS,
    formula=r"0 \le F - F^{\ell} \le \eta \left( e^{B/(2\eta)} - 1 \right)^2 2^{-\ell}",
    assumptions=BOUNDED,
    law=bounded_laws(),
    level=st.integers(0, 3),
)
def value_bias_for_small_eta(
    law: Law, level: int, solve: Solver = worst_case, bound: Bound = large_ratio_bound
) -> Iterator[Evidence]:
    """F - F^l is at most eta (e^(B/(2 eta)) - 1)^2 over 2^l: e^(B/eta), for the paper's e^(2B/eta)."""
    yield from _value_evidence(law, level, solve, bound)


@value_bias_by_variance.mutant("has 32 for 8", replaces="bound")
def _(law: Law, level: int) -> float:
    return variance_bound(law, level) / 4


@value_bias_for_small_eta.mutant("has B/(4 eta) for B/(2 eta)", replaces="bound")
def _(law: Law, level: int) -> float:
    return law.eta * expm1(law.ratio / 4) ** 2 * 2.0**-level


def _half_chi_square(q: float, ratio: float) -> float:
    return two_point_limit(q, ratio)[2] / 2


@claim(
    "Lemma EC.5 (I), limit",
    id="G1-limit",
    verdict=Verdict.HOLDS,
    formula=r"\lim_{\ell \to \infty} 2^{\ell} (F - F^{\ell}) = \frac{\eta}{2} \chi^2",
    assumptions="chi^2 is that of the worst case from nu; f = 0 or B; extrapolated from l = 6 and 7",
)
def value_bias_limit(
    solve: Solver = worst_case, limit: Callable[[float, float], float] = _half_chi_square
) -> Iterator[Evidence]:
    """2^l (F - F^l) tends to eta chi^2/2."""
    for q in (0.5, 0.1, 0.9):
        for ratio in (0.5, 1.0, 2.0):
            law = replace(TWO_POINTS, f=(0.0, ratio), p=(1 - q, q))
            F, levels = law.limit[0], (6, 7)
            scaled = [2**k * (F - level_mean(law, k, solve)[0]) for k in levels]
            # The next term is of order 2^-l: two levels give the limit up to 4^-l, of the size of X/E X.
            extrapolated = 2 * scaled[1] - scaled[0]
            slack = exp(2 * ratio) * 4.0 ** -levels[0]
            yield Evidence(
                abs(extrapolated - limit(q, ratio)),
                slack,
                f"q = {q}, B = {ratio}: {extrapolated:.6g} for {limit(q, ratio):.6g}",
            )


@value_bias_limit.mutant("chi^2 without its half", replaces="limit")
def _(q: float, ratio: float) -> float:
    return 2 * _half_chi_square(q, ratio)
