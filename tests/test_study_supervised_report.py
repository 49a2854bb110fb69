"""Tables, findings and figures of the study of supervised learning, against numbers found anew."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("rich", reason="the tables of a study need rich")
pytest.importorskip("scipy", reason="the verdicts of the study need scipy")
pytest.importorskip("matplotlib", reason="the figures of a study need matplotlib")

from phiball.experiments.runs import Row, Table
from phiball.experiments.sheets import Sheet
from phiball.experiments.supervised_figures import draw, shown
from phiball.experiments.supervised_methods import candidates
from phiball.experiments.supervised_report import findings, sheets
from tests.supervised_tables import ATTACKS, ONE, OURS, SMALL, STUDENT, cube, levels, made, random_table


def expected_word(table: Table, data: str, attack: str, ours: str, others: list[str], pick: slice) -> str:
    mine = cube(table, data, ours, attack)[:, pick].mean(axis=1)
    signs = []
    for other in others:
        d = mine - cube(table, data, other, attack)[:, pick].mean(axis=1)
        t = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
        signs.append(0 if abs(t) < STUDENT[len(d)] else int(np.sign(t)))
    return "not" if 1 in signs else "best" if set(signs) == {-1} else "tied"


def sheet(table: Table, title: str) -> Sheet:
    return next(s for s in sheets(table) if s.title.startswith(title))


@pytest.mark.parametrize("pick", ["every", "largest"])
def test_counts_of_verdicts_are_those_found_anew(pick: str) -> None:
    table = random_table(SMALL)
    part = slice(None) if pick == "every" else slice(-1, None)
    title = "Verdicts on RT-MLMC: " + ("mean" if pick == "every" else "the largest")
    printed = {row[:2]: row[2:] for row in sheet(table, title).cells}
    said = " ".join(findings(table))
    seen = set()
    for norm in ("l2", "linf"):
        for name, first, second in (("rho", 0.45, 0.45), ("literal", 0.1, 0.45), ("step", 0.1, 0.1)):
            others = ["ERM", f"FGM {norm} {first}", f"IFGM {norm} {second}"]
            words = []
            for attack in ATTACKS:
                found = [
                    expected_word(table, data, attack, f"RT-MLMC {norm} 0.45", others, part)
                    for data in SMALL.data
                ]
                assert [cell.split()[0] for cell in printed[f"{norm}, {name}", attack]] == found
                words += found
            counts = ", ".join(f"{w} in {words.count(w)}" for w in ("best", "tied", "not"))
            start = f"Reading {norm}, {name}, against {', '.join(others)}: RT-MLMC is "
            assert f"{start if pick == 'every' else f'{norm}, {name}: '}{counts} of 8 panels" in said
            seen |= set(words)
    assert seen == {"best", "tied", "not"}


def test_differences_in_the_findings() -> None:
    table = random_table(SMALL)
    said = findings(table)
    noise = next(p for p in said if p.startswith("What the regularisation does"))
    tilted = next(p for p in said if p.startswith("Two ways"))
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

    said = findings(made(SMALL, error))[1]
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
    found = sheet(table, "Errors on kmnist")
    assert found.cells[0][0] == "ERM"
    row = dict(zip(found.headings, next(c for c in found.cells if c[0] == "tilted, chosen"), strict=True))
    errors = cube(table, "kmnist", "tilted, chosen", "PGM linf")
    for heading, numbers in (("PGM linf", errors.mean(axis=1)), ("PGM linf 0.1", errors[:, 2])):
        assert row[heading] == f"{numbers.mean():.1f} ± {numbers.std(ddof=1) / np.sqrt(3):.1f}"
    assert (row["evaluations"], row["trials"]) == ("2", "3")
    assert f"tilted {row['chosen']}" in candidates(SMALL)
    few = next(c for c in found.cells if c[0].startswith("CVaR"))
    assert (few[1], few[3]) == ("", "2")


def test_sheet_of_settings() -> None:
    table = random_table(SMALL)
    found = sheet(table, "Settings")
    assert found.headings == ("method", "setting", "mnist", "kmnist")
    assert [f"{family} {setting}" for family, setting, *_ in found.cells] == list(candidates(SMALL))
    for place, data in enumerate(SMALL.data, start=2):
        for family in ("RT-MLMC", "noise x4", "random-start FGM", "tilted"):
            rows = [r for r in table.rows if (r["stage"], r["data"], r["method"]) == ("choose", data, family)]
            means = {}
            for r in rows:
                over = [np.mean([r[f"{a} {x:g}"] for x in SMALL.ratios[a]]) for a in ATTACKS]
                means[r["setting"]] = np.mean([r["clean"], *over])
            best = min(means, key=lambda name: means[name])
            cells = {f"{family} {c[1]}": c[place] for c in found.cells if c[0] == family}
            assert cells == {
                name: f"{mean:.1f}{', chosen' if name == best else ''}" for name, mean in means.items()
            }


def test_what_is_missing_is_said() -> None:
    said = findings(random_table(ONE))[0]
    assert "3 epochs with 3 seeds. Images to train on and to attack: digits 9,000 and 1,000." in said
    asked = "random-start FGM, noise x4, SG, quadratic, CVaR"
    chosen = "chosen RT-MLMC, chosen noise x4, chosen random-start FGM, chosen tilted"
    assert f"Not asked for: {asked}, {chosen}, linf balls." in said
    whole = findings(random_table(SMALL))[0]
    assert "3 seeds (SG, quadratic, CVaR: 2)" in whole
    assert whole.endswith("No method is missing.")

    def absent(row: Row) -> bool:
        gone = (row["data"], row["method"]) == ("mnist", "FGM l2 0.45")
        return gone or (row["method"] == "tilted, chosen" and row["trial"] == 1)

    table = Table(SMALL, tuple(row for row in random_table(SMALL).rows if not absent(row)))
    said = findings(table)[0]
    assert "FGM l2 0.45 on mnist (0 of 3 trials)" in said
    assert "chosen tilted on mnist (2 of 3 trials), chosen tilted on kmnist (2 of 3 trials)" in said
    cells = {row[:2]: row[2:] for row in sheet(table, "Verdicts").cells}
    assert cells["l2, rho", "PGM l2"][0] == "-"
    assert cells["l2, rho", "PGM l2"][1] != "-"
    assert cells["l2, literal", "PGM l2"][0] != "-"


@pytest.mark.parametrize("methods", [("ERM",), ("RT-MLMC",), ("ERM", "FGM", "IFGM"), ("noise x4", "SG")])
@pytest.mark.parametrize("chosen", [("none",), ("tilted",)])
def test_any_part_of_the_methods_has_a_report(methods: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    table = random_table(replace(SMALL, methods=methods, chosen=chosen, data=("digits",)))
    said = " ".join(findings(table))
    assert said.count("No reading of the paper has all of its methods here.") == 2
    assert "Tilted points cannot be compared" in said
    assert not re.search(r"nan|None", said)
    for one in sheets(table):
        assert one.markdown()
    assert set(draw(table)) == {"panels-l2", "panels-linf", "cost", "training"}


# --- Figures ----------------------------------------------------------------------------------------


def test_panels_are_the_paper_s() -> None:
    table = random_table(SMALL)
    figures = draw(table)
    assert list(figures) == ["panels-l2", "panels-linf", "cost", "training"]
    for norm in ("l2", "linf"):
        figure = figures[f"panels-{norm}"]
        grid = np.array(figure.axes).reshape(2, 4)
        titles = [axes.get_title() for axes in grid[0]]
        assert titles == [attack.replace("noise", "white noise") for attack in ATTACKS]
        assert [axes.get_ylabel() for axes in grid[:, 0]] == ["mnist\nerror (%)", "kmnist\nerror (%)"]
        for row, data in zip(grid, SMALL.data, strict=True):
            for axes, attack in zip(row, ATTACKS, strict=True):
                lines = {str(line.get_label()): line for line in axes.get_lines()}
                assert list(lines) == list(shown(table, norm))
                assert len(axes.collections) == len(lines)  # a band for each
                clean = [r["clean"] for r in table.rows if _at(r, data, f"RT-MLMC {norm} 0.45")]
                means = cube(table, data, f"RT-MLMC {norm} 0.45", attack).mean(axis=0)
                ours = lines[f"RT-MLMC {norm} 0.45"]
                np.testing.assert_allclose(ours.get_xdata(), [0, *SMALL.ratios[attack]])
                np.testing.assert_allclose(ours.get_ydata(), [np.mean(clean), *means])
                assert ours.get_linewidth() > max(v.get_linewidth() for k, v in lines.items() if v != ours)
        assert len(figure.legends[0].get_texts()) == len(shown(table, norm)) == 8
        looks = [(v["color"], v["marker"], v["linestyle"]) for v in shown(table, norm).values()]
        assert len(set(looks)) == 8


def _at(row: Row, data: str, method: str) -> bool:
    return bool((row["stage"], row["data"], row["method"]) == ("report", data, method))


def test_bands_are_one_standard_error() -> None:
    table = random_table(ONE)
    axes = draw(table)["panels-l2"].axes[2]
    place = [str(line.get_label()) for line in axes.get_lines()].index("ERM")
    corners = axes.collections[place].get_paths()[0].vertices
    errors = cube(table, "digits", "ERM", "PGM l2")[:, -1]
    ends = sorted(corners[np.isclose(corners[:, 0], 0.2), 1])
    bar = errors.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose([ends[0], ends[-1]], [errors.mean() - bar, errors.mean() + bar])


def test_cost_names_every_method_once() -> None:
    table = random_table(SMALL)
    axes = draw(table)["cost"].axes
    kinds = [(kind, data) for kind in ("white noise", "PGM") for data in SMALL.data]
    assert [tuple(a.get_title().split("\n")) for a in axes] == kinds
    labels = [re.split(r" {3}", label.get_text()) for label in axes[0].get_yticklabels()]
    methods = {r["method"]: r["evaluations"] for r in table.rows if r["stage"] == "report"}
    assert dict(labels) == {m: f"{e:.3g}" for m, e in methods.items()}
    costs = [round(float(cost)) for _, cost in labels]
    assert costs == sorted(costs)
    for place, (name, _) in enumerate(labels):
        found = axes[3].containers[place].lines[0]
        errors = [cube(table, "kmnist", name, attack).mean() for attack in ("PGM l2", "PGM linf")]
        np.testing.assert_allclose([found.get_xdata()[0], found.get_ydata()[0]], [np.mean(errors), place])


def test_training_curves_are_means_of_trials() -> None:
    table = made(ONE, levels({}))
    for row in table.rows:
        row["curve"] = [1.0 + row["trial"], 0.5 + row["trial"], 0.25 + row["trial"]]
    (axes,) = draw(table)["training"].axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for method in ("ERM", "FGM l2 0.45", "IFGM l2 0.45", OURS):
        np.testing.assert_allclose(lines[method].get_ydata(), [2.0, 1.5, 1.25])
        np.testing.assert_allclose(lines[method].get_xdata(), [1, 2, 3])


def test_part_of_a_table_is_drawn() -> None:
    """One data set, one norm, no chosen method, one trial of some, no error at all."""

    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        return 0.0 if method == "ERM" else 10.0

    table = made(ONE, error, lambda row: row["method"] == OURS and row["trial"] > 0)
    figures = draw(table)
    assert list(figures) == ["panels-l2", "cost", "training"]
    panel = figures["panels-l2"].axes
    assert len(panel) == 4
    lines = {str(line.get_label()): line for line in panel[0].get_lines()}
    assert set(lines) == {"ERM", "FGM l2 0.45", "FGM l2 0.1", "IFGM l2 0.45", OURS}
    assert set(lines["ERM"].get_ydata()) == {0.05}  # half of one image in 1,000
    for figure in figures.values():
        stream = BytesIO()
        figure.savefig(stream, dpi=110)
        assert stream.tell() > 5000
    gone = made(SMALL, error, lambda row: _at(row, "kmnist", OURS))
    last = draw(gone)["panels-l2"].axes[-1]
    assert OURS not in [line.get_label() for line in last.get_lines()]
