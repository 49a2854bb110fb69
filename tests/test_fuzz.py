"""Random inputs of the public functions give a correct result or a one-line error.

Results are checked in extended precision. `make fuzz` draws many inputs, `make test` a few.
"""

import warnings
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phiball
from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, cressie_read, indicator
from phiball.backends import array_namespace, backend, to_numpy
from tests.support.extended_precision import (
    AVAILABLE,
    LAYOUTS,
    LONG,
    Problem,
    budget_failures,
    failures,
    value,
)

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no extended precision on this machine")
DIVERGENCES = [
    ENTROPIC, QUADRATIC, ABSOLUTE, HINGE,
    *map(indicator, (1e-3, 0.3, 0.75, 1.0)),
    *map(cressie_read, (-3.0, -1.0, 0.0, 0.5, 1.5, 2.0, 3.0, 10.0)),
]  # fmt: skip
BACKENDS = st.sampled_from(["numba", "numba", "numpy"])


# --- Batches of valid inner problems ----------------------------------------------------------------


def batch(seed: int, dtype: Any) -> tuple[Any, Any, Any]:
    """(losses, eta, p) of random length, scale, offset and layout, with ties and zero probabilities."""
    r = np.random.default_rng(seed)
    m = int(r.choice([1, 2, 3, 5, 8, 16, 17, 33, 64, 200, 3000]))
    n = max(1, 4_000 // max(m, 4))
    largest = 30.0 if dtype is np.float32 else 290.0
    scale = 10.0 ** (r.uniform(-largest, largest, (n, 1)) if r.random() < 0.15 else r.uniform(-6, 6, (n, 1)))
    f = r.choice([r.normal, r.random, r.standard_exponential])(size=(n, m)) * scale
    f = np.where(r.random((n, 1)) < 0.2, np.round(f / scale) * scale, f)
    f = f + r.choice([0.0, 0.0, 0.0, 1.0, -1e3, 1e6], size=(n, 1)) * scale
    eta = scale[:, 0] * 10.0 ** r.choice([r.uniform(-3, 3, n), r.uniform(-8, 12, n)])
    limits = np.finfo(dtype)
    if r.random() < 0.2:  # near the ends of the exponent range, losses and eta independently
        low, high = np.log10(float(limits.smallest_subnormal)), np.log10(float(limits.max)) - 2
        ends = np.where(
            r.random((2, n)) < 0.5, r.uniform(low, low + 20, (2, n)), r.uniform(high - 20, high, (2, n))
        )
        f, eta = f / scale / max(1.0, np.abs(f / scale).max()) * 10.0 ** ends[0][:, None], 10.0 ** ends[1]
    eta = np.clip(eta, limits.smallest_normal, limits.max / 4).astype(dtype)
    move = list(LAYOUTS.values())[r.integers(len(LAYOUTS))]
    p = None
    if r.random() < 0.5:
        p = r.random((n, m)) ** r.choice([1, 1, 4, 12])
        p = np.where(r.random((n, m)) < r.choice([0.0, 0.3]), 0.0, p)
        p[:, 0] += 1e-3
        p = move((p / p.sum(axis=-1, keepdims=True)).astype(dtype))
    return move(f.astype(dtype)), eta, p


def check_batch(f: Any, eta: Any, p: Any, divergence: Any, solve: Any) -> list[str]:
    """The failed checks of a solver on a batch; the solver may raise if losses / eta overflows."""
    before = f.tobytes(), eta.tobytes()
    try:
        out = solve(f, eta, divergence, p=p)
    except ValueError:
        with np.errstate(over="ignore"):
            return [] if np.any(np.isinf(np.ptp(f, axis=-1) / eta)) else ["rejected"]
    if before != (f.tobytes(), eta.tobytes()):
        return ["modified its arguments"]
    return failures(Problem.of(f, eta, p, divergence), vars(out))


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(DIVERGENCES),
    st.sampled_from([np.float64, np.float32]),
    BACKENDS,
)
def test_random_batches_are_solved(seed: int, divergence: Any, dtype: Any, backend_name: str) -> None:
    with backend(backend_name):
        assert check_batch(*batch(seed, dtype), divergence, phiball.worst_case) == []


