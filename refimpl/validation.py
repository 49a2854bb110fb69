"""Argument validation."""

from __future__ import annotations

from math import isfinite
from operator import index

from phiball.backends import (
    Array,
    Rng,
    array_namespace,
    detach,
    device,
    ignore_float_warnings,
    is_abstract,
    is_array_api_obj,
    is_jax,
    kernel,
    library,
    to_numpy,
)
from phiball.refimpl.numerics import to_double, total


def valid_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    infinite: bool = False,
) -> float:
    """`value` as a float; raise unless it is a finite number greater than `above` and at least `least`.

    `infinite` allows inf. `name` is the argument's name in messages, here and below.
    """
    try:
        if isinstance(value, (bool, str, bytes, complex)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {_short(value)}; expected a number") from None
    bounded = (above is None or number > above) and (least is None or number >= least)
    if not (bounded and (isfinite(number) or (infinite and number > 0))):
        kind = "positive " if above == 0 else "" if infinite else "finite "
        bound = f" above {above:g}" if above else f" of at least {least:g}" if least else ""
        bound = " that is not negative" if least == 0 else bound
        bound += ", or inf" if infinite else ""
        raise ValueError(f"{name} is {value!r}; expected a {kind}number{bound}")
    return number


def valid_count(name: str, n: object, least: int = 1) -> int:
    """`n` as an int; raise unless it is an integer of at least `least`."""
    try:
        count = -1 if isinstance(n, bool) else index(n)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < least:
        raise ValueError(f"{name} is {_short(n)}; expected a whole number of at least {least}")
    return count


def valid_rng(rng: Rng | None) -> Rng:
    """`rng`; raise unless it is an `Rng`."""
    if not isinstance(rng, Rng):
        raise TypeError(f"rng is {rng!r}; expected an Rng, such as phiball.rng(0)")
    return rng


def check_array(name: str, x: Array) -> None:
    """Raise unless `x` is an array of real floating-point numbers."""
    if not is_array_api_obj(x):
        raise TypeError(
            f"{name} is {_short(x)}, of type {type(x).__name__}; expected an array of NumPy, torch, JAX or "
            "CuPy, for example numpy.asarray(..., dtype=float)"
        )
    if hasattr(x, "mask") and hasattr(x, "filled"):
        raise TypeError(f"{name} is a masked array; expected a plain array, with p = 0 at masked entries")
    _check_memory(name, x)
    xp = array_namespace(x)
    if x.dtype not in (xp.float32, xp.float64):
        order = "" if getattr(x.dtype, "isnative", True) else ", which is not in native byte order"
        raise TypeError(f"{name} has dtype {x.dtype}{order}; expected float32 or float64")


def _check_memory(name: str, x: Array) -> None:
    """Raise if `x` is a sparse torch tensor, or a tensor on the meta device."""
    layout = str(getattr(x, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise TypeError(f"{name} is a tensor of layout {layout}; expected a dense tensor: call to_dense()")
    if str(getattr(x, "device", "")) == "meta":
        raise TypeError(f"{name} is on the meta device, which holds no numbers; expected a tensor with data")


def check_losses(losses: Array) -> None:
    """Raise unless `losses` is a floating-point array with at least one entry per row."""
    check_array("losses", losses)
    if losses.ndim == 0 or losses.shape[-1] == 0:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}; expected at least one loss along the last axis"
        )


def holds(condition: Array) -> bool:
    """Whether every entry of `condition` is true; assumed inside jax.jit, where values are unknown."""
    return is_abstract(condition) or bool(array_namespace(condition).all(condition))


@kernel
def all_finite(x: Array) -> bool:
    """Whether every entry of `x` is finite; assumed inside jax.jit, where values are unknown."""
    if is_abstract(x):
        return True
    x = to_numpy(x) if is_jax(x) else detach(x)  # inside jax.jit, operations on constants are traced as well
    xp = array_namespace(x)
    with ignore_float_warnings():
        # A finite sum has finite terms. Only if the sum is not finite, every entry is checked.
        return isfinite(float(xp.sum(x))) or bool(xp.all(xp.isfinite(x)))


def check_finite(name: str, x: Array) -> None:
    """Raise unless every entry of `x` is finite."""
    if not all_finite(x):
        bad = _first(x, ~array_namespace(x).isfinite(x))
        raise ValueError(f"{name} contains {bad}; expected finite numbers")


def valid_eta(
    eta: float | Array,
    losses: Array,
    shape: tuple[int, ...] | None = None,
    *,
    rows: str = "losses.shape[:-1]",
) -> Array:
    """`eta` as an array of `shape`, by default losses.shape[:-1]; `rows` names the shape in messages."""
    xp = array_namespace(losses)
    shape = losses.shape[:-1] if shape is None else shape
    if not check_eta(eta, losses, shape, rows=rows):
        return xp.full(shape, float(eta), dtype=losses.dtype, device=device(losses))
    with ignore_float_warnings():
        cast = xp.astype(eta, losses.dtype, copy=False)
    check_eta_range(cast)
    return xp.broadcast_to(cast, shape)


def check_eta(
    eta: float | Array,
    losses: Array,
    shape: tuple[int, ...] | None = None,
    *,
    rows: str = "losses.shape[:-1]",
) -> bool:
    """Whether `eta` is an array; raise unless it is a valid number or an array of valid type and shape."""
    if not isinstance(eta, (int, float)) and is_array_api_obj(eta):
        _check_setting("eta", eta, losses, losses.shape[:-1] if shape is None else shape, rows)
        return True
    smallest, largest = _normal_range(losses)
    number = valid_number("eta", eta, above=0.0)
    if not smallest <= number <= largest:
        raise ValueError(
            f"eta is {eta!r}; expected a number within the range of {losses.dtype}, {smallest:.2g} to "
            f"{largest:.2g}"
        )
    return False


def check_eta_range(eta: Array) -> None:
    """Raise unless the entries of `eta` are positive, finite and not subnormal."""
    smallest, largest = _normal_range(eta)
    if not holds(eta_in_range(eta)):
        raise ValueError(
            f"eta is {_short(eta)}; expected positive, finite numbers within the range of {eta.dtype}, "
            f"{smallest:.2g} to {largest:.2g}"
        )


def eta_in_range(eta: Array) -> Array:
    """The mask of entries of `eta` that are positive normal numbers."""
    smallest, largest = _normal_range(eta)
    return (eta >= smallest) & (eta <= largest)


def _normal_range(x: Array) -> tuple[float, float]:
    """The smallest and the largest normal number of the dtype of `x`; subnormal numbers have fewer digits."""
    limits = array_namespace(x).finfo(x.dtype)
    return float(limits.smallest_normal), float(limits.max)


def valid_budget(
    budget: float | Array,
    losses: Array,
    shape: tuple[int, ...] | None = None,
    *,
    rows: str = "losses.shape[:-1]",
) -> Array:
    """`budget` as an array of `shape`, by default losses.shape[:-1]; `rows` names the shape in messages."""
    xp = array_namespace(losses)
    shape = losses.shape[:-1] if shape is None else shape
    if not check_budget(budget, losses, shape, rows=rows):
        return xp.full(shape, float(budget), dtype=losses.dtype, device=device(losses))
    with ignore_float_warnings():
        cast = xp.astype(budget, losses.dtype, copy=False)
    check_budget_range(cast)
    return xp.broadcast_to(cast, shape)


def check_budget(
    budget: float | Array,
    losses: Array,
    shape: tuple[int, ...] | None = None,
    *,
    rows: str = "losses.shape[:-1]",
) -> bool:
    """Whether `budget` is an array; raise unless it is a valid number or an array of valid type and shape."""
    if not isinstance(budget, (int, float)) and is_array_api_obj(budget):
        _check_setting("budget", budget, losses, losses.shape[:-1] if shape is None else shape, rows)
        return True
    _, largest = _normal_range(losses)
    if valid_number("budget", budget, least=0.0) > largest:
        raise ValueError(
            f"budget is {budget!r}; expected a number within the range of {losses.dtype}, up to {largest:.2g}"
        )
    return False


def check_budget_range(budget: Array) -> None:
    """Raise unless the entries of `budget` are finite and nonnegative."""
    if not holds(budget_in_range(budget)):
        raise ValueError(f"budget is {_short(budget)}; expected finite, nonnegative numbers")


def budget_in_range(budget: Array) -> Array:
    """The mask of entries of `budget` that are finite and nonnegative."""
    return (budget >= 0) & array_namespace(budget).isfinite(budget)


def _check_setting(name: str, x: Array, losses: Array, shape: tuple[int, ...], rows: str) -> None:
    """Raise unless the array `x` is of the type of `losses` and broadcasts to `shape`, named `rows`."""
    check_array(name, x)
    check_same_array_type(name, x, losses)
    if not broadcasts(x.shape, shape):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; expected a number, or a shape that broadcasts to "
            f"{rows} = {tuple(shape)}"
        )


