"""The parameters of a study: each field is an option of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from typing import Any

from phiball.refimpl.validation import valid_count, valid_number


def option(
    default: Any,
    text: str,
    choices: Sequence[str] = (),
    *,
    least: float | None = None,
    most: float = inf,
    affects_results: bool = True,
) -> Any:
    """Return a field of a Config: its default, which is the paper's value, its help text and its choices.

    - `least`, `most`: bounds of a number. By default a whole number is at least 1, another one positive.
    - `affects_results`: a setting that does not, such as a folder, may differ when a run is resumed, and is
      not recorded with it.
    """
    bounds = {"least": least, "most": most}
    metadata = {"help": text, "choices": tuple(choices), **bounds, "affects_results": affects_results}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class StudyConfig:
    """The base of a study's Config: it validates every field against its option."""

    def __post_init__(self) -> None:
        for item in fields(self):
            _validate(item, getattr(self, item.name))


def _validate(item: Field[Any], value: Any) -> None:
    name, choices = item.name, item.metadata["choices"]
    default: Any = item.default
    several = isinstance(default, tuple)
    kind = type(default[0]) if several else type(default)
    values = value if several else (value,)
    filled = isinstance(values, tuple) and len(values) > 0
    if choices:
        if not (filled and all(word in choices for word in values) and len(set(values)) == len(values)):
            expected = "a tuple of some of" if several else "one of"
            raise ValueError(f"{name} is {value!r}; expected {expected} {', '.join(choices)}")
    elif not filled:
        raise ValueError(f"{name} is {value!r}; expected a tuple of {'words' if kind is str else 'numbers'}")
    elif kind is not str:
        for number in values:
            _validate_number(item, kind, number)


def _validate_number(item: Field[Any], kind: type, number: Any) -> None:
    name, least, most = item.name, item.metadata["least"], item.metadata["most"]
    if kind is int:
        valid_count(name, number, 1 if least is None else least)
    else:
        valid_number(name, number, above=0 if least is None else None, least=None if least == -inf else least)
    if number > most:
        raise ValueError(f"{name} is {number!r}; expected at most {most:g}")


def result_settings(config: Any) -> dict[str, Any]:
    """Return the fields of a Config that results depend on, by name."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.metadata["affects_results"]}
