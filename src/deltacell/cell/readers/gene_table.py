"""Genes of any organism in a table: a name of their own, a symbol, other names and a place."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.cell.genes import Genes
from deltacell.cell.readers.head import first_line
from deltacell.counts import Counts, Source
from deltacell.errors import InputError
from deltacell.sheet import BadRows, is_missing, numbers_of, word
from deltacell.table import fields_of, peek, read_table

NAME = "gene_table"

#: Why a row is left out.
NO_NAME, REPEATED = "no systematic name", "gene given before"

_WORDS = {
    "systematic": r"systematic(?:name|id)|locustag|locus(?:name|id)|orf|ensembl(?:gene)?"
    r"|(?:ensembl|entrez|hgnc)?(?:gene)?id",
    "standard": r"(?:standard|gene|common|preferred)name|(?:approved|gene)?symbol|name",
    "aliases": r"alias(?:es)?|synonyms?|(?:alias|previous)symbols?|othernames",
    "chromosome": r"chromosome|chr|chrom",
    "start": r"start|startposition|genestart(?:bp)?",
    "end": r"end|stop|endposition|geneend(?:bp)?",
}
_JOINS = r"\s*[|;,]\s*"


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header has a systematic name or identifier, a symbol, and aliases or a place."""
    return _columns(head) is not None


def read(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the genes in the file's order.

    Aliases of a gene are joined by ``|``, ``;`` or commas. Rows without a systematic name and
    further rows of a gene, such as its transcripts, are left out and counted.

    Parameters
    ----------
    path
        A table with a header, with tabs or commas.
    """
    head = peek(path)
    separator, at = _columns(head) or ("\t", {})
    table = read_table(path, separator=separator)
    if not at:
        raise InputError(
            "the header has no systematic name, symbol, and aliases or chromosome",
            where=path,
            fix="Call the columns systematic_id, gene_name, synonyms, chromosome, start and end.",
        )
    bad = BadRows(table.path)

    def text(key: str) -> pl.Series:
        if key not in at:
            return pl.repeat("", len(table), dtype=pl.String, eager=True)
        written = table.frame[table.frame.columns[at[key]]].str.strip_chars().str.strip_chars('"')
        return written.set(pl.Series(is_missing(written)), "")

    def place(key: str) -> pl.Series:
        values, wrong = numbers_of(text(key), decimal_comma=False)
        strange = text(key).filter(pl.Series(wrong)).to_list()
        bad.add(f"'{key}' is not a number", table.lines[wrong], strange)
        return pl.Series(np.where(np.isnan(values), -1, values).astype(np.int64))

    frame = pl.DataFrame(
        {
            **{key: text(key) for key in ("systematic", "standard", "aliases", "chromosome")},
            **{key: place(key) for key in ("start", "end")},
        }
    )
    bad.refuse()
    named = frame.filter(pl.col("systematic") != "")
    kept = named.filter(pl.col("systematic").str.to_uppercase().is_first_distinct())
    low, high = kept.select(
        pl.min_horizontal("start", "end").alias("low"), pl.max_horizontal("start", "end")
    ).get_columns()
    genes = Genes(
        kept["systematic"],
        (name or None for name in kept["standard"]),
        ([name for name in re.split(_JOINS, names) if name] for names in kept["aliases"]),
        kept["chromosome"],
        low,
        high,
    )
    counts = Counts(
        len(table),
        len(genes),
        {NO_NAME: len(table) - named.height, REPEATED: named.height - kept.height},
    )
    return genes, Source(table.path.name, table.sha256, NAME, counts, into="genes")


def _columns(head: Sequence[str]) -> tuple[str, dict[str, int]] | None:
    """Return the separator and the position of each column that is there; None if no gene table."""
    for separator in ("\t", ","):
        words = [word(name) for name in fields_of(first_line(head), separator)]
        at = {
            key: next((i for i, w in enumerate(words) if re.fullmatch(known, w)), -1)
            for key, known in _WORDS.items()
        }
        there = {key: i for key, i in at.items() if i >= 0}
        if {"systematic", "standard"} <= set(there) and (
            "aliases" in there or "chromosome" in there
        ):
            return separator, there
    return None
