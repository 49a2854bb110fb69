"""The adapter between claims and a solver: it asks what the solver is meant for, and judges the answers."""

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
from phiball.verification.framework.evidence import Curve, Evidence, Quantity
from phiball.verification.framework.search import evidence_of
from phiball.verification.instances.arrays import array
from phiball.verification.instances.divergences import NAMED
from phiball.verification.instances.strategies import Problem
from phiball.verification.instances.tolerances import ROUNDING
from phiball.verification.oracles.inner import solve_exactly

FIELDS = ("value", "mu", "weights", "gap")
_ENTRIES = (Quantity.WEIGHTS, Quantity.MU)  # what a tolerance in the values says nothing of
_PATIENCE = 10  # examples that a claim may spend on what is not asked, before it is left out


class NotAsked(Exception):  # noqa: N818 - a signal, not an error
    """The claim needs what the options leave out."""


class Fault(Exception):  # noqa: N818 - a finding, not an error
    """What a solver did wrong before its solution could be judged."""

    def __init__(self, words: str, raised: bool = False) -> None:
        super().__init__(words)
        self.raised = raised


@dataclass(frozen=True)
class Options:
    """What is asked of a solver; no divergences means all."""

    divergences: tuple[Divergence, ...]
    distributions: bool
    batches: bool
    tol: float

    def adapted(self, value: Any) -> Any:
        """A searched value, moved to where the options allow it."""
        if isinstance(value, Divergence) and self.divergences and value not in self.divergences:
            place = NAMED.index(value) if value in NAMED else len(value.name)
            return self.divergences[place % len(self.divergences)]
        if isinstance(value, Problem) and not self.distributions:
            return replace(value, p=None)
        return value


