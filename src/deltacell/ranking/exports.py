"""Exports of a ranking as tables and networks."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, cast

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
    suffix, rows = path.suffix.lower(), read_rows(ranking)
    if suffix == ".xlsx" and len(rows) >= _MOST_ROWS_OF_A_SHEET:  # with the header
        what = f"an .xlsx sheet cannot hold the ranking's {len(rows):,} rows; use --csv"
        raise InputError(what, code="too-many-rows", where=path)
    link = pl.element().struct
    links = pl.format("{} {} ({})", *(link.field(name) for name in ("first", "second", "relation")))
    widest = rows["genes"].list.len().max() if len(rows) else 0
    single = {
        f"{label}{i + 1}": pl.col(column).list.get(i, null_on_oob=True)
        for label, column in (("gene", "names"), ("systematic", "genes"))
        for i in range(cast(int, widest))
    }
    rows = rows.with_columns(pl.col("links").list.eval(links)).with_columns(**single)
    joined = rows.with_columns(pl.col(name).list.join("; ") for name in _LISTS)
    safe = _without_formulas(pl.col(*_LISTS, *single))
    table = joined.with_columns(safe).select("end", "rank", *single, *SCHEMA.names[2:])
    with written(path, "the table") as temporary:
        if suffix != ".xlsx":
            table.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")
            return
        need("openpyxl", "Writing xlsx", "xlsx")
        from openpyxl import Workbook
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        book = Workbook(write_only=True)
        sheet = book.create_sheet("ranking")
        for row in (table.columns, *table.iter_rows()):
            sheet.append([ILLEGAL_CHARACTERS_RE.sub("", v) if type(v) is str else v for v in row])
        book.save(temporary)


def _without_formulas(texts: pl.Expr) -> pl.Expr:
    return texts.str.replace(_FORMULA, "'$1")


def write_network(ranking: Path, edges: Path, nodes: Path) -> None:
    """Write a ranking as two tables for Cytoscape: its edges and its nodes.

    Every two genes of a ranked set are joined by an edge ``predicted``, and by edges named after
    the relations that connect them. A node has the number and scores of its ranked sets. A text
    that a spreadsheet would take for a formula is preceded by an apostrophe, in both tables alike.
    """
    rows = read_rows(ranking)
    columns = ["end", "rank", "score", "spread", "status"]
    found: list[tuple[Any, ...]] = []
    known: dict[tuple[Any, ...], None] = {}
    for genes, links, *values in rows.select("genes", "links", *columns).iter_rows():
        found += [(a, "predicted", b, *values) for a, b in combinations(genes, 2)]
        known |= {(x["first"], x["relation"], x["second"], *[None] * 5): None for x in links}
    schema: dict[str, Any] = dict.fromkeys(("source", "interaction", "target"), pl.String)
    schema |= {name: rows.schema[name] for name in columns}
    score = pl.col("score")
    described = (
        rows.select("score", id="genes", name="names")
        .explode("id", "name")
        .group_by("id", maintain_order=True)
        .agg(pl.first("name"), sets=pl.len(), lowest_score=score.min(), highest_score=score.max())
    )
    table = pl.DataFrame([*found, *known], schema, orient="row")
    for path, frame in ((edges, table), (nodes, described)):
        with written(path, "the table") as temporary:
            frame.with_columns(_without_formulas(pl.col(pl.String))).write_csv(
                temporary,
                separator="\t",
            )
