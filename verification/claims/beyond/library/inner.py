"""Beyond the paper: the inner problem in the other forms in which users call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from math import log, sqrt
from typing import Any, TypeAlias

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, use
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    bisection,
    check_divergence,
    constrained_worst_case,
    cressie_read,
    dual_value,
    indicator,
    worst_case,
    worst_case_ragged,
)
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.divergences import NAMED
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import definitions, levels
from phiball.verification.oracles.inner import solve_exactly

Solve: TypeAlias = Callable[..., Any]
LOSSES = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=5, unique=True)

# --- Rows of different lengths -----------------------------------------------------------------------


@claim(
    "worst_case_ragged",
    id="U13",
    verdict=Verdict.HOLDS,
    formula=r"R(f_{o_r}, \ldots, f_{o_{r+1} - 1}) \text{ for each row } r",
    assumptions="rows of one to four losses in any order, an eta for each; the paper's five phi, and laws",
    examples=40,
    rows=st.lists(
        st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=4, unique=True), min_size=1, max_size=5
    ),
    phi=st.sampled_from([ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3)]),
)
def rows_of_any_length(
    rows: list[list[float]], phi: Divergence, solve: Solve = worst_case_ragged
) -> Iterator[Evidence]:
    """Rows of different lengths in a flat array have the values and weights of each alone."""
    flat = [v for row in rows for v in row]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).tolist()
    etas = [0.3 + k for k in range(len(rows))]
    got = solve(array(flat), offsets, array(etas), phi)
    law = np.concatenate([(1 + np.arange(len(row))) / (len(row) * (len(row) + 1) / 2) for row in rows])
    weighed = solve(array(flat), offsets, array(etas), phi, p=array(law))
    weights = np.array(numbers(got.weights))
    for k, (row, eta) in enumerate(zip(rows, etas, strict=True)):
        value, own = levels.solve(np.array(row), eta, phi.family or "", phi.parameter)
        yield Evidence(abs(numbers(got.value)[k] - float(value)), 1e-12, f"row {k}: the value")
        if phi in (ENTROPIC, QUADRATIC):
            off = np.abs(weights[offsets[k] : offsets[k + 1]] - own).max()
            yield Evidence(float(off), 1e-11, f"row {k}: the weights")
        best = solve_exactly(
            row, eta, phi.family or "", phi.parameter, p=law[offsets[k] : offsets[k + 1]].tolist()
        )
        yield Evidence(abs(numbers(weighed.value)[k] - float(best.value)), 1e-12, f"row {k}: with a law")
    if phi in (ENTROPIC, QUADRATIC) and find_spec("torch") is not None:
        import torch

        losses = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        solve(losses, offsets, torch.tensor(etas, dtype=torch.float64), phi).value.sum().backward()
        off = float(np.abs(losses.grad.numpy() - weights).max())
        yield Evidence(off, 1e-12, "the gradient of the values is the weights")


@rows_of_any_length.mutant("one eta for all")
def _(f: Array, offsets: Any, eta: Array, phi: Divergence, **rest: Any) -> Any:
    return worst_case_ragged(f, offsets, float(eta[0]), phi, **rest)


@rows_of_any_length.mutant("the rows in reverse")
def _(f: Array, offsets: Any, eta: Array, phi: Divergence, **rest: Any) -> Any:
    got = worst_case_ragged(f, offsets, eta, phi, **rest)
    xp = array_namespace(f)
    return replace(got, value=xp.flip(got.value), weights=xp.flip(got.weights))


# --- Precision, limits and checks -----------------------------------------------------------------


@claim(
    "bisection, tolerance",
    id="U14",
    verdict=Verdict.HOLDS,
    formula=r"D(\mu) - P(\gamma) \le \mathrm{tol}, \quad 0 \le D(\mu) - R \le \mathrm{tol}",
    assumptions="smooth phi; tolerances from 1e-1 to 1e-8",
    examples=60,
    f=LOSSES,
    eta=powers_of_ten(-1, 1),
    tol=powers_of_ten(-8, -1),
    phi=st.sampled_from([ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3.0)]),
)
def bisection_keeps_its_tolerance(
    f: list[float], eta: float, tol: float, phi: Divergence, solve: Solve = bisection
) -> Iterator[Evidence]:
    """Bisection ends with a gap of at most tol between the dual value and that of its own weights."""
    got = solve(array(f), eta, phi, tol=tol)
    exact = float(solve_exactly(f, eta, phi.family or "", phi.parameter).value)
    dual = float(dual_value(array(f), float(got.mu), eta, phi))
    primal = definitions.primal(f, numbers(got.weights), eta, phi.family or "", phi.parameter, None)
    slack = 2.0**-40 * (max(map(abs, f)) + eta)
    yield Evidence.at_most(dual - float(primal), tol, slack, "the gap")
    yield Evidence.at_most(abs(float(got.value) - exact), tol, slack, "the value")
    yield Evidence(abs(float(got.gap) - (dual - float(primal))), slack, "the gap that it reports")
    law = [1 / len(f)] * len(f) + [0.0]
    more = solve(array([*f, 1000.0]), eta, phi, tol=tol, p=array(law))
    yield Evidence(abs(numbers(more.weights)[-1]), 0.0, "no weight without probability")
    yield Evidence.at_most(
        abs(float(more.value) - exact), tol, slack, "the value, with a loss of probability 0"
    )


@bisection_keeps_its_tolerance.mutant("stops at ten times the tolerance")
def _(f: Array, eta: float, phi: Divergence, *, tol: float, **rest: Any) -> Any:
    return bisection(f, eta, phi, tol=10 * tol, **rest)


@bisection_keeps_its_tolerance.mutant("reports no gap")
def _(f: Array, eta: float, phi: Divergence, *, tol: float, **rest: Any) -> Any:
    got = bisection(f, eta, phi, tol=tol, **rest)
    return replace(got, gap=0 * got.gap)


@claim(
    "cressie_read, indicator and dual_value at their edges",
    id="U15",
    verdict=Verdict.HOLDS,
    formula=r"\lim_{k \to 1} \phi_k = x \log x - x + 1, \quad \lim_{k \to 0} \phi_k = x - 1 - \log x, \quad "
    r"\sum_{f_i > q} p_i < \alpha \le \sum_{f_i \ge q} p_i",
    assumptions="orders near 0, 1 and 2; quantiles at a tie; large losses of small spread; radii that do not "
    "bind, or are zero, beside others, and one at which a loss just has weight",
)
def edges_of_families(
    power: Callable[[float], Divergence] = cressie_read,
    dual: Solve = dual_value,
    solve: Solve = worst_case,
    within: Solve = constrained_worst_case,
) -> Iterator[Evidence]:
    """At the edges of the families: the limits of powers, the quantile at a tie, digits of a dual value."""
    x = [0.05, 0.5, 1.0, 2.0, 7.0]
    for k, exact in (
        (1.0, [v * log(v) - v + 1 for v in x]),
        (0.0, [v - 1 - log(v) for v in x]),
        (2.0, [(v - 1) ** 2 / 2 for v in x]),
        (0.5, [2 * (sqrt(v) - 1) ** 2 for v in x]),
    ):
        off = max(abs(a - b) for a, b in zip(numbers(power(k).phi(array(x))), exact, strict=True))
        yield Evidence(off, 1e-13, f"order {k:g}")
        for near in (k - 1e-7, k + 1e-7):
            off = max(abs(a - b) for a, b in zip(numbers(power(near).phi(array(x))), exact, strict=True))
            yield Evidence(off, 1e-5, f"order {near:.8g}")
        for s in (-0.9, -0.2, 0.0, 0.3, 0.45):
            # The conjugate at phi'(v) = s, from the printed phi and its derivative.
            v = {1.0: np.exp(s), 0.0: 1 / (1 - s), 2.0: 1 + s, 0.5: 1 / (1 - s / 2) ** 2}[k]
            at = {
                1.0: v * np.log(v) - v + 1,
                0.0: v - 1 - np.log(v),
                2.0: (v - 1) ** 2 / 2,
                0.5: 2 * (v**0.5 - 1) ** 2,
            }[k]
            yield Evidence(
                abs(float(power(k).conj(array(s))) - (s * v - at)), 1e-13, f"conjugate, order {k:g}"
            )
            yield Evidence(abs(float(power(k).dconj(array(s))) - v), 1e-12, f"its derivative, order {k:g}")
    # AV@R of 0, 1, 2, 3 at 1/2: the two largest have all of the weight, and mu is the quantile 2.
    got = solve(array([0.0, 1.0, 2.0, 3.0]), 1.0, indicator(0.5))
    yield Evidence(
        abs(float(got.value) - 2.5) + abs(float(got.mu) - 2.0), 1e-14, "a tie of the cumulative law"
    )
    got = solve(array([3.0, 1.0, 1.0, 0.0]), 1.0, indicator(0.5), p=array([0.25, 0.25, 0.25, 0.25]))
    yield Evidence(abs(float(got.value) - 2.0) + abs(float(got.mu) - 1.0), 1e-14, "a quantile that is tied")
    at = numbers(got.weights)
    yield Evidence(
        max(abs(a - b) for a, b in zip(at, [0.5, 0.25, 0.25, 0.0], strict=True)), 1e-14, "shares of a tie"
    )
    for phi, family in ((ENTROPIC, "entropic"), (QUADRATIC, "quadratic")):
        f = [1e8 + v for v in (0.0, 0.25, 1.0)]
        best = solve_exactly(f, 0.5, family)
        mu = float(solve(array(f), 0.5, phi).mu)
        off = abs(definitions.difference(float(dual(array(f), mu, 0.5, phi)), best.value))
        yield Evidence(float(off), 1.5e-8, f"{family}: the dual value of losses near 1e8")  # a unit of 1e8
    for eta in (0.1, 0.3, 0.7):  # mu + eta has more digits than a number, and the gap needs them
        got = solve(array(f), eta, QUADRATIC)
        best = definitions.dual(f, float(got.mu), eta, "quadratic")
        short = definitions.difference(best, definitions.primal(f, numbers(got.weights), eta, "quadratic"))
        yield Evidence(abs(float(got.gap) - short), 1e-12, f"eta = {eta}: the gap of losses near 1e8")
    for phi, width in ((ABSOLUTE, 2.0), (HINGE, 1.0)):
        f, eta = [0.0, 0.5, 1.0], 0.25
        mu = 1.0 - eta  # the least mu at which the conjugate is finite
        closed = float(np.mean(np.maximum(f, 1.0 - width * eta)))
        yield Evidence(abs(float(dual(array(f), mu, eta, phi)) - closed), 1e-14, f"{phi.name} at max f - eta")
    yield from _rows_of_the_reference(solve)
    yield from _edges_of_budgets(within)


def _rows_of_the_reference(solve: Solve) -> Iterator[Evidence]:
    """Several rows in one call of the array code, which also runs where kernels are compiled."""
    rows, p = [[0.3, -1.0, 2.0, 0.5], [30.0, 10.0, 10.0, -7.0], [0.0, 0.0, 0.0, 0.1]], [0.2, 0.4, 0.1, 0.3]
    with use("numpy"):
        for d in NAMED:
            for law in (None, p):
                got = solve(array(rows), 0.4, d, **({} if law is None else {"p": array(law)}))
                for k, row in enumerate(rows):
                    best = solve_exactly(row, 0.4, d.family or "", d.parameter, p=law)
                    note = f"{d.name}, row {k} of three{'' if law is None else ', with a law'}"
                    off = abs(numbers(got.value)[k] - float(best.value))
                    yield Evidence(off, 1e-12 * (1 + max(map(abs, row))), note)
                    yield Evidence(abs(numbers(got.gap)[k]), 1e-9, f"{note}: the gap")


def _edges_of_budgets(within: Solve) -> Iterator[Evidence]:
    f, p, radii = [0.3, -1.0, 2.0, 0.5], [0.2, 0.4, 0.1, 0.3], [0.0, 1e-12, 0.02, 0.3, 1000.0]
    for d in NAMED:
        forms = (d, replace(d, family=None, parameter=None)) if d.family != "indicator" else (d,)
        alone = [within(array(f), r, d, p=array(p)) for r in radii]
        for form in forms:
            got = within(array([f] * len(radii)), array(radii), form, p=array(p))
            for k, r in enumerate(radii):
                off = abs(numbers(got.value)[k] - float(alone[k].value))
                yield Evidence(off, 1e-9, f"{form.name}, radius {r:g} beside others: the value")
                off = np.abs(
                    np.array(numbers(got.weights)).reshape(-1, 4)[k] - numbers(alone[k].weights)
                ).max()
                yield Evidence(float(off), 1e-6, f"{form.name}, radius {r:g} beside others: the weights")
                reached = float(np.dot(np.array(numbers(got.weights)).reshape(-1, 4)[k], f))
                gap = numbers(got.value)[k] - numbers(got.gap)[k] - reached
                yield Evidence(abs(gap), 1e-9, f"{form.name}, radius {r:g} beside others: the gap")
        rows = array([f] * len(radii)), array(radii), d
        even, same = within(*rows), within(*rows, p=array([0.25] * 4))
        off = np.abs(np.subtract(numbers(even.value), numbers(same.value))).max()
        yield Evidence(float(off), 1e-9, f"{d.name}: the uniform law, unsaid")
        off = np.abs(np.subtract(numbers(even.weights), numbers(same.weights))).max()
        yield Evidence(float(off), 1e-6, f"{d.name}: the uniform law, unsaid: the weights")
        # The largest loss alone, where the divergence allows it, and the mean of a budget of nothing.
        most = 2.0 if d.family != "indicator" else float(alone[0].value)
        yield Evidence(
            abs(float(alone[-1].value) - most), 1e-9 if _bounded(d) else 0.3, f"{d.name}: the most"
        )
        if _bounded(d) and d.family != "indicator":
            yield Evidence(float(alone[-1].eta), 0.0, f"{d.name}: a budget that does not bind has no price")
        if d.family != "indicator":
            mean = float(np.dot(p, f))
            yield Evidence(abs(float(alone[0].value) - mean), 1e-14, f"{d.name}: a budget of nothing")
    for order, above in product((3.0, 5.0), (1e-15, 1e-13, 1e-9)):
        yield from _just_with_weight(within, order, above)


def _bounded(d: Divergence) -> bool:
    """Whether phi(0) is finite, so that a budget can reach the largest loss."""
    return d.family != "cressie_read" or (d.parameter or 0.0) > 0


def _just_with_weight(within: Solve, k: float, above: float) -> Iterator[Evidence]:
    """gamma_i ~ p_i (1 + g_i/beta)_+^(1/(k-1)) with beta a little above -g_i: the exact radius is met."""
    with mp.workdps(50):
        g, p = [mp.mpf(v) for v in (0.0, -1.0, -2.0, -3.0)], [mp.mpf(1) / 4] * 4
        beta = 2 * (1 + mp.mpf(above))
        x = [max(1 + v / beta, mp.mpf(0)) ** (1 / (mp.mpf(k) - 1)) for v in g]
        mean = mp.fsum(q * v for q, v in zip(p, x, strict=True))
        ratios = [v / mean for v in x]
        radius = mp.fsum(q * definitions.phi(v, "cressie_read", k) for q, v in zip(p, ratios, strict=True))
        weights = [float(q * v) for q, v in zip(p, ratios, strict=True)]
    got = within(array([float(v) for v in g]), float(radius), cressie_read(k))
    off = max(abs(a - b) for a, b in zip(numbers(got.weights), weights, strict=True))
    note = f"order {k:g}, a loss {above:g} above none"
    yield Evidence(off, 1e-6, f"{note}: the weights")
    value = sum(w * float(v) for w, v in zip(weights, g, strict=True))
    yield Evidence(abs(float(got.value) - value), 1e-13, f"{note}: the value")
    yield Evidence(abs(float(got.gap)), 1e-13, f"{note}: the gap")


@edges_of_families.mutant("a wrong limit at order 1", replaces="power")
def _(k: float) -> Divergence:
    return cressie_read(k if k != 1.0 else 1.001)


@edges_of_families.mutant("loses the digits of the mean", replaces="dual")
def _(f: Array, mu: Any, eta: float, phi: Divergence) -> Array:
    return dual_value(f, mu, eta, phi) * (1 + 2.0**-50)


@edges_of_families.mutant("the upper quantile", replaces="solve")
def _(f: Array, eta: float, phi: Divergence, **law: Any) -> Any:
    got = worst_case(f, eta, phi, **law)
    return replace(got, mu=active().namespace.max(f, axis=-1)) if phi.family == "indicator" else got


@edges_of_families.mutant("the budget of the first row for all", replaces="within")
def _(f: Array, radius: Any, phi: Divergence, **law: Any) -> Any:
    first = radius if isinstance(radius, float) else float(radius[0])
    return constrained_worst_case(f, first, phi, **law)


FAULTS: dict[str, Callable[[Divergence], Divergence]] = {
    "phi": lambda d: replace(d, phi=lambda x: d.phi(x) + 1),
    "conj": lambda d: replace(d, conj=lambda s: 2 * d.conj(s)),
    "dconj": lambda d: replace(d, dconj=lambda s: d.dconj(s) + 0.1),
    "d2conj": lambda d: replace(d, d2conj=lambda s: 3 * d.d2conj(s)),
    "slope0": lambda d: replace(d, slope0=-5.0),
    "slope1": lambda d: replace(d, slope1=2.0),
    "recession": lambda d: replace(d, recession=7.0),
    "curvature1": lambda d: replace(d, curvature1=9.0),
}


@claim(
    "check_divergence",
    id="U16",
    verdict=Verdict.HOLDS,
    formula=r"\text{no fault of } \phi \text{ is found} \iff \phi \text{ is a divergence with its conjugate}",
    assumptions="the named divergences, and each with one of its parts wrong",
)
def faults_of_a_divergence_are_found(
    check: Callable[[Divergence], list[str]] = check_divergence,
) -> Iterator[Evidence]:
    """Nothing is wrong with the named divergences, and each part that is wrong is named."""
    for d in NAMED:
        yield Evidence(len(check(d)), 0.0, f"{d.name} is right")
    own = replace(cressie_read(1.5), family=None)
    for d in (replace(ENTROPIC, family=None), own):
        for part, spoil in FAULTS.items():
            found = check(spoil(d))
            yield Evidence(1 - len(found), 0.0, f"{d.name} with a wrong {part}: {found}")
            named = any(part in text or "conj" in text for text in found)
            yield Evidence(float(not named), 0.0, f"{d.name} with a wrong {part}: it is named")


@faults_of_a_divergence_are_found.mutant("finds nothing")
def _(d: Divergence) -> list[str]:
    return []


@faults_of_a_divergence_are_found.mutant("finds fault with everything")
def _(d: Divergence) -> list[str]:
    return ["phi is wrong"]
