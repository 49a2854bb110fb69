"""The parameters of a study: a dataclass, called its Config, whose fields become command-line options."""

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
    minimum: float | None = None,
    maximum: float = inf,
    affects_results: bool = True,
) -> Any:
    """A field of a Config, with the paper's value as default, a help text and the allowed choices.

    - `minimum`, `maximum`: bounds of a number. By default integers are at least 1, and floats positive.
    - `affects_results`: False for settings such as a folder, which are not recorded and may differ when a run
      is resumed.
    """
    bounds = {"minimum": minimum, "maximum": maximum}
    metadata = {"help": text, "choices": tuple(choices), **bounds, "affects_results": affects_results}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class StudyConfig:
    """The base class of a study's Config; it validates every field."""

    def __post_init__(self) -> None:
        for item in fields(self):
            _validate(item, getattr(self, item.name))


def _validate(item: Field[Any], value: Any) -> None:
    """Raise ValueError unless a value is one of the choices, or a number within the bounds."""
    name, several, kind = item.name, isinstance(item.default, tuple), kind_of(item)
    choices, minimum, maximum = (item.metadata[key] for key in ("choices", "minimum", "maximum"))
    values = value if several else (value,)
    if several and not (isinstance(value, tuple) and value):
        raise ValueError(f"{name} is {value!r}; expected a tuple")
    if choices and len(set(values)) < len(values):
        raise ValueError(f"{name} is {value!r}; expected distinct values")
    for one in values:
        if choices and one not in choices:
            some = "some" if several else "one"
            raise ValueError(f"{name} is {one!r}; expected {some} of {', '.join(choices)}")
        if kind is int:
            valid_count(name, one, 1 if minimum is None else minimum)
        elif kind is float:
            least = None if minimum == -inf else minimum
            valid_number(name, one, above=0 if minimum is None else None, least=least)
        if kind is not str and one > maximum:
            raise ValueError(f"{name} is {one!r}; expected at most {maximum:g}")


def kind_of(item: Field[Any]) -> type:
    """The type of a field's value, or of its elements."""
    return type(item.default[0] if isinstance(item.default, tuple) else item.default)


def result_settings(config: Any) -> dict[str, Any]:
    """The fields of a Config that affect results, by name."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.metadata["affects_results"]}
