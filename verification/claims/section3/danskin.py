"""Section 3 of the paper: the gradient of the risk, by Danskin's theorem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from phiball.refimpl import Divergence, worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import numbers
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.strategies import Problem, problems
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly


def gradient_in_losses(problem: Problem, d: Divergence) -> list[float]:
    """The gradient of R in the losses: by autograd where the arrays have it, else the worst case itself."""
    losses = problem.losses
    if not hasattr(losses, "requires_grad_"):
        return numbers(worst_case(losses, problem.eta, d, p=problem.law).weights)
    losses.requires_grad_()
    worst_case(losses, problem.eta, d, p=problem.law).value.backward()
    return numbers(losses.grad)


@claim(
    "Section 3, Danskin's theorem",
    id="A8-danskin",
    verdict=Verdict.HOLDS,
    formula=r"\nabla F(\theta) = \mathbb{E}_{z\sim\hat P}\,\mathbb{E}_{z'\sim\bar\gamma_z}"
    r"\left[\nabla f_\theta(z')\right]",
    assumptions="where the worst case is not unique, it gives a subgradient",
    examples=80,
    problem=problems(max_size=6),
    d=divergences(),
    direction=st.lists(st.sampled_from([1.0, 0.0, -1.0, 0.5]), min_size=6, max_size=6),
    size=st.sampled_from([1.0, 1e-2, 1e-4]),
)
def danskin_gradient(
    problem: Problem,
    d: Divergence,
    direction: list[float],
    size: float,
    gradient: Callable[[Problem, Divergence], list[float]] = gradient_in_losses,
) -> Iterator[Evidence]:
    """The gradient of the risk is the expectation of the loss's gradient under the worst case."""
    w = gradient(problem, d)
    exact = (problem.eta, d.family or "", d.parameter, problem.p)
    risk = solve_exactly(problem.f, *exact).value
    h = size * (problem.spread or problem.eta)
    for sign in (1, -1):
        moved = replace(
            problem, f=tuple(v + sign * h * g for v, g in zip(problem.f, direction, strict=False))
        )
        moved_risk = solve_exactly(moved.f, *exact).value
        # R is convex in f, so that w is its gradient if and only if the tangent stays below, on both sides.
        tangent = sum(x * (b - a) for x, a, b in zip(w, problem.f, moved.f, strict=True))
        rise = definitions.difference(moved_risk, risk)
        # The weights are exact to rounding, and so is the step up to that of f itself, which it carries.
        yield Evidence(tangent - rise, ROUNDING * h + 2.0**-50 * problem.size, f"a step of {sign * h:.4g}")


@danskin_gradient.mutant("averages under the reference law")
def _(problem: Problem, d: Divergence) -> list[float]:
    return list(problem.probabilities)


@danskin_gradient.mutant("differentiates the penalty as well")
def _(problem: Problem, d: Divergence) -> list[float]:
    w = numbers(worst_case(problem.losses, problem.eta, d, p=problem.law).weights)
    return [2 * v - q for v, q in zip(w, problem.probabilities, strict=True)]
