"""The LaTeX source of the paper, if the environment variable PHIBALL_PAPER names it."""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

_GAP = ".{0,4000}?"  # characters between two pieces of one quotation


@cache
def source() -> str | None:
    """The LaTeX source that the environment variable PHIBALL_PAPER names, without comments."""
    path = os.environ.get("PHIBALL_PAPER", "")
    return re.sub(r"(?<!\\)%.*", "", Path(path).read_text(encoding="utf-8")) if path else None


def digest() -> str:
    """The SHA-256 of that source, as it lies on the disk."""
    return sha256(Path(os.environ["PHIBALL_PAPER"]).read_bytes()).hexdigest()


def bare(tex: str) -> str:
    """LaTeX without what is not seen: spaces, labels, the signs that open and close mathematics."""
    return re.sub(r"\\label\{[^{}]*\}|\\\[|\\\]|[$&~\s]", "", tex)


def is_quoted(quote: str, tex: str) -> bool:
    """Whether every piece of the quotation stands in the text, in their order and close to one another."""
    pieces = [bare(piece) for piece in quote.split("[...]")]
    return all(pieces) and re.search(_GAP.join(map(re.escape, pieces)), bare(tex)) is not None
