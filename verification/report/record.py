"""The record of complete runs: a file that lists their backends, seeds and differing verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phiball.backends.files import read_json, write_text_atomic
from phiball.verification.framework.result import Result

FILE = "record.json"


def add_run(folder: Path, results: Sequence[Result], about: Mapping[str, Any]) -> Path:
    """Add a complete run to the record in `folder`; it replaces a run with the same settings."""
    key = ("backend", "seed", "deep")
    run = {name: about[name] for name in key}
    others = [old for old in read_record(folder) if any(old[name] != run[name] for name in key)]
    run |= {
        "claims": len(results),
        "differ": [result.id for result in results if not result.as_recorded],
        "date": about["date"][:10],
        "revision": about.get("revision"),
    }
    runs = sorted([*others, run], key=lambda r: (r["deep"], r["backend"], r["seed"]))
    return write_text_atomic(folder / FILE, json.dumps(runs, indent=1) + "\n")


def read_record(folder: Path) -> list[dict[str, Any]]:
    """The runs recorded in `folder`; empty without a record. Raises ValueError if the file is damaged."""
    file = folder / FILE
    runs: list[dict[str, Any]] = read_json(file) if file.exists() else []
    needed = {"backend", "seed", "deep", "claims", "differ", "date"}
    if not isinstance(runs, list) or not all(isinstance(run, dict) and needed <= set(run) for run in runs):
        raise ValueError(f"{file} is damaged; expected a list of runs, each with {', '.join(sorted(needed))}")
    return runs


def in_sentences(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The record as text: one sentence for deep runs, and one for normal runs.

    >>> run = {"backend": "numpy", "seed": 0, "deep": False, "claims": 3, "differ": [], "date": "2026-11-17"}
    >>> in_sentences([run, {**run, "seed": 1}])
    ['On record: 2 runs of all 3 claims, on numpy with seeds 0, 1: all verdicts as recorded (2026-11-17)']
    """
    sentences = []
    for deep in (True, False):
        chosen = [run for run in runs if run["deep"] is deep]
        if not chosen:
            continue
        backends: dict[tuple[int, ...], list[str]] = {}
        for backend in dict.fromkeys(run["backend"] for run in chosen):
            seeds = tuple(run["seed"] for run in chosen if run["backend"] == backend)
            backends.setdefault(seeds, []).append(backend)
        where = "; ".join(
            f"on {', '.join(names)} with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            for seeds, names in backends.items()
        )
        differ = sorted({name for run in chosen for name in run["differ"]})
        verdicts = f"verdicts NOT as recorded: {', '.join(differ)}" if differ else "all verdicts as recorded"
        count = f"{len(chosen)} {'run' if len(chosen) == 1 else 'runs'}"
        claims, dates = (_range(run[name] for run in chosen) for name in ("claims", "date"))
        revisions = dict.fromkeys(f"revision {run['revision']}" for run in chosen if run.get("revision"))
        effort = " with ten times the examples" if deep else ""
        when = ", ".join([dates, *revisions])
        sentences.append(f"On record: {count} of all {claims} claims{effort}, {where}: {verdicts} ({when})")
    return sentences


def _range(values: Iterable[Any]) -> str:
    found = sorted(set(values))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else str(found[0])
