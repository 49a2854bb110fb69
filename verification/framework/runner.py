"""Finding the claims, and running them in the order of the paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from phiball import backends
from phiball.backends import active
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.folder import load_claims
from phiball.verification.framework.paper import BEYOND
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
}
"""The first letters of the ids with what these claims are about, in the order of the paper."""
DEEP = 10.0  # how many times more examples a deep search takes


def all_claims() -> list[Claim]:
    """All claims of `phiball.verification.claims`, in the order of the paper.

    >>> from phiball.verification import all_claims
    >>> all_claims()[0]
    Claim(A1 strong_duality: holds as corrected)
    """
    package = import_module("phiball.verification.claims")
    names = [module.name for module in walk_packages(package.__path__, f"{package.__name__}.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return sorted((value for value in values if isinstance(value, Claim)), key=_place)


def _place(claim: Claim) -> tuple[int, int, int, str]:
    """Its section, group, number and suffix: D10-disc comes after D9, and unknown groups come last."""
    [(letter, number, suffix)] = re.findall(r"^(\D?)(\d*)(.*)", claim.id)
    section, group = (
        list(table).index(key) if key in table else len(table)
        for table, key in ((SECTIONS, claim.section), (GROUPS, letter))
    )
    return section, group, int(number or 0), suffix


def find(
    select: str | Sequence[str] | None = None, section: str | int | None = None, *, folder: Path | None = None
) -> list[Claim]:
    """Find claims by id or name, or else by a part of their id, name, label or title.

    Arguments:
    - `select`: the text to look for, or several of them; None for all claims.
    - `section`: a section of the paper, 2 to 6, or "beyond"; None for all.
    - `folder`: one with claims on another paper, in place of those of this package.

    Returns the claims in the order of the paper. Raises ValueError if there is none.

    >>> find("strong_duality")
    [Claim(A1 strong_duality: holds as corrected)]
    """
    claims = all_claims() if folder is None else load_claims(folder)
    if section is not None:
        sections = list(dict.fromkeys(claim.section for claim in claims))
        if str(section) not in sections:
            raise ValueError(f"section is {section}; there are claims on {', '.join(sections)}")
        claims = [claim for claim in claims if claim.section == str(section)]
    if select is None:
        return claims
    where = "" if section is None else f" in section {section}"
    chosen = {
        match.id
        for text in ([select] if isinstance(select, str) else select)
        for match in _match(claims, text, where)
    }
    return [claim for claim in claims if claim.id in chosen]


def _match(claims: list[Claim], select: str, where: str) -> list[Claim]:
    """Those with this id or name, or else those that contain the text."""
    text = select.strip().casefold()
    if not text:
        raise ValueError("claim is empty; expected an id, a name or words, see phiball verify --list")
    exact = [claim for claim in claims if text in (claim.id.casefold(), claim.name)]
    matches = exact or [
        claim for claim in claims if text in f"{claim.id} {claim.name} {claim.label} {claim.title}".casefold()
    ]
    if not matches:
        raise ValueError(
            f"claim is {select!r}, which no id, name, label or statement{where} contains; see --list"
        )
    return matches


def run(
    select: str | Sequence[str] | None = None,
    section: str | int | None = None,
    *,
    folder: Path | None = None,
    deep: bool = False,
    seed: int = 0,
    mutants: bool = False,
    backend: str | None = None,
    jobs: int | None = None,
    on_result: Callable[[Result], None] | None = None,
    on_progress: Callable[[int, list[Claim]], None] | None = None,
) -> list[Result]:
    """Run the chosen claims and return their results, in the order of the paper.

    Arguments:
    - `select`, `section`, `folder`: as for `find`.
    - `deep`: True searches ten times as many examples; `seed`: of the search.
    - `mutants`: True also runs each claim on the faults that are registered with it.
    - `backend`: the name of a backend; the active one by default.
    - `jobs`: the number of processes, with joblib's meaning, on the backend that `joblib.parallel_config` has
      selected. The results do not depend on it. By default, and for a single claim, everything runs in
      this process.
    - `on_result` receives each result, in order; `on_progress` the number of claims that are done and those
      that are running.

    >>> [result.verdict.value for result in run("C7")]
    ['holds as corrected']
    """
    if jobs is not None and (jobs == 0 or jobs < -1):
        raise ValueError(f"jobs is {jobs}; expected a number of processes, or -1 for one per core")
    claims = find(select, section, folder=folder)
    settings = (backend or active().name, DEEP if deep else 1.0, seed, mutants)
    tasks = [(folder, claim.statement.__module__, claim.name, *settings) for claim in claims]
    done: dict[int, Result] = {}
    results: list[Result] = []

    def report() -> None:
        if on_progress is not None:  # claims start in order
            waiting = [claim for k, claim in enumerate(claims) if k not in done]
            on_progress(len(done), waiting[: max(1, jobs or 1)])

    report()
    if jobs is None or len(claims) == 1:
        outcomes = ((index, _run_one(claim, *settings)) for index, claim in enumerate(claims))
    else:
        from phiball.backends.parallel import run_tasks  # joblib is optional

        outcomes = run_tasks(_run_claim, tasks, n_jobs=jobs)
    with closing(outcomes):
        for index, outcome in outcomes:
            done[index] = outcome
            report()
            while len(results) in done:
                results.append(done[len(results)])
                if on_result is not None:
                    on_result(results[-1])
    return results


def _run_claim(
    folder: Path | None, module: str, name: str, backend: str, effort: float, seed: int, mutants: bool
) -> Result:
    """Run a claim that is found by its name, as in a process that has only just started."""
    if folder is not None:
        load_claims(folder)
    return _run_one(getattr(import_module(module), name), backend, effort, seed, mutants)


def _import_sources(claim: Claim, backend: str) -> None:
    """Import the modules that claims and kernels would import later.

    Hypothesis also tries numbers that it reads in the imported source files, unless they are in
    site-packages. The examples repeat if these files are the same when each claim starts.
    """
    if claim.statement.__module__.partition(".")[0] == __name__.partition(".")[0]:
        all_claims()
    if backend == "numba":
        kernels = import_module("phiball.backends.numba")
        for module in walk_packages(kernels.__path__, f"{kernels.__name__}."):
            import_module(module.name)


def _run_one(claim: Claim, backend: str, effort: float, seed: int, mutants: bool) -> Result:
    _import_sources(claim, backend)
    with backends.backend(backend):
        result = claim.run(effort=effort, seed=seed)
        if not mutants:
            return result
        rejected = tuple(fault for fault in claim.mutants if claim.rejects(fault, seed=seed))
        survived = tuple(fault for fault in claim.mutants if fault not in rejected)
        return replace(result, rejected=rejected, survived=survived)
