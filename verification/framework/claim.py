"""Claims: statements of a paper, and the search for counterexamples that leads to a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from inspect import signature
from time import perf_counter
from typing import Any, TypeVar

from hypothesis.strategies import SearchStrategy

from phiball.verification.framework.counterexample_search import Search, Statement, evidence_of
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.framework.result import Metadata, Result
from phiball.verification.framework.sources import enumerates, oracles_of, source_location

AnyStatement = TypeVar("AnyStatement", bound=Callable[..., Any])
AnyMutant = TypeVar("AnyMutant", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Counterexample:
    """An instance that violates the printed statement; see `Claim.counterexample`."""

    statement: Statement
    margin: float
    meets: Statement | None


def _section_of(statement: Statement, section: str | int | None) -> str:
    """Return `section`, or by default the section of the statement's package."""
    if section is not None:
        return str(section)
    package = re.search(r"\.claims\.(?:section)?(\w+)\.", statement.__module__)
    if package is None:
        raise ValueError(
            "section is None; expected a section for a claim outside phiball.verification.claims"
        )
    return package[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Claim(Metadata):
    """A statement with its search, its counterexamples and its mutants; made by the decorator `claim`.

    A run checks the statement on every example. The verdict is

    - `HOLDS` if all examples pass and no counterexample is attached;
    - `CORRECTED` if all examples pass and the attached counterexamples violate the printed statement;
    - `REFUTED` if an example fails;
    - `UNCHECKED` if the claim gives a reason why it cannot be checked;
    - `UNDECIDED` after an error or a NaN, without examples, or if a counterexample is invalid.

    >>> from phiball.verification import find_claims
    >>> find_claims("strong_duality")
    [Claim(A1 strong_duality: holds as corrected)]
    """

    statement: Statement
    strategies: Mapping[str, SearchStrategy[Any]]
    any_solver: bool
    examples: int
    counterexamples: list[_Counterexample] = field(default_factory=list)
    mutants: dict[str, tuple[str, Callable[..., Any]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Claim({self.id} {self.name}: {self.verdict})"

    @property
    def verdict(self) -> Verdict:
        """The recorded verdict."""
        return self.recorded

    @property
    def injectable(self) -> list[str]:
        """The parameters without a strategy: the code under test, which a mutant may replace."""
        drawn = {*self.strategies, "seed"}
        return [name for name in signature(self.statement).parameters if name not in drawn]

    @property
    def seeded(self) -> bool:
        """Whether the statement itself draws random numbers, from the seed of the run."""
        return "seed" in signature(self.statement).parameters and "seed" not in self.strategies

    def __call__(self, *args: Any, **kwargs: Any) -> Evidence | Iterable[Evidence | Curve]:
        """Evaluate the statement on one example."""
        return self.statement(*args, **kwargs)

    def counterexample(
        self, *, margin: float, meets: Statement | None = None
    ) -> Callable[[AnyStatement], AnyStatement]:
        """Attach an instance that violates the printed statement by at least `margin`.

        The decorated function returns evidence of the violation. Its parameters, if any, are code under test,
        with the same names as in the claim. `meets` returns evidence that the instance satisfies the
        paper's assumptions; the counterexample is valid only if all of this evidence holds.
        """

        def attach(function: AnyStatement) -> AnyStatement:
            self.counterexamples.append(_Counterexample(function, margin, meets))
            return function

        return attach

    def mutant(self, description: str, *, replaces: str | None = None) -> Callable[[AnyMutant], AnyMutant]:
        """Register a broken version of the code under test, which the claim must reject.

        Arguments:
        - `description`: the defect, in words.
        - `replaces`: the parameter of the claim that the mutant replaces; optional if there is only one.
        """
        target = replaces or (self.injectable[0] if len(self.injectable) == 1 else "")
        if target not in self.injectable:
            raise ValueError(
                f"replaces is {replaces!r}; expected one of {', '.join(self.injectable) or 'none'}"
            )

        def register(function: AnyMutant) -> AnyMutant:
            self.mutants[description] = (target, function)
            return function

        return register

    def run(
        self, *, effort: float = 1.0, seed: int = 0, mutant: str | None = None, shrink: bool = True
    ) -> Result:
        """Search for a violation, check the counterexamples, and return the verdict with its evidence.

        Arguments:
        - `effort`: multiplies the number of examples.
        - `seed`: the seed of the search, and of the statement's parameter `seed`.
        - `mutant`: the description of a mutant to test in place of the library.
        - `shrink`: False reports the first failing example instead of the smallest.
        """
        began = perf_counter()
        tested: dict[str, Any] = dict([self.mutants[mutant]]) if mutant else {}
        if self.seeded:
            tested["seed"] = seed
        search = Search()
        texts: list[str] = []
        holds = valid = True
        error = ""
        try:
            if not self.reason:
                count = max(1, round(self.examples * effort))
                holds = search.run(
                    self.statement, self.strategies, tested, examples=count, seed=seed, shrink=shrink
                )
            elif isinstance(evidence := self.statement(), Evidence):
                search.worst = evidence
            if search.worst is None and not self.reason:
                error = "no example was checked"
            texts, valid = self.check_counterexamples(tested)
        except Exception as problem:  # reported as an error, so that the other claims still run
            error = f"{type(problem).__name__}: {problem}"
        if error or not valid:
            verdict = Verdict.UNDECIDED
        elif self.reason:
            verdict = Verdict.UNCHECKED
        elif not holds:
            verdict = Verdict.REFUTED
        else:
            verdict = Verdict.CORRECTED if self.counterexamples else Verdict.HOLDS
        return self._result(search, verdict, texts, error, perf_counter() - began)

    def rejects(self, mutant: str, *, seed: int = 0) -> bool:
        """Return whether, with one of three seeds, the verdict on a mutant differs from the recorded one.

        Runs that end with an error do not count.
        """
        results = (self.run(seed=seed + k, mutant=mutant, shrink=False) for k in range(3))
        return any(not result.error and not result.as_recorded for result in results)

    def check_counterexamples(self, tested: Mapping[str, Any] | None = None) -> tuple[list[str], bool]:
        """Return the counterexamples in words, and whether all are valid; see `counterexample`.

        `tested` maps names of parameters to the code under test; by default the library is tested.
        """
        texts: list[str] = []
        valid = True
        for counterexample in self.counterexamples:
            accepted = set(signature(counterexample.statement).parameters)
            arguments = {k: v for k, v in (tested or {}).items() if k in accepted}
            yielded = evidence_of(counterexample.statement, arguments)
            pieces = [piece for piece in yielded if isinstance(piece, Evidence)]
            valid &= bool(pieces) and all(piece.violation >= counterexample.margin for piece in pieces)
            texts += [piece.note or f"violation {piece.violation:.6g}" for piece in pieces]
            if counterexample.meets is not None:
                met = [
                    piece for piece in evidence_of(counterexample.meets, {}) if isinstance(piece, Evidence)
                ]
                valid &= bool(met) and all(piece.holds for piece in met)
                texts.append(
                    f"it satisfies the assumptions: {', '.join(dict.fromkeys(piece.note for piece in met))}"
                )
        return texts, valid

    def failed(self, error: str) -> Result:
        """Return the result of a run that ended with this error."""
        return self._result(Search(), Verdict.UNDECIDED, [], error, 0.0)

    def _result(
        self, search: Search, verdict: Verdict, counterexamples: list[str], error: str, seconds: float
    ) -> Result:
        """Return a result with the outcome of `search`; `counterexamples` are in words."""
        return Result(
            **self.metadata(),
            **search.outcome(),
            verdict=verdict,
            searched=bool(self.strategies),
            enumerated=enumerates(self.statement),
            counterexamples=tuple(counterexamples),
            error=error,
            seconds=seconds,
            source=source_location(self.statement),
            oracles=oracles_of(self.statement),
        )


_TEXTS = {field.name for field in fields(Metadata) if field.default is not MISSING}


def claim(
    label: str,
    *,
    id: str,  # noqa: A002 - the word that reports use
    verdict: Verdict,
    section: str | int | None = None,
    any_solver: bool = False,
    examples: int = 100,
    **more: Any,
) -> Callable[[Statement], Claim]:
    """Turn a function that reads like the paper's statement and returns `Evidence` into a claim.

    Arguments:
    - `label`: the paper's name for the statement.
    - `id`: our short name.
    - `verdict`: the verdict that a run must reach.
    - `section`: the section of the paper; by default taken from the package, such as `claims.section3`.
    - `any_solver`: whether `verify_solver` may pass a user's solver as the function's parameter `solve`.
    - `examples`: the number of examples at `effort=1`.
    - `more`: the optional fields of `Metadata`, such as `formula`, `assumptions` and `correction`, and a
      Hypothesis strategy for each parameter that is searched.

    Returns a decorator that makes a `Claim`. The docstring of the function states the claim in words. The
    function returns or yields evidence; an example passes if all of its evidence holds. Parameters without a
    strategy are the code under test, and have defaults; but a parameter `seed` without a strategy gets the
    seed of the run. If there are no strategies, the function runs once on fixed instances, and may also yield
    a `Curve`.

    >>> from hypothesis import strategies as st
    >>> from phiball.verification import Evidence, Verdict, claim
    >>> @claim("Example", id="X1", section="beyond", verdict=Verdict.HOLDS, x=st.floats(-1, 1))
    ... def square_is_not_negative(x, square=lambda x: x * x):
    ...     "The square of a number is not negative."
    ...     return Evidence(-square(x), 0.0)
    >>> square_is_not_negative.run()
    Result(X1 square_is_not_negative: holds, violation=-0, tolerance=0, examples=100)
    """
    texts = {name: value for name, value in more.items() if name in _TEXTS}
    strategies = {name: value for name, value in more.items() if name not in _TEXTS}
    for name, value in strategies.items():
        if not isinstance(value, SearchStrategy):
            raise TypeError(
                f"{name} is {value!r}; expected a strategy, or one of {', '.join(sorted(_TEXTS))}"
            )

    def decorate(statement: Statement) -> Claim:
        return Claim(
            label=label,
            id=id,
            name=statement.__name__,
            title=(statement.__doc__ or "").strip().partition("\n")[0],
            section=_section_of(statement, section),
            recorded=verdict,
            statement=statement,
            strategies=strategies,
            any_solver=any_solver,
            examples=examples,
            **texts,
        )

    return decorate


def unchecked(
    label: str,
    *,
    id: str,  # noqa: A002 - as above
    reason: str,
    section: str | int | None = None,
    **texts: Any,
) -> Callable[[Callable[[], Any]], Claim]:
    """Turn a function into a claim that no run can check; the docstring of the function states it.

    The function may be empty. If it returns `Evidence`, the report shows the note of the evidence, on which
    the verdict does not depend.

    Arguments:
    - `reason`: why the statement cannot be checked.
    - The other arguments are those of `claim`.

    Returns a decorator that makes a `Claim`.

    >>> from phiball.verification import unchecked
    >>> @unchecked("Remark", id="X2", section=2, reason="it compares papers")
    ... def novelty():
    ...     "No earlier paper has this result."
    >>> novelty.run().verdict.value
    'not checkable'
    """
    texts |= {"reason": reason, "assumptions": ""}
    return claim(label, id=id, verdict=Verdict.UNCHECKED, section=section, **texts)
