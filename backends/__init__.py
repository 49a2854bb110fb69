"""Array backends: selection, random numbers and compiled kernels.

Select a backend with the environment variable PHIBALL_BACKEND (numba by default), with
`set_backend`, or for a block with `with backend(name)`; `BACKENDS` lists the names. Results are arrays of the
arguments' library; the backend determines where new arrays are created and which compiled kernels run. The
other names of this package are for developers: array operations that the Array API standard lacks.
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
from phiball.backends.selection import BACKENDS, Backend, active, backend, kernel, kernel_memory, set_backend

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
