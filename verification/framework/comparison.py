"""Numbers printed in a paper, beside the numbers of a study that repeats the experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """A paper's results of one experiment, beside the results of a study.

    Arguments:
    - `item`: the section or table of the paper, such as Section 6.2.
    - `title`: the subject of the experiment.
    - `head`, `rows`: a table of the paper's results and ours, with intervals.
    - `configuration`: how our numbers were computed.
    - `command`: the command that prints them.
    - `left_open`: settings that the paper does not give, and our choices.
    - `figure`, `caption`: the main figure as PNG and its caption; empty without a figure.

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
