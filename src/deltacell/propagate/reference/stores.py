"""Strategies that read what they need of each genotype from disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from deltacell import storage
from deltacell.base.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import HopShape
from deltacell.propagate.reference.edge_masks import EdgeMask, mask_of
from deltacell.propagate.reference.edges import Link, links_of


@dataclass(frozen=True, eq=False)
class _Opened:
    """A store that was read, and the links that it was checked for."""

    parts: Mapping[str, pa.Table] = field(default_factory=dict)
    rows: Mapping[tuple[int, ...], int] = field(default_factory=dict)  # of each genotype
    links: Sequence[Link] = ()


class StoredArrays(EdgeMask):
    """One array per genotype and link, computed by `fill` and read from disk by the loader.

    Genotypes are looked up by their set of genes, in any order. A store of another cell or screen
    raises an error.
    """

    kind: ClassVar[str]
    dtype: ClassVar[type[np.generic]]

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        self._path = store
        self._opened = _Opened()

    def array_of(self, mask: Tensor) -> Tensor:
        """Return the array to store for one genotype and link with this mask."""
        return mask

    def fill(self, shapes: Sequence[HopShape], deleted: Deleted) -> None:
        """Write the arrays of these genotypes to the store."""
        links = links_of(shapes)
        genes = [sorted(members.tolist()) for members in deleted.genes]
        parts = {"genotypes": pa.table({"genes": genes})}
        for number, link in enumerate(links):
            arrays = [self.array_of(mask).numpy().tobytes() for mask in mask_of(link, deleted)]
            parts[f"link{number}"] = pa.table({"array": pa.array(arrays, pa.large_binary())})
        storage.write(self._store(), self.kind, parts, {"cell": _checksum_of_links(links)})

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Read the stored arrays of a batch: for each link, their lengths and all values."""
        opened = self._open(links)
        keys = [tuple(sorted(genes.tolist())) for genes in deleted.genes]
        absent = [key for key in keys if key not in opened.rows]
        if absent:
            raise self._refused("store-of-another-screen", f"it lacks the genotype {absent[0]}")
        rows = [opened.rows[key] for key in keys]
        return [self._arrays(opened.parts[f"link{i}"]["array"], rows) for i in range(len(links))]

    def _open(self, links: Sequence[Link]) -> _Opened:
        if self._opened.links != links:
            stored = storage.read(self._store(), self.kind)
            if stored.meta["cell"] != _checksum_of_links(links):
                raise self._refused("store-of-another-cell", "the checksum of its cell differs")
            genes = stored.parts["genotypes"]["genes"].to_pylist()
            rows = {tuple(members): row for row, members in enumerate(genes)}
            self._opened = _Opened(stored.parts, rows, links)
        return self._opened

    def _arrays(self, column: pa.ChunkedArray, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        arrays = [np.frombuffer(column[row].as_buffer(), self.dtype) for row in rows]
        sizes = torch.tensor([len(array) for array in arrays], dtype=torch.int64)
        values = np.concatenate([np.empty(0, self.dtype), *arrays])
        return sizes, torch.from_numpy(values)

    def _store(self) -> str | os.PathLike[str]:
        if self._path is None:
            raise self._refused("no-store", f"give one: strategy('{self.name}', store=PATH)")
        return self._path

    def _refused(self, code: str, reason: str) -> InputError:
        return InputError(
            f"the propagation '{self.name}' cannot use this {self.kind}: {reason}",
            code=code,
            where=self._path,
            fix="Fill a new one from this cell and this screen, with the strategy's `fill`.",
        )


class StoredEdges(StoredArrays):
    """The store has the positions of the removed edges; the step makes the masks."""

    name: ClassVar[str] = "stored_edges"
    kind: ClassVar[str] = "store of removed edges"
    dtype: ClassVar[type[np.generic]] = np.int64

    def mask(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> Tensor:
        """Return the masks, with the entries of the positions that were sent cleared."""
        sizes, positions = sent
        mutants = torch.arange(len(deleted), device=sizes.device)
        owner = mutants.repeat_interleave(sizes, output_size=len(positions))
        mask = sizes.new_ones(len(deleted) * link.matrix.n_entries, dtype=torch.bool)
        mask = mask.index_fill(0, owner * link.matrix.n_entries + positions, False)
        return mask.view(len(deleted), -1)

    def array_of(self, mask: Tensor) -> Tensor:
        """Return the positions of the removed edges."""
        return (~mask).nonzero().squeeze(1)


class StoredMasks(StoredArrays):
    """The store has the masks themselves, so they only have to be read."""

    name: ClassVar[str] = "stored_masks"
    kind: ClassVar[str] = "store of edge masks"
    dtype: ClassVar[type[np.generic]] = np.bool_

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Read the masks of a batch."""
        return [(masks,) for _, masks in super().sent(links, deleted)]


def _checksum_of_links(links: Sequence[Link]) -> str:
    whole = hashlib.sha256()
    for link in links:
        matrix = link.matrix
        whole.update(f"{link.target} {link.source} {matrix.shape}".encode())
        whole.update(np.ascontiguousarray(matrix.indptr).data)
        whole.update(np.ascontiguousarray(matrix.indices, dtype=np.int64).data)
    return whole.hexdigest()
