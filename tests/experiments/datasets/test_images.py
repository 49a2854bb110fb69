"""Image data sets are read from a folder or downloaded once; invalid files raise."""

import gc
import gzip
import hashlib
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.experiments.datasets import images
from phiball.experiments.datasets.images import FILES, SOURCES, VARIABLE, load
from tests.support.idx_files import contents, to_idx

TRAIN_X, TRAIN_Y, TEST_X, TEST_Y = FILES
SETS = ("mnist", "fashion-mnist", "kmnist")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the three data sets, gzipped, with different content."""
    monkeypatch.delenv(VARIABLE, raising=False)
    for seed, name in enumerate(SETS):
        (tmp_path / name).mkdir()
        for file, values in contents(seed).items():
            (tmp_path / name / file).write_bytes(gzip.compress(to_idx(values)))
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_gzipped_and_unpacked_idx_files_are_read(folder: Path, name: str) -> None:
    if name == "kmnist":  # also test unpacked files
        for path in (folder / name).glob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    data = load(name, folder)
    expected = contents(SETS.index(name))
    assert (data.name, data.top) == (name, 255)
    for array, file in zip((data.train_x, data.train_y, data.test_x, data.test_y), FILES, strict=True):
        assert array.dtype == np.uint8
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, expected[file])


def test_folder_argument_takes_precedence_over_the_environment_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "other"
    shutil.copytree(folder / "kmnist", other / "mnist")
    monkeypatch.setenv(VARIABLE, str(other))
    np.testing.assert_array_equal(load("mnist").train_x, contents(2)[TRAIN_X])
    np.testing.assert_array_equal(load("mnist", "").train_x, contents(2)[TRAIN_X])
    np.testing.assert_array_equal(load("mnist", str(folder)).train_x, contents(0)[TRAIN_X])
    monkeypatch.setenv("HOME", str(folder))
    np.testing.assert_array_equal(load("mnist", "~/other").train_x, contents(2)[TRAIN_X])


def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a function that changes the content of a gzipped file."""
    return lambda path: path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def zeros(*shape: int) -> Callable[[Path], object]:
    return edited(lambda _: to_idx(np.zeros(shape)))


