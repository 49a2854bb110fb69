"""Numbers that a paper prints, beside those of a study that repeats its experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """What a paper says of one experiment, beside what a study finds.

    Arguments:
    - `item`: where the paper says it, such as Section 6.2; `title`: what it is about.
    - `head`, `rows`: a table of what the paper says and what we find, with intervals.
    - `configuration`: how our numbers were computed; `command`: what prints them.
    - `left_open`: what the paper does not say, and what was chosen for it.
    - `figure`: the main figure as PNG, `caption` what it shows; empty where there is none.

    >>> Comparison("Table 1", "Returns", ("", "paper", "ours"), (("first", "3", "3.1 ± 0.2"),)).item
    'Table 1'
    """

    item: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    configuration: str = ""
    command: str = ""
    left_open: str = ""
    caption: str = ""
    figure: bytes = b""
