"""Exports of a ranking as tables and networks."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import cast

import polars as pl

from deltacell.base.errors import InputError, need
from deltacell.base.files import written
from deltacell.ranking.ranking_file import SCHEMA, read_rows

_LISTS = ("genes", "names", "relations", "links", "pathways", "complexes")
# A spreadsheet would run a text that begins like this as a formula.
_FORMULA = r"^([=+@\-\t\r])"
_MOST_ROWS_OF_A_SHEET = 1_048_576


def write_table(ranking: Path, path: Path) -> None:
    """Write all rows of a ranking as a table: .xlsx, .tsv, or otherwise comma-separated.

    The genes of a set are in separate columns, by both names, and lists are joined. A text that a
    spreadsheet would take for a formula is preceded by an apostrophe.
    """
    suffix = path.suffix.lower()
    rows = read_rows(ranking)
    if suffix == ".xlsx" and len(rows) >= _MOST_ROWS_OF_A_SHEET:  # with the header
        message = f"an .xlsx sheet cannot hold the ranking's {len(rows):,} rows; use --csv"
        raise InputError(message, code="too-many-rows", where=path)
    table = _as_texts(rows)
    with written(path, "the table") as temporary:
        if suffix == ".xlsx":
            _write_sheet(table, temporary)
        else:
            table.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")


def _as_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with a column per gene and its systematic name, and with lists as texts."""
    columns_of_genes = _columns_of_genes(rows)
    rows = rows.with_columns(pl.col("links").list.eval(_link_text()))
    rows = rows.with_columns(**columns_of_genes)
    joined = rows.with_columns(pl.col(name).list.join("; ") for name in _LISTS)
    safe = joined.with_columns(_without_formulas(pl.col(*_LISTS, *columns_of_genes)))
    return safe.select("end", "rank", *columns_of_genes, *SCHEMA.names[2:])


def _columns_of_genes(rows: pl.DataFrame) -> dict[str, pl.Expr]:
    """Return ``gene1``, ``gene2``, ... and ``systematic1``, ..., as many as the widest set has."""
    n_genes = cast(int, rows["genes"].list.len().max()) if len(rows) else 0
    columns: dict[str, pl.Expr] = {}
    for label, lists in (("gene", "names"), ("systematic", "genes")):
        for place in range(n_genes):
            gene = pl.col(lists).list.get(place, null_on_oob=True)
            columns[f"{label}{place + 1}"] = gene
    return columns


def _link_text() -> pl.Expr:
    link = pl.element().struct
    fields = [link.field(name) for name in ("first", "second", "relation")]
    return pl.format("{} {} ({})", *fields)


def _write_sheet(table: pl.DataFrame, path: Path) -> None:
    need("openpyxl", "Writing xlsx", "xlsx")
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    def legal(value: object) -> object:
        return ILLEGAL_CHARACTERS_RE.sub("", value) if isinstance(value, str) else value

    book = Workbook(write_only=True)
    sheet = book.create_sheet("ranking")
    for row in (table.columns, *table.iter_rows()):
        sheet.append([legal(value) for value in row])
    book.save(path)


def _without_formulas(texts: pl.Expr) -> pl.Expr:
    return texts.str.replace(_FORMULA, "'$1")


def write_network(ranking: Path, edges: Path, nodes: Path) -> None:
    """Write a ranking as two tables for Cytoscape: its edges and its nodes.

    Every two genes of a ranked set are joined by an edge ``predicted``, and by edges named after
    the relations that connect them. A node has the number and scores of its ranked sets. A text
    that a spreadsheet would take for a formula is preceded by an apostrophe, in both tables alike.
    """
    rows = read_rows(ranking)
    for path, table in ((edges, _edges_of(rows)), (nodes, _nodes_of(rows))):
        safe = table.with_columns(_without_formulas(pl.col(pl.String)))
        with written(path, "the table") as temporary:
            safe.write_csv(temporary, separator="\t")


def _edges_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the edges: those of every ranked set, then each link once, without values."""
    columns = ["end", "rank", "score", "spread", "status"]
    predicted: list[tuple[object, ...]] = []
    links: dict[tuple[object, ...], None] = {}
    no_values = [None] * len(columns)
    for genes, links_of_set, *values in rows.select("genes", "links", *columns).iter_rows():
        for source, target in combinations(genes, 2):
            predicted.append((source, "predicted", target, *values))
        for link in links_of_set:
            links[link["first"], link["relation"], link["second"], *no_values] = None
    schema: dict[str, pl.DataType] = dict.fromkeys(
        ("source", "interaction", "target"),
        pl.String(),
    )
    schema |= {name: rows.schema[name] for name in columns}
    return pl.DataFrame([*predicted, *links], schema, orient="row")


def _nodes_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the genes of ranked sets, with the number of their sets and the range of scores."""
    score = pl.col("score")
    of_genes = rows.select("score", id="genes", name="names").explode("id", "name")
    return of_genes.group_by("id", maintain_order=True).agg(
        pl.first("name"),
        sets=pl.len(),
        lowest_score=score.min(),
        highest_score=score.max(),
    )
