"""Section 6 of the paper: statements on its figures and tables, and the toy loss of Section 2.2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from math import nan, sqrt
from typing import Any, TypeAlias

import numpy as np
from scipy.signal import find_peaks
from scipy.special import expit
from scipy.stats import binom

from phiball.backends import active
from phiball.refimpl import Ball, fgm
from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import claim, unchecked
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import evidence_from
from phiball.verification.instances.conversion import array
from phiball.verification.instances.tolerances import TEST_LEVEL

# --- Section 6.1 ----------------------------------------------------------------------------------


@unchecked(
    "Section 6.1, results",
    id="S1",
    reason="the paper shows curves without numbers, and a check would require training its networks",
    quote=r"the regularized adversarial risk model consistently outperforms all baselines",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "The curves are not given as numbers. The study in experiments/studies/supervised trains the same "
        "networks on a smaller scale.",
    ),
)
def regularized_is_best() -> None:
    """On MNIST, Fashion-MNIST and Kuzushiji-MNIST the regularized model has the lowest error rate."""


Columns: TypeAlias = tuple[tuple[str, str], ...]


def caption_columns() -> Columns:
    """The four columns of the figure from left to right, according to its caption."""
    return (("l2", "white noise"), ("linf", "white noise"), ("l2", "attack"), ("linf", "attack"))


def text_columns() -> Columns:
    """The four columns of the figure in the order of the text."""
    return (("l2", "attack"), ("linf", "attack"), ("l2", "white noise"), ("linf", "white noise"))


@claim(
    "Section 6.1, results",
    id="S1-columns",
    verdict=Verdict.HOLDS,
    quote=r"four columns correspond to different types of perturbations~($\ell_2$/$\ell_{\infty}$ "
    r"adversarial attack, and $\ell_2/\ell_{\infty}$ white noise attack)",
    remark="The caption lists the columns from left to right, white noise first. The text lists the attacks "
    "first, not necessarily in the order of the columns.",
)
def columns_agree(columns: Callable[[], Columns] = text_columns) -> Evidence:
    """The text and the caption of Figure 3 name the same four perturbations."""
    count = len(set(columns()) ^ set(caption_columns()))
    return Evidence(count, 0.0, f"named only in the text or only in the caption: {count}")


columns_agree.mutant("names only the attacks")(lambda: (("l2", "attack"), ("linf", "attack")))


# --- Section 6.2: the table -----------------------------------------------------------------------

RETURNS = (
    *((469.42, 19.03), (487.11, 9.09), (187.63, 29.40), (394.12, 12.01)),
    *((355.54, 28.89), (443.17, 9.98), (271.41, 20.70), (418.42, 13.64)),
)
"""Means and error bars in Table 3 over ten trials: regular, then robust, in each of four environments."""


def true_cap() -> float:
    """The length of the longest episode in CartPole-v1, with which the table agrees."""
    return 500.0


@claim(
    "Section 6.2, returns",
    id="J4",
    verdict=Verdict.CORRECTED,
    formula=r"\bar{G} \le 400",
    assumptions="the reward of each step is 1",
    quote=r"The environment caps episodes to $400$ steps.",
    correction="a cap of 500 steps, as in CartPole-v1, agrees with the table",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.NONE,
        "Four of the eight mean returns in Table 3 exceed the cap of 400 steps in the caption of Figure 4.",
        reading="Table 3 uses the environment of Figure 4, with its cap",
        others=(
            Reading("the cap applies to training only", "no contradiction; the cap of Table 3 is not stated"),
        ),
    ),
    corrected=r"\bar{G} \le 500",
)
def returns_below_the_cap(cap: Callable[[], float] = true_cap) -> Iterator[Evidence]:
    """The mean returns are at most the cap of an episode, and their error bars are compatible with it."""
    longest = cap()
    for mean, bar in RETURNS:
        yield Evidence(mean - longest, 0.0, f"the mean {mean} and the cap {longest:.0f}")
        # Ten numbers in [0, cap] with mean m have a sample variance of at most 10/9 m (cap - m).
        yield Evidence(bar - sqrt(mean * (longest - mean) * 10 / 9), 0.0, f"the error bar {bar} at {mean}")


@returns_below_the_cap.counterexample(margin=18.4)
def _above_the_cap() -> Iterator[Evidence]:
    for mean, _ in RETURNS:
        if mean > 400:
            note = f"a mean return of {mean}, although 400 steps of reward 1 give at most 400"
            yield Evidence(mean - 400, 0.0, note)


returns_below_the_cap.mutant("uses the printed cap")(lambda: 400.0)


NUMBERED = {
    "table": ("hyper-parameters, convex", "hyper-parameters, nonconvex", "returns of Q-learning"),
    "figure": ("landscape", "worst cases", "supervised learning", "training of Q-learning", "pricing"),
}
"""The tables and figures of the paper, in the order of their numbers."""


Numbers: TypeAlias = Callable[[], dict[tuple[str, str], int]]


def correct_numbers() -> dict[tuple[str, str], int]:
    """The correct numbers for the references in the text of Section 6.2."""
    return {("figure", "training of Q-learning"): 4, ("table", "returns of Q-learning"): 3}


def text_numbers() -> dict[tuple[str, str], int]:
    """The numbers that the text of Section 6.2 prints."""
    return {("figure", "training of Q-learning"): 3, ("table", "returns of Q-learning"): 2}


@claim(
    "Section 6.2, references",
    id="J4-numbers",
    verdict=Verdict.CORRECTED,
    quote=r"Figure~3 demonstrates the training process [...] we report the performance of trained policies "
    r"in original and perturbed MDP environments in Table~2",
    correction="the training process is in Figure 4, and the returns are in Table 3",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "The two numbers are typed by hand instead of referring to labels, and are too small by one.",
    ),
)
def references_agree(numbers: Numbers = correct_numbers) -> Iterator[Evidence]:
    """Figure 4 shows the training of Q-learning, and Table 3 its returns."""
    for (kind, what), number in numbers().items():
        correct = NUMBERED[kind].index(what) + 1
        note = f"{what}: cited as {kind} {number}, numbered {kind} {correct}"
        yield Evidence(abs(number - correct), 0.0, note)


@references_agree.counterexample(margin=1)
def _numbers() -> Iterator[Evidence]:
    yield from evidence_from(references_agree, text_numbers)


references_agree.mutant("uses the numbers of the text")(text_numbers)


# --- The toy loss of Section 2, in the last appendix ----------------------------------------------

Losses: TypeAlias = Callable[[int, Any], Any]


def correct_shapes() -> tuple[tuple[int, int], ...]:
    """Shapes of W_1 to W_4 for which g maps R to R."""
    return ((512, 5), (512, 512), (10, 512), (1, 10))


@lru_cache(maxsize=1)
def toy_weights(seed: int) -> list[Any]:
    """W_1 to W_4, drawn from the printed distribution."""
    rng = np.random.default_rng(seed)
    # 0.25 in N(0, 0.25) is read as the variance, as in N(0, I).
    drawn = [rng.standard_normal(size=shape, dtype=np.float32) for shape in correct_shapes()]
    return [drawn[0] / 2, *drawn[1:]]


def toy_loss(seed: int, z: Any) -> Any:
    """f(z) = g(z)^2 at each z, with weights drawn from the printed distribution."""
    W1, W2, W3, W4 = toy_weights(seed)

    def softplus(t: Any) -> Any:
        return np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))

    basis = np.stack([z, np.sqrt(np.abs(z)), z * z, np.sin(z), np.cos(z)])
    return (W4 @ expit(W3 @ softplus(W2 @ softplus(W1 @ basis))))[0] ** 2


Shapes: TypeAlias = Callable[[], tuple[tuple[int, int], ...]]


def printed_shapes() -> tuple[tuple[int, int], ...]:
    """The printed shapes, reading the second W_2 as W_3."""
    return (*correct_shapes()[:3], (10, 1))


def _mismatch(shapes: Shapes) -> int:
    """The sum over W_1 to W_4 of abs(columns - length of the input), where z' has 5 entries and g has 1."""
    lengths = (5, *(rows for rows, _ in shapes()))
    return sum(abs(cols - n) for (_, cols), n in zip(shapes(), lengths, strict=False)) + abs(lengths[-1] - 1)


