"""The report as JSON: every field of every result, by the words of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from math import isfinite, isnan, nan
from typing import Any

from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.comparison import Comparison
from phiball.verification.framework.evidence import Curve, Verdict
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import followers, of_the_paper, tally
from phiball.verification.report.entries import rows as rows_of
from phiball.verification.report.overview import overview
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.words import WORDS

_TUPLES = ("counterexamples", "oracles", "shares", "rejected", "survived")
_KEYS = {field: word.replace(" ", "_") for field, word in WORDS.items()}


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: null is NaN, and the infinities are strings."""
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
    """The whole run: its circumstances `about`, what it adds up to, and under "claims" the results."""
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
        "overview": overview(results, paper),
        **_sums(results, paper),
        "comparisons": [
            asdict(replace(comparison, figure=b"")) | {"figure": None} for comparison in comparisons
        ],
        "claims": rows,
    }
    return json.dumps(_plain(whole), indent=2, allow_nan=False) + "\n"


def _sums(results: list[Result], paper: Paper) -> dict[str, Any]:
    """The statements of the paper by kind of fault and by item, and the claims beyond it."""
    found = of_the_paper(results)
    beyond = [result.verdict.value for result in results if result.section == BEYOND]
    return {
        "chance of a false alarm": sum(result.error_level for result in results),
        "paper": {**tally(found), "follow from these": len(followers(found))},
        "beyond": {verdict: beyond.count(verdict) for verdict in dict.fromkeys(beyond)},
        "items": [
            {
                "item": row.item.name,
                "caption": row.item.title,
                "labels": row.item.labels,
                "statements": len(row.entries),
                "hold": row.holding,
                "severest": row.severest.standing,
                "consequence": row.severest.consequence,
                "claims": [line.id for entry in row.entries for line in entry.lines],
            }
            for row in rows_of(found, paper)
        ],
        "entries": [
            {
                "claims": [line.id for line in entry.lines],
                "standing": entry.standing,
                "consequence": entry.consequence,
                "follows": entry.follows,
            }
            for entry in found
        ],
    }


def _assessment(row: dict[str, Any] | None) -> Assessment | None:
    if row is None:
        return None
    return Assessment(
        Kind(row["kind"]),
        Consequence(row["consequence"]),
        row["why"],
        tuple(row["follows"]),
        row["reading"],
        tuple(Reading(*other) for other in row["others"]),
    )


def from_json(text: str) -> list[Result]:
    """The results that `to_json` wrote; ValueError for any other text."""
    try:
        return _results(json.loads(text)["claims"])
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"the text is no report ({type(error).__name__}); expected a claims.json") from error


def _results(rows: list[dict[str, Any]]) -> list[Result]:
    numbers = {field.name for field in fields(Result) if field.type == "float"}
    parts = [field.name for field in fields(Curve)]
    results = []
    for row in rows:
        values = {field: row[key] for field, key in _KEYS.items()}
        values |= {name: nan if values[name] is None else float(values[name]) for name in numbers}
        values |= {name: Verdict(values[name]) for name in ("verdict", "recorded")}
        values["assessment"] = _assessment(values["assessment"])
        values |= {name: tuple(values[name]) for name in _TUPLES}
        values["curves"] = tuple(Curve(**{part: curve[part] for part in parts}) for curve in row["curves"])
        results.append(Result(**values))
    return results
