"""Resumable downloads of public files, each checked against the checksum of its first download."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import requests

from deltacell.errors import InputError
from deltacell.files import open_no_link, read_json, write_json
from deltacell.store import sha256_of_file
from deltacell.words import Progress

CHECKSUMS = "checksums.json"


class Download(NamedTuple):
    """A public file."""

    name: str
    url: str
    file: str
    about: str


_LIST = Path(__file__).with_name("downloads.tsv").read_text(encoding="utf-8")
DOWNLOADS = {one.name: one for one in (Download(*line.split("\t")) for line in _LIST.splitlines())}


def get(
    download: Download,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> tuple[Path, str]:
    """Download a file unless it exists; return its path and where its checksum comes from.

    An interrupted download is resumed. The file appears under its name only when it is complete
    and has the checksum of the first download, which is recorded in the folder.
    """
    folder = Path(folder)
    path, list_file = folder / download.file, folder / CHECKSUMS
    recorded = read_json(list_file, what="the list of checksums") if list_file.exists() else {}
    if not isinstance(recorded, dict):
        fix = "Remove it; the checksums of existing files are then recorded again."
        raise InputError("not a list of checksums", code="damaged", where=list_file, fix=fix)
    part = folder / f".{download.file}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder cannot be created: {error.strerror or error}"
        raise InputError(what, code="not-written", where=folder) from error
    try:
        if not path.exists():
            _fetch(download, part, progress)
    except (requests.RequestException, OSError) as error:
        reason = "no connection" if isinstance(error, requests.ConnectionError) else error
        raise InputError(
            f"'{download.name}' could not be downloaded from {download.url}: {reason}",
            code="no-download",
            fix=f"If you have a copy of {download.file} ({download.about}), put it into {folder} "
            f"and run: deltacell data import {folder} --out OUT",
        ) from error
    there = path if path.exists() else part
    expected = recorded.get(download.file)
    if expected and sha256_of_file(there) != expected:
        part.unlink(missing_ok=True)
        what = "the file does not have the checksum of the first download"
        fix = f"It may have changed at its source. Move it, or remove its line in {list_file}."
        raise InputError(what, code="wrong-checksum", where=path, fix=fix)
    there.replace(path)
    unpacked = folder / f"{download.file}.unpacked"
    if download.name == "costanzo2016" and not unpacked.exists():
        # The import does not read a zip of several files.
        begun = unpacked.with_suffix(".part")
        zipfile.ZipFile(path).extractall(begun)
        begun.rename(unpacked)
    if download.file in recorded:
        return path, "agrees with the first download"
    recorded[download.file] = sha256_of_file(path)
    write_json(list_file, dict(sorted(recorded.items())), what="the list of checksums")
    return path, "recorded"


def _fetch(download: Download, part: Path, progress: Progress | None) -> None:
    """Download into `part`; an interrupted download stays there and can be resumed."""
    version = part.with_suffix(".version")
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    # Without the version, bytes of two versions could be joined unnoticed.
    if have and version.exists():
        headers |= {"Range": f"bytes={have}-", "If-Range": version.read_text()}
    with requests.get(download.url, headers=headers, stream=True, timeout=60) as response:
        if response.status_code == 416:
            part.unlink()
            return _fetch(download, part, progress)
        response.raise_for_status()
        resumed = response.status_code == 206
        mark = response.headers.get("ETag") or response.headers.get("Last-Modified")
        version.unlink(missing_ok=True)
        if mark:
            version.write_text(mark)
        have = have if resumed else 0
        total = have + int(response.headers.get("Content-Length") or -have)
        with open_no_link(part, "ab" if resumed else "wb") as file:
            for chunk in response.iter_content(1 << 16):
                have += file.write(chunk)
                if progress is not None:
                    progress(download.name, have, total)
    if total and have != total:
        raise requests.RequestException(f"cut off after {have:,} of {total:,} bytes")
    return version.unlink(missing_ok=True)
