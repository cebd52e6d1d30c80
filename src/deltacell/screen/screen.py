"""What was measured: genotypes with their phenotypes and provenance."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import polars as pl
import pyarrow as pa
import torch

from deltacell import storage
from deltacell.base.arrays import AnyArray, Bools, Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError, check_type, need
from deltacell.base.files import JsonObject
from deltacell.cell import Cell, Genes
from deltacell.screen import hetero_data
from deltacell.screen.coverage import Coverage
from deltacell.screen.gene_keys import set_keys
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, sets_with
from deltacell.screen.hit_rule import LARGEST_P, HitOrigin, HitRule, LowMeaning
from deltacell.storage.provenance import UNKNOWN_GENE, Counts, Source
from deltacell.storage.sql import run_sql
from deltacell.storage.tables import frame_of

if TYPE_CHECKING:
    import anndata
    import pandas as pd
    from torch_geometric.data import HeteroData

Merge = Literal["mean", "median", "best-p"]

PERTURBATIONS = ("deletion", "ts", "damp", "allele")
KINDS = {1: "single", 2: "digenic", 3: "trigenic", 4: "tetragenic", 5: "pentagenic"}

#: Reasons to drop rows: a gene given twice, by one or two of its names; a score of one gene.
SAME_GENE_TWICE = "same gene twice"
ONE_GENE_TWICE = "same gene twice after aliases"
NO_INTERACTION = "one gene has no interaction"

#: One row per genotype. A missing number is NaN; a sign is -1, 1, or 0 if unknown.
ROW_SCHEMA = pa.schema(
    [
        ("score", pa.float32()),
        ("sign", pa.int8()),
        ("standard_deviation", pa.float32()),
        ("p_value", pa.float64()),
        ("query_fitness", pa.float32()),
        ("array_fitness", pa.float32()),
        ("phenotype", pa.dictionary(pa.int8(), pa.string())),
        ("study", pa.dictionary(pa.int16(), pa.string())),
        ("source_row", pa.int64()),
        ("replicates", pa.int32()),
        ("end", pa.int64()),
    ],
)
#: One row per deleted gene of a genotype.
GENE_SCHEMA = pa.schema(
    [
        ("gene", pa.int32()),
        ("role", pa.dictionary(pa.int8(), pa.string())),
        ("perturbation", pa.dictionary(pa.int8(), pa.string())),
        ("allele", pa.dictionary(pa.int32(), pa.string())),
    ],
)


def _schema(stored: pa.Schema) -> pl.Schema:
    # Nothing is computed, because Polars would start threads, which do not survive a fork.
    types = pl.Schema(stored)
    return pl.Schema({n: pl.String if t == pl.Categorical else t for n, t in types.items()})


#: The same columns in memory.
ROWS = _schema(ROW_SCHEMA)
DELETED = _schema(GENE_SCHEMA)

_LARGEST = float(np.finfo(np.float32).max)
#: The smallest and largest possible measurement, by column.
RANGES = {
    "score": (-_LARGEST, _LARGEST),
    "standard_deviation": (0.0, _LARGEST),
    "p_value": (0.0, 1.0),
    "query_fitness": (-_LARGEST, _LARGEST),
    "array_fitness": (-_LARGEST, _LARGEST),
}
_DEFAULTS = {
    **dict.fromkeys(RANGES, np.nan),
    **{"phenotype": "interaction", "study": "", "replicates": 1, "sign": 0},
    **{"role": "unknown", "perturbation": "deletion", "allele": ""},
}
#: The sign of an interaction's score; 0 for a fitness or an unknown score.
_SCORE_SIGN = pl.when(phenotype="interaction").then(pl.col("score").fill_nan(0).sign()).otherwise(0)
_FEW = 0.05  # the share of rows in a list of hits that may not look like hits
_READ_BACK = ("genes", "score", "p_value", "standard_deviation")


class ImpossibleValues(NamedTuple):
    """The values of a column that are out of range."""

    is_outside: Bools
    reason: str


def is_impossible(column: str, values: AnyArray) -> ImpossibleValues:
    """Return which values are out of range, and why; NaN, a missing value, is possible."""
    low, high = RANGES[column]
    is_outside = (values < low) | (values > high)
    return ImpossibleValues(is_outside, f"not between {low:g} and {high:g}")


class SqlTables(Protocol):
    """Tables that SQL can join, and the genes in them."""

    @property
    def genes(self) -> Genes: ...

    def query(self, sql: str) -> pl.DataFrame:
        """Run SQL on the tables."""


class Screen(storage.Storable):
    """Genotypes with their phenotypes, one row per measurement; repeats stay separate rows.

    `rows` has one row per genotype, with the columns of `ROWS`; `deleted` has one per deleted gene,
    with those of `DELETED`, and ``rows["end"]`` is where each genotype ends.
    """

    stored_as = "screen"
    made_from = ("genes", "rows", "deleted", "coverage", "sources", "stated_hits")

    def __init__(
        self,
        genes: Genes,
        rows: pl.DataFrame,
        deleted: pl.DataFrame,
        coverage: Coverage | None = None,
        *,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
        stated_hits: HitRule | None = None,
    ) -> None:
        self.genes = genes
        self.rows = rows.select(list(ROWS)).cast(ROWS)
        self.deleted = deleted.select(list(DELETED)).cast(DELETED)
        self.coverage = Coverage() if coverage is None else coverage
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        self.stated_hits = stated_hits  # None if only the scores tell what a hit is
        if not len(self):
            raise InputError("the screen is empty", code="empty-screen")

    @classmethod
    def build(
        cls,
        genes: Genes,
        genotypes: Genotypes,
        *,
        coverage: Coverage | None = None,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
        stated_hits: HitRule | None = None,
        **columns: Any,
    ) -> Screen:
        """Make a screen from genotypes and columns; by default a column is missing throughout.

        Columns are those of `ROWS` and `DELETED` except ``end`` and ``gene``: a sequence, or one
        value for all. ``sign`` defaults to that of an interaction's score; a fitness has none.
        """
        genotypes.check(len(genes))
        n_genotypes = len(genotypes)
        values: dict[str, Any] = {**_DEFAULTS, "source_row": np.arange(n_genotypes), **columns}
        for column in RANGES:
            _check_range(column, values[column])
        values["end"] = genotypes.offsets[1:].numpy()
        values["gene"] = genotypes.genes.numpy()
        try:
            rows = pl.DataFrame({name: values[name] for name in ROWS}, ROWS)
            deleted = pl.DataFrame({name: values[name] for name in DELETED}, DELETED)
        except pl.exceptions.ShapeError as error:
            n_genes = len(genotypes.genes)
            message = f"expected a value for each of {n_genotypes} genotypes or {n_genes} genes"
            raise InputError(f"{message}: {error}", code="column-length") from error
        if "sign" not in columns:
            rows = rows.with_columns(sign=_SCORE_SIGN)
        return cls(
            genes,
            rows,
            deleted,
            coverage,
            sources=sources,
            synthetic=synthetic,
            stated_hits=stated_hits,
        )

    @classmethod
    def synthetic(cls, cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
        """Return a synthetic screen on a synthetic cell; see `synthetic_screen`."""
        from deltacell.screen.synthetic import synthetic_screen

        return synthetic_screen(cell, n=n, seed=seed)

    @classmethod
    def concat(cls, screens: Iterable[Screen]) -> Screen:
        """Concatenate screens over the same genes."""
        screens = list(screens)
        ends = offsets_of(np.concatenate([np.diff(s.offsets) for s in screens]))[1:]
        return cls(
            screens[0].genes,
            pl.concat([s.rows for s in screens]).with_columns(end=ends),
            pl.concat([s.deleted for s in screens]),
            Coverage(tuple(chain.from_iterable(s.coverage.studies for s in screens))),
            sources=list(chain.from_iterable(s.sources for s in screens)),
            stated_hits=_shared_hits(screens),
        )

    def __len__(self) -> int:
        return self.rows.height

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in self._kinds().items())
        return f"Screen({len(self):,} genotypes: {kinds})"

    @cached_property
    def offsets(self) -> Ints:
        """Where each genotype begins in `deleted`, and the end."""
        return np.concatenate([[0], self.column("end")]).astype(np.int64)

    @cached_property
    def genotypes(self) -> Genotypes:
        """The sets of deleted genes, one per row."""
        genes = self.column("gene").astype(np.int64)
        return Genotypes(torch.from_numpy(genes), torch.from_numpy(self.offsets))

    @cached_property
    def keys(self) -> AnyArray:
        """A key per genotype, equal for the same set of genes."""
        return set_keys(self.genotypes.genes.numpy(), self.offsets, len(self.genes))

    @property
    def kind(self) -> list[str]:
        """How many genes each genotype deletes, in words: ``digenic``."""
        return [_kind(size) for size in np.diff(self.offsets).tolist()]

    def column(self, name: str) -> AnyArray:
        """Return a column of the rows, or of the deleted genes, as an array."""
        return (self.rows if name in ROWS else self.deleted)[name].to_numpy()

    def take(self, rows: Sequence[int] | AnyArray) -> Screen:
        """Return the genotypes at the given rows, or where a mask is true."""
        chosen = np.asarray(rows)
        if not len(chosen):
            chosen = chosen.astype(np.int64)
        index = np.arange(len(self))[chosen]
        sizes = np.diff(self.offsets)[index]
        entries = ragged_positions(self.offsets[:-1][index], sizes)
        taken = self.rows[index].with_columns(end=offsets_of(sizes)[1:])
        return self._with(rows=taken, deleted=self.deleted[entries])

    def where(self, **values: str | Sequence[str]) -> Screen:
        """Return the genotypes whose study, phenotype or kind has one of the given values."""
        rows = self.rows.select("study", "phenotype", kind=pl.Series(self.kind)).with_row_index()
        for name, wanted in values.items():
            if name not in ("study", "phenotype", "kind"):
                message = f"unknown column '{name}'; expected study, phenotype or kind"
                raise InputError(message, code="unknown-column")
            accepted = [wanted] if isinstance(wanted, str) else list(wanted)
            choices = sorted(set(rows[name]))
            rows = rows.filter(pl.col(name).is_in(accepted))
            if not len(rows):
                message = f"no genotype has the {name} {' or '.join(accepted)}"
                fix = f"Choose from {', '.join(choices)}."
                raise InputError(message, code="no-such-genotypes", fix=fix)
        screen = self.take(rows["index"].to_numpy())
        return screen._with(coverage=self.coverage.only(set(screen.rows["study"])))

    def subset(self, n: int, seed: int = 0) -> Screen:
        """Return n genotypes drawn at random, in their order."""
        if not 1 <= n <= len(self):
            raise InputError(f"cannot draw {n} of {len(self)} genotypes", code="invalid-number")
        drawn = np.random.default_rng(seed).permutation(len(self))[:n]
        return self.take(np.sort(drawn))

    def merge(self, how: Merge) -> Screen:
        """Return one row per set of genes and phenotype, in order of first appearance.

        Replicates are summed; roles, alleles and study are taken from the first row. ``mean`` and
        ``median`` are over the n rows that have a score; the standard deviation is
        sqrt(sum of sd^2) / n, and the p-value is missing. Without a score the sign is the one that
        all rows share, or none. ``best-p`` keeps the row with the smallest p-value, or the first
        of equals.
        """
        if how not in get_args(Merge):
            message = f"unknown merge '{how}'; expected {', '.join(get_args(Merge))}"
            raise InputError(message, code="unknown-merge")
        _, key = np.unique(self.keys, return_inverse=True)
        score = pl.col("score")
        sign = pl.col("sign")
        variance = pl.col("standard_deviation") ** 2
        known = score.is_not_nan()
        known_scores = score.filter(known)
        by_p = pl.col("row").sort_by(pl.col("p_value").fill_nan(np.inf), maintain_order=True)
        deviation = variance.filter(known).sum().sqrt() / known.sum()
        merged = (
            self.rows.with_columns(pl.col("score", "standard_deviation").cast(pl.Float64), key=key)
            .with_row_index("row")
            .group_by("key", "phenotype", maintain_order=True)
            .agg(
                pl.col("replicates").sum(),
                row=(by_p if how == "best-p" else pl.col("row")).first(),
                score=known_scores.mean() if how == "mean" else known_scores.median(),
                # The NaN of 0 / 0 has other bits than NumPy's, and so another checksum.
                standard_deviation=deviation.fill_nan(np.nan),
                sign=pl.when(sign.n_unique() == 1).then(sign.first()).otherwise(0),
                p_value=np.nan,
            )
            # The sign is that of the score as it is stored: a tiny mean is rounded to 0.
            .with_columns(score.cast(pl.Float32))
            .with_columns(
                score.fill_null(np.nan),
                sign=pl.when(score.is_null()).then(sign).otherwise(_SCORE_SIGN),
            )
        )
        chosen = self.take(merged["row"].to_numpy())
        averaged = [] if how == "best-p" else ["score", "standard_deviation", "sign", "p_value"]
        return chosen._with(rows=chosen.rows.with_columns(*merged.select("replicates", *averaged)))

    def on(self, cell: Cell, *, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Return the screen with the gene indices of a cell.

        Genotypes with genes that the cell lacks are an error, or dropped and counted.
        """
        if cell.genes.systematic == self.genes.systematic:
            return self._with(genes=cell.genes)
        new_index = cell.genes.resolve(self.genes.systematic)
        owner = self.genotypes.owner.numpy()
        gene = new_index[self.genotypes.genes.numpy()]
        is_known = ~sets_with(gene < 0, self.offsets)
        is_repeated = is_known & repeats_a_gene(gene, self.offsets)
        is_kept = is_known & ~is_repeated
        if not is_kept.all() and on_unknown == "error":
            raise self._not_on_cell(is_known, is_repeated)
        screen = self.take(is_kept)
        n_unknown = int((~is_known).sum())
        dropped = {UNKNOWN_GENE: n_unknown, ONE_GENE_TWICE: int(is_repeated.sum())}
        counts = Counts(len(self), int(is_kept.sum()), dropped)
        note = Source("", "", "Screen.on", counts, "cell")
        return screen._with(
            genes=cell.genes,
            deleted=screen.deleted.with_columns(gene=gene[is_kept[owner]]),
            coverage=self.coverage.renumbered(new_index),
            sources=[*self.sources, note] if counts.dropped else self.sources,
        )

    def _not_on_cell(self, is_known: Bools, is_repeated: Bools) -> InputError:
        """Return the error that genotypes have a gene that a cell lacks, or one gene twice."""
        all_known = is_known.all()
        row = int(np.argmax(is_repeated)) if all_known else int(np.argmin(is_known))
        names = " ".join(self.genes[i] for i in self.genotypes.genes.numpy()[self._entries(row)])
        n_lost = int((~is_known | is_repeated).sum())
        message = f"{n_lost:,} genotypes have a gene that the cell lacks, or one twice"
        return InputError(
            f"{message}; first {names}",
            code="gene-twice" if all_known else "unknown-gene",
            fix="Drop such genotypes with screen.on(cell, on_unknown='drop').",
        )

    def _entries(self, row: int) -> slice:
        """Return where the genes of a genotype are in `deleted`."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    @cached_property
    def hit_rule(self) -> HitRule:
        """What a hit is: as stated, or else by the scale of the scores, see `HitRule`."""
        if self.stated_hits is not None:
            return self.stated_hits
        score = self.column("score")
        phenotype = self.rows["phenotype"]
        return HitRule.of_scores(score, phenotype, only_hits=lists_only_hits(self))

    def with_hits(
        self,
        low: float | None = None,
        high: float | None = None,
        *,
        p: float = LARGEST_P,
        low_means: Literal["negative", "positive", "sick"] = "negative",
    ) -> Screen:
        """Return the screen with a definition of its hits.

        A hit has a score at or below ``low`` or at or above ``high``, and a p-value of at most
        ``p`` if p-values are known. A low score means a ``negative`` or a ``positive`` interaction,
        or a ``sick`` mutant if it is a fitness.
        """
        return self.stating(HitRule(low, high, p, LowMeaning(low_means)))

    def stating(self, rule: HitRule) -> Screen:
        """Return the screen with a rule for its hits."""
        return self._with(stated_hits=rule)

    def with_scores(self, scores: AnyArray) -> Screen:
        """Return the screen with other scores, [genotypes]."""
        return self._with(rows=self.rows.with_columns(score=np.asarray(scores)))

    def with_residuals(self, residuals: AnyArray) -> Screen:
        """Return the screen with scores less an expectation of them, [genotypes].

        These are interactions, also of a fitness. Splits and runs know a screen by its checksum,
        which stays that of the measured screen.
        """
        screen = self.with_scores(residuals)
        rule = self.stated_hits
        if rule is None or rule.low_means is LowMeaning.SICK:
            kind = pl.Series(["interaction"])
            rule = HitRule.of_scores(np.asarray(residuals), kind, only_hits=False)
        signs = screen.rows.with_columns(sign=_SCORE_SIGN)
        screen = screen._with(rows=signs, stated_hits=rule)
        screen.__dict__["checksum"] = self.checksum
        return screen

    def _facts(self) -> JsonObject:
        score = self.column("score").astype(np.float64)
        sign = self.column("sign")
        scored = score[np.isfinite(score)]
        return {
            "genotypes": len(self),
            "distinct_genotypes": len(np.unique(self.keys)),
            "genes": len(np.unique(self.genotypes.genes.numpy())),
            "kinds": self._kinds(),
            "studies": _tally(self.rows["study"]),
            "phenotypes": _tally(self.rows["phenotype"]),
            "perturbations": _tally(self.deleted["perturbation"]),
            "score": {
                "known": len(scored),
                "mean": float(scored.mean()) if len(scored) else None,
                "standard_deviation": float(scored.std()) if len(scored) else None,
                "negative": int((sign < 0).sum()),
                "positive": int((sign > 0).sum()),
            },
            "coverage": [study.to_json() for study in self.coverage.studies],
            "hits": self.hit_rule.to_json(),
        }

    def _kinds(self) -> dict[str, int]:
        """Return the number of genotypes by the number of their genes, in words."""
        sizes = Counter(np.diff(self.offsets).tolist())
        return {_kind(size): sizes[size] for size in sorted(sizes)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Screen:
        """Open a screen; its columns are memory-mapped."""
        stored = storage.read(path, "screen")
        screen = cls(
            Genes.from_arrow(stored.parts["genes"]),
            pl.DataFrame(stored.parts["rows"]),
            pl.DataFrame(stored.parts["deleted"]),
            Coverage.from_arrow(stored.parts),
        )
        screen.genotypes.check(len(screen.genes))
        screen.stated_hits = _stated_hits(stored.meta["stats"])
        return screen._loaded(path, stored)

    def query(self, sql: str) -> pl.DataFrame:
        """Run SQL on ``screen``, a row per genotype, and ``deleted``, a row per deleted gene."""
        tables = {"screen": self.to_polars().to_arrow(), "deleted": self._deleted().to_arrow()}
        return run_sql(tables, sql)

    def to_polars(self) -> pl.DataFrame:
        """Return one row per genotype, its genes and their columns as lists."""
        lists = self._deleted().group_by("row", maintain_order=True).all()
        lists = lists.rename({name: f"{name}s" for name in DELETED})
        lists.insert_column(1, pl.Series("kind", self.kind))
        return pl.concat([lists, self.rows.drop("end")], how="horizontal")

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per genotype, its genes and their columns as lists."""
        need("pandas", "A pandas table", "pandas")
        import pandas as pd

        return pd.DataFrame(self.to_polars().to_dict(as_series=False))

    @staticmethod
    def from_pandas(
        frame: Any,
        cell: Cell,
        *,
        columns: Mapping[str, str] | None = None,
        study: str = "screen",
        on_unknown: Literal["error", "drop"] = "error",
    ) -> Screen:
        """Make a screen from a pandas or polars data frame, one row per measured genotype.

        The columns are interpreted as in a file: genes in ``gene1``, ``gene2``, … (or ``query`` and
        ``array``, or all in ``genes``), a ``score`` or ``fitness``, and optionally a ``p_value``
        and a ``standard_deviation``; `columns` gives other names, as in ``{"gene1": "Query ORF"}``.
        """
        check_type(cell, Cell, "cell", "a Cell, as of Cell.load('data/cell')")
        if frame is None or isinstance(frame, str | bytes | os.PathLike | list | int | float):
            what = f"frame is a {type(frame).__name__}; expected a data frame of pandas or polars"
            fix = "Read the file first, or import its folder: deltacell data import FOLDER."
            raise InputError(what, code="wrong-type", fix=fix)
        return _screen_of_table(
            frame_of(frame, study), cell.genes, columns or {}, study, on_unknown
        )

    @staticmethod
    def from_query(
        tables: SqlTables,
        sql: str,
        cell: Cell | None = None,
        *,
        study: str = "query",
    ) -> Screen:
        """Return the result of SQL on the tables of an import as a screen to train on.

        The columns of the result are interpreted as those of a file, see `from_pandas`. The genes
        are those of the tables, or of a cell if one is given::

            knowledge = dc.Knowledge.load("data")
            hits = dc.Screen.from_query(knowledge, "select gene1, gene2, score from pairs")
        """
        genes = tables.genes if cell is None else cell.genes
        return _screen_of_table(tables.query(sql), genes, {}, study)

    def to_hetero_data(self, cell: Cell | None = None) -> HeteroData:
        """Return the genotypes as a PyG `HeteroData`, added to that of a cell if one is given.

        - ``data["gene"].name``: the genes, and all of `Cell.to_hetero_data` with a cell.
        - ``data["genotype"]``: ``phenotype`` [genotypes], the scores, with ``standard_deviation``
          and ``p_value``.
        - ``data["genotype", "deletes", "gene"].edge_index`` [2, deletions].
        """
        need("torch_geometric", "A HeteroData", "pyg")
        from torch_geometric.data import HeteroData

        screen = self if cell is None else self.on(cell)
        data = HeteroData() if cell is None else cell.to_hetero_data()
        data["gene"].num_nodes = len(screen.genes)
        data["gene"].name = list(screen.genes.systematic)
        return hetero_data.add_genotypes(data, screen)

    @classmethod
    def from_hetero_data(
        cls,
        data: HeteroData,
        *,
        study: str = "screen",
        phenotype: Literal["interaction", "fitness"] = "interaction",
    ) -> Screen:
        """Make a screen from a PyG `HeteroData` of `to_hetero_data` or of another program.

        It needs ``data["gene"].name`` or ``.node_ids``, the systematic names;
        ``data["genotype"].phenotype`` [genotypes], NaN where missing; and
        ``data["genotype", "deletes", "gene"].edge_index`` [2, deletions]. `standard_deviation` and
        `p_value` of the genotypes are read if they are there. The genes are those of the
        HeteroData; `on` gives them the order of a cell.
        """
        return hetero_data.screen_of(data, study=study, phenotype=phenotype)

    def to_anndata(self) -> anndata.AnnData:
        """Return an AnnData of genotypes (observations) and genes of the cell (variables).

        ``X`` [genotypes, genes] is sparse, 1 where a genotype deletes a gene.
        """
        need("anndata", "An AnnData", "anndata")
        import anndata
        import pandas as pd
        from scipy import sparse

        obs = self._parts()["rows"].drop_columns("end").to_pandas()
        obs["kind"] = pd.Categorical(self.kind)
        obs.index = obs.index.astype(str)
        standard = [name or "" for name in self.genes.standard]
        var = pd.DataFrame({"standard": standard}, index=list(self.genes.systematic))
        genes = self.genotypes.genes.numpy()
        ones = np.ones(len(genes), dtype=np.float32)
        shape = (len(self), len(self.genes))
        deleted = sparse.csr_matrix((ones, genes, self.offsets), shape=shape)
        deleted.sort_indices()
        return anndata.AnnData(deleted, obs=obs, var=var)

    def _deleted(self) -> pl.DataFrame:
        """Return `deleted` with the names of genes, and the ``row`` of each."""
        names = pl.Series(self.genes.systematic, dtype=pl.String).gather(self.deleted["gene"])
        owner = pl.Series("row", self.genotypes.owner.numpy())
        return self.deleted.with_columns(gene=names).insert_column(0, owner)

    def _parts(self) -> dict[str, pa.Table]:
        return {
            "genes": self.genes.to_arrow(),
            "rows": self.rows.to_arrow().cast(ROW_SCHEMA),
            "deleted": self.deleted.to_arrow().cast(GENE_SCHEMA),
            **self.coverage.to_arrow(),
        }


