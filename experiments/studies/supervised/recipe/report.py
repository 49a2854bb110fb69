"""The tables of the study of recipes, and what they show: computed, in words."""

from __future__ import annotations

from math import sqrt
from statistics import fmean

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.attacks import NORMS
from phiball.experiments.studies.supervised.recipe.methods import CONSTANT, FAMILIES, RADII, REFERENCE
from phiball.experiments.studies.supervised.verdicts import (
    LEVEL,
    Difference,
    data_of,
    difference,
    error_of,
    pluralize,
    rows_of,
    student,
    values,
)

COLUMNS = ("clean", *(f"{kind} {norm}" for norm in NORMS for kind in ("PGM", "APGD")))
STRONG = tuple(f"APGD {norm}" for norm in NORMS)


def held_out_error(row: Row) -> float:
    """What rates are chosen by: the mean error under PGM in both norms."""
    return fmean(row[f"PGM {norm}"] for norm in NORMS)


def methods_of(table: Table) -> list[str]:
    """The methods that have results on test images."""
    present = {row["method"] for row in table.rows if row["stage"] == "report"}
    return [name for name in FAMILIES if name in present]


def attack_name(data: str, column: str) -> str:
    """A column with the radius of its attack, such as "APGD l2 1.5"."""
    kind, _, norm = column.partition(" ")
    return f"{kind} {norm} {RADII[data][norm]:g}" if norm else column


def plus_minus(numbers: list[float]) -> str:
    """The mean, and its standard error where there is one."""
    bar = f" ± {error_of(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.1f}{bar}"


def tables(table: Table) -> list[ReportTable]:
    """The errors on each data set, differences within trials, and the rates on held-out images."""
    data = data_of(table)
    found = [*(_errors(table, name) for name in data), _differences(table), _rates(table)]
    return [shown for shown in found if shown.rows]


def _errors(table: Table, data: str) -> ReportTable:
    lines = []
    for method in methods_of(table):
        rows = rows_of(table, data, method)
        if rows:
            numbers = (plus_minus(values(table, data, method, [name])) for name in COLUMNS)
            lines.append((method, f"{rows[0]['evaluations']:.3g}", f"{rows[0]['rate']:g}", *numbers))
    row = next(row for row in table.rows if (row["stage"], row["data"]) == ("report", data))
    trials = max(len(rows_of(table, data, method)) for method in methods_of(table))
    return ReportTable(
        f"Errors on {data}, in percent",
        ("method", "evaluations", "rate", *(attack_name(data, name) for name in COLUMNS)),
        lines,
        f"Means over {pluralize(trials, 'trial')} and their standard errors; {row['trained on']:,} training "
        f"images, {row['tested on']:,} test images. The ball in training is {table.config.norm}. "
        "Evaluations are for each data point in training. APGD is by cross-entropy, then by the ratio of "
        "differences of logits against the images that are left.",
    )


def against(
    table: Table, method: str, columns: tuple[str, ...] = STRONG
) -> dict[tuple[str, str], Difference]:
    """The errors of a method minus those of random-start FGM, by data set and column."""
    found = {}
    for data in data_of(table):
        for column in columns:
            result = difference(table, data, [column], method, REFERENCE)
            if result is not None:
                found[data, column] = result
    return found


def _differences(table: Table) -> ReportTable:
    places = [(data, column) for data in data_of(table) for column in ("clean", *STRONG)]
    lines = []
    for method in methods_of(table):
        found = against(table, method, ("clean", *STRONG))
        if method != REFERENCE and found:
            lines.append((method, *(_marked(found.get(place)) for place in places)))
    return ReportTable(
        f"Differences from {REFERENCE}, in points",
        ("method", *(f"{data} {attack_name(data, column)}" for data, column in places)),
        lines,
        f"Errors minus those of {REFERENCE} within trials: mean and standard error. A star: outside of "
        f"Student's interval of {100 * LEVEL:g} %{_factor(table)} and more than one image. It does not cover "
        "the choice of test images, which all trials share, and there is one chance in "
        f"{round(1 / (1 - LEVEL))} of a star where there is no difference.",
    )


def _factor(table: Table) -> str:
    counts = {len(rows_of(table, data, m)) for data in data_of(table) for m in methods_of(table)} - {0, 1}
    return f" ({', '.join(f'{student(n):.1f} standard errors with {n} trials' for n in sorted(counts))})"


def _marked(found: Difference | None) -> str:
    return "-" if found is None else f"{found}{'*' if found.sign else ''}"


def _rates(table: Table) -> ReportTable:
    judged = [row for row in table.rows if row["stage"] == "choose"]
    rates = sorted({row["rate"] for row in judged})
    lines = []
    for data in dict.fromkeys(row["data"] for row in judged):
        for method in dict.fromkeys(row["method"] for row in judged):
            found = {
                r["rate"]: held_out_error(r) for r in judged if (r["data"], r["method"]) == (data, method)
            }
            best = min(found, key=lambda rate: (found[rate], rate))
            cells = (f"{found[r]:.1f}{', chosen' if r == best else ''}" for r in rates)
            lines.append((data, method, *cells))
    return ReportTable(
        "Peaks of the rate, judged on held-out images",
        ("data", "method", *(f"{rate:g}" for rate in rates)),
        lines,
        "The mean error in percent under PGM in both norms, of one network for each rate. In a tie the lower "
        "rate is taken.",
        left=2,
    )


# --- What they show ---------------------------------------------------------------------------------


