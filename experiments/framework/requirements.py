"""Optional packages: one message that says which extra of phiball installs a package that is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def missing_package_message(user: str, package: str, extra: str) -> str:
    """Return the message that `user` (for instance "the data set digits") needs a package of an extra."""
    return f"{user} needs {package}, which is not installed: pip install 'phiball[{extra}]'"


def require(module: str, *, user: str, extra: str, package: str | None = None) -> Any:
    """Import and return a module, or raise an ImportError that says how to install it.

    - `user`: what needs the module, for the message.
    - `extra`: the extra of phiball that installs it.
    - `package`: the name to install it by, where that is not the name of the module.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(missing_package_message(user, package or module, extra), name=module) from error
