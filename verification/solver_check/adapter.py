"""A solver as a claim sees it: asked only what it is meant for, and looked at on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from phiball.backends import Array, active, is_array_api_obj, to_numpy
from phiball.refimpl import Divergence, WorstCase, worst_case
from phiball.verification.claims.section2.duality import ROUNDING
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Curve, Evidence
from phiball.verification.instances.inner import Reordered
from phiball.verification.instances.strategies import NAMED, Problem, array
from phiball.verification.oracles import inner as oracles

FIELDS = ("value", "mu", "weights", "gap")
# What a tolerance in the values says nothing of, and what no tolerance excuses.
_ENTRIES = (
    "the weights",
    "mu",
    "E(f - mu)_+ = eta",
    "mu and the set of minimisers",
    "the weights at alpha = 1",
)
_ALWAYS = ("the mass", "the least weight", "the weight of", "the weights of equal losses", "the gap")
_PATIENCE = 10  # examples that a claim may spend on what is not asked, before it is left out


class NotAsked(Exception):  # noqa: N818 - a signal, not an error
    """The claim wants what the options leave out."""


class Fault(Exception):  # noqa: N818 - a finding, not an error
    """What a solver did wrong before its solution could be looked at."""

    def __init__(self, words: str, raised: bool = False) -> None:
        super().__init__(words)
        self.raised = raised


@dataclass(frozen=True)
class Options:
    """What is asked of a solver; no divergences means all."""

    divergences: tuple[Divergence, ...]
    laws: bool
    batches: bool
    tol: float

    def adapted(self, value: Any) -> Any:
        """A searched value, moved to where the options allow it."""
        if isinstance(value, Divergence) and self.divergences and value not in self.divergences:
            place = NAMED.index(value) if value in NAMED else len(value.name)
            return self.divergences[place % len(self.divergences)]
        if isinstance(value, Problem) and not self.laws:
            return replace(value, p=None)
        if isinstance(value, Reordered):
            return replace(value, problem=self.adapted(value.problem))
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
            or (p is not None and not o.laws)
            or (losses.ndim > 1 and not o.batches)
        )
        if left_out:
            self.refused += 1
            if self.fixed and (p is None or o.laws):  # the other instances of the claim still count
                return worst_case(losses, eta, divergence, p=p)
            raise NotAsked
        self.asked += 1
        self.calls += 1
        self._note_call(losses, eta, divergence, p)
        xp = active().namespace
        given = xp.asarray(losses, copy=True)
        law = {} if p is None else {"p": xp.asarray(p, copy=True)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a warning is about shows in the result
                out = self.solve(given, eta, divergence, **law)
        except Exception as problem:
            raise Fault(f"it raised {type(problem).__name__}: {problem}", raised=True) from None
        solution = self._read(out, losses, eta, divergence, p)
        if not np.array_equal(to_numpy(given), to_numpy(losses)):
            raise Fault("it changes the losses that it is given")
        return solution

    def _note_call(self, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> None:
        f = to_numpy(losses)
        etas = np.asarray(eta if isinstance(eta, float) else to_numpy(eta))
        self.eta = max(self.eta, float(etas.max()))
        self.returned = self.exact = ""
        law = "" if p is None else f", p = {_shown(to_numpy(p))}"
        self.call = f"losses = {_shown(f)}, eta = {_shown(etas)}, {d.name}{law}"
        self._exactly = (f, eta, d, None if p is None else to_numpy(p))

    def _read(self, out: Any, losses: Array, eta: float | Array, d: Divergence, p: Array | None) -> WorstCase:
        """What the solver returned, as arrays of the active backend; what is missing is filled in."""
        there = {name: getattr(out, name, None) for name in FIELDS}
        absent = [name for name, one in there.items() if one is None]
        if len(absent) == len(FIELDS):
            raise Fault(
                f"it returned {_article(out)}, which has no value, mu, weights or gap; an object that has "
                "some is types.SimpleNamespace(weights=...)"
            )
        self.missing |= set(absent)
        found = {}
        for name, one in there.items():
            if one is None:
                continue
            try:
                found[name] = np.asarray(to_numpy(one) if is_array_api_obj(one) else one, dtype=float)
            except (TypeError, ValueError):
                raise Fault(f"{name} is {_article(one)}; expected numbers") from None
        self.returned = ", ".join(f"{name} {_shown(one)}" for name, one in found.items() if name != "gap")
        for name, one in found.items():
            shape = tuple(losses.shape if name == "weights" else losses.shape[:-1])
            if one.shape != shape:
                raise Fault(f"{name} has shape {one.shape}; expected {shape}")
            if not np.all(np.isfinite(one)):
                raise Fault(f"{name} is {_shown(one)}; expected finite numbers")
        if "weights" in found and not np.all(found["weights"].sum(axis=-1) > 0):
            raise Fault("the mass of the weights is not positive")
        if absent:  # the exact one takes its place, so that a claim on the others can be looked at
            exact = worst_case(losses, eta, d, p=p)
            return replace(exact, **{name: _restored(one) for name, one in found.items()})
        return WorstCase(**{name: _restored(one) for name, one in found.items()})

    def judge(self, one: Evidence | Curve) -> Evidence | None:
        """The evidence with the tolerance that is due to this solver; None for what is not judged."""
        tol = self.options.tol
        if isinstance(one, Curve) or (tol and one.note in _ENTRIES):
            return None
        if one.note == "the gap" and self.missing & {"mu", "weights", "gap"}:
            return None
        self.judged += 1
        if one.note in _ENTRIES or one.note.startswith(_ALWAYS):
            return one
        # A solver may add up terms of the size of eta, and lose their rounding.
        # Where several solutions of one example are compared, each of them may be off.
        times = 1 if self.fixed else self.calls
        return replace(one, tolerance=one.tolerance + ROUNDING * self.eta + times * tol)

    def fail(self, example: Mapping[str, Any], words: str, raised: bool = False) -> None:
        """Remember a failure; while an example is shrunk, the last is the smallest."""
        shown = [self.call]
        for name, one in example.items():
            if name not in ("eta", "alpha") and isinstance(one, (float, int)):
                shown.append(f"{name} = {one:g}" if isinstance(one, float) else f"{name} = {one}")
        self.failure = (", ".join(shown), words, self.returned, self._solution(), raised)

    def _solution(self) -> str:
        f, eta, d, p = self._exactly
        if f.ndim > 1:
            return ""
        answer = oracles.inner(f, eta, d.family or "", d.parameter, p)
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


def _restored(x: Any) -> Array:
    xp = active().namespace
    return xp.reshape(array(x.ravel().tolist()), x.shape)


def on_trial(claim: Claim, trial: Trial) -> Callable[..., Iterator[Evidence]]:
    """The claim's statement on the trial, with every fault of the solver turned into evidence."""

    def statement(**example: Any) -> Iterator[Evidence]:
        if trial.refused >= _PATIENCE and not trial.asked:
            return
        trial.eta, trial.calls = 0.0, 0
        try:
            given_back: Evidence | Iterable[Evidence | Curve] = claim.statement(**example, solve=trial)
            for one in [given_back] if isinstance(given_back, Evidence) else given_back:
                kept = trial.judge(one)
                if kept is None:
                    continue
                if not kept.holds:
                    what = kept.note or "the statement"
                    trial.fail(example, f"{what}: off by {kept.violation:.3g} (allowed {kept.tolerance:.2g})")
                yield kept
        except NotAsked:
            return
        except Fault as fault:
            trial.fail(example, str(fault), fault.raised)
            yield Evidence(inf, 0.0, str(fault))

    return statement
