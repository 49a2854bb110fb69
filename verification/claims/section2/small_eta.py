"""Section 2.1 of the paper: the remark that small eta make the entropic phi inaccurate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.solutions import Solver, solved
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

# --- Small eta ------------------------------------------------------------------------------------

OVERFLOWS = Problem((0.0, 1.0), 1e-6)


@claim(
    "Example 3, remark on small eta",
    id="E7",
    verdict=Verdict.HOLDS,
    formula=r"\eta\log\mathbb{E}\left[e^{f/\eta}\right] ="
    r" \max f + \eta\log\mathbb{E}\left[e^{(f-\max f)/\eta}\right]",
    quote=r"using small $\eta$ in entropic regularization can lead to numerical errors due to the "
    r"log-sum-exp "
    r"operator",
    remark="It can, if exp(f/eta) is evaluated as it stands. With f less its maximum the value is exact to "
    "rounding for every eta, like that of the quadratic phi.",
    examples=100,
    problem=problems(),
    ratio=powers_of_ten(-15.0, 0.0),
    d=st.sampled_from([ENTROPIC, QUADRATIC]),
)
def exact_for_small_eta(
    problem: Problem, ratio: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """As it stands exp(f/eta) overflows for small eta; less the maximum the value keeps all its digits."""
    small = replace(problem, eta=ratio * (problem.spread or 1.0))
    exact = solve_exactly(small.f, small.eta, d.family or "", None, small.p).value
    got = float(solved(solve, small, d).value)
    error = inf if abs(got) == inf else abs(definitions.difference(got, exact))
    yield Evidence(error, value_tolerance(small), f"eta = {small.eta:.4g}")
    naive = float(solved(_naive(lambda f: 0 * f[0]), OVERFLOWS, ENTROPIC).value)
    yield Evidence(0.0 if naive == inf else inf, 0.0, f"{OVERFLOWS}: exp(f/eta) as it stands gives {naive}")


def _naive(shift: Callable[[Array], Array]) -> Solver:
    """eta log E exp((f - shift)/eta) + shift, as it stands."""

    def solve(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
        s = worst_case(losses, eta, d, p=p)
        if d is not ENTROPIC:
            return s
        xp = array_namespace(losses)
        law = xp.full_like(losses, 1 / losses.shape[-1]) if p is None else p
        with ignore_float_warnings():
            mean = xp.sum(xp.where(law > 0, law * xp.exp((losses - shift(losses)) / eta), xp.zeros_like(law)))
            return replace(s, value=shift(losses) + eta * xp.log(mean))

    return solve


exact_for_small_eta.mutant("evaluates exp(f/eta) as it stands")(_naive(lambda f: 0 * f[0]))
exact_for_small_eta.mutant("shifts by the mean")(_naive(lambda f: array_namespace(f).mean(f)))
