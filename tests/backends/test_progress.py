"""The progress display, on a terminal and elsewhere."""

import io
import re
import time
from collections.abc import Callable

import pytest

rich_console = pytest.importorskip("rich.console", reason="rich: not installed")

from phiball.backends import progress  # noqa: E402
from phiball.backends.progress import Progress  # noqa: E402


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.01)
    monkeypatch.setattr(progress, "LINE_PAUSE", 0.02)


def wait_for(words: str, read: Callable[[], str]) -> str:
    """Wait until the output, which another thread writes, contains `words`, and return the output."""
    text, end = "", time.monotonic() + 60
    while words not in (text := text + read()) and time.monotonic() < end:
        time.sleep(0.01)
    return text


def test_terminal_shows_a_bar_with_the_step_and_the_time_left() -> None:
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=120)
    with Progress("bench", console) as display:
        for item in display.part(0.5, 1.0).each(["the first", "the [second]"], str):
            wait_for(item, out.getvalue)
        assert display.share == 1.0
    text = out.getvalue()
    assert "bench" in text
    assert " 50 % the first" in text
    assert " 75 % the [second]" in text
    assert "about 0 s left" in text


def test_output_that_is_not_a_terminal_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("bench", rich_console.Console(file=io.StringIO(), force_terminal=False)) as display:
        # Before any progress, the remaining time is unknown.
        assert wait_for("\n", lambda: capsys.readouterr().err).startswith("bench: 0 % of the work\n")
        display.update(0.25, "a matrix")
        text = wait_for("a matrix\n", lambda: capsys.readouterr().err)
        assert re.search(r"^bench: 25 % of the work, about \d+ s left, a matrix$", text, re.MULTILINE)
        display.update(7.0, "the end")
        assert display.share == 1.0


def test_time_left_is_proportional_to_the_remaining_share(monkeypatch: pytest.MonkeyPatch) -> None:
    display, now = Progress("bench", shown=False), [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with display:
        now[0] += 30
        assert display.left() == ""
        display.update(0.25, "")
        assert display.left() == "about 2 min left"
        display.update(0.5, "")
        assert display.left() == "about 30 s left"
