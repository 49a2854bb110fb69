"""The tables and the words of the study of recipes, from made-up errors, found anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.recipe.methods import CONSTANT, REFERENCE
from phiball.experiments.studies.supervised.recipe.report import COLUMNS, findings, tables
from phiball.experiments.studies.supervised.recipe.study import STUDY, Config

pytest.importorskip("scipy", reason="scipy: not installed")
DATA, METHODS = ("mnist", "kmnist"), ("ERM", CONSTANT, REFERENCE, "N-FGSM", "tilted", "RT-MLMC")
COST = {"ERM": 1, "RT-MLMC": 4.02}
CONFIG = replace(Config(), data=DATA, methods=METHODS, seeds=3, rates=(1e-3, 4e-3, 1e-2))
BEST = {"ERM": 1e-3, "RT-MLMC": 1e-2}  # the others 4e-3
# How far each lies above random-start FGM, by trial; N-FGSM is clearly lower, tilted undecided.
SHIFT = {
    "ERM": (20.0, 21.0, 22.0), CONSTANT: (9.0, 10.0, 11.0), "N-FGSM": (-3.0, -3.2, -2.8),
    "tilted": (1.0, -1.5, 0.4), "RT-MLMC": (8.0, 9.0, 10.0),
}  # fmt: skip


def made() -> Table:
    """Errors by trial: 30 for random-start FGM under PGM, five more under APGD, ten on clean images."""
    rows: list[dict[str, Any]] = []
    for data, method, rate in product(DATA, METHODS, CONFIG.rates):
        if method != CONSTANT:
            error = 30.0 + 5 * (rate != BEST.get(method, 4e-3))
            row = {"stage": "choose", "data": data, "method": method, "rate": rate, "trial": 0, "clean": 9.0}
            rows.append({**row, "evaluations": COST.get(method, 2), "PGM l2": error, "PGM linf": error + 2})
    for trial, data, method in product(range(3), DATA, METHODS):
        base = 30.0 + 2 * trial + SHIFT.get(method, (0.0,) * 3)[trial]
        row = {"stage": "report", "data": data, "method": method, "trial": trial, "clean": base - 20}
        row |= {
            "rate": 1e-3 if method == CONSTANT else BEST.get(method, 4e-3),
            "evaluations": COST.get(method, 2),
        }
        row |= {f"PGM {norm}": base for norm in ("l2", "linf")}
        row |= {f"APGD {norm}": base + 5 for norm in ("l2", "linf")}
        rows.append({**row, "trained on": 4000, "tested on": 1000, "curve": [1.0]})
    return Table(CONFIG, tuple(rows))


def test_tables() -> None:
    mnist, kmnist, differences, rates = tables(made())
    assert mnist.headings[3:] == (
        "clean", "PGM l2 1.5", "APGD l2 1.5", "PGM linf 0.15", "APGD linf 0.15",
    )  # fmt: skip
    assert kmnist.headings[4] == "PGM l2 1"
    assert len(COLUMNS) == 5
    by_method = {row[0]: row for row in mnist.rows}
    assert list(by_method) == list(METHODS)
    ours = np.array([30.0, 32.0, 34.0]) + SHIFT["tilted"]
    assert by_method["tilted"][1:5] == (
        "2", "0.004", f"{ours.mean() - 20:.1f} ± {ours.std(ddof=1) / sqrt(3):.1f}",
        f"{ours.mean():.1f} ± {ours.std(ddof=1) / sqrt(3):.1f}",
    )  # fmt: skip
    shown = {row[0]: row[1:] for row in differences.rows}
    assert REFERENCE not in shown
    assert shown["N-FGSM"] == ("-3.0 ± 0.1*",) * 6  # within trials, which differ by far more
    assert not any("*" in cell for cell in shown["tilted"])
    assert shown["ERM"][1] == "+21.0 ± 0.6*"
    assert next(row for row in rates.rows if row[1] == "tilted")[2:] == ("36.0", "31.0, chosen", "36.0")
    assert next(row for row in rates.rows if row[1] == "ERM")[2:] == ("31.0, chosen", "36.0", "36.0")


def test_findings() -> None:
    parity, rate, recipe, strength, border, images = findings(made())
    assert "N-FGSM (2 evaluations): lower in 4, higher in 0, undecided in 0 of 4, -3.0 to -3.0" in parity
    assert "tilted (2 evaluations): lower in 0, higher in 0, undecided in 4 of 4" in parity
    assert "RT-MLMC (4.02 evaluations): lower in 0, higher in 4" in parity
    assert parity.index("tilted (") < parity.index("ERM (")  # those of equal cost first
    assert "mnist 5.0 by the rate, 0.0 by the method; kmnist 5.0" in rate
    assert images.startswith("The 1,000 test images are a sample too: an error of 50 % has by their choice a")
    assert "of 1.6 points" in images
    assert "mnist APGD l2 1.5 +10.0 ± 0.6" in recipe
    assert recipe.endswith("span 3.0 points.")  # of N-FGSM, tilted and random-start FGM
    assert "tilted 5.0" in strength
    assert border.endswith("ERM on mnist (0.001), ERM on kmnist (0.001), RT-MLMC on mnist (0.01), "
                           "RT-MLMC on kmnist (0.01).")  # fmt: skip
    few = Table(CONFIG, tuple(row for row in made().rows if row["trial"] < 2))
    assert findings(few)[-1].endswith(
        "With fewer than three trials this is a test of the machinery and no evidence."
    )
    lone = Table(CONFIG, tuple(row for row in made().rows if row["method"] == "tilted"))
    assert findings(lone)[0].startswith("Nothing to compare with random-start FGM")
    assert [shown.title for shown in tables(lone)][-1].startswith("Peaks")


def test_figures() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    drawn = STUDY.draw(made())
    assert set(drawn) == {"recipe", "rates"}
    titles = [axes.get_title() for axes in drawn["recipe"].axes]
    assert titles == [
        "mnist, APGD l2 1.5",
        "kmnist, APGD l2 1",
        "mnist, APGD linf 0.15",
        "kmnist, APGD linf 0.1",
    ]
    means = [line.get_xdata()[0] for line in drawn["recipe"].axes[0].lines if line.get_marker() == "v"]
    assert means[-1] == pytest.approx(37.0)  # of random-start FGM; before it the one at a constant rate
    names = [text.get_text() for text in drawn["rates"].legends[0].get_texts()]
    assert names == [name for name in METHODS if name not in (CONSTANT, "ERM")]  # which lies far above