@claim(
    "Section EC.7, toy loss",
    id="Q1",
    verdict=Verdict.CORRECTED,
    formula=r"g(z) = W_4 \, \mathrm{Sigmoid}(W_3 \, \mathrm{Sp}(W_2 \, \mathrm{Sp}(W_1 z'))), \quad "
    r"W_4 \in \mathbb{R}^{10 \times 1}",
    quote=r"$W_2\in\mathbb{R}^{10\times512}, W_4\in\mathbb{R}^{10\times 1}$",
    correction="W_3 is 10 x 512 (printed as a second W_2) and W_4 is 1 x 10",
    remark="The four matrices make four layers; Section 2.2 says three.",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "As printed, W_3 has no size, and W_4 has the wrong shape for the product.",
    ),
    corrected=r"W_3 \in \mathbb{R}^{10 \times 512}, \quad W_4 \in \mathbb{R}^{1 \times 10}",
)
def dimensions_fit(shapes: Shapes = correct_shapes) -> Evidence:
    """The four matrices have compatible shapes, and g is a real number."""
    return Evidence(_mismatch(shapes), 0.0, f"shapes {shapes()}")


@dimensions_fit.counterexample(margin=9)
def _printed() -> Evidence:
    note = "W_4 of shape (10, 1) is multiplied by a vector of length 10, not 1"
    return Evidence(_mismatch(printed_shapes), 0.0, note)


