"""The library works during imports and without a home directory."""

import os
import subprocess
import sys
from pathlib import Path

SOLVE_DURING_IMPORT = """
import sys, threading
import numpy as np
import phiball
thread = threading.Thread(target=__import__, args=("torch",))
f, errors = np.arange(3.0), set()
thread.start()
while thread.is_alive():
    for eta in (0.5, np.float64(0.5), np.full((), 0.5)):
        try:
            phiball.worst_case(f, eta)
        except Exception as error:
            errors.add(repr(error))
print(*errors)
"""


def test_solving_works_while_another_thread_imports_torch() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SOLVE_DURING_IMPORT], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""


def test_no_file_is_written_to_the_working_directory_without_home(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    code = "import numpy, phiball; phiball.worst_case(numpy.arange(3.0), 0.5)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
