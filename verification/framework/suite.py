"""Find and run claims, from this package or from a folder about another paper."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from phiball.backends import active
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result

SECTIONS = {
    "2": "Phi-divergence regularized adversarial robust training",
    "3": "Optimization algorithm",
    "4": "Regularization effects",
    "5": "Generalization error bound",
    "6": "Numerical study",
    BEYOND: "Beyond the paper",
}
GROUPS = {
    "A": "Strong duality and the certainty equivalent",
    "E": "The inner problem and the examples of its worst case",
    "B": "Consistency as eta vanishes",
    "C": "Algorithm 2",
    "D": "Estimators of the gradient",
    "F": "Convex losses",
    "G": "Smooth losses",
    "H": "Regularization effects",
    "I": "Generalization",
    "S": "Supervised learning",
    "J": "Q-learning",
    "P": "Pricing",
    "L": "Causal transport",
    "Q": "The toy loss",
    "T": "Tilted sampling",
    "V": "Linear models",
    "R": "Randomized smoothing",
}
"""The topic of each first letter of a claim's id; the claims of a section are sorted in this order."""
DEEP = 10.0  # a deep run multiplies the number of examples by this


def all_claims() -> list[Claim]:
    """Return all claims of `phiball.verification.claims`, in the order of the paper.

    >>> from phiball.verification import all_claims
    >>> all_claims()[0]
    Claim(A1 strong_duality: holds as corrected)
    """
    package = import_module("phiball.verification.claims")
    names = [module.name for module in walk_packages(package.__path__, f"{package.__name__}.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return sorted((value for value in values if isinstance(value, Claim)), key=_sort_key)


def _sort_key(claim: Claim) -> tuple[int, int, int, str]:
    """Return section, group, number and suffix, so that D10-disc follows D9; unknown groups come last."""
    [(letter, number, suffix)] = re.findall(r"^(\D?)(\d*)(.*)", claim.id)
    section, group = (
        list(table).index(key) if key in table else len(table)
        for table, key in ((SECTIONS, claim.section), (GROUPS, letter))
    )
    return section, group, int(number or 0), suffix


def load_folder(folder: Path) -> tuple[Paper, list[Claim]]:
    """Import the Python files of a folder, and return the paper and the claims that they define.

    The folder is added to the import path, so its files can import each other. The claims are sorted by
    section, then by file. If no file defines a `Paper`, the paper is named after the folder.
    """
    values = _folder_values(folder)
    claims = {id(value): value for value in values if isinstance(value, Claim)}
    if not claims:
        raise ValueError(f"claims is {str(folder)!r}, but its files (*.py) define no claim")
    papers = [value for value in values if isinstance(value, Paper)]
    paper = papers[0] if papers else Paper(folder.resolve().name)
    sections = list(paper.sections)

    def section_order(claim: Claim) -> int:
        return sections.index(claim.section) if claim.section in sections else len(sections)

    return paper, sorted(claims.values(), key=section_order)


def _folder_values(folder: Path) -> list[object]:
    """Return everything that the files of the folder define, file by file."""
    if not folder.is_dir():
        raise ValueError(f"claims is {str(folder)!r}; expected a folder of Python files with claims")
    home = str(folder.resolve())
    if home not in sys.path:
        sys.path.insert(0, home)
    values: list[object] = []
    for file in sorted(Path(home).glob("*.py")):
        try:
            module = import_module(file.stem)
        except Exception as error:
            raise ValueError(
                f"claims is {str(folder)!r}, but importing {file.name} fails: {type(error).__name__}: {error}"
            ) from error
        if Path(module.__file__ or "").resolve() != file:
            raise ValueError(
                f"claims is {str(folder)!r}, but {file.name} has the name of another module; rename it"
            )
        values += vars(module).values()
    return values


def find_claims(
    select: str | Sequence[str] | None = None,
    section: str | int | None = None,
    *,
    claims: Sequence[Claim] | None = None,
) -> list[Claim]:
    """Find claims by their exact id or name, or else by a part of their id, name, label or title.

    Arguments:
    - `select`: the text to look for, or several texts; None selects all claims.
    - `section`: a section of the paper, 2 to 6, or "beyond"; None selects all.
    - `claims`: the claims to choose from, such as the result of `load_folder`; by default `all_claims()`.

    Returns the claims in the order of `claims`. Raises ValueError if no claim matches.

    >>> find_claims("strong_duality")
    [Claim(A1 strong_duality: holds as corrected)]
    """
    found = all_claims() if claims is None else list(claims)
    if section is not None:
        sections = list(dict.fromkeys(claim.section for claim in found))
        if str(section) not in sections:
            raise ValueError(f"section is {section}; expected one of {', '.join(sections)}")
        found = [claim for claim in found if claim.section == str(section)]
    if select is None:
        return found
    where = "" if section is None else f" in section {section}"
    chosen = {
        match.id
        for text in ([select] if isinstance(select, str) else select)
        for match in _match(found, text, where)
    }
    return [claim for claim in found if claim.id in chosen]


def _match(claims: list[Claim], select: str, where: str) -> list[Claim]:
    """Return the claims whose id or name is `select`, or else the claims whose texts contain it.

    `where` is a part of the error message, such as " in section 3".
    """
    text = select.strip().casefold()
    if not text:
        raise ValueError("claim is empty; expected an id, a name or words, see phiball verify --list")
    exact = [claim for claim in claims if text in (claim.id.casefold(), claim.name)]
    matches = exact or [
        claim for claim in claims if text in f"{claim.id} {claim.name} {claim.label} {claim.title}".casefold()
    ]
    if not matches:
        raise ValueError(
            f"claim is {select!r}, but no id, name, label or statement{where} contains it; see --list"
        )
    return matches


def run_claims(
    claims: Sequence[Claim] | None = None,
    *,
    folder: Path | None = None,
    deep: bool = False,
    seed: int = 0,
    mutants: bool = False,
    n_jobs: int | None = None,
    on_result: Callable[[Result], None] | None = None,
    on_progress: Callable[[int, list[Claim]], None] | None = None,
) -> list[Result]:
    """Run claims on the active backend, and return their results in the same order.

    Arguments:
    - `claims`: the claims to run, from `find_claims` or `load_folder`; by default `all_claims()`.
    - `folder`: the folder that was passed to `load_folder`, if any; worker processes load it too.
    - `deep`: True tries ten times as many examples.
    - `seed`: the seed of the search.
    - `mutants`: True also runs each claim on its mutants.
    - `n_jobs`: the number of processes, with joblib's meaning, on the backend that `joblib.parallel_config`
      selects. The results do not depend on it. A single claim runs in this process.
    - `on_result`: called with each result, in order.
    - `on_progress`: called with the number of finished claims and the list of running ones.

    >>> [result.verdict.value for result in run_claims(find_claims("C7"))]
    ['holds as corrected']
    """
    if n_jobs == 0:
        raise ValueError("n_jobs is 0; expected a number of processes, or -1 for one per core")
    chosen = all_claims() if claims is None else list(claims)
    settings = (DEEP if deep else 1.0, seed, mutants)
    done: dict[int, Result] = {}
    results: list[Result] = []

    def report() -> None:
        if on_progress is not None:  # claims start in order, so the first unfinished ones are running
            unfinished = [claim for k, claim in enumerate(chosen) if k not in done]
            on_progress(len(done), unfinished[: max(1, n_jobs or 1)])

    report()
    if n_jobs is None or len(chosen) == 1:
        outcomes = ((index, _run_claim(claim, *settings)) for index, claim in enumerate(chosen))
    else:
        from phiball.backends.workers import run_tasks  # joblib is optional

        tasks = [(folder, claim.statement.__module__, claim.name, *settings) for claim in chosen]
        outcomes = run_tasks(_run_in_worker, tasks, n_jobs=n_jobs)
    with closing(outcomes):
        for index, outcome in outcomes:
            done[index] = outcome
            report()
            while len(results) in done:
                results.append(done[len(results)])
                if on_result is not None:
                    on_result(results[-1])
    return results


def _run_in_worker(
    folder: Path | None, module: str, name: str, effort: float, seed: int, mutants: bool
) -> Result:
    """Import a claim by name, since claims cannot be pickled, and run it."""
    if folder is not None:
        load_folder(folder)
    return _run_claim(getattr(import_module(module), name), effort, seed, mutants)


def _run_claim(claim: Claim, effort: float, seed: int, mutants: bool) -> Result:
    """Run a claim; if `mutants` is True, also run it on each of its mutants."""
    ours = claim.statement.__module__.partition(".")[0] == __name__.partition(".")[0]
    _import_sources(ours, active().name)
    result = claim.run(effort=effort, seed=seed)
    if not mutants:
        return result
    rejected = tuple(name for name in claim.mutants if claim.rejects(name, seed=seed))
    survived = tuple(name for name in claim.mutants if name not in rejected)
    return replace(result, rejected=rejected, survived=survived)


@cache
def _import_sources(ours: bool, backend: str) -> None:
    """Import all claims of phiball if `ours`, and all kernels if `backend` is "numba".

    Hypothesis also tries numbers that it finds in imported source files (outside site-packages), so a run
    repeats the same examples only if the same files are imported before the first claim runs.
    """
    if ours:
        all_claims()
    if backend == "numba":
        kernels = import_module("phiball.backends.numba")
        for module in walk_packages(kernels.__path__, f"{kernels.__name__}."):
            import_module(module.name)
