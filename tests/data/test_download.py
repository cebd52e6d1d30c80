"""Fetching files, against a server on this machine."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deltacell.cli import data as commands
from deltacell.data.download import CHECKSUMS, DOWNLOADS, NETWORKS, Download, get
from deltacell.train.config.compose import compose

BODY = bytes(range(256)) * 4096


class Server(BaseHTTPRequestHandler):
    """Serves BODY with ranges; can be told to hang up after some bytes."""

    body, version, hang_up_after = BODY, '"one"', None

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        same = self.headers.get("If-Range") == self.version
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and same else 0
        body = self.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", self.version)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.hang_up_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"ranges": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{httpd.server_address[1]}/file"
        yield handler
        httpd.shutdown()


@pytest.fixture
def download(server):
    return Download("a", server.url, "a.bin", "a file")


SHA256 = hashlib.sha256(BODY).hexdigest()


def test_a_file_without_a_known_checksum_is_refused_before_it_is_fetched(
    server,
    download,
    tmp_path,
    refused,
):
    refused("no-checksum", get, download, tmp_path)
    refused("not-a-checksum", get, download, tmp_path, sha256="1234")
    assert server.ranges == []
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("pinned", [True, False])
def test_a_known_checksum_is_checked(server, download, tmp_path, pinned, refused):
    download = download._replace(sha256=SHA256 if pinned else "")
    options = {} if pinned else {"sha256": SHA256.upper()}
    if pinned:
        refused("other-checksum", get, download, tmp_path, sha256="0" * 64)
    server.body = BODY[::-1]
    refused("wrong-checksum", get, download, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
    # Not even --unchecked accepts another file than the known one.
    refused("wrong-checksum", get, download, tmp_path, unchecked=True, **options)
    server.body = BODY
    path, how = get(download, tmp_path, **options)
    assert path.read_bytes() == BODY
    assert how == f"agrees with {'the list of downloads' if pinned else '--sha256'}"
    assert {p.name for p in tmp_path.iterdir()} == {"a.bin"}
    path.write_bytes(b"mine")
    refused("wrong-checksum", get, download, tmp_path, **options)
    assert path.read_bytes() == b"mine"


def test_an_unchecked_download_records_its_checksum_and_is_not_fetched_again(
    server,
    download,
    tmp_path,
    refused,
):
    seen = []
    path, how = get(
        download, tmp_path, unchecked=True, progress=lambda _, d, t: seen.append((d, t))
    )
    assert (path.read_bytes(), how) == (BODY, f"recorded and not checked: {SHA256}")
    assert SHA256 in (tmp_path / CHECKSUMS).read_text()
    assert seen[-1] == (len(BODY), len(BODY))
    assert {p.name for p in tmp_path.iterdir()} == {"a.bin", CHECKSUMS}
    assert get(download, tmp_path)[1] == "agrees with the first download"
    assert len(server.ranges) == 1
    path.write_bytes(b"mine")
    refused("wrong-checksum", get, download, tmp_path)
    assert path.read_bytes() == b"mine"
    path.unlink()
    server.body = BODY[::-1]
    refused("wrong-checksum", get, download, tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("version", ['"one"', '"two"'])
def test_a_transfer_cut_off_is_resumed_but_versions_are_never_joined(
    server,
    download,
    tmp_path,
    version,
    refused,
):
    server.hang_up_after = 300_000
    refused("no-download", get, download, tmp_path, unchecked=True)
    assert not (tmp_path / "a.bin").exists()
    server.hang_up_after, server.version = None, version
    server.body = BODY if version == '"one"' else BODY[::-1]
    assert get(download, tmp_path, unchecked=True)[0].read_bytes() == server.body
    assert 0 < int(server.ranges[-1].removeprefix("bytes=").rstrip("-")) <= 300_000
    assert {p.name for p in tmp_path.iterdir()} == {"a.bin", CHECKSUMS}


def test_without_a_network_or_with_a_damaged_list_it_says_what_to_do(tmp_path, refused):
    nowhere = Download("a", "http://127.0.0.1:9/a", "a.bin", "a file", SHA256)
    error = refused("no-download", get, nowhere, tmp_path)
    assert "no connection" in error.message
    assert f"deltacell data import {tmp_path}" in str(error.fix)
    (tmp_path / CHECKSUMS).write_text("{")
    refused("damaged", get, nowhere, tmp_path)
    (tmp_path / CHECKSUMS).write_text("[1]")
    refused("damaged", get, nowhere, tmp_path)
    refused("not-written", get, nowhere, tmp_path / CHECKSUMS / "folder")


def test_every_download_has_a_place_and_a_name_of_its_own():
    assert len({d.file for d in DOWNLOADS.values()}) == len(DOWNLOADS)
    assert all(d.url.startswith("http") and d.about for d in DOWNLOADS.values())
    assert all(not d.sha256 or re.fullmatch("[0-9a-f]{64}", d.sha256) for d in DOWNLOADS.values())
    assert sum(bool(d.sha256) for d in DOWNLOADS.values()) >= 4


def test_every_network_of_the_experiments_is_offered_or_says_where_it_comes_from():
    for experiment in ("kuzmin2018_hetero_full", "kuzmin2018_dango", "costanzo2010_dango"):
        names = compose([f"experiment={experiment}"]).data.relations or []
        assert names
        for name in names:
            # The typed actions of STRING are an older release, which only the tests have.
            family = name.partition("_")[0]
            assert {name, family} & {*DOWNLOADS, *NETWORKS, "action"}, name
    assert not NETWORKS.keys() & DOWNLOADS.keys()
    for text in (NETWORKS["physical"], NETWORKS["string"], NETWORKS["regulatory"]):
        named = re.findall(r"download (\S+)", text)
        assert named
        assert set(named) <= DOWNLOADS.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_is_no_download_says_so(name, refused):
    assert refused("network-not-download", commands.get, [name]).fix == NETWORKS[name]


def test_the_list_of_downloads_says_where_the_other_networks_come_from(capsys):
    commands.get()
    shown = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(place.split()) in shown for place in NETWORKS.values())
