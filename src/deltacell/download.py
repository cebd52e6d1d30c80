"""Fetching public files from their official places: resumable, and checked where possible."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import requests

from deltacell.errors import InputError
from deltacell.files import write_json
from deltacell.store import sha256_of_file

CHECKSUMS = "checksums.json"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Download:
    """A public file.

    Parameters
    ----------
    name
        What to ask for.
    url
        Its official place.
    file
        What to call it here.
    about
        What it is, in a few words.
    sha256
        Its checksum, where its makers published one or a release fixes it. None: the checksum of
        the first download is recorded, and later ones are compared with that.
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

DOWNLOADS: Mapping[str, Download] = {
    d.name: d
    for d in (
        Download(
            "string-links",
            f"{_STRING}/protein.links.detailed.v12.0/4932.protein.links.detailed.v12.0.txt.gz",
            "4932.protein.links.detailed.v12.0.txt.gz",
            "STRING 12.0, all channels",
        ),
        Download(
            "string-physical",
            f"{_STRING}/protein.physical.links.v12.0/4932.protein.physical.links.v12.0.txt.gz",
            "4932.protein.physical.links.v12.0.txt.gz",
            "STRING 12.0, physical links",
        ),
        Download(
            "string-info",
            f"{_STRING}/protein.info.v12.0/4932.protein.info.v12.0.txt.gz",
            "4932.protein.info.v12.0.txt.gz",
            "STRING 12.0, names of proteins",
        ),
        Download(
            "sgd-features",
            "https://downloads.yeastgenome.org/curation/chromosomal_feature/SGD_features.tab",
            "SGD_features.tab",
            "SGD, names and places of genes",
        ),
        Download(
            "tflink",
            "https://cdn.netbiol.org/tflink/download_files/"
            "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv",
            "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv",
            "TFLink 1.0, regulators and their targets",
        ),
        Download(
            "yeast-gem",
            "https://raw.githubusercontent.com/SysBioChalmers/yeast-GEM/v9.0.2/model/yeast-GEM.xml",
            "yeast-GEM_9.0.2.xml",
            "Yeast-GEM 9.0.2, metabolism",
        ),
        Download(
            "costanzo2010",
            "http://drygin.ccbr.utoronto.ca/~costanzo2009/"
            "sgadata_costanzo2009_intermediateCutoff_101120.txt.gz",
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
        Download(
            "kuzmin2018",
            "https://www.science.org/doi/suppl/10.1126/science.aao1729/suppl_file/"
            "aao1729_data_s1.zip",
            "aao1729_data_s1.zip",
            "Kuzmin 2018, Data S1, trigenic interactions",
        ),
        Download(
            "kuzmin2020",
            "https://www.science.org/doi/suppl/10.1126/science.aaz5667/suppl_file/"
            "aaz5667-table_s1.zip",
            "aaz5667-table_s1.zip",
            "Kuzmin 2020, Table S1, trigenic interactions of paralogs",
        ),
    )
}


def get(
    download: Download, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> tuple[Path, str]:
    """Fetch a file unless it is there already; return its path and how its checksum was known.

    A transfer that was cut off goes on where it stopped. The file appears under its name only when
    it is complete and its checksum agrees.

    Parameters
    ----------
    download
        What to fetch.
    folder
        Where to.
    progress
        Called with the name, the bytes there are and the bytes in all (0 where unknown).
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder cannot be made: {error.strerror}",
            where=folder,
            fix="Choose another place (--out).",
        ) from error
    path = folder / download.file
    recorded = _recorded(folder)
    expected = download.sha256 or recorded.get(download.file)
    how = "checked" if download.sha256 else "agrees with the first download" if expected else ""
    if path.exists() and expected and sha256_of_file(path) != expected:
        raise InputError(
            "the file here does not have the checksum that was recorded for it",
            where=path,
            fix="Remove it and fetch it again, or move it if it is your own.",
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
            f"'{download.name}' could not be fetched from {download.url}: {_reason(error)}",
            fix=f"Missing is {download.file} ({download.about}). Where you have a copy, put it "
            f"into {folder} and run: deltacell data import {folder} --out OUT",
        ) from error
    except ValueError as error:
        raise InputError(
            f"'{download.name}' was fetched and does not have the expected checksum {expected}",
            where=download.url,
            fix="Nothing was kept. Its makers may have changed it; look there, or try again.",
        ) from error
    if not expected:
        recorded[download.file] = sha256_of_file(fetched)
        _record(folder, recorded)
        how = "recorded"
    if download.unpack:
        pooch.Unzip(extract_dir=f"{download.file}.unpacked")(str(path), "download", None)
    return path, how


class Resumable:
    """A downloader for pooch that keeps what it has when it is cut off, and goes on from there.

    Parameters
    ----------
    part
        Where the unfinished file is kept.
    name
        What to call it in the progress.
    progress
        Called with the name, the bytes there are and the bytes in all.
    """

    def __init__(self, part: Path, name: str, progress: Progress | None) -> None:
        self.part = part
        self.name = name
        self.progress = progress
        self.version_file = part.with_suffix(".version")

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        """Fetch a URL into a file."""
        have = self.part.stat().st_size if self.part.exists() else 0
        version = self.version_file.read_text() if self.version_file.exists() else ""
        # Without a mark of the version, bytes of two versions could be joined unseen.
        headers = {"Accept-Encoding": "identity"}
        if have and version:
            headers |= {"Range": f"bytes={have}-", "If-Range": version}
        with requests.get(url, headers=headers, stream=True, timeout=60) as response:
            if response.status_code == 416 and "Range" in headers:
                self._forget()
                self(url, output_file, _pooch)
                return
            response.raise_for_status()
            resumed = response.status_code == 206
            have = have if resumed else 0
            self.version_file.write_text(
                response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            )
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
        self._forget()

    def _forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.version_file.unlink(missing_ok=True)


def _recorded(folder: Path) -> dict[str, str]:
    file = folder / CHECKSUMS
    if not file.exists():
        return {}
    try:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): str(sha) for name, sha in recorded.items()}
    except (ValueError, AttributeError) as error:
        raise InputError(
            "the list of checksums is damaged",
            where=file,
            fix="Remove it; the checksums of the files that are there are then recorded again.",
        ) from error


def _record(folder: Path, recorded: Mapping[str, str]) -> None:
    write_json(folder / CHECKSUMS, dict(sorted(recorded.items())), what="the list of checksums")


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        text = str(error)
        return text if text.startswith("cut off") else "no connection"
    return str(error)
