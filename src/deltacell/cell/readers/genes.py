"""Files of genes: SGD's features, and tables of any organism."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import Reader, check_distinct, first_line, header_of
from deltacell.counts import Counts, Source
from deltacell.errors import InputError
from deltacell.sheet import BadRows, is_missing, numbers_of, word
from deltacell.table import Table, fields_of, peek, read_table

GENE_TYPES = ("ORF", "pseudogene", "blocked_reading_frame", "transposable_element_gene")
#: Why a row is left out.
NO_NAME, REPEATED = "no systematic name", "gene given before"

_SGD = [
    *("sgdid", "type", "qualifier", "systematic", "standard", "aliases", "parent", "secondary"),
    *("chromosome", "start", "stop", "strand", "position", "coordinate_version"),
    *("sequence_version", "description"),
]
_SGDID = re.compile(r"[SL]\d+")
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


def _recognise_sgd(head: Sequence[str], file_name: str) -> bool:
    """Whether one of the first lines has an SGDID and 16 columns; `read` names a header above."""
    rows = [header_of([line], "\t") for line in head if line.strip()][:3]
    return any(len(row) == len(_SGD) and _SGDID.fullmatch(row[0]) for row in rows)


def _read_sgd(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the features of the types in `GENE_TYPES`; all others are counted by type.

    A gene on the Crick strand is written with its start above its stop; here the smaller is first.
    """
    table = read_table(path, columns=_SGD)
    wrong = ~table.strings("sgdid").str.contains(r"^\s*[SL]\d+\s*$").to_numpy()
    header = len(wrong) and wrong[0] and wrong.sum() == 1
    fix = "Remove the line: no header belongs here." if header else None
    table.refuse("sgdid", wrong, "is not an SGDID such as S000002635", fix)
    frame = table.frame.with_columns(pl.all().str.strip_chars())
    is_gene = frame["type"].is_in(GENE_TYPES).to_numpy()
    is_named = (frame["systematic"] != "").to_numpy()
    kept = np.flatnonzero(is_gene & is_named)
    genes = Table(frame[kept], table.path, table.lines[kept], table.sha256)
    check_distinct(genes, "systematic", genes.frame["systematic"])

    def positions(column: str) -> Ints:
        numbers = genes.frame[column].cast(pl.Int64, strict=False)
        wrong = (numbers.is_null() & (genes.frame[column] != "")).to_numpy()
        genes.refuse(column, wrong, "is not a position")
        found: Ints = numbers.fill_null(-1).to_numpy().astype(np.int64)
        return found

    def types(of: pl.Series) -> dict[str, int]:
        return {f"feature type {t}": n for t, n in of.value_counts(sort=True).iter_rows()}

    ends = positions("start"), positions("stop")
    dropped = {**types(frame["type"].filter(~is_gene)), NO_NAME: int((is_gene & ~is_named).sum())}
    counts, notes = Counts(len(table), len(kept), dropped), types(genes.frame["type"])
    source = Source(table.path.name, table.sha256, "sgd_features", counts, "genes", notes)
    return (
        Genes(
            genes.frame["systematic"],
            (name or None for name in genes.frame["standard"]),
            ([a.strip() for a in w.split("|") if a.strip()] for w in genes.frame["aliases"]),
            genes.frame["chromosome"],
            np.minimum(*ends),
            np.maximum(*ends),
            genes.frame["description"],
        ),
        source,
    )


def _columns(head: Sequence[str]) -> tuple[str, dict[str, int]] | None:
    """Return the separator and the position of each column that is there, or None."""
    for separator in ("\t", ","):
        words = [word(name) for name in fields_of(first_line(head), separator)]
        there = {
            key: next(i for i, w in enumerate(words) if re.fullmatch(known, w))
            for key, known in _WORDS.items()
            if any(re.fullmatch(known, w) for w in words)
        }
        if {"systematic", "standard"} <= set(there) and {"aliases", "chromosome"} & set(there):
            return separator, there
    return None


def _read_table(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the genes in the file's order.

    Aliases of a gene are joined by ``|``, ``;`` or commas. Rows without a systematic name and
    further rows of a gene, such as its transcripts, are left out and counted.
    """
    form = _columns(peek(path))
    if form is None:
        raise InputError(
            "the header has no systematic name, symbol, and aliases or chromosome",
            code="missing-columns",
            where=path,
            fix="Call the columns systematic_id, gene_name, synonyms, chromosome, start and end.",
        )
    table = read_table(path, separator=form[0])
    bad = BadRows(table.path)

    def text(key: str) -> pl.Series:
        if key not in form[1]:
            return pl.repeat("", len(table), dtype=pl.String, eager=True)
        written = table.frame.to_series(form[1][key]).str.strip_chars().str.strip_chars('"')
        return written.set(pl.Series(is_missing(written)), "")

    def place(key: str) -> pl.Series:
        values, wrong = numbers_of(text(key), decimal_comma=False)
        strange = text(key).filter(pl.Series(wrong)).to_list()
        bad.add(f"'{key}' is not a number", table.lines[wrong], strange)
        return pl.Series(np.where(np.isnan(values), -1, values).astype(np.int64))

    texts = {key: text(key) for key in ("systematic", "standard", "aliases", "chromosome")}
    frame = pl.DataFrame({**texts, "start": place("start"), "end": place("end")})
    bad.refuse()
    named = frame.filter(pl.col("systematic") != "")
    kept = named.filter(pl.col("systematic").str.to_uppercase().is_first_distinct())
    genes = Genes(
        kept["systematic"],
        (name or None for name in kept["standard"]),
        ([name for name in re.split(_JOINS, names) if name] for names in kept["aliases"]),
        kept["chromosome"],
        kept.select(pl.min_horizontal("start", "end")).to_series(),
        kept.select(pl.max_horizontal("start", "end")).to_series(),
    )
    dropped = {NO_NAME: len(table) - named.height, REPEATED: named.height - kept.height}
    counts = Counts(len(table), len(genes), dropped)
    return genes, Source(table.path.name, table.sha256, "gene_table", counts, into="genes")


sgd_features = Reader("sgd_features", _recognise_sgd, _read_sgd)
gene_table = Reader("gene_table", lambda head, file_name: _columns(head) is not None, _read_table)