@pytest.mark.parametrize(
    ("wrong", "failure"),
    [
        (lambda out: replace(out, value=out.value * (1 + 1e-11)), "value"),
        (lambda out: replace(out, weights=out.weights * 0), "weights"),
        (lambda out: replace(out, gap=out.gap * np.nan), "not finite"),
        (lambda out: replace(out, gap=out.gap + 1e-9), "gap"),
        (lambda out: replace(out, mu=out.mu + 1), "dual"),
    ],
)
def test_wrong_solutions_are_detected(wrong: Any, failure: str) -> None:
    f = np.array([[0.0, 0.5, 1.0]])
    found = check_batch(
        f, np.array([1.0]), None, QUADRATIC, lambda *a, **k: wrong(phiball.worst_case(*a, **k))
    )
    assert failure in found


# --- Arguments of any type ----------------------------------------------------------------------------


KINDS = ["numpy"] * 6 + ["torch"] * 4 + ["strict", "list", "pandas", "meta", "sparse", "masked", "scalar"]
DTYPES = (
    ["float64"] * 6
    + ["float32"] * 4
    + ["float16", "bfloat16", "int64", "int8", "bool", "complex128", "object"]
)
SHAPES = [(1,), (2,), (3,), (5,), (17,), (2, 3), (3, 3), (1, 4), (2, 2, 3), (0,), (), (0, 3), (3, 0)]
NUMBERS = st.one_of(
    st.floats(-10, 10, width=16),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e-310, 1e-45, 1e308, -1e308, 1.7e308, 3e38, 65504.0]),
)
ANY_NUMBERS = st.one_of(NUMBERS, st.floats())
ETAS = st.one_of(
    st.floats(1e-6, 1e6),
    st.sampled_from([1.0, 3, 1e-3, 1e6, 1e-300, 1e300, 2.3e-308, 1.7e308]),
    st.sampled_from([0, -1.0, 5e-324, float("nan"), inf, "1", None, True, 1j, [1.0]]),
)  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """Nested lists of numbers, and the kind of array to make from them."""

    kind: str
    dtype: str
    layout: str
    values: Any

    def numbers(self) -> Any:
        """The values as a NumPy array."""
        with np.errstate(all="ignore"):
            x = np.array(self.values, dtype=float)
            dtype = "float32" if self.dtype == "bfloat16" else self.dtype
            x = np.asarray(x > 0 if dtype == "bool" else x.astype(dtype))
        return LAYOUTS[self.layout](x) if x.ndim and x.size else x

    def make(self) -> Any:
        """The array, list, frame or scalar."""
        x = self.numbers()
        if self.kind in ("torch", "meta", "sparse") and x.dtype != object:
            import torch

            t = torch.from_numpy(np.array(x))
            t = t.to(torch.bfloat16) if self.dtype == "bfloat16" else t
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that sparse tensors are in beta
                return {"torch": lambda: t, "meta": lambda: t.to("meta"), "sparse": t.to_sparse}[self.kind]()
        if self.kind == "list":
            return x.tolist()
        if self.kind == "masked":
            return np.ma.masked_array(x)
        if self.kind == "scalar":
            return x.reshape(-1)[0] if x.size else 0.5
        if self.kind == "pandas":
            pandas = pytest.importorskip("pandas")
            return pandas.Series(x) if x.ndim == 1 else pandas.DataFrame(x) if x.ndim == 2 else x
        if self.kind == "strict" and x.dtype.name in ("float64", "float32", "int64"):
            return pytest.importorskip("array_api_strict").asarray(x)
        return x


@st.composite
def arguments(draw: Any, shape: Any = None) -> Argument:
    """An array-like argument, which in most cases consists of finite floating-point numbers."""
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    dtype, n = draw(st.sampled_from(DTYPES)), int(np.prod(shape))
    elements = draw(st.sampled_from([NUMBERS, NUMBERS, ANY_NUMBERS]))
    values = draw(st.lists(elements, min_size=n, max_size=n))
    if dtype in ("int64", "int8", "object"):
        values = [v if abs(v) < 100 else 1.0 for v in values]
    layout = draw(st.sampled_from(list(LAYOUTS)))
    return Argument(draw(st.sampled_from(KINDS)), dtype, layout, np.reshape(values, shape).tolist())


