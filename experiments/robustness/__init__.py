"""How robust is a model: errors against the size of the perturbation, as a page, a table and plots."""

from phiball.experiments.robustness.report import Report, robustness_report

__all__ = ["Report", "robustness_report"]