dimensions_fit.mutant("uses the printed W_4")(printed_shapes)


DRAWS, POINTS = 100, np.linspace(-5, 5, 161, dtype=np.float32)


@cache
def _drawn_losses(loss: Losses, seed: int) -> list[Any]:
    return [loss(DRAWS * seed + k, POINTS) for k in range(DRAWS)]


def maxima(f: Any) -> int:
    """Count the local maxima, including ends and plateaus, with prominence over 1 % of the range of f."""
    return len(find_peaks(np.concatenate([[-1.0], f, [-1.0]]), prominence=0.01 * np.ptp(f) + 1e-12)[0])


SHARE = 0.8  # of 400 draws, 325 have three maxima or more, and linearization fails for 339
LEAST_HITS = int(binom.ppf(TEST_LEVEL, DRAWS, SHARE))


@claim(
    "Section 2.2, toy loss",
    id="Q2",
    verdict=Verdict.HOLDS,
    formula=r"P\left(\text{f has three local maxima or more on } [-5, 5]\right) > \frac12",
    assumptions="read as a statement on the printed distribution of the weights, since the weights of the "
    "paper are not given; many means three or more, each with a prominence of 1 % of the range",
    quote=r"the inner maximization problem contains many local maxima",
    error_level=TEST_LEVEL,
)
def many_local_maxima(loss: Losses = toy_loss, seed: int = 0) -> Evidence:
    """The toy loss has many local maxima on [-5, 5] with probability above 1/2: in four of five draws."""
    hits = sum(maxima(f) >= 3 for f in _drawn_losses(loss, seed))
    note = f"three local maxima or more in {hits} of {DRAWS} draws; at least {LEAST_HITS} are expected"
    return Evidence(LEAST_HITS - hits, 0.0, note)


many_local_maxima.mutant("omits the network")(lambda seed, z: z * z)


