"""Gene files: SGD features, STRING protein names, and tables of any organism."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import HEADERS, pattern, table_reader, with_header, without_header
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
    sgdid, kinds = table.frame["sgdid"], table.frame["type"]
    table.mark_bad("not an SGDID such as S000002635", "sgdid", ~sgdid.str.contains(_SGDID))
    is_gene = kinds.is_in(_GENE_TYPES)

    def types(of: pl.Series) -> dict[str, int]:
        return {f"feature type {t}": n for t, n in Counter(of).most_common()}

    named = is_gene & (table.frame["systematic"] != "")
    genes, others = table.take(is_gene.to_numpy()), types(kinds.filter(~is_gene))
    return _genes("sgd_features", genes, "|", others, types(kinds.filter(named)))


def _read_info(table: Table) -> tuple[Genes, Source]:
    # The header begins with "#" unless other columns precede it.
    protein = next(name for name in table.frame.columns if name.endswith("string_protein_id"))
    systematic, standard = orf_names(table, protein), table.frame["preferred_name"]
    same = systematic.str.to_uppercase() == standard.str.to_uppercase()
    frame = pl.DataFrame({"systematic": systematic, "standard": standard.set(same, "")})
    return _genes("string_info", replace(table, frame=frame))


def _find_table(file: File) -> Callable[[], Table] | None:
    for sheet in file.sheets:
        words = sheet.headers[0][2] if sheet.separator != " " else []
        named = {
            key: [i for i, w in enumerate(words) if known.fullmatch(w)]
            for key, known in _WORDS.items()
        }
        there = {key: places[0] for key, places in named.items() if places}
        if {"systematic", "standard"} <= set(there) and {"aliases", "chromosome"} & set(there):
            return partial(_table, sheet, there)
    return None


def _table(sheet: Sheet, places: Mapping[str, int]) -> Table:
    table = sheet.below(0)
    columns = {key: present(table.frame.to_series(i)) for key, i in places.items()}
    return replace(table, frame=pl.DataFrame(columns))


def _genes(
    reader: str,
    table: Table,
    joins: str = "|;,",
    dropped: Mapping[str, int] | None = None,
    notes: Mapping[str, int] | None = None,
) -> tuple[Genes, Source]:
    """Return the genes in the order of the file, and account for every row.

    Rows without a systematic name and further rows of a gene, such as its transcripts, are dropped
    and counted. Start and end may be swapped.
    """
    named = table.frame["systematic"] != ""
    kept = named & table.frame["systematic"].str.to_uppercase().is_first_distinct()
    part = table.take(kept.to_numpy())
    frame, columns = part.frame, part.frame.columns
    places = {
        end: np.nan_to_num(part.numbers(end), nan=-1).astype(np.int64)
        for end in ("start", "end")
        if end in columns
    }
    table.raise_if_bad()
    if len(places) == 2:
        places = dict(zip(places, np.sort([*places.values()], axis=0), strict=True))
    aliases = None
    if "aliases" in columns:
        split = (re.split(f"[{joins}]", written) for written in frame["aliases"])
        aliases = [[name.strip() for name in names if name.strip()] for names in split]
    genes = Genes(
        frame["systematic"],
        (name or None for name in frame["standard"]),
        aliases,
        **{name: frame[name] for name in ("chromosome", "description") if name in columns},
        **places,
    )
    left_out = {
        **(dropped or {}),
        "no systematic name": len(table) - int(named.sum()),
        "gene given before": int(named.sum()) - len(genes),
    }
    counts = Counts(len(genes) + sum(left_out.values()), len(genes), left_out)
    all_notes = {**table.notes, **(notes or {})}
    source = Source(table.path.name, table.sha256, reader, counts, "genes", all_notes)
    return genes, source


#: The first reader that recognises a file of a folder provides the genes.
GENE_READERS = (
    table_reader("sgd_features", "genes", without_header(_SGD, _is_sgd), _read_sgd),
    table_reader("string_info", "genes", with_header(*_INFO), _read_info),
    table_reader("gene_table", "genes", _find_table, partial(_genes, "gene_table")),
)
