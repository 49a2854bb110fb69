"""The tables of the study of supervised learning; `findings` says what they show."""

from __future__ import annotations

from statistics import fmean

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.attacks import ATTACKS
from phiball.experiments.studies.supervised.verdicts import (
    LEVEL,
    ColumnSelector,
    comparisons,
    data_of,
    error_of,
    evaluations,
    every,
    join_names,
    largest,
    methods_of,
    middle,
    panels,
    pluralize,
    rows_of,
    score,
    student,
    values,
)


def _plus_minus(numbers: list[float]) -> str:
    bar = f" ± {error_of(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.1f}{bar}"


def tables(table: Table) -> list[ReportTable]:
    """A summary, the errors on each data set, what was chosen, and the verdicts."""
    judged = [row for row in table.rows if row["stage"] == "choose"]
    verdicts = [
        _verdicts(table, "Verdicts on RT-MLMC: mean over ratios", every, _rule(table)),
        _verdicts(table, "Verdicts on RT-MLMC: the largest ratio", largest, "By the same rule."),
    ]
    return [
        _summary(table),
        *(_errors(table, data) for data in data_of(table)),
        *([_candidates(judged)] if judged else []),
        *(verdict for verdict in verdicts if verdict.rows),
    ]


def _summary(table: Table) -> ReportTable:
    """What the figure of costs shows, in numbers."""
    both = {
        kind: [name for attack in ATTACKS if attack.startswith(kind) for name in every(table.config, attack)]
        for kind in ("noise", "PGM")
    }
    lines = []
    for method in methods_of(table):
        errors = [
            values(table, data, method, columns)
            for data in data_of(table)
            for columns in (["clean"], *both.values())
        ]
        lines.append(
            (
                method,
                f"{evaluations(table, method):.3g}",
                *(_plus_minus(numbers) if numbers else "-" for numbers in errors),
            )
        )
    return ReportTable(
        "Errors in percent",
        (
            "method",
            "evaluations",
            *(f"{data} {kind}" for data in data_of(table) for kind in ("clean", *both)),
        ),
        lines,
        "Means over trials and their standard errors; of noise and PGM over both norms of the attack and all "
        "ratios. Evaluations are for each data point in training.",
    )


def _errors(table: Table, data: str) -> ReportTable:
    config = table.config
    columns = [["clean"], *(select(config, attack) for attack in ATTACKS for select in (every, middle))]
    headings = [name for attack in ATTACKS for name in (attack, *middle(config, attack))]
    lines = []
    for method in methods_of(table):
        rows = rows_of(table, data, method)
        if rows:
            setting = rows[0]["setting"] if method.endswith(", chosen") else ""
            numbers = (_plus_minus(values(table, data, method, names)) for names in columns)
            lines.append(
                (
                    method,
                    setting.removeprefix(method.removesuffix(", chosen")).strip(),
                    f"{rows[0]['evaluations']:.3g}",
                    str(len(rows)),
                    *numbers,
                )
            )
    return ReportTable(
        f"Errors on {data}, in percent",
        ("method", "chosen", "evaluations", "trials", "clean", *headings),
        lines,
        "Means over trials and their standard errors. Of each attack: the mean over its ratios, and the "
        "error at one of them. Evaluations are for each data point in training.",
        left=2,
    )


def _candidates(judged: list[Row]) -> ReportTable:
    data = list(dict.fromkeys(row["data"] for row in judged))
    places = {(row["data"], row["setting"]): row for row in judged}
    lines = []
    for family, setting in dict.fromkeys((row["method"], row["setting"]) for row in judged):
        line = []
        for name in data:
            rivals = [row for row in judged if (row["data"], row["method"]) == (name, family)]
            row = places.get((name, setting))
            mark = ", chosen" if row is not None and row is min(rivals, key=score) else ""
            line.append("-" if row is None else f"{score(row):.1f}{mark}")
        lines.append((family, setting.removeprefix(family).strip(), *line))
    return ReportTable(
        "Settings, judged on held-out training images",
        ("method", "setting", *data),
        lines,
        "The mean error in percent over clean images and the four attacks, each over its ratios. One network "
        "for each setting: those that are near each other are not told apart.",
        left=2,
    )


def _verdicts(table: Table, title: str, select: ColumnSelector, note: str) -> ReportTable:
    data, lines = data_of(table), []
    for reading in comparisons(table):
        verdicts = panels(table, reading, select)
        lines += [
            (reading.name, attack, *(str(verdicts.get((name, attack), "-")) for name in data))
            for attack in ATTACKS
            if verdicts
        ]
    return ReportTable(title, ("reading", "attack", *data), lines, note, left=2)


def _rule(table: Table) -> str:
    readings = comparisons(table)
    names = "; ".join(f"{r.name}: {join_names([r.ours])} against {join_names(r.baselines)}" for r in readings)
    count = max((len(reading.baselines) for reading in readings), default=0)
    shared, tail = len(ATTACKS) * len(data_of(table)), 50 * (1 - LEVEL)
    return (
        "Errors of RT-MLMC minus those of the baseline named, within trials: mean and standard error, in "
        "points. best: clearly below every baseline; not: clearly above one; else tied, which is no proof of "
        "equality. Named is the lowest baseline; with not, the lowest of those clearly below RT-MLMC, though "
        f"an unclear one may be lower still. Clear is outside of Student's interval of {100 * LEVEL:g} % "
        f"{_factors(table)}and more than one image. Were all methods equal, best would be said in at most "
        f"{tail:.1f} % of panels, and not in at most {tail:.1f} % for each baseline: up to "
        f"{shared * count * tail / 100:.1f} of {shared} panels with {pluralize(count, 'baseline')}. The "
        "interval takes differences to be normal, and does not cover the choice of test images, which all "
        f"trials share. Classifiers near guessing count as they are. Readings: {names}."
    )


def _factors(table: Table) -> str:
    counts = {len(rows_of(table, data, m)) for data in data_of(table) for m in methods_of(table)}
    factors = [f"{student(n):.1f} standard errors with {n} trials" for n in sorted(counts) if n > 1]
    return f"({', '.join(factors)}) " if factors else ""
