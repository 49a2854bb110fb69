"""The entries of the report: items of the paper, sentences with their readings, the opening, and the code."""

from __future__ import annotations

import re

import pytest

from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.paper import BEYOND
from phiball.verification.framework.runner import all_claims, find
from phiball.verification.framework.sources import enumerates, oracles_of, place
from phiball.verification.report import overview
from phiball.verification.report.entries import entries, followers, of_the_paper, rows, tally
from phiball.verification.report.math import mathml
from phiball.verification.report.paper_items import ITEMS, SOURCE
from phiball.verification.report.quotes import pieces, quote_html
from phiball.verification.report.this_paper import THIS
from tests.support import paper
from tests.support.paths import ROOT

CLAIMS = all_claims()
FOUND = of_the_paper(CLAIMS)

# --- Items ----------------------------------------------------------------------------------------

SAMPLE = r"""
\begin{document}
\section{Duality}\label{Sec:dual}
\begin{theorem}[Strong~Duality]\label{Thm}
\begin{enumerate}\item\label{Thm:I} It is so.\item Else.\end{enumerate}
\end{theorem}
\begin{equation}a=b\label{Eq:a}\end{equation}
\begin{equation}\tag{Primal-$\phi$}c\label{Eq:c}\end{equation}
\begin{subequations}\label{Eq:d}
\begin{align}d&=e\label{Eq:e}\\ f&=g\nonumber\\ h&=i\label{Eq:i}\end{align}
\end{subequations}
\begin{align*}j\\k\end{align*}
\begin{lemma}[{\citep{source}}]l\end{lemma}
\begin{figure}\caption{m}\label{Fig}\end{figure}
\subsection{More of Theorem~\ref{Thm}}
\begin{table}\caption{n}\end{table}
\ECSwitch
\section{Proofs}
\begin{lemma}\label{Lem}\end{lemma}
\begin{equation}o\end{equation}
"""


def test_numbers_follow_the_order_of_the_source() -> None:
    found = [(item.name, item.title, item.labels) for item in paper.numbering(SAMPLE)]
    assert found == [
        ("Section 1", "Duality", ("Sec:dual",)),
        ("Theorem 1", "Strong Duality", ("Thm",)),
        ("Theorem 1 (I)", "", ("Thm:I",)),
        ("Eq. (1)", "", ("Eq:a",)),
        ("Eq. (Primal-phi)", "", ("Eq:c",)),
        ("Eq. (2)", "", ("Eq:d",)),
        ("Eq. (2a)", "", ("Eq:e",)),
        ("Eq. (2b)", "", ("Eq:i",)),
        ("Lemma 1", "", ()),
        ("Figure 1", "", ("Fig",)),
        ("Section 1.1", "More of Theorem 1", ()),
        ("Table 1", "", ()),
        ("Section EC.1", "Proofs", ()),
        ("Lemma EC.1", "", ("Lem",)),
        ("Eq. (EC.1)", "", ()),
    ]


def test_the_items_are_those_of_the_paper() -> None:
    if (tex := paper.source()) is None:
        pytest.skip("PHIBALL_PAPER names no source of the paper")
    assert paper.digest() == SOURCE
    assert [tuple(item) for item in paper.numbering(tex)] == list(ITEMS)


def test_every_claim_on_the_paper_names_an_item_of_it() -> None:
    for entry in FOUND:
        item = THIS.item_of(entry.head.label)
        assert item is not None, entry.head.label
    assert len({row.item for row in rows(FOUND, THIS)}) == len(rows(FOUND, THIS))
    assert sum(len(row.entries) for row in rows(FOUND, THIS)) == len(FOUND)
    for row in rows(FOUND, THIS):
        assert row.item.title, row.item.name
    numbered = [label for label in (claim.label for claim in CLAIMS) if re.search(r"\d", label.split(",")[0])]
    assert all(THIS.item_of(label) for label in numbered if not label.startswith("Pricing"))


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Proof of Proposition 5", "Proposition 5"),
        ("Lemma EC.5 (IV), smoothness of a level", "Lemma EC.5"),
        ("Eq. (20a) and (20c), quadratic phi", "Eq. (20a)"),
        ("Eq. (Primal-phi-Reg)", "Eq. (Primal-phi-Reg)"),
        ("Tilted sampling, weights", None),
        ("Theorem 9", None),
    ],
)
def test_label_names_its_first_item(label: str, name: str | None) -> None:
    item = THIS.item_of(label)
    assert (item.name if item else None) == name


# --- Entries --------------------------------------------------------------------------------------


def test_an_assessment_of_a_reading_names_the_other_readings() -> None:
    with pytest.raises(ValueError, match="reading is 'log is natural' and others is"):
        Assessment(Kind.IMPRECISE, Consequence.NONE, "why", reading="log is natural")
    other = Reading("log is to base 2", "true")
    fault = Assessment(Kind.IMPRECISE, Consequence.NONE, "why", reading="log is natural", others=(other,))
    assert not fault.as_stated
    assert fault.severity < Assessment(Kind.FALSE, Consequence.NONE, "why").severity


