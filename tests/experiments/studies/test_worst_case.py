"""The study of worst-case distributions: its loss, its values by closed forms, and what it says of them."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from math import cos, exp, log, sin, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import find_peaks
from scipy.special import expit, logsumexp

from phiball.backends import rng
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.worst_case import study
from phiball.experiments.studies.worst_case.landscape import count_maxima, draw_weights, toy_loss
from phiball.experiments.studies.worst_case.study import STUDY, Config
from phiball.refimpl import Ball, worst_case_density

CONFIG = Config(points=1000, networks=2)
READINGS = ("literal", "scaled")


@cache
def table() -> Table:
    return STUDY.compute(CONFIG, rng(0))


def rows(**names: Any) -> list[Row]:
    return [row for row in table().rows if all(row.get(name) == value for name, value in names.items())]


def losses(reading: str) -> Any:
    (row,) = rows(part="landscape", reading=reading)
    return row["losses"]


# --- The landscape ----------------------------------------------------------------------------------


def test_the_loss_is_the_printed_formula() -> None:
    source = np.random.default_rng(0)
    weights = draw_weights("literal", source.standard_normal, width=3, units=2, first_std=0.5)

    def g(z: float) -> float:
        x = [z, sqrt(abs(z)), z * z, sin(z), cos(z)]
        for W, activation in (
            (weights[0], lambda t: log(1 + exp(t))),
            (weights[1], lambda t: log(1 + exp(t))),
            (weights[2], lambda t: 1 / (1 + exp(-t))),
            (weights[3], lambda t: t),
        ):
            x = [activation(sum(w * v for w, v in zip(row, x, strict=True))) for row in W.tolist()]
        (value,) = x
        return float(value)

    z = np.array([-3.0, -0.5, 0.0, 0.2, 2.5])
    assert toy_loss(weights, z) == pytest.approx([g(v) ** 2 for v in z.tolist()], rel=1e-12)


def test_the_loss_of_far_points_does_not_overflow() -> None:
    source = np.random.default_rng(0)
    weights = draw_weights("literal", source.standard_normal, width=50, units=2, first_std=0.5)
    f = toy_loss(weights, np.array([-1e4, 1e4]))
    assert np.all(np.isfinite(f))


@pytest.mark.slow
@pytest.mark.parametrize(("reading", "seed", "divisor"), [("literal", 248, 1.0), ("scaled", 47, sqrt(512))])
def test_the_networks_are_those_of_the_stated_seeds(reading: str, seed: int, divisor: float) -> None:
    source = np.random.default_rng(seed)
    shapes = ((512, 5), (512, 512), (10, 512), (1, 10))
    W1, W2, W3, W4 = (source.normal(size=shape) for shape in shapes)
    z = np.linspace(-5, 5, 1000)
    basis = np.vstack([z, np.sqrt(np.abs(z)), z**2, np.sin(z), np.cos(z)])
    hidden = np.logaddexp(0, W2 @ np.logaddexp(0, W1 / 2 @ basis))
    f = (W4 @ expit(W3 / divisor @ hidden))[0] ** 2
    assert losses(reading) == pytest.approx(f, abs=1e-8)
    (row,) = rows(part="landscape", reading=reading)
    assert row["top_from"] <= z[np.argmax(f)] <= row["top_to"]
    assert row["top_from"] > 4


def test_local_maxima_are_those_of_their_prominence() -> None:
    source = np.random.default_rng(1)
    for _ in range(300):
        f = np.cumsum(source.standard_normal(source.integers(1, 60)))
        height = float(source.choice([0.3, 1.0, 3.0]))
        padded = np.concatenate([[-1e9], f, [-1e9]])
        assert count_maxima(f, height) == len(find_peaks(padded, prominence=height)[0])


@pytest.mark.parametrize(
    ("f", "count"), [([1, 1, 1], 1), ([0, 1, 1, 0, 2], 2), ([2, 0, 1], 2), ([1, 0.9, 1], 1), ([3, 2, 1], 1)]
)
def test_ends_and_plateaus_are_maxima_and_ripples_are_not(f: list[float], count: int) -> None:
    assert count_maxima(np.array(f, dtype=float), 0.5) == count


# --- The worst cases --------------------------------------------------------------------------------


def value_by_hand(regularisation: str, f: Any, eta: float, alpha: float) -> float:
    """The dual value by the closed forms of Examples 1 to 5."""
    if regularisation == "indicator":
        whole, part = divmod(alpha * len(f), 1)
        order = np.sort(f)[::-1]
        rest = part * order[int(whole)] if part else 0.0
        return float((order[: int(whole)].sum() + rest) / (alpha * len(f)))
    if regularisation == "entropic":
        return float(eta * (logsumexp(f / eta) - log(len(f))))
    if regularisation == "quadratic":
        low, high = f.min() - 2 * eta, f.max()
        mu = brentq(lambda t: np.mean(np.maximum(f - t, 0)) - eta, low, high, xtol=1e-14)
        return float(mu + eta / 2 + np.mean(np.maximum(f - mu, 0) ** 2) / (2 * eta))
    c = {"absolute value": 2 * eta, "hinge": eta}[regularisation]
    return float(np.mean(np.maximum(f, f.max() - c)))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("regularisation", study.REGULARISATIONS)
def test_values_are_the_closed_forms(reading: str, regularisation: str) -> None:
    f = losses(reading)
    found = rows(part="density", reading=reading, regularisation=regularisation)
    assert len(found) == 4
    for row, alpha, eta in zip(found, CONFIG.alphas, CONFIG.etas, strict=True):
        assert row["eta"] == pytest.approx(eta * (f.max() - f.min()), rel=1e-14)
        assert row["alpha"] == alpha
        assert row["value"] == pytest.approx(value_by_hand(regularisation, f, row["eta"], alpha), rel=1e-10)
        assert abs(row["dual_minus_primal"]) <= 1e-12 * f.max()


@pytest.mark.parametrize("reading", READINGS)
def test_density_and_atom_are_all_of_the_mass(reading: str) -> None:
    f = losses(reading)
    for row in rows(part="density", reading=reading):
        assert row["mass"] == pytest.approx(1, abs=1e-12)
        spacing = 10 / len(f)
        assert spacing * np.sum(row["density"]) + row["atom"] == pytest.approx(1, abs=1e-12)
        assert row["largest"] == np.max(row["density"])
        c = {"absolute value": 2, "hinge": 1}.get(row["regularisation"])
        if c is None:
            assert row["atom"] == 0
        else:
            below = f <= f.max() - c * row["eta"]
            assert row["atom"] == pytest.approx(np.mean(below), abs=1e-12)
            assert row["printed_mass"] == pytest.approx(1 - np.mean(below), abs=1e-12)
            assert np.array_equal(np.asarray(row["density"]) > 0, ~below)
            assert row["printed_value"] <= row["value"] + 1e-12


@pytest.mark.parametrize("regularisation", study.REGULARISATIONS)
def test_the_grid_agrees_with_samples_of_the_ball(regularisation: str) -> None:
    f = losses("scaled")
    z = np.linspace(-5, 5, len(f))
    row = rows(part="density", reading="scaled", regularisation=regularisation)[1]
    at = np.array([[-1.8], [0.0], [4.0], [4.5]])
    sampled = worst_case_density(
        lambda x, i: np.interp(x[:, 0], z, f),
        np.zeros((1, 1)),
        Ball(2, 5.0),
        row["eta"],
        study.divergence(regularisation, row["alpha"]),
        at=at,
        samples=20_000,
        rng=rng(0),
    )
    assert np.interp(at[:, 0], z, row["density"]) == pytest.approx(sampled.density, rel=0.05, abs=1e-3)
    assert row["atom"] == pytest.approx(sampled.masses[0], abs=0.01)


def test_printed_weights_of_ties_at_the_quantile_have_too_much_mass() -> None:
    f = losses("literal")
    row = rows(part="density", reading="literal", regularisation="indicator")[-1]
    quantile = np.sort(f)[-10]  # alpha = 0.01 of a thousand points
    assert row["printed_mass"] == pytest.approx(np.mean(f >= quantile) / 0.01)
    assert row["printed_mass"] > 5
    assert 10 / len(f) * np.sum(row["density"]) == pytest.approx(1, abs=1e-12)


def test_where_the_mass_lies() -> None:
    first, *_, last = rows(part="density", reading="scaled", regularisation="indicator")
    z = np.linspace(-5, 5, 1000)
    assert (first["low"], first["high"]) == pytest.approx((z[49], z[949]), abs=0.011)
    assert first["near_end"] == pytest.approx(0.1)
    assert first["from_uniform"] == 0
    assert last["support"] == pytest.approx(0.01)
    assert last["from_uniform"] == pytest.approx(0.99)
    assert 4 < last["low"] < last["high"] < 5
    for row in rows(part="density", regularisation="entropic"):
        assert row["support"] == 1
        assert row["moved_by_eta"] > 0.001
    for row in rows(part="density", regularisation="indicator"):
        assert row["moved_by_eta"] == 0


def test_entropic_support_is_full_where_the_density_underflows() -> None:
    (row,) = STUDY.compute(
        Config(reading="scaled", points=200, networks=0, alphas=(1.0,), etas=(1e-4,)), rng(0)
    ).rows[2:3]
    assert row["regularisation"] == "entropic"
    assert np.min(row["density"]) == 0
    assert row["support"] == 1


# --- The run ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_the_other_networks_depend_on_the_seed() -> None:
    config = Config(reading="scaled", points=50, networks=3, width=32)
    one, same, other = (STUDY.compute(config, rng(seed)) for seed in (0, 0, 1))
    for a, b, c in zip(one.rows, same.rows, other.rows, strict=True):
        assert repr(a) == repr(b)
        assert (repr(a) == repr(c)) == (a["part"] != "networks")


def test_cells_are_named_apart_and_count_the_networks() -> None:
    tasks = STUDY.tasks(Config(networks=25))
    assert len({repr(task) for task in tasks}) == len(tasks) == 2 * (1 + 20 + 3)
    assert {task["reading"] for task in STUDY.tasks(Config(reading="literal"))} == {"literal"}
    drawn = STUDY.compute(Config(reading="literal", points=10, networks=12, width=8), rng(0))
    assert [row["drawn"] for row in drawn.rows if row["part"] == "networks"] == [10, 2]


def test_the_scales_differ_from_the_paper_in_size_alone() -> None:
    assert STUDY.scales["paper"] == Config()
    for config in STUDY.scales.values():
        changed = {f.name for f in fields(Config) if getattr(config, f.name) != f.default}
        assert changed <= {"points", "networks"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reading": "odd"}, "reading is 'odd'; expected one of both, literal, scaled"),
        ({"width": 0}, "width is 0; expected a whole number of at least 1"),
        ({"units": 1.5}, "units is 1.5; expected a whole number"),
        ({"first_std": 0.0}, "first_std is 0.0; expected a positive number"),
        ({"literal_seed": -1}, "literal_seed is -1; expected a whole number of at least 0"),
        ({"scaled_seed": -1}, "scaled_seed is -1"),
        ({"radius": float("inf")}, "radius is inf; expected a positive number"),
        ({"points": 1}, "points is 1; expected a whole number of at least 2"),
        ({"alphas": (1.0, 0.5, 0.1, 0.0)}, "alphas is 0.0; expected a positive number"),
        ({"alphas": (1.0, 0.5, 0.1, 1.5)}, "alphas is 1.5; expected at most 1"),
        ({"alphas": ()}, "alphas is (); expected a tuple of numbers"),
        ({"etas": (1.0,)}, "alphas has 4 numbers and etas 1; expected one per row"),
        ({"etas": (1.0, 0.1, float("nan"), 0.1)}, "etas is nan; expected a positive number"),
        ({"networks": -1}, "networks is -1; expected a whole number of at least 0"),
    ],
)
def test_a_bad_setting_is_told_at_the_door(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="expected") as told:
        replace(Config(), **change)
    assert words in str(told.value)


# --- What it says -----------------------------------------------------------------------------------


def said(changed: Table, start: str) -> str:
    (text,) = [text for text in STUDY.findings(changed) if text.startswith(start)]
    return text


def altered(wanted: dict[str, Any], **values: Any) -> Table:
    """The table with other values in the rows that have the wanted names."""
    return replace(
        table(),
        rows=tuple(
            {**row, **values} if all(row.get(k) == v for k, v in wanted.items()) else row
            for row in table().rows
        ),
    )


@pytest.mark.parametrize("reading", READINGS)
def test_findings_are_those_of_this_table(reading: str) -> None:
    for finding in ("Finding 1", "Finding 2"):
        assert "NOT as in the paper" not in said(table(), f"{finding}, {reading}")
    assert "is NOT as in the paper" in said(table(), f"Finding 4, {reading}: the hinge")
    assert "cases have mass one" in said(table(), f"Values, {reading}")
    (landscape,) = rows(part="landscape", reading=reading)
    assert f"has {landscape['maxima']} local maxima" in said(table(), f"Landscape, {reading}")


@pytest.mark.parametrize(
    ("wanted", "values", "start", "words"),
    [
        ({"regularisation": "indicator", "row": 1}, {"moved_by_eta": 0.1}, "Finding 1", "is NOT as"),
        ({"regularisation": "indicator", "row": 0}, {"from_uniform": 0.1}, "Finding 1", "is NOT as"),
        ({"regularisation": "indicator", "row": 3}, {"near_end": 0.0}, "Finding 1", "is NOT as"),
        ({"regularisation": "entropic", "row": 2}, {"support": 0.5}, "Finding 2", "is NOT as"),
        ({"regularisation": "entropic", "row": 0}, {"from_uniform": 1.0}, "Finding 2", "is NOT as"),
        ({"regularisation": "quadratic", "row": 3}, {"support": 1.0}, "Finding 3", "smaller support: NOT as"),
        ({"regularisation": "quadratic", "row": 1}, {"largest": 99.0}, "Finding 3", "higher: NOT as"),
        ({"regularisation": "quadratic", "row": 0}, {"largest": 0.01}, "Finding 3", "growth: NOT as"),
        ({"regularisation": "hinge"}, {"atom": 0.0}, "Finding 4, scaled: the hinge", "is as in"),
        ({"row": 1}, {"dual_minus_primal": 1e-3}, "Values", "do NOT have"),
        ({"row": 1}, {"mass": 0.9}, "Values", "do NOT have"),
        ({"part": "networks"}, {"many": 0}, "Landscape", "local maxima: NOT as"),
        ({"part": "networks"}, {"at_end": 2}, "Landscape", "x = 5: as in"),
    ],
)
def test_findings_follow_the_table(
    wanted: dict[str, Any], values: dict[str, Any], start: str, words: str
) -> None:
    start = start if "," in start else f"{start}, scaled"
    assert words in said(altered(wanted, **values), start)
    assert words not in said(table(), start)


def test_sheets_show_every_worst_case() -> None:
    first, *others = STUDY.tables(table())
    assert [row[0] for row in first.rows] == list(READINGS)
    assert [len(report_table.rows) for report_table in others] == [20, 20]
    for report_table in (first, *others):
        assert all(len(row) == len(report_table.headings) for row in report_table.rows)
    (hinge,) = [row for row in others[1].rows if row[0] == "hinge" and row[1] == "eta = 0.25"]
    (found,) = rows(part="density", reading="scaled", regularisation="hinge", row=2)
    assert f"{found['atom']:.3f}" in hinge


@pytest.mark.slow
def test_figures_have_the_panels_of_the_paper() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    figures = STUDY.draw(table())
    assert list(figures) == ["overview", "landscape", "densities-literal", "densities-scaled"]
    assert len(figures["landscape"].axes) == 2
    _, *worst = figures["overview"].axes  # from large to small eta the mass gathers
    heights = [max(line.get_ydata().max() for line in one.lines) for one in worst]
    assert heights == sorted(heights)
    assert len(heights) == 3
    for reading in READINGS:
        axes = figures[f"densities-{reading}"].axes
        assert [one.get_title() for one in axes[:5]] == list(study.REGULARISATIONS)
        assert len(axes) == 20
        words = [[text.get_text() for text in one.texts] for one in axes]
        assert sum(any("atom" in word for word in texts) for texts in words) == 6
        assert words[0] == ["$\\alpha = 1$"]
        curve = axes[10].lines[0].get_xydata()
        (row,) = rows(part="density", reading=reading, regularisation="indicator", row=2)
        assert np.max(curve[:, 1]) == pytest.approx(row["largest"])
        assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(1, abs=0.02)