@st.composite
def arguments_with_p(draw: Any) -> tuple[Argument, Argument | None]:
    """Losses, and None or an argument p, which in most cases is a distribution of the losses' shape."""
    f = draw(arguments())
    if draw(st.booleans()):
        return f, None
    if draw(st.integers(0, 5)) == 0:
        return f, draw(arguments())
    shape = np.shape(f.values)
    x = np.reshape(
        draw(st.lists(st.floats(0, 1, width=16), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))),
        shape,
    )
    if shape and x.size:
        total = x.sum(axis=-1, keepdims=True)
        x = np.where(total > 1e-3, x / np.maximum(total, 1e-3), 1 / shape[-1])
    return f, replace(f, values=x.tolist())


def snapshot(x: Any) -> Any:
    if type(x).__module__.partition(".")[0] == "torch":
        return None if x.is_meta or x.is_sparse else repr(x.detach().reshape(-1).tolist())
    return np.asarray(x).tobytes() if hasattr(x, "shape") and np.asarray(x).dtype != object else repr(x)


def result_or_error(work: Any, backend_name: str, *given: Any) -> Any:
    """The result of `work`, or None if it raises a ValueError or TypeError of one line."""
    before, message = [snapshot(x) for x in given], "none"
    with backend(backend_name), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            out = work()
        except (ValueError, TypeError) as error:
            message, out = str(error).strip(), None
    assert len(message.splitlines()) == 1
    assert before == [snapshot(x) for x in given], "an argument was modified"
    return out


@given(
    st.sampled_from(["worst_case", "worst_case", "budget", "dual_value", "bisection"]),
    st.sampled_from(DIVERGENCES), arguments_with_p(), ETAS, BACKENDS,
)  # fmt: skip
def test_inner_problem_with_any_arguments_is_solved_or_raises(
    name: str, divergence: Any, arrays: tuple[Argument, Argument | None], eta: Any, backend_name: str
) -> None:
    f, p = arrays
    x, reference = f.make(), None if p is None else p.make()
    if name == "dual_value":
        dual_value = phiball.inner.dual_value
        out = result_or_error(
            lambda: dual_value(x, 0.5, eta, divergence, p=reference), backend_name, x, reference
        )
    else:
        solve = phiball.bisection if name == "bisection" else phiball.worst_case
        options = {"tol": 1e-2} if name == "bisection" else {}
        options |= {"budget" if name == "budget" else "eta": eta}
        out = result_or_error(
            lambda: solve(x, divergence=divergence, p=reference, **options), backend_name, x, reference
        )
    if out is None or f.dtype not in ("float32", "float64"):
        return
    rows = to_numpy(x)
    if not rows.size:
        return
    reference = (
        None if p is None else np.broadcast_to(to_numpy(reference), rows.shape).reshape(-1, rows.shape[-1])
    )
    rows = rows.reshape(-1, rows.shape[-1])
    fields = {"value": out} if name == "dual_value" else vars(out)
    got = {k: np.reshape(to_numpy(v), rows.shape if k == "weights" else -1) for k, v in fields.items()}
    if name == "budget":
        price = np.where(got["eta"] > 0, got["eta"], 1)
        budget = np.broadcast_to(np.asarray(eta, dtype=rows.dtype), len(rows))
        assert budget_failures(Problem.of(rows, price, reference, divergence), budget, got) == []
        return
    problem = Problem.of(rows, eta, reference, divergence)
    if name == "worst_case":
        assert failures(problem, got) == []
        return
    with np.errstate(all="ignore"):
        exact = value(problem)
        slack = 2 * problem.rounding + problem.eps + (np.abs(got["gap"]) if "gap" in got else 0)
        assert not np.any(np.isnan(got["value"]))
        below = np.isfinite(exact) & (got["value"].astype(LONG) < exact - slack)
    assert not np.any(below)


# --- Points: balls, attacks, projections and risks --------------------------------------------------


