"""What the strategies that read from a store have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from deltacell.arrays import AnyArray
from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Hop
from deltacell.propagate.ladder.index_store import IndexStore, checksum_of_links, lmdb_for
from deltacell.propagate.ladder.link import Link, links_of
from deltacell.screen import Genotypes


class Stored(ABC):
    """A strategy with something about every genotype's edges in a store.

    Parameters
    ----------
    name
        What the strategy is called in configurations.
    kind
        What its store is called.
    store, genotypes
        See the strategies.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        store: str | os.PathLike[str] | None,
        genotypes: Genotypes | None,
    ) -> None:
        self._name = name
        self._genotypes = genotypes
        self._checked: str | None = None
        purpose = f"the propagation '{name}'"
        lmdb_for(purpose)
        self._store = None if store is None else IndexStore(store, kind, purpose)

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return self._name

    def fill(self, hops: Sequence[Hop], deleted: Deleted, *, overwrite: bool = False) -> None:
        """Make the store, all of it or nothing.

        Parameters
        ----------
        hops
            Those of the model that will use it.
        deleted
            What all genotypes of the screen delete, ``Deleted.of(cell, screen.genotypes)``.
        overwrite
            Replace a store of the same kind.
        """
        deleted = deleted.to("cpu")
        self._checked = None
        self._folder.write(
            links_of(hops), deleted, partial(self._array_of, deleted), overwrite=overwrite
        )

    def _read(
        self, hops: Sequence[Hop], deleted: Deleted, dtype: type[np.generic]
    ) -> list[list[torch.Tensor]]:
        links = links_of(hops)
        checksum = checksum_of_links(links)
        if self._checked != checksum:
            self._folder.check(links, self._genotypes)
            self._checked = checksum
        return self._folder.read(links, deleted.genotypes, dtype)

    @property
    def _folder(self) -> IndexStore:
        if self._store is None:
            raise InputError(
                f"the propagation '{self.name}' needs the folder of its store",
                fix=f"Give it one: strategy('{self.name}', store=PATH).",
            )
        return self._store

    @abstractmethod
    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        """Return what is stored of a genotype's edges of one link."""
