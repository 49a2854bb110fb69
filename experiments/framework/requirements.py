"""Imports of optional packages, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def missing_package_message(user: str, package: str, extra: str) -> str:
    """The message that a feature `user`, such as "the data set digits", needs a package of an extra."""
    return f"{user} needs {package}, which is not installed: pip install 'phiball[{extra}]'"


def require(module: str, *, user: str, extra: str, package: str | None = None) -> Any:
    """Import a module, or raise an ImportError that says how to install it.

    - `user`: the feature that needs the module, as named in the message.
    - `extra`: the extra of phiball that installs the module.
    - `package`: the name of the package, if it differs from the module's.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(missing_package_message(user, package or module, extra), name=module) from error
