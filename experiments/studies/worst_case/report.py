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
    """The paper's findings on four of the regularisations; the figure shows the entropic one."""
    paragraphs = []
    for landscape in rows_of(table, "landscape"):
        reading = landscape["reading"]
        rows = {
            name: sorted(
                rows_of(table, "density", reading=reading, regularisation=name),
                key=lambda row: -float(row["alpha" if row["regularisation"] == "indicator" else "eta"]),
            )
            for name in columns_of(table)
        }
        paragraphs += [
            f"Finding 1, {reading}: {_on_indicator(rows['indicator'])}",
            f"Finding 3, {reading}: {_on_quadratic(rows['quadratic'], rows['entropic'])}",
            *(f"Finding 4, {reading}: {_on_kinked(rows[name])}" for name in ("absolute value", "hinge")),
        ]
    return paragraphs


def _verdict(agrees: bool) -> str:
    return "as in the paper" if agrees else "NOT as in the paper"


def _rises(rows: list[Row], name: str) -> bool:
    """Whether it never falls, beyond rounding."""
    return all(b[name] >= a[name] - 1e-9 for a, b in pairwise(rows))


def _on_indicator(rows: list[Row]) -> str:
    moved = max(row["moved_by_eta"] for row in rows)
    whole = max((row["from_uniform"] for row in rows if row["alpha"] == 1), default=0.0)
    agrees = moved <= 1e-9 and whole <= 1e-9 and _rises(rows, "near_end")
    most = max(rows, key=lambda row: float(row["printed_mass"]))
    return (
        f"the indicator is {_verdict(agrees)} (eta has no effect, uniform at alpha = 1, moves to the worst "
        f"area). But the printed density has a mass of up to {most['printed_mass']:.3f} "
        f"(alpha = {most['alpha']:g})."
    )


def _on_quadratic(rows: list[Row], entropic: list[Row]) -> str:
    ours, theirs = (part[-1]["largest"] / part[0]["largest"] for part in (rows, entropic))
    smaller = rows[-1]["support"] < entropic[-1]["support"]
    return (
        f"the support of the quadratic one falls to {100 * rows[-1]['support']:.1f} % of the interval "
        f"({_verdict(smaller)}). Its largest density grows {ours:.2f}-fold, that of the entropic one "
        f"{theirs:.2f}-fold (slower growth: {_verdict(ours < theirs)})."
    )


def _on_kinked(rows: list[Row]) -> str:
    atoms = any(row["atom"] for row in rows)
    miss = max(row["value"] - row["printed_value"] for row in rows)
    masses = ", ".join(f"{row['printed_mass']:.2f}" for row in rows)
    return (
        f"the {rows[0]['regularisation']} is {_verdict(not atoms)}: the printed equal weights have a mass of "
        f"{masses}, and an atom where f is largest has the rest. Scaled to mass one they miss the value by "
        f"up to {miss:.2g}."
    )
