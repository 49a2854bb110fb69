"""Array backends: their selection, random numbers and compiled kernels.

Set the environment variable PHIBALL_BACKEND to numpy, numba (the default), torch or cupy, call `set_backend`,
or select a backend for a block with `with backend(name)`. Results are arrays of the library of the arguments;
the backend determines where new arrays are created and which compiled kernels run. The other names are array
operations that the Array API standard lacks, for developers.
"""

from phiball.backends.arrays import (
    Array,
    array_namespace,
    detach,
    device,
    ignore_float_warnings,
    is_abstract,
    is_array_api_obj,
    is_half,
    is_jax,
    is_torch,
    iterate,
    library,
    to_numpy,
    to_single,
)
from phiball.backends.autograd import (
    backward,
    differentiable_solve,
    differentiates,
    input_gradient,
    is_traced,
    losses_and_gradient,
    tracks_derivatives,
    weighted_sum,
    without_gradient,
)
from phiball.backends.numba.threads import threads
from phiball.backends.qmc import gamma_quantile
from phiball.backends.random import Rng, as_rng, rng
from phiball.backends.selection import (
    BACKENDS,
    Backend,
    active,
    backend,
    kernel,
    kernel_memory,
    set_backend,
)

__all__ = [
    "BACKENDS",
    "Array",
    "Backend",
    "Rng",
    "active",
    "array_namespace",
    "as_rng",
    "backend",
    "backward",
    "detach",
    "device",
    "differentiable_solve",
    "differentiates",
    "gamma_quantile",
    "ignore_float_warnings",
    "input_gradient",
    "is_abstract",
    "is_array_api_obj",
    "is_half",
    "is_jax",
    "is_torch",
    "is_traced",
    "iterate",
    "kernel",
    "kernel_memory",
    "library",
    "losses_and_gradient",
    "rng",
    "set_backend",
    "threads",
    "to_numpy",
    "to_single",
    "tracks_derivatives",
    "weighted_sum",
    "without_gradient",
]