METHODS = ["length", "dual_norm", "project", "steepest", "variance", "log_mgf", "sample", "sample_tilted"]
METHODS += ["white_noise", "fgm", "pgm", "onto_simplex", "robust_risk", "adversarial_risk", "RegularizedLoss"]
BALLS = st.tuples(
    st.sampled_from([1, 2, inf, 2, inf, 1.5, 4]),
    st.one_of(
        st.floats(0, 10, width=16),
        st.sampled_from([0.0, 3, 1e-3, 1e6, 1e-300, 1e-310, 1e30, 1e200, 1.7e308, -1.0, inf, "1", None]),
    ),
    st.sampled_from([None, None, None, (-10.0, 10.0), (0, 1), (1, 0)]),
)


@st.composite
def point_arguments(draw: Any) -> tuple[Argument, Argument]:
    """Points and directions, in most cases of the same shape, dtype and library."""
    x = draw(arguments())
    if draw(st.integers(0, 4)) == 0:
        return x, draw(arguments())
    return x, replace(x, values=draw(arguments(np.shape(x.values))).values)


def call_with_points(name: str, ball: Any, x: Any, v: Any, eta: Any, divergence: Any) -> Any:
    """The first array that the named function returns for points x and slopes v of a linear loss."""
    ball = phiball.Ball(*ball)
    if name in ("robust_risk", "adversarial_risk", "RegularizedLoss") and (
        type(x) is not type(v) or not hasattr(x, "shape") or x.shape != v.shape or 0 in (x.ndim, *x.shape)
    ):
        raise ValueError("no slope for each point")

    def loss(z: Any, i: Any) -> Any:
        xp = array_namespace(z)
        with np.errstate(all="ignore"):
            return xp.sum(xp.reshape(z * xp.take(v, i, axis=0), (z.shape[0], -1)), axis=-1)

    if name in ("length", "dual_norm", "variance", "log_mgf", "steepest"):
        return getattr(ball, name)(v)
    if name == "project":
        return ball.project(v, x)
    if name == "sample":
        return ball.sample(x, 3, rng=phiball.rng(1))
    if name == "sample_tilted":
        return ball.sample_tilted(x, v, 2, rng=phiball.rng(1))[0]
    if name == "white_noise":
        return phiball.white_noise(x, ball, rng=1)
    if name == "onto_simplex":
        return phiball.optimize.onto_simplex(v)
    if name == "fgm":
        return phiball.fgm(None, x, ball, gradient=lambda z, i: v)
    if name == "pgm":
        return phiball.pgm(None, x, ball, gradient=lambda z, i: v, steps=3, rng=1)
    if name == "adversarial_risk":
        return phiball.adversarial_risk(loss, x, ball, n_samples=3, rng=phiball.rng(1)).values
    if name == "RegularizedLoss":
        return phiball.RegularizedLoss(ball, eta, divergence, phiball.SG(2))(loss, x, rng=phiball.rng(1))
    return phiball.robust_risk(loss, x, ball, eta, divergence, n_samples=4, rng=phiball.rng(1)).values


@given(st.sampled_from(METHODS), BALLS, point_arguments(), ETAS, st.sampled_from(DIVERGENCES), BACKENDS)
def test_balls_attacks_and_risks_with_any_points_are_correct_or_raise(
    name: str, ball: Any, points: tuple[Argument, Argument], eta: Any, divergence: Any, backend_name: str
) -> None:
    x, v = (argument.make() for argument in points)
    out = result_or_error(lambda: call_with_points(name, ball, x, v, eta, divergence), backend_name, x, v)
    if out is None or not {a.dtype for a in points} <= {"float32", "float64"}:
        return
    numbers = [argument.numbers() for argument in points]
    if all(np.all(np.isfinite(a)) for a in numbers):
        with np.errstate(all="ignore"):
            assert_correct_points(name, phiball.Ball(*ball), *numbers, np.asarray(to_numpy(out)))


