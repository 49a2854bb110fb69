"""Figures of the study of supervised learning, against numbers found anew."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("rich", reason="the study needs rich")
pytest.importorskip("scipy", reason="the verdicts of the study need scipy")
pytest.importorskip("matplotlib", reason="the figures of a study need matplotlib")

from matplotlib.figure import Figure

from phiball.experiments.framework.tasks import Row
from phiball.experiments.studies.supervised.figures import draw, log_ticks, shown
from tests.support.supervised_tables import ATTACKS, ONE, OURS, SMALL, cube, levels, made, random_table

pytestmark = pytest.mark.slow


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
        assert len(figure.legends[0].get_texts()) == len(shown(table, norm)) == 9
        looks = [(v["color"], v["marker"], v["linestyle"]) for v in shown(table, norm).values()]
        assert len(set(looks)) == 9


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
    assert set(lines) == {"ERM", "FGM l2 0.45", "FGM l2 0.1", "IFGM l2 0.45", "IFGM l2 0.1", OURS}
    assert set(lines["ERM"].get_ydata()) == {0.05}  # half of one image in 1,000
    for figure in figures.values():
        stream = BytesIO()
        figure.savefig(stream, dpi=110)
        assert stream.tell() > 5000
    gone = made(SMALL, error, lambda row: _at(row, "kmnist", OURS))
    last = draw(gone)["panels-l2"].axes[-1]
    assert OURS not in [line.get_label() for line in last.get_lines()]


def test_a_log_axis_has_a_few_plain_numbers() -> None:
    for low in (0.004, 0.05, 0.7, 1.0, 3.1, 27.0, 87.9):
        for factor in (1.001, 1.01, 1.1, 1.5, 2.3, 4.0, 9.0, 25.0, 90.0, 400.0, 9000.0):
            labels = labels_of(low, low * factor, 3)
            assert 2 <= len(labels) <= 5, (low, factor)
            assert len(set(labels)) == len(labels)
            assert labels == [f"{float(label):g}" for label in labels]
    assert labels_of(4, 110, 8) == ["5", "10", "20", "50", "100"]
    assert labels_of(4, 110, 3) == ["10", "30", "100"]
    assert labels_of(26, 105, 3) == ["50", "100"]


def labels_of(low: float, high: float, most: int) -> list[str]:
    """What is written at the axis from low to high."""
    axes = Figure().subplots()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    log_ticks(axes.xaxis, most)
    axes.figure.draw_without_rendering()
    places = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label.get_text() for place, label in places if low <= place <= high]


@pytest.mark.parametrize("spread", [0.0, 0.3, 5.0])
def test_axes_of_a_narrow_range_have_labels(spread: float) -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        return 88.0 + spread * (len(method) / 9 - 1) + spread * trial / 9

    config = replace(ONE, methods=("ERM", "FGM", "RT-MLMC"), epochs=1)
    table = made(config, error)
    for row in table.rows:
        row["curve"] = [2.3 + spread * len(row["method"]) / 100]
    for name, figure in draw(table).items():
        figure.draw_without_rendering()
        for axes in figure.axes:
            axis = axes.xaxis if name == "cost" else axes.yaxis
            low, high = axis.get_view_interval()
            inside = [x for x in axis.get_majorticklocs() if low <= x <= high]
            assert len(inside) >= 2
            if name == "training":
                left, right = axes.get_xlim()
                assert [x for x in axes.get_xticks() if left <= x <= right] == [1]


@pytest.mark.parametrize("few", [True, False])
def test_words_of_the_figure_of_costs_are_whole_and_apart(few: bool) -> None:
    def error(data: str, method: str, trial: int, attack: str, ratio: float) -> float:
        return 26.0 + (64.0 if method.startswith("FGM") else trial)

    config = (
        replace(ONE, methods=("ERM", "FGM")) if few else replace(SMALL, data=("mnist", "kmnist", "digits"))
    )
    figure = draw(made(config, error))["cost"]
    figure.draw_without_rendering()
    words = [figure._supxlabel, *(axes.title for axes in figure.axes), *figure.axes[0].get_yticklabels()]
    for one in words:
        box = one.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