@dataclass
class Trial:
    """One claim's dealings with a solver."""

    solve: Callable[..., Any]
    options: Options
    fixed: bool
    asked: int = 0
    refused: int = 0
    judged: int = 0
    missing: set[str] = field(default_factory=set)
    measured: set[Quantity] = field(default_factory=set)
    eta: float = 0.0
    calls: int = 0
    call: str = ""
    returned: str = ""
    exact: str = ""
    failure: tuple[str, str, str, str, bool] | None = None

    def __call__(
        self, losses: Array, eta: float | Array, divergence: Divergence, *, p: Array | None = None
    ) -> WorstCase:
        o = self.options
        left_out = (
            (o.divergences and divergence not in o.divergences)
            or (p is not None and not o.distributions)
            or (losses.ndim > 1 and not o.batches)
        )
        if left_out:
            self.refused += 1
            if self.fixed and (p is None or o.distributions):  # the other instances of the claim still count
                return worst_case(losses, eta, divergence, p=p)
            raise NotAsked
        self.asked += 1
        self.calls += 1
        self._note_call(losses, eta, divergence, p)
        xp = active().namespace
        copied = xp.asarray(losses, copy=True)
        distribution = {} if p is None else {"p": xp.asarray(p, copy=True)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a warning is about shows in the result
                out = self.solve(copied, eta, divergence, **distribution)
        except Exception as problem:
            raise Fault(f"it raised {type(problem).__name__}: {problem}", raised=True) from None
        solution = self._read(out, losses, eta, divergence, p)
        if not np.array_equal(to_numpy(copied), to_numpy(losses)):
            raise Fault("it changes the losses that it is given")
        return solution

    def _note_call(self, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> None:
        f = to_numpy(losses)
        etas = np.asarray(eta if isinstance(eta, float) else to_numpy(eta))
        self.eta = max(self.eta, float(etas.max()))
        self.returned = self.exact = ""
        distribution = "" if p is None else f", p = {_shown(to_numpy(p))}"
        self.call = f"losses = {_shown(f)}, eta = {_shown(etas)}, {d.name}{distribution}"
        self._exactly = (f, eta, d, None if p is None else to_numpy(p))

    def _read(self, out: Any, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> WorstCase:
        """What the solver returned, as arrays of the active backend; what is missing is filled in."""
        fields = {name: getattr(out, name, None) for name in FIELDS}
        absent = [name for name, value in fields.items() if value is None]
        if len(absent) == len(FIELDS):
            raise Fault(
                f"it returned {_article(out)}, which has no value, mu, weights or gap; an object that has "
                "some is types.SimpleNamespace(weights=...)"
            )
        self.missing |= set(absent)
        arrays = {}
        for name, value in fields.items():
            if value is None:
                continue
            try:
                arrays[name] = np.asarray(to_numpy(value) if is_array_api_obj(value) else value, dtype=float)
            except (TypeError, ValueError):
                raise Fault(f"{name} is {_article(value)}; expected numbers") from None
        self.returned = ", ".join(f"{name} {_shown(x)}" for name, x in arrays.items() if name != "gap")
        for name, x in arrays.items():
            shape = tuple(losses.shape if name == "weights" else losses.shape[:-1])
            if x.shape != shape:
                raise Fault(f"{name} has shape {x.shape}; expected {shape}")
            if not np.all(np.isfinite(x)):
                raise Fault(f"{name} is {_shown(x)}; expected finite numbers")
        if "weights" in arrays and not np.all(arrays["weights"].sum(axis=-1) > 0):
            raise Fault("the mass of the weights is not positive")
        restored = {name: array(x) for name, x in arrays.items()}
        # The exact solution fills in what is absent, so that a claim on the rest can be judged.
        if absent:
            return replace(worst_case(losses, eta, d, p=p), **restored)
        price = eta if isinstance(eta, float) else to_numpy(eta)
        return WorstCase(**restored, eta=array(np.full(losses.shape[:-1], price)))

    def judge(self, piece: Evidence | Curve) -> Evidence | None:
        """The evidence with the tolerance that is due to this solver; None for what is not judged."""
        if isinstance(piece, Curve):
            return None
        tol, quantity = self.options.tol, piece.quantity
        self.measured.add(quantity)
        if tol and quantity in _ENTRIES:
            return None
        if quantity is Quantity.GAP and self.missing & {"mu", "weights", "gap"}:
            return None
        self.judged += 1
        if quantity is not Quantity.VALUE:  # no tolerance in the values excuses it
            return piece
        # A solver may add up terms of the size of eta, and lose their rounding.
        # Where several solutions of one example are compared, each of them may be off.
        times = 1 if self.fixed else self.calls
        return replace(piece, tolerance=piece.tolerance + ROUNDING * self.eta + times * tol)

    def fail(self, example: Mapping[str, Any], words: str, raised: bool = False) -> None:
        """Remember a failure; while an example is shrunk, the last is the smallest."""
        shown = [self.call]
        for name, value in example.items():
            if name not in ("eta", "alpha") and isinstance(value, (float, int)):
                shown.append(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
        self.failure = (", ".join(shown), words, self.returned, self._solution(), raised)

    def _solution(self) -> str:
        f, eta, d, p = self._exactly
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


def _article(x: Any) -> str:
    return "None" if x is None else f"an object of type {type(x).__name__}"


def on_trial(claim: Claim, trial: Trial) -> Callable[..., Iterator[Evidence]]:
    """The claim's statement on the trial, with every fault of the solver turned into evidence."""

    def statement(**example: Any) -> Iterator[Evidence]:
        if trial.refused >= _PATIENCE and not trial.asked:
            return
        trial.eta, trial.calls = 0.0, 0
        try:
            for piece in evidence_of(claim.statement, {**example, "solve": trial}):
                judged = trial.judge(piece)
                if judged is None:
                    continue
                if not judged.holds:
                    what, off = judged.note or "the statement", judged.violation
                    trial.fail(example, f"{what}: off by {off:.3g} (allowed {judged.tolerance:.2g})")
                yield judged
        except NotAsked:
            return
        except Fault as fault:
            trial.fail(example, str(fault), fault.raised)
            yield Evidence(inf, 0.0, str(fault))

    return statement
