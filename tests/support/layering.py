"""The rules of imports, between the packages and inside each, and of the size of folders and files."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

PACKAGES = ("backends", "refimpl", "verification", "experiments")
MOST_MODULES, MOST_LINES = 25, 400

# Groups of modules, and which other groups each may import. A module belongs to the longest name that fits.
_BASIC = ["backends.arrays", "backends.files", "backends.interrupts"]  # what the kernels may use too
_BACKENDS = ["backends", *_BASIC]
_BASE = [*_BACKENDS, "refimpl.validation", "refimpl.numerics", "refimpl.printing", "refimpl.types"]
_INNER = [*_BASE, "refimpl.inner"]
_LAWS = [*_INNER, "refimpl.laws"]
_SAMPLING = [*_LAWS, "refimpl.sampling"]
_RISK = [*_SAMPLING, "refimpl.risk"]
_METHODS = [*_RISK, "refimpl.training", "refimpl.theory", "refimpl.qlearning", "refimpl.linear"]
_REFIMPL = ["refimpl", *_METHODS, "refimpl.attacks", "refimpl.causal", "refimpl.sklearn"]
_INSTANCES = ["verification.framework", "verification.oracles", "verification.instances"]
_LIBRARY = [*_REFIMPL, "verification", *_INSTANCES, "verification.report", "verification.solver_check"]
_TRAINING = [*_LIBRARY, "experiments.framework", "experiments.datasets", "experiments.training"]
MAY_IMPORT = {
    "": [
        "backends",
        "refimpl",
        "verification",
        "experiments.robustness",
    ],  # phiball itself, for type checkers
    "backends": _BACKENDS,
    "backends.arrays": [],
    "backends.files": [],
    "backends.interrupts": [],
    "backends.numba": _BASIC,
    "refimpl": _REFIMPL,
    "refimpl.validation": _BASE,
    "refimpl.numerics": _BASE,
    "refimpl.printing": _BACKENDS,
    "refimpl.types": [*_BASE, "refimpl.inner.divergences"],
    "refimpl.inner": _BASE,
    "refimpl.laws": _INNER,
    "refimpl.sampling": _LAWS,
    "refimpl.risk": _SAMPLING,
    "refimpl.training": _RISK,
    "refimpl.theory": _RISK,
    "refimpl.qlearning": _RISK,
    "refimpl.linear": _RISK,
    "refimpl.sklearn": [*_METHODS, "refimpl.attacks"],
    "refimpl.attacks": _METHODS,
    "refimpl.causal": _METHODS,
    "verification": [*_INSTANCES, "verification.report", "verification.solver_check"],
    "verification.oracles": [],
    "verification.framework": _REFIMPL,
    "verification.instances": [*_REFIMPL, *_INSTANCES],
    "verification.claims": [*_REFIMPL, *_INSTANCES],
    "verification.report": [*_REFIMPL, "verification.framework"],
    "verification.solver_check": [*_REFIMPL, *_INSTANCES],
    "experiments.framework": _LIBRARY,
    "experiments.datasets": [*_LIBRARY, "experiments.framework"],
    "experiments.training": [*_LIBRARY, "experiments.framework", "experiments.datasets"],
    "experiments.studies": _TRAINING,
    "experiments.benchmarks": _TRAINING,
    "experiments.robustness": [*_LIBRARY, "experiments.framework"],
    "experiments.cli": [
        *_TRAINING,
        "experiments.studies",
        "experiments.benchmarks",
        "experiments.robustness",
    ],
    "tests": [],
}
# Single modules that may import one group more.
EXCEPTIONS = {
    ("backends", "backends.numba"),  # the public function `threads`
    ("experiments.studies.cartpole.environment", "backends.numba"),  # its steps run in compiled code
}
# Who may name modules in strings, to load them late.
MAY_NAME = {
    "": ("backends", "refimpl", "experiments.robustness"),
    "backends.selection": ("backends.numba",),
    "verification.framework.runner": ("verification.claims", "backends.numba"),  # packages that it walks
    "experiments.cli": ("experiments.studies", "experiments.benchmarks"),
}
# The mathematics knows arrays by their namespace alone. refimpl.sklearn is an extra that only its users load,
# and speaks to them in NumPy, scikit-learn, torch and skorch.
LIBRARIES = {"numpy", "torch", "cupy", "numba", "scipy", "sklearn", "array_api_compat", "array_api_strict"}


class Source(NamedTuple):
    """What is read of a file: its size, and lines with imports, strings and questions for the backend."""

    size: int
    imports: list[tuple[int, str]]
    strings: list[tuple[int, str]]
    questions: list[int]


def asks_for_the_backend(node: ast.Compare) -> bool:
    """Whether it compares a backend, or its name, with a string."""
    sides = [node.left, *node.comparators]
    strings = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
    return strings and any(word in ast.unparse(node) for word in ("backend", "active", "library("))


@cache
def read(text: str) -> Source:
    """The imports, wherever in the file they stand, and the rest."""
    source = Source(text.count("\n"), [], [], [])
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                source.imports.extend((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = "." * node.level + (node.module or "")
                source.imports.extend((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            case ast.Constant(value=str(value)) if value.startswith("phiball."):
                source.strings.append((node.lineno, value.partition(":")[0]))
            case ast.Compare() if asks_for_the_backend(node):
                source.questions.append(node.lineno)
    return source


def longest(name: str, known: Container[str]) -> str:
    """The longest of the `known` dotted names that `name` starts with, or ""."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def group(module: str) -> str:
    """The group of a module; each study is one of its own."""
    name = longest(module, MAY_IMPORT)
    return ".".join(module.split(".")[:3]) if name == "experiments.studies" else name


