"""Section 5 of the paper: the covering number that it quotes, and how its bound compares with a lower one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, sqrt
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.refimpl import linear_capacity, linear_covering
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.function_classes import Capacity, linear_classes
from phiball.verification.instances.strategies import powers_of_ten

LogNumber: TypeAlias = Callable[..., float]


@claim(
    "Example 6, quoted covering number",
    id="I5-quoted",
    part_of="I5",
    verdict=Verdict.HOLDS,
    formula=r"\log \mathcal{N}(\mathcal{G}_{|S}, \epsilon, \|\cdot\|_\infty) \le 4.4\, K \,"
    r"\frac{\Lambda^2 d (\Psi + \sqrt{d} \rho)^2}{\epsilon^2 \varrho^2}",
    assumptions="K classes; where 2 Lambda (Psi + sqrt(d) rho)/varrho <= epsilon one centre is enough; "
    "else the "
    "explicit covering number, which I5-explicit checks against centres that are counted",
    quote=r"it holds that $\log\mathcal{N}(\mathcal{G}_{\mid_{S}}, \epsilon, \|\cdot\|_{\infty}) = "
    r"\widetilde{O}( \frac{\Lambda^2d(\Psi + \sqrt{d}\rho)^2}{\epsilon^2\varrho^2} )$",
    remark="The source of the quotation hides logarithms alone; the constant found here, 4.4 K, grows with "
    "the "
    "number of classes. The covering number quoted for networks (Example 7) is not derived here: I6 checks "
    "that the two agree for one layer.",
    examples=200,
    family=linear_classes(),
    K=st.integers(2, 10),
    t=powers_of_ten(-1, 3),
)
def quoted_covering_follows(
    family: dict[str, float], K: int, t: float, log_number: LogNumber = linear_covering
) -> Evidence:
    """The covering number quoted for linear classes follows from an explicit one, up to 4.4 K."""
    d, Lambda, Psi, rho, varrho = (family[k] for k in ("d", "Lambda", "Psi", "rho", "varrho"))
    reach = Lambda * (Psi + sqrt(d) * rho) / varrho
    eps = reach / t
    # Losses of the class differ by 2 reach at most, which one centre covers.
    own = 0.0 if eps >= 2 * reach else log_number(eps, K=K, **family)
    quoted = 4.4 * K * d * reach**2 / eps**2
    return Evidence.at_most(own, quoted, 2.0**-40 * quoted, f"log N = {own:.4g}, quoted {quoted:.4g}")


@quoted_covering_follows.mutant("a centre for each tenth of epsilon")
def _(eps: float, **family: float) -> float:
    return linear_covering(eps / 10, **family)  # type: ignore[arg-type]


@claim(
    "Remark 5, lower bound",
    id="I8",
    verdict=Verdict.HOLDS,
    formula=r"\frac{\Lambda \sqrt{d} (\Psi + \sqrt{d} \rho)/(\varrho \sqrt{n})}{\Lambda \Psi/\sqrt{n}} = "
    r"\frac{\sqrt{d} + d \rho/\Psi}{\varrho} = O(d)",
    assumptions="the lower bound Lambda Psi/sqrt(n) as the paper quotes it; rho/Psi and varrho fixed",
    quote=r"our generalization bound for the linear function class matches the lower bound in terms of the "
    r"parameters $\Psi$, $\Lambda$, and $n$, but introduces an additional $O(d)$ term",
    remark="An arithmetic statement on two formulas, of which the lower bound is quoted from elsewhere.",
)
def bound_is_d_times_the_lower_one(capacity: Capacity = linear_capacity) -> Iterator[Evidence | Curve]:
    """The bound for linear classes is a multiple of the lower bound that depends on d alone, at most d."""
    sizes = (1, 4, 16, 64, 256)
    for rho in (0.0, 0.1, 1.0):
        ratios = []
        for d in sizes:
            for Lambda, Psi in ((1.0, 1.0), (7.0, 1.0), (1.0, 0.2)):
                A = capacity(d=d, Lambda=Lambda, Psi=Psi, rho=rho * Psi, varrho=1.0)
                ratio = A / (Lambda * Psi)
                exact = sqrt(d) + d * rho
                yield Evidence(abs(ratio / exact - 1), 2.0**-46, f"d = {d}, Lambda = {Lambda}, Psi = {Psi}")
            ratios.append(ratio)
        curve = Curve(
            f"the bound over the lower one, rho/Psi = {rho:g}",
            "d",
            "ratio",
            "(1 + rho/Psi) d",
            tuple(map(float, sizes)),
            tuple(ratios),
            tuple((1 + rho) * d for d in sizes),
        )
        yield curve
        yield curve.below_bound(2.0**-40)
        yield curve.at_most(1.0, log(1.01))


@bound_is_d_times_the_lower_one.mutant("forgets the root of d")
def _(*, d: int, Lambda: float, Psi: float, rho: float, varrho: float) -> float:
    return sqrt(d) * linear_capacity(d=d, Lambda=Lambda, Psi=Psi, rho=rho, varrho=varrho)
