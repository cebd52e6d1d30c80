"""Fetching files, against a server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deltacell.download import CHECKSUMS, DOWNLOADS, Download, get
from deltacell.errors import InputError

BODY = bytes(range(256)) * 4096


class Server(BaseHTTPRequestHandler):
    """Serves BODY with ranges; can be told to hang up after some bytes."""

    body: ClassVar[bytes] = BODY
    version: ClassVar[str] = '"one"'
    hang_up_after: ClassVar[int | None] = None
    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).ranges.append(wanted)
        same = self.headers.get("If-Range") == self.version
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and same else 0
        body = self.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", self.version)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        stop = self.hang_up_after
        self.wfile.write(body if stop is None else body[:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Server], str]]:
    handler = type("Handler", (Server,), {"ranges": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield handler, f"http://127.0.0.1:{httpd.server_address[1]}/file"
        httpd.shutdown()


def refused(code: str, download: Download, folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        get(download, folder)
    assert caught.value.code == code
    return caught.value


def test_a_first_download_records_its_checksum(server: Any, tmp_path: Path) -> None:
    _, url = server
    seen: list[tuple[int, int]] = []
    path, how = get(
        Download("a", url, "a.bin", "a file"),
        tmp_path,
        progress=lambda _, d, t: seen.append((d, t)),
    )
    assert path.read_bytes() == BODY
    assert how == "recorded"
    assert hashlib.sha256(BODY).hexdigest() in (tmp_path / CHECKSUMS).read_text()
    assert seen[-1] == (len(BODY), len(BODY))
    assert {p.name for p in tmp_path.iterdir()} == {"a.bin", CHECKSUMS}


def test_a_file_that_is_there_is_not_fetched_again(server: Any, tmp_path: Path) -> None:
    handler, url = server
    download = Download("a", url, "a.bin", "a file")
    get(download, tmp_path)
    _, how = get(download, tmp_path)
    assert len(handler.ranges) == 1
    assert how == "agrees with the first download"


def test_a_changed_file_is_refused(server: Any, tmp_path: Path) -> None:
    _, url = server
    download = Download("a", url, "a.bin", "a file")
    path, _ = get(download, tmp_path)
    path.write_bytes(b"mine")
    refused("changed-file", download, tmp_path)
    assert path.read_bytes() == b"mine"


def test_a_transfer_cut_off_goes_on_where_it_stopped(server: Any, tmp_path: Path) -> None:
    handler, url = server
    download = Download("a", url, "a.bin", "a file")
    handler.hang_up_after = 300_000
    refused("no-download", download, tmp_path)
    assert not (tmp_path / "a.bin").exists()
    handler.hang_up_after = None
    path, _ = get(download, tmp_path)
    assert path.read_bytes() == BODY
    start = int(str(handler.ranges[-1]).removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= 300_000


def test_parts_of_two_versions_are_never_joined(server: Any, tmp_path: Path) -> None:
    handler, url = server
    download = Download("a", url, "a.bin", "a file")
    handler.hang_up_after = 300_000
    refused("no-download", download, tmp_path)
    handler.hang_up_after, handler.version, handler.body = None, '"two"', BODY[::-1]
    path, _ = get(download, tmp_path)
    assert path.read_bytes() == BODY[::-1]


def test_a_wrong_checksum_keeps_nothing(server: Any, tmp_path: Path) -> None:
    _, url = server
    wrong = Download("a", url, "a.bin", "a file", sha256="0" * 64)
    refused("wrong-checksum", wrong, tmp_path)
    assert not (tmp_path / "a.bin").exists()
    sha = hashlib.sha256(BODY).hexdigest()
    _, how = get(Download("a", url, "a.bin", "a file", sha256=sha), tmp_path)
    assert how == "checked"


def test_without_a_network_it_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    nowhere = Download("a", "http://127.0.0.1:9/a", "a.bin", "a file")
    error = refused("no-download", nowhere, tmp_path)
    assert "no connection" in error.what
    assert f"deltacell data import {tmp_path}" in str(error.fix)


def test_every_download_has_a_place_and_a_name_of_its_own() -> None:
    assert len({d.file for d in DOWNLOADS.values()}) == len(DOWNLOADS)
    assert all(d.url.startswith("http") and d.about for d in DOWNLOADS.values())


@pytest.mark.parametrize("text", ["[]", "{", "7"])
def test_a_damaged_list_of_checksums_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECKSUMS).write_text(text)
    wanted = Download("thing", "http://127.0.0.1:9/file", "thing.txt", "a thing")
    refused("damaged", wanted, tmp_path)
