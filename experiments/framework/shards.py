"""Split the tasks of a run over machines, and merge the folders of their results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from phiball.backends.files import read_json, write_text_atomic
from phiball.experiments.framework.compute import read_files, write_files


@dataclass(frozen=True)
class Shard:
    """The k-th of n parts of a run, counted from 1.

    >>> Shard.parse("2/4")
    Shard(k=2, n=4)
    >>> Shard(1, 2).choose([5.0, 1.0, 1.0, 3.0])
    [0]
    """

    k: int
    n: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Parse a shard such as 2/4, or raise ValueError."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"shard is {text!r}; expected k/n with k from 1 to n, such as 2/4")
        return Shard(int(match[1]), int(match[2]))

    def choose(self, works: list[float]) -> list[int]:
        """The indices of this shard's tasks, given the work of all tasks.

        Tasks are assigned in order of decreasing work, each to the shard with the least work so far.
        """
        loads, chosen = [0.0] * self.n, []
        for index in sorted(range(len(works)), key=lambda k: -works[k]):
            owner = min(range(self.n), key=loads.__getitem__)
            loads[owner] += works[index]
            if owner == self.k - 1:
                chosen.append(index)
        return sorted(chosen)


def copy_rows(folder: Path, out: Path) -> None:
    """Copy rows and their tasks' files from `folder` to `out`; a row that is in both must be equal."""
    for file in sorted((folder / "rows").glob("*.json")):
        row, copy = read_json(file), out / "rows" / file.name
        if copy.exists():
            existing = read_json(copy)  # compared as text, where NaN equals NaN
            if json.dumps([existing["task"], existing["row"]]) != json.dumps([row["task"], row["row"]]):
                raise ValueError(f"{file} and {copy} differ; expected the same row")
            continue
        write_files(out / "tasks" / file.stem, read_files(folder / "tasks" / file.stem))
        write_text_atomic(copy, json.dumps(row, allow_nan=True) + "\n")
