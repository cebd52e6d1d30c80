"""Public studies that a user has downloaded once, kept as checked copies for every later start."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deltacell.base.errors import InputError
from deltacell.base.files import written
from deltacell.cell import Genes
from deltacell.data.download import DOWNLOADS, Download
from deltacell.data.folder_files import READERS
from deltacell.screen import Screen
from deltacell.storage import sha256_of_file
from deltacell.storage.tables import File

#: The environment variable that names the folder of the copies.
CACHE = "DELTACELL_CACHE"
#: Downloads of one file with a screen, whose checksum is known.
PUBLIC_STUDIES = ("costanzo2010",)


def cache_folder() -> Path:
    """Return where copies are kept: ``DELTACELL_CACHE``, or the user's cache."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "deltacell"


def keep_copy(download: Download, path: Path) -> Path | None:
    """Keep a copy of a downloaded file that has the known checksum; None for other downloads."""
    if download.name not in PUBLIC_STUDIES:
        return None
    copy = _place(download)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with written(copy, "the copy in the cache") as temporary:
        shutil.copyfile(path, temporary)
    return copy


@dataclass(frozen=True)
class PublicStudy:
    """A copy of a public study, checked against the checksum of the list of downloads."""

    name: str
    path: Path
    sha256: str

    def may_be_of(self, genes: Genes) -> bool:
        """Whether most of the first rows name a gene of a cell, so that it is worth reading."""
        rows = [row for sheet in File(self.path).sheets for row in sheet.rows]
        n_known = sum(bool((genes.resolve(row) >= 0).any()) for row in rows)
        return 2 * n_known >= len(rows) > 0

    def screen_on(self, genes: Genes) -> Screen:
        """Return the study's screen on the genes of a cell."""
        file = File(self.path)
        reader = next(reader for reader in READERS if reader.find(file) is not None)
        [written_screen] = reader.read(self.path)
        screen: Screen = written_screen.on(genes, "drop")
        return screen


def public_study(name: str, genes: Genes) -> Screen:
    """Return a public study on the genes of a cell, from the copy that `data get` keeps."""
    copies = {study.name: study for study in kept_studies()}
    if name not in copies:
        what = f"no copy of the public study '{name}' is kept"
        known = ", ".join(PUBLIC_STUDIES)
        fix = f"Get it with: deltacell data get {name}" if name in PUBLIC_STUDIES else known
        raise InputError(what, code="no-public-study", fix=fix)
    return copies[name].screen_on(genes)


def kept_studies() -> list[PublicStudy]:
    """Return the public studies of which a copy is kept; raise for a damaged copy."""
    studies = []
    for name in PUBLIC_STUDIES:
        download = DOWNLOADS[name]
        copy = _place(download)
        if not copy.is_file():
            continue
        if sha256_of_file(copy) != download.sha256:
            what = f"the copy of '{name}' does not have the checksum of the list of downloads"
            fix = f"Remove it, and get it again: deltacell data get {name}"
            raise InputError(what, code="wrong-checksum", where=copy, fix=fix)
        studies.append(PublicStudy(name, copy, download.sha256))
    return studies


def share_of_genes(study: Screen, target: Screen) -> float:
    """Return the share of the genes that a target measured which a study measured too."""
    of_target = np.unique(target.genotypes.genes.numpy())
    of_study = np.unique(study.genotypes.genes.numpy())
    shared = target.genes.resolve([study.genes[gene] for gene in of_study.tolist()])
    return float(np.isin(of_target, shared).mean())


def _place(download: Download) -> Path:
    return cache_folder() / "studies" / download.name / download.file
