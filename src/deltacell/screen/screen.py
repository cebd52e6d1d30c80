"""What was measured: genotypes with their phenotypes, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import torch

from deltacell import store
from deltacell.arrays import AnyArray, Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Genes
from deltacell.counts import UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError
from deltacell.screen.columns import (
    GENE_SCHEMA,
    IMPOSSIBLE,
    ONE_GENE_TWICE,
    ROW_SCHEMA,
    is_impossible,
    kind_of,
)
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.keys import repeats_a_gene, set_keys

if TYPE_CHECKING:
    import anndata
    import pandas as pd

Merge = Literal["mean", "median", "best-p"]


class Screen:
    """Genotypes with their phenotypes, one row a measurement; repeats stay separate rows.

    Parameters
    ----------
    genes
        The genes that the genotypes index.
    rows
        One row a genotype, with the columns of `ROW_SCHEMA`.
    deleted
        One row a deleted gene, with the columns of `GENE_SCHEMA`; ``rows["end"]`` says where each
        genotype ends.
    coverage
        Which genotypes were tested at all.
    sources
        The files it was read from.
    synthetic
        For a made-up screen, what it was made with.
    """

    def __init__(
        self,
        genes: Genes,
        rows: pa.Table,
        deleted: pa.Table,
        coverage: Coverage | None = None,
        *,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
    ) -> None:
        self.genes = genes
        self.rows = rows.select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
        self.deleted = deleted.select(GENE_SCHEMA.names).cast(GENE_SCHEMA)
        self.coverage = Coverage() if coverage is None else coverage
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        self.path: Path | None = None
        """The directory it was loaded from, if any."""
        if not len(self):
            raise InputError("the screen is empty: it has no genotype")

    @classmethod
    def build(
        cls,
        genes: Genes,
        genotypes: Genotypes,
        *,
        coverage: Coverage | None = None,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> Screen:
        """Make a screen from genotypes and columns; a column not given is missing throughout.

        Parameters
        ----------
        genes
            The genes that the genotypes index.
        genotypes
            One a row; checked.
        coverage, sources, synthetic
            As in the class.
        **columns
            Any column of `ROW_SCHEMA` or `GENE_SCHEMA` but ``end`` and ``gene``: a sequence, or one
            value for all. Without ``sign`` it is that of an interaction's score; a fitness has
            none.
        """
        genotypes.check(len(genes))
        n, total = len(genotypes), len(genotypes.genes)
        allowed = (set(ROW_SCHEMA.names) | set(GENE_SCHEMA.names)) - {"end", "gene"}
        unknown = set(columns) - allowed
        if unknown:
            raise TypeError(f"a screen has no column {sorted(unknown)}; it has {sorted(allowed)}")
        values = {
            "score": np.nan,
            "standard_deviation": np.nan,
            "p_value": np.nan,
            "query_fitness": np.nan,
            "array_fitness": np.nan,
            "phenotype": "interaction",
            "study": "",
            "source_row": np.arange(n),
            "replicates": 1,
            "role": "unknown",
            "perturbation": "deletion",
            "allele": "",
        } | columns
        if "sign" not in values:
            values["sign"] = score_signs(
                _filled(values["score"], n), _filled(values["phenotype"], n)
            )
        for column, why in IMPOSSIBLE.items():
            numbers = np.asarray(values[column], dtype=np.float64)
            wrong = is_impossible(column, np.atleast_1d(numbers))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise InputError(
                    f"'{column}' of row {row} is {np.atleast_1d(numbers)[row]:g}, which is {why}"
                )
        values["end"] = genotypes.offsets[1:].numpy()
        values["gene"] = genotypes.genes.numpy()
        return cls(
            genes,
            _typed_table(values, ROW_SCHEMA, n),
            _typed_table(values, GENE_SCHEMA, total),
            coverage,
            sources=sources,
            synthetic=synthetic,
        )

    @classmethod
    def synthetic(cls, cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
        """Return a made-up screen on a made-up cell, with planted interactions.

        Parameters
        ----------
        cell
            From `Cell.synthetic`.
        n
            Number of genotypes.
        seed
            Of all that is drawn.
        """
        from deltacell.screen.synthetic import synthetic_screen

        return synthetic_screen(cell, n=n, seed=seed)

    @classmethod
    def concat(cls, screens: Iterable[Screen]) -> Screen:
        """Return several screens over the same genes as one."""
        screens = list(screens)
        if not screens:
            raise InputError("nothing to put together: no screen was given")
        if any(s.genes.systematic != screens[0].genes.systematic for s in screens):
            raise InputError(
                "the screens are over different genes",
                fix="Bring each onto one cell: screen.on(cell)",
            )
        lengths = np.concatenate([np.diff(s.offsets) for s in screens])
        rows = pa.concat_tables([_plain(s.rows) for s in screens])
        rows = rows.set_column(
            rows.column_names.index("end"), "end", pa.array(offsets_of(lengths)[1:])
        )
        return cls(
            screens[0].genes,
            rows,
            pa.concat_tables([_plain(s.deleted) for s in screens]),
            Coverage(tuple(c for s in screens for c in s.coverage.studies)),
            sources=[source for s in screens for source in s.sources],
        )

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in self._kinds().items())
        return f"Screen({len(self):,} genotypes: {kinds})"

    @cached_property
    def offsets(self) -> Ints:
        """Where each genotype begins in `deleted`, and the end."""
        return np.concatenate([[0], self.column("end")]).astype(np.int64)

    @cached_property
    def genotypes(self) -> Genotypes:
        """All genotypes."""
        genes = self.deleted["gene"].combine_chunks().to_numpy(zero_copy_only=False)
        return Genotypes(torch.from_numpy(genes.astype(np.int64)), torch.from_numpy(self.offsets))

    @property
    def kind(self) -> list[str]:
        """What each genotype is: digenic, trigenic, …."""
        names = {size: kind_of(size) for size in np.unique(np.diff(self.offsets)).tolist()}
        return [names[size] for size in np.diff(self.offsets).tolist()]

    def column(self, name: str) -> AnyArray:
        """Return a column of the rows as an array."""
        return _values(self.rows[name])

    def codes(self, name: str) -> Ints:
        """Return a number a row, equal for equal texts of a column and in their order."""
        texts = pl.Series(self.rows[name].combine_chunks()).cast(pl.String)
        codes: Ints = texts.rank("dense").to_numpy().astype(np.int64) - 1
        return codes

    def gene_column(self, name: str) -> AnyArray:
        """Return a column of the deleted genes as an array."""
        return _values(self.deleted[name])

    @cached_property
    def keys(self) -> AnyArray:
        """A key a genotype, equal for the same set of genes."""
        return set_keys(self.genotypes.genes.numpy(), self.offsets, len(self.genes))

    def take(self, rows: Sequence[int] | AnyArray) -> Screen:
        """Return the genotypes at the given rows, or where a mask is true."""
        index = np.asarray(rows)
        if index.dtype == bool and len(index) != len(self):
            raise InputError(f"a mask of {len(index)} values for {len(self)} genotypes")
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        sizes = np.diff(self.offsets)[index]
        at = ragged_positions(self.offsets[:-1][index], sizes)
        taken = self.rows.take(pa.array(index))
        end = taken.column_names.index("end")
        return self._with(
            rows=taken.set_column(end, "end", pa.array(offsets_of(sizes)[1:])),
            deleted=self.deleted.take(pa.array(at)),
        )

    def where(self, **values: str | Sequence[str]) -> Screen:
        """Return the genotypes whose study, phenotype or kind has one of the given values."""
        chosen: Bools = np.ones(len(self), dtype=bool)
        for name, wanted in values.items():
            if name not in ("study", "phenotype", "kind"):
                raise InputError(f"cannot choose by '{name}'; by study, phenotype or kind")
            there = np.array(self.kind) if name == "kind" else self.column(name)
            accepted = [wanted] if isinstance(wanted, str) else list(wanted)
            chosen &= np.isin(there.astype(str), accepted)
            if not chosen.any():
                raise InputError(
                    f"no genotype has the {name} {' or '.join(accepted)}; there are "
                    f"{', '.join(sorted(set(there.astype(str))))}"
                )
        screen = self.take(chosen)
        return screen._with(coverage=self.coverage.only(set(screen.column("study"))))

    def subset(self, n: int, seed: int = 0) -> Screen:
        """Return a part of about the same mixture of studies, kinds, signs and sizes of score.

        Parameters
        ----------
        n
            Number of genotypes to draw, without repetition.
        seed
            The same rows for the same seed.
        """
        if not 1 <= n <= len(self):
            raise InputError(f"cannot draw {n} of {len(self)} genotypes")
        score = np.nan_to_num(self.column("score").astype(np.float64))
        edges = np.unique(np.quantile(score, np.linspace(0, 1, 11)[1:-1]))
        stratum = np.zeros(len(self), dtype=np.int64)
        for part in (
            self.codes("study"),
            self.codes("phenotype"),
            np.diff(self.offsets),
            self.column("sign").astype(np.int64) + 1,
            np.searchsorted(edges, score),
        ):
            stratum = stratum * (int(part.max()) + 1) + part
        # Evenly spaced ranks over rows ordered by stratum take from each its share.
        order = np.lexsort((np.random.default_rng(seed).permutation(len(self)), stratum))
        ranks = np.floor((np.arange(n) + 0.5) * len(self) / n).astype(np.int64)
        return self.take(np.sort(order[ranks]))

    def merge(self, how: Merge) -> Screen:
        """Return one row for each set of genes and phenotype.

        Parameters
        ----------
        how
            ``mean`` or ``median`` of the scores, the p-value then missing; or ``best-p``, the row
            with the smallest p-value. Everything that cannot be averaged (roles, alleles, study)
            is that of the first row.
        """
        from deltacell.screen.merge import merged

        return merged(self, how)

    def on(self, cell: Cell, *, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Return the screen over the genes of a cell, so that its indices are the cell's.

        Parameters
        ----------
        cell
            The wild type.
        on_unknown
            What to do with genotypes of genes that the cell does not have.
        """
        if cell.genes.systematic == self.genes.systematic:
            return self._with(genes=cell.genes)
        new_index = cell.genes.resolve(self.genes.systematic).index
        gene = new_index[self.genotypes.genes.numpy()]
        owner = self.genotypes.owner.numpy()
        known: Bools = np.ones(len(self), dtype=bool)
        known[owner[gene < 0]] = False
        twice = known & repeats_a_gene(gene, self.offsets)
        if on_unknown == "error" and not known.all():
            absent = self.genes[int(self.genotypes.genes[int(np.argmax(gene < 0))])]
            raise InputError(
                f"{int((~known).sum()):,} of {len(self):,} genotypes delete a gene that the cell "
                f"does not have, first '{absent}'",
                fix="Drop them with screen.on(cell, on_unknown='drop').",
            )
        if on_unknown == "error" and twice.any():
            first = self.genotypes.genes.numpy()[owner == np.argmax(twice)]
            raise InputError(
                f"{' and '.join(self.genes[i] for i in first)} delete one gene of the cell twice",
                fix="Drop such genotypes with screen.on(cell, on_unknown='drop').",
            )
        kept = known & ~twice
        if not kept.any():
            raise InputError("the cell has the genes of no genotype of the screen")
        screen = self.take(kept)
        deleted = screen.deleted.set_column(0, "gene", pa.array(gene[kept[owner]], pa.int32()))
        dropped = {UNKNOWN_GENE: int((~known).sum()), ONE_GENE_TWICE: int(twice.sum())}
        lost = Counts(len(self), int(kept.sum()), dropped)
        note = Source("", "", "Screen.on", lost, "cell")
        return screen._with(
            genes=cell.genes,
            deleted=deleted,
            coverage=self.coverage.renumbered(new_index),
            sources=[*self.sources, note] if lost.dropped else self.sources,
        )

    def query(self, sql: str) -> pl.DataFrame:
        """Run SQL on the memory-mapped columns.

        Parameters
        ----------
        sql
            Over the tables ``screen``, one row a genotype with its genes as a list of names, and
            ``deleted``, one row a deleted gene.
        """
        from deltacell.screen.query import query

        return query(self, sql)

    def stats(self) -> dict[str, Any]:
        """Return what the screen holds, in numbers."""
        return {
            **self._facts(),
            "sources": [s.to_json() for s in self.sources],
            "checksum": self.checksum,
        }

    def _facts(self) -> dict[str, Any]:
        score = self.column("score").astype(np.float64)
        scored = score[np.isfinite(score)]
        return {
            "genotypes": len(self),
            "distinct_genotypes": len(np.unique(self.keys)),
            "genes": len(np.unique(self.genotypes.genes.numpy())),
            "kinds": self._kinds(),
            "studies": _tally(self.column("study")),
            "phenotypes": _tally(self.column("phenotype")),
            "perturbations": _tally(self.gene_column("perturbation")),
            "score": {
                "known": len(scored),
                "mean": float(scored.mean()) if len(scored) else None,
                "standard_deviation": float(scored.std()) if len(scored) else None,
                "negative": int((self.column("sign") < 0).sum()),
                "positive": int((self.column("sign") > 0).sum()),
            },
            "coverage": [
                {
                    "study": c.study,
                    "queries": c.n_queries,
                    "array_genes": len(c.array_genes),
                    "complete": c.complete,
                }
                for c in self.coverage.studies
            ],
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the screen to a directory, all of it or nothing."""
        meta = {
            "sources": [s.to_json() for s in self.sources],
            "synthetic": self.synthetic_recipe,
            "stats": self._facts(),
        }
        store.write(path, "screen", self._parts(), meta, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Screen:
        """Open a screen; its columns are memory-mapped.

        Parameters
        ----------
        path
            The directory.
        verify
            Compare every part with its checksum first.
        """
        stored = store.read(path, "screen", verify=verify)
        screen = cls(
            Genes.from_arrow(stored.parts["genes"]),
            stored.parts["rows"],
            stored.parts["deleted"],
            Coverage.from_arrow(stored.parts),
            sources=[Source.from_json(s) for s in stored.meta["sources"]],
            synthetic=stored.meta["synthetic"],
        )
        screen.__dict__["checksum"] = stored.checksum
        screen.path = Path(path).absolute()
        if verify:
            screen.genotypes.check(len(screen.genes))
        return screen

    @cached_property
    def checksum(self) -> str:
        """Checksum of everything the screen holds, the same in memory and on disk."""
        return store.checksum(self._parts())

    def equals(self, other: Screen) -> bool:
        """Whether both hold the same genes, rows, alleles and coverage."""
        return self.checksum == other.checksum

    def to_polars(self) -> pl.DataFrame:
        """Return one row a genotype, its genes and their columns as lists."""
        from deltacell.screen.query import wide_table

        frame = pl.from_arrow(wide_table(self))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a genotype, its genes and their columns as lists."""
        from deltacell.screen.convert import to_pandas

        return to_pandas(self)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        cell: Cell,
        *,
        columns: Mapping[str, str] | None = None,
        study: str = "screen",
        phenotype: str | None = None,
        on_unknown: Literal["error", "drop"] = "error",
    ) -> Screen:
        """Make a screen of a data frame of pandas or polars, one row per measured genotype.

        The columns are understood as those of a file are: genes in ``gene1``, ``gene2``, … (or
        ``query`` and ``array``, or all in ``genes``, as lists or with semicolons between), a
        ``score``, and a ``p_value`` and a ``standard_deviation`` where there are such.

        Parameters
        ----------
        frame
            The data frame.
        cell
            The wild type whose genes the rows name, by any of their names.
        columns
            What columns are called here, by the names above: ``{"gene1": "Query ORF"}``.
        study
            What to call the study.
        phenotype
            ``interaction`` or ``fitness``; by the name of the score's column where not given.
        on_unknown
            What to do with a row of a gene that the cell does not have.
        """
        from deltacell.screen.convert import from_frame

        return from_frame(frame, cell, columns or {}, study, phenotype, on_unknown)

    def to_anndata(self) -> anndata.AnnData:
        """Return an AnnData with genotypes as observations and deleted genes as a sparse matrix."""
        from deltacell.screen.convert import to_anndata

        return to_anndata(self)

    def _repr_html_(self) -> str:
        from deltacell.report.data import print_data
        from deltacell.report.terminal import as_html

        return as_html(lambda: print_data({"screen": {**self.stats(), "sources": []}}, ""))

    def _kinds(self) -> dict[str, int]:
        sizes, counts = np.unique(np.diff(self.offsets), return_counts=True)
        return {kind_of(int(s)): int(n) for s, n in zip(sizes, counts, strict=True)}

    def _with(self, **changed: Any) -> Screen:
        parts: dict[str, Any] = {
            "genes": self.genes,
            "rows": self.rows,
            "deleted": self.deleted,
            "coverage": self.coverage,
            "sources": self.sources,
            "synthetic": self.synthetic_recipe,
        }
        return Screen(**(parts | changed))

    def _parts(self) -> dict[str, pa.Table]:
        return {
            "genes": self.genes.to_arrow(),
            "rows": _canonical(self.rows),
            "deleted": _canonical(self.deleted),
            **self.coverage.to_arrow(),
        }


