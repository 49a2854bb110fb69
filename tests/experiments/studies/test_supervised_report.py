"""Tables and findings of the study of supervised learning, against numbers found anew."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rich", reason="the tables of a study need rich")
pytest.importorskip("scipy", reason="the verdicts of the study need scipy")
pytest.importorskip("matplotlib", reason="the figures of a study need matplotlib")

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.figures import draw
from phiball.experiments.studies.supervised.findings import findings
from phiball.experiments.studies.supervised.methods import candidates
from phiball.experiments.studies.supervised.report import tables
from tests.support.supervised_tables import (
    ATTACKS,
    ONE,
    OURS,
    SMALL,
    STUDENT,
    cube,
    levels,
    made,
    random_table,
)


def expected_word(table: Table, data: str, attack: str, ours: str, others: list[str], pick: slice) -> str:
    mine = cube(table, data, ours, attack)[:, pick].mean(axis=1)
    signs = []
    for other in others:
        d = mine - cube(table, data, other, attack)[:, pick].mean(axis=1)
        t = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
        signs.append(0 if abs(t) < STUDENT[len(d)] else int(np.sign(t)))
    return "not" if 1 in signs else "best" if set(signs) == {-1} else "tied"


def report_table(table: Table, title: str) -> ReportTable:
    return next(s for s in tables(table) if s.title.startswith(title))


@pytest.mark.parametrize("pick", ["every", "largest"])
def test_counts_of_verdicts_are_those_found_anew(pick: str) -> None:
    table = random_table(SMALL)
    part = slice(None) if pick == "every" else slice(-1, None)
    title = "Verdicts on RT-MLMC: " + ("mean" if pick == "every" else "the largest")
    printed = {row[:2]: row[2:] for row in report_table(table, title).rows}
    paragraphs = findings(table)
    said = " ".join(paragraphs)
    seen = set()
    for norm in ("l2", "linf"):
        for name, first, second in (("rho", 0.45, 0.45), ("literal", 0.1, 0.45), ("step", 0.1, 0.1)):
            others = ["ERM", f"FGM {norm} {first}", f"IFGM {norm} {second}"]
            words, lowest = [], 0
            for attack in ATTACKS:
                for data in SMALL.data:
                    errors = [cube(table, data, m, attack).mean() for m in (f"RT-MLMC {norm} 0.45", *others)]
                    lowest += errors[0] < min(errors[1:])
                found = [
                    expected_word(table, data, attack, f"RT-MLMC {norm} 0.45", others, part)
                    for data in SMALL.data
                ]
                assert [cell.split()[0] for cell in printed[f"{norm}, {name}", attack]] == found
                words += found
            counts = ", ".join(f"{w} in {words.count(w)}" for w in ("best", "tied", "not"))
            start = f"Reading {norm}, {name}, against {', '.join(others)}: RT-MLMC is "
            assert f"{start if pick == 'every' else f'{norm}, {name}: '}{counts} of 8 panels" in said
            short = " / ".join(str(words.count(w)) for w in ("best", "tied", "not"))
            if pick == "every":
                assert f"{norm}, {name} {short} of 8, lowest mean in {lowest}" in paragraphs[0]
            seen |= set(words)
    assert seen == {"best", "tied", "not"}


def test_differences_in_the_findings() -> None:
    table = random_table(SMALL)
    said = findings(table)
    noise = next(p for p in said if p.startswith("What the regularisation does"))
    tilted = next(p for p in said if p.startswith("Two ways"))
    both = np.zeros(3, dtype=int)
    for norm in ("l2", "linf"):
        counts = re.search(rf"RT-MLMC {norm} .*? lower in (\d+), higher in (\d+), undecided in (\d+)", noise)
        assert counts is not None
        both += np.array(counts.groups(), dtype=int)
    counts = f"lower in {both[0]}, higher in {both[1]}, undecided in {both[2]} of 16 panels."
    assert said[0].endswith(f"Noise of equal cost and radius: RT-MLMC is {counts}")
    for paragraph, ours, other, names in (
        (noise, "RT-MLMC linf 0.45", "noise x4 linf 0.45", "RT-MLMC linf 0.45 against noise x4 linf 0.45"),
        (
            tilted,
            "tilted, chosen",
            "random-start FGM, chosen",
            "chosen tilted against chosen random-start FGM",
        ),
    ):
        sentence = paragraph[paragraph.index(names) :]
        signs = []
        for attack in ATTACKS:
            d = [
                (cube(table, x, ours, attack) - cube(table, x, other, attack)).mean(axis=1)
                for x in SMALL.data
            ]
            low, high = sorted(float(one.mean()) for one in d)
            assert f"{attack} {low:+.1f} to {high:+.1f}" in sentence
            t = [one.mean() / (one.std(ddof=1) / np.sqrt(3)) for one in d]
            signs += [0 if abs(x) < STUDENT[3] else int(np.sign(x)) for x in t]
        counts = f"lower in {signs.count(-1)}, higher in {signs.count(1)}, undecided in {signs.count(0)} of 8"
        assert f"{names}: {counts} panels" in sentence


def test_where_it_fails_and_by_how_much() -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        gain = {"mnist": 12.0, "kmnist": -3.0}[data] if attack == "PGM l2" else -3.0
        return 40 + 10 * trial + (gain + trial / 2 if method == OURS else 0.0)

    said = findings(made(SMALL, error))[2]
    assert "RT-MLMC is best in 7, tied in 0, not in 1 of 8 panels, with the lowest mean in 7" in said
    assert "It is above a baseline in PGM l2 (mnist +12.5 ± 0.3)." in said


def test_the_lowest_error_and_its_cost() -> None:
    table = random_table(SMALL)
    paragraph = next(p for p in findings(table) if p.startswith("The lowest"))
    methods = {r["method"]: r["evaluations"] for r in table.rows if r["stage"] == "report"}
    for attack in ATTACKS:
        for data in SMALL.data:
            full = [m for m in methods if len(cube(table, data, m, attack)) == 3]
            means = {m: float(cube(table, data, m, attack).mean()) for m in full}
            best = min(means, key=lambda m: means[m])
            name = f"chosen {best[:-8]}" if best.endswith(", chosen") else best
            near = 0
            for other in means.keys() - {best}:
                d = (cube(table, data, other, attack) - cube(table, data, best, attack)).mean(axis=1)
                near += d.mean() < STUDENT[3] * d.std(ddof=1) / np.sqrt(3)
            cost = f"{methods[best]:.3g} evaluations, {near} not told apart from it"
            assert f"{name} on {data} ({means[best]:.1f} %, {cost})" in paragraph


def test_errors_that_fall_as_perturbations_grow() -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        falls = (data, method, attack, ratio) == ("kmnist", "ERM", "noise l2", 0.9)
        return 20 + 10 * ratio - (7.0 if falls else 0.0)

    table = made(SMALL, error)
    count = 2 * 2 * len({r["method"] for r in table.rows if r["stage"] == "report"})
    said = next(p for p in findings(table) if "worse performance" in p)
    assert f"noise: the mean error never falls in {count - 1} of {count} curves" in said
    assert "the largest fall is 4.0 points (ERM on kmnist, noise l2)" in said
    assert f"PGM: the mean error never falls in {count} of {count} curves." in said


def test_sheet_of_errors() -> None:
    table = random_table(SMALL)
    found = report_table(table, "Errors on kmnist")
    assert found.rows[0][0] == "ERM"
    row = dict(zip(found.headings, next(c for c in found.rows if c[0] == "tilted, chosen"), strict=True))
    errors = cube(table, "kmnist", "tilted, chosen", "PGM linf")
    for heading, numbers in (("PGM linf", errors.mean(axis=1)), ("PGM linf 0.1", errors[:, 2])):
        assert row[heading] == f"{numbers.mean():.1f} ± {numbers.std(ddof=1) / np.sqrt(3):.1f}"
    assert (row["evaluations"], row["trials"]) == ("2", "3")
    assert f"tilted {row['chosen']}" in candidates(SMALL)
    few = next(c for c in found.rows if c[0].startswith("CVaR"))
    assert (few[1], few[3]) == ("", "2")


def test_sheet_of_settings() -> None:
    table = random_table(SMALL)
    found = report_table(table, "Settings")
    assert found.headings == ("method", "setting", "mnist", "kmnist")
    assert [f"{family} {setting}" for family, setting, *_ in found.rows] == list(candidates(SMALL))
    for place, data in enumerate(SMALL.data, start=2):
        for family in ("RT-MLMC", "noise x4", "random-start FGM", "tilted"):
            rows = [r for r in table.rows if (r["stage"], r["data"], r["method"]) == ("choose", data, family)]
            means = {}
            for r in rows:
                over = [np.mean([r[f"{a} {x:g}"] for x in SMALL.ratios[a]]) for a in ATTACKS]
                means[r["setting"]] = np.mean([r["clean"], *over])
            best = min(means, key=lambda name: means[name])
            cells = {f"{family} {c[1]}": c[place] for c in found.rows if c[0] == family}
            assert cells == {
                name: f"{mean:.1f}{', chosen' if name == best else ''}" for name, mean in means.items()
            }


@pytest.mark.slow
def test_what_is_missing_is_said() -> None:
    said = findings(random_table(ONE))[1]
    assert "3 epochs with 3 seeds. Images to train on and to attack: digits 9,000 and 1,000." in said
    asked = "random-start FGM, noise x4, SG, quadratic, CVaR"
    chosen = "chosen RT-MLMC, chosen noise x4, chosen random-start FGM, chosen tilted"
    assert f"Not asked for: {asked}, {chosen}, linf balls." in said
    whole = findings(random_table(SMALL))[1]
    assert "3 seeds (SG, quadratic, CVaR: 2)" in whole
    assert whole.endswith("No method is missing.")

    def absent(row: Row) -> bool:
        gone = (row["data"], row["method"]) == ("mnist", "FGM l2 0.45")
        return gone or (row["method"] == "tilted, chosen" and row["trial"] == 1)

    table = Table(SMALL, tuple(row for row in random_table(SMALL).rows if not absent(row)))
    said = findings(table)[1]
    assert "FGM l2 0.45 on mnist (0 of 3 trials)" in said
    assert "chosen tilted on mnist (2 of 3 trials), chosen tilted on kmnist (2 of 3 trials)" in said
    cells = {row[:2]: row[2:] for row in report_table(table, "Verdicts").rows}
    assert cells["l2, rho", "PGM l2"][0] == "-"
    assert cells["l2, rho", "PGM l2"][1] != "-"
    assert cells["l2, literal", "PGM l2"][0] != "-"


@pytest.mark.parametrize("methods", [("ERM",), ("RT-MLMC",), ("ERM", "FGM", "IFGM"), ("noise x4", "SG")])
@pytest.mark.parametrize("chosen", [("none",), ("tilted",)])
def test_any_part_of_the_methods_has_a_report(methods: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    table = random_table(replace(SMALL, methods=methods, chosen=chosen, data=("digits",)))
    said = " ".join(findings(table))
    absent = ", ".join(m for m in ("ERM", "FGM", "IFGM", "RT-MLMC") if m not in methods)
    none = f"No reading of the paper has all of its methods here. Add {absent} (--methods)."
    assert said.count(none) == 3  # in short, and for each norm
    assert not [one for one in tables(table) if one.title.startswith("Verdicts")]
    assert "Tilted points cannot be compared" in said
    assert not re.search(r"nan|None", said)
    for one in tables(table):
        assert one.markdown()
    assert set(draw(table)) == {"panels-l2", "panels-linf", "cost", "training"}


def test_the_statement_in_short() -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        return 40 + 10 * trial - (5 + trial / 2 if method.startswith("RT-MLMC") else 0.0)

    said = findings(made(replace(ONE, seeds=4), error))[0]
    assert "holds in 3 of 3 readings of the paper: l2, rho; l2, literal; l2, step. " in said
    assert "Noise of equal cost is not here to compare with" in said
    assert "guessing" not in said
    assert "evidence" not in said


@pytest.mark.parametrize(
    ("seeds", "images", "words"),
    [(2, 999, "2 trials and 999 images"), (2, 1000, "2 trials"), (3, 10, "10 images")],
)
def test_a_run_that_is_too_small_says_so(seeds: int, images: int, words: str) -> None:
    table = made(replace(ONE, seeds=seeds), levels({}))
    for row in table.rows:
        row["tested on"] = images
    assert findings(table)[0].endswith(
        f" With as few as {words} this is a test of the machinery and no evidence."
    )


def test_classifiers_near_guessing_are_left_out_with_a_word() -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        return 90.0 + trial / 10 if data == "kmnist" else 30.0 + trial + 10 * ratio

    table = made(SMALL, error)
    said = {p[:12]: p for p in findings(table)}
    lowest, large, worse = said["The lowest m"], said['"Performs we'], said['"All methods']
    none = "On kmnist every method with all trials is near guessing."
    assert lowest.endswith(none)
    assert "on kmnist" not in lowest
    assert "ERM on mnist (40.0 %, 1 evaluation, " in lowest
    assert (
        f"noise l2 1.5: 46.0 %, noise linf 1.5: 46.0 %, PGM l2 0.2: 33.0 %, PGM linf 0.2: 33.0 %. {none}"
        in large
    )
    count = 2 * len({r["method"] for r in table.rows if r["stage"] == "report"})  # on mnist alone
    assert worse.count(f"never falls in {count} of {count} curves") == 2
    assert not re.search("[Cc]onstant classifier|not constant", " ".join(said.values()))
    everywhere = findings(made(replace(ONE, epochs=1), levels({}, rest=90.0)))
    assert not [p for p in everywhere if p.startswith('"All methods')]
    assert "trained for 1 epoch with" in everywhere[1]
    said = {p[:12]: p for p in everywhere}
    none = none.replace("kmnist", "digits")
    assert said["The lowest m"].endswith(f"never near guessing. {none}")
    assert f"at the largest ratios. {none} l2, rho: best in 0" in said['"Performs we']


def test_what_costs_no_more_is_compared_without_the_other_norm() -> None:
    """The contest in one norm is there though RT-MLMC in the other has no results."""
    rows = tuple(row for row in random_table(SMALL).rows if row["method"] != OURS)
    said = next(p for p in findings(Table(SMALL, rows)) if p.startswith("RT-MLMC and what costs no more"))
    assert "RT-MLMC linf 0.45 against random-start FGM linf 0.45" in said
    assert "l2, " not in said
