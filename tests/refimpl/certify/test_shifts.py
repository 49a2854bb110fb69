"""Divergences between shifted noise agree with integrals of their definitions."""

from math import exp, inf
from typing import Any

import pytest

from phiball import Ball, Divergence, Gaussian, cressie_read, hockey_stick, indicator
from phiball.certify import certified_radius, divergence_radius, shift_divergence
from phiball.inner import check_divergence
from phiball.refimpl.inner.divergences import DIVERGENCES
from tests.support.divergences import name_of

mp = pytest.importorskip("mpmath", reason="mpmath: not installed")
definitions = pytest.importorskip("phiball.verification.oracles.definitions", reason="extra verify")
SMOOTH = [*DIVERGENCES.values(), *(cressie_read(k) for k in (-1, 0, 0.5, 3)), hockey_stick(2.5)]


@pytest.mark.parametrize("d", SMOOTH, ids=name_of)
def test_gaussian_shifts_agree_with_quadrature(d: Divergence) -> None:
    for t in (0.1, 1.0, 2.0):

        def integrand(z: Any, t: float = t) -> Any:
            return definitions.phi(mp.exp(t * z - t * t / 2), d.family, d.parameter) * mp.npdf(z)

        kinks = [(mp.log(b) + t * t / 2) / t for b in (1, d.parameter or 1) if b > 0]
        exact = mp.quad(integrand, sorted({-14.0, -4.0, 0.0, 4.0, 14.0, *map(float, kinks)}))
        assert shift_divergence(Gaussian(0.5), 0.5 * t, d) == pytest.approx(float(exact), rel=1e-9)


def test_shifts_without_a_finite_divergence_certify_nothing() -> None:
    assert shift_divergence(Gaussian(1.0), 0.1, indicator(0.5)) == inf
    assert shift_divergence(Ball(inf, 1.0), 0.1, "chi2") == inf
    assert shift_divergence(Gaussian(1.0), 60.0, "chi2") == inf
    assert divergence_radius(0.99, Gaussian(1.0), indicator(0.5)) == 0
    assert divergence_radius(0.5, Gaussian(1.0), "kl") == 0
    assert divergence_radius(0.99, Gaussian(1.0), "kl") == pytest.approx(1.797, abs=5e-4)
    assert 0 < divergence_radius(1.0, Gaussian(1.0), "tv") < certified_radius(1.0, Gaussian(1.0))


def test_total_variation_attains_the_radius_of_uniform_noise() -> None:
    for p in (0.51, 0.9, 0.999):
        best = certified_radius(p, Ball(inf, 2.0))
        for d in ("tv", "hinge"):
            assert divergence_radius(p, Ball(inf, 2.0), d) == pytest.approx(best, abs=1e-9)
        for d in (cressie_read(0.5), hockey_stick(1.5)):
            assert divergence_radius(p, Ball(inf, 2.0), d) < best


def test_hockey_stick_is_a_divergence_from_beta_1() -> None:
    for beta in (1.2, exp(3)):
        assert check_divergence(hockey_stick(beta)) == []
    with pytest.raises(ValueError, match="expected a Gaussian"):
        divergence_radius(0.9, Ball(2, 1.0), "tv")
    with pytest.raises(ValueError, match=r"beta is 0\.5"):
        hockey_stick(0.5)