@unchecked(
    "Section 2.2, finding 1",
    id="Q2-area",
    reason="the statement is about one draw of the weights, which the paper does not give",
    quote=r"the worst-case perturbation area, i.e., the area close to $x=5$",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "The location of the maximum depends on the weights, and the paper gives only their distribution.",
    ),
)
def worst_area_is_near_five() -> Evidence:
    """The maximum of the toy loss on [-5, 5] lies near 5."""
    hits = sum(POINTS[int(np.argmax(f))] >= 4 for f in _drawn_losses(toy_loss, 0))
    note = f"of {DRAWS} draws from the printed distribution, {hits} have their maximum in [4, 5]"
    return Evidence(nan, 0.0, note)


# --- Section 6.2 ----------------------------------------------------------------------------------

Table: TypeAlias = Callable[[], tuple[tuple[float, float, float, float], ...]]


def printed_returns() -> tuple[tuple[float, float, float, float], ...]:
    """For each environment: mean and error bar of regular, then of robust Q-learning."""
    return tuple((*RETURNS[2 * k], *RETURNS[2 * k + 1]) for k in range(4))


@claim(
    "Section 6.2, comparison of returns",
    id="J5",
    verdict=Verdict.HOLDS,
    formula=r"\bar G_{robust} > \bar G_{regular} \text{ in each of the four environments}",
    assumptions="the printed numbers of Table 3",
    quote=r"we can see that our proposed robust $Q$-learning algorithm consistently outperforms the regular "
    r"non-robust algorithm",
    remark="If the errors are independent, the difference of 17.69 in the original environment is smaller "
    "than its error bar of 21.09; in the three others it is several times larger. The paper does not define "
    "the bars. Our runs, shown beside the table below, reproduce the order in one configuration, chosen for "
    "this purpose; other configurations reverse it.",
)
def robust_is_above_regular(table: Table = printed_returns) -> Iterator[Evidence]:
    """In Table 3 the robust policy has the larger mean return in all four environments."""
    names = ("original", "heavy", "short", "strong g")
    for name, (regular, regular_bar, robust, robust_bar) in zip(names, table(), strict=True):
        bar = sqrt(regular_bar**2 + robust_bar**2)
        note = f"{name}: the difference is {robust - regular:.2f}, with an error bar of {bar:.2f}"
        yield Evidence(regular - robust, 0.0, note)


@robust_is_above_regular.mutant("reverses one environment")
def _() -> tuple[tuple[float, float, float, float], ...]:
    first, *others = printed_returns()
    return ((*first[2:], *first[:2]), *others)


@unchecked(
    "Section 6.2, training",
    id="J6",
    reason="the paper shows two training curves without numbers, and does not give the grid of states, the "
    "schedules, rho or eta",
    quote=r"the robust $Q$-learning algorithm learns the optimal policy more efficiently than the regular "
    r"MDP",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "Neither the curves nor the parameters are given as numbers. The study in "
        "experiments/studies/cartpole shows curves of our runs.",
    ),
)
def robust_learns_faster() -> None:
    """Robust Q-learning needs fewer episodes than regular Q-learning to learn the optimal policy."""


# --- Section 6.3 ----------------------------------------------------------------------------------


@unchecked(
    "Section 6.3, scenarios",
    id="P4",
    reason="the paper shows the improvements only in a figure, for a problem that is unbounded as printed "
    "(P1), and does not state the norm of the balls",
    quote=r"For all scenarios, we can see the regularized robust CSO model outperforms the un-regularized "
    r"one.",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "The improvements are not given as numbers. The study in experiments/studies/pricing finds the same "
        "order in every scenario with linf balls, but not with l2 balls.",
    ),
)
def regularized_prices_are_better() -> None:
    """In all twenty scenarios the regularized model improves more on ERM than the unregularized one."""


