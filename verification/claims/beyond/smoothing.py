"""Beyond the paper: radii of smoothed classifiers, certified by phi-divergences between shifted noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import mpmath as mp
from hypothesis import strategies as st

from phiball.refimpl import Divergence, Gaussian, cressie_read, hockey_stick
from phiball.refimpl.certify import divergence_radius
from phiball.refimpl.inner.divergences import DIVERGENCES
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict

Radius: TypeAlias = Callable[[float, Gaussian, str | Divergence], float]
TOLERANCE = 1e-9  # of the radii in units of the noise, for probabilities up to 0.9999


def quantile(p: float) -> float:
    """The quantile of the normal distribution, in 50 digits."""
    with mp.workdps(50):
        return float(mp.sqrt(2) * mp.erfinv(2 * mp.mpf(p) - 1))


@claim(
    "Radii of smoothed classifiers, Gaussian noise",
    id="RS1",
    verdict=Verdict.HOLDS,
    formula=r"r_{\text{KL}} = r_{\chi^2} = \sigma\sqrt{-\log(4p(1-p))}, \qquad r_\phi \le "
    r"\sigma\,\Phi^{-1}(p) = r_{(x-\beta)_+}\ \text{for}\ \log\beta = \frac{1}{2}\Phi^{-1}(p)^2",
    assumptions="a class has probability p > 1/2 under the noise; r is the largest shift for which the "
    "divergence certifies a probability of at least 1/2. At p = 0.99 and sigma = 1, r is 1.797 for KL and "
    "chi-square, and at most 2.326",
    examples=3,
    p=st.one_of(st.just(0.99), st.floats(0.51, 0.9999)),
    beta=st.floats(1.0, 50.0),
    order=st.floats(-3.0, 5.0),
)
def gaussian_radii(
    p: float, beta: float, order: float, radius: Radius = divergence_radius
) -> Iterator[Evidence]:
    """KL and chi-square give the same radius; the best hockey-stick attains Cohen's, which none exceeds."""
    noise, best = Gaussian(1.0), quantile(p)
    with mp.workdps(50):
        expected = float(mp.sqrt(-mp.log(4 * mp.mpf(p) * (1 - mp.mpf(p)))))
    for name in ("kl", "chi2"):
        found = radius(p, noise, name)
        yield Evidence(
            abs(found - expected), TOLERANCE, f"{name}, p = {p:.4g}: {found:.4f}, Cohen {best:.4f}"
        )
    best_stick = hockey_stick(float(mp.exp(best**2 / 2)))
    found = radius(p, noise, best_stick)
    yield Evidence(abs(found - best), TOLERANCE, f"{best_stick.name}: {found:.4f} of {best:.4f}")
    for d in (*DIVERGENCES.values(), hockey_stick(beta), cressie_read(order)):
        found = radius(p, noise, d)
        yield Evidence(found - best, TOLERANCE, f"{d.name}: {found:.4f} is at most {best:.4f}")


@gaussian_radii.mutant("takes p as the probability of the complement")
def _(p: float, noise: Gaussian, divergence: str | Divergence) -> float:
    return divergence_radius(1 - p, noise, divergence)


@gaussian_radii.mutant("adds a tenth to every radius")
def _(p: float, noise: Gaussian, divergence: str | Divergence) -> float:
    return 1.1 * divergence_radius(p, noise, divergence)
