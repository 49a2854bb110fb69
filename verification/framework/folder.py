"""Claims on another paper, from a folder of Python files outside the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from phiball.verification.framework.claim import Claim
from phiball.verification.framework.paper import Paper


def load_claims(folder: Path) -> list[Claim]:
    """The claims in the files of a folder: by section, and in each as they stand in the files.

    The files are imported as if a script in that folder imported them, so that they can import each other.
    ValueError if there is none.
    """
    claims = [value for value in _values(folder) if isinstance(value, Claim)]
    if not claims:
        raise ValueError(f"claims is {str(folder)!r}, whose files (*.py) define no claim")
    sections = list(load_paper(folder).sections)

    def place(claim: Claim) -> int:
        return sections.index(claim.section) if claim.section in sections else len(sections)

    return sorted({id(claim): claim for claim in claims}.values(), key=place)


def load_paper(folder: Path) -> Paper:
    """The `Paper` that a file of the folder defines, or one that is named after the folder."""
    papers = [value for value in _values(folder) if isinstance(value, Paper)]
    return papers[0] if papers else Paper(folder.resolve().name)


def _values(folder: Path) -> list[object]:
    """What the files of the folder define, file by file."""
    if not folder.is_dir():
        raise ValueError(f"claims is {str(folder)!r}; expected a folder of Python files with claims")
    home = str(folder.resolve())
    if home not in sys.path:
        sys.path.insert(0, home)
    values: list[object] = []
    for file in sorted(Path(home).glob("*.py")):
        try:
            module = import_module(file.stem)
        except Exception as error:
            raise ValueError(
                f"claims is {str(folder)!r}, where {file.name} fails: {type(error).__name__}: {error}"
            ) from error
        if Path(module.__file__ or "").resolve() != file:
            raise ValueError(
                f"claims is {str(folder)!r}, where {file.name} has the name of another module; expected "
                "another name"
            )
        values += vars(module).values()
    return values