IDX = "is not a file of bytes in the IDX format"
HTML = b"<!DOCTYPE html><html><body>404</body></html>"
DEFECTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "gzip cut": (TRAIN_X, lambda p: p.write_bytes(p.read_bytes()[:-20]), rf"{IDX} \(damaged gzip: "),
    "a page": (TRAIN_Y, lambda p: p.write_bytes(HTML), rf"{IDX} \(it begins with b'<!DOCTYPE html><'\)"),
    "a byte less": (TEST_Y, edited(lambda data: data[:-1]), rf"{IDX} \(its size does not match"),
    "a byte more": (TEST_Y, edited(lambda data: data + b"\0"), rf"{IDX} \(its size does not match"),
    "sizes beyond memory": (
        TEST_X,
        edited(lambda data: data[:4] + b"\xff" * 12 + data[16:]),
        rf"{IDX} \(its header announces 4294967295 x 4294967295 x 4294967295 bytes, more than 268435456\)",
    ),
    "labels for images": (TRAIN_X, zeros(9), rf"{IDX} \(its number of axes is 1\)"),
    "small images": (TRAIN_X, zeros(9, 28, 27), "has images of 28 x 27; expected 28 x 28"),
    "too few images": (TRAIN_X, zeros(8, 28, 28), f"has 8 images, .*{TRAIN_Y} has 9 labels"),
    "a label of 10": (TEST_Y, edited(lambda data: data[:-1] + b"\n"), "has the label 10; expected 0 to 9"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_damaged_files_are_rejected(folder: Path, name: str) -> None:
    file, damage, message = DEFECTS[name]
    load("mnist", folder)
    damage(folder / "mnist" / file)
    with pytest.raises(ValueError, match=message) as caught:
        load("mnist", folder)
    assert str(folder / "mnist" / file) in str(caught.value)
    load("kmnist", folder)


def test_missing_files_and_folders_are_named(folder: Path) -> None:
    path, where = folder / "mnist" / TEST_X, "nowhere"
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{TEST_X} is missing; expected this file, or {path.stem}"):
        load("mnist", folder)
    with pytest.raises(FileNotFoundError, match="is not a folder; expected") as caught:
        load("mnist", folder / where)
    assert str(caught.value).startswith(f"{folder / where / 'mnist'} is")
    assert all(file in str(caught.value) for file in FILES)


@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_tensors_have_scaled_pixels_and_the_layout_of_networks(folder: Path, name: str) -> None:
    """Each pixel is the float32 nearest to value / top."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn: not installed")
    data = load(name, folder)
    if name == "digits":
        whole = datasets.load_digits()
        assert (data.top, data.train_x.shape, data.test_x.shape) == (16, (1197, 8, 8), (600, 8, 8))
        np.testing.assert_array_equal(np.concatenate([data.train_x, data.test_x]), whole.images)
        np.testing.assert_array_equal(np.concatenate([data.train_y, data.test_y]), whole.target)
    for part, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        pixels, labels = data.tensors(part)
        assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert torch.equal(pixels[:, 0], torch.tensor(x / data.top, dtype=torch.float32))
        assert labels.tolist() == y.tolist()
        some, classes = data.tensors(part, 1, 3)
        assert torch.equal(some, pixels[1:3])
        assert torch.equal(classes, labels[1:3])


def test_data_set_under_another_name_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, file = "test", TEST_X
    beginning = contents(1)[file].astype(np.uint8).tobytes()
    known = {hashlib.sha256(beginning).hexdigest()[:16]: ("fashion-mnist", part)}
    monkeypatch.setattr("phiball.experiments.datasets.images.KNOWN_IMAGES", known)
    assert load("fashion-mnist", folder).name == "fashion-mnist"
    shutil.rmtree(folder / "mnist")
    shutil.copytree(folder / "fashion-mnist", folder / "mnist")
    with pytest.raises(ValueError, match=f"holds the {part} images of fashion-mnist; expected") as refused:
        load("mnist", folder)
    assert str(folder / "mnist" / file) in str(refused.value)


# --- Downloaded from a server --------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve the files of a folder, and record their names in `requested_files`."""

    def __init__(self, *arguments: Any, requested_files: list[str], **options: Any) -> None:
        self.requested_files = requested_files
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        self.requested_files.append(self.path.removeprefix("/"))
        super().do_GET()

    def end_headers(self) -> None:
        if "gzip" in self.headers["Accept-Encoding"]:  # some servers do this for gzipped files
            self.send_header("Content-Encoding", "gzip")
        super().end_headers()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def requested_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve the folder mnist/ as the source of MNIST; return the names of the requested files."""
    pooch = pytest.importorskip("pooch", reason="pooch: not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(images, "RETRIES", 0)
    names: list[str] = []
    handler = partial(Handler, requested_files=names, directory=str(folder / "mnist"))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        checksums = tuple(
            hashlib.sha256((folder / "mnist" / file).read_bytes()).hexdigest() for file in FILES
        )
        monkeypatch.setitem(SOURCES, "mnist", (f"http://127.0.0.1:{server.server_port}/", checksums))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield names
        server.shutdown()
        thread.join()
    gc.collect()  # pooch leaves the response to a failed request open


def test_downloads_are_cached_and_damaged_files_are_downloaded_again(
    requested_files: list[str], tmp_path: Path
) -> None:
    data = load("mnist")
    np.testing.assert_array_equal(data.train_x, contents()[TRAIN_X])
    assert load("mnist").digest == data.digest
    assert requested_files == list(FILES)
    path = tmp_path / "cache" / "phiball" / "mnist" / TRAIN_Y
    path.write_bytes(path.read_bytes()[:-3])
    assert load("mnist").digest == data.digest
    assert requested_files == [*FILES, TRAIN_Y]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(
    ("content", "kind", "why"),
    [(None, OSError, "404 Client Error"), (b"other", ValueError, "does not match the known hash")],
)
def test_failed_or_wrong_download_raises_and_is_not_cached(
    content: bytes | None, kind: type[Exception], why: str, requested_files: list[str], folder: Path
) -> None:
    served = folder / "mnist" / TEST_Y
    right = served.read_bytes()
    served.unlink() if content is None else served.write_bytes(content)
    with pytest.raises(kind, match=why) as caught:
        load("mnist")
    message = str(caught.value)
    assert message.startswith(f"{TEST_Y} could not be downloaded from {SOURCES['mnist'][0]}{TEST_Y} (")
    assert "download it by hand into a folder mnist/" in message
    cache = folder / "cache" / "phiball" / "mnist"
    assert {path.name for path in cache.iterdir()} == set(FILES) - {TEST_Y}
    served.write_bytes(right)
    assert load("mnist").test_y.tolist() == contents()[TEST_Y].tolist()
    assert requested_files == [*FILES, TEST_Y]
