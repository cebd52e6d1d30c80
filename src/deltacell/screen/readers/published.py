"""The tables of published yeast screens: Costanzo 2010 and 2016, Kuzmin 2018 and 2020, hit lists.

A strain ID such as ``YKL051W+YDL227C_tm3059`` is one ORF or several joined by ``+``, then ``_`` and
the strain's number in its collection, whose letters tell how the gene is perturbed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Ints, offsets_of, ragged_positions
from deltacell.cell.readers.names import header_of
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.columns import HO, KINDS
from deltacell.screen.readers.written import (
    NO_SCORE,
    WrittenScreen,
    deleted_genes,
    one_of,
    refuse_empty,
)
from deltacell.table import Table, open_workbook, read_table

#: How the strains of a collection are perturbed. Of all others the allele's name decides.
COLLECTIONS = {
    **{"tsq": "ts", "tsa": "ts", "damp": "damp"},
    **{"sn": "deletion", "dma": "deletion", "s": "allele"},
}

#: Why a row is dropped that crosses the control locus alone with the array: its interaction score
#: is of one gene. Its fitness is the array gene's, and is kept.
CONTROL_ALONE = "control locus alone as query"

#: Name of Kuzmin 2020's workbook inside the zip that the journal hands out, which holds thirteen.
WORKBOOK = r"table[-_ ]?s1\.xlsx$"

_DELTA = r"(?i)(?:\u0394|\u2206|delta)$"
# A bare gene name in lower case (vam3, rpl26a, arg5,6, ygr242w, yfl034c-b) stands for its deletion.
_BARE_NAME = r"^(?:[a-z]{3}\d+(?:,\d+)?[a-d]?|y[a-p][lr]\d{3}[wc](?:-[a-z])?|q\d{4})$"
_ORF = re.compile(r"[YQ][A-Z0-9]+(-[A-Z])?(_[A-Za-z]+\d*)?", re.ASCII)


@dataclass(frozen=True)
class Reader:
    """The reader of one published format."""

    NAME: str
    recognise: Callable[[Sequence[str], str], bool]  # by the first lines and the file's name
    read: Callable[..., WrittenScreen]  # (path, *, study=None, phenotype=None)


@dataclass(frozen=True)
class SgaColumns:
    """What the columns of crosses are called; all but the strains and a score may be missing."""

    query: str = "Query strain ID"
    array: str = "Array strain ID"
    query_allele: str = "Query allele name"
    array_allele: str = "Array allele name"
    interaction: str = "Adjusted genetic interaction score (epsilon or tau)"
    p_value: str = "P-value"
    fitness: str = "Combined mutant fitness"
    fitness_deviation: str = "Combined mutant fitness standard deviation"
    query_fitness: str = "Query single/double mutant fitness"
    array_fitness: str = "Array single mutant fitness"


_2018 = SgaColumns()
_2020 = SgaColumns(
    fitness="Double/triple mutant fitness",
    fitness_deviation="Double/triple mutant fitness standard deviation",
)
_2016 = SgaColumns(
    query="Query Strain ID",
    array="Array Strain ID",
    interaction="Genetic interaction score (\u03b5)",
    fitness="Double mutant fitness",
    fitness_deviation="Double mutant fitness standard deviation",
    query_fitness="Query single mutant fitness (SMF)",
    array_fitness="Array SMF",
)
_2010 = (
    *("query ORF", "query gene", "array ORF", "array gene"),
    *("epsilon", "standard deviation", "p-value"),
)
_2016_PANEL = "Arraytype/Temp"
_TRIGENIC_HITS = ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows")
_DIGENIC_HITS = ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign")
# A pair that was a hit in both directions has no sign.
_SIGNS = {"negative": -1, "positive": 1, "both": 0}


def _is_kuzmin(head: Sequence[str], file_name: str) -> bool:
    """Whether the first lines have the strain columns and a score or a fitness."""
    cells = {cell.strip() for line in head[:3] for cell in line.split("\t")}
    scores = {_2018.interaction, _2018.fitness, _2020.fitness}
    return cells.issuperset({_2018.query, _2018.array}) and not cells.isdisjoint(scores)


def _read_kuzmin(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read crosses of query strains with two genes, of which HO stands for no gene.

    Text, a workbook, or the journal's zip of workbooks; a part of the columns is enough.
    """
    workbook = open_workbook(path, WORKBOOK)
    strains = (_2018.query, _2018.array)
    table = read_table(path, required=strains) if workbook is None else workbook.table(strains)
    of_2020 = _2020.fitness in table.frame.columns
    study = study or ("kuzmin2020" if of_2020 else "kuzmin2018")
    columns = _2020 if of_2020 else _2018
    written = _read_crosses(table, columns, "kuzmin", study, phenotype, control=HO)
    if "Combined mutant type" not in table.frame.columns:
        return written
    called = table.strings("Combined mutant type").gather(written.rows)
    called = called.str.strip_chars().str.to_lowercase()
    kinds = pl.Series(np.diff(written.offsets)).replace_strict(KINDS, default="")
    differ = int(((called != "") & (called != kinds)).sum())
    return replace(written, notes={"combined_type_differs": differ}) if differ else written


