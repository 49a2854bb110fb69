"""Adversarially robust learning with phi-divergence regularisation.

The public names of `phiball.refimpl`, with `rng` and `input_gradient` of `phiball.backends`, are loaded on
first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

_FROM_BACKENDS = ("input_gradient", "rng")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("phiball")
    if name in _FROM_BACKENDS:
        return getattr(import_module("phiball.backends"), name)
    reference = import_module("phiball.refimpl")
    if name in reference.__all__:
        return getattr(reference, name)
    raise AttributeError(f"module 'phiball' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_FROM_BACKENDS, *import_module("phiball.refimpl").__all__, "__version__"]
