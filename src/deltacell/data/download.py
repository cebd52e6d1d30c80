"""Resumable downloads of public files, each checked against a checksum that is known before.

The checksum is in the list of downloads or given by the user. A file without one is fetched only if
the user asks for it unchecked; its checksum is then recorded, and later downloads must agree.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import requests

from deltacell.base.errors import InputError
from deltacell.base.files import open_no_link, read_json, write_json
from deltacell.base.text import Progress
from deltacell.storage import sha256_of_file

CHECKSUMS = "checksums.json"


class Download(NamedTuple):
    """A public file."""

    name: str
    url: str
    file: str
    about: str
    sha256: str = ""  # of the file; empty if its publisher changes it, or it was never seen here


_LIST = Path(__file__).with_name("downloads.tsv").read_text(encoding="utf-8")
DOWNLOADS = {one.name: one for one in (Download(*line.split("\t")) for line in _LIST.splitlines())}

#: Where the networks of the experiments come from that are not the name of a download.
NETWORKS = {
    "physical": "The download string-physical becomes the relation physical.",
    "string": "The download string-links becomes six relations, string_neighborhood and so on.",
    "regulatory": (
        "Not offered, because YEASTRACT has no fixed address for it. Save a table with the columns "
        "tf_orf and target_orf, and one column of 0 and 1 per kind of evidence, from "
        "https://www.yeastract-plus.org; the GitHub repository "
        "michoel-lab/FindrCausalNetworkInferenceOnYeast has the table of 2020. The download tflink "
        "is another network of regulators."
    ),
    "biogrid": (
        "Not offered, because the address changes with every release. Save a table with the "
        "columns orf1 and orf2 from https://thebiogrid.org; the GitHub repository "
        "KISRDevelopment/cell_viability_paper has the co-complex edges of release 3.4.156."
    ),
}


def get(
    download: Download,
    folder: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    unchecked: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, str]:
    """Download a file unless it exists; return its path and what its checksum agrees with.

    An interrupted download is resumed. The file appears under its name only when it is complete and
    has the right checksum: that of the list of downloads, `sha256`, or the one that was recorded in
    the folder when the file was first fetched `unchecked`.
    """
    folder = Path(folder)
    path, list_file = folder / download.file, folder / CHECKSUMS
    recorded = read_json(list_file, what="the list of checksums") if list_file.exists() else {}
    if not isinstance(recorded, dict):
        fix = "Remove it; the checksums of existing files are then recorded again."
        raise InputError("not a list of checksums", code="damaged", where=list_file, fix=fix)
    expected, source = _expected(download, sha256, recorded.get(download.file))
    if expected is None and not unchecked:
        raise InputError(
            f"no checksum of '{download.name}' is known, so the download could not be checked",
            code="no-checksum",
            fix="Give it with --sha256 if you know it, or use --unchecked to take what "
            f"{download.url} sends; its checksum is then recorded and checked later.",
        )
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
    actual = sha256_of_file(there)
    if expected is not None and actual != expected:
        part.unlink(missing_ok=True)
        what = f"the file does not have the checksum of {source}: its SHA-256 is {actual}"
        fix = "It may be damaged, or have changed at its source. Move it away to download it again."
        if recorded.get(download.file) == expected:
            fix += f" To accept another version, remove its line in {list_file}."
        raise InputError(what, code="wrong-checksum", where=path, fix=fix)
    there.replace(path)
    unpacked = folder / f"{download.file}.unpacked"
    if download.name == "costanzo2016" and not unpacked.exists():
        # The import does not read a zip of several files.
        begun = unpacked.with_suffix(".part")
        zipfile.ZipFile(path).extractall(begun)
        begun.rename(unpacked)
    if expected is not None:
        return path, f"agrees with {source}"
    recorded[download.file] = actual
    write_json(list_file, dict(sorted(recorded.items())), what="the list of checksums")
    return path, f"recorded and not checked: {actual}"


def _expected(
    download: Download,
    given: str | None,
    recorded: str | None,
) -> tuple[str | None, str]:
    """Return the checksum that a file must have, or None, and where it is from."""
    if given is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", given):
        what = f"'{given}' is not a SHA-256, which has 64 hexadecimal digits"
        raise InputError(what, code="not-a-checksum")
    wanted = given.lower() if given is not None else None
    if wanted and download.sha256 and wanted != download.sha256:
        what = f"the checksum given for '{download.name}' is not that of the list of downloads"
        fix = f"Expected {download.sha256}; for another version, download it yourself."
        raise InputError(what, code="other-checksum", fix=fix)
    if download.sha256:
        return download.sha256, "the list of downloads"
    return (wanted, "--sha256") if wanted else (recorded, "the first download")


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
