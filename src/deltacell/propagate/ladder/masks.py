"""Masks of deleted edges: made per genotype, on the device, or read from a store."""

from __future__ import annotations

import errno
import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell import store
from deltacell.arrays import offsets_of
from deltacell.errors import InputError, MissingExtraError
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, Readout, State
from deltacell.propagate.ladder.subgraph import (
    Link,
    Receive,
    links_of,
    not_prepared,
    propagate,
    read_out,
)
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Deleted, Mutants, WildType
from deltacell.screen import Genotypes

Masks = Sequence[torch.Tensor]
"""Which edges each mutant has, bool [b, n_edges], one per link."""


@dataclass(frozen=True, eq=False)
class Sent(Deleted):
    """A batch with what its loader sends about the edges, so many tensors per link."""

    tensors: tuple[torch.Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of the tensors and of the genes per genotype."""
        sent = sum(x.nbytes for x in self.tensors)
        return (sent + self.genotypes.nbytes) / max(len(self), 1)


class Masked:
    """Messages along every edge of the cell, each multiplied by its bit.

    No graph per mutant, but a bit per edge: that saves the cutting and the copies of the edges.
    What it does not save is the work: every mutant still gathers a message along each edge, those
    that are gone included, and writes it to memory twice, before and after the mask. The rungs
    differ in where the mask comes from: what `prepare` finds on the host, and what `masks` makes of
    it in the step.
    """

    name: ClassVar[str]

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch."""
        raise NotImplementedError

    def masks(self, links: Sequence[Link], deleted: Deleted, device: torch.device) -> Masks:
        """Return the masks in the step: here those that were sent."""
        return self.sent(deleted)

    def sent(self, deleted: Deleted) -> tuple[torch.Tensor, ...]:
        """Return what was sent, or raise where another strategy prepared the batch."""
        if not isinstance(deleted, Sent):
            raise not_prepared(self.name)
        return deleted.tensors

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, edge by edge."""
        receive = _along_edges(links_of(hops), 1, None)
        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the batch as one graph, edge by edge, with the masks.

        Node i of mutant b is row ``b * n + i``. Deleted nodes are there too; no message reaches or
        leaves them, and nothing reads them.
        """
        batch, first, links = len(deleted), wild_type.first, links_of(hops)
        masks = self.masks(links, deleted, first[GENE].device)
        rows = {k: torch.arange(len(x), device=x.device).repeat(batch) for k, x in first.items()}
        state = {kind: x.repeat(batch, 1) for kind, x in first.items()}
        genes = propagate(hops, state, rows, _along_edges(links, batch, masks))[-1][GENE]
        owner = torch.arange(batch, device=genes.device).repeat_interleave(len(first[GENE]))
        return read_out(genes, rows[GENE], owner, wild_type, deleted, readout, vectors=vectors)


def _along_edges(links: Sequence[Link], batch: int, masks: Masks | None) -> Receive:
    """Return the sum or mean of messages along the edges that the masks keep."""
    number = {link: i for i, link in enumerate(links)}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        rows, columns, values = a.matrix.entries(device=x.device, dtype=x.dtype)
        mutant = torch.arange(batch, device=x.device).unsqueeze(1)
        sources = (columns + mutant * a.matrix.shape[1]).flatten()
        targets = (rows + mutant * a.matrix.shape[0]).flatten()
        messages = x.index_select(0, sources)
        if a.matrix.values is not None:
            messages = messages * values.repeat(batch).unsqueeze(1)
        kept = torch.ones_like(targets, dtype=torch.bool)
        if masks is not None:
            kept = masks[number[Link(a.matrix, target, a.source)]].flatten()
            messages = messages * kept.unsqueeze(1)
        n_targets = batch * a.matrix.shape[0]
        # Not index_add, which would keep the messages of every layer for a backward without need.
        at = targets.unsqueeze(1).expand_as(messages)
        total = messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)
        if not a.mean:
            return total
        counts = x.new_zeros(n_targets).index_add(0, targets, kept.to(x.dtype))
        return total / counts.clamp(min=1).unsqueeze(1)

    return receive


