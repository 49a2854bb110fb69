"""The tiny study, with tasks that kill their worker once, or that say where they run and stay there."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from phiball.backends import Rng
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Task, TaskDir
from tests.support.tiny_study import Config, TinyStudy


class KilledStudy(TinyStudy):
    """`place` says what a task does, and a folder: "self:DIR", "parent:DIR" or "stay:DIR"."""

    name = "killed"

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        what, _, folder = config.place.partition(":")
        if what == "stay":
            Path(folder, str(os.getpid())).touch()
            time.sleep(600.0)
        elif task["k"] == 1:
            with suppress(FileExistsError):
                Path(folder, "killed").touch(exist_ok=False)
                os.kill(os.getpid() if what == "self" else os.getppid(), signal.SIGKILL)
                time.sleep(600.0)
        row = super().compute_task(config, task, rng, task_dir)
        file = task_dir.file("note.txt")
        assert file is not None
        file.write_text(f"task {task['k']}")  # comes back to the folder of the run
        return row


STUDY = KilledStudy()
