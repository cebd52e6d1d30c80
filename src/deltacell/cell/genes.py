"""The genes of a cell: their names, and where they lie on the chromosomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.arrays import Bools, Ints
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.errors import GeneNameError, did_you_mean

OnUnknown = Literal["error", "drop", "add"]

UNKNOWN = -1
AMBIGUOUS = -2


@dataclass(frozen=True)
class Resolved:
    """Gene names looked up in a cell.

    Parameters
    ----------
    index
        Index of each gene; `UNKNOWN` or `AMBIGUOUS` where there is none.
    """

    index: Ints

    @property
    def found(self) -> Bools:
        """Which names were found."""
        found: Bools = self.index >= 0
        return found

    def reasons(self) -> dict[str, Bools]:
        """Return which names were not found, by reason."""
        return {UNKNOWN_GENE: self.index == UNKNOWN, AMBIGUOUS_NAME: self.index == AMBIGUOUS}


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
    chromosome
        Its chromosome, empty where unknown.
    start, end
        Base pairs on the chromosome, the smaller first; -1 where unknown.
    description
        What is known of it in a sentence, empty where nothing is.
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
        self.aliases: tuple[tuple[str, ...], ...] = (
            ((),) * n if aliases is None else tuple(tuple(a) for a in aliases)
        )
        self.chromosome: tuple[str, ...] = ("",) * n if chromosome is None else tuple(chromosome)
        self.description: tuple[str, ...] = ("",) * n if description is None else tuple(description)
        unknown = np.full(n, -1, dtype=np.int64)
        self.start: Ints = unknown if start is None else np.array(list(start), dtype=np.int64)
        self.end: Ints = unknown if end is None else np.array(list(end), dtype=np.int64)
        for name in ("standard", "aliases", "chromosome", "start", "end", "description"):
            given = len(getattr(self, name))
            if given != n:
                raise ValueError(f"{name} has {given} entries for {n} genes")
        self._index = self._by_systematic_name()
        self._other: dict[str, tuple[int, ...]] | None = None

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
                fix="Give a systematic name, standard name or alias.",
            )
        listed = ", ".join(self.label(i) for i in candidates)
        raise GeneNameError(
            f"'{name}' is ambiguous: it may be {listed}", fix="Give the systematic name."
        )

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
        for name in unique:
            candidates = self._candidates(name)
            several = AMBIGUOUS if candidates else UNKNOWN
            found.append(candidates[0] if len(candidates) == 1 else several)
        index = series.replace_strict(
            unique, pl.Series(found, dtype=pl.Int64), return_dtype=pl.Int64
        )
        return Resolved(index.to_numpy().astype(np.int64))

    def take(self, index: Sequence[int] | Ints) -> Genes:
        """Return the genes at the given indices, in that order."""
        index = np.asarray(index, dtype=np.int64)
        return Genes(
            (self.systematic[i] for i in index),
            (self.standard[i] for i in index),
            (self.aliases[i] for i in index),
            (self.chromosome[i] for i in index),
            self.start[index],
            self.end[index],
            (self.description[i] for i in index),
        )

    def extended(self, systematic: Iterable[str]) -> Genes:
        """Return these genes and, behind them, those of the given ones that are new."""
        spelling: dict[str, str] = {}
        for name in systematic:
            spelling.setdefault(name.upper(), name)
        new = [name for key, name in spelling.items() if key not in self._index]
        return Genes(
            (*self.systematic, *new),
            (*self.standard, *(None for _ in new)),
            (*self.aliases, *(() for _ in new)),
            (*self.chromosome, *("" for _ in new)),
            np.concatenate([self.start, np.full(len(new), -1)]),
            np.concatenate([self.end, np.full(len(new), -1)]),
            (*self.description, *("" for _ in new)),
        )

    def to_arrow(self) -> pa.Table:
        """Return one row a gene."""
        columns = {
            "systematic": pa.array(self.systematic, pa.string()),
            "standard": pa.array(self.standard, pa.string()),
            "aliases": pa.array([list(a) for a in self.aliases], pa.list_(pa.string())),
            "chromosome": pa.array(self.chromosome, pa.string()),
            "start": pa.array(self.start, pa.int64()),
            "end": pa.array(self.end, pa.int64()),
        }
        # Without any, the table and its checksum are those of versions that knew none.
        if any(self.description):
            columns["description"] = pa.array(self.description, pa.string())
        return pa.table(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Genes:
        """Inverse of `to_arrow`."""
        return cls(**{name: table[name].to_pylist() for name in table.column_names})

    def _by_systematic_name(self) -> dict[str, int]:
        index: dict[str, int] = {}
        for i, name in enumerate(self.systematic):
            if not name or name != name.strip():
                raise GeneNameError(f"'{name}' is not a name for a gene")
            if index.setdefault(name.upper(), i) != i:
                raise GeneNameError(f"two genes have the systematic name '{name}'")
        return index

    def _candidates(self, name: str) -> tuple[int, ...]:
        key = name.strip().upper()
        if key in self._index:
            return (self._index[key],)
        if self._other is None:
            self._other = self._by_other_names()
        return self._other.get(key, ())

    def _by_other_names(self) -> dict[str, tuple[int, ...]]:
        # A standard name wins over an alias: SGD lets one gene's alias be another's standard name.
        standard: dict[str, list[int]] = {}
        alias: dict[str, list[int]] = {}
        for i in range(len(self)):
            standard.setdefault((self.standard[i] or "").strip().upper(), []).append(i)
            for name in dict.fromkeys(a.strip().upper() for a in self.aliases[i]):
                alias.setdefault(name, []).append(i)
        return {name: tuple(i) for name, i in (alias | standard).items() if name}
