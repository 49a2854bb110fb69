"""The files that the folder of a run keeps: read with care, under a lock that keeps other runs out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phiball.backends.files import lock, read_json
from phiball.experiments.framework.tasks import Task

NEW_FOLDER = "take another folder (--out), or begin anew (--resume none)"


def read_object(file: Path, kinds: dict[str, type], remedy: str = NEW_FOLDER) -> dict[str, Any]:
    """Read a JSON object; raise ValueError unless it is complete and has these names, of these kinds."""
    try:
        content = read_json(file)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(n), k) for n, k in kinds.items()):
        raise ValueError(f"{file} is damaged (expected {', '.join(kinds)} in it); {remedy}")
    return content


def read_row(file: Path) -> dict[str, Any]:
    """Read the file of a row; raise ValueError unless it holds a task and its row."""
    remedy = "delete it, and it is computed again"
    content = read_object(file, {"task": dict, "row": dict}, remedy)
    if not content["row"]:
        raise ValueError(f"{file} is damaged (its row is empty); {remedy}")
    return content


def slug(task: Task) -> str:
    """Return a part of a file's name that tells a reader which task it is of."""
    words = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep other runs out of a folder: two would write the same files."""
    with (out / ".lock").open("w", encoding="utf-8") as stream:
        try:
            lock(stream)
        except BlockingIOError:
            raise ValueError(
                f"another run is at work in {out}; expected to be alone, or another folder (--out)"
            ) from None
        yield
