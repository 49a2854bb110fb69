"""How far long work is: what is shown on a terminal, and what elsewhere."""

from __future__ import annotations

import io
import re
import time

import pytest

rich_console = pytest.importorskip("rich.console", reason="rich: not installed")

from phiball.backends import use  # noqa: E402
from phiball.refimpl import QUADRATIC, worst_case  # noqa: E402
from phiball.verification import verify_solver  # noqa: E402
from phiball.verification.framework import progress  # noqa: E402
from phiball.verification.framework.progress import Progress  # noqa: E402


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.01)
    monkeypatch.setattr(progress, "LINE_PAUSE", 0.02)


def test_a_terminal_shows_a_bar_with_what_is_done_and_the_time_left() -> None:
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=120)
    with Progress("bench", console) as whole:
        for _ in whole.part(0.5, 1.0).each(["the first", "the [second]"], str):
            time.sleep(0.1)
        assert whole.share == 1.0
    text = out.getvalue()
    assert "bench" in text
    assert " 50 % the first" in text
    assert " 75 % the [second]" in text
    assert "about 0 s left" in text


def test_elsewhere_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("bench", rich_console.Console(file=io.StringIO(), force_terminal=False)) as whole:
        time.sleep(0.05)  # nothing is done yet, hence nothing is known of the time left
        whole.update(0.25, "a matrix")
        time.sleep(0.1)
        whole.update(7.0, "the end")
        assert whole.share == 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "bench: 0 % of the work"
    assert "bench: 25 % of the work, about 0 s left, a matrix" in lines


def test_the_time_left_is_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, now = Progress("bench", shown=False), [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with whole:
        now[0] += 30
        assert whole.left() == ""
        whole.update(0.25, "")
        assert whole.left() == "about 2 min left"
        whole.update(0.5, "")
        assert whole.left() == "about 30 s left"


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True, False])
def test_verify_solver_says_which_claim_it_is_at(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with use("numpy"):
        report = verify_solver(worst_case, divergences=[QUADRATIC], laws=False, effort=0.1, progress=shown)
    assert report.ok
    lines = capsys.readouterr().err.splitlines()
    if not shown:
        assert lines == []
        return
    found = [re.fullmatch(r"worst_case: (\d+) % of the work(, about .* left)?(, .*)?", s) for s in lines]
    assert all(found)
    shares = [int(match[1]) for match in found if match]
    assert shares == sorted(shares)
    assert shares[-1] > 50
    said = {match[3].split()[1] for match in found if match and match[3]}
    assert len(said) > 3
    assert said <= {check.id for check in report.checks}
