"""Something about the edges of every genotype of a screen, made ahead and kept in LMDB."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell import store
from deltacell.arrays import AnyArray
from deltacell.errors import InputError, MissingExtraError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.ladder.graphs import Link
from deltacell.propagate.product import SparseMatrix
from deltacell.screen import Genotypes

DATA = "data.mdb"
FIRST_MAP_BYTES = 16 * 2**20
GENOTYPES_AT_A_TIME = 32


class IndexStore:
    """One array a genotype and link, in a folder with a manifest.

    The manifest says which cell and which genotypes the store was made for, as checksums of the
    matrices and of the ragged pair (genes, offsets); with any other it is refused. Genotypes are
    found by their set of genes, in whatever order.

    Parameters
    ----------
    folder
        Where it is, or will be.
    kind
        What the manifest calls it.
    purpose
        What needs it, for the error where LMDB is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: str, purpose: str) -> None:
        self.folder = Path(folder)
        self.kind = kind
        self._purpose = purpose
        self._manifest: dict[str, Any] | None = None

    def write(
        self,
        links: Sequence[Link],
        deleted: Deleted,
        array_of: Callable[[Link, int], AnyArray],
        *,
        overwrite: bool = False,
    ) -> None:
        """Fill the folder, all of it or nothing.

        Parameters
        ----------
        links
            The matrices.
        deleted
            What all genotypes of the screen delete.
        array_of
            From a link and the number of a genotype to what is stored of them.
        overwrite
            Replace a store of the same kind.
        """
        self._manifest = None
        with store.new_directory(self.folder, self.kind, overwrite=overwrite) as temporary:
            try:
                self._fill(temporary, links, deleted, array_of)
            except lmdb_for(self._purpose).Error as error:
                # LMDB has errors of its own for a disk that is full.
                raise OSError(errno.ENOSPC, str(error)) from error
            data = {"file": DATA, "sha256": store.sha256_of_file(temporary / DATA)}
            meta = {
                "cell": checksum_of_links(links),
                "genotypes": checksum_of_genotypes(deleted.genotypes),
                "n_genotypes": len(deleted),
            }
            store.write_manifest(temporary, self.kind, {"data": data}, meta)

    def check(self, links: Sequence[Link], genotypes: Genotypes | None = None) -> None:
        """Raise where the store is damaged or was made for another cell or other genotypes.

        Parameters
        ----------
        links
            The matrices that it is to be used with.
        genotypes
            Those of the whole screen, where they are known.
        """
        meta = self._read_manifest()["meta"]
        given = {"cell": checksum_of_links(links)}
        if genotypes is not None:
            given["genotypes"] = checksum_of_genotypes(genotypes)
        for what, found in given.items():
            if meta[what] != found:
                raise InputError(
                    f"the {self.kind} was made for another {_MADE_FOR[what]}: the checksum of its "
                    f"{what} is {meta[what][:16]}, and the one given has {found[:16]}",
                    where=self.folder,
                    fix="Fill a new one from this cell and this screen.",
                )

    def read(
        self, links: Sequence[Link], genotypes: Genotypes, dtype: type[np.generic]
    ) -> list[list[torch.Tensor]]:
        """Return the arrays of genotypes, for each link a list with one a genotype.

        Parameters
        ----------
        links
            The matrices, in the order in which the store was written.
        genotypes
            A batch, on the host.
        dtype
            Of the stored arrays.
        """
        found: list[list[torch.Tensor]] = [[] for _ in links]
        # Opened for each batch, for LMDB allows neither two openings in a process nor a fork.
        with (
            _ONE_AT_A_TIME,
            self._open(self.folder, readonly=True) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            for genes in genotypes:
                key = _key(genes)
                for number, arrays in enumerate(found):
                    stored = transaction.get(key + _suffix(number))
                    if stored is None:
                        raise self._unknown(genes)
                    arrays.append(torch.from_numpy(np.frombuffer(stored, dtype).copy()))
        return found

    def _fill(
        self,
        folder: Path,
        links: Sequence[Link],
        deleted: Deleted,
        array_of: Callable[[Link, int], AnyArray],
    ) -> None:
        genotypes = list(deleted.genotypes)
        with self._open(folder, map_size=FIRST_MAP_BYTES) as environment:
            for begin in range(0, len(genotypes), GENOTYPES_AT_A_TIME):
                records = [
                    (_key(genotypes[b]) + _suffix(number), array_of(link, b).tobytes())
                    for b in range(begin, min(begin + GENOTYPES_AT_A_TIME, len(genotypes)))
                    for number, link in enumerate(links)
                ]
                self._put(environment, records)

    def _put(self, environment: Any, records: Sequence[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                with environment.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except lmdb_for(self._purpose).MapFullError:
                environment.set_mapsize(2 * environment.info()["map_size"])

    def _open(self, folder: Path, **options: Any) -> Any:
        # One writer of a folder that no one else sees, or readers alone: no lock file is needed.
        return lmdb_for(self._purpose).open(str(folder), lock=False, **options)

    def _read_manifest(self) -> dict[str, Any]:
        if self._manifest is None:
            if not (self.folder / store.MANIFEST).is_file():
                raise InputError(
                    f"there is no {self.kind} here",
                    where=self.folder,
                    fix="Fill it first, with the strategy's `fill`.",
                )
            manifest = store.read_manifest(self.folder)
            if manifest["kind"] != self.kind:
                raise InputError(
                    f"this is a {manifest['kind']}, and a {self.kind} was expected",
                    where=self.folder,
                )
            data = self.folder / DATA
            sha = manifest["parts"]["data"]["sha256"]
            if not data.is_file() or store.sha256_of_file(data) != sha:
                raise InputError(
                    f"the {self.kind} is damaged: its contents do not match the checksum in the "
                    "manifest",
                    where=data,
                    fix="Fill it again.",
                )
            self._manifest = manifest
        return self._manifest

    def _unknown(self, genes: torch.Tensor) -> InputError:
        return InputError(
            f"the {self.kind} was made for another screen: the genotype that deletes "
            f"{genes.tolist()} is not in it",
            where=self.folder,
            fix="Fill a new one from all genotypes that it will be used with.",
        )


def lmdb_for(purpose: str) -> Any:
    """Return the module `lmdb`, or raise with the name of the extra it comes with."""
    try:
        import lmdb
    except ImportError:
        raise MissingExtraError(purpose, "lmdb") from None
    return lmdb


def checksum_of_links(links: Sequence[Link]) -> str:
    """Return the checksum of all that removed edges depend on: the kinds and the entries."""
    whole = hashlib.sha256()
    for link in links:
        whole.update(f"{link.target} {link.source} {_checksum(link.matrix)}\n".encode())
    return whole.hexdigest()


def checksum_of_genotypes(genotypes: Genotypes) -> str:
    """Return the checksum of the ragged pair (genes, offsets)."""
    whole = hashlib.sha256()
    for part in (genotypes.genes, genotypes.offsets):
        whole.update(np.ascontiguousarray(part.cpu().numpy()).data)
    return whole.hexdigest()


_MADE_FOR = {"cell": "cell", "genotypes": "screen"}
_ONE_AT_A_TIME = Lock()
_CHECKSUMS: WeakKeyDictionary[SparseMatrix, str] = WeakKeyDictionary()


def _checksum(matrix: SparseMatrix) -> str:
    if matrix not in _CHECKSUMS:
        found = hashlib.sha256(f"{matrix.shape}".encode())
        found.update(np.ascontiguousarray(matrix.indptr).data)
        found.update(np.ascontiguousarray(matrix.indices, dtype=np.int64).data)
        _CHECKSUMS[matrix] = found.hexdigest()
    return _CHECKSUMS[matrix]


def _key(genes: torch.Tensor) -> bytes:
    # A digest, because LMDB's keys are short and a genotype may be long.
    return hashlib.blake2b(genes.sort().values.numpy().tobytes(), digest_size=24).digest()


def _suffix(number: int) -> bytes:
    return number.to_bytes(2, "big")
