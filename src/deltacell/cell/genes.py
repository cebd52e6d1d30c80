"""The genes of a cell: their names, and their positions on the chromosomes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import GeneNameError, did_you_mean
from deltacell.base.plain_text import plain_name

OnUnknown = Literal["error", "drop", "add"]

#: Characters of a gene name; what is longer is another text, and is refused.
LONGEST_NAME = 256

UNKNOWN = -1
AMBIGUOUS = -2

_IF_UNKNOWN: dict[str, Any] = {
    "standard": None,
    "aliases": (),
    "chromosome": "",
    "start": -1,
    "end": -1,
    "description": "",
}


class Genes(Sequence[str]):
    """Genes in a fixed order; genotypes contain indices into it.

    Every gene has a unique systematic name (``YDL227C``); the standard name (``HO``) is the one in
    common use. Start and end are base pairs, the smaller first, and -1 if unknown.

    Args:
        systematic: Unique names, ignoring case.
        standard: None where a gene has no other name.
        aliases: Further names of each gene.
        chromosome: Empty where unknown.
        start: -1 or None where unknown.
        end: -1 or None where unknown.
        description: What is known of each gene, in words.
    """

    def __init__(
        self,
        systematic: Iterable[str],
        standard: Iterable[str | None] | None = None,
        aliases: Iterable[Sequence[str]] | None = None,
        chromosome: Iterable[str] | None = None,
        start: Iterable[int] | None = None,
        end: Iterable[int] | None = None,
        description: Iterable[str] | None = None,
    ) -> None:
        self.systematic = tuple(systematic)
        n_genes = len(self.systematic)

        def column(name: str, written: Iterable[Any] | None) -> list[Any]:
            values = [None] * n_genes if written is None else written
            filled = [_IF_UNKNOWN[name] if value is None else value for value in values]
            if len(filled) != n_genes:
                raise ValueError(f"{name} has {len(filled)} entries for {n_genes} genes")
            return filled

        self.standard: tuple[str | None, ...] = tuple(column("standard", standard))
        self.aliases: tuple[tuple[str, ...], ...] = tuple(map(tuple, column("aliases", aliases)))
        self.chromosome: tuple[str, ...] = tuple(column("chromosome", chromosome))
        self.start: Ints = np.array(column("start", start), dtype=np.int64)
        self.end: Ints = np.array(column("end", end), dtype=np.int64)
        self.description: tuple[str, ...] = tuple(column("description", description))
        self._index: dict[str, int] = {}
        for i, name in enumerate(self.systematic):
            if not name or name != name.strip() or len(name) > LONGEST_NAME:
                raise GeneNameError(f"'{name[:80]}' is not a gene name", code="bad-gene-name")
            if self._index.setdefault(name.upper(), i) != i:
                message = f"two genes have the systematic name '{name}'"
                raise GeneNameError(message, code="duplicate-gene")
        self._other: dict[str, tuple[int, ...]] | None = None

    def columns(self) -> dict[str, Any]:
        """Return all columns by the name of their constructor argument."""
        return {name: getattr(self, name) for name in ("systematic", *_IF_UNKNOWN)}

    def __len__(self) -> int:
        return len(self.systematic)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.systematic[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genes) and self.to_arrow().equals(other.to_arrow())

    def __hash__(self) -> int:
        return hash(self.systematic)

    def __repr__(self) -> str:
        first = ", ".join(self.systematic[:3])
        more = ", …" if len(self) > 3 else ""
        return f"Genes({len(self)}: {first}{more})"

    @property
    def has_position(self) -> Bools:
        """Which genes have a known start, [genes]."""
        return self.start >= 0

    def index(self, name: str) -> int:  # type: ignore[override]
        """Return the index of the gene with a systematic name, standard name or alias."""
        candidates = self._candidates(name)
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            known = [*self.systematic, *filter(None, self.standard), *chain(*self.aliases)]
            raise GeneNameError(
                f"unknown gene '{name}'{did_you_mean(name, known)}",
                code="unknown-gene",
                fix="Use a systematic name, standard name or alias.",
            )
        labels = ", ".join(map(self.label, candidates))
        raise GeneNameError(
            f"'{name}' is ambiguous: it may be {labels}",
            code="ambiguous-gene",
            fix="Use the systematic name.",
        )

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the systematic names in their order, by which a gene list is known."""
        return hashlib.sha256("\n".join(self.systematic).encode()).hexdigest()

    def is_known(self, name: str) -> bool:
        """Whether a name is the systematic name, standard name or alias of one gene or more."""
        return bool(self._candidates(name))

    def label(self, index: int) -> str:
        """Return both names of a gene, as ``YDL227C (HO)``."""
        standard = self.standard[index]
        return self.systematic[index] + (f" ({standard})" if standard else "")

    def resolve(self, names: pl.Series | Sequence[str]) -> Ints:
        """Look up many names at once; those not found are `UNKNOWN` or `AMBIGUOUS`."""
        series = pl.Series(names, dtype=pl.String).fill_null("")
        unique = series.unique(maintain_order=True)
        index_of_unique = pl.Series(map(self._index_of, unique), dtype=pl.Int64)
        index = series.replace_strict(unique, index_of_unique, return_dtype=pl.Int64)
        return index.to_numpy().astype(np.int64)

    def _index_of(self, name: str) -> int:
        """Return the index of a gene by any name, `UNKNOWN` or `AMBIGUOUS`."""
        candidates = self._candidates(name)
        if len(candidates) == 1:
            return candidates[0]
        return AMBIGUOUS if candidates else UNKNOWN

    def indices(self, genes: Iterable[str | int]) -> Ints:
        """Return the indices of genes given by any name or by index, and check them."""
        numbers = [g if isinstance(g, (int, np.integer)) else self.index(g) for g in genes]
        index: Ints = np.array(numbers, dtype=np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < len(self):
            message = f"a gene index is outside the cell, 0 to {len(self) - 1}"
            raise GeneNameError(message, code="gene-index-outside")
        return index

    def take(self, index: Sequence[int] | Ints) -> Genes:
        """Return the genes with these indices, in this order."""
        chosen = np.asarray(index, dtype=np.int64).tolist()
        columns = self.columns()
        return Genes(**{name: list(map(columns[name].__getitem__, chosen)) for name in columns})

    def extended(self, systematic: Iterable[str]) -> Genes:
        """Return these genes followed by the given ones that are new."""
        spelling: dict[str, str] = {}
        for name in systematic:
            spelling.setdefault(name.upper(), name)
        new = Genes(name for key, name in spelling.items() if key not in self._index)
        new_columns = new.columns()
        columns = self.columns()
        return Genes(**{name: [*columns[name], *new_columns[name]] for name in columns})

    def with_names_of(self, others: Genes) -> Genes:
        """Return these genes with the names that others have for them, as further aliases.

        A name that is known already, of whichever gene, is not added: it stays what it was.
        """
        aliases = [list(names) for names in self.aliases]
        added: dict[str, int] = {}
        for i, systematic in enumerate(others.systematic):
            gene = self._index.get(systematic.upper())
            if gene is None:
                continue
            for name in (others.standard[i], *others.aliases[i]):
                if name and not self.is_known(name) and added.setdefault(name.upper(), i) == i:
                    aliases[gene].append(name)
        return Genes(**{**self.columns(), "aliases": aliases})

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per gene."""
        columns = self.columns() | {"aliases": list(map(list, self.aliases))}
        # Cells without descriptions keep the checksum of versions that had no descriptions.
        if not any(self.description):
            del columns["description"]
        types = {"aliases": pa.list_(pa.string()), "start": pa.int64(), "end": pa.int64()}
        arrays = {n: pa.array(c, types.get(n, pa.string())) for n, c in columns.items()}
        return pa.table(arrays)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Genes:
        """Return the genes of a table that `to_arrow` made."""
        return cls(**{name: table[name].to_pylist() for name in table.column_names})

    def _candidates(self, name: str) -> tuple[int, ...]:
        """Return the genes that a name may mean; a systematic name means one."""
        if self._other is None:
            self._other = self._by_other_names()
        for spelling in (name, plain_name(name)):
            key = spelling.strip().upper()
            if key in self._index:
                return (self._index[key],)
            if key in self._other:
                return self._other[key]
        return ()

    def _by_other_names(self) -> dict[str, tuple[int, ...]]:
        """Return the genes with each standard name and alias, in capitals.

        A standard name wins over an alias: at SGD one gene's alias may be another's name.
        """
        by_standard: dict[str, list[int]] = {}
        by_alias: dict[str, list[int]] = {}
        for i in range(len(self)):
            standard = (self.standard[i] or "").strip().upper()
            by_standard.setdefault(standard, []).append(i)
            aliases = (alias.strip().upper() for alias in self.aliases[i])
            for alias in dict.fromkeys(aliases):
                by_alias.setdefault(alias, []).append(i)
        by_name = by_alias | by_standard
        return {name: tuple(genes) for name, genes in by_name.items() if name}
