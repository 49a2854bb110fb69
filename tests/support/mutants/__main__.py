"""The command: choose faults, run the checks that reach each, print a table and the survivors."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import unified_diff
from hashlib import sha1
from pathlib import Path
from typing import Any

from tests.support.mutants import judges
from tests.support.mutants.faults import Fault, faults
from tests.support.mutants.forks import Copy, Job, preload, run_jobs
from tests.support.paths import ROOT

KNOWN = Path(__file__).parent / "survivors.toml"
BARS = {"tests": 90.0, "verify": 80.0}
# What `phiball verify` is not asked about: messages, and how processes, files and libraries are managed.
NOT_MATHEMATICS = (
    "validation", "printing", "dispatch", "files", "interrupts", "processes", "progress", "provenance",
    "selection",
)  # fmt: skip


def modules() -> list[str]:
    """The files that faults are planted in: refimpl, and the reference paths of backends."""
    files = [*(ROOT / "refimpl").rglob("*.py"), *(ROOT / "backends").glob("*.py")]
    return sorted(str(f.relative_to(ROOT)) for f in files if f.name not in ("__init__.py", "types.py"))


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("--module", action="append", metavar="FILE", help="such as refimpl/attacks.py (all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N faults at random, per module with --each")
    parser.add_argument("--each", action="store_true", help="sample so many of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--judge", choices=BARS, default="tests", help="who must notice: tests, or the claims"
    )
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of checks per fault")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "mutants", help="folder of the results"
    )
    return parser.parse_args()


def digest(*files: Path) -> str:
    """One hash of the contents of files."""
    return sha1(b"".join(sha1(file.read_bytes()).digest() for file in files)).hexdigest()[:16]


class Checks:
    """Which checks run a line: from traces, which are taken anew where a file changed."""

    def __init__(self, judge: str, out: Path, copies: list[Copy]) -> None:
        self.judge, self.folder = judge, out / "traces" / judge
        self.folder.mkdir(parents=True, exist_ok=True)
        if judge == "tests":
            tests = [p for name in judges.MEASURED for p in (ROOT / "tests" / name).rglob("test_*.py")]
            names = [str(p.relative_to(ROOT)) for p in tests if not p.stem.startswith(judges.COMPILED)]
            names += judges.ALSO
            names += [m for m in modules() if ">>> " in (ROOT / m).read_text()]
            self.common = [ROOT / "tests/conftest.py"]
        else:
            claims = (ROOT / "verification" / "claims").rglob("*.py")
            names = [str(p.relative_to(ROOT)) for p in claims if p.name != "__init__.py"]
            self.common = [*(ROOT / "verification" / "framework").glob("*.py")]
        take = judges.trace_tests if judge == "tests" else judges.trace_claims
        stale = [name for name in sorted(names) if self._load(name) is None]
        jobs = (Job(name, lambda copy, name=name: take(copy, name), 1800.0) for name in stale)
        for count, (job, trace) in enumerate(run_jobs(jobs, copies), 1):
            print(f"traced {count} of {len(stale)}: {job.name}", flush=True)
            if trace is None:
                print(f"  {job.name} died; its checks are left out")
                continue
            files = {m: digest(ROOT / m) for m in trace["lines"]}
            self._file(job.name).write_text(json.dumps({"of": self._own(job.name), "files": files, **trace}))
        self.traces = {name: trace for name in names if (trace := self._load(name)) is not None}

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '__')}.json"

    def _own(self, name: str) -> str:
        own = [ROOT / name] if (ROOT / name).is_file() else []
        return digest(*own, *sorted(self.common))

    def _load(self, name: str) -> Any:
        if not self._file(name).is_file():
            return None
        trace = json.loads(self._file(name).read_text())
        current = all((ROOT / m).is_file() and digest(ROOT / m) == d for m, d in trace["files"].items())
        return trace if trace["of"] == self._own(name) and current else None

    def reaching(self, fault: Fault, budget: float) -> dict[str, float]:
        """Checks that run the fault, with their seconds, in the order to try them in, within the budget.

        The cheapest case of each test comes first, those of the module's own folder before others.
        """
        found: dict[str, float] = {}
        place, lines_of_file = fault.place, (0, 10**9)
        ranges = [place.statement, place.function, lines_of_file]
        if not place.runs:  # who imports the module first runs it, and all who use the module may notice
            ranges = [lines_of_file]
        elif place.statement[0] == place.function[0]:  # a default of the function
            ranges = [place.function, lines_of_file]
        for first, last in ranges:
            for trace in self.traces.values():
                seconds = list(trace["checks"].items())
                lines = trace["lines"].get(fault.module, {})
                indices = {i for line, run in lines.items() if first <= int(line) <= last for i in run}
                found.update(seconds[i] for i in indices)
            if found:
                break
        mirror = (f"tests/{fault.module.removesuffix('.py')}", fault.module)
        folder = str(Path("tests") / Path(fault.module).parent) + "/"
        cases: Counter[str] = Counter()
        keyed = []
        for name, cost in sorted(found.items(), key=lambda item: item[1]):
            test = name.partition("[")[0]
            near = 0 if _stem(name).startswith(mirror) else 1 if name.startswith(folder) else 2
            keyed.append(((cases[test] // 2, near, cost), name))
            cases[test] += 1
        chosen: dict[str, float] = {}
        for _, name in sorted(keyed):
            chosen[name] = found[name]
            if sum(chosen.values()) > budget:
                break
        return chosen


def _stem(name: str) -> str:
    return name.replace("/test_", "/")


def sampled(arguments: argparse.Namespace, known: dict[str, Any]) -> tuple[list[Fault], Counter[str]]:
    """The faults to judge, and how many are left out in each module."""
    left_out: Counter[str] = Counter()
    chosen = []
    for module in arguments.module or modules():
        if arguments.judge == "verify" and Path(module).stem in NOT_MATHEMATICS:
            continue
        found = faults(module, (ROOT / module).read_bytes())
        if arguments.judge == "verify":
            found = [fault for fault in found if not fault.place.check]
        scopes = [entry["scope"] for entry in known["left_out"] if entry["module"] == module]
        kept = [f for f in found if not any(f.place.scope.startswith(scope) for scope in scopes)]
        left_out[module] = len(found) - len(kept)
        if arguments.sample is not None and arguments.each:
            kept = _draw(kept, arguments.sample, f"{arguments.seed} {module}")
        chosen += kept
    if arguments.sample is not None and not arguments.each:
        chosen = _draw(chosen, arguments.sample, str(arguments.seed))
    return chosen, left_out


def _draw(items: list[Fault], n: int, seed: str) -> list[Fault]:
    """A sample in random order, so that what is judged first is a sample too."""
    return random.Random(seed).sample(items, min(n, len(items)))


def judge_all(
    chosen: list[Fault],
    checks: Checks,
    copies: list[Copy],
    arguments: argparse.Namespace,
    reasons: dict[Any, str],
) -> Iterator[tuple[Fault, str, str]]:
    """Each fault with its outcome and what noticed it. What the journal of earlier runs knows is not run.

    New faults come first, and last the survivors that are explained.
    """
    journal = arguments.out / f"journal-{checks.judge}.jsonl"
    past = (
        {e["key"]: e for e in map(json.loads, journal.read_text().splitlines())} if journal.is_file() else {}
    )
    run = judges.run_tests if checks.judge == "tests" else judges.run_claims
    todo: list[Job] = []
    keys: dict[int, tuple[str, str]] = {}
    for fault in chosen:
        reaching = checks.reaching(fault, arguments.budget)
        names = list(reaching)
        files = sorted({ROOT / name.partition("::")[0] for name in names if "::" in name}) or checks.common
        key = sha1(fault.module.encode() + fault.mutated).hexdigest()[:16]
        by = digest(*files) + f" {len(names)}"
        old = past.get(key)
        if old and (old["outcome"] != "survived" or old["checks"] == by):
            yield fault, old["outcome"], old["by"]
        elif not names:
            yield fault, "survived", "nothing runs it"
        else:
            keys[id(fault)] = key, by
            todo.append(
                Job(
                    fault,
                    lambda copy, reaching=reaching: run(copy, reaching),
                    20 + 4 * (sum(reaching.values()) + judges.REST),
                    before=lambda copy, fault=fault: copy.write(fault.module, fault.mutated),
                    after=lambda copy, fault=fault: copy.write(fault.module, fault.source),
                )
            )
    todo.sort(key=lambda job: (keys[id(job.name)][0] in past, (job.name.module, *job.name.change) in reasons))
    with journal.open("a") as lines:
        for count, (job, answer) in enumerate(run_jobs(todo, copies), 1):
            outcome = "timed out" if answer is None else "killed" if answer["by"] else "survived"
            by = "" if answer is None else answer["by"] or "all that run it pass"
            key, passed = keys[id(job.name)]
            entry = {"key": key, "checks": passed, "outcome": outcome, "by": by}
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            if count % 20 == 0:
                print(f"judged {count} of {len(todo)}", flush=True)
            yield job.name, outcome, by


def diff(fault: Fault, by: str, why: str) -> str:
    """A survivor as a diff, under a line that says where it is."""
    texts = [text.decode().splitlines() for text in (fault.source, fault.mutated)]
    lines = [line for line in unified_diff(*texts, n=1, lineterm="") if line[:3] not in ("---", "+++")]
    title = f"{fault.module}:{fault.line} {fault.place.scope} ({by})"
    return "\n".join([title, f"  {why or 'NO REASON GIVEN'}", *(f"    {line}" for line in lines), ""])


def main() -> int:
    """Run the command; 1 if too few are noticed, or a survivor is not explained."""
    arguments = options()
    known = {"left_out": [], "survivor": [], **tomllib.loads(KNOWN.read_text())}
    reasons = {(e["module"], e["was"], e["becomes"]): e["why"] for e in known["survivor"]}
    chosen, left_out = sampled(arguments, known)
    copies = [Copy((arguments.out / f"copy{k}").resolve()) for k in range(arguments.workers)]
    for copy in copies:
        copy.update(ROOT)
    preload()
    checks = Checks(arguments.judge, arguments.out, copies)
    outcomes: list[tuple[Fault, str, str]] = []
    try:
        outcomes.extend(judge_all(chosen, checks, copies, arguments, reasons))
    except KeyboardInterrupt:
        print(f"stopped: {len(outcomes)} of {len(chosen)} are judged")
    survivors = sorted((f for f in outcomes if f[1] == "survived"), key=lambda f: (f[0].module, f[0].start))
    texts = [diff(f, by, reasons.get((f.module, *f.change), "")) for f, _, by in survivors]
    report = arguments.out / f"survivors-{arguments.judge}.txt"
    report.write_text("\n".join(texts))
    poor = print_table([(f, outcome) for f, outcome, _ in outcomes], reasons, left_out, BARS[arguments.judge])
    print(f"survivors as diffs: {report}")
    unexplained = any((f.module, *f.change) not in reasons for f, _, _ in survivors)
    return 1 if poor or (unexplained and arguments.judge == "tests") else 0


def print_table(
    outcomes: Iterable[tuple[Fault, str]], reasons: dict[Any, str], left_out: Counter[str], bar: float
) -> bool:
    """Print the figures of each module, and of all; whether one is below the bar.

    Survivors that are explained change no answer, or none that a check could see: the last column is without.
    """
    table: dict[str, Counter[str]] = {}
    for fault, outcome in outcomes:
        for row in (fault.module, "all"):
            counts = table.setdefault(row, Counter())
            counts.update({outcome: 1, "faults": 1})
            counts["explained"] += outcome == "survived" and (fault.module, *fault.change) in reasons
    columns = ("faults", "killed", "timed out", "survived", "explained")
    print(f"{'module':36}" + "".join(f"{name:>11}" for name in (*columns, "noticed", "of others")))
    poor = False
    for row in sorted(table, key=lambda name: (name == "all", name)):
        counts = table[row]
        share = 100 * (1 - counts["survived"] / counts["faults"])
        known = counts["explained"]
        others = 100 * (1 - (counts["survived"] - known) / max(1, counts["faults"] - known))
        poor |= others < bar
        note = f"  {left_out[row]} left out" if left_out[row] else ""
        numbers = "".join(f"{counts[name]:>11}" for name in columns)
        print(f"{row:36}{numbers}{share:9.1f} %{others:9.1f} %{note}")
    return poor


if __name__ == "__main__":
    sys.exit(main())
