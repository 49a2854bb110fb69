"""The benchmark of growth: exponents, the curves, memory in a process of its own, and what is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="torch: not installed")
pytest.importorskip("matplotlib", reason="matplotlib: not installed")
image = pytest.importorskip("PIL.Image", reason="Pillow: not installed")

from phiball.experiments.benchmarks import own_process  # noqa: E402
from phiball.experiments.benchmarks import scaling as bench  # noqa: E402
from phiball.experiments.benchmarks.growth import curves as growth_curves  # noqa: E402
from phiball.experiments.benchmarks.growth import fits  # noqa: E402
from phiball.experiments.cli.app import app  # noqa: E402
from tests.support.progress import Watched  # noqa: E402

pytestmark = pytest.mark.skipif(not own_process.AVAILABLE, reason="no forkserver on this system")


# --- Fits -----------------------------------------------------------------------------------------


def test_a_power_law_is_recovered_from_the_largest_sizes() -> None:
    sizes = [4**k for k in range(8)]
    values = [100.0 if size < 64 else 3 * size**1.5 for size in sizes]
    fit = fits.fit_power(sizes, values)
    assert fit.exponent == pytest.approx(1.5)
    assert fit.half_width == pytest.approx(0.0, abs=1e-9)
    assert fit.sizes == tuple(sizes[-5:])
    assert str(fits.fit_power([1, 2], [8.0, 4.0])) == "-1.00"  # no interval from two sizes


def test_the_interval_covers_the_truth_in_95_of_100_cases() -> None:
    """Of 1,000 fits with normal noise of the logarithms; z = 4.75 allows 33 more or fewer."""
    source, sizes = np.random.default_rng(0), np.array([4**k for k in range(5)])
    hits = 0
    for _ in range(1000):
        fit = fits.fit_power(list(sizes), list(sizes**0.7 * np.exp(0.1 * source.normal(size=5))))
        assert fit.half_width is not None
        hits += abs(fit.exponent - 0.7) <= fit.half_width
    assert abs(hits - 950) <= 33


@pytest.mark.parametrize(
    ("cost", "exponent"),
    [(growth_curves.linear, 1.0), (growth_curves.constant, 0.0), (growth_curves.sorting, 1.11)],
)
def test_theory_is_fitted_as_the_measurement_is(cost: Any, exponent: float) -> None:
    sizes = growth_curves.axes()["m"].time
    assert fits.theoretical_exponent(sizes, cost) == pytest.approx(exponent, abs=0.01)


# --- Curves ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_curve_does_its_work_and_knows_its_axis() -> None:
    known = growth_curves.axes()
    every = list(growth_curves.curves())
    assert {curve.axis for curve in every} == set(known)
    assert len({(curve.axis, curve.name) for curve in every}) == len(every)
    for axis in known:  # something to compare with on each
        assert {curve.ours for curve in every if curve.axis == axis} == {True, False}
    for curve in every:
        curve.make(2 if curve.axis == "threads" else 4)()
    assert len(growth_curves.SOLVED) <= len(fits.OURS) - 1  # colours


# --- Memory ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_peak_memory_is_what_the_work_holds() -> None:
    for size in (512, 2048):
        held = growth_curves.BATCH * growth_curves.COPIES * size * 8 / 2**20
        peak = own_process.in_own_process(bench.memory_of, "dimension", "NumPy normals", size)
        assert held <= peak <= held + 1.5


@pytest.mark.slow
def test_a_process_of_its_own_answers_raises_or_is_missed() -> None:
    assert own_process.in_own_process(pow, 2, 10) == 1024
    with pytest.raises(ValueError, match="invalid literal"):
        own_process.in_own_process(int, "x")
    with pytest.raises(RuntimeError, match="the process of _exit ended with 3"):
        own_process.in_own_process(os._exit, 3)


def processes(session: int) -> list[str]:
    """The processes of a session that are alive."""
    lines = subprocess.run(["ps", "-eo", "sid=,stat=,pid="], capture_output=True, text=True).stdout
    fields = [line.split() for line in lines.splitlines()]
    return [pid for sid, state, pid in fields if int(sid) == session and not state.startswith("Z")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running(number: int) -> None:
    """On Ctrl-C, which reaches all processes of a terminal, and on a kill, which reaches one."""
    code = (
        "import time\nfrom phiball.experiments.benchmarks import own_process\n"
        "own_process._PRELOADED = ()\nown_process.in_own_process(pow, 2, 2)\nprint(flush=True)\n"
        "own_process.in_own_process(time.sleep, 60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    end = time.monotonic() + 30
    while len(processes(parent.pid)) < 3 and time.monotonic() < end:  # the server, and the one that sleeps
        time.sleep(0.05)
    assert len(processes(parent.pid)) >= 3
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)
    else:
        parent.send_signal(number)
    parent.wait(timeout=30)
    parent.stdout.close()
    while processes(parent.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes(parent.pid) == []


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_quick_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        name: growth_curves.Axis(axis.name, axis.fixed, (1, 2) if name == "threads" else (4, 8, 16), (2, 4))
        for name, axis in growth_curves.axes().items()
    }
    monkeypatch.setattr(bench, "axes", lambda: known)
    monkeypatch.setattr(growth_curves, "THREADED", (4, 16))
    monkeypatch.setattr(bench, "ratio", lambda work, *others: (work(), 2.0)[1])
    monkeypatch.setattr(bench, "mean_time", lambda work, *others: (work(), 2.0)[1])
    monkeypatch.setattr(bench, "in_own_process", lambda function, axis, name, size: 0.5 * size)
    watched = Watched(monkeypatch)
    result = CliRunner().invoke(app, ["bench", "scaling", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    watched.check(10)
    curves = json.loads((tmp_path / "scaling.json").read_text())["curves"]
    found = {(c["quantity"], c["axis"], c["name"]): c for c in curves}
    assert found["time", "m", "quadratic"]["fit"]["exponent"] == pytest.approx(0.0)
    assert found["memory", "m", "torch.softmax"]["fit"]["exponent"] == pytest.approx(1.0)
    assert found["memory", "m", "torch.softmax"]["theory"] == pytest.approx(1.0)
    assert not found["memory", "m", "torch.softmax"]["ours"]
    assert found["time", "threads", "quadratic"]["theory"] == pytest.approx(-1.0)
    assert ("memory", "level", "RTMLMC(L)") not in found
    page = (tmp_path / "scaling.md").read_text(encoding="utf-8")
    assert "| memory | points m of a row | torch.softmax | 1.00 | 1.00 | 2 to 4 | 2 |" in page
    assert "![the plot](scaling.png)" in page
    picture = np.asarray(image.open(tmp_path / "scaling.png").convert("RGB"))
    blue = np.all(np.abs(picture.astype(int) - (0x00, 0x72, 0xB2)) < 9, axis=-1)
    assert blue.sum() > 500  # our first curve is drawn
    svg = (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    assert svg.count("exponent (theory)") == 2 * 4  # a legend in each panel: two quantities, four axes


def test_an_unknown_axis_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "scaling", "--axis", "width"])
    assert result.exit_code == 1
    assert result.stderr == (
        "phiball: axis is 'width'; expected one of m, batch, level, dimension, threads\n"
    )
