"""Tables of the study of supervised learning that are made up, for the tests of its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.methods import candidates, fixed
from phiball.experiments.studies.supervised.study import Config

ATTACKS = ("noise l2", "noise linf", "PGM l2", "PGM linf")
STUDENT = {2: 12.706205, 3: 4.302653, 5: 2.776445}  # from a printed table, 95 % on both sides
SMALL = Config(
    data=("mnist", "kmnist"),
    seeds=3,
    others=2,
    epochs=3,
    noise_ratios=(0.3, 0.6, 0.9, 1.2, 1.5),
    pgm_ratios=(0.025, 0.05, 0.1, 0.15, 0.2),
)
ONE = replace(
    SMALL, data=("digits",), norms=("l2",), chosen=("none",), methods=("ERM", "FGM", "IFGM", "RT-MLMC")
)
OURS = "RT-MLMC l2 0.45"

Error = Callable[[str, str, int, str, float], float]


def made(config: Config, error: Error, absent: Callable[[Row], bool] = lambda row: False) -> Table:
    """A table of the errors `error(data, method, trial, attack, ratio)`, "clean" being the attack at zero."""
    judged = [
        {"stage": "choose", "method": method.family, "setting": name, "evaluations": method.evaluations}
        for name, method in candidates(config).items()
    ]
    first = {row["method"]: row for row in reversed(judged)}
    told = [(name, name, m.evaluations, m.family) for name, m in fixed(config).items()]
    told += [(f"{f}, chosen", row["setting"], row["evaluations"], f) for f, row in first.items()]
    few = {"SG", "quadratic", "CVaR"}
    rows = [{**row, "data": data, "trial": 0} for data in config.data for row in judged] + [
        {"stage": "report", "method": m, "setting": s, "evaluations": e, "data": data, "trial": trial}
        for data in config.data
        for m, s, e, family in told
        for trial in range(config.others if family in few else config.seeds)
    ]
    for row in rows:
        at = (row["data"], row["setting" if row["stage"] == "choose" else "method"], row["trial"])
        row["clean"] = error(*at, "clean", 0.0)
        for attack in ATTACKS:
            row |= {f"{attack} {r:g}": error(*at, attack, r) for r in config.ratios[attack]}
        row |= {"seed": 5 + row["trial"], "mean l2": 9.0, "mean linf": 1.0, "images": "0"}
        row |= {"trained on": 9000, "tested on": 1000, "curve": [2.0 / (k + 1) for k in range(config.epochs)]}
    return Table(config, tuple(row for row in rows if not absent(row)))


def levels(numbers: dict[str, list[float]], rest: float = 60.0) -> Error:
    """The same error for all attacks: by method, a number for each trial."""
    return lambda data, method, trial, attack, ratio: numbers.get(method, [rest] * 9)[trial]


@cache
def random_table(config: Config) -> Table:
    """Errors with effects of method, trial and attack, so that no two means agree; not to be changed."""
    found: dict[Any, float] = {}
    source = np.random.default_rng(2)

    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        own = found.setdefault((data, method, attack), source.normal(scale=4))
        return float(np.clip(25 + 30 * ratio + own + 6 * trial + source.normal(scale=1.0), 0, 100))

    return made(config, error)


def cube(table: Table, data: str, method: str, attack: str) -> Any:
    """Errors (trials, ratios), found anew."""
    rows = sorted(
        (r for r in table.rows if (r["stage"], r["data"], r["method"]) == ("report", data, method)),
        key=lambda r: r["trial"],
    )
    return np.array([[r[f"{attack} {x:g}"] for x in table.config.ratios[attack]] for r in rows])
