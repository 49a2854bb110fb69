"""The fields of a study's Config, each an option of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any


def option(default: Any, text: str, choices: Sequence[str] = (), *, counts: bool = True) -> Any:
    """A field of a Config: its value at the scale `paper`, what it is, and the words that it may be.

    What does not count (where files lie) may differ when a run goes on, and is not recorded with it.
    """
    return field(default=default, metadata={"help": text, "choices": tuple(choices), "counts": counts})


def counting(config: Any) -> dict[str, Any]:
    """The fields of a Config that results depend on."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.metadata.get("counts", True)}
