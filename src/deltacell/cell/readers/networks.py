"""Network files: STRING links, actions and adjacency lists, BioGRID, YEASTRACT, TFLink, edge lists.

A plain edge list has two genes per row, and optionally a weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles
from deltacell.base.errors import InputError
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    Find,
    OnUnresolved,
    Reader,
    account_for_names,
    check_lengths,
    is_systematic,
    names_in,
    pattern,
    stem_of,
    table_reader,
    unresolved_notes,
    with_header,
    without_header,
)
from deltacell.cell.relation import Relation
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import MISSING, File, Sheet, Table, is_missing, is_number, open_text

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")

_LINK = ("protein1", "protein2", "combined_score")
_ACTION = ("item_id_a", "item_id_b", "mode", "is_directional", "a_is_acting", "score")
_CHANNEL = re.compile(r"(?:^|_)string_(.+?)_adjacency", re.IGNORECASE)
_GENE = re.compile(r"[A-Za-z0-9](?:[\w.:@'()-]*[\w')])?")
_GENE_WORD, _NODE, _WEIGHT = (pattern("edges", word) for word in ("gene", "node", "weight"))


@dataclass(frozen=True)
class NamedEdges:
    """The edges of one relation with gene names as in the file, not yet resolved."""

    name: str
    frame: pl.DataFrame  # source, target, line and optionally weight
    path: Path
    sha256: str
    reader: str
    directed: bool = False
    notes: Mapping[str, int | str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # number of dropped rows, by reason
    proteins: pl.DataFrame | None = None  # accessions of UniProt (protein) and names (gene)

    @property
    def gene_names(self) -> list[str]:
        """The distinct names, ignoring case, as first written."""
        names = pl.concat([self.frame["source"], self.frame["target"]]).unique(maintain_order=True)
        return names.filter(names.str.to_uppercase().is_first_distinct()).to_list()

    def on(self, genes: Genes, on_unknown: OnUnresolved = "error") -> tuple[Relation, Source]:
        """Look up the names and return the relation; dropped rows are counted by reason."""
        frame = self.frame
        source, target = (genes.resolve(frame[end]) for end in ("source", "target"))
        # A row with an unknown (-1) and an ambiguous gene (-2) counts as unknown.
        worst = np.where((source == -1) | (target == -1), -1, np.minimum(source, target))
        first = frame["source"].zip_with(pl.Series(source == worst), frame["target"])
        lines, found = frame["line"].to_numpy(), worst >= 0
        dropped, _ = account_for_names(genes, first, worst, on_unknown, self.path, lines)
        weight = frame["weight"].to_numpy()[found] if "weight" in frame.columns else None
        edges = self.name, source[found], target[found], weight
        relation = Relation.from_edges(*edges, n_genes=len(genes), directed=self.directed)
        read = frame.height + sum(self.left_out.values())
        reasons = {**self.left_out, **dropped, **relation.counts.dropped}
        relation.counts = Counts(read, relation.n_edges, reasons)
        names = pl.concat([frame["source"], frame["target"]])
        unresolved = unresolved_notes(names, np.concatenate([source, target]), genes)
        file = self.path.name, self.sha256, self.reader
        return relation, Source(*file, relation.counts, self.name, {**self.notes, **unresolved})


#: The name of a relation, its edges, and other fields of `NamedEdges`.
_Made = Iterator[tuple[str, pl.DataFrame, dict[str, Any]]]


def _reader(name: str, find: Find, make: Callable[[Table], _Made]) -> Reader:
    def read(table: Table) -> list[NamedEdges]:
        file = table.path, table.sha256, name
        made = [
            NamedEdges(relation, frame, *file, **_with_notes(table, facts))
            for relation, frame, facts in make(table)
        ]
        table.raise_if_bad()
        return made

    return table_reader(name, "edges", find, read)


def _with_notes(table: Table, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {**facts, "notes": {**table.notes, **facts.get("notes", {})}}


def _frame(table: Table, source: pl.Series, target: pl.Series, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"source": source, "target": target, "line": table.lines, **columns})


def _biogrid(table: Table) -> _Made:
    yield "biogrid", _frame(table, names_in(table, "orf1"), names_in(table, "orf2")), {}


def _yeastract(table: Table) -> _Made:
    """Yield the edges from regulator to target, weighted by the number of kinds of evidence."""
    ends = "tf_orf", "target_orf"
    kinds = [column for column in table.frame.columns if column not in ends]
    evidence = np.array([_is(table, kind, "1", "0") for kind in kinds], dtype=np.float64)
    frame = _frame(table, *(names_in(table, end) for end in ends), weight=evidence.sum(axis=0))
    kept = frame.filter(pl.col("weight") > 0)
    left_out = {"no evidence": len(table) - kept.height}
    yield "regulatory", kept, {"directed": True, "left_out": left_out}


def _tflink(table: Table) -> _Made:
    """Yield the edges from factor to target.

    A protein encoded by several genes has names joined by ``;``; such a row gives one edge per
    gene, and each counts as read. Rows with ``-`` as a name are dropped.
    """
    factor, target = (names_in(table, c).str.split(";") for c in ("Name.TF", "Name.Target"))
    edges = _frame(table, factor, target).explode("source").explode("target")
    edges = edges.with_columns(pl.col("source", "target").str.strip_chars())
    named = edges.filter(*(~pl.col(end).is_in(["", "-"]) for end in ("source", "target")))
    left_out = {"no gene name": len(edges) - len(named)}
    facts = {"directed": True, "left_out": left_out, "proteins": _proteins(table)}
    yield "tflink", named, facts


def _proteins(table: Table) -> pl.DataFrame | None:
    """Return the proteins of TFLink and their genes; None without columns of UniProt."""
    ends = [end for end in ("TF", "Target") if f"UniprotID.{end}" in table.frame.columns]
    if not ends:
        return None
    columns = (
        table.frame.select(protein=f"UniprotID.{end}", gene=pl.col(f"Name.{end}").str.split(";"))
        for end in ends
    )
    rows = pl.concat(columns).unique(maintain_order=True).explode("gene")
    rows = rows.with_columns(pl.col("gene").str.strip_chars())
    return rows.filter(~pl.any_horizontal(pl.all().is_in(["", "-"]))).unique(maintain_order=True)


def _detailed(table: Table) -> _Made:
    """Yield one undirected relation per channel, ``string_<channel>``, of the pairs above 0.

    The channel ``textmining`` is not read: it is derived from the papers that publish screens.
    """
    frame = _frame(table, orf_names(table, "protein1"), orf_names(table, "protein2"))
    for channel in CHANNELS:
        kept = frame.with_columns(weight=_scores(table, channel)).filter(pl.col("weight") > 0)
        yield f"string_{channel}", kept, {"left_out": {"score 0": len(table) - kept.height}}


def _physical(table: Table) -> _Made:
    # The full network has the same columns; only the file name tells them apart.
    name = "string_combined" if "protein.links" in table.path.name else "physical"
    ends = orf_names(table, "protein1"), orf_names(table, "protein2")
    yield name, _frame(table, *ends, weight=_scores(table, "combined_score")), {}


def _actions(table: Table) -> _Made:
    """Yield one relation per mode, ``action_<mode>``, which is directed if any of its rows is.

    A row ``a, b`` is the edge a -> b. A directional row in which b acts on a repeats the row
    ``b, a`` and is dropped; a pair that is not directional is listed in both directions.
    """
    table.mark_bad("no mode", "mode", table.frame["mode"] == "")
    ends = orf_names(table, "item_id_a"), orf_names(table, "item_id_b")
    rows = _frame(table, *ends, weight=_scores(table, "score")).with_columns(
        mode=table.frame["mode"],
        directional=_is(table, "is_directional", "t", "f"),
        acting=_is(table, "a_is_acting", "t", "f"),
    )
    for of_mode in rows.sort("mode", maintain_order=True).partition_by("mode", maintain_order=True):
        edges = of_mode.filter(~pl.col("directional") | pl.col("acting"))
        left_out = {"mirrored half of a directional row": of_mode.height - edges.height}
        facts = {"directed": bool(of_mode["directional"].any()), "left_out": left_out}
        yield f"action_{of_mode['mode'][0]}", edges.drop("mode", "directional", "acting"), facts


def _are_numbered(sheet: Sheet) -> bool:
    """Whether rows are two integers and a score; a header is allowed in an adjacency file."""
    has_header = "adjacency" in sheet.file.path.name.lower()
    rows = [len(row) == 3 and row[0].isdigit() and row[1].isdigit() for row in sheet.rows]
    return sheet.separator == "\t" and (rows[0] or (has_header and any(rows)))


def _adjacency(table: Table) -> _Made:
    """Yield the relation ``string_<channel>``, named after the file."""
    beside = (other for other in sorted(table.path.parent.iterdir()) if other.is_file())
    lists = [other for other in beside if other != table.path and _is_gene_list(other)]
    if len(lists) != 1:
        what = f"its genes are lines of a gene list; expected one in the folder, found {len(lists)}"
        fix = "Put the gene list into the folder, one systematic name per line."
        raise InputError(what, code="no-gene-list", where=table.path, fix=fix)
    genes = pl.Series(string_genes.read(lists[0]), dtype=pl.String)
    ends = []
    for column in ("first", "second"):
        numbers = table.frame[column].cast(pl.Int64, strict=False)
        inside = numbers.fill_null(0).is_between(1, len(genes))
        table.mark_bad(f"not a line of '{lists[0].name}', 1 to {len(genes)}", column, ~inside)
        ends.append(genes.gather((numbers - 1).set(~inside, 0)))
    channel = _CHANNEL.search(table.path.name)
    name = f"string_{channel[1].lower()}" if channel else stem_of(table.path.name)
    notes = {"gene list": lists[0].name, "gene list sha256": open_text(lists[0])[1]}
    frame = _frame(table, *ends, weight=table.numbers("score", required=True))
    yield name, frame, {"notes": notes}


def _is_gene_list(path: Path) -> bool:
    try:
        return _find_genes(File(path)) is not None
    except InputError:
        return False


def _find_genes(file: File) -> File | None:
    names = [line.strip() for line in file.head if line.strip()]
    return file if names and all(map(is_systematic, names)) else None


def _read_genes(file: File) -> list[str]:
    table = file.lines()
    names = table.frame["text"].str.strip_chars()
    shifted = table.lines != np.arange(1, len(table) + 1)
    again = ~names.str.to_uppercase().is_first_distinct()
    wrong = again.to_numpy() | shifted | names.str.contains(r"\s|^$").to_numpy()
    table.mark_bad("blank line, several names or a repeated name", "text", wrong)
    table.raise_if_bad()
    return names.to_list()


def orf_names(table: Table, column: str) -> pl.Series:
    """Return a column of STRING identifiers without their taxon: ``4932.YDL227C`` is YDL227C."""
    return names_in(table, column).str.replace(r"^\d+\.", "")


def _scores(table: Table, column: str) -> Doubles:
    """Return a column of scores from 0 to 1000, divided by 1000."""
    written = table.numbers(column, required=True)
    wrong = (written < 0) | (written > 1000)
    table.mark_bad(f"column '{column}' is not between 0 and 1000", column, wrong)
    return written / 1000


def _is(table: Table, column: str, yes: str, no: str) -> Bools:
    """Return which rows of a column are `yes`; all others must be `no`."""
    written = table.frame[column]
    table.mark_bad(
        f"column '{column}' is neither {yes} nor {no}", column, ~written.is_in([yes, no])
    )
    return (written == yes).to_numpy()


string_genes = Reader("string_genes", "numbers of genes", _find_genes, _read_genes)
EDGE_READERS = (
    _reader("string_detailed", with_header("protein1", "protein2", *CHANNELS), _detailed),
    _reader("string_physical", with_header(*_LINK, alone=True), _physical),
    _reader("string_actions", with_header(*_ACTION), _actions),
    _reader(
        "string_adjacency",
        without_header(("first", "second", "score"), _are_numbered),
        _adjacency,
    ),
    _reader("yeastract", with_header("tf_orf", "target_orf"), _yeastract),
    _reader("tflink", with_header("Name.TF", "Name.Target"), _tflink),
    _reader("biogrid", with_header("orf1", "orf2", alone=True), _biogrid),
)


#: A sheet, the row of its header, and the columns of source, target and optionally weight.
_Form = tuple[Sheet, int | None, tuple[int, ...]]


def unclear(file: File) -> tuple[str, list[str], str] | None:
    """Return why a table of gene, gene and number is not read as a network, and its columns.

    Its number may be the score of a screen, which must not be used as a network.
    """
    for sheet in file.sheets:
        for at, header, _ in sheet.headers:
            rows = sheet.rows[at:]
            if len(rows[0]) != 3 or (sheet.separator == " " and len(rows) < 3):
                continue
            if _are_edges(rows, 3, sheet.separator):
                return "it has no header", ["1", "2"], "3"
            if not is_number(rows[0][2]) and _are_edges(rows[1:], 3, sheet.separator):
                return f"the meaning of '{header[2]}' is unknown", header[:2], header[2]
    return None


def _read_lists(forms: Sequence[_Form]) -> list[NamedEdges]:
    found = []
    for sheet, at, columns in forms:
        table, name = sheet.below(at), stem_of(sheet.file.path.name)
        name += f"_{sheet.name}" if len(forms) > 1 else ""
        names = [table.frame.columns[i] for i in columns]
        found.append(edges_of(table, names, name, edge_list.name))
    return found


def edges_of(
    table: Table,
    columns: Sequence[str],
    name: str,
    reader: str,
    *,
    directed: bool = False,
) -> NamedEdges:
    """Return the edges of two gene columns and an optional weight; rows without one are dropped."""
    source, target, *weight = columns
    for column in (source, target):
        table.mark_bad(
            f"no gene name in column '{column}'", column, is_missing(table.frame[column])
        )
        check_lengths(table, column)
    for column in weight:
        table.check_not_repeated(column)
    numbers = {"weight": table.numbers(weight[0])} if weight else {}
    table.raise_if_bad()
    frame = _frame(table, table.frame[source], table.frame[target], **numbers)
    kept = frame.filter(pl.col("weight").is_not_nan()) if weight else frame
    if not len(kept):
        raise InputError("no row has two genes", code="empty-file", where=table.path)
    left_out = {"no weight": len(frame) - len(kept)}
    file = table.path, table.sha256, reader
    return NamedEdges(name, kept, *file, directed, table.notes, left_out)


def _by_names(sheet: Sheet) -> _Form | None:
    for names in sheet.file.columns:
        found = names.find(sheet) if "weight" in names.names else None
        if found is not None:
            at, places = found
            return sheet, at, tuple(places[key] for key in (*names.genes, "weight"))
    return None


def _by_words(sheet: Sheet) -> _Form | None:
    for at, _, header in sheet.headers:
        words = list(header)
        while words and words[-1].startswith("column"):
            words.pop()
        nodes = [i for i, w in enumerate(words) if _NODE.fullmatch(w)]
        genes = [i for i, w in enumerate(words) if _NODE.fullmatch(w) or _GENE_WORD.fullmatch(w)]
        if len(genes) != 2:
            genes = genes[:2] if genes[:2] == [0, 1] else []
        weights = [i for i, w in enumerate(words) if _WEIGHT.fullmatch(w)]
        if len(genes) == len(nodes) == 2 and not weights:
            weights = [i for i, w in enumerate(words) if w == "score"]
        if len(genes) != 2 or len(weights) > 1 or (len(words) > 2 and not weights):
            continue
        columns = (*genes, *weights)
        rows = [[row[i] for i in columns] for row in sheet.rows[at + 1 :] if len(row) >= len(words)]
        alone = not at and len(sheet.rows) == 1
        if alone or _are_edges(rows, len(columns), sheet.separator):
            return sheet, at, columns
    return None


def _without_header(sheet: Sheet) -> _Form | None:
    """Return the form of two or three columns; a negative number means that it is a score."""
    width = len(sheet.rows[0])
    if width not in (2, 3) or (sheet.separator in (" ", "") and len(sheet.rows) < 2):
        return None
    numbers = (row[2] for row in sheet.rows if len(row) == 3 and is_number(row[2]))
    if any(number[0] in "-\u2212" for number in numbers):
        return None
    are_edges = _are_edges(sheet.rows, width, sheet.separator)
    return (sheet, None, tuple(range(width))) if are_edges else None


def _are_edges(rows: Sequence[Sequence[str]], width: int, separator: str) -> bool:
    """Whether 80 % of the rows are edges; a missing weight is accepted if another row has one."""
    pairs = [
        row[2:]
        for row in rows
        if len(row) == width
        and all(_GENE.fullmatch(name) and not is_number(name) for name in row[:2])
    ]
    whole = sum(all(map(is_number, numbers)) for numbers in pairs)
    absent = sum(any(number.lower() in MISSING for number in numbers) for numbers in pairs)
    wrong_at_most = 0 if separator == " " else len(rows) // 5
    return whole > 0 and len(rows) - whole - absent <= wrong_at_most


_WAYS = _by_names, _by_words, _without_header
edge_list = Reader("edge_list", "edges", lambda file: file.forms(_WAYS), _read_lists)
