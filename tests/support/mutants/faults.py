"""Single faults of a module: one operator, constant, condition, keyword, call or result wrong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_TWINS = [("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"), ("argmin", "argmax")]
_TWINS += [("exp", "expm1"), ("log", "log1p"), ("zeros", "ones"), ("zeros_like", "ones_like")]
_NAMES = {**dict(_TWINS), **{b: a for a, b in _TWINS}}
# Keywords without which a call does the same: how an array is copied, and checks of lengths.
_HARMLESS = {"strict", "copy", "stacklevel"}


@dataclass(frozen=True)
class Place:
    """Where a node stands: the function or class, such as "Ball.sample", and the lines to reach it by.

    `statement` and `function` are first and last lines; `runs` says that it runs when the function is called,
    not when the module is imported, and `check` that the node judges arguments.
    """

    scope: str = ""
    statement: tuple[int, int] = (0, 0)
    function: tuple[int, int] = (0, 0)
    runs: bool = False
    check: bool = False

    def inside(self, node: ast.AST) -> Place:
        """The place of what stands in `node`, which stands here."""
        if not isinstance(node, ast.stmt):
            return self
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        header = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else last)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope = f"{self.scope}.{node.name}".lstrip(".")
            function = isinstance(node, ast.FunctionDef)
            return Place(scope, header, (node.lineno, last), function, self.check or _is_check(node.name))
        refuses = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
        calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        named = calls and _is_check(ast.unparse(node.value.func))  # type: ignore[attr-defined]
        return replace(self, statement=header, check=self.check or refuses or named)


def _is_check(name: str) -> bool:
    return name.lstrip("_").startswith(("valid", "check"))


@dataclass(frozen=True)
class Fault:
    """Bytes `start` to `end` of a module, replaced by `new`."""

    module: str
    place: Place
    kind: str
    line: int
    start: int
    end: int
    new: str
    source: bytes

    @cached_property
    def mutated(self) -> bytes:
        """The module with the fault."""
        return self.source[: self.start] + self.new.encode() + self.source[self.end :]

    @cached_property
    def change(self) -> tuple[str, str]:
        """The statement's lines as they are, and as the fault makes them, in one line each."""
        first = self.source.rfind(b"\n", 0, self.start) + 1
        last = self.source.find(b"\n", self.end)
        was, new = self.source[first:last], self.mutated[first : last + len(self.mutated) - len(self.source)]
        return _one_line(was), _one_line(new)


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())


def faults(module: str, source: bytes) -> list[Fault]:
    r"""All single faults of `source`, in its order.

    Left out are docstrings, annotations, errors raised and their messages, and what `__repr__` prints.

    >>> [fault.change[1] for fault in faults("x.py", b"def f(a, b=1):\n    return a < b\n")]
    ['def f(a, b=2):', 'return None', 'return a <= b']
    """
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, place in _nodes(tree, Place()):
        for kind, start, end, new in _changes(node, source, starts):
            fault = Fault(module, place, kind, source.count(b"\n", 0, start) + 1, start, end, new, source)
            if kind != "keyword" or _parses(fault.mutated):
                found.append(fault)
    return sorted(found, key=lambda fault: (fault.start, fault.end))


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _nodes(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """What a fault may be planted in, and where it stands."""
    left_out = _left_out(node)
    for name, value in ast.iter_fields(node):
        if name in left_out:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _ignored(child):
                inner = place.inside(child)
                yield child, inner
                yield from _nodes(child, inner)


def _left_out(node: ast.AST) -> set[str]:
    """The parts of a node that say something to readers and type checkers, or check nothing."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "TypeVar", "ParamSpec"):
        return {"args", "keywords"}
    return {"annotation", "returns", "decorator_list", "bases"}


def _ignored(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__" or any("overload" in ast.unparse(d) for d in node.decorator_list)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__" or _is_type(node.value)
    if isinstance(node, ast.keyword):
        return node.arg in _HARMLESS
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert)


def _is_type(node: ast.AST) -> bool:
    """Whether it is a type, such as `float | None` or `Callable[[Array], Array]`."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and (_is_type(node.left) or _is_type(node.right))
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) in ("tuple", "list", "dict", "Callable", "Mapping", "Sequence")
    return isinstance(node, ast.Name) and node.id in ("int", "float", "str", "None", "Array")


def _changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[tuple[str, int, int, str]]:
    """Kind, start, end and new text of each fault of this node itself."""

    def place(part: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        last, column = part.end_lineno or 0, part.end_col_offset or 0
        return starts[part.lineno - 1] + part.col_offset, starts[last - 1] + column

    def between(left: ast.expr, right: ast.expr, was: str, new: str) -> Iterator[tuple[str, int, int, str]]:
        begin, stop = place(left)[1], place(right)[0]
        at = re.search(re.escape(was).replace(r"\ ", r"\s+"), source[begin:stop].decode())
        if at:
            yield "operator", begin + at.start(), begin + at.end(), new

    def text(part: ast.expr) -> str:
        start, end = place(part)
        return source[start:end].decode()

    if isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from between(left, right, *_COMPARISONS[type(op)])
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not any(
            isinstance(side, ast.JoinedStr | ast.Tuple | ast.List) for side in (node.left, node.right)
        ):
            yield from between(node.left, node.right, *_OPERATORS[type(node.op)])
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        was, new = _OPERATORS[type(node.op)]
        yield from between(node.target, node.value, f"{was}=", f"{new}=")
    elif isinstance(node, ast.BoolOp):
        was, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from between(left, right, was, new)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        start = place(node)[0]
        yield "sign", start, start + (4 if isinstance(node.op, ast.Not) else 1), ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", *place(node), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", *place(node), str(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield "constant", *place(node), repr(2 * node.value or 1.0)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        start, end = place(node.test)
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield "condition", start, end, f"not ({text(node.test)})"
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "result", *place(node.value), "None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call", *place(node), "pass"
    elif isinstance(node, ast.Break | ast.Continue):
        yield "loop", *place(node), "continue" if isinstance(node, ast.Break) else "break"
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in _NAMES:
            end = place(node.func)[1]
            yield "name", end - len(name), end, _NAMES[name]
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _HARMLESS:
                start, end = place(keyword)
                comma = source.rfind(b",", place(node.func)[1], start)
                if comma > 0:
                    yield "keyword", comma, end, ""
                else:  # the first argument goes with the comma behind it
                    rest = re.match(rb"\s*,?\s*", source[end:])
                    yield "keyword", start, end + (rest.end() if rest else 0), ""
