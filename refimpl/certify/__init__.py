"""Certificates of robustness: lower bounds on margins that hold for every point of a ball."""

from phiball.refimpl.certify.margins import certified_margins

__all__ = ["certified_margins"]
