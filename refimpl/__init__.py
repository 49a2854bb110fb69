"""The mathematics of phi-divergence regularized adversarial learning, one file per concept.

Functions take arrays of NumPy, torch or CuPy, in float32 or float64, and return arrays of the same library,
dtype and device. They are batched over leading axes and never modify an argument. In shapes, N is the number
of data points and "event" the shape of one: (N,) + event is (N, d) for vectors, (N, 3, 32, 32) for images.

Losses are functions loss(x, i) of points x (k,) + event and the index i (k,) of the data point of each;
`pointwise_loss` makes one from a model. `rng` is a seed, a generator of NumPy or torch, an `Rng`, or None for
fresh entropy. An invalid argument raises ValueError or TypeError with a message that names it.

Results are frozen dataclasses that print in one line; each type is importable from where its function is, for
example `phiball.WorstCase` or `phiball.linear.LinearModel`. "Claim D12" in a docstring is a claim of
`phiball.verification`; equations are named by their labels in the source of the paper.
"""

import ast
from importlib import import_module
from pkgutil import get_data

# Names are imported on first use, so that `import phiball` is fast; type checkers read the same stub.
_STUB = ast.parse(get_data(__name__, "__init__.pyi") or b"")
_MODULES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = next(ast.literal_eval(node.value) for node in _STUB.body if isinstance(node, ast.Assign))


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
