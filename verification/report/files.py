"""The report of a verification run as files: JSON for machines, Markdown for people."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import isfinite, isnan, nan
from typing import Any

from phiball.backends import active
from phiball.experiments.framework.provenance import revision, versions
from phiball.verification.framework.claim import Result
from phiball.verification.framework.evidence import Curve, Verdict
from phiball.verification.framework.runner import SECTIONS
from phiball.verification.report.math import markdown_math

_VERBS = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.CORRECTED: ("holds as corrected", "hold as corrected"),
    Verdict.REFUTED: ("refuted", "refuted"),
    Verdict.UNCHECKED: ("not checkable", "not checkable"),
    Verdict.UNDECIDED: ("without a verdict", "without a verdict"),
}
_PACKAGES = ("phiball", "numpy", "numba", "torch", "scipy", "hypothesis", "mpmath", "cvxpy")


def summary(results: list[Result], seconds: float) -> str:
    """One line: how many claims reached which verdict, and whether that is as recorded."""
    counts = {verdict: sum(1 for r in results if r.verdict is verdict) for verdict in Verdict}
    parts = [f"{n} {_VERBS[verdict][n != 1]}" for verdict, n in counts.items() if n]
    different = [r.id for r in results if not r.as_recorded]
    close = f"verdicts NOT as recorded: {', '.join(different)}" if different else "all verdicts as recorded"
    plural = "claim" if len(results) == 1 else "claims"
    backend = active().name
    return f"{len(results)} {plural}: {', '.join(parts)}; {close} (backend {backend}, {seconds:.0f} s)"


def remarks(result: Result) -> list[tuple[str, str]]:
    """The words that go with a verdict, each with its name; those that are empty are left out."""
    found = [
        ("statement", result.title),
        ("corrected", result.correction),
        ("counterexample", result.counterexample),
        ("not checked", result.reason),
    ]
    if not result.as_recorded:
        measured = f"measured {result.violation:.3g}, allowed {result.tolerance:.3g}"
        found.append(("DIFFERS", f"the recorded verdict is: {result.recorded.value}; {measured}"))
    if result.found and (not result.as_recorded or result.verdict is Verdict.REFUTED):
        found.append(("smallest found", result.found))
    found.append(("error", result.error))
    return [(word, text) for word, text in found if text]


def record(results: list[Result], *, seed: int, deep: bool, seconds: float) -> dict[str, Any]:
    """What a reader must know of a run besides its results."""
    return {
        "summary": summary(results, seconds),
        "backend": active().name,
        "seed": seed,
        "deep": deep,
        "seconds": seconds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} cores",
        "revision": revision(),
        "versions": versions(_PACKAGES),
    }


# --- JSON -----------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: null is NaN, and the infinities are strings."""
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def to_json(results: list[Result], about: Mapping[str, Any]) -> str:
    """The whole run as JSON: what `record` says, and every field of every result."""
    rows = [
        {
            **asdict(r),
            "as_recorded": r.as_recorded,
            "curves": [{**asdict(curve), "fit": asdict(curve.fit)} for curve in r.curves],
        }
        for r in results
    ]
    return json.dumps(_plain({**about, "claims": rows}), indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> list[Result]:
    """The results that `to_json` wrote."""
    numbers = {field.name for field in fields(Result) if field.type == "float"}
    results = []
    for row in json.loads(text)["claims"]:
        values = {field.name: row[field.name] for field in fields(Result)}
        for name in numbers:
            values[name] = nan if values[name] is None else float(values[name])
        values["verdict"], values["recorded"] = Verdict(row["verdict"]), Verdict(row["recorded"])
        names = {field.name for field in fields(Curve)}
        values["curves"] = tuple(Curve(**{k: curve[k] for k in names}) for curve in row["curves"])
        results.append(Result(**values))
    return results


# --- Markdown -------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Words in which Markdown shall see no emphasis, code, link, table or formula."""
    return re.sub(r"([\\`*_<|$~]|\](?=\())", r"\\\1", text)


def markdown(results: list[Result], about: Mapping[str, Any]) -> str:
    """The report as a Markdown page."""
    lines = ["# What the paper states, and what is true", "", about["summary"], ""]
    lines += [
        "| id | statement | verdict | worst violation | tolerance | examples |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        mark = "" if r.as_recorded else f" (recorded: {r.recorded.value})"
        cells = (
            r.id,
            plain(r.label),
            r.verdict.value + mark,
            "" if isnan(r.violation) else f"{r.violation:.2g}",
            f"{r.tolerance:.2g}",
            str(r.examples),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for section in sorted({r.section for r in results}):
        lines += ["", f"## {section}: {SECTIONS.get(section, '')}"]
        for r in (r for r in results if r.section == section):
            lines += ["", f"### {r.id}: {plain(r.label)}", ""]
            lines += [f"- {word}: {plain(text)}" for word, text in remarks(r)]
            lines += [f"- {curve.title}: exponent {curve.fit}" for curve in r.curves]
            if r.assumptions:
                lines.append(f"- assumes: {plain(r.assumptions)}")
            if r.formula:
                lines += ["", "Stated:", "", markdown_math(r.formula)]
            if r.corrected:
                lines += ["", "Corrected:", "", markdown_math(r.corrected)]
    return "\n".join(lines) + "\n"
