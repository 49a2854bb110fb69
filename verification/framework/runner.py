"""Finding the claims, and running them in the order of the paper."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from importlib import import_module
from itertools import takewhile
from pkgutil import walk_packages

from phiball.backends import use
from phiball.verification.framework.claim import Claim, Result
from phiball.verification.framework.parallel import run_side_by_side

SECTIONS = {
    2: "Phi-divergence regularized adversarial robust training",
    3: "Optimization algorithm",
    4: "Regularization effects",
    5: "Generalization error bound",
    6: "Numerical study",
    7: "Beyond the paper",
}
_ORDER = "AEBCDFGHISJPLQT"  # the first letters of the ids, in the order of the paper
DEEP = 10.0  # how many times more examples a deep search takes


def all_claims() -> list[Claim]:
    """Every claim, in the order of the paper."""
    package = import_module("phiball.verification.claims")
    names = [one.name for one in walk_packages(package.__path__, f"{package.__name__}.")]
    modules = (import_module(name) for name in names)
    # One claim may be imported by the module of another.
    found = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, Claim)}
    return sorted(found.values(), key=lambda one: (one.section, *_place(one.id)))


def _place(name: str) -> tuple[int, int, str]:
    """D10-disc comes after D9, and letters that the paper's statements do not have come last."""
    number = "".join(takewhile(str.isdigit, name[1:]))
    letter = _ORDER.find(name[:1]) if name[:1] in _ORDER else len(_ORDER)
    return letter, int(number or 0), name[1 + len(number) :]


def find(select: str | None = None, section: int | None = None) -> list[Claim]:
    """The claims of a section whose id is `select`, or else whose id, label or title contains it."""
    claims = [one for one in all_claims() if section is None or one.section == section]
    if section is not None and not claims:
        sections = sorted({one.section for one in all_claims()})
        raise ValueError(f"section is {section}; there are claims on {', '.join(map(str, sections))}")
    if select is None:
        return claims
    text = select.strip().casefold()
    if not text:
        raise ValueError("claim is empty; expected an id or words, see phiball verify --list")
    exact = [one for one in claims if one.id.casefold() == text]
    found = exact or [one for one in claims if text in f"{one.id} {one.label} {one.title}".casefold()]
    if not found:
        where = "" if section is None else f" in section {section}"
        raise ValueError(f"claim is {select!r}, which no id, label or statement{where} contains; see --list")
    return found


def run(
    select: str | None = None,
    section: int | None = None,
    *,
    deep: bool = False,
    seed: int = 0,
    backend: str | None = None,
    jobs: int | None = None,
    on_result: Callable[[Result], None] | None = None,
    on_progress: Callable[[int, list[str]], None] | None = None,
) -> list[Result]:
    """Run the chosen claims on the active backend, or the named one, in the order of the paper.

    With `jobs` they run on that many new processes, of one thread each, with the same results whatever
    their number (a script that asks for it needs the usual `if __name__ == "__main__"`); one claim alone
    stays in this process. `on_result` is told of each result, in order; `on_progress` of the number
    that is done and the ids that are running.

    >>> [result.verdict.value for result in run("C7")]
    ['holds as corrected']
    """
    if backend is not None:
        with use(backend):
            return run(
                select,
                section,
                deep=deep,
                seed=seed,
                jobs=jobs,
                on_result=on_result,
                on_progress=on_progress,
            )
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; expected a whole number of at least 1")
    claims = find(select, section)
    effort = DEEP if deep else 1.0
    done: dict[int, Result] = {}
    results: list[Result] = []
    if jobs is not None and len(claims) > 1:
        running = run_side_by_side(claims, jobs=jobs, effort=effort, seed=seed)
    else:
        running = _one_by_one(claims, effort=effort, seed=seed)
    with closing(running):
        for names, index, result in running:
            if result is not None:
                done[index] = result
            if on_progress is not None:
                on_progress(len(done), names)
            while len(results) in done:
                results.append(done[len(results)])
                if on_result is not None:
                    on_result(results[-1])
    return results


def _one_by_one(
    claims: list[Claim], *, effort: float, seed: int
) -> Generator[tuple[list[str], int, Result | None], None, None]:
    for index, one in enumerate(claims):
        yield [one.id], index, None
        yield [], index, one.run(effort=effort, seed=seed)
