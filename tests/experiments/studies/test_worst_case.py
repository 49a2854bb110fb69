"""The study of worst-case distributions: its loss, values in closed form and report."""

from dataclasses import replace
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import find_peaks
from scipy.special import expit, logsumexp

from phiball.backends import rng
from phiball.experiments.framework.study_runs import run_study
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.worst_case import study
from phiball.experiments.studies.worst_case.landscape import count_maxima
from phiball.experiments.studies.worst_case.study import STUDY, Config

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


@pytest.mark.slow
@pytest.mark.parametrize(("reading", "seed", "divisor"), [("literal", 248, 1.0), ("scaled", 47, sqrt(512))])
def test_networks_are_drawn_from_the_configured_seeds(reading: str, seed: int, divisor: float) -> None:
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


def test_count_of_local_maxima_agrees_with_find_peaks() -> None:
    source = np.random.default_rng(1)
    for _ in range(300):
        f = np.cumsum(source.standard_normal(source.integers(1, 60)))
        height = float(source.choice([0.3, 1.0, 3.0]))
        padded = np.concatenate([[-1e9], f, [-1e9]])
        assert count_maxima(f, height) == len(find_peaks(padded, prominence=height)[0])


# --- The worst cases --------------------------------------------------------------------------------


def closed_form(regularisation: str, f: Any, eta: float, alpha: float) -> float:
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
def test_values_agree_with_closed_forms(reading: str, regularisation: str) -> None:
    f = losses(reading)
    found = rows(part="density", reading=reading, regularisation=regularisation)
    assert len(found) == 4
    for row, alpha, eta in zip(found, CONFIG.alphas, CONFIG.etas, strict=True):
        assert row["eta"] == pytest.approx(eta * (f.max() - f.min()), rel=1e-14)
        assert row["alpha"] == alpha
        assert row["value"] == pytest.approx(closed_form(regularisation, f, row["eta"], alpha), rel=1e-10)
        assert abs(row["dual_minus_primal"]) <= 1e-12 * f.max()


@pytest.mark.parametrize("reading", READINGS)
def test_density_and_atom_have_total_mass_one(reading: str) -> None:
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


# --- The run ----------------------------------------------------------------------------------------


def test_run_writes_tables_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    config = replace(CONFIG, points=200)
    computed, files = run_study(STUDY, config, tmp_path, seed=1)
    names = {"table.csv", "report.md", "overview.png", "landscape.png", "densities-literal.svg"}
    assert names <= {file.name for file in files}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.count("| hinge |") == 8
    assert text.count("20 worst cases attain the dual value to") == 2
    assert [row["drawn"] for row in computed.rows if row["part"] == "networks"] == [2, 2]
