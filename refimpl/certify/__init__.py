"""Certificates of robustness: bounds on margins over a ball, and radii of smoothed classifiers."""

from phiball.refimpl.certify.margins import certified_margins
from phiball.refimpl.certify.shifts import divergence_radius, shift_divergence
from phiball.refimpl.certify.smoothing import ABSTAIN, SmoothedClassifier, SmoothedRadii, certified_radius

__all__ = [
    "ABSTAIN",
    "SmoothedClassifier",
    "SmoothedRadii",
    "certified_margins",
    "certified_radius",
    "divergence_radius",
    "shift_divergence",
]
