"""What the study of worst-case distributions shows: its tables and its findings."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.worst_case.figures import columns_of, level, rows_of


def _end(table: Table) -> str:
    """The paper's area close to x = 5."""
    return f"[{0.8 * table.config.radius:g}, {table.config.radius:g}]"


def _between(low: float, high: float) -> str:
    return f"{low:.3g}" if high - low < 0.005 else f"{low:.3g} to {high:.3g}"


# --- Tables -----------------------------------------------------------------------------------------


def tables(table: Table) -> list[ReportTable]:
    """The landscapes, and for each reading its worst cases."""
    rows = rows_of(table, "landscape")
    return [_landscapes(table, rows), *(_worst_cases(table, row["reading"]) for row in rows)]


def _landscapes(table: Table, rows: list[Row]) -> ReportTable:
    lines = []
    for row in rows:
        others = rows_of(table, "networks", reading=row["reading"])
        numbers = [number for other in others for number in other["numbers"]]
        drawn, many, at_end = (sum(other[name] for other in others) for name in ("drawn", "many", "at_end"))
        lines.append(
            (
                row["reading"],
                f"{row['lowest']:.2f} to {row['highest']:.2f}",
                _between(row["top_from"], row["top_to"]),
                str(row["maxima"]),
                f"{many} of {drawn}",
                f"{median(numbers):g}" if numbers else "",
                f"{at_end} of {drawn}",
            )
        )
    headings = ("reading", "f", "largest at", "local maxima", "others: 3 or more", "their median")
    return ReportTable(
        "Landscapes",
        (*headings, f"largest in {_end(table)}"),
        lines,
        "Local maxima that stand out by 1 % of the range. The others are networks drawn from the same law.",
    )


def _worst_cases(table: Table, reading: str) -> ReportTable:
    lines = [
        (
            name,
            level(row),
            f"{row['value']:.4f}",
            f"{row['dual_minus_primal']:.0e}",
            f"{100 * row['support']:.1f} %",
            f"{row['largest']:.3g}",
            f"{row['atom']:.3f}" if row["atom"] else "",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['printed_mass']:.3f}",
        )
        for name in columns_of(table)
        for row in rows_of(table, "density", reading=reading, regularisation=name)
    ]
    headings = ("level", "value", "dual - primal", "support", "density up to", "atom", "90 % lie in")
    return ReportTable(
        f"Worst cases, reading {reading}",
        ("regularisation", *headings, "mass as printed"),
        lines,
        "The atom sits where f is largest, and is no part of the density. The last column is the mass of the "
        "density that Examples 1 to 5 print.",
        left=2,
    )


# --- Findings ---------------------------------------------------------------------------------------


def findings(table: Table) -> list[str]:
    """What the paper says of the landscape and its four findings, each beside what the table shows."""
    paragraphs = []
    for landscape in rows_of(table, "landscape"):
        reading = landscape["reading"]
        rows = {
            name: rows_of(table, "density", reading=reading, regularisation=name)
            for name in columns_of(table)
        }
        paragraphs += [
            f"Landscape, {reading}: {_on_landscape(table, landscape)}",
            f"Values, {reading}: {_on_values([row for part in rows.values() for row in part])}",
            f"Finding 1, {reading}: {_on_indicator(rows['indicator'], _end(table))}",
            f"Finding 2, {reading}: {_on_entropic(rows['entropic'], _end(table))}",
            f"Finding 3, {reading}: {_on_quadratic(rows['quadratic'], rows['entropic'])}",
            *(f"Finding 4, {reading}: {_on_kinked(rows[name])}" for name in ("absolute value", "hinge")),
        ]
    return paragraphs


def _verdict(agrees: bool) -> str:
    return "as in the paper" if agrees else "NOT as in the paper"


def _rises(rows: list[Row], name: str) -> bool:
    """Whether it never falls, beyond rounding."""
    return all(b[name] >= a[name] - 1e-9 for a, b in pairwise(rows))


def _series(rows: list[Row], name: str, digits: str = ".2f") -> str:
    return ", ".join(format(row[name], digits) for row in rows)


def _falling(rows: list[Row], name: str) -> list[Row]:
    return sorted(rows, key=lambda row: -float(row[name]))


