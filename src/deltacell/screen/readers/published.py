"""The tables of published yeast screens: Costanzo 2010 and 2016, Kuzmin 2018 and 2020, hit lists.

A strain ID such as ``YKL051W+YDL227C_tm3059`` is one ORF or several joined by ``+``, then ``_`` and
the strain's number in its collection, whose letters tell how the gene is perturbed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from deltacell.cell.readers.names import (
    HEADERS,
    Find,
    Reader,
    names_in,
    table_reader,
    with_header,
    without_header,
)
from deltacell.screen.readers.written import (
    NO_SCORE,
    GeneColumn,
    WrittenScreen,
    chosen_phenotype,
    deleted_genes,
    measured,
)
from deltacell.table import Sheet, Table, is_number

#: The control locus whose deletion does nothing; in a query slot it stands for "no second gene".
HO = "YDL227C"
#: Why a row is dropped that crosses the control locus alone with the array: its interaction score
#: is of one gene. Its fitness is the array gene's, and is kept.
CONTROL_ALONE = "control locus alone as query"

_ORF = re.compile(r"[YQ][A-Z0-9]+(-[A-Z])?(_[A-Za-z]+\d*)?", re.ASCII)

_KUZMIN2018, _COSTANZO2016, _COSTANZO2010 = (
    HEADERS[study] for study in ("kuzmin2018", "costanzo2016", "costanzo2010")
)
_KUZMIN2020 = _KUZMIN2018 | {"fitness": "Double/triple mutant fitness"}
_COSTANZO2016_PANEL = "Arraytype/Temp"
_TRIGENIC_HITS = ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows")
_DIGENIC_HITS = ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign")


def _kuzmin(table: Table, phenotype: str | None) -> WrittenScreen:
    """Read crosses of query strains with two genes, of which HO stands for no gene."""
    if _KUZMIN2020["fitness"] in table.frame.columns:
        return _crosses("kuzmin2020", _KUZMIN2020, table, phenotype, reader="kuzmin", control=HO)
    return _crosses("kuzmin2018", _KUZMIN2018, table, phenotype, reader="kuzmin", control=HO)


def _costanzo2016(table: Table, phenotype: str | None) -> WrittenScreen:
    # The two temperatures (DMA26, DMA30) are one array: what was crossed is the same.
    panel = table.frame[_COSTANZO2016_PANEL].str.extract(r"^([A-Za-z]*)")
    return _crosses("costanzo2016", _COSTANZO2016, table, phenotype, panel=panel)


def _is_costanzo2010(sheet: Sheet) -> bool:
    """Whether one of the first rows is two ORFs with their names, then three numbers."""
    return any(
        len(row) == len(_COSTANZO2010)
        and all(_ORF.fullmatch(row[i]) for i in (0, 2))
        and all(map(is_number, row[4:]))
        for row in sheet.rows[:3]
    )


def _costanzo2010(table: Table, phenotype: str | None) -> WrittenScreen:
    """Read a list of digenic hits."""
    # The second name is a gene's for a deletion, without suffix, and an allele's for the rest.
    alleles = (
        pl.when(pl.col(f"{role} ORF").str.contains("_", literal=True))
        .then(f"{role} gene")
        .otherwise(pl.lit(""))
        .alias(f"{role} gene")
        for role in ("query", "array")
    )
    table = replace(table, frame=table.frame.with_columns(alleles))
    return _crosses("costanzo2010", _COSTANZO2010, table, phenotype, only_hits=True)


def _hits(table: Table, phenotype: str | None) -> WrittenScreen:
    """Read a list of Kuzmin 2018 hits: gene sets and the sign of their interaction.

    Trigenic hits are negative, as the study reported no others. Which gene was the query's is not
    given, so nothing follows about what else was tested.
    """
    chosen_phenotype(phenotype, ["interaction"], table.path)
    n = 3 if "orf3" in table.frame.columns else 2
    rows = ("n_rows",) if n == 3 else ("n_negative_rows", "n_positive_rows")
    sign: pl.Series | int = -1
    if n == 2:
        # A pair that was a hit in both directions has no sign.
        signs = {"negative": -1, "positive": 1, "both": 0}
        written = table.frame["sign"].str.to_lowercase()
        table.bad(f"the sign is not one of {', '.join(signs)}", "sign", ~written.is_in(list(signs)))
        sign = written.replace_strict(signs, default=0, return_dtype=pl.Int8)
    replicates = np.sum([table.numbers(column, required=True) for column in rows], axis=0)
    each = [GeneColumn(f"orf{i}", alleles=f"allele{i}") for i in range(1, n + 1)]
    genes = deleted_genes(table, each)
    for column in each:
        names_in(table, column.name)
    columns = {"sign": sign, "replicates": np.nan_to_num(replicates).astype(np.int32)}
    return WrittenScreen(table, genes, "hits", "kuzmin2018", columns)


def _crosses(
    study: str,
    columns: Mapping[str, str],
    table: Table,
    phenotype: str | None,
    *,
    reader: str = "",
    control: str = "",
    panel: pl.Series | None = None,
    only_hits: bool = False,
) -> WrittenScreen:
    """Return the crosses of a table of query strains with array strains.

    `control` in a query strain stands for no gene. Without a column of its own, the standard
    deviation is that of the combined mutant's fitness, so that of an interaction score is missing.
    The p-value is that of the interaction in either case. A list of hits has no missing score.
    """
    frame = table.frame
    there = [p for p in ("interaction", "fitness") if columns.get(p) in frame.columns]
    phenotype = chosen_phenotype(phenotype, there, table.path)

    for role in ("query", "array"):
        names_in(table, columns[role])
    strains = (GeneColumn(columns[r], r, True, columns[f"{r}_allele"]) for r in ("query", "array"))
    genes, is_query = deleted_genes(table, [*strains]), pl.col("role") == "query"
    if control:
        genes = genes.filter(~is_query | (pl.col("name") != control))
    score = measured(table, "score", columns[phenotype], required=only_hits)
    values = {"phenotype": phenotype, "score": score}
    if panel is not None:
        values["panel"] = panel
    if phenotype == "fitness":
        columns = {**columns, "standard_deviation": f"{columns['fitness']} standard deviation"}
    for name in ("standard_deviation", "p_value", "query_fitness", "array_fitness"):
        if columns.get(name) in frame.columns:
            values[name] = measured(table, name, columns[name])
    dropped = {NO_SCORE: np.isnan(score)}
    if control and phenotype == "interaction":
        queries = genes.filter(is_query)["row"].to_numpy()
        dropped[CONTROL_ALONE] = np.bincount(queries, minlength=len(table)) == 0
    facts = table, genes, reader or study, study, values
    return WrittenScreen(*facts, dropped=dropped, complete_coverage=not only_hits)


def _reader(name: str, find: Find, make: Callable[..., WrittenScreen]) -> Reader:
    return table_reader(
        name, "screens", find, lambda table, phenotype=None: [make(table, phenotype)]
    )


_STRAINS = _KUZMIN2018["query"], _KUZMIN2018["array"]
_SCORES = _KUZMIN2018["interaction"], _KUZMIN2018["fitness"], _KUZMIN2020["fitness"]
_OF_2016 = [_COSTANZO2016[name] for name in ("query", "array", "interaction")]
_OF_2010 = [*_COSTANZO2010.values()]
PUBLISHED = (
    _reader("kuzmin", with_header(*_STRAINS, any_of=_SCORES), _kuzmin),
    _reader("costanzo2016", with_header(*_OF_2016, _COSTANZO2016_PANEL), _costanzo2016),
    _reader("costanzo2010", without_header(_OF_2010, _is_costanzo2010), _costanzo2010),
    _reader("hits", with_header(*_TRIGENIC_HITS), _hits),
    _reader("hits", with_header(*_DIGENIC_HITS), _hits),
)
