"""Downloading public files from their official places: resumable, and checked where possible."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import requests

from deltacell.errors import InputError, StoreError
from deltacell.files import read_json, write_json
from deltacell.store import sha256_of_file
from deltacell.words import Progress

CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Download:
    """A public file.

    Parameters
    ----------
    sha256
        Its checksum, where its makers published one. None: the checksum of the first download is
        recorded, and later ones are compared with it.
    unpack
        Whether it is a zip of several files, to be unpacked beside it.
    """

    name: str
    url: str
    file: str
    about: str
    sha256: str | None = None
    unpack: bool = False


_STRING = "https://stringdb-downloads.org/download"
_SCIENCE = "https://www.science.org/doi/suppl/10.1126"
_TFLINK = "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv"


def _string(name: str, kind: str, about: str) -> Download:
    file = f"4932.protein.{kind}.v12.0.txt.gz"
    return Download(name, f"{_STRING}/protein.{kind}.v12.0/{file}", file, f"STRING 12.0, {about}")


def _at(name: str, folder: str, file: str, about: str) -> Download:
    return Download(name, f"{folder}/{file}", file, about)


DOWNLOADS: Mapping[str, Download] = {
    d.name: d
    for d in (
        _string("string-links", "links.detailed", "all channels"),
        _string("string-physical", "physical.links", "physical links"),
        _string("string-info", "info", "names of proteins"),
        _at(
            "sgd-features",
            "https://downloads.yeastgenome.org/curation/chromosomal_feature",
            "SGD_features.tab",
            "SGD, names and places of genes",
        ),
        _at(
            "tflink",
            "https://cdn.netbiol.org/tflink/download_files",
            _TFLINK,
            "TFLink 1.0, regulators and their targets",
        ),
        Download(
            "yeast-gem",
            "https://raw.githubusercontent.com/SysBioChalmers/yeast-GEM/v9.0.2/model/yeast-GEM.xml",
            "yeast-GEM_9.0.2.xml",
            "Yeast-GEM 9.0.2, metabolism",
        ),
        _at(
            "costanzo2010",
            "http://drygin.ccbr.utoronto.ca/~costanzo2009",
            "sgadata_costanzo2009_intermediateCutoff_101120.txt.gz",
            "Costanzo 2010, digenic interactions at the intermediate cut-off",
        ),
        Download(
            "costanzo2016",
            "https://thecellmap.org/costanzo2016/data_files/"
            "Raw%20genetic%20interaction%20datasets:%20Pair-wise%20interaction%20format.zip",
            "costanzo2016_pairwise.zip",
            "Costanzo 2016, digenic interactions, all measured pairs",
            unpack=True,
        ),
        _at(
            "kuzmin2018",
            f"{_SCIENCE}/science.aao1729/suppl_file",
            "aao1729_data_s1.zip",
            "Kuzmin 2018, Data S1, trigenic interactions",
        ),
        _at(
            "kuzmin2020",
            f"{_SCIENCE}/science.aaz5667/suppl_file",
            "aaz5667-table_s1.zip",
            "Kuzmin 2020, Table S1, trigenic interactions of paralogs",
        ),
    )
}


def get(
    download: Download, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> tuple[Path, str]:
    """Download a file unless it is there; return its path and how its checksum was known.

    An interrupted transfer is resumed. The file appears under its name only when it is complete
    and its checksum agrees.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder cannot be made: {error.strerror}"
        fix = "Choose another place (--out)."
        raise InputError(what, code="not-written", where=folder, fix=fix) from error
    path, list_file = folder / download.file, folder / CHECKSUMS
    recorded = _recorded(list_file)
    expected = download.sha256 or recorded.get(download.file)
    how = "checked" if download.sha256 else "agrees with the first download" if expected else ""
    if path.exists() and expected and sha256_of_file(path) != expected:
        raise InputError(
            "the file here does not have the checksum that was recorded for it",
            code="changed-file",
            where=path,
            fix="Remove it and download it again, or move it if it is your own.",
        )
    try:
        fetched = pooch.retrieve(
            url=download.url,
            known_hash=expected,
            fname=download.file,
            path=folder,
            downloader=Resumable(folder / f".{download.file}.part", download.name, progress),
        )
    except (requests.RequestException, OSError) as error:
        raise InputError(
            f"'{download.name}' could not be downloaded from {download.url}: {_reason(error)}",
            code="no-download",
            fix=f"Missing is {download.file} ({download.about}). If you have a copy, put it into "
            f"{folder} and run: deltacell data import {folder} --out OUT",
        ) from error
    except ValueError as error:
        raise InputError(
            f"'{download.name}' does not have the expected checksum {expected}",
            code="wrong-checksum",
            where=download.url,
            fix="Nothing was kept. Its makers may have changed it; look there, or try again.",
        ) from error
    if not expected:
        recorded[download.file] = sha256_of_file(fetched)
        write_json(list_file, dict(sorted(recorded.items())), what="the list of checksums")
        how = "recorded"
    if download.unpack:
        pooch.Unzip(extract_dir=f"{download.file}.unpacked")(str(path), "download", None)
    return path, how


class Resumable:
    """A downloader for pooch that keeps what it has when it is interrupted, and resumes there."""

    def __init__(self, part: Path, name: str, progress: Progress | None) -> None:
        self.part, self.name, self.progress = part, name, progress
        self.version_file = part.with_suffix(".version")

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        """Download a URL into a file."""
        have = self.part.stat().st_size if self.part.exists() else 0
        version = self.version_file.read_text() if self.version_file.exists() else ""
        headers = {"Accept-Encoding": "identity"}
        # Without a mark of the version, bytes of two versions could be joined unseen.
        if have and version:
            headers |= {"Range": f"bytes={have}-", "If-Range": version}
        with requests.get(url, headers=headers, stream=True, timeout=60) as response:
            if response.status_code == 416 and "Range" in headers:
                self._forget()
                return self(url, output_file, _pooch)
            response.raise_for_status()
            resumed = response.status_code == 206
            have = have if resumed else 0
            mark = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            self.version_file.write_text(mark)
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else 0
            with self.part.open("ab" if resumed else "wb") as part:
                for chunk in response.iter_content(1 << 16):
                    part.write(chunk)
                    have += len(chunk)
                    if self.progress is not None:
                        self.progress(self.name, have, total)
        if total and have != total:
            raise requests.ConnectionError(f"cut off after {have:,} of {total:,} bytes")
        self.part.replace(output_file)
        return self._forget()

    def _forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.version_file.unlink(missing_ok=True)


def _recorded(file: Path) -> dict[str, str]:
    try:
        found = read_json(file, what="the list of checksums") if file.exists() else {}
        return {str(name): str(sha) for name, sha in found.items()}
    except (StoreError, AttributeError) as error:
        raise InputError(
            "the list of checksums is damaged",
            code="damaged",
            where=file,
            fix="Remove it; the checksums of the files that are there are then recorded again.",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "the server did not answer in time"
    if isinstance(error, requests.ConnectionError) and not str(error).startswith("cut off"):
        return "no connection"
    return str(error)
