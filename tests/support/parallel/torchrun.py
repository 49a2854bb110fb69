"""Two local processes under torchrun."""

import os
import sys
from pathlib import Path


def torchrun(logs: Path) -> list[str]:
    """The start of a command that runs a program on two ranks, with logs in the folder `logs`."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*program, "--log-dir", str(logs)]


GLOO_AT_EXIT = "terminate called without an active exception"
"""torch's message if gloo crashes on exit, as it does in about one run in ten on busy machines."""


def environment(**more: str) -> dict[str, str]:
    """The environment for torchrun."""
    local = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", **local, **more}