def valid_p(p: Array | None, losses: Array) -> Array | None:
    """`p` in double precision, broadcast to the shape of `losses` and normalized; raise if it is invalid."""
    if p is None:
        return None
    check_p(p, losses)
    return array_namespace(losses).broadcast_to(double_distribution("p", p), losses.shape)


def check_p(p: Array, losses: Array) -> None:
    """Raise unless `p` has the right type and shape."""
    check_array("p", p)
    check_same_array_type("p", p, losses)
    if p.ndim == 0 or p.shape[-1] != losses.shape[-1] or not broadcasts(p.shape, losses.shape):
        raise ValueError(
            f"p has shape {tuple(p.shape)}; expected a shape that broadcasts to losses.shape = "
            f"{tuple(losses.shape)} and has the same last axis"
        )


def valid_distribution(name: str, p: Array) -> Array:
    """`p` with normalized rows; raise unless the rows are nonnegative with sums near one."""
    return array_namespace(p).astype(double_distribution(name, p), p.dtype, copy=False)


def double_distribution(name: str, p: Array) -> Array:
    """`valid_distribution` in double precision."""
    xp = array_namespace(p)
    if not holds(p >= 0):
        raise ValueError(f"{name} contains {_first(p, ~(p >= 0))}; expected nonnegative probabilities")
    wide = to_double(p)
    with ignore_float_warnings():
        sums = total(wide, keepdims=True)
    near_one = xp.abs(sums - 1) <= _sum_tolerance(p)
    if not holds(near_one):
        raise ValueError(f"{name} sums to {_first(sums, ~near_one)} along the last axis; expected 1")
    return wide / sums


