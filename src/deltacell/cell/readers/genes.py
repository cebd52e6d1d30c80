"""Gene files: SGD features, STRING protein names, and tables of any organism."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    HEADERS,
    Reader,
    ReadTable,
    pattern,
    table_reader,
    with_header,
    without_header,
)
from deltacell.cell.readers.networks import orf_names
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import File, Sheet, Table, present

_GENE_TYPES = ("ORF", "pseudogene", "blocked_reading_frame", "transposable_element_gene")
_SGD = (
    *("sgdid", "type", "qualifier", "systematic", "standard", "aliases", "parent", "secondary"),
    *("chromosome", "start", "end", "strand", "position", "coordinate_version"),
    *("sequence_version", "description"),
)
_SGDID = r"^[SL]\d+$"
_INFO = ("#string_protein_id", "preferred_name")
_WORDS = {key: pattern("genes", key) for key in HEADERS["genes"]}


def _is_sgd(sheet: Sheet) -> bool:
    """Whether one of the first rows has an SGDID and 16 columns."""
    return any(len(row) == len(_SGD) and re.match(_SGDID, row[0]) for row in sheet.rows[:3])


def _read_sgd(table: Table) -> tuple[Genes, Source]:
    """Read the genes among the features of SGD; others are counted by their type."""
    table.mark_bad(
        "not an SGDID such as S000002635",
        "sgdid",
        ~table.frame["sgdid"].str.contains(_SGDID),
    )
    types = table.frame["type"]
    is_gene = types.is_in(_GENE_TYPES)
    is_named = is_gene & (table.frame["systematic"] != "")
    return _genes(
        "sgd_features",
        table.take(is_gene.to_numpy()),
        separators="|",
        dropped=_count_types(types.filter(~is_gene)),
        notes=_count_types(types.filter(is_named)),
    )


def _count_types(types: pl.Series) -> dict[str, int]:
    return {f"feature type {name}": n for name, n in Counter(types).most_common()}


def _read_info(table: Table) -> tuple[Genes, Source]:
    """Read STRING's names of proteins; a preferred name that is the systematic one is none."""
    # The header begins with "#" unless other columns precede it.
    protein = next(name for name in table.frame.columns if name.endswith("string_protein_id"))
    systematic = orf_names(table, protein)
    standard = table.frame["preferred_name"]
    is_same = systematic.str.to_uppercase() == standard.str.to_uppercase()
    frame = pl.DataFrame({"systematic": systematic, "standard": standard.set(is_same, "")})
    return _genes("string_info", replace(table, frame=frame))


def _find_table(file: File) -> ReadTable | None:
    """Find a table with both names of genes, and their aliases or chromosomes."""
    for sheet in file.sheets:
        if sheet.separator == " ":
            continue
        positions = _positions(sheet.headers[0].words)
        has_names = {"systematic", "standard"} <= positions.keys()
        if has_names and not positions.keys().isdisjoint({"aliases", "chromosome"}):
            return partial(_table, sheet, positions)
    return None


def _positions(words: Sequence[str]) -> dict[str, int]:
    """Return the position of each known column in a header, the first of several."""
    positions: dict[str, int] = {}
    for key, known in _WORDS.items():
        for i, word in enumerate(words):
            if known.fullmatch(word):
                positions.setdefault(key, i)
    return positions


def _table(sheet: Sheet, positions: Mapping[str, int]) -> Table:
    """Return the known columns of a sheet below its first row, by their keys."""
    table = sheet.below(0)
    columns = {key: present(table.frame.to_series(i)) for key, i in positions.items()}
    return replace(table, frame=pl.DataFrame(columns))


def _genes(
    reader: str,
    table: Table,
    separators: str = "|;,",
    dropped: Mapping[str, int] | None = None,
    notes: Mapping[str, int] | None = None,
) -> tuple[Genes, Source]:
    """Return the genes in the order of the file, and account for every row.

    Rows without a systematic name and further rows of a gene, such as its transcripts, are dropped
    and counted. Start and end may be swapped.

    Args:
        reader: The name of the reader.
        table: The columns of the constructor of `Genes`, of which those of names are required.
        separators: The characters between aliases.
        dropped: The number of rows that are not in the table, by reason.
        notes: Further notes on the source.
    """
    systematic = table.frame["systematic"]
    is_named = systematic != ""
    is_kept = is_named & systematic.str.to_uppercase().is_first_distinct()
    kept = table.take(is_kept.to_numpy())
    positions = _start_and_end(kept)
    table.raise_if_bad()
    texts = [name for name in ("chromosome", "description") if name in kept.frame.columns]
    genes = Genes(
        kept.frame["systematic"],
        (name or None for name in kept.frame["standard"]),
        _aliases(kept.frame, separators),
        **{name: kept.frame[name] for name in texts},
        **positions,
    )
    n_named = int(is_named.sum())
    left_out = {
        **(dropped or {}),
        "no systematic name": len(table) - n_named,
        "gene given before": n_named - len(genes),
    }
    counts = Counts(len(genes) + sum(left_out.values()), len(genes), left_out)
    all_notes = {**table.notes, **(notes or {})}
    source = Source(table.path.name, table.sha256, reader, counts, "genes", all_notes)
    return genes, source


def _start_and_end(table: Table) -> dict[str, Ints]:
    """Return the columns of positions that there are, -1 where unknown; the start is smaller."""
    positions: dict[str, Ints] = {}
    for name in ("start", "end"):
        if name in table.frame.columns:
            positions[name] = np.nan_to_num(table.numbers(name), nan=-1).astype(np.int64)
    if len(positions) < 2:
        return positions
    start, end = np.sort([positions["start"], positions["end"]], axis=0)
    return {"start": start, "end": end}


def _aliases(frame: pl.DataFrame, separators: str) -> list[list[str]] | None:
    """Return the aliases of each gene; None without a column of them."""
    if "aliases" not in frame.columns:
        return None
    split = re.compile(f"[{separators}]").split
    aliases = []
    for field in frame["aliases"]:
        names = map(str.strip, split(field))
        aliases.append([name for name in names if name])
    return aliases


#: The first reader that recognises a file of a folder provides the genes.
GENE_READERS: tuple[Reader[ReadTable, tuple[Genes, Source]], ...] = (
    table_reader("sgd_features", "genes", without_header(_SGD, _is_sgd), _read_sgd),
    table_reader("string_info", "genes", with_header(*_INFO), _read_info),
    table_reader("gene_table", "genes", _find_table, partial(_genes, "gene_table")),
)
