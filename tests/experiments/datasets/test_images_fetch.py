"""Sets of images are fetched once, whole or not at all."""

from __future__ import annotations

import gc
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.experiments.datasets import images
from phiball.experiments.datasets.images import FILES, SOURCES, VARIABLE, load
from tests.support.idx_files import contents, packed

_, TRAIN_Y, _, TEST_Y = FILES
# pooch leaves the response to a failed request open; `server` collects it before other tests begin.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Server(http.server.ThreadingHTTPServer):
    """Serves the four files; `fault` is what goes wrong with the test's labels."""

    daemon_threads = False  # joined when the server is closed
    fault = ""

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
        if file == TEST_Y:
            fault = self.server.fault
        if fault == "status":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        if "gzip" in self.headers["Accept-Encoding"]:  # as some servers do with gzipped files
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write({"half": data[: len(data) // 2], "other": data[::-1]}.get(fault, data))

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pooch = pytest.importorskip("pooch", reason="pooch: not installed")
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
    gc.collect()


def kept(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "phiball" / "mnist").iterdir()}


@pytest.mark.slow
def test_fetched_files_are_cached(server: Server, tmp_path: Path) -> None:
    data = load("mnist")
    for array, values in zip(
        (data.train_x, data.train_y, data.test_x, data.test_y), contents().values(), strict=True
    ):
        np.testing.assert_array_equal(array, values)
    assert server.asked == list(FILES)
    assert kept(tmp_path) == set(FILES)
    assert load("mnist").digest == data.digest
    assert server.asked == list(FILES)


def test_damaged_cached_file_is_fetched_again(server: Server, tmp_path: Path) -> None:
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
def test_failed_or_wrong_download_is_refused_and_not_kept(server: Server, tmp_path: Path, fault: str) -> None:
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
