"""The genes of a cell: their names, and where they lie on the chromosomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.arrays import Bools, Ints
from deltacell.errors import GeneNameError, did_you_mean

OnUnknown = Literal["error", "drop", "add"]

UNKNOWN = -1
AMBIGUOUS = -2


@dataclass(frozen=True)
class Resolved:
    """Gene names looked up in a cell: the index of each, or `UNKNOWN` or `AMBIGUOUS`."""

    index: Ints

    @property
    def found(self) -> Bools:
        """Which names were found."""
        found: Bools = self.index >= 0
        return found


class Genes(Sequence[str]):
    """Genes in a fixed order; an index into it is what a genotype holds.

    Parameters
    ----------
    systematic
        The one name that every gene has and no two share (``YDL227C``).
    standard
        The name people use (``HO``), where there is one.
    aliases
        Other names, including retired systematic ones.
    start, end
        Base pairs on the chromosome, the smaller first; -1 where unknown.
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
        self.systematic: tuple[str, ...] = tuple(systematic)
        n = len(self.systematic)
        self.standard: tuple[str | None, ...] = (None,) * n if standard is None else tuple(standard)
        self.aliases: tuple[tuple[str, ...], ...] = tuple(
            map(tuple, [()] * n if aliases is None else aliases)
        )
        self.chromosome: tuple[str, ...] = ("",) * n if chromosome is None else tuple(chromosome)
        self.start: Ints = np.array([-1] * n if start is None else list(start), dtype=np.int64)
        self.end: Ints = np.array([-1] * n if end is None else list(end), dtype=np.int64)
        self.description: tuple[str, ...] = ("",) * n if description is None else tuple(description)
        for name, column in self._columns().items():
            if len(column) != n:
                raise ValueError(f"{name} has {len(column)} entries for {n} genes")
        self._index: dict[str, int] = {}
        for i, name in enumerate(self.systematic):
            if not name or name != name.strip():
                raise GeneNameError(f"'{name}' is not a name for a gene", code="bad-gene-name")
            if self._index.setdefault(name.upper(), i) != i:
                what = f"two genes have the systematic name '{name}'"
                raise GeneNameError(what, code="duplicate-gene")
        self._other: dict[str, tuple[int, ...]] | None = None

    def _columns(self) -> dict[str, Any]:
        return {
            "systematic": self.systematic,
            "standard": self.standard,
            "aliases": self.aliases,
            "chromosome": self.chromosome,
            "start": self.start,
            "end": self.end,
            "description": self.description,
        }

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
        """Which genes have a known place on a chromosome."""
        placed: Bools = self.start >= 0
        return placed

    def index(self, name: str) -> int:  # type: ignore[override]
        """Return the index of the gene with a systematic name, standard name or alias."""
        candidates = self._candidates(name)
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            known = [*self.systematic, *filter(None, self.standard), *chain(*self.aliases)]
            raise GeneNameError(
                f"no gene is called '{name}'{did_you_mean(name, known)}",
                code="unknown-gene",
                fix="Give a systematic name, standard name or alias.",
            )
        what = f"'{name}' is ambiguous: it may be {', '.join(map(self.label, candidates))}"
        raise GeneNameError(what, code="ambiguous-gene", fix="Give the systematic name.")

    def label(self, index: int) -> str:
        """Return both names of a gene, as ``YDL227C (HO)``."""
        standard = self.standard[index]
        return self.systematic[index] + (f" ({standard})" if standard else "")

    def resolve(self, names: pl.Series | Sequence[str]) -> Resolved:
        """Look up many names at once; nothing is raised for those that are not found."""
        series = names if isinstance(names, pl.Series) else pl.Series(names, dtype=pl.String)
        series = series.fill_null("")
        unique = series.unique(maintain_order=True)
        found = []
        for candidates in map(self._candidates, unique):
            several = AMBIGUOUS if candidates else UNKNOWN
            found.append(candidates[0] if len(candidates) == 1 else several)
        to = pl.Series(found, dtype=pl.Int64)
        index = series.replace_strict(unique, to, return_dtype=pl.Int64)
        return Resolved(index.to_numpy().astype(np.int64))

    def indices(self, genes: Iterable[str | int]) -> Ints:
        """Return the indices of genes that are given by any name or by index, checked."""
        found = [g if isinstance(g, (int, np.integer)) else self.index(g) for g in genes]
        index: Ints = np.array(found, dtype=np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < len(self):
            what = f"a gene index is outside the cell, 0 to {len(self) - 1}"
            raise GeneNameError(what, code="gene-index-outside")
        return index

    def take(self, index: Sequence[int] | Ints) -> Genes:
        """Return the genes at the given indices, in that order."""
        at = np.asarray(index, dtype=np.int64).tolist()
        return Genes(**{name: [column[i] for i in at] for name, column in self._columns().items()})

    def extended(self, systematic: Iterable[str]) -> Genes:
        """Return these genes and, behind them, those of the given ones that are new."""
        spelling: dict[str, str] = {}
        for name in systematic:
            spelling.setdefault(name.upper(), name)
        new = Genes(name for key, name in spelling.items() if key not in self._index)._columns()
        return Genes(**{name: [*column, *new[name]] for name, column in self._columns().items()})

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per gene."""
        aliases = pa.array([list(a) for a in self.aliases], pa.list_(pa.string()))
        columns = {**self._columns(), "aliases": aliases}
        # Without any, the table and its checksum are those of versions that had no descriptions.
        if not any(self.description):
            del columns["description"]
        types = {"aliases": aliases.type, "start": pa.int64(), "end": pa.int64()}
        return pa.table({n: pa.array(c, types.get(n, pa.string())) for n, c in columns.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Genes:
        """Inverse of `to_arrow`."""
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
