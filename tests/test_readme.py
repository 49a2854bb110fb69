"""The examples of the README run as they stand, and print what it says they print."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest

from tests.support.paths import ROOT

BLOCK = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)
EXAMPLES = [
    pytest.param(code, output, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md"]
    for number, (code, output) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
]


def test_every_example_shows_its_output() -> None:
    assert len(EXAMPLES) == (ROOT / "README.md").read_text(encoding="utf-8").count("```python") >= 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example(code: str, output: str) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines() == [line[4:] for line in output.splitlines()]


@pytest.mark.parametrize("folder", ["refimpl"])
def test_the_names_of_a_map_exist(folder: str) -> None:
    """Every `name` in the last column of a folder's table is public there."""
    from importlib import import_module

    package = import_module(f"phiball.{folder}")
    rows = [
        line
        for line in (ROOT / folder / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and line.count("|") == 4
    ]
    names = {name for row in rows for name in re.findall(r"`([A-Za-z_]\w*)[.`]", row.rsplit("|", 2)[1])}
    names -= {"clip", "sample"}  # a field and a method, named with what they belong to
    assert len(names) > 40
    assert names <= set(package.__all__)
