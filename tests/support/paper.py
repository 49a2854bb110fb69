"""The LaTeX source of the paper, if the environment variable PHIBALL_PAPER names it."""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

ELLIPSIS = "[...]"
_NEAR = 4000  # characters between the pieces of one quotation, at most


@cache
def source() -> str | None:
    """The LaTeX source that the environment variable PHIBALL_PAPER names, without comments."""
    path = os.environ.get("PHIBALL_PAPER", "")
    return without_comments(Path(path).read_text(encoding="utf-8")) if path else None


def digest() -> str:
    """The SHA-256 of that source, as it lies on the disk."""
    return sha256(Path(os.environ["PHIBALL_PAPER"]).read_bytes()).hexdigest()


def without_comments(tex: str) -> str:
    """The source as TeX reads it, without what follows a percent sign on its line."""
    return re.sub(r"(?<!\\)%.*", "", tex)


def bare(tex: str) -> str:
    """LaTeX without what is not seen: spaces, labels, the signs that open and close mathematics."""
    return re.sub(r"\\label\{[^{}]*\}|\\\[|\\\]|[$&~\s]", "", tex)


def is_quoted(quote: str, tex: str) -> bool:
    """Whether every piece of the quotation stands in the text, in their order and close to one another."""
    text, pieces = bare(tex), [bare(piece) for piece in quote.split(ELLIPSIS)]
    if not all(pieces):
        return False
    start = text.find(pieces[0])
    while start >= 0:
        at = start
        for piece in pieces[1:]:
            at = text.find(piece, at + 1, start + _NEAR)
            if at < 0:
                break
        else:
            return True
        start = text.find(pieces[0], start + 1)
    return False
