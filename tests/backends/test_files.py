"""Files are replaced atomically, and only regular files are read."""

import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phiball.backends.files import atomic_write, open_regular, write_text_atomic
from tests.support.paths import ROOT

WRITING = re.compile(r"""\.write_(text|bytes)\(|open\([^)]*["'][wax]b?["']|savefig\((?!stream)""")
# The number of writes that are not atomic, per file: locks, a temporary file, /proc, figures of benchmarks.
OTHER_WRITES = {
    "backends/files.py": 2,
    "experiments/benchmarks/harness.py": 1,
    "experiments/benchmarks/linear_evidence.py": 1,
    "experiments/benchmarks/linear_sinkhorn.py": 1,
    "experiments/framework/compute.py": 1,
    "experiments/framework/study_runs.py": 1,
    "experiments/robustness/models.py": 1,
}


def test_every_result_is_written_atomically() -> None:
    found = Counter[str]()
    for folder in ("refimpl", "backends", "verification", "experiments"):
        for file in (ROOT / folder).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            found[name] += len(WRITING.findall(file.read_text(encoding="utf-8")))
    assert +found == OTHER_WRITES


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_text_atomic(file, "old")
    with pytest.raises(ZeroDivisionError), atomic_write(file) as stream:
        stream.write(b"half" * (1 // 0))
    with pytest.raises(KeyboardInterrupt), atomic_write(file):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [file]

    def replace(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="disk full"):
            write_text_atomic(file, "new")
    assert file.read_text() == "old"
    write_text_atomic(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    texts = [str(k) * 20_000 for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_text_atomic, [tmp_path / "file"] * 200, texts * 50))
    assert (tmp_path / "file").read_text() in texts
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_symbolic_links_and_pipes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_text_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"
    reader, writer = os.pipe()
    write_text_atomic(Path(f"/proc/self/fd/{writer}"), "through a pipe")
    assert os.read(reader, 99) == b"through a pipe"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="file is not a regular file, but"), open_regular(file):
        pass
