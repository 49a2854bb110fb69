"""The search for a counterexample: on a claim's fixed instances, or on examples from Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as with_seed
from hypothesis.strategies import SearchStrategy

from phiball.verification.framework.evidence import Curve, Evidence

Statement: TypeAlias = Callable[..., Evidence | Iterable[Evidence | Curve]]


class Violated(Exception):  # noqa: N818 - a signal to the search, not an error
    """The statement fails on the current example."""


@dataclass
class Search:
    """The evidence for a statement from the examples tried so far."""

    examples: int = 0
    worst: Evidence | None = None  # the evidence with the largest violation in units of its tolerance
    found: str = ""  # the failing example, in words
    curves: tuple[Curve, ...] = ()
    closest: Evidence | None = None  # the evidence closest to its bound

    def run(
        self,
        statement: Statement,
        strategies: Mapping[str, SearchStrategy[Any]],
        tested: Mapping[str, Any],
        *,
        examples: int,
        seed: int,
        shrink: bool,
    ) -> bool:
        """Return whether the statement holds on all examples.

        `tested` maps names to the arguments that are not drawn: a mutant that replaces the code under test,
        and the seed.
        """

        def check(**example: Any) -> None:
            self.add(evidence_of(statement, {**example, **tested}), example)

        try:
            if not strategies:
                check()
                return True
            searched = settings(
                max_examples=examples,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
            )(given(**strategies)(check))
            with_seed(seed)(searched)()
        except Violated:
            return False
        return True

    def outcome(self) -> dict[str, Any]:
        """The fields of `Result` that the search determines."""
        worst, closest = self.worst or Evidence(nan, 0.0), self.closest or Evidence(nan, 0.0)
        return {
            "violation": worst.violation,
            "tolerance": worst.tolerance,
            "note": worst.note,
            "measured": closest.measured,
            "bound": closest.bound,
            "closest": closest.note,
            "examples": self.examples + bool(self.found),  # a failing example is not in self.examples
            "found": self.found,
            "curves": self.curves,
        }

    def add(self, yielded: Iterable[Evidence | Curve], example: Mapping[str, Any]) -> None:
        """Add the evidence of one example; raise `Violated` at the first piece that does not hold."""
        curves: list[Curve] = []
        pieces: list[Evidence] = []
        for piece in yielded:
            if isinstance(piece, Curve):
                curves.append(piece)
                continue
            if isnan(piece.violation):
                raise ValueError(f"the violation is NaN at {_show(example)} {piece.note}".rstrip())
            if not piece.holds:
                # Hypothesis shrinks examples, so the last failure is the smallest.
                self.worst, self.found = piece, ": ".join(filter(None, (_show(example), piece.note)))
                self.curves = tuple(curves)
                self.closest = piece if piece.bound > 0 else None
                raise Violated
            pieces.append(piece)
        if curves and example:
            raise ValueError("only statements without strategies may yield a curve")
        if self.found:
            return
        self.curves = tuple(curves)
        # Without strategies each piece of evidence counts as an example; a drawn example counts once.
        self.examples += min(1, len(pieces)) if example else len(pieces)
        for piece in pieces:
            if piece.bound > 0 and (self.closest is None or _share(piece) > _share(self.closest)):
                self.closest = piece
            if self.worst is None or _rank(piece) > _rank(self.worst):
                self.worst = piece


def _share(piece: Evidence) -> float:
    return piece.measured / piece.bound


def _rank(piece: Evidence) -> tuple[bool, float]:
    """Sort key, larger is worse. A measured 0 with the bound 0 is trivial, and ranks lowest."""
    return not piece.bound == piece.violation == 0, piece.ratio


def _show(example: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return str(getattr(value, "name", None) or getattr(value, "__name__", None) or value)

    return ", ".join(f"{name} = {text(v)}" for name, v in example.items()) or "the fixed instances"


def evidence_of(statement: Statement, arguments: Mapping[str, Any]) -> Iterable[Evidence | Curve]:
    """Return the evidence of a statement for these arguments, as an iterable."""
    returned = statement(**arguments)
    return [returned] if isinstance(returned, Evidence) else returned
