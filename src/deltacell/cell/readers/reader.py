"""What the module of a format offers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.names import OnUnresolved
from deltacell.counts import Source


class Reader(Protocol):
    """A format that has a name."""

    @property
    def NAME(self) -> str:
        """What the reader is called."""


class TextReader(Reader, Protocol):
    """A format that its first lines tell."""

    def recognise(self, head: Sequence[str], file_name: str) -> bool:
        """Whether the first lines are those of this format."""


class EdgeReader(TextReader, Protocol):
    """A format of networks."""

    def read(self, path: str | os.PathLike[str]) -> list[NamedEdges]:
        """Return the relations of a file."""


class GeneReader(TextReader, Protocol):
    """A format of gene names."""

    def read(self, path: str | os.PathLike[str]) -> tuple[Genes, Source]:
        """Return the genes of a file."""


class FeatureReader(Reader, Protocol):
    """A format of features."""

    def recognise(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is of this format."""

    def read(
        self,
        path: str | os.PathLike[str],
        genes: Genes,
        name: str | None = None,
        on_unknown: OnUnresolved = "drop",
    ) -> tuple[Feature, Source]:
        """Return the feature of a file."""
