"""Runs that are split over machines: which tasks are whose, and how their folders become one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from phiball.backends.files import read_json, write_whole
from phiball.experiments.framework.compute import read_files, write_files


@dataclass(frozen=True)
class Shard:
    """The k-th of n parts of a run, k from 1.

    >>> Shard.parse("2/4")
    Shard(k=2, n=4)
    >>> Shard(1, 2).choose([5.0, 1.0, 1.0, 3.0])
    [0]
    """

    k: int
    n: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read a shard such as 2/4; raise ValueError for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"shard is {text!r}; expected k/n with k from 1 to n, such as 2/4")
        return Shard(int(match[1]), int(match[2]))

    def choose(self, works: list[float]) -> list[int]:
        """Return the indices of the tasks of this shard: the longest first, each to the least loaded."""
        loads, chosen = [0.0] * self.n, []
        for index in sorted(range(len(works)), key=lambda k: -works[k]):
            owner = min(range(self.n), key=loads.__getitem__)
            loads[owner] += works[index]
            if owner == self.k - 1:
                chosen.append(index)
        return sorted(chosen)


def join(folder: Path, out: Path) -> None:
    """Take over the rows of another folder of the same run; rows that both have must be equal."""
    for file in sorted((folder / "rows").glob("*.json")):
        row, there = read_json(file), out / "rows" / file.name
        if there.exists():
            ours = read_json(there)  # compared as text, in which NaN equals NaN
            if json.dumps([ours["task"], ours["row"]]) != json.dumps([row["task"], row["row"]]):
                raise ValueError(f"{file} and {there} differ; expected the same row")
            continue
        write_files(out / "tasks" / file.stem, read_files(folder / "tasks" / file.stem))
        write_whole(there, json.dumps(row, allow_nan=True) + "\n")
