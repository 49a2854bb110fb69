"""Section 6 of the paper: what its figures and tables say of themselves, and the toy loss of Section 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import nan, sqrt
from typing import Any, TypeAlias

import numpy as np
from scipy.signal import find_peaks
from scipy.stats import binom

from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import claim, unchecked
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.studies import RETURNS, Losses, shapes, toy_loss
from phiball.verification.instances.tolerances import TEST_LEVEL

# --- Section 6.1 ----------------------------------------------------------------------------------


@unchecked(
    "Section 6.1, results",
    id="S1",
    reason="the paper gives curves without numbers, of networks trained on data that is not part of a check",
    quote=r"the regularized adversarial risk model consistently outperforms all baselines",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "The curves are not given as numbers; the study in experiments/studies/supervised trains the same "
        "networks at a smaller scale.",
    ),
)
def regularized_is_best() -> None:
    """On MNIST, Fashion-MNIST and Kuzushiji-MNIST the regularised model has the lowest error rate."""


Columns: TypeAlias = tuple[tuple[str, str], ...]


def caption_columns() -> Columns:
    """The four columns of the figure, from left to right, by its caption."""
    return (("l2", "white noise"), ("linf", "white noise"), ("l2", "attack"), ("linf", "attack"))


def text_columns() -> Columns:
    """The same by the text."""
    return (("l2", "attack"), ("linf", "attack"), ("l2", "white noise"), ("linf", "white noise"))


@claim(
    "Section 6.1, results",
    id="S1-columns",
    verdict=Verdict.HOLDS,
    quote=r"four columns correspond to different types of perturbations~($\ell_2$/$\ell_{\infty}$ "
    r"adversarial "
    r"attack, and $\ell_2/\ell_{\infty}$ white noise attack)",
    remark="The caption gives the order from left to right, white noise first. The text names attacks first, "
    "which is a list and need not be an order.",
)
def columns_agree(columns: Callable[[], Columns] = text_columns) -> Evidence:
    """The text and the caption of Figure 3 name the same four perturbations."""
    odd = set(columns()) ^ set(caption_columns())
    return Evidence(len(odd), 0.0, f"named in one of the two alone: {len(odd)}")


@columns_agree.mutant("names the attacks alone")
def _() -> Columns:
    return (("l2", "attack"), ("linf", "attack"))


# --- Section 6.2: the table -----------------------------------------------------------------------


def true_cap() -> float:
    """The longest episode of the environment that the table fits: that of CartPole-v1."""
    return 500.0


@claim(
    "Section 6.2, returns",
    id="J4",
    verdict=Verdict.CORRECTED,
    formula=r"\bar{G} \le 400",
    assumptions="a step of the cart-pole is rewarded by 1",
    quote=r"The environment caps episodes to $400$ steps.",
    correction="a cap of 500, as in CartPole-v1, fits the table",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.NONE,
        "Four of the eight mean returns of Table 3 are above the cap of 400 that the caption of the training "
        "figure gives.",
        reading="the environment of Table 3 is that of Figure 4, with its cap",
        others=(
            Reading("the cap is that of training alone", "no contradiction; the cap of Table 3 is not given"),
        ),
    ),
    corrected=r"\bar{G} \le 500",
)
def returns_below_the_cap(cap: Callable[[], float] = true_cap) -> Iterator[Evidence]:
    """The mean returns are at most the cap of an episode, and their spread is one that they can have."""
    longest = cap()
    for mean, bar in RETURNS:
        yield Evidence(mean - longest, 0.0, f"the mean {mean} and the cap {longest:.0f}")
        # Numbers in [0, cap] of mean m have a variance of at most m (cap - m); ten trials, n - 1.
        yield Evidence(bar - sqrt(mean * (longest - mean) * 10 / 9), 0.0, f"the error bar {bar} at {mean}")


@returns_below_the_cap.counterexample(margin=18.4)
def _above_the_cap() -> Iterator[Evidence]:
    for mean, _ in RETURNS:
        if mean > 400:
            yield Evidence(mean - 400, 0.0, f"a mean return of {mean}, with a cap of 400 steps of reward 1")


@returns_below_the_cap.mutant("the printed cap")
def _() -> float:
    return 400.0


NUMBERED = {
    "table": ("hyper-parameters, convex", "hyper-parameters, nonconvex", "returns of Q-learning"),
    "figure": ("landscape", "worst cases", "supervised learning", "training of Q-learning", "pricing"),
}
"""The tables and figures, in the order of the source."""


def right_numbers() -> dict[tuple[str, str], int]:
    """What the text of Section 6.2 means."""
    return {("figure", "training of Q-learning"): 4, ("table", "returns of Q-learning"): 3}


def text_numbers() -> dict[tuple[str, str], int]:
    """What the text of Section 6.2 refers to, written out instead of by a label."""
    return {("figure", "training of Q-learning"): 3, ("table", "returns of Q-learning"): 2}


def _off_by(numbers: Callable[[], dict[tuple[str, str], int]]) -> Iterator[Evidence]:
    for (kind, what), number in numbers().items():
        true = NUMBERED[kind].index(what) + 1
        yield Evidence(abs(number - true), 0.0, f"{what}: {kind} {number} in the text, it is {kind} {true}")


@claim(
    "Section 6.2, references",
    id="J4-numbers",
    verdict=Verdict.CORRECTED,
    quote=r"Figure~3 demonstrates the training process [...] we report the performance of trained policies "
    r"in "
    r"original and perturbed MDP environments in Table~2",
    correction="the training process is in Figure 4, and the returns are in Table 3",
    assessment=Assessment(
        Kind.MISPRINT, Consequence.NONE, "The two numbers are written out, and others precede them by now."
    ),
)
def references_agree(numbers: Callable[[], dict[tuple[str, str], int]] = right_numbers) -> Iterator[Evidence]:
    """Figure 4 shows the training of Q-learning, and Table 3 its returns."""
    yield from _off_by(numbers)


@references_agree.counterexample(margin=1)
def _numbers() -> Iterator[Evidence]:
    yield from _off_by(text_numbers)


references_agree.mutant("the numbers of the text")(text_numbers)


# --- The toy loss of Section 2, in the last appendix ----------------------------------------------

Shapes: TypeAlias = Callable[[], tuple[tuple[int, int], ...]]


def printed_shapes() -> tuple[tuple[int, int], ...]:
    """The same as printed, the second W_2 taken for W_3."""
    return (*shapes()[:3], (10, 1))


def _mismatch(of: Shapes) -> int:
    """How many dimensions do not fit, from the 5 entries of z' to the one of g."""
    inside = (5, *(rows for rows, _ in of()))
    return sum(abs(cols - n) for (_, cols), n in zip(of(), inside, strict=False)) + abs(inside[-1] - 1)