def findings(table: Table) -> list[str]:
    """What the tables say, and how sure that is."""
    paragraphs = [
        _parity(table),
        _rate_matters(table),
        _recipe(table),
        _strength(table),
        _border(table),
        _evidence(table),
    ]
    return [paragraph for paragraph in paragraphs if paragraph]


def _parity(table: Table) -> str:
    """Each method against the reference under the strong attack, those of equal cost first."""
    cost = {row["method"]: row["evaluations"] for row in table.rows}
    sentences = []
    for method in sorted(methods_of(table), key=lambda name: (cost[name] != 2, FAMILIES.index(name))):
        found = against(table, method)
        if method in (REFERENCE, CONSTANT) or not found:
            continue
        words = [d.word for d in found.values()]
        counts = ", ".join(f"{word} in {words.count(word)}" for word in ("lower", "higher", "undecided"))
        means = [d.mean for d in found.values()]
        sentences.append(
            f"{method} ({pluralize(float(cost[method]), 'evaluation')}): {counts} of {len(words)}, "
            f"{min(means):+.1f} to {max(means):+.1f} points, {fmean(means):+.1f} on average"
        )
    if not sentences:
        return f"Nothing to compare with {REFERENCE}: one of them is missing (--methods)."
    return (
        f"Against {REFERENCE} ({pluralize(float(cost.get(REFERENCE, 2)), 'evaluation')}), by APGD, in panels "
        f"of a data set and a norm of the attack. {'. '.join(sentences)}."
    )


def _rate_matters(table: Table) -> str:
    """How far the rate moves the error of the reference on held-out images, beside the choice of a method."""
    judged = [row for row in table.rows if row["stage"] == "choose" and row["evaluations"] == 2]
    parts = []
    for data in dict.fromkeys(row["data"] for row in judged):
        found: dict[str, list[float]] = {}
        for row in judged:
            if row["data"] == data:
                found.setdefault(row["method"], []).append(held_out_error(row))
        rates, best = found.get(REFERENCE, []), [min(errors) for errors in found.values()]
        if len(rates) > 1 and len(best) > 1:
            parts.append(
                f"{data} {max(rates) - min(rates):.1f} by the rate, {max(best) - min(best):.1f} by the method"
            )
    if not parts:
        return ""
    return (
        f"On held-out images, in points between the worst and the best: {REFERENCE} by its rate, and all "
        f"methods of its cost, each at its best rate. {'; '.join(parts)}."
    )


def _recipe(table: Table) -> str:
    """What the recipe does for the reference, beside what the choice of a method does."""
    found = against(table, CONSTANT)
    if not found:
        return ""
    parts = [f"{data} {attack_name(data, column)} {d}" for (data, column), d in found.items()]
    rivals = [m for m in methods_of(table) if _costs_two(table, m) and m != CONSTANT]
    spans = [
        max(means) - min(means)
        for data, column in found
        if len(means := [fmean(v) for m in rivals if (v := values(table, data, m, [column]))]) > 1
    ]
    others = f" The methods of two evaluations under the recipe span {_range(spans)} points." if spans else ""
    return (
        f"Without the recipe, at a constant rate, {REFERENCE} has more errors by (points): "
        f"{', '.join(parts)}.{others}"
    )


def _costs_two(table: Table, method: str) -> bool:
    return any(row["method"] == method and row["evaluations"] == 2 for row in table.rows)


def _range(numbers: list[float]) -> str:
    low, high = (f"{number:.1f}" for number in (min(numbers), max(numbers)))
    return low if low == high else f"{low} to {high}"


def _strength(table: Table) -> str:
    """How much more APGD finds than PGM; a large gap in one method alone would be masked gradients."""
    gaps: dict[str, list[float]] = {}
    for method in methods_of(table):
        for norm in NORMS:
            for data in data_of(table):
                pairs = [r[f"APGD {norm}"] - r[f"PGM {norm}"] for r in rows_of(table, data, method)]
                gaps.setdefault(method, []).extend([fmean(pairs)] if pairs else [])
    parts = [f"{method} {_range(found)}" for method, found in gaps.items() if found]
    return f"APGD finds more errors than PGM, by (points): {', '.join(parts)}."


def _border(table: Table) -> str:
    """Where a better rate may lie outside of those offered."""
    rates = table.config.rates
    ends = []
    for method in methods_of(table):
        for data in data_of(table):
            rows = rows_of(table, data, method)
            rate = rows[0]["rate"] if rows and method != CONSTANT else None
            if rate in (rates[0], rates[-1]):
                ends.append(f"{method} on {data} ({rate:g})")
    if not ends or len(rates) < 2:
        return ""
    return (
        "The chosen rate is the smallest or the largest offered, and one beyond may do better: "
        f"{', '.join(ends)}."
    )


def _evidence(table: Table) -> str:
    """What the standard errors leave out, and a caveat if there are too few trials to be evidence."""
    rows = [row for row in table.rows if row["stage"] == "report"]
    images = min(row["tested on"] for row in rows)
    trials = min(
        n for data in data_of(table) for m in methods_of(table) if (n := len(rows_of(table, data, m)))
    )
    machinery = " With fewer than three trials this is a test of the machinery and no evidence."
    return (
        f"The {images:,} test images are a sample too: an error of 50 % has by their choice a standard error "
        f"of {50 / sqrt(images):.1f} points, which all methods share and differences have less of."
        f"{machinery if trials < 3 else ''}"
    )