def _is_costanzo2016(head: Sequence[str], file_name: str) -> bool:
    needed = {_2016.query, _2016.array, _2016.interaction, _2016_PANEL}
    return needed <= set(header_of(head, "\t"))


def _read_costanzo2016(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    table = read_table(path, required=[_2016.query, _2016.array, _2016_PANEL])
    # The two temperatures (DMA26, DMA30) are one array: what was crossed is the same.
    panel = table.strings(_2016_PANEL).str.extract(r"^\s*([A-Za-z]*)")
    study = study or "costanzo2016"
    return _read_crosses(table, _2016, "costanzo2016", study, phenotype, panel=panel)


def _is_costanzo2010(head: Sequence[str], file_name: str) -> bool:
    """Whether one of the first lines is two ORFs with their names, then three numbers.

    A header or a damaged line above it does not hide the file from the reader, which names them.
    """
    rows = [header_of([line], "\t") for line in head if line.strip()]
    return any(
        len(row) == len(_2010)
        and all(_ORF.fullmatch(row[i]) for i in (0, 2))
        and all(map(_is_float, row[4:]))
        for row in rows[:3]
    )


def _read_costanzo2010(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a list of digenic hits: seven columns without a header."""
    table = read_table(path, columns=_2010)
    first = table.frame.row(0)
    if all(field.strip() and not _is_float(field) for field in first[4:]):
        raise table.error(
            0,
            f"a header was found where none belongs: {', '.join(first)}",
            f"Remove the line; this format has no header and the columns {', '.join(_2010)}.",
        )
    phenotype = _checked_phenotype(phenotype, {"interaction": "epsilon"}, table)

    def strains(role: str) -> Strains:
        # The second name is a gene's for a deletion, without suffix, and an allele's for the rest.
        orf = table.strings(f"{role} ORF")
        suffixed = orf.str.contains("_", literal=True)
        allele = table.frame.select(pl.when(suffixed).then(f"{role} gene").otherwise(pl.lit("")))
        return parse_strains(orf, allele.to_series())

    rows = np.arange(len(table))
    deleted, offsets = crossed(strains("query"), strains("array"), rows)
    numbers = {
        "score": table.floats("epsilon"),
        "standard_deviation": table.floats("standard deviation", missing=True),
        "p_value": table.floats("p-value", missing=True),
    }
    name = "costanzo2010"
    return WrittenScreen(table, rows, deleted, offsets, name, study or name, phenotype, numbers)


def _is_hits(head: Sequence[str], file_name: str) -> bool:
    cells = set(header_of(head, "\t"))
    return cells.issuperset(_TRIGENIC_HITS) or cells.issuperset(_DIGENIC_HITS)


def _read_hits(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a list of Kuzmin 2018 hits: gene sets and the sign of their interaction.

    Trigenic hits are negative, as the study reported no others. Which gene was the query's is not
    given, so nothing follows about what else was tested.
    """
    table = read_table(path, required=["orf1", "orf2", "allele1", "allele2"])
    if phenotype not in (None, "interaction"):
        raise PhenotypeError(
            f"a list of hits has signs of interactions and no '{phenotype}'",
            code="missing-phenotype",
            where=table.path,
        )
    refuse_empty(table)
    n = 3 if "orf3" in table.frame.columns else 2
    expected = _TRIGENIC_HITS if n == 3 else _DIGENIC_HITS
    absent = [name for name in expected if name not in table.frame.columns]
    if absent:
        raise InputError(
            f"the header lacks {', '.join(absent)}", code="missing-column", where=table.path, line=1
        )
    sign: AnyArray = np.full(len(table), -1, dtype=np.int8)
    if n == 3:
        replicates = table.floats("n_rows")
    else:
        written = table.strings("sign").str.strip_chars().str.to_lowercase()
        one_of(written, list(_SIGNS), "sign", table)
        sign = written.replace_strict(_SIGNS, return_dtype=pl.Int8).to_numpy()
        replicates = table.floats("n_negative_rows") + table.floats("n_positive_rows")

    def interleaved(column: str) -> pl.Series:
        lists = pl.concat_list(pl.col(f"{column}{i}").str.strip_chars() for i in range(1, n + 1))
        return table.frame.select(lists).to_series().explode()

    allele = interleaved("allele")
    perturbation = pl.select(perturbation_of(pl.lit(allele))).to_series()
    return WrittenScreen(
        table,
        np.arange(len(table)),
        deleted_genes(interleaved("orf"), perturbation=perturbation, allele=allele),
        np.arange(0, n * len(table) + 1, n),
        "hits",
        study or "kuzmin2018",
        numbers={"sign": sign, "replicates": replicates.astype(np.int32)},
    )


kuzmin = Reader("kuzmin", _is_kuzmin, _read_kuzmin)
costanzo2016 = Reader("costanzo2016", _is_costanzo2016, _read_costanzo2016)
costanzo2010 = Reader("costanzo2010", _is_costanzo2010, _read_costanzo2010)
hits = Reader("hits", _is_hits, _read_hits)


def _read_crosses(
    table: Table,
    columns: SgaColumns,
    reader: str,
    study: str,
    phenotype: str | None,
    *,
    control: str = "",
    panel: pl.Series | None = None,
) -> WrittenScreen:
    """Return the crosses of a table of query strains with array strains.

    The standard deviation that such files give is that of the combined mutant's fitness, so that
    of an interaction score is missing. The p-value is that of the interaction in either case.
    `control` in a query strain stands for no gene.
    """
    refuse_empty(table)
    score_columns = {"interaction": columns.interaction, "fitness": columns.fitness}
    phenotype = _checked_phenotype(phenotype, score_columns, table)
    there = table.frame.columns
    scored = table.strings(score_columns[phenotype]).str.strip_chars() != ""
    rows = np.flatnonzero(scored.to_numpy())
    dropped = {NO_SCORE: len(table) - len(rows)}

    def strains(column: str, allele: str, without: str = "") -> Strains:
        alleles = table.strings(allele) if allele in there else None
        return parse_strains(table.strings(column), alleles, without)

    query = strains(columns.query, columns.query_allele, control)
    array = strains(columns.array, columns.array_allele)
    alone = query.sizes[rows] == 0
    part = Table(table.frame[rows], table.path, table.lines[rows], table.sha256)
    score = part.floats(score_columns[phenotype])
    if control and phenotype == "interaction" and alone.any():
        dropped[CONTROL_ALONE] = int(alone.sum())
        rows, score = rows[~alone], score[~alone]
    numbers: dict[str, AnyArray | float] = {"score": score}
    for name, column in (
        ("standard_deviation", columns.fitness_deviation if phenotype == "fitness" else ""),
        ("p_value", columns.p_value),
        ("query_fitness", columns.query_fitness),
        ("array_fitness", columns.array_fitness),
    ):
        if column in there:
            numbers[name] = table.floats(column, missing=True)[rows]
    deleted, offsets = crossed(query, array, rows)
    return WrittenScreen(
        table,
        rows,
        deleted,
        offsets,
        reader,
        study,
        phenotype,
        numbers,
        panel=None if panel is None else panel.gather(rows),
        dropped=dropped,
        complete_coverage=True,
    )


def _checked_phenotype(phenotype: str | None, columns: dict[str, str], table: Table) -> str:
    """Return the phenotype to read: the one asked for, or the first that the file has."""
    there = [name for name, column in columns.items() if column in table.frame.columns]
    if phenotype is None and there:
        return there[0]
    if phenotype in there:
        return phenotype
    line = int(table.lines[0]) - 1 if phenotype is None or phenotype in columns else None
    wanted = [columns[phenotype]] if phenotype in columns else list(columns.values())
    raise (InputError if phenotype is None else PhenotypeError)(
        f"no phenotype '{phenotype or ' or '.join(columns)}' can be read: it would be in a column "
        f"{' or '.join(map(repr, wanted))}, and there are {', '.join(table.frame.columns)}",
        code="missing-phenotype",
        where=table.path,
        line=line,
    )


class Strains(NamedTuple):
    """Distinct strains with the genes they delete, and which strain each row of a file used."""

    deleted: pl.DataFrame  # name, perturbation and allele of the genes of all strains
    offsets: Ints
    which: Ints

    @property
    def sizes(self) -> Ints:
        """Number of deleted genes of each row's strain."""
        return np.diff(self.offsets)[self.which]


def parse_strains(strain: pl.Series, allele: pl.Series | None = None, without: str = "") -> Strains:
    """Parse a column of strain IDs, leaving out the gene `without`.

    Allele names are joined by ``+`` as the genes are; those that do not match the genes one to one
    are left out.
    """
    written = pl.DataFrame(
        {
            "strain": strain.str.strip_chars(),
            "allele": pl.repeat("", len(strain), eager=True) if allele is None else allele,
        }
    )
    distinct = written.unique(maintain_order=True).with_row_index("id")
    which = written.join(distinct, on=["strain", "allele"], how="left", maintain_order="left")
    genes = pl.col("strain").str.extract(r"^([^_]*)").str.split("+")
    alleles = pl.col("allele").str.strip_chars().str.split("+")
    collection = pl.col("strain").str.extract(r"_([A-Za-z]*)").str.to_lowercase().fill_null("")
    parsed = distinct.select(
        "id",
        collection=collection,
        name=genes,
        allele=pl.when(alleles.list.len() == genes.list.len())
        .then(alleles)
        .otherwise(pl.lit("").repeat_by(genes.list.len())),
    )
    flat = parsed.explode("name", "allele").with_columns(pl.col("name", "allele").str.strip_chars())
    if without:
        flat = flat.filter(pl.col("name") != without)
    deleted = flat.select(
        "name",
        "allele",
        perturbation=pl.col("collection").replace_strict(
            COLLECTIONS, default=perturbation_of(pl.col("allele"))
        ),
    )
    sizes = np.bincount(flat["id"].to_numpy(), minlength=len(distinct))
    return Strains(deleted, offsets_of(sizes), which["id"].to_numpy())


def perturbation_of(allele: pl.Expr) -> pl.Expr:
    """Return what the name of an allele says: nothing, or a delta, is a deletion."""
    return (
        pl.when((allele == "") | allele.str.contains(_DELTA) | allele.str.contains(_BARE_NAME))
        .then(pl.lit("deletion"))
        .when(allele.str.contains(r"(?i)[-_]damp\d*$"))
        .then(pl.lit("damp"))
        .when(allele.str.contains(r"(?i)-ts\d*$"))
        .then(pl.lit("ts"))
        .otherwise(pl.lit("allele"))
    )


def crossed(query: Strains, array: Strains, rows: Ints) -> tuple[pl.DataFrame, Ints]:
    """Return the deleted genes of some rows, those of the query strain first, and their offsets."""
    strains = [(query.which[rows], query.offsets, 0)]
    strains.append((array.which[rows], array.offsets, len(query.deleted)))
    starts = np.stack([offsets[which] + shift for which, offsets, shift in strains], axis=1)
    sizes = np.stack([np.diff(offsets)[which] for which, offsets, _ in strains], axis=1)
    genes = pl.concat(
        [
            query.deleted.with_columns(role=pl.lit("query")),
            array.deleted.with_columns(role=pl.lit("array")),
        ]
    )
    at = ragged_positions(starts.ravel(), sizes.ravel())
    return genes[at], offsets_of(sizes.sum(axis=1))


def _is_float(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
