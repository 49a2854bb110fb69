"""`phiball bench estimators`: uniform and tilted points at a trained network, by bias, noise and cost.

The entropic risk of a few test images and its gradient in the network's parameters are estimated repeatedly,
and compared with long runs. Where no reference can be trusted, the highest estimate still shows how much too
low the others are at least, since all are low on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from math import hypot, inf, sqrt
from pathlib import Path

import numpy as np

from phiball.backends import rng
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.output import open_console, run_details, write_results
from phiball.experiments.benchmarks.reference_values import AGREE, Mean, Reference, estimate, judge, long_run
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.pretrained import Classifier, pretrained
from phiball.refimpl import Ball, Tilted, Uniform

PROPOSALS: dict[str, Uniform | Tilted] = {
    "uniform": Uniform(),
    "antithetic": Uniform(antithetic=True),
    "tilted": Tilted(),
    "retilted": Tilted(retilt=1),
}
NORMS = {2.0: "l2", inf: "linf"}
RADII = {2.0: (0.5, 2.0), inf: (0.1, 0.3)}
RATIOS = (0.02, 0.2, 2.0)  # eta/radius
SIGNIFICANT = 3  # a bias of fewer errors than this cannot be told from zero
NOTE = (
    "bias and sd of the value, in units of the loss; of the gradient, in % of its length (sd: root mean "
    "squared distance from the mean); < : within three errors of bias and reference, hence possibly zero; "
    "<= : no reference, but at least this much too low; ? : not known; retilted: Tilted(retilt=1)"
)
SUMMARY = (
    "root mean squared distance from the reference gradient, in % of its length, at so many points per data "
    "point (evaluations: uniform n, tilted n + 1, retilted n + 2); ?: tilted and uniform references differ, "
    "are too noisy, or are below an estimate, so that none can be trusted"
)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    radii: int = 2
    ratios: tuple[float, ...] = RATIOS
    levels: tuple[int, ...] = (0, 2, 4, 6)
    replications: int = 48
    long: dict[str, int] = field(default_factory=lambda: {"tilted": 12, "uniform": 14})  # reference levels
    runs: int = 8  # of each reference


QUICK = Scale(radii=1, ratios=(0.02, 2.0), levels=(0, 2), replications=16, long={"tilted": 8, "uniform": 8})


@dataclass(frozen=True)
class Row:
    """One estimator at one ball and eta.

    Of the value: mean, bias with its error, standard deviation, and an upper bound of the bias; of the
    gradient: bias with its error, standard deviation and distance, as shares of the reference's length. None
    stands for what is not known.
    """

    norm: str
    radius: float
    ratio: float
    reference: float
    reference_error: float
    reference_gradient_error: float
    known: bool
    proposal: str
    n: int
    replications: int
    evaluations: float
    value: float
    value_sd: float
    bias: float | None
    bias_error: float
    bias_at_most: float | None
    gradient_sd: float
    gradient_bias: float | None
    gradient_bias_error: float
    gradient_distance: float | None

    @property
    def where(self) -> str:
        """Ball and eta as text."""
        return f"{self.norm} {self.radius:g}, eta {self.ratio:g} radius"


def row(where: tuple[str, float, float], name: str, n: int, mean: Mean, truth: Reference, top: Mean) -> Row:
    """Return what is known of one estimator; `top` is the highest estimate, which is low on average too."""
    error = hypot(mean.value_error, truth.value_error)
    slope_error = hypot(mean.gradient_error, truth.gradient_error)
    apart = float(np.linalg.norm(mean.gradient - truth.gradient))
    # Noise adds its square to that of the length of the difference.
    slope_bias = sqrt(max(0.0, apart**2 - slope_error**2))
    below = mean.value - top.value + AGREE * hypot(mean.value_error, top.value_error)
    return Row(
        *where,
        truth.value,
        truth.value_error,
        truth.gradient_error / truth.length,
        truth.known,
        name,
        n,
        mean.count,
        mean.evaluations,
        mean.value,
        mean.value_sd,
        mean.value - truth.value if truth.known else None,
        error,
        below if below < 0 else None,
        mean.gradient_sd / truth.length,
        slope_bias / truth.length if truth.known else None,
        slope_error / truth.length,
        hypot(apart, mean.gradient_sd) / truth.length if truth.known else None,
    )


def rows(classifier: Classifier, scale: Scale, seed: int = 0, update: Update = silent) -> Iterator[Row]:
    """Yield every proposal and number of points, at every ball and eta."""
    source = rng(seed)
    places = [
        (norm, r, ratio) for norm in NORMS for r in RADII[norm][: scale.radii] for ratio in scale.ratios
    ]
    for number, (norm, radius, ratio) in enumerate(places):
        where = f"{NORMS[norm]} {radius:g}, eta {ratio:g} radius"
        update(number / len(places), f"{where}: short runs")
        problem = classifier, Ball(norm, radius), ratio * radius
        means = {
            (label, level): estimate(*problem, proposal, level, scale.replications, source)
            for label, proposal in PROPOSALS.items()
            for level in scale.levels
            if level > 0 or label != "antithetic"  # a pair is two points
        }
        update((number + 0.3) / len(places), f"{where}: the reference")
        tilted, uniform = (
            long_run(*problem, PROPOSALS[label], scale.long[label], scale.runs, source)
            for label in ("tilted", "uniform")
        )
        truth = judge(tilted, uniform, list(means.values()))
        top = max([tilted, uniform, *means.values()], key=lambda m: m.value - AGREE * m.value_error)
        for (label, level), mean in means.items():
            yield row((NORMS[norm], radius, ratio), label, 1 << level, mean, truth, top)


def _number(x: float) -> str:
    return f"{float(f'{x:.2g}'):g}"  # 10, not 1e+01


def _bias(row: Row) -> str:
    if row.bias is None:
        return "?" if row.bias_at_most is None else f"<= {_number(row.bias_at_most)}"
    error = SIGNIFICANT * row.bias_error
    return f"{row.bias:+.2g}" if abs(row.bias) > error else f"< {_number(error)}"


def _gradient_bias(row: Row) -> str:
    if row.gradient_bias is None:
        return "?"
    error = SIGNIFICANT * row.gradient_bias_error
    apart = hypot(row.gradient_bias, row.gradient_bias_error)
    return _number(100 * row.gradient_bias) if apart > error else f"< {_number(100 * error)}"


def tables(measured: list[Row]) -> list[ReportTable]:
    """Return a table for each ball and eta."""
    pages = []
    for where in dict.fromkeys(row.where for row in measured):
        mine = [row for row in measured if row.where == where]
        first = mine[0]
        risk = (
            f"risk {first.reference:.4f} +- {first.reference_error:.1g}, its gradient +- "
            f"{100 * first.reference_gradient_error:.2g} %"
            if first.known
            else "no reliable reference; % of the longest tilted run's gradient"
        )
        cells = [
            (
                row.proposal,
                str(row.n),
                f"{row.evaluations:g}",
                _bias(row),
                _number(row.value_sd),
                _gradient_bias(row),
                _number(100 * row.gradient_sd),
            )
            for row in mine
        ]
        headings = ("points", "n", "evaluations", "bias", "sd", "gradient bias %", "gradient sd %")
        pages.append(ReportTable(f"{where}: {risk}", headings, cells))
    return [*pages[:-1], replace(pages[-1], note=NOTE)]


def summary(measured: list[Row]) -> ReportTable:
    """Return the error of the gradient at the fewest and at the most points, for every ball and eta."""
    counts = [row.n for row in measured]
    ends = sorted({min(counts), max(counts)})
    columns = [
        (name, n)
        for name in PROPOSALS
        for n in ends
        if any((row.proposal, row.n) == (name, n) for row in measured)
    ]
    cells = []
    for where in dict.fromkeys(row.where for row in measured):
        mine = {(row.proposal, row.n): row.gradient_distance for row in measured if row.where == where}
        distances = [mine[column] for column in columns]
        cells.append((where, *("?" if d is None else _number(100 * d) for d in distances)))
    headings = ("ball", *(f"{name} {n}" for name, n in columns))
    return ReportTable("Error of the gradient", headings, cells, SUMMARY)


def main(threads: int = 1, quick: bool = False, seed: int = 0, out: Path | None = None) -> None:
    """Print the tables, and write them as JSON and Markdown to the folder `out`, if one is named."""
    require("torch", user="bench estimators", extra="bench").set_num_threads(threads)
    console = open_console(out)
    measured: list[Row] = []
    with Progress("bench estimators", console) as progress:
        progress.update(0.0, "training")
        classifier = pretrained(seed)
        scale = QUICK if quick else Scale()
        measured.extend(rows(classifier, scale, seed, progress.part(0.02, 1.0).update))
    pages = [*tables(measured), summary(measured)]
    for page in pages:
        console.print(page.table())
    details = run_details(
        seed=seed, threads=threads, quick=quick, data=classifier.name, images=len(classifier.x)
    )
    write_results(
        console,
        out,
        "estimators",
        {**details, "rows": [asdict(row) for row in measured]},
        title="Estimators at a trained network",
        facts=[f"{key}: {value}" for key, value in details.items()],
        tables=pages,
    )
