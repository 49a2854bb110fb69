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
        """The tasks of this shard: the longest task first, each to the shard with the least work."""
        loads, chosen = [0.0] * self.n, []
        for index in sorted(range(len(works)), key=lambda k: -works[k]):
            owner = min(range(self.n), key=loads.__getitem__)
            loads[owner] += works[index]
            if owner == self.k - 1:
                chosen.append(index)
        return sorted(chosen)


def join(folder: Path, out: Path) -> None:
    """Copy the rows of another folder of the same run; rows in both folders must be equal."""
    for file in sorted((folder / "rows").glob("*.json")):
        row, there = read_json(file), out / "rows" / file.name
        if there.exists():
            ours = read_json(there)  # compared as text, where NaN equals NaN
            if json.dumps([ours["task"], ours["row"]]) != json.dumps([row["task"], row["row"]]):
                raise ValueError(f"{file} and {there} differ; expected the same row")
            continue
        write_files(out / "tasks" / file.stem, read_files(folder / "tasks" / file.stem))
        write_text_atomic(there, json.dumps(row, allow_nan=True) + "\n")
