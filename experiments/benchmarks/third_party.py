"""Other libraries, which are optional."""

from __future__ import annotations

from importlib import import_module
from typing import Any

HINT = "{0} cannot be imported: pip install --no-deps {0}, and the packages it imports, adds it to the table"


def optional_module(name: str) -> Any | None:
    """Return a module, or None if it cannot be imported."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError):  # a torchvision for another torch raises RuntimeError
        return None
