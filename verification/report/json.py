"""The report as JSON: every field of every result, under the names that `NAMES` gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite, isnan
from typing import Any

from phiball.verification.framework.comparison import Comparison
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import followers, of_the_paper, tally
from phiball.verification.report.entries import rows as rows_of
from phiball.verification.report.overview import overview
from phiball.verification.report.theorems import theorems
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.wording import NAMES

_KEYS = {field: word.replace(" ", "_") for field, word in NAMES.items()}


def _plain(value: Any) -> Any:
    """Replace NaN by null and infinities by strings, as JSON has neither."""
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def to_json(
    results: list[Result],
    about: Mapping[str, Any],
    paper: Paper = THIS,
    comparisons: Sequence[Comparison] = (),
) -> str:
    """The report as JSON: the run (`about`), totals, theorems and items, and all results under "claims"."""
    rows = [
        {
            **{_KEYS[field]: value for field, value in asdict(result).items()},
            "as_recorded": result.as_recorded,
            "curves": [{**asdict(curve), "fit": asdict(curve.fit)} for curve in result.curves],
        }
        for result in results
    ]
    whole = {
        "title": paper.title,
        **about,
        "overview": overview(results, paper)._asdict(),
        **_sums(results, paper),
        "comparisons": [
            asdict(replace(comparison, figure=b"")) | {"figure": None} for comparison in comparisons
        ],
        "claims": rows,
    }
    return json.dumps(_plain(whole), indent=2, allow_nan=False) + "\n"


def _sums(results: list[Result], paper: Paper) -> dict[str, Any]:
    """The statements of the paper by kind of error, theorem and item, and the claims beyond the paper."""
    found = of_the_paper(results)
    beyond = [result.verdict.value for result in results if result.section == BEYOND]
    return {
        "chance of a false alarm": sum(result.error_level for result in results),
        "paper": {**tally(found), "follow from these": len(followers(found))},
        "beyond": {verdict: beyond.count(verdict) for verdict in dict.fromkeys(beyond)},
        "theorems": [
            {"item": theorem.item.name, "holds_as_printed": theorem.parts, "remarks": theorem.notes}
            for theorem in theorems(found, paper)
        ],
        "items": [
            {
                "item": row.item.name,
                "caption": row.item.title,
                "labels": row.item.labels,
                "statements": len(row.entries),
                "hold": row.holding,
                "worst": row.worst.status,
                "consequence": row.worst.consequence,
                "claims": [line.id for entry in row.entries for line in entry.lines],
            }
            for row in rows_of(found, paper)
        ],
        "entries": [
            {
                "claims": [line.id for line in entry.lines],
                "status": entry.status,
                "consequence": entry.consequence,
                "follows": entry.follows,
            }
            for entry in found
        ],
    }
