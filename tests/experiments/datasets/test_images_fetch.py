"""Sets of images are fetched once, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.experiments.datasets import images
from phiball.experiments.datasets.images import FILES, NAMES, SOURCES, VARIABLE, load
from tests.support.idx_files import contents, packed

TRAIN_X, TRAIN_Y, _, TEST_Y = FILES


class Server(http.server.ThreadingHTTPServer):
    """Serves the four files; `fault` is what goes wrong with the test's labels, `times` how often."""

    daemon_threads = False  # joined when the server is closed
    fault = ""
    times = 99
    sized = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {file: gzip.compress(packed(values), mtime=0) for file, values in contents().items()}
        self.asked: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        file = self.path.removeprefix("/data/")
        self.server.asked.append(file)
        data, fault = self.server.files[file], ""
        if file == TEST_Y and self.server.times > 0:
            self.server.times -= 1
            fault = self.server.fault
        if fault == "status":
            self.send_error(404)
            return
        self.send_response(200)
        if self.server.sized:
            self.send_header("Content-Length", str(len(data)))
        if "gzip" in self.headers["Accept-Encoding"]:  # as some servers do with gzipped files
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write({"half": data[: len(data) // 2], "other": data[::-1]}.get(fault, data))

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pooch = pytest.importorskip("pooch", reason="pooch: not installed")
    pytest.importorskip("rich", reason="rich: not installed")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(images, "RETRIES", 0)
    with Server() as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/data/"
        checksums = tuple(hashlib.sha256(server.files[file]).hexdigest() for file in FILES)
        monkeypatch.setitem(SOURCES, "mnist", (address, checksums))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def kept(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "phiball" / "mnist").iterdir()}


def test_what_is_fetched_is_kept(server: Server, tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    data = load("mnist", say=lambda *one: said.append(one))
    for found, values in zip(
        (data.train_x, data.train_y, data.test_x, data.test_y), contents().values(), strict=True
    ):
        np.testing.assert_array_equal(found, values)
    assert server.asked == list(FILES)
    assert kept(tmp_path) == set(FILES)
    for file in FILES:
        size = len(server.files[file])
        told = [(done, total) for name, done, total in said if name == file]
        assert told[-1] == (size, size)
        assert all(0 <= done <= total == size for done, total in told)
    said.clear()
    assert load("mnist", say=lambda *one: said.append(one)).digest == data.digest
    assert (server.asked, said) == (list(FILES), [])


def test_a_kept_file_that_was_damaged_is_fetched_again(server: Server, tmp_path: Path) -> None:
    before = load("mnist").digest
    path = tmp_path / "cache" / "phiball" / "mnist" / TRAIN_Y
    path.write_bytes(path.read_bytes()[:-3])
    assert load("mnist").digest == before
    assert server.asked == [*FILES, TRAIN_Y]


FAULTS: dict[str, tuple[type[Exception], str]] = {
    "status": (OSError, "404 Client Error"),
    "half": (OSError, "IncompleteRead"),
    "other": (ValueError, "does not match the known hash"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_leaves_nothing_and_is_made_good(server: Server, tmp_path: Path, fault: str) -> None:
    kind, why = FAULTS[fault]
    server.fault = fault
    with pytest.raises(kind, match=why) as caught:
        load("mnist")
    assert isinstance(caught.value, OSError) == (kind is OSError)
    message = str(caught.value)
    assert message.startswith(f"{TEST_Y} could not be fetched from {SOURCES['mnist'][0]}{TEST_Y} (")
    assert "download it by hand into a folder mnist/" in message
    assert "with --data-dir or PHIBALL_DATA" in message
    assert kept(tmp_path) == set(FILES) - {TEST_Y}
    server.fault = ""
    assert load("mnist").test_y.tolist() == contents()[TEST_Y].tolist()
    assert server.asked == [*FILES, TEST_Y]
    assert kept(tmp_path) == set(FILES)


def test_no_connection(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as gone:
        address = f"http://127.0.0.1:{gone.server_address[1]}/data/"
    monkeypatch.setitem(SOURCES, "mnist", (address, SOURCES["mnist"][1]))
    with pytest.raises(
        OSError, match=rf"{TRAIN_X} could not be fetched from \S+ \(\[Errno \d+\][^(]*\); .*PHIBALL_DATA"
    ):
        load("mnist")
    assert kept(tmp_path) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_that_passes_is_tried_again(
    server: Server, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooch = pytest.importorskip("pooch", reason="pooch: not installed")
    monkeypatch.setattr(pooch.core.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(images, "RETRIES", 1)
    monkeypatch.setattr(images, "CHUNK", 5)
    server.fault, server.times = fault, 1
    said: list[tuple[str, int, int]] = []
    load("mnist", say=lambda *one: said.append(one))
    assert server.asked == [*FILES, TEST_Y]
    size = len(server.files[TEST_Y])
    told = [done for file, done, total in said if file == TEST_Y and total == size]
    assert told[-1] == size
    assert told.count(5) == (1 if fault == "status" else 2)  # the second attempt begins at nothing
    assert all(done <= total for _, done, total in said)


def test_a_server_that_gives_no_sizes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 5)
    server.sized = False
    said: list[tuple[str, int, int]] = []
    assert load("mnist", say=lambda *one: said.append(one)).train_x.shape == (9, 28, 28)
    assert {(file, total) for file, _, total in said} == {(file, 0) for file in FILES}
    assert [done for file, done, _ in said if file == TEST_Y][:3] == [5, 10, 15]
    assert load("mnist").train_x.shape == (9, 28, 28)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_bar(server: Server, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", screen)
    load("mnist")
    shown = screen.getvalue()
    assert all((file in shown) == terminal for file in FILES)
    assert terminal or not shown
    load("mnist")
    assert screen.getvalue() == shown


def test_sources_are_whole() -> None:
    assert (*SOURCES, "digits") == NAMES
    sums = [one for address, checksums in SOURCES.values() for one in checksums]
    assert all(len(one) == 64 and int(one, 16) for one in sums)
    assert len(set(sums)) == len(SOURCES) * len(FILES)
    assert all(address.startswith("http") and address.endswith("/") for address, _ in SOURCES.values())
