"""Adapter between claims and a solver: it passes on the supported problems, and checks the answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from phiball.backends import Array, active, is_array_api_obj, to_numpy
from phiball.refimpl import Divergence, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.counterexample_search import evidence_of
from phiball.verification.framework.evidence import Curve, Evidence, Quantity
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import NAMED
from phiball.verification.instances.strategies import InnerProblem
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles.exact_solver import solve_exactly

FIELDS = ("value", "mu", "weights", "gap")
_ENTRIES = (Quantity.WEIGHTS, Quantity.MU)  # quantities that a tolerance on the value does not bound
_MAX_UNSUPPORTED = 10  # a claim is skipped if this many problems are unsupported and none was solved


class UnsupportedProblem(Exception):  # noqa: N818 - a signal, not an error
    """The claim poses a problem that the options exclude."""


class InvalidAnswer(Exception):  # noqa: N818 - a finding, not an error
    """The solver raised an error, or returned something that is not a solution."""

    def __init__(self, message: str, raised: bool = False) -> None:
        super().__init__(message)
        self.raised = raised


@dataclass(frozen=True)
class Options:
    """The problems that a solver supports, and its accuracy; empty `divergences` means all."""

    divergences: tuple[Divergence, ...]
    nonuniform: bool
    batches: bool
    tol: float

    def adapt(self, value: Any) -> Any:
        """Replace a drawn value that the options exclude by one that they allow."""
        if isinstance(value, Divergence) and self.divergences and value not in self.divergences:
            index = NAMED.index(value) if value in NAMED else len(value.name)
            return self.divergences[index % len(self.divergences)]
        if isinstance(value, InnerProblem) and not self.nonuniform:
            return replace(value, p=None)
        return value


@dataclass
class Trial:
    """The solver that a claim calls: it records the calls, and their outcome.

    - `fixed`: whether the claim has fixed instances instead of strategies.
    - `solved`, `skipped`, `checked`: the numbers of problems solved, of unsupported problems, and of
      pieces of evidence checked.
    - `missing`: the fields that the solver did not return.
    - `measured`: the quantities that the claim measures.
    - `eta`, `calls`: the largest eta and the number of calls of the current example.
    - `call`, `returned`: the last problem and its answer, as text.
    - `failure`: the problem, the failure, the answer and the exact answer as text, and whether the solver
      raised an error; None without a failure.
    """

    solve: Callable[..., Any]
    options: Options
    fixed: bool
    solved: int = 0
    skipped: int = 0
    checked: int = 0
    missing: set[str] = field(default_factory=set)
    measured: set[Quantity] = field(default_factory=set)
    eta: float = 0.0
    calls: int = 0
    call: str = ""
    returned: str = ""
    failure: tuple[str, str, str, str, bool] | None = None

    def __call__(
        self, losses: Array, eta: float | Array, divergence: Divergence, *, p: Array | None = None
    ) -> WorstCase:
        o = self.options
        unsupported = (
            (o.divergences and divergence not in o.divergences)
            or (p is not None and not o.nonuniform)
            or (losses.ndim > 1 and not o.batches)
        )
        if unsupported:
            self.skipped += 1
            if self.fixed and (p is None or o.nonuniform):  # so that the claim goes on to supported instances
                return worst_case(losses, eta, divergence, p=p)
            raise UnsupportedProblem
        self.solved += 1
        self.calls += 1
        self._record_call(losses, eta, divergence, p)
        xp = active().namespace
        copied = xp.asarray(losses, copy=True)
        given = {} if p is None else {"p": xp.asarray(p, copy=True)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = self.solve(copied, eta, divergence, **given)
        except Exception as error:
            raise InvalidAnswer(f"it raised {type(error).__name__}: {error}", raised=True) from None
        solution = self._read(out, losses, eta, divergence, p)
        if not np.array_equal(to_numpy(copied), to_numpy(losses)):
            raise InvalidAnswer("it modifies its argument losses")
        return solution

    def _record_call(self, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> None:
        """Record the problem as text for the report, and as arrays for `_exact_answer`."""
        f = to_numpy(losses)
        etas = np.asarray(eta if isinstance(eta, float) else to_numpy(eta))
        self.eta = max(self.eta, float(etas.max()))
        self.returned = ""
        given = "" if p is None else f", p = {_shown(to_numpy(p))}"
        self.call = f"losses = {_shown(f)}, eta = {_shown(etas)}, {d.name}{given}"
        self._problem = (f, eta, d, None if p is None else to_numpy(p))

    def _read(self, out: Any, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> WorstCase:
        """Convert the answer to arrays of the active backend, and fill in missing fields."""
        fields = {name: getattr(out, name, None) for name in FIELDS}
        absent = [name for name, value in fields.items() if value is None]
        if len(absent) == len(FIELDS):
            raise InvalidAnswer(
                f"it returned {_type_of(out)}, which has no value, mu, weights or gap; expected an object "
                "with some of them, such as types.SimpleNamespace(weights=...)"
            )
        self.missing |= set(absent)
        arrays = {}
        for name, value in fields.items():
            if value is None:
                continue
            try:
                arrays[name] = np.asarray(to_numpy(value) if is_array_api_obj(value) else value, dtype=float)
            except (TypeError, ValueError):
                raise InvalidAnswer(f"{name} is {_type_of(value)}; expected numbers") from None
        self.returned = ", ".join(f"{name} {_shown(x)}" for name, x in arrays.items() if name != "gap")
        for name, x in arrays.items():
            shape = tuple(losses.shape if name == "weights" else losses.shape[:-1])
            if x.shape != shape:
                raise InvalidAnswer(f"{name} has shape {x.shape}; expected {shape}")
            if not np.all(np.isfinite(x)):
                raise InvalidAnswer(f"{name} is {_shown(x)}; expected finite numbers")
        if "weights" in arrays and not np.all(arrays["weights"].sum(axis=-1) > 0):
            raise InvalidAnswer("the sum of the weights is not positive")
        converted = {name: array(x) for name, x in arrays.items()}
        # worst_case fills in missing fields, so that claims about the returned fields can be checked.
        if absent:
            return replace(worst_case(losses, eta, d, p=p), **converted)
        price = eta if isinstance(eta, float) else to_numpy(eta)
        return WorstCase(**converted, eta=array(np.full(losses.shape[:-1], price)))

    def with_tolerance(self, piece: Evidence | Curve) -> Evidence | None:
        """Return the evidence with the tolerance of the options; None if it is not checked."""
        if isinstance(piece, Curve):
            return None
        tol, quantity = self.options.tol, piece.quantity
        self.measured.add(quantity)
        if tol and quantity in _ENTRIES:
            return None
        if quantity is Quantity.GAP and self.missing & {"mu", "weights", "gap"}:
            return None
        self.checked += 1
        if quantity is not Quantity.VALUE:  # `tol` does not apply
            return piece
        # A solver may add terms of size eta that cancel, but their rounding errors remain.
        # If an example compares several solutions, each may be off by tol.
        times = 1 if self.fixed else self.calls
        return replace(piece, tolerance=piece.tolerance + ROUNDING * self.eta + times * tol)

    def fail(self, example: Mapping[str, Any], failure: str, raised: bool = False) -> None:
        """Record a failure, described in words, in place of earlier ones.

        Hypothesis shrinks failing examples, so the last failure has the smallest example.
        """
        shown = [self.call]
        for name, value in example.items():
            if name not in ("eta", "alpha") and isinstance(value, (float, int)):
                shown.append(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
        self.failure = (", ".join(shown), failure, self.returned, self._exact_answer(), raised)

    def _exact_answer(self) -> str:
        f, eta, d, p = self._problem
        if f.ndim > 1:
            return ""
        answer = solve_exactly(f, eta, d.family or "", d.parameter, p)
        weights = np.array([float(w) for w in answer.weights])
        return f"value {float(answer.value):.9g}, weights {_shown(weights)}"


def _shown(x: Any) -> str:
    values = np.asarray(x)
    if values.ndim == 0:
        return f"{values:.9g}"
    if values.ndim > 1:
        return f"({', '.join(_shown(row) for row in values)})"
    return f"({', '.join(f'{v:.9g}' for v in values)})"


def _type_of(x: Any) -> str:
    return "None" if x is None else f"an object of type {type(x).__name__}"


def statement_on(claim: Claim, trial: Trial) -> Callable[..., Iterator[Evidence]]:
    """Return the claim's statement with `trial` as its solver; an invalid answer is a violation."""

    def statement(**example: Any) -> Iterator[Evidence]:
        if trial.skipped >= _MAX_UNSUPPORTED and not trial.solved:
            return
        trial.eta, trial.calls = 0.0, 0
        try:
            for piece in evidence_of(claim.statement, {**example, "solve": trial}):
                evidence = trial.with_tolerance(piece)
                if evidence is None:
                    continue
                if not evidence.holds:
                    note, off = evidence.note or "the statement", evidence.violation
                    trial.fail(example, f"{note}: off by {off:.3g} (allowed {evidence.tolerance:.2g})")
                yield evidence
        except UnsupportedProblem:
            return
        except InvalidAnswer as answer:
            trial.fail(example, str(answer), answer.raised)
            yield Evidence(inf, 0.0, str(answer))

    return statement
