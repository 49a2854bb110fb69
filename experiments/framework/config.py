"""The fields of a study's Config, each an option of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any


def option(default: Any, text: str, choices: Sequence[str] = (), *, affects_results: bool = True) -> Any:
    """Return a field of a Config: its default, which is the paper's value, its help text and its choices.

    A setting that does not affect results, such as a folder, may differ when a run is resumed, and is not
    recorded with it.
    """
    metadata = {"help": text, "choices": tuple(choices), "affects_results": affects_results}
    return field(default=default, metadata=metadata)


def result_settings(config: Any) -> dict[str, Any]:
    """Return the fields of a Config that results depend on, by name."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.metadata["affects_results"]}