def _on_landscape(table: Table, row: Row) -> str:
    others = rows_of(table, "networks", reading=row["reading"])
    drawn, many, at_end = (sum(other[name] for other in others) for name in ("drawn", "many", "at_end"))
    text = (
        f"this network has {row['maxima']} local maxima, and is largest at x = "
        f"{_between(row['top_from'], row['top_to'])}."
    )
    if not drawn:
        return text
    return text + (
        f" Of {drawn} others of the same law {many} have three local maxima or more (many local maxima: "
        f"{_verdict(2 * many > drawn)}), and {at_end} are largest in {_end(table)} (a worst case close to "
        f"x = {table.config.radius:g}: {_verdict(2 * at_end > drawn)}; it depends on the draw)."
    )


def _on_values(rows: list[Row]) -> str:
    gap = max(abs(row["dual_minus_primal"]) for row in rows)
    mass = max(abs(row["mass"] - 1) for row in rows)
    equal = gap <= 1e-12 * max(abs(row["value"]) for row in rows) and mass <= 1e-12
    return (
        f"with their atoms the {len(rows)} worst cases {'have' if equal else 'do NOT have'} mass one and the "
        f"values of the dual, to rounding: they differ by at most {mass:.0e} and {gap:.0e}."
    )


def _on_indicator(rows: list[Row], end: str) -> str:
    rows = _falling(rows, "alpha")
    moved = max(row["moved_by_eta"] for row in rows)
    whole = max((row["from_uniform"] for row in rows if row["alpha"] == 1), default=0.0)
    agrees = moved <= 1e-9 and whole <= 1e-9 and _rises(rows, "near_end")
    most = max(rows, key=lambda row: float(row["printed_mass"]))
    return (
        f"the indicator is {_verdict(agrees)}: twice the eta moves a mass of {moved:.1g}, and for "
        f"alpha = {_series(rows, 'alpha', 'g')} the mass in {end} is {_series(rows, 'near_end')} and the "
        f"distance from uniform {_series(rows, 'from_uniform')}. But the printed density, which gives "
        f"1/alpha to all ties at the quantile, has a mass of up to {most['printed_mass']:.3f} "
        f"(alpha = {most['alpha']:g})."
    )


def _on_entropic(rows: list[Row], end: str) -> str:
    rows = _falling(rows, "eta")
    full = min(row["support"] for row in rows)
    agrees = full == 1 and _rises(rows, "near_end") and _rises(rows, "from_uniform")
    return (
        f"the entropic one is {_verdict(agrees)}: for eta = {_series(rows, 'eta', '.2g')} the distance from "
        f"uniform is {_series(rows, 'from_uniform')}, the mass in {end} {_series(rows, 'near_end')}, and the "
        f"support never less than {100 * full:.1f} % of the interval."
    )


def _on_quadratic(rows: list[Row], entropic: list[Row]) -> str:
    rows, entropic = _falling(rows, "eta"), _falling(entropic, "eta")
    ours, theirs = (part[-1]["largest"] / part[0]["largest"] for part in (rows, entropic))
    lower = all(a["largest"] <= b["largest"] for a, b in zip(rows, entropic, strict=True))
    return (
        f"for eta = {_series(rows, 'eta', '.2g')} the largest density of the quadratic one is "
        f"{_series(rows, 'largest', '.3g')}, that of the entropic one {_series(entropic, 'largest', '.3g')} "
        f"(never higher: {_verdict(lower)}). From the first to the last they grow {ours:.2f}-fold and "
        f"{theirs:.2f}-fold (slower growth: {_verdict(ours < theirs)}). Its support falls to "
        f"{100 * rows[-1]['support']:.1f} % of the interval (a smaller support: "
        f"{_verdict(rows[-1]['support'] < entropic[-1]['support'])})."
    )


def _on_kinked(rows: list[Row]) -> str:
    rows = _falling(rows, "eta")
    atoms = any(row["atom"] for row in rows)
    worst = max(rows, key=lambda row: float(row["value"] - row["printed_value"]))
    return (
        f"the {rows[0]['regularisation']} is {_verdict(not atoms)}: for eta = {_series(rows, 'eta', '.2g')} "
        f"the printed equal weights have a mass of {_series(rows, 'printed_mass')}, and an atom where f is "
        f"largest the rest, {_series(rows, 'atom')}. Scaled to mass one in place of the atom they miss the "
        f"value by up to {worst['value'] - worst['printed_value']:.2g} ({worst['printed_value']:.3f} for "
        f"{worst['value']:.3f} at eta = {worst['eta']:.2g})."
    )
