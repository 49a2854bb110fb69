"""Synthetic results for tests of the report: every verdict, and every field of a claim."""

from collections.abc import Iterator
from math import inf

from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import Claim, claim, unchecked
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.framework.result import Result

CURVE = Curve(
    "bias <of> the estimate",
    "n",
    "F - F^l",
    "the paper's bound G 2^-l",
    (1.0, 2.0, 4.0, 8.0, 16.0),
    (0.5, 0.26, 0.12, 0.063, 0.03),
    (2.0, 1.0, 0.5, 0.25, 0.125),
)


OPEN = Assessment(Kind.OPEN, Consequence.NONE, "There are no numbers.")
FALSE = Assessment(Kind.FALSE, Consequence.RESULT, "It fails for f = (0, 1).", follows=("D2",))


def synthetic_claims() -> list[Claim]:
    """Return claims of every kind; the last two do not reach their recorded verdicts."""

    @claim(
        "Proposition 9 (I)",
        id="D1",
        section=3,
        verdict=Verdict.HOLDS,
        formula=r"\left\|\nabla F\right\| \le \frac{1}{n}\sum_{i=1}^n \max(0, f_i)",
        assumptions="f is L_f-Lipschitz & bounded",
        error_level=1e-6,
    )
    def rate() -> Iterator[Evidence | Curve]:
        """The bias falls like 2^-l <= 1."""
        yield CURVE
        yield CURVE.at_most(-1, 0.05)

    @claim(
        "Proposition 9 (II)",
        id="D2",
        section=3,
        verdict=Verdict.CORRECTED,
        formula=r"\phi\ge 0",
        quote=r"$\phi^*$ is <strictly> convex",
        correction="phi* is convex; mu* need not be unique",
        corrected=r"\{\mu : \phi^*(\mu) < \infty\}",
        remark="phi* is <closed>",
        assessment=Assessment(
            Kind.IMPRECISE,
            Consequence.REPAIR,
            "mu* is not <unique>.",
            reading="convex is strictly convex",
            others=(Reading("convex is convex", "true & well known"),),
        ),
    )
    def corrected() -> Evidence:
        """phi* is convex."""
        return Evidence(-0.25, 0.0, "phi*(0) + phi*(1)")

    @claim(
        "Proposition 9 (II)",
        id="D2-strict",
        section=3,
        part_of="D2",
        verdict=Verdict.REFUTED,
        correction="no",
        quote="phi* is $<$ [...] convex",
        assessment=Assessment(
            Kind.IMPRECISE,
            Consequence.NONE,
            "It is flat.",
            reading="convex is strictly convex",
            others=(Reading("convex is convex", "true: see D2"),),
        ),
    )
    def strictly() -> Evidence:
        """phi* is strictly convex."""
        return Evidence.at_most(3.0, 2.0, 0.0)

    strictly.counterexample(margin=0.5)(lambda: Evidence(1.0, 0.0, "phi* = s_+"))

    corrected.counterexample(margin=0.5)(lambda: Evidence(1.0, 0.0, "f = (0, 1): 1 | not 0"))

    @claim(
        "Lemma 9",
        id="G1",
        section=4,
        verdict=Verdict.REFUTED,
        correction="nothing",
        formula=r"\frac{1",
        assessment=FALSE,
    )
    def refuted() -> Evidence:
        """Is false."""
        return Evidence(inf, 0.0, "f = (0, 1)")

    refuted.counterexample(margin=0.5)(lambda: Evidence(inf, 0.0))

    @claim("Lemma 10", id="G2-sharp", section="beyond", verdict=Verdict.HOLDS)
    def differs() -> Evidence:
        """Is said to hold."""
        return Evidence(1.0, 0.5)

    @claim("Lemma 11", id="G3-sharp", section="beyond", verdict=Verdict.HOLDS)
    def breaks() -> Evidence:
        """Breaks."""
        raise ZeroDivisionError("by <nought>")

    @unchecked("Figure 9", id="S9", section=6, reason="no data", correction="it is good", assessment=OPEN)
    def silent() -> None:
        """It is best."""

    return [rate, corrected, strictly, refuted, silent, differs, breaks]


def results() -> list[Result]:
    """Return the results of the synthetic claims."""
    return [claim.run() for claim in synthetic_claims()]