def assert_correct_points(name: str, ball: Any, x: Any, v: Any, out: Any) -> None:
    """Compare `out`, a result of `call_with_points`, with norms and projections in extended precision."""
    eps = max(float(np.finfo(a.dtype).eps) for a in (x, v))
    limits = np.finfo(np.float32 if eps > 1e-10 else np.float64)
    slack = eps * (16 + 4 * (v.shape[-1] if v.ndim else 0))
    tiny, radius = LONG(limits.smallest_normal), LONG(ball.radius)
    got, center, slope = out.astype(LONG), x.astype(LONG), v.astype(LONG)
    assert not np.any(np.isnan(got))

    def assert_close(exact: Any, room: Any = 0.0, times: int = 1) -> None:
        overflow = np.abs(exact) > limits.max * (1 - slack)
        assert np.all((np.abs(got - exact) <= times * slack * np.abs(exact) + room + tiny) | overflow)

    dual = 1.0 if ball.norm == inf else inf if ball.norm == 1 else ball.norm / (ball.norm - 1)
    if name == "length":
        assert_close(norm(slope, ball.norm))
    elif name == "dual_norm":
        assert_close(norm(slope, dual))
    elif name == "variance":
        moment = LONG(replace(ball, radius=1.0).variance(np.eye(1, v.shape[-1])[0]))
        assert_close(radius**2 * moment * np.sum(slope * slope, axis=-1), times=8)
    elif name == "steepest":
        assert np.all(norm(got, ball.norm) <= radius * (1 + slack) + tiny)
        least = radius * norm(slope, dual) * (1 - slack) - tiny * (1 + norm(slope, 1))
        assert np.all(np.sum(got * slope, axis=-1) >= least)
    elif name == "log_mgf":
        largest_gain = radius * norm(slope, dual)
        overflow = largest_gain > LONG(limits.max) * (1 - slack)
        assert np.all(
            (got >= -slack * largest_gain - tiny) & ((got <= largest_gain * (1 + slack) + tiny) | overflow)
        )
    elif name == "onto_simplex":
        assert_close(threshold(slope, LONG(1)), room=8 * slack, times=8)
    elif name == "project":
        moved = (v - x).astype(LONG)
        inside = norm(moved, ball.norm)[..., None] <= radius
        nearest = np.where(inside, slope, center + project(moved, ball))
        nearest = nearest if ball.clip is None else np.clip(nearest, *ball.clip)
        assert_close(nearest, room=slack * (np.abs(center) + np.minimum(radius, norm(moved, inf))[..., None]))
    elif name in ("robust_risk", "adversarial_risk", "RegularizedLoss"):
        rows = (a.reshape(len(x), -1) for a in (center * slope, slope, np.abs(center * slope)))
        products, slopes, sizes = rows
        largest_gain = radius * norm(slopes, dual)
        middle, size = np.sum(products, axis=-1), np.sum(sizes, axis=-1) + largest_gain
        if name == "RegularizedLoss":
            middle, largest_gain, size = np.mean(middle), np.mean(largest_gain), np.mean(size)
        assert np.all(np.abs(got - middle) <= largest_gain + 64 * slack * size + tiny)
    else:
        if name in (
            "fgm",
            "pgm",
            "white_noise",
        ):  # for attacks, all axes but the first belong to a data point
            got, center = (a.reshape(len(a), -1) for a in (got, center))
        else:
            center = np.expand_dims(center, -2)
        room = slack * (norm(np.broadcast_to(np.abs(center), got.shape), ball.norm) + radius)
        assert np.all(norm(got - center, ball.norm) <= radius + 4 * room)


def norm(v: Any, p: float) -> Any:
    if p == inf:
        return np.max(np.abs(v), axis=-1, initial=0)
    return np.sum(np.abs(v) ** LONG(p), axis=-1) ** (1 / LONG(p))


def project(v: Any, ball: Any) -> Any:
    """The point of the ball around 0 that is nearest to v, which lies outside."""
    radius = LONG(ball.radius)
    if ball.norm == inf:
        return np.clip(v, -radius, radius)
    if ball.norm == 2:
        return v * (radius / norm(v, 2))[..., None]
    return np.sign(v) * threshold(np.abs(v), radius)


def threshold(v: Any, total: Any) -> Any:
    """max(v - t, 0), with the number t per row for which the row sums to `total`."""
    top = np.max(v, axis=-1, keepdims=True, initial=-np.inf)
    ranked = -np.sort(-(v - top), axis=-1)
    t = np.max((np.cumsum(ranked, axis=-1) - total) / np.arange(1, v.shape[-1] + 1), axis=-1, keepdims=True)
    return np.maximum(v - top - t, 0)
