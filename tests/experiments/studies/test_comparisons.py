"""The numbers in the comparisons with the paper are on the studies' pages."""

import re

import pytest

from phiball.experiments.studies.cartpole.report import PAPER
from phiball.experiments.studies.comparisons import COMPARISONS, comparisons
from tests.support import paper
from tests.support.paths import ROOT

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def test_our_numbers_are_on_the_pages_and_figures_exist() -> None:
    for (study, _), comparison in COMPARISONS.items():
        text = (ROOT / f"experiments/studies/{study}/README.md").read_text(encoding="utf-8")
        page = set(NUMBER.findall(text))
        columns = [i for i, name in enumerate(comparison.head) if i and "the paper" not in name]
        assert columns
        for row in comparison.rows:
            assert len(row) == len(comparison.head)
            for cell in (row[i] for i in columns):
                assert set(NUMBER.findall(cell)) <= page, (study, cell)
        assert comparison.command in text
    assert all(comparison.figure.startswith(b"\x89PNG") for comparison in comparisons())


def test_numbers_of_the_paper_are_in_its_source() -> None:
    rows = COMPARISONS["cartpole", "training.png"].rows
    shown = [[float(number) for cell in row[1:3] for number in NUMBER.findall(cell)] for row in rows]
    assert shown == [[number for pair in pairs for number in pair] for pairs in PAPER.values()]
    if (tex := paper.source()) is None:
        pytest.skip("PHIBALL_PAPER names no source of the paper")
    for row in rows:
        for number in NUMBER.findall(" ".join(row[1:3])):
            assert number in tex
