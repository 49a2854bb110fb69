"""What a command says of its progress, recorded and judged."""

from __future__ import annotations

import pytest

from phiball.backends.progress import Progress


class Watched:
    """All that is said to any `Progress` while it is watched: shares and words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[float, str]] = []
        update = Progress.update

        def record(progress: Progress, share: float, text: str) -> None:
            self.said.append((share, text))
            update(progress, share, text)

        monkeypatch.setattr(Progress, "update", record)

    def check(self, least: int = 4) -> None:
        """The share never falls, starts near 0 and gets past 0.7; it is said what is done, often enough."""
        shares = [share for share, _ in self.said]
        assert shares == sorted(shares)
        assert shares[0] < 0.05
        assert 0.7 < shares[-1] <= 1.0 + 1e-9
        assert len({text for _, text in self.said if text}) >= least
