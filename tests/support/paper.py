"""The LaTeX source of the paper, if the environment variable PHIBALL_PAPER names it."""

import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

_GAP = ".{0,4000}?"  # text between two pieces of a quotation


@cache
def source() -> str | None:
    """Return the LaTeX source that PHIBALL_PAPER names, without comments."""
    path = os.environ.get("PHIBALL_PAPER", "")
    return re.sub(r"(?<!\\)%.*", "", Path(path).read_text(encoding="utf-8")) if path else None


def digest() -> str:
    """Return the SHA-256 of the source file."""
    return sha256(Path(os.environ["PHIBALL_PAPER"]).read_bytes()).hexdigest()


def bare(tex: str) -> str:
    """Remove spaces, labels and math delimiters from LaTeX."""
    return re.sub(r"\\label\{[^{}]*\}|\\\[|\\\]|[$&~\s]", "", tex)


def is_quoted(quote: str, tex: str) -> bool:
    """Return whether `tex` contains the pieces of the quotation, separated by [...], in order and close."""
    pieces = [bare(piece) for piece in quote.split("[...]")]
    return all(pieces) and re.search(_GAP.join(map(re.escape, pieces)), bare(tex)) is not None