def is_distribution(p: Array) -> Array:
    """Whether each row of `p` is a distribution that `valid_distribution` accepts."""
    xp = array_namespace(p)
    return xp.all(p >= 0, axis=-1) & (xp.abs(total(p) - 1) <= _sum_tolerance(p))


def _sum_tolerance(p: Array) -> float:
    """How far sums may be from one, so that distributions computed in single precision are accepted."""
    return 1e-6 if float(array_namespace(p).finfo(p.dtype).eps) < 1e-10 else 1e-4


def check_same_array_type(
    name: str, x: Array, y: Array, *, other: str = "losses", dtype: bool = False
) -> None:
    """Raise unless `x` has the library, device and, if `dtype`, the dtype of `y`, whose name is `other`."""
    try:
        array_namespace(x, y)
    except TypeError:
        raise TypeError(
            f"{name} is a {library(x)} array and {other} a {library(y)} array; expected arrays of one library"
        ) from None
    if device(x) != device(y) and not is_abstract(x) and not is_abstract(y):
        raise ValueError(f"{name} is on {device(x)} and {other} on {device(y)}; expected one device")
    if dtype and x.dtype != y.dtype:
        raise TypeError(f"{name} has dtype {x.dtype} and {other} {y.dtype}; expected one dtype")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to exactly the shape `target`."""
    if len(shape) > len(target):
        return False
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return all(n in (1, t) for n, t in pairs)


def _first(x: Array, mask: Array) -> float:
    """The first entry of x in the mask."""
    return float(array_namespace(x).reshape(x, (-1,))[array_namespace(x).reshape(mask, (-1,))][0])


def _short(x: object) -> str:
    """The repr of x in one line of at most 80 characters."""
    with ignore_float_warnings():  # pandas warns when it prints float16
        text = " ".join(repr(x).split())
    return text if len(text) <= 80 else text[:77] + "..."
