"""Beyond the paper: the worst case of a phi with finite lim phi(t)/t, which has an atom at the maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from phiball.backends import Array, rng, to_numpy
from phiball.refimpl import ABSOLUTE, HINGE, Ball, Divergence, cressie_read, worst_case, worst_case_density
from phiball.refimpl.risk.density import Density
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.faulty_solvers import with_divergence
from phiball.verification.instances.laws import Midpoints
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles import uniform

CELLS = 1000


@claim(
    "Worst case of the absolute value and the hinge, without atoms in the reference law",
    id="E4c",
    verdict=Verdict.HOLDS,
    formula=r"P_* = 1\{f>\max f-c\}\,\nu + \nu(f\le\max f-c)\,\delta_{\arg\max f},\quad"
    r" \mathbb{E}_{P_*}[f]-\eta\left(\mathbb{E}_\nu[\phi(\zeta)]+\phi'(\infty)\,P_*^{\perp}(Z)\right) = R",
    assumptions="D counts mass that is singular to the reference law at phi'(infinity) a unit; "
    "c = 2 eta for the absolute value, eta for the hinge; f(x) = x on [0, 1], in cells",
)
def density_and_atom(density: Callable[..., Density] = worst_case_density) -> Iterator[Evidence]:
    """With singular mass at its price, the density and the atom have mass one and reach the risk."""
    h = 1 / CELLS
    x = h * (np.arange(CELLS) + 0.5)
    for d, width in ((ABSOLUTE, 2.0), (HINGE, 1.0)):
        for eta in (0.05, 0.2, 0.33):
            worst = density(
                lambda x, i: x[:, 0],
                array([0.5])[:, None],
                Midpoints(2, 0.5),
                eta,
                d,
                at=array(x.tolist())[:, None],
                samples=CELLS,
                rng=rng(0),
            )
            zeta, atom = to_numpy(worst.density), float(worst.masses[0])
            where, note = float(worst.atoms[0, 0]), f"{d.name}, eta = {eta}"
            yield Evidence(abs(zeta.mean() + atom - 1), ROUNDING, f"{note}: the mass")
            # A cell more or less, as the largest loss sits in the middle of the last one.
            yield Evidence(abs(atom - (1 - width * eta)), 1.5 * h, f"{note}: the atom has mass {atom:.4g}")
            cost = float(to_numpy(d.phi(array(zeta.tolist()))).mean()) + d.recession * atom
            reached = float((zeta * x).mean()) + atom * where - eta * cost
            exact = uniform.value(eta, d.name)
            # The maximum is half a cell low, and the sum over cells exact for f itself.
            yield Evidence(abs(reached - exact), h, f"{note}: {reached:.6f} is reached, R = {exact:.6f}")
    outside = density(
        lambda x, i: x[:, 0],
        array([0.5])[:, None],
        Ball(2, 0.5),
        0.2,
        HINGE,
        at=array([-0.1, 1.1, 7.0])[:, None],
        samples=100,
        rng=rng(0),
    )
    yield Evidence(float(np.abs(to_numpy(outside.density)).max()), 0.0, "no density outside the ball")


@density_and_atom.mutant("drops the atom at the maximum")
def _(loss: Any, z: Array, ball: Ball, eta: float, d: Divergence, **rest: Any) -> Density:
    worst = worst_case_density(loss, z, ball, eta, d, **rest)
    return replace(worst, masses=0 * worst.masses)


@density_and_atom.mutant("puts the atom in the middle")
def _(loss: Any, z: Array, ball: Ball, eta: float, d: Divergence, **rest: Any) -> Density:
    return replace(worst_case_density(loss, z, ball, eta, d, **rest), atoms=z)


@claim(
    "Worst case of Burg's and Hellinger's phi at a sharp peak",
    id="E4c-pole",
    verdict=Verdict.HOLDS,
    formula=r"P_*(\{\arg\max f\}) = 1-\mathbb{E}_\nu\left[\phi^{*\prime}\left(\phi'(\infty)"
    r"+\frac{f-\max f}{\eta}\right)\right]\quad\text{where that is positive}",
    assumptions="phi differentiable with finite lim phi(t)/t; f = -u^(1/2) for Burg's phi and -u^(1/4) for "
    "Hellinger's, u uniform on [0, 1]: the expectations are 2 eta and 8 eta^2",
)
def atom_of_a_smooth_phi(solve: Solver = worst_case) -> Iterator[Evidence]:
    """A smooth phi of finite recession has an atom at the maximum too, if f is peaked enough for eta."""
    u, p = uniform.dyadic()
    for k, root in ((0.0, 0.5), (0.5, 0.25)):
        d = cressie_read(k)
        for eta in (0.05, 0.1, 0.2, 0.3):
            s = solve(array((-(u**root)).tolist()), eta, d, p=array(p.tolist()))
            atom = 1 - (2 * eta if k == 0 else 8 * eta**2)
            near = float(to_numpy(s.weights)[u < 1e-30].sum())
            note = f"{d.name}, eta = {eta}"
            # The nodes below 1e-30 have at most 1e-15 of the density; the last one is 1e-12 below max f.
            yield Evidence(abs(near - atom), 1e-10, f"{note}: {near:.6f} at the maximum, {atom:.6f} expected")
            value = _burg(eta) if k == 0 else _hellinger(eta)
            yield Evidence(abs(float(s.value) - value), 1e-11, f"{note}: the value {value:.6f}")


def _burg(eta: float) -> float:
    """-eta + eta E[-log(1 - s)] with s = 1 - u^(1/2)/eta."""
    return -eta + eta * (log(eta) + 0.5)


def _hellinger(eta: float) -> float:
    """-2 eta + eta E[s/(1 - s/2)] with s = 2 - u^(1/4)/eta, and E u^(-1/4) = 4/3."""
    return -4 * eta + 4 * eta**2 * 4 / 3


atom_of_a_smooth_phi.mutant("forgets the recession: the entropic phi")(
    with_divergence(lambda d: cressie_read(1.0))
)
