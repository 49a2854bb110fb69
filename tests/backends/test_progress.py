"""The progress display, on a terminal and elsewhere."""

from __future__ import annotations

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
    """The output once it contains the words, which the display thread may write late on a busy machine."""
    text, end = "", time.monotonic() + 60
    while words not in (text := text + read()) and time.monotonic() < end:
        time.sleep(0.01)
    return text


def test_terminal_shows_a_bar_with_the_step_and_the_time_left() -> None:
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=120)
    with Progress("bench", console) as whole:
        for item in whole.part(0.5, 1.0).each(["the first", "the [second]"], str):
            wait_for(item, out.getvalue)
        assert whole.share == 1.0
    text = out.getvalue()
    assert "bench" in text
    assert " 50 % the first" in text
    assert " 75 % the [second]" in text
    assert "about 0 s left" in text


def test_other_outputs_get_a_line_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("bench", rich_console.Console(file=io.StringIO(), force_terminal=False)) as whole:
        # The time left is unknown until something is done.
        assert wait_for("\n", lambda: capsys.readouterr().err).startswith("bench: 0 % of the work\n")
        whole.update(0.25, "a matrix")
        text = wait_for("a matrix\n", lambda: capsys.readouterr().err)
        assert re.search(r"^bench: 25 % of the work, about \d+ s left, a matrix$", text, re.MULTILINE)
        whole.update(7.0, "the end")
        assert whole.share == 1.0


def test_time_left_is_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, now = Progress("bench", shown=False), [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with whole:
        now[0] += 30
        assert whole.left() == ""
        whole.update(0.25, "")
        assert whole.left() == "about 2 min left"
        whole.update(0.5, "")
        assert whole.left() == "about 30 s left"
