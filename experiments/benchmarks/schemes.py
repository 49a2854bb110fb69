"""Ways to draw points of a ball, as options of `Ball.sample` and `Uniform`."""

from __future__ import annotations

from importlib.util import find_spec

SCHEMES = {
    "plain": {"antithetic": False, "qmc": False},
    "antithetic": {"antithetic": True, "qmc": False},
    "Sobol": {"antithetic": False, "qmc": True},
    "antithetic Sobol": {"antithetic": True, "qmc": True},
}


def installed_schemes() -> list[str]:
    """Return the names of the schemes that this installation has: Sobol points need scipy."""
    scipy = find_spec("scipy") is not None
    return [name for name, options in SCHEMES.items() if scipy or not options["qmc"]]
