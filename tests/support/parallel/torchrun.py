"""Two local processes under torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def torchrun(logs: Path) -> list[str]:
    """The command to which a program is appended; torchrun writes its logs to the folder `logs`."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*program, "--log-dir", str(logs)]


GLOO_AT_EXIT = "terminate called without an active exception"
"""The message of a crash in torch while gloo shuts down: about one run in ten on busy machines."""


def environment(**more: str) -> dict[str, str]:
    """The environment for torchrun."""
    local = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", **local, **more}
