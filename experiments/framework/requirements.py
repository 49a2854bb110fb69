"""Imports of optional packages, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def missing_package_message(user: str, package: str, extra: str) -> str:
    """The error message that `user` (such as "the data set digits") needs a package of an extra."""
    return f"{user} needs {package}, which is not installed: pip install 'phiball[{extra}]'"


def require(module: str, *, user: str, extra: str, package: str | None = None) -> Any:
    """Import a module, or raise an ImportError that says how to install it.

    - `user`: the feature that needs the module, for the message.
    - `extra`: the extra of phiball that installs it.
    - `package`: the package to install, if it has another name than the module.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(missing_package_message(user, package or module, extra), name=module) from error