@unchecked(
    "Section 6.3, negative improvements",
    id="P5",
    reason="the paper shows the improvements only in a figure, for a problem that is unbounded as printed "
    "(P1), and does not state the norm of the balls",
    quote=r"the un-regularized DRO model has negative improvements in general, mainly due to the "
    r"computational intractability of Problem~\eqref{Eq:casual:dual}",
    assessment=Assessment(
        Kind.OPEN,
        Consequence.NONE,
        "The study in experiments/studies/pricing finds the same sign with linf balls. There, solving the "
        "inner problem better yields worse pricing rules, which suggests that the cause is conservatism "
        "rather than intractability.",
    ),
)
def unregularized_prices_are_worse_than_erm() -> None:
    """The unregularized model is worse than ERM, because its inner problem is hard to solve."""


# --- Remark 4: linearization of the toy loss ------------------------------------------------------

Estimate: TypeAlias = Callable[[int, float], float]


def toy_slope(draw: int, x: float) -> float:
    """The derivative of the toy loss at x, up to a positive factor that avoids underflow."""
    W1, W2, W3, W4 = (W.astype(float) for W in toy_weights(draw))
    basis = np.array([x, sqrt(abs(x)), x * x, np.sin(x), np.cos(x)])
    derivative = np.array([1.0, np.sign(x) / (2 * sqrt(abs(x))), 2 * x, np.cos(x), -np.sin(x)])
    for W in (W1, W2):
        inner, derivative = W @ basis, W @ derivative
        basis, derivative = np.logaddexp(0, inner), expit(inner) * derivative
    a, derivative = W3 @ basis, W3 @ derivative
    log_slope = -np.abs(a) - 2 * np.log1p(np.exp(-np.abs(a)))  # of the sigmoid
    g = float((W4 @ expit(a))[0])
    return g * float(W4[0] @ (np.exp(log_slope - log_slope.max()) * derivative))


def linearised_maximum(draw: int, x: float) -> float:
    """The maximizer over [-5, 5] of the linear approximation of the toy loss at x, by FGM."""
    xp = active().namespace
    # A ball around x that contains [-5, 5], clipped to this interval.
    ball, start = Ball(2, 10.0, clip=(-5.0, 5.0)), xp.full((1, 1), x, dtype=xp.float64)
    found = fgm(None, start, ball, gradient=lambda z, i: array([[toy_slope(draw, x)]]))
    return float(xp.sum(found))


@claim(
    "Remark 4, linear approximation",
    id="Q3",
    verdict=Verdict.HOLDS,
    formula=r"\max_{[-5,5]} f - f(\pm 5) > \frac{1}{100} \left(\max f - \min f\right)",
    assumptions="read as a statement on the printed distribution of the weights, since the weights of the "
    "paper are not given; the loss is linearized at x = 0.1, because it is not differentiable at 0, where "
    "one of its inputs is sqrt(abs(z))",
    quote=r"its linear approximation around $x=0$ will yield a wrong global maximum estimate",
    error_level=TEST_LEVEL,
)
def linearisation_is_wrong(
    loss: Losses = toy_loss, estimate: Estimate = linearised_maximum, seed: int = 0
) -> Evidence:
    """A linear approximation near 0 is largest at an end of [-5, 5]; the loss is usually larger elsewhere."""
    wrong = 0
    for k, f in enumerate(_drawn_losses(loss, seed), start=DRAWS * seed):
        reached = float(loss(k, np.array([estimate(k, 0.1)], dtype=np.float32))[0])
        wrong += float(f.max()) - reached > 0.01 * float(np.ptp(f))
    note = f"a wrong maximum in {wrong} of {DRAWS} draws; at least {LEAST_HITS} are expected"
    return Evidence(LEAST_HITS - wrong, 0.0, note)


linearisation_is_wrong.mutant("searches the whole interval", replaces="estimate")(
    lambda draw, x: float(POINTS[int(np.argmax(_drawn_losses(toy_loss, draw // DRAWS)[draw % DRAWS]))])
)
