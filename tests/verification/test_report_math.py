"""Formulas of the report: those of all claims convert, and look as they should."""

from __future__ import annotations

import pytest

from phiball.verification.framework.runner import all_claims
from phiball.verification.report.math import formula, markdown_math, mathml, prose


def test_formulas_of_all_claims_convert() -> None:
    for claim in all_claims():
        for tex in filter(None, (claim.formula, claim.corrected)):
            assert mathml(tex) is not None, (claim.id, tex)


@pytest.mark.parametrize("tex", [r"\frac{1", r"\nosuchcommand x", r"\begin{aligned} a &= b \end{aligned}"])
def test_formula_that_does_not_convert_is_shown_as_it_is(tex: str) -> None:
    assert mathml(tex) is None
    assert formula(tex).startswith("<code>\\")


@pytest.mark.parametrize(
    ("tex", "part"),
    [
        (r"\lim_{n\to\infty} a_n", "<munder><mo"),
        (r"\operatorname{ess\,sup} f", ">ess\N{THIN SPACE}sup</mo>"),
        (r"z\sim\nu", ">\N{TILDE OPERATOR}</mo>"),
        (r"\mathbf{1}", "\N{MATHEMATICAL BOLD DIGIT ONE}"),
        (r"\log x", '<mi>log</mi><mspace width="0.17em"'),
        (r"\exp(x)", "<mi>exp</mi><mo"),
    ],
)
def test_formula_is_polished(tex: str, part: str) -> None:
    assert part in str(mathml(tex))


def test_long_formula_may_be_broken_at_relations() -> None:
    pieces = str(mathml(r"a = f(x = y) \le \left(b = c\right) + 1, \quad d \in Z"))
    assert pieces.count("<math ") == 5
    assert pieces.count("<wbr>") == 4
    assert pieces.count('form="infix"') == 3


def test_markdown_leaves_the_formula_alone() -> None:
    assert markdown_math("\\|x\\|\n\\le \\{1\\}") == "$$\n\\Vert x\\Vert \\le \\lbrace 1\\rbrace\n$$"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("L_f^2 e^(4B/eta)/2^l", "L<sub>f</sub><sup>2</sup> e<sup>4B/η</sup>/2<sup>l</sup>"),
        ("D(mu) - R <= eps", "D(μ) \N{MINUS SIGN} R ≤ ε"),
        ("e^(B/(2 eta)), eta^0.5, D_*", "e<sup>B/(2 η)</sup>, η<sup>0.5</sup>, D<sub>*</sub>"),
        ("max_{z in Z} f(z)_+", "max<sub>z in Z</sub> f(z)<sub>+</sub>"),
        ("cressie_read(2) <b>", "cressie_read(2) &lt;b&gt;"),
        ("abs(x - 1), sqrt(eta)", "|x \N{MINUS SIGN} 1|, √(η)"),
        ("beta-version of a theta_1", "β-version of a θ<sub>1</sub>"),
    ],
)
def test_words_have_signs_on_the_page(text: str, shown: str) -> None:
    assert prose(text) == shown
