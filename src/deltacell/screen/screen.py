"""What was measured: genotypes with their phenotypes, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

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
    KINDS,
    ONE_GENE_TWICE,
    ROW_SCHEMA,
    is_impossible,
)
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, set_keys

if TYPE_CHECKING:
    import anndata
    import pandas as pd

Merge = Literal["mean", "median", "best-p"]

_DEFAULTS = {
    **dict.fromkeys(
        ("score", "standard_deviation", "p_value", "query_fitness", "array_fitness"), np.nan
    ),
    "phenotype": "interaction",
    "study": "",
    "replicates": 1,
    "role": "unknown",
    "perturbation": "deletion",
    "allele": "",
}


class Screen:
    """Genotypes with their phenotypes, one row per measurement; repeats stay separate rows.

    Parameters
    ----------
    rows
        One row per genotype, with the columns of `ROW_SCHEMA`.
    deleted
        One row per deleted gene, with the columns of `GENE_SCHEMA`; ``rows["end"]`` says where each
        genotype ends.
    synthetic
        For a synthetic screen, what it was made with.
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
            raise InputError("the screen is empty: it has no genotype", code="empty-screen")

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
        genes, genotypes, coverage, sources, synthetic
            As in the class; the genotypes are checked.
        **columns
            Any column of `ROW_SCHEMA` or `GENE_SCHEMA` but ``end`` and ``gene``: a sequence, or one
            value for all. Without ``sign`` it is that of an interaction's score; a fitness has
            none.
        """
        genotypes.check(len(genes))
        n = len(genotypes)
        allowed = {*ROW_SCHEMA.names, *GENE_SCHEMA.names} - {"end", "gene"}
        unknown = sorted(set(columns) - allowed)
        if unknown:
            raise TypeError(f"a screen has no column {unknown}; it has {sorted(allowed)}")
        values: dict[str, Any] = {**_DEFAULTS, "source_row": np.arange(n), **columns}
        for column, why in IMPOSSIBLE.items():
            numbers = np.atleast_1d(np.asarray(values[column], dtype=np.float64))
            wrong = is_impossible(column, numbers)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise InputError(
                    f"'{column}' of row {row} is {numbers[row]:g}, which is {why}",
                    code="impossible-value",
                    column=column,
                    row=row,
                )
        if "sign" not in values:
            score, phenotype = (
                np.full(n, v) if np.ndim(v) == 0 else np.asarray(v)
                for v in (values["score"], values["phenotype"])
            )
            values["sign"] = _score_signs(score, phenotype)
        values["end"], values["gene"] = genotypes.offsets[1:].numpy(), genotypes.genes.numpy()
        rows = _typed_table(values, ROW_SCHEMA, n)
        deleted = _typed_table(values, GENE_SCHEMA, len(genotypes.genes))
        return cls(genes, rows, deleted, coverage, sources=sources, synthetic=synthetic)

    @classmethod
    def synthetic(cls, cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
        """Return a synthetic screen on a synthetic cell; see `synthetic_screen`."""
        from deltacell.screen.synthetic import synthetic_screen

        return synthetic_screen(cell, n=n, seed=seed)

    @classmethod
    def concat(cls, screens: Iterable[Screen]) -> Screen:
        """Return several screens over the same genes as one."""
        screens = list(screens)
        if not screens:
            raise InputError("no screen was given", code="empty-screen")
        if any(s.genes.systematic != screens[0].genes.systematic for s in screens):
            raise InputError(
                "the screens are over different genes",
                code="other-genes",
                fix="Bring each onto one cell: screen.on(cell)",
            )
        ends = offsets_of(np.concatenate([np.diff(s.offsets) for s in screens]))[1:]
        return cls(
            screens[0].genes,
            _replaced(pa.concat_tables([_plain(s.rows) for s in screens]), end=ends),
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
        genes = self.gene_column("gene").astype(np.int64)
        return Genotypes(torch.from_numpy(genes), torch.from_numpy(self.offsets))

    @property
    def kind(self) -> list[str]:
        """What each genotype is: digenic, trigenic, …."""
        return [kind_of(size) for size in np.diff(self.offsets).tolist()]

    def column(self, name: str) -> AnyArray:
        """Return a column of the rows as an array."""
        return _values(self.rows[name])

    def codes(self, name: str) -> Ints:
        """Return a number per row, equal for equal texts of a column and in their order."""
        texts = pl.Series(self.rows[name].combine_chunks()).cast(pl.String)
        codes: Ints = texts.rank("dense").to_numpy().astype(np.int64) - 1
        return codes

    def gene_column(self, name: str) -> AnyArray:
        """Return a column of the deleted genes as an array."""
        return _values(self.deleted[name])

    @cached_property
    def keys(self) -> AnyArray:
        """A key per genotype, equal for the same set of genes."""
        return set_keys(self.genotypes.genes.numpy(), self.offsets, len(self.genes))

    def take(self, rows: Sequence[int] | AnyArray) -> Screen:
        """Return the genotypes at the given rows, or where a mask is true."""
        index = np.asarray(rows)
        if index.dtype == bool and len(index) != len(self):
            raise InputError(
                f"a mask of {len(index)} values for {len(self)} genotypes", code="mask-length"
            )
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        sizes = np.diff(self.offsets)[index]
        at = ragged_positions(self.offsets[:-1][index], sizes)
        return self._with(
            rows=_replaced(self.rows.take(pa.array(index)), end=offsets_of(sizes)[1:]),
            deleted=self.deleted.take(pa.array(at)),
        )

    def where(self, **values: str | Sequence[str]) -> Screen:
        """Return the genotypes whose study, phenotype or kind has one of the given values."""
        chosen: Bools = np.ones(len(self), dtype=bool)
        for name, wanted in values.items():
            if name not in ("study", "phenotype", "kind"):
                raise InputError(
                    f"cannot choose by '{name}'; by study, phenotype or kind", code="unknown-column"
                )
            there = np.array(self.kind) if name == "kind" else self.column(name).astype(str)
            accepted = [wanted] if isinstance(wanted, str) else list(wanted)
            chosen &= np.isin(there, accepted)
            if not chosen.any():
                raise InputError(
                    f"no genotype has the {name} {' or '.join(accepted)}; there are "
                    f"{', '.join(sorted(set(there)))}",
                    code="no-such-genotypes",
                )
        screen = self.take(chosen)
        return screen._with(coverage=self.coverage.only(set(screen.column("study"))))

    def subset(self, n: int, seed: int = 0) -> Screen:
        """Return `n` rows with about the same mixture of studies, kinds, signs and scores."""
        if not 1 <= n <= len(self):
            raise InputError(f"cannot draw {n} of {len(self)} genotypes", code="invalid-number")
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
        """Return one row per set of genes and phenotype, in order of first appearance.

        Replicates are added up; what cannot be averaged (roles, alleles, study) is that of the
        first row.

        Parameters
        ----------
        how
            ``mean`` or ``median`` over the n rows that have a score: the standard deviation is that
            of their mean, sqrt(sum of sd^2) / n, missing where one of them is, and the p-value is
            missing. The sign is that of the score; without a score it is the one that all rows
            share, or none. ``best-p`` keeps the row with the smallest p-value, a missing one
            counting as the largest and the earlier row winning a tie.
        """
        if how not in get_args(Merge):
            raise InputError(
                f"cannot merge by '{how}'; by {', '.join(get_args(Merge))}", code="unknown-merge"
            )
        _, key = np.unique(self.keys, return_inverse=True)
        phenotype = self.codes("phenotype")
        _, first, group = np.unique(
            key * (phenotype.max() + 1) + phenotype, return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        first, group = first[order], np.argsort(order)[group]
        replicates = np.bincount(group, self.column("replicates")).astype(np.int32)
        if how == "best-p":
            p = self.column("p_value")
            by_p = np.lexsort((np.where(np.isnan(p), np.inf, p), group))
            chosen = self.take(by_p[np.flatnonzero(np.diff(group[by_p], prepend=-1))])
            return chosen._with(rows=_replaced(chosen.rows, replicates=replicates))
        columns = _averaged(self, first, group, how)
        chosen = self.take(first)
        return chosen._with(rows=_replaced(chosen.rows, replicates=replicates, **columns))

    def on(self, cell: Cell, *, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Return the screen over the genes of a cell, so that its indices are the cell's.

        Genotypes with genes that the cell does not have are an error, or dropped and counted.
        """
        if cell.genes.systematic == self.genes.systematic:
            return self._with(genes=cell.genes)
        new_index = cell.genes.resolve(self.genes.systematic).index
        old, owner = self.genotypes.genes.numpy(), self.genotypes.owner.numpy()
        gene = new_index[old]
        known: Bools = np.ones(len(self), dtype=bool)
        known[owner[gene < 0]] = False
        twice = known & repeats_a_gene(gene, self.offsets)
        drop = "Drop such genotypes with screen.on(cell, on_unknown='drop')."
        if on_unknown == "error" and not known.all():
            raise InputError(
                f"{int((~known).sum()):,} of {len(self):,} genotypes delete a gene that the cell "
                f"does not have, first '{self.genes[int(old[np.argmax(gene < 0)])]}'",
                code="unknown-gene",
                fix=drop,
            )
        if on_unknown == "error" and twice.any():
            names = " and ".join(self.genes[i] for i in old[owner == np.argmax(twice)])
            raise InputError(
                f"{names} delete one gene of the cell twice", code="gene-twice", fix=drop
            )
        kept = known & ~twice
        if not kept.any():
            raise InputError(
                "the cell has the genes of no genotype of the screen", code="empty-screen"
            )
        screen = self.take(kept)
        dropped = {UNKNOWN_GENE: int((~known).sum()), ONE_GENE_TWICE: int(twice.sum())}
        lost = Counts(len(self), int(kept.sum()), dropped)
        note = Source("", "", "Screen.on", lost, "cell")
        return screen._with(
            genes=cell.genes,
            deleted=_replaced(screen.deleted, gene=gene[kept[owner]]),
            coverage=self.coverage.renumbered(new_index),
            sources=[*self.sources, note] if lost.dropped else self.sources,
        )

    def query(self, sql: str) -> pl.DataFrame:
        """Run SQL on the memory-mapped columns.

        Parameters
        ----------
        sql
            Over the tables ``screen``, one row per genotype with its genes as a list of names, and
            ``deleted``, one row per deleted gene.
        """
        from deltacell.screen.convert import query

        return query(self, sql)

    def stats(self) -> dict[str, Any]:
        """Return what the screen holds, in numbers."""
        sources = [s.to_json() for s in self.sources]
        return {**self._facts(), "sources": sources, "checksum": self.checksum}

    def _facts(self) -> dict[str, Any]:
        score, sign = self.column("score").astype(np.float64), self.column("sign")
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
                "negative": int((sign < 0).sum()),
                "positive": int((sign > 0).sum()),
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
        """Open a screen; its columns are memory-mapped."""
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
        """Return one row per genotype, its genes and their columns as lists."""
        from deltacell.screen.convert import wide_table

        frame = pl.from_arrow(wide_table(self))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per genotype, its genes and their columns as lists."""
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
        ``score``, and a ``p_value`` and a ``standard_deviation`` if there are any.

        Parameters
        ----------
        cell
            The wild type whose genes the rows name, by any of their names.
        columns
            What columns are called here, by the names above: ``{"gene1": "Query ORF"}``.
        phenotype
            ``interaction`` or ``fitness``; by default according to the name of the score's column.
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

    def with_scores(self, scores: AnyArray) -> Screen:
        """Return the screen with other scores, such as the residuals of a predictor."""
        at = self.rows.schema.get_field_index("score")
        column = pa.array(np.asarray(scores, dtype=np.float32))
        return self._with(rows=self.rows.set_column(at, self.rows.schema.field(at), column))

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
        # Dictionaries in order of first use, so that equal screens have equal checksums.
        rows, deleted = (
            _plain(table).cast(table.schema).combine_chunks() for table in (self.rows, self.deleted)
        )
        genes = self.genes.to_arrow()
        return {"genes": genes, "rows": rows, "deleted": deleted, **self.coverage.to_arrow()}


def kind_of(size: int) -> str:
    """Return what a genotype with so many deleted genes is called."""
    return KINDS.get(size, f"{size} genes")


def _score_signs(score: AnyArray, phenotype: AnyArray) -> AnyArray:
    """Return the sign of each interaction score, and 0 for a fitness or a score not known."""
    signs = np.sign(np.nan_to_num(score.astype(np.float64)))
    return np.where(phenotype == "interaction", signs, 0).astype(np.int8)


def _averaged(screen: Screen, first: Ints, group: Ints, how: Merge) -> dict[str, AnyArray]:
    n = len(first)
    score = screen.column("score").astype(np.float64)
    known = np.isfinite(score)
    score, owner = score[known], group[known]
    size = np.bincount(owner, minlength=n)
    there = size > 0
    centre, of_mean = np.full(n, np.nan), np.full(n, np.nan)
    if how == "mean":
        centre[there] = np.bincount(owner, score, n)[there] / size[there]
    else:
        ordered, start = score[np.lexsort((score, owner))], np.cumsum(size) - size
        low = ordered[(start + (size - 1) // 2)[there]]
        high = ordered[(start + size // 2)[there]]
        centre[there] = low + (high - low) / 2
    # A missing deviation makes the sum missing, as it should.
    deviation = screen.column("standard_deviation").astype(np.float64)[known]
    of_mean[there] = np.sqrt(np.bincount(owner, deviation**2, n))[there] / size[there]
    sign = screen.column("sign")
    low, high = np.ones(n, dtype=np.int8), -np.ones(n, dtype=np.int8)
    np.minimum.at(low, group, sign)
    np.maximum.at(high, group, sign)
    shared = np.where(low == high, low, 0)
    signs = _score_signs(centre, screen.column("phenotype")[first])
    return {
        "score": centre.astype(np.float32),
        "standard_deviation": of_mean.astype(np.float32),
        "p_value": np.full(n, np.nan),
        "sign": np.where(there, signs, shared).astype(np.int8),
    }


def _values(column: pa.ChunkedArray) -> AnyArray:
    column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    values: AnyArray = column.to_numpy(zero_copy_only=False)
    return values


def _replaced(table: pa.Table, **columns: AnyArray) -> pa.Table:
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    return table


def _typed_table(values: Mapping[str, Any], schema: pa.Schema, n: int) -> pa.Table:
    columns = []
    for field in schema:
        value = values[field.name]
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if isinstance(value, pl.Series):
            column = value.to_arrow().cast(plain)
        elif np.ndim(value) == 0:
            column = pa.repeat(pa.scalar(value, plain), n)
        else:
            column = pa.array(value, from_pandas=False).cast(plain)
        if len(column) != n:
            raise InputError(
                f"column '{field.name}' has {len(column)} values, expected {n}",
                code="column-length",
                column=field.name,
            )
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with dictionaries written out, so that tables can be joined."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def _tally(values: AnyArray) -> dict[str, int]:
    names, counts = np.unique(values.astype(str), return_counts=True)
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}
