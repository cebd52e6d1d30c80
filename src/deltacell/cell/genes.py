"""The genes of a cell: their names, and their positions on the chromosomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import GeneNameError, did_you_mean

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
        n = len(self.systematic)

        def column(name: str, given: Iterable[Any] | None) -> list[Any]:
            values = [None] * n if given is None else given
            filled = [_IF_UNKNOWN[name] if value is None else value for value in values]
            if len(filled) != n:
                raise ValueError(f"{name} has {len(filled)} entries for {n} genes")
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
                what = f"two genes have the systematic name '{name}'"
                raise GeneNameError(what, code="duplicate-gene")
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
        return f"Genes({len(self)}: {', '.join(self.systematic[:3])}{', …' * (len(self) > 3)})"

    @property
    def has_position(self) -> Bools:
        return self.start >= 0

    def index(self, name: str) -> int:  # type: ignore[override]
        """Return the index of the gene with a systematic name, standard name or alias."""
        candidates = self._candidates(name)
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            known = [*self.systematic, *filter(None, self.standard), *chain(*self.aliases)]
            what, code = f"unknown gene '{name}'{did_you_mean(name, known)}", "unknown-gene"
            fix = "Use a systematic name, standard name or alias."
        else:
            what = f"'{name}' is ambiguous: it may be {', '.join(map(self.label, candidates))}"
            code, fix = "ambiguous-gene", "Use the systematic name."
        raise GeneNameError(what, code=code, fix=fix)

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
        found = []
        for candidates in map(self._candidates, unique):
            several = AMBIGUOUS if candidates else UNKNOWN
            found.append(candidates[0] if len(candidates) == 1 else several)
        to = pl.Series(found, dtype=pl.Int64)
        index = series.replace_strict(unique, to, return_dtype=pl.Int64)
        return index.to_numpy().astype(np.int64)

    def indices(self, genes: Iterable[str | int]) -> Ints:
        """Return the indices of genes given by any name or by index, and check them."""
        found = [g if isinstance(g, (int, np.integer)) else self.index(g) for g in genes]
        index: Ints = np.array(found, dtype=np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < len(self):
            what = f"a gene index is outside the cell, 0 to {len(self) - 1}"
            raise GeneNameError(what, code="gene-index-outside")
        return index

    def take(self, index: Sequence[int] | Ints) -> Genes:
        at = np.asarray(index, dtype=np.int64).tolist()
        return Genes(**{name: [column[i] for i in at] for name, column in self.columns().items()})

    def extended(self, systematic: Iterable[str]) -> Genes:
        """Return these genes followed by the given ones that are new."""
        spelling: dict[str, str] = {}
        for name in systematic:
            spelling.setdefault(name.upper(), name)
        new = Genes(name for key, name in spelling.items() if key not in self._index).columns()
        return Genes(**{name: [*column, *new[name]] for name, column in self.columns().items()})

    def to_arrow(self) -> pa.Table:
        columns = self.columns() | {"aliases": list(map(list, self.aliases))}
        # Cells without descriptions keep the checksum of versions that had no descriptions.
        if not any(self.description):
            del columns["description"]
        types = {"aliases": pa.list_(pa.string()), "start": pa.int64(), "end": pa.int64()}
        return pa.table({n: pa.array(c, types.get(n, pa.string())) for n, c in columns.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Genes:
        return cls(**{name: table[name].to_pylist() for name in table.column_names})

    def _candidates(self, name: str) -> tuple[int, ...]:
        key = name.strip().upper()
        if key in self._index:
            return (self._index[key],)
        if self._other is None:
            # A standard name wins over an alias: at SGD one gene's alias may be another's name.
            standard: dict[str, list[int]] = {}
            alias: dict[str, list[int]] = {}
            for i in range(len(self)):
                standard.setdefault((self.standard[i] or "").strip().upper(), []).append(i)
                for other in dict.fromkeys(a.strip().upper() for a in self.aliases[i]):
                    alias.setdefault(other, []).append(i)
            self._other = {n: tuple(i) for n, i in (alias | standard).items() if n}
        return self._other.get(key, ())
