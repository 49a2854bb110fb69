"""Robustness reports: the errors of models as a function of the perturbation's radius."""

from phiball.experiments.robustness.attack_suite import AttackSettings
from phiball.experiments.robustness.evaluation import robustness_report
from phiball.experiments.robustness.report_formats import RobustnessReport

__all__ = ["AttackSettings", "RobustnessReport", "robustness_report"]