def _check_range(column: str, values: Any) -> None:
    """Raise if a value of a column, or the only one for all rows, is out of range."""
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    is_outside, reason = is_impossible(column, numbers)
    if is_outside.any():
        row = int(np.argmax(is_outside))
        message = f"'{column}' of row {row} is {numbers[row]:g}, {reason}"
        raise InputError(message, code="impossible-value", column=column, row=row)


def _readable_table(table: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """Return a table as it can be written to a file that readers of screens understand.

    Args:
        table: A table, or a result of `Screen.to_pandas`, of which lists other than the genes are
            not read back.
        columns: The name of a column in the table by the name that it should have.
    """
    for name, own_name in columns.items():
        if own_name not in table.columns:
            message = f"the table has no column '{own_name}'; it has {', '.join(table.columns)}"
            raise InputError(message, code="missing-column")
        table = table.rename({own_name: name})
    if not any(isinstance(kind, pl.List) for kind in table.dtypes):
        return table
    table = table.select(name for name in _READ_BACK if name in table.columns)
    return table.with_columns(pl.col("genes").cast(pl.List(pl.String)).list.join(";"))


def _screen_of_table(
    frame: pl.DataFrame,
    genes: Genes,
    columns: Mapping[str, str],
    study: str,
    on_unknown: Literal["error", "drop"] = "error",
) -> Screen:
    """Read a table as that of a file, so that column names mean the same."""
    from deltacell.screen.readers import tables

    table = _readable_table(frame, columns)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{study}.tsv"
        table.fill_nan(None).write_csv(path, separator="\t", null_value="NA")
        try:
            [written] = tables.reader.read(path, is_known=genes.is_known)
            screen: Screen = written.on(genes, on_unknown)
        except InputError as error:
            # The first line of the file is the header, and rows are counted from 0.
            place = f"row {error.line - 2} of the table: " if error.line else ""
            message = f"{place}{error.message}"
            raise InputError(message, code=error.code, fix=error.fix, **error.fields) from error
    return screen


def _stated_hits(stats: Mapping[str, Any]) -> HitRule | None:
    """Return what the directory of a screen states of its hits; None for a rule by the scores."""
    saved = stats.get("hits")  # screens of earlier versions have none
    if saved is None:
        return None
    rule = HitRule.from_json(saved)
    return rule if rule.origin in (HitOrigin.GIVEN, HitOrigin.FORMAT) else None


def _shared_hits(screens: Sequence[Screen]) -> HitRule | None:
    """Return the definition of hits that all screens state; None if they differ."""
    stated = {screen.stated_hits for screen in screens}
    return stated.pop() if len(stated) == 1 else None


def lists_only_hits(screen: Screen) -> bool:
    """Whether a screen is a list of hits, without tested pairs that are not hits.

    This is so if rows have signs and no score, or if no coverage is complete and all but a few
    p-values are at most `LARGEST_P` or, after a merge removed them, all but a few scores are
    farther from 0 than half the median distance.
    """
    score = screen.column("score").astype(np.float64)
    is_known = np.isfinite(score)
    if not is_known.any():
        return bool((screen.column("sign") != 0).any())
    studies = screen.coverage.studies
    has_only_interactions = (screen.rows["phenotype"] == "interaction").all()
    if not studies or any(study.complete for study in studies) or not has_only_interactions:
        return False
    p_value = screen.column("p_value")
    known_p_values = p_value[np.isfinite(p_value)]
    if len(known_p_values):
        is_unlike_a_hit = known_p_values > LARGEST_P
    else:
        distance = np.abs(score[is_known])
        is_unlike_a_hit = distance <= np.median(distance) / 2
    return bool(is_unlike_a_hit.mean() < _FEW)


def _kind(size: int) -> str:
    return KINDS.get(size, f"{size} genes")


def _tally(values: pl.Series) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