@claim(
    "Section EC.7, toy loss",
    id="Q1",
    verdict=Verdict.CORRECTED,
    formula=r"g(z) = W_4 \, \mathrm{Sigmoid}(W_3 \, \mathrm{Sp}(W_2 \, \mathrm{Sp}(W_1 z'))), \quad "
    r"W_4 \in \mathbb{R}^{10 \times 1}",
    quote=r"$W_2\in\mathbb{R}^{10\times512}, W_4\in\mathbb{R}^{10\times 1}$",
    correction="W_3 is 10 x 512 (printed as a second W_2) and W_4 is 1 x 10",
    remark="The four matrices make four layers, where Section 2.2 says three.",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "As printed W_3 has no size, and W_4 cannot be multiplied as it stands.",
    ),
    corrected=r"W_3 \in \mathbb{R}^{10 \times 512}, \quad W_4 \in \mathbb{R}^{1 \times 10}",
)
def dimensions_fit(of: Shapes = shapes) -> Evidence:
    """The four matrices can be multiplied as the formula says, and g is a real number."""
    return Evidence(_mismatch(of), 0.0, f"shapes {of()}")


@dimensions_fit.counterexample(margin=9)
def _printed() -> Evidence:
    return Evidence(_mismatch(printed_shapes), 0.0, "W_4 of shape (10, 1) meets a vector of length 10, not 1")


dimensions_fit.mutant("the printed W_4")(printed_shapes)


DRAWS, POINTS = 100, np.linspace(-5, 5, 161, dtype=np.float32)


@cache
def _draws(loss: Losses, seed: int) -> list[Any]:
    return [loss(DRAWS * seed + k, POINTS) for k in range(DRAWS)]


def maxima(f: Any) -> int:
    """Local maxima on the interval, ends and flat ones included, that stand out by 1 % of the range."""
    return len(find_peaks(np.concatenate([[-1.0], f, [-1.0]]), prominence=0.01 * np.ptp(f) + 1e-12)[0])


SHARE = 0.8  # 325 of 400 draws have three maxima or more
LEAST = int(binom.ppf(TEST_LEVEL, DRAWS, SHARE))  # fewer hits are next to impossible


@claim(
    "Section 2.2, toy loss",
    id="Q2",
    verdict=Verdict.HOLDS,
    formula=r"P\left(\text{f has three local maxima or more on } [-5, 5]\right) > \frac12",
    assumptions="read as a statement on the printed law of the weights, as those of the paper are not given; "
    "many is three or more, of 1 % of the range",
    quote=r"the inner maximization problem contains many local maxima",
    error_level=TEST_LEVEL,
)
def many_local_maxima(loss: Losses = toy_loss, seed: int = 0) -> Evidence:
    """The toy loss has many local maxima on [-5, 5], more often than not: in four draws of five."""
    hits = sum(maxima(f) >= 3 for f in _draws(loss, seed))
    note = f"three local maxima or more in {hits} of {DRAWS} draws; {LEAST} are the least to be expected"
    return Evidence(LEAST - hits, 0.0, note)


@many_local_maxima.mutant("leaves out the network")
def _(seed: int, z: Any) -> Any:
    return z * z


@unchecked(
    "Section 2.2, finding 1",
    id="Q2-area",
    reason="the paper describes its own draw of the weights, and does not give it",
    quote=r"the worst-case perturbation area, i.e., the area close to $x=5$",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "Where the maximum lies depends on the draw, of which the paper gives the law alone.",
    ),
)
def worst_area_is_near_five() -> Evidence:
    """The maximum of the toy loss on [-5, 5] lies near 5."""
    hits = sum(POINTS[int(np.argmax(f))] >= 4 for f in _draws(toy_loss, 0))
    return Evidence(nan, 0.0, f"of {DRAWS} draws from the printed law, {hits} have their maximum in [4, 5]")