def violations(sources: dict[str, str]) -> list[str]:
    """One line for everything in `sources`, a mapping from paths to texts, that breaks a rule."""
    found: list[str] = []
    paths = {
        path.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", "."): path
        for path in sources
    }
    graph: dict[str, set[str]] = {name: set() for name in paths}
    for module, path in paths.items():
        source, own = read(sources[path]), group(module)
        package = module.partition(".")[0]
        if source.size > MOST_LINES:
            found.append(
                f"{path} has {source.size} lines; with over {MOST_LINES} it holds two subjects: split it"
            )
        if own in ("", "refimpl", "verification") and "." in module:
            found.append(f"{path} is in no group of MAY_IMPORT: say there what it may import")
        for line, name in source.imports:
            top, _, rest = name.partition(".")
            target = longest(rest, paths)
            complaint = None
            if not top:
                complaint = "imports relatively"
            elif package == "tests":
                if top == "tests" and not rest.startswith("support"):
                    complaint = f"imports {name}: tests share what is in tests.support alone"
            elif top in (*PACKAGES, "tests"):
                complaint = f"imports {name}, which is not an installed name"
            elif top == "phiball":
                graph[module].add(target)
                complaint = forbidden(module, target)
            elif package == "refimpl" and own != "refimpl.sklearn" and top in LIBRARIES:
                complaint = f"imports {top}, but refimpl may not"
            elif top == "numba" and own != "backends.numba":
                complaint = "imports numba, which backends.selection alone loads"
            if complaint:
                found.append(f"{path}:{line} {complaint}")
        if package == "tests":
            continue
        for line, text in source.strings:
            target = text.partition(".")[2]
            if target in paths and target != module:
                graph[module].add(target)
                named = MAY_NAME.get(module, MAY_NAME.get(own, ()))
                own_package = target == module.rpartition(".")[0]  # for its templates
                if not own_package and not any(longest(target, {name}) for name in named):
                    found.append(f"{path}:{line} names {text} in a string, to be loaded later")
        if package == "refimpl":
            found += [f"{path}:{line} asks which backend is active" for line in source.questions]
    called = set().union(*(graph[module] for module in graph if group(module) == "experiments.cli"))
    for module, path in paths.items():  # a benchmark is what the command line calls; the rest are helpers
        if group(module) == "experiments.benchmarks":
            found += [
                f"{path} imports from the benchmark {target}"
                for target in sorted(graph[module] & called)
                if group(target) == group(module)
            ]
    return found + cycles(graph) + crowds(sources)


def forbidden(module: str, target: str) -> str | None:
    """Why `module` may not import `target`, if it may not."""
    own, other = group(module), group(target)
    allowed = MAY_IMPORT.get(longest(own, MAY_IMPORT), [])
    if own == other and own != "verification.claims":
        return None
    if longest(other, MAY_IMPORT) in allowed or target in allowed or (module, other) in EXCEPTIONS:
        return None
    return f"imports {target or 'phiball'}, but {own} may not"


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """The cycles of imports, each broken after it is found, so that the next one shows."""
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            names = error.args[1]
            found.append("cycle of imports: " + " <- ".join(names))
            graph[names[1]].remove(names[0])
        else:
            return found


def crowds(sources: dict[str, str]) -> list[str]:
    """The folders that hold too many modules."""
    counts = Counter(path.rpartition("/")[0] for path in sources if not path.endswith("__init__.py"))
    return [
        f"{folder} holds {count} modules; over {MOST_MODULES} nobody finds one at a glance: make sub-folders"
        for folder, count in counts.items()
        if count > MOST_MODULES
    ]