def removed_edges(
    link: Link, deleted: Deleted, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges that genotypes remove and whose each is; one may be there twice.

    An edge's position is its place among the entries of the matrix, row by row.
    """
    positions, owners = [], []
    for kind in dict.fromkeys((link.target, link.source)):
        if (lost := deleted.nodes.get(kind)) is not None:
            offsets, edges = _edges_of_nodes(link, kind, torch.device(device))
            starts, lengths = offsets[lost.nodes], offsets.diff()[lost.nodes]
            which = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            within = torch.arange(len(which), device=device) - (lengths.cumsum(0) - lengths)[which]
            positions.append(edges[starts[which] + within])
            owners.append(lost.owner[which])
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return torch.cat([none, *positions]), torch.cat([none, *owners])


def _edges_of_nodes(
    link: Link, kind: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index from each node of a kind to its edges, as offsets and positions."""
    kept = _INDEX.setdefault(link.matrix, {})
    key = (link.target, link.source, kind, device)
    if key not in kept:
        rows, columns, _ = link.matrix.entries(device="cpu", dtype=torch.float32)
        ends = [e for e, k in ((rows, link.target), (columns, link.source)) if k == kind]
        node = torch.cat(ends).numpy()
        order = np.argsort(node, kind="stable") % max(link.matrix.n_entries, 1)
        n_nodes = link.matrix.shape[0 if link.target == kind else 1]
        offsets = offsets_of(np.bincount(node, minlength=n_nodes))
        kept[key] = torch.from_numpy(offsets).to(device), torch.from_numpy(order).to(device)
    return kept[key]


_INDEX: WeakKeyDictionary[
    SparseMatrix, dict[tuple[str, str, str, torch.device], tuple[torch.Tensor, torch.Tensor]]
] = WeakKeyDictionary()


def masks_of(
    links: Sequence[Link], deleted: Deleted, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Return the masks of a batch, made on the device that the deleted nodes are on."""
    masks = []
    for link in links:
        mask = torch.ones(len(deleted), link.matrix.n_entries, dtype=torch.bool, device=device)
        positions, owner = removed_edges(link, deleted, device)
        mask[owner, positions] = False
        masks.append(mask)
    return tuple(masks)


class EdgeMask(Masked):
    """Masks that the loader makes, by an index from every gene to the positions of its edges."""

    name = "edge_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        """Make the masks."""
        return Sent(deleted.genotypes, deleted.nodes, masks_of(links_of(hops), deleted))


class DeviceMask(Masked):
    """Masks that are made on the device, in the step.

    The index from genes to edges lies on the device, so that the bits of a whole batch are cleared
    with one indexed write from its list of genes. The loader is free at last, and the step costs
    what it did.
    """

    name = "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: everything is found on the device."""
        return deleted

    def masks(self, links: Sequence[Link], deleted: Deleted, device: torch.device) -> Masks:
        """Make the masks on the device."""
        return masks_of(links, deleted, device)


DATA = "data.mdb"
FIRST_MAP_BYTES = 16 * 2**20
GENOTYPES_AT_A_TIME = 32
_ONE_AT_A_TIME = Lock()


class Stored(Masked):
    """One array per genotype and link in LMDB, made ahead, in a folder with a manifest.

    The manifest says which cell and which genotypes the store was made for, as checksums of the
    matrices and of the ragged pair (genes, offsets); with any other it is refused. Genotypes are
    found by their set of genes, in whatever order.

    Parameters
    ----------
    store
        The folder; `fill` makes it.
    genotypes
        Those of the whole screen; where they are given, a store that was made for others is
        refused at the first batch.
    """

    kind: ClassVar[str]
    dtype: ClassVar[type[np.generic]]

    def __init__(
        self, store: str | os.PathLike[str] | None = None, genotypes: Genotypes | None = None
    ) -> None:
        self._folder = None if store is None else Path(store)
        self._genotypes = genotypes
        self._checked: str | None = None
        self._lmdb()

    def fill(self, hops: Sequence[Hop], deleted: Deleted, *, overwrite: bool = False) -> None:
        """Make the store, all of it or nothing."""
        deleted, links = deleted.to("cpu"), links_of(hops)
        self._checked = None
        with store.new_directory(self.folder, self.kind, overwrite=overwrite) as temporary:
            try:
                self._write(temporary, links, deleted)
            except self._lmdb().Error as error:
                # LMDB has errors of its own for a disk that is full.
                raise OSError(errno.ENOSPC, str(error)) from error
            data = {"file": DATA, "sha256": store.sha256_of_file(temporary / DATA)}
            meta = {
                "cell": _checksum_of_links(links),
                "genotypes": _checksum_of_genotypes(deleted.genotypes),
                "n_genotypes": len(deleted),
            }
            store.write_manifest(temporary, self.kind, {"data": data}, meta)

    def read(self, hops: Sequence[Hop], deleted: Deleted) -> list[list[torch.Tensor]]:
        """Return what is stored of a batch, for each link a list with one array per genotype."""
        links = links_of(hops)
        self._check(links)
        found: list[list[torch.Tensor]] = [[] for _ in links]
        # Opened for each batch, for LMDB allows neither two openings in a process nor a fork.
        with (
            _ONE_AT_A_TIME,
            self._open(self.folder, readonly=True) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            for genes in deleted.genotypes:
                for number, arrays in enumerate(found):
                    stored = transaction.get(_key(genes, number))
                    if stored is None:
                        raise InputError(
                            f"the {self.kind} was made for another screen: the genotype that "
                            f"deletes {genes.tolist()} is not in it",
                            code="store-of-another-screen",
                            where=self.folder,
                            fix="Fill a new one from all genotypes that it will be used with.",
                        )
                    arrays.append(torch.from_numpy(np.frombuffer(stored, self.dtype).copy()))
        return found

    @abstractmethod
    def arrays_of(self, links: Sequence[Link], deleted: Deleted) -> list[torch.Tensor]:
        """Return what is stored of one genotype, one array per link."""

    @property
    def folder(self) -> Path:
        """Where the store is, or will be."""
        if self._folder is None:
            raise InputError(
                f"the propagation '{self.name}' needs the folder of its store",
                code="no-store",
                fix=f"Give it one: strategy('{self.name}', store=PATH).",
            )
        return self._folder

    def _write(self, folder: Path, links: Sequence[Link], deleted: Deleted) -> None:
        with self._open(folder, map_size=FIRST_MAP_BYTES) as environment:
            for begin in range(0, len(deleted), GENOTYPES_AT_A_TIME):
                records = {}
                for b in range(begin, min(begin + GENOTYPES_AT_A_TIME, len(deleted))):
                    genotype = deleted.genotypes.take(torch.tensor([b]))
                    nodes = {kind: d.tile(b, b + 1) for kind, d in deleted.nodes.items()}
                    arrays = self.arrays_of(links, Deleted(genotype, nodes))
                    for number, array in enumerate(arrays):
                        records[_key(genotype.genes, number)] = array.numpy().tobytes()
                self._put(environment, records)

    def _put(self, environment: Any, records: dict[bytes, bytes]) -> None:
        while True:
            try:
                with environment.begin(write=True) as transaction:
                    for key, value in records.items():
                        transaction.put(key, value)
                return
            except self._lmdb().MapFullError:
                environment.set_mapsize(2 * environment.info()["map_size"])

    def _open(self, folder: Path, **options: Any) -> Any:
        # One writer of a folder that no one else sees, or readers alone: no lock file is needed.
        return self._lmdb().open(str(folder), lock=False, **options)

    def _check(self, links: Sequence[Link]) -> None:
        """Raise where the store is damaged or was made for another cell or other genotypes."""
        cell = _checksum_of_links(links)
        if self._checked == cell:
            return
        if not (self.folder / store.MANIFEST).is_file():
            raise InputError(
                f"there is no {self.kind} here",
                code="no-store",
                where=self.folder,
                fix="Fill it first, with the strategy's `fill`.",
            )
        manifest = store.read_manifest(self.folder)
        if manifest["kind"] != self.kind:
            raise InputError(
                f"this is a {manifest['kind']}, and a {self.kind} was expected",
                code="wrong-kind",
                where=self.folder,
            )
        data = self.folder / DATA
        sha = manifest["parts"]["data"]["sha256"]
        if not data.is_file() or store.sha256_of_file(data) != sha:
            raise InputError(
                f"the {self.kind} does not match the checksum in its manifest",
                code="damaged-store",
                where=data,
                fix="Fill it again.",
            )
        meta, given = manifest["meta"], {"cell": cell}
        if self._genotypes is not None:
            given["genotypes"] = _checksum_of_genotypes(self._genotypes)
        for what, found in given.items():
            if meta[what] != found:
                other = "cell" if what == "cell" else "screen"
                raise InputError(
                    f"the {self.kind} was made for another {other}: the checksum of its {what} is "
                    f"{meta[what][:16]}, and the one given has {found[:16]}",
                    code=f"store-of-another-{other}",
                    where=self.folder,
                    fix="Fill a new one from this cell and this screen.",
                )
        self._checked = cell

    def _lmdb(self) -> Any:
        try:
            import lmdb
        except ImportError:
            raise MissingExtraError(f"the propagation '{self.name}'", "lmdb") from None
        return lmdb


class StoredEdges(Stored):
    """The positions of each genotype's removed edges in a store, and masks made in the step.

    It spares the loader the look-up, and the step costs what it did.
    """

    name, kind, dtype = "stored_edges", "store of removed edges", np.int64

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        """Read the removed edges of a batch: for each link, how many per genotype and which."""
        tensors = []
        for positions in self.read(hops, deleted):
            tensors.append(torch.tensor([len(p) for p in positions], dtype=torch.int64))
            tensors.append(torch.cat([torch.zeros(0, dtype=torch.int64), *positions]))
        return Sent(deleted.genotypes, deleted.nodes, tuple(tensors))

    def masks(self, links: Sequence[Link], deleted: Deleted, device: torch.device) -> Masks:
        """Make the masks on the device."""
        sent = self.sent(deleted)
        masks = []
        for link, sizes, positions in zip(links, sent[::2], sent[1::2], strict=True):
            mask = torch.ones(len(deleted), link.matrix.n_entries, dtype=torch.bool, device=device)
            mask[torch.arange(len(deleted), device=device).repeat_interleave(sizes), positions] = (
                False
            )
            masks.append(mask)
        return masks

    def arrays_of(self, links: Sequence[Link], deleted: Deleted) -> list[torch.Tensor]:
        """Return the positions of the edges that a genotype removes, each once."""
        return [torch.unique(removed_edges(link, deleted)[0]) for link in links]


class StoredMasks(Stored):
    """The masks themselves in a store: reading them is all that is left to do.

    A byte for every edge of the cell is read from disk and sent for every genotype, and the step
    costs what it did.
    """

    name, kind, dtype = "stored_masks", "store of edge masks", np.bool_

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        """Read the masks of a batch."""
        masks = []
        for link, read in zip(links_of(hops), self.read(hops, deleted), strict=True):
            none = torch.zeros(0, dtype=torch.bool)
            masks.append(torch.cat([none, *read]).view(len(deleted), link.matrix.n_entries))
        return Sent(deleted.genotypes, deleted.nodes, tuple(masks))

    def arrays_of(self, links: Sequence[Link], deleted: Deleted) -> list[torch.Tensor]:
        """Return the masks of a genotype."""
        return list(masks_of(links, deleted))


def _checksum_of_links(links: Sequence[Link]) -> str:
    """Return the checksum of all that removed edges depend on: the kinds and the entries."""
    whole = hashlib.sha256()
    for link in links:
        matrix = link.matrix
        if matrix not in _CHECKSUMS:
            found = hashlib.sha256(f"{matrix.shape}".encode())
            found.update(np.ascontiguousarray(matrix.indptr).data)
            found.update(np.ascontiguousarray(matrix.indices, dtype=np.int64).data)
            _CHECKSUMS[matrix] = found.hexdigest()
        whole.update(f"{link.target} {link.source} {_CHECKSUMS[matrix]}\n".encode())
    return whole.hexdigest()


_CHECKSUMS: WeakKeyDictionary[SparseMatrix, str] = WeakKeyDictionary()


def _checksum_of_genotypes(genotypes: Genotypes) -> str:
    whole = hashlib.sha256()
    for part in (genotypes.genes, genotypes.offsets):
        whole.update(np.ascontiguousarray(part.cpu().numpy()).data)
    return whole.hexdigest()


def _key(genes: torch.Tensor, link: int) -> bytes:
    # A digest, because LMDB's keys are short and a genotype may be long.
    genes = genes.sort().values
    return hashlib.blake2b(genes.numpy().tobytes(), digest_size=24).digest() + link.to_bytes(
        2, "big"
    )