def test_parts_are_lines_of_an_entry_in_their_own_section() -> None:
    ids = {entry.id: entry for entry in CLAIMS}
    parts = [entry for entry in ids.values() if entry.part_of]
    assert {"C4-gamma", "C4-normalised", "D7-half"} <= {entry.id for entry in parts}
    for entry in parts:
        head = ids[entry.part_of]
        assert (head.part_of, head.section) == ("", entry.section), entry.id


def test_an_entry_is_a_sentence_with_its_readings() -> None:
    (entry,) = [entry for entry in FOUND if entry.head.id == "C4"]
    assert [line.id for line in entry.lines] == ["C4", "C4-gamma", "C4-gap", "C4-normalised"]
    assert entry.standing == "imprecise"
    (alone,) = entries(find("C4-gamma"))
    assert alone.head.id == "C4-gamma"
    assert sum(len(entry.lines) for entry in FOUND) == sum(claim.section != BEYOND for claim in CLAIMS)


def test_counts_are_by_kind_and_count_a_fault_once() -> None:
    counted = tally(FOUND)
    assert next(iter(counted)) == "holds"
    assert sum(counted.values()) + len(followers(FOUND)) == len(FOUND)
    assert {entry.head.id for entry in followers(FOUND)} == {"E6-kinked", "F4", "G6", "H4"}


def test_the_severest_fault_of_an_item_is_the_one_that_changes_a_result() -> None:
    by_name = {row.item.name: row for row in rows(FOUND, THIS)}
    worst = by_name["Proposition 1"].severest
    assert (worst.head.id, worst.standing) == ("B1", "missing assumption")  # B4 is false, but in a proof
    assert by_name["Example 2"].severest.standing == "holds"
    assert by_name["Lemma EC.4"].severest.standing == "imprecise"  # of a line that is not the head


# --- The opening ----------------------------------------------------------------------------------


def named(text: str) -> set[str]:
    return set(re.findall(r"[A-Z]\d+[a-z]?(?:-[a-z]+)?(?=[,)])", text)) & {claim.id for claim in CLAIMS}


def test_the_opening_names_each_fault_by_its_consequence() -> None:
    stands, changes, repairs, rest = overview.overview(CLAIMS)
    by_consequence = {
        consequence: {entry.head.id for entry in FOUND if entry.kind and entry.consequence is consequence}
        for consequence in Consequence
    }
    assert named(stands) == set()
    assert named(changes) == by_consequence[Consequence.RESULT]
    assert named(repairs) == by_consequence[Consequence.REPAIR]
    assert named(rest) == by_consequence[Consequence.NONE]
    assert overview.overview(CLAIMS[1:]) == []


# --- Quotations -----------------------------------------------------------------------------------

QUOTED = {entry.id: entry.quote for entry in CLAIMS if entry.quote}


def test_quotation_stands_in_the_paper() -> None:
    if (tex := paper.source()) is None:
        pytest.skip("PHIBALL_PAPER names no source of the paper")
    assert [name for name, quote in QUOTED.items() if not paper.is_quoted(quote, tex)] == []


@pytest.mark.parametrize(
    ("quote", "quoted"),
    [
        (r"we find $a\le b$", True),
        ("we find [...] holds", True),
        ("holds [...] we find", False),
        (r"we find $a<b$", False),
        ("we found", False),
        ("we find [...] ", False),
    ],
)
def test_quotation_is_compared_word_by_word(quote: str, quoted: bool) -> None:
    text = paper.without_comments("so we~find % not this\n\\[ a\\le b \\label{Eq:x} \\]\nholds.")
    assert paper.is_quoted(quote, text) is quoted


def test_formulas_in_quotations_convert() -> None:
    for name, quote in QUOTED.items():
        for text, is_math in pieces(quote, THIS):
            assert not is_math or mathml(text) is not None, (name, text)
            assert is_math or "\\" not in text, (name, text)


def test_references_in_quotations_have_their_numbers() -> None:
    shown = quote_html(
        r"by Lemma~\ref{Lemma:phi:div}\ref{Assumption:chi2}, \eqref{Eq:G:ell} & \textbf{so}", THIS
    )
    assert shown == "by Lemma EC.3(I), (12) &amp; so"
    with pytest.raises(ValueError, match="label is 'nonsense', which the paper does not have"):
        THIS.reference("nonsense")


# --- The code -------------------------------------------------------------------------------------


def test_places_are_those_of_the_code() -> None:
    for claim in CLAIMS:
        for at in (
            place(claim.statement),
            *(oracle.rpartition(" ")[2] for oracle in oracles_of(claim.statement)),
        ):
            path, _, line = at.rpartition(":")
            code = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            assert code.startswith(("@", "def ")), (claim.id, at)
    assert [oracle.split()[0] for oracle in oracles_of(find("A1")[0].statement)][:2] == [
        "solve_exactly",
        "dual_minimum",
    ]
    assert oracles_of(find("C7")[0].statement) == ()
    assert place(lambda: None) == ""
    assert [enumerates(find(name)[0].statement) for name in ("D5", "A1")] == [True, False]