def score_signs(score: AnyArray, phenotype: AnyArray) -> AnyArray:
    """Return the sign of each interaction score, and 0 for a fitness or a score not known."""
    signs = np.sign(np.nan_to_num(score.astype(np.float64)))
    return np.where(phenotype == "interaction", signs, 0).astype(np.int8)


def _values(column: pa.ChunkedArray) -> AnyArray:
    column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    values: AnyArray = column.to_numpy(zero_copy_only=False)
    return values


def _filled(value: Any, n: int) -> AnyArray:
    array = np.asarray(value)
    return np.full(n, value) if array.ndim == 0 else array


def _typed_table(values: Mapping[str, Any], schema: pa.Schema, n: int) -> pa.Table:
    columns = []
    for field in schema:
        value = values[field.name]
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not isinstance(value, pl.Series) and np.ndim(value) == 0:
            column = pa.repeat(pa.scalar(value, plain), n)
        else:
            arrow = (
                value.to_arrow()
                if isinstance(value, pl.Series)
                else pa.array(value, from_pandas=False)
            )
            column = arrow.cast(plain)
        if len(column) != n:
            raise InputError(f"column '{field.name}' has {len(column)} values, expected {n}")
        columns.append(column.cast(field.type) if plain != field.type else column)
    return pa.table(columns, schema=schema)


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with dictionaries written out, so that tables can be joined."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def _canonical(table: pa.Table) -> pa.Table:
    """Return the table with its dictionaries in order of first use, so that equal means equal."""
    return _plain(table).cast(table.schema).combine_chunks()


def _tally(values: AnyArray) -> dict[str, int]:
    names, counts = np.unique(values.astype(str), return_counts=True)
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}
